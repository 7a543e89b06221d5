"""Find and load the judges that the settings name."""

import sys
from pathlib import Path

from pydantic import JsonValue

from rewardfleet_server.settings import shown_value
from rewardfleet_server.system.threads import usable_cores
from rewardfleet_server.video.custom_judge.process import CustomJudge, JudgeOrder
from rewardfleet_server.video.prompts import PERCENTAGE, Prompt
from rewardfleet_server.video.settings import (
    ORIGINAL_DEFAULTS,
    VideoSettings,
    gpu_count,
    select_gpus,
)

from . import DeferredJudge, Judge
from .settings import all_built_in, built_in


def load_judges(settings: VideoSettings) -> dict[str, Judge]:
    """Load the judges of `--backend`, by name: GPUs are selected, all checked, then all loaded.

    Raises:
        ValueError: A judge does not exist, or cannot work with these settings.
    """
    select_gpus(settings)
    found = {name: find_judge(name, settings) for name in settings.backends}
    # All models together must fit on the GPUs, if there are any.
    deferred = [judge for judge in found.values() if isinstance(judge, DeferredJudge)]
    shares = {name: share for judge in deferred for name, share in judge.gpu_memory.items()}
    if sum(shares.values()) > 1 and gpu_count():
        named = " and ".join(f"{setting} {share:g}" for setting, share in shares.items())
        raise ValueError(f"{len(shares)} models share the GPUs: {named} are more than 1 together")
    return {
        name: judge.load() if isinstance(judge, DeferredJudge) else judge
        for name, judge in found.items()
    }


def find_judge(name: str, settings: VideoSettings) -> Judge | DeferredJudge:
    """Build a judge without its model; see `load_judges` for errors."""
    judge = built_in(name)
    if judge is not None:
        return judge.build(settings.judge_settings(name), settings)
    if settings.custom_backend_factory is None:
        known = ", ".join(each.name for each in all_built_in())
        raise ValueError(
            f"--backend {name}: no such judge; known: {known}, "
            "or your own with --custom-backend-factory"
        )
    return _custom(name, settings.custom_backend_factory, settings)


def _custom(name: str, factory: str, settings: VideoSettings) -> DeferredJudge:
    """Return a judge of the user's own, by the protocol of the original LIBERO reward server.

    `--custom-backend-factory pkg.mod:function` names a function that gets an `argparse.Namespace`
    when the judge is loaded, and returns a backend. Its module may be in the current working
    directory. The backend has a method `score_video(task_text, video_path, nframes, max_pixels,
    backend_kwargs) -> (score, raw_output)`: a plain function, which runs in a thread, or an `async
    def`. All of it runs in a process of its own.

    Raises:
        ValueError: The setting does not name a function. When it is loaded: there is no such
            function, it raises, or its backend has no `score_video`.
    """
    module, colon, attribute = factory.partition(":")
    if not (module and colon and attribute):
        raise ValueError(f"--custom-backend-factory {factory}: give pkg.mod:function")
    folder = str(Path.cwd())
    # An installed command does not search the working directory, unlike `python -m`.
    path = sys.path if folder in sys.path else [folder, *sys.path]
    arguments, threads = _factory_arguments(name, settings), min(32, usable_cores() + 4)
    level = settings.log_level.upper()
    order = JudgeOrder(name, factory, arguments, threads, list(path), level)
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
    """Return all settings by name, with the original server's defaults, or raise ValueError."""
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
