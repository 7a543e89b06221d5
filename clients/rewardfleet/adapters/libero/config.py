"""How LIBERO episodes are scored: the keys of the original RLinf integration, and a few more."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, ValidationError

from rewardfleet.client import RewardFleet
from rewardfleet.wire.truth import plain
from rewardfleet.wire.validation import format_validation_error

#: The suites of LIBERO, and RLinf's libero_130, which has the tasks of all of them.
SUITES = tuple(map("libero_{}".format, ("spatial", "object", "goal", 10, 90, 100, 130)))

#: Keys next to `reward_model` in RLinf's configuration of an environment.
_NEXT_TO_REWARD_MODEL = ("reward_coef", "use_rel_reward", "task_suite_name")


def _suite(name: str) -> str:
    if name.lower() not in SUITES:
        raise ValueError(f"no suite {name!r}; there are {', '.join(SUITES)}")
    return name.lower()


def _base_urls(endpoint: str | tuple[str, ...]) -> str | tuple[str, ...]:
    urls = (endpoint,) if isinstance(endpoint, str) else endpoint
    bases = tuple(url.rstrip("/").removesuffix("/score") for url in urls)
    try:
        RewardFleet(video=bases)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("video: ")) from None
    return bases[0] if isinstance(endpoint, str) else bases


def _not_infinite(fallback_score: float) -> float:
    if math.isinf(fallback_score):
        raise ValueError("give NaN or a finite number")
    return fallback_score


#: One URL, or those of replicas in a list or a tuple.
_Endpoint = Annotated[
    str | Annotated[tuple[str, ...], Field(strict=False)], AfterValidator(_base_urls)
]
_BackendKwargs = Annotated[
    dict[str, JsonValue], BeforeValidator(lambda given: {} if given is None else given)
]
_Fallback = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_not_infinite)]


class RewardModelConfig(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """How episodes are scored, and how scores become rewards: see `docs/trainers/libero.md`.

    Names and defaults are those of the original RLinf integration, down to `task_suite_name`.
    """

    enable: bool = False
    endpoint: _Endpoint = Field("http://127.0.0.1:18080/score", validate_default=True)
    timeout: float = Field(120.0, gt=0)
    nframes: int = Field(16, ge=1, le=128)
    max_pixels: int = Field(200_704, ge=784, le=1_605_632)
    backend: str | None = None
    backend_kwargs: _BackendKwargs = Field(default_factory=dict)
    video_fps: float = Field(4.0, gt=0, le=1000)
    fail_on_request_error: bool = False
    binary_reward: bool = True
    success_threshold: float = Field(0.5, ge=0, le=1)
    keep_temp_video: Literal[False] = False
    temp_video_dir: Path | None = Field(None, strict=False)
    reward_coef: float = 1.0
    use_rel_reward: bool = False
    task_suite_name: Annotated[str, AfterValidator(_suite)] | None = None
    fallback_score: _Fallback = math.nan
    blocking: bool = False
    api_key: str | None = Field(None, repr=False)

    @classmethod
    def of(cls, config: Mapping[str, Any] | Self) -> Self:
        """Read a configuration from a dict or an OmegaConf node.

        Args:
            config: The section `reward_model`; or RLinf's configuration of an environment, of which
                `reward_model`, `reward_coef`, `use_rel_reward` and `task_suite_name` are read.

        Raises:
            ValueError: A key is unknown, or has a wrong type or value.
        """
        if isinstance(config, cls):
            return config
        if not isinstance(config, Mapping):
            raise ValueError(f"give a mapping, not {type(config).__name__}")  # noqa: TRY004 - see above
        try:
            return cls.model_validate(_fields_of(config))
        except ValidationError as error:
            raise ValueError(format_validation_error(error, cls)) from None


def _fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    if "reward_model" not in config:
        return dict(plain(config))
    section = plain(config["reward_model"]) or {}
    if not isinstance(section, dict):
        raise ValueError(f"reward_model: give a mapping, not {section!r}")  # noqa: TRY004 - see `of`
    # One by one: interpolations elsewhere in the configuration may lead out of it.
    around = {name: plain(config[name]) for name in _NEXT_TO_REWARD_MODEL if name in config}
    if twice := sorted(around.keys() & section.keys()):
        raise ValueError(f"{', '.join(twice)}: given in reward_model and next to it")
    return {**around, **section}


#: What `RewardModelConfig.of` reads.
Config = RewardModelConfig | Mapping[str, Any]
