"""The settings of judges: who declares them, and what `--set` says about them."""

import functools
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from rewardfleet.wire.validation import InputError, join_errors
from rewardfleet_server.settings import did_you_mean, shown_value
from rewardfleet_server.video.prompts import Template

if TYPE_CHECKING:
    from rewardfleet_server.video.settings import VideoSettings

    from . import DeferredJudge, Judge

#: The packages with the modules of judges.
_PACKAGES = ("rewardfleet_server.video.judges", "rewardfleet_server.video.judges.vlm.families")

#: The modules that each engine of models needs, which the extra of its name installs.
ENGINES = {"vllm": ("vllm",), "transformers": ("torch", "torchvision", "transformers")}

#: Alternative names of judges that requests and settings may use.
ALIASES: dict[str, str] = {"primo_r1_vllm": "PRIMO-R1"}


class JudgeSettings(BaseModel):
    """A judge's own settings; a judge declares a subclass in its module."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Settings that are read only if another one has a value: by name, the name and the values of
    #: the other.
    read_if: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @model_validator(mode="after")
    def _reads_all(self) -> Self:
        """Refuse settings that are not read with the values of others."""
        for name in self.model_fields_set & self.read_if.keys():
            other, *wanted = self.read_if[name]
            if getattr(self, other) not in wanted:
                raise ValueError(f"{name} is read with {other}={' or '.join(wanted)} only")
        return self

    @property
    def runs_on(self) -> str | None:
        """The engine that runs its model in this process, or None."""
        return None

    @property
    def gpus(self) -> int:
        """How many GPUs its model takes."""
        return 0


def own(default: Any, help_text: str, **constraints: Any) -> Any:
    """Declare a setting of a judge, with what it is and why one would change it."""
    return Field(default, description=help_text, **constraints)


class SamplingSettings(JudgeSettings):
    """The settings of a judge whose model is prompted for a number."""

    # One line per setting.
    # fmt: off
    prompt_template: Template | None = own(None, "Prompt of the judge; {task} stands for the task's text. Default: that of the readout.")
    temperature: float = own(0.0, "Sampling temperature. Scores sampled above 0 are not cached.", ge=0, le=2)
    top_p: float = own(0.001, "Share of the most likely tokens that are sampled from (nucleus sampling).", gt=0, le=1)
    max_tokens: PositiveInt = own(64, "Most tokens of the answer. If a longer answer is cut, the judge abstains.")
    # fmt: on


@dataclass(frozen=True)
class BuiltInJudge:
    """A judge that comes with the service, as the constant `JUDGE` of its module."""

    #: The name that requests use. The module has the same one, in lower case and with `_` for `-`.
    name: str
    settings: type[JudgeSettings]
    #: Checks the settings and returns the judge; may raise ValueError.
    build: "Callable[[Any, VideoSettings], Judge | DeferredJudge]"
    summary: str  #: one sentence, for `rewardfleet judges`
    #: How its answer becomes a score, by the name of the readout; the first is the default.
    readouts: Mapping[str, str] = field(default_factory=dict)
    #: The flags, besides `--judge`, that it needs or that most users give it.
    example: tuple[str, ...] = ()

    @property
    def has_model(self) -> bool:
        """Whether it loads a model in this process."""
        return "model_path" in self.settings.model_fields

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that can run its model in this process, the default one first."""
        if "engine" in self.settings.model_fields:
            return get_args(self.settings.model_fields["engine"].annotation)
        engine = self.settings().runs_on
        return (engine,) if engine else ()


@functools.cache
def built_in(name: str) -> BuiltInJudge | None:
    """Find a judge that comes with the service by its name, and import its module."""
    name = ALIASES.get(name, name)
    stem = re.sub(r"\W", "_", name.lower())
    for package in _PACKAGES:
        if stem.isidentifier() and importlib.util.find_spec(f"{package}.{stem}"):
            found = getattr(importlib.import_module(f"{package}.{stem}"), "JUDGE", None)
            if isinstance(found, BuiltInJudge) and found.name == name:
                return found
    return None


def all_built_in() -> list[BuiltInJudge]:
    """Return all judges that come with the service, which imports their modules."""
    judges = [
        getattr(importlib.import_module(module.name), "JUDGE", None)
        for package in _PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    ]
    return sorted(filter(None, judges), key=lambda judge: judge.name)


def read_pairs(pairs: Iterable[str], loaded: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings that `--set` gives, by judge and name; ValueError for unread ones.

    Args:
        pairs: `JUDGE.NAME=VALUE`, or `NAME=VALUE` for the only judge.
        loaded: The judges to load. Those that do not come with the service read everything.
    """
    values: dict[str, dict[str, Any]] = {name: {} for name in loaded}
    for pair in pairs:
        source = f"--set {shown_value(pair)}"
        path, equals, value = pair.partition("=")
        name, _, key = path.strip().rpartition(".")
        if not equals or not key:
            raise ValueError(f"{source}: give NAME=VALUE or JUDGE.NAME=VALUE")
        if not name and len(loaded) > 1:
            choices = " or ".join(f"{each}.{key}" for each in loaded)
            raise ValueError(f"{source}: several judges are loaded: set {choices}")
        name = ALIASES.get(name, name) or loaded[0]
        if name not in values:
            raise ValueError(f"{source}: no judge {name} is loaded, but {', '.join(loaded)}")
        if not takes(name, key):
            raise ValueError(f"{source}: {no_such_setting([name], key)}")
        values[name][key] = value
    return values


def takes(name: str, key: str) -> bool:
    """Return whether a judge has a setting. One that does not come with the service has any."""
    judge = built_in(name)
    return judge is None or key in judge.settings.model_fields


def no_such_setting(names: Sequence[str], key: str) -> str:
    """Return the error about a setting that judges do not have: what has it, or what is near."""
    judges = all_built_in()
    readers = ", ".join(each.name for each in judges if key in each.settings.model_fields)
    fields = [name for each in judges if each.name in names for name in each.settings.model_fields]
    hint = f"; those with it: {readers}" if readers else did_you_mean(key, fields)
    return f"no such setting of {' and '.join(names)}{hint}"


def validated(name: str, values: Mapping[str, Any]) -> JudgeSettings:
    """Return the settings of a judge; raise ValueError if a value is not accepted."""
    judge = built_in(name)
    assert judge is not None  # noqa: S101 - callers ask about those that exist
    try:
        return judge.settings(**values)
    except ValidationError as error:
        raise ValueError(join_errors(error, lambda each: f"{name}.{_explain(each)}")) from None


def _explain(error: InputError) -> str:
    if not error.loc:  # an error of several settings, which the reason names
        return error.reason
    return (
        f"{error.loc[0]}={shown_value(error.value)}: {error.reason[:1].lower()}{error.reason[1:]}"
    )
