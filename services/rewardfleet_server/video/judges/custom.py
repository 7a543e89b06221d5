"""A judge that the user provides, by the protocol of the original LIBERO reward server.

`--custom-backend-factory pkg.mod:build_backend` names a function
`build_backend(args: argparse.Namespace) -> backend`. The backend has a method
`score_video(task_text, video_path, nframes, max_pixels, backend_kwargs) -> (score, raw_output)`:
a plain function, which runs in a thread, or an `async def`. All of it runs in a process of its own.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from rewardfleet_server.settings import shown_value
from rewardfleet_server.system.threads import usable_cores
from rewardfleet_server.video.custom_judge.process import JudgeNotStarted, JudgeOrder, JudgeProcess
from rewardfleet_server.video.prompts import PERCENTAGE, Prompt
from rewardfleet_server.video.settings import ORIGINAL_DEFAULTS, VideoSettings

from . import DeferredJudge, Judgment


def build(name: str, settings: VideoSettings) -> DeferredJudge:
    """Return the judge of the user's factory, which is called when the judge is loaded.

    Its module may be in the current working directory.

    Raises:
        ValueError: The setting does not name a function. When it is loaded: there is no such
            function, it raises, or its backend has no `score_video`.
    """
    factory = settings.custom_backend_factory or ""
    module, colon, attribute = factory.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--custom-backend-factory {factory}: give pkg.mod:function")
    folder = str(Path.cwd())
    # An installed command does not search the working directory, unlike `python -m`.
    path = sys.path if folder in sys.path else [folder, *sys.path]
    order = JudgeOrder(
        name=name,
        factory=factory,
        settings=_factory_arguments(name, settings),
        threads=min(32, usable_cores() + 4),
        path=list(path),
        log_level=settings.log_level.upper(),
    )
    return DeferredJudge(lambda: CustomJudge(order))


#: The settings of judges that the original server has, with its defaults, on which its factories
#: rely.
_ORIGINAL_DEFAULTS: dict[str, str | float] = {
    **ORIGINAL_DEFAULTS["qwen2_5_vl_vllm"],
    "tensor_parallel_size": 2,
    "max_model_len": 16384,
    "gpu_memory_utilization": 0.8,
    "temperature": 0.0,
    "top_p": 0.001,
    "max_tokens": 64,
    "prompt_template": PERCENTAGE.template,
    "primo_tensor_parallel_size": 1,
    "primo_max_model_len": 16384,
    "primo_gpu_memory_utilization": 0.9,
    "primo_temperature": 0.1,
    **{f"primo_{key}": value for key, value in ORIGINAL_DEFAULTS["PRIMO-R1"].items()},
    "primo_system_prompt": Prompt.load("primo_system").template,
    "primo_user_prompt": Prompt.load("primo_user").template,
}


def _factory_arguments(name: str, settings: VideoSettings) -> dict[str, JsonValue]:
    """Return all settings by name; those that are not set have the original server's defaults.

    Raises:
        ValueError: A setting of the service is given as one of the judge, or is no number.
    """
    values = {**settings.model_dump(mode="json"), "backend": name}
    own = dict(settings.factory_settings(name))
    for key in own.keys() & values.keys():
        raise ValueError(f"{name}.{key}: the service has this setting: give --set {key}=VALUE")
    for key in own.keys() & _ORIGINAL_DEFAULTS.keys():
        try:
            own[key] = type(_ORIGINAL_DEFAULTS[key])(own[key])  # the factory expects this type
        except ValueError as error:
            raise ValueError(f"{name}.{key}={shown_value(own[key])}: {error}") from None
    defaults = _ORIGINAL_DEFAULTS.keys() - settings.model_fields_set
    return {**values, **{key: _ORIGINAL_DEFAULTS[key] for key in defaults}, **own}


class CustomJudge(JudgeProcess):
    """Calls `score_video` in a process of its own.

    Its scores are not cached, because it is unknown what they depend on.

    Raises:
        ValueError: The factory failed.
    """

    deterministic = False

    def __init__(self, order: JudgeOrder) -> None:
        try:
            super().__init__(order)
        except JudgeNotStarted as error:
            raise ValueError(f"--custom-backend-factory {order.factory}: {error}") from error
        self.provenance: Mapping[str, JsonValue] = {"judge": "custom", "factory": order.factory}

    def check_options(self, backend_kwargs: Mapping[str, JsonValue]) -> None:
        """Accept any option: they are passed to `score_video`."""

    async def judge_file(
        self,
        task_text: str,
        path: str,
        nframes: int,
        max_pixels: int,
        backend_kwargs: Mapping[str, JsonValue],
    ) -> Judgment:
        answer = await self.call(task_text, path, nframes, max_pixels, dict(backend_kwargs))
        return Judgment(answer.score, answer.text)
