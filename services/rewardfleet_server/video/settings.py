"""The settings of the video service."""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    DirectoryPath,
    FilePath,
    HttpUrl,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from rewardfleet_server.settings import CacheSettings, NameList, flag_of, setting, shown_value

from .judges.settings import (
    ALIASES,
    JudgeSettings,
    built_in,
    no_such_setting,
    read_pairs,
    takes,
    validated,
)

#: Environment variable that marks the processes of an engine started by a rewardfleet service.
_ENGINE_MARKER = "REWARDFLEET_ENGINE_PROCESS"

#: Paths joined as in PATH, or by commas, as repeated flags are.
_SPLIT_PATHS = BeforeValidator(
    lambda value: re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value
)
#: A comma between pairs of `--set`, and not within a value.
_COMMA = re.compile(r",(?=[^,=\s]+=)")
_SPLIT_PAIRS = BeforeValidator(
    lambda value: _COMMA.split(value) if value and isinstance(value, str) else value or []
)


def _read_abstention(value: object) -> object:
    """Return `null`, `error`, or a number in [0, 1]."""
    text = str(value)  # also of a boolean, which is no number
    if text in {"null", "error"}:
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("give null, error, or a number in [0, 1]")
    return number


#: What `--profile rlinf-rlaif` sets of judges: defaults of the original LIBERO reward server that
#: differ from ours.
ORIGINAL_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl_vllm": {"model_path": "Qwen/Qwen2.5-VL-7B-Instruct"},
    "PRIMO-R1": {"top_p": 0.9, "max_tokens": 1024},
}

#: What flags set of judges: the judge, None for each that has the setting, and the setting. The
#: first flag for a judge counts. These are what commands of the original LIBERO server have.
_OF_JUDGES: dict[str, tuple[str | None, str]] = {
    "primo_tensor_parallel_size": ("PRIMO-R1", "tensor_parallel_size"),
    "tensor_parallel_size": (None, "tensor_parallel_size"),
    "max_model_len": (None, "max_model_len"),
    "model_path": (None, "model_path"),
    "openai_url": ("openai", "url"),
    "openai_model": ("openai", "model"),
}


class VideoSettings(CacheSettings):
    flags = (
        *CacheSettings.flags,
        *("video_root", "backend", "model_path", "gpu_ids", "tensor_parallel_size"),
        *("primo_tensor_parallel_size", "max_model_len", "openai_url", "openai_model"),
        *("custom_backend_factory", "calibration", "abstention", "recording_faults", "profile"),
    )
    other_flags: ClassVar = {"backend": "--judge"}

    # One line per setting.
    # fmt: off
    video_root: Annotated[list[DirectoryPath], NoDecode, _SPLIT_PATHS] = setting([], "Folder of the files that video_path may name; repeatable.")
    video_url_host: NameList = setting([], "Hosts from which a video_url may be fetched, by https.")
    backend: NameList = setting([], "Judge to load, see `rewardfleet judges`; repeatable. The first is the default of requests.", metavar="JUDGE", shown="reference, or that of a flag below")
    model_path: str | None = setting(None, "Checkpoint: a folder or name on a hub. Selects qwen2_5_vl_vllm.", metavar="MODEL")
    gpu_ids: str = setting("0,1", "GPUs for all judges, e.g. 0,1.", shown="those that CUDA shows")
    tensor_parallel_size: PositiveInt | None = setting(None, "GPUs per replica of each model.", shown="by judge", metavar="N")
    primo_tensor_parallel_size: PositiveInt | None = setting(None, "GPUs per replica of PRIMO-R1.", metavar="N")
    max_model_len: PositiveInt | None = setting(None, "Most tokens of prompt, frames and answer.", shown="16384", metavar="N")
    openai_url: HttpUrl | None = setting(None, "Endpoint such as http://127.0.0.1:8000/v1. Selects openai.")
    openai_model: str | None = setting(None, "Model to request from --openai-url.")
    custom_backend_factory: str | None = setting(None, "pkg.mod:function that builds your own judge, named by --backend.", metavar="FUNCTION")
    set: Annotated[list[str], NoDecode, _SPLIT_PAIRS] = setting([], "A setting below, or an option of the judge, see `rewardfleet judges JUDGE`: top_p=0.9, or JUDGE.top_p=0.9 of several; repeatable.", metavar="NAME=VALUE")
    calibration: FilePath | None = setting(None, "File of `rewardfleet calibrate`, made with the same judge.")
    label_fraction: float = setting(0.0, "Share of scores drawn for people to label; needs --score-log.", ge=0, le=1, metavar="SHARE")
    abstention: Annotated[Literal["null", "error"] | float, BeforeValidator(_read_abstention)] = setting("null", "Answer where a judge abstains: null, a score of null; error, the HTTP error `abstained`; a number in [0, 1], null, and on /rlinf/score, which it opens, the number.", metavar="null|error|NUMBER")
    recording_faults: Literal["abstain", "trim", "judge"] = setting("abstain", "For clips with frames that no policy makes: abstain, trim their end, or judge them.", metavar="MODE")
    profile: Literal["rlinf-rlaif"] | None = setting(None, "Defaults of the original LIBERO server; flags win over them.")
    # fmt: on

    @field_validator("gpu_ids")
    @classmethod
    def _gpu_numbers(cls, value: str) -> str:
        ids = value.split(",")
        if not all(name.isdecimal() for name in ids) or len({*ids}) < len(ids):
            raise ValueError("give numbers, each once, like 0 or 0,1")
        return value

    @property
    def backends(self) -> list[str]:
        """Names of the judges to load; the first is the default."""
        if self.backend:
            return self.backend
        if self.custom_backend_factory:  # which gets all settings, the other two as well
            return ["custom"]
        default = "qwen2_5_vl_vllm" if self.profile else "reference"
        return [*self._selected_by_flags().values()] or [default]

    @property
    def _canonical_backends(self) -> list[str]:
        return [ALIASES.get(name, name) for name in self.backends]

    def _selected_by_flags(self) -> dict[str, str]:
        selected = {"--model-path": "qwen2_5_vl_vllm"} if self.model_path else {}
        return selected | ({"--openai-url": "openai"} if self.openai_url else {})

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.label_fraction and self.score_log is None:
            raise ValueError(
                f"label_fraction {self.label_fraction:g} marks scores in the score log: give "
                "--score-log FOLDER as well"
            )
        selected = self._selected_by_flags()
        if not self.backend and not self.custom_backend_factory and len(selected) > 1:
            choices = " and ".join(f"{flag} selects {name}" for flag, name in selected.items())
            raise ValueError(f"{choices}: name the judges to load, each by --backend")
        # A setting that no judge to load reads is refused, as is a value that one does not accept.
        values = self._values_of_judges()
        for name in values:
            if values[name] and built_in(name):
                validated(name, values[name])
        selecting = self.model_fields_set & {"custom_backend_factory", "gpu_ids"}
        judges = [built_in(name) for name in values] if selecting else []
        if self.custom_backend_factory and all(judges):
            raise ValueError(
                f"--custom-backend-factory {self.custom_backend_factory}: name your judge by "
                f"--backend; {' and '.join(values)} come with the service"
            )
        if "gpu_ids" in selecting and not any(each is None or each.has_model for each in judges):
            raise ValueError(f"--gpu-ids {self.gpu_ids}: {' and '.join(values)} runs no model here")
        return self

    def judge_settings(self, name: str) -> JudgeSettings:
        """Return the settings of a judge that comes with the service; see `validated`."""
        name = ALIASES.get(name, name)
        return validated(name, self._values_of_judges().get(name, {}))

    def factory_settings(self, name: str) -> Mapping[str, Any]:
        return read_pairs(self.set, self._canonical_backends)[name]

    def _values_of_judges(self) -> dict[str, dict[str, Any]]:
        """Return the values that judges get: `--set` comes before flags, and these before a profile.

        A flag for each judge is for those that have no value of their own. An empty one, as in
        `REWARDFLEET_MODEL_PATH=`, is not given.
        """
        loaded = self._canonical_backends
        values = read_pairs(self.set, loaded)
        for name, (judge, key) in _OF_JUDGES.items():
            value = getattr(self, name)
            if value in (None, "") or name not in self.model_fields_set:
                continue
            takers = [each for each in loaded if judge in (None, each) and takes(each, key)]
            # The factory of a judge that is not built in gets all flags.
            if not takers and all(built_in(each) for each in loaded):
                reason = no_such_setting(loaded, key)
                raise ValueError(f"{flag_of(name)} {shown_value(value)}: {reason}")
            for taker in takers:
                values[taker].setdefault(key, value)
        for judge in loaded if self.profile else ():
            values[judge] = {**ORIGINAL_DEFAULTS.get(judge, {}), **values[judge]}
        return values

    @property
    def selected_gpus(self) -> list[str] | None:
        """The GPUs of `--gpu-ids`, or of a profile if a judge may use them; None to select none."""
        judges = [built_in(name) for name in self.backends] if self.profile else []
        has_model = any(judge is None or judge.has_model for judge in judges)
        return self.gpu_ids.split(",") if "gpu_ids" in self.model_fields_set or has_model else None

    def profile_summary(self) -> str:
        """Return what `--profile` comes to with the other settings, as one line."""
        values = {
            f"{name}.{key}": getattr(self.judge_settings(name), key)
            for name in self._canonical_backends
            for key in ORIGINAL_DEFAULTS.get(name, {})
        }
        gpus = ",".join(self.selected_gpus or ["none"])
        shown = {"backend": ",".join(self.backends), "gpu_ids": gpus, **values}
        pairs = " ".join(f"{key}={value}" for key, value in shown.items())
        return f"{pairs}; frames are selected by rounding down; --host stays {self.host}"

    def judges_with_own_prompts(self) -> list[str]:
        """Return the judges whose prompts `--profile` would have from a file that is not given."""
        values, replacing = self._values_of_judges(), {"prompts", "prompt_template", "user_prompt"}
        judges = [name for name in values if self.profile and name in ORIGINAL_DEFAULTS]
        return [name for name in judges if replacing.isdisjoint(values[name])]


def references_cache() -> Path:
    """Return the folder of prepared references, in the user's cache folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return folder.expanduser() / "rewardfleet" / "references"
    except RuntimeError:  # as in some containers, the user has no home; nothing can be kept
        return Path(os.devnull)


def openai_api_key(file: Path | None) -> str | None:
    """Return the key of an endpoint, from a file or from `OPENAI_API_KEY`.

    There is no flag for it, as other users could read the command line.
    """
    return file.read_text().strip() if file is not None else os.environ.get("OPENAI_API_KEY")


def select_gpus(settings: VideoSettings) -> None:
    """Set `CUDA_VISIBLE_DEVICES` to the GPUs of `--gpu-ids`; call it before any judge is built.

    The numbers index the GPUs that `CUDA_VISIBLE_DEVICES` already lists, if a scheduler set it.
    Without the flag, the variable is left alone. If there is no such GPU, ValueError.
    """
    names = settings.selected_gpus
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_default = "gpu_ids" not in settings.model_fields_set
    if names is None or (is_default and given == ""):  # a build for CPUs may run the models
        return
    if given is not None:
        visible = [name for name in given.split(",") if name]
        if max(map(int, names)) >= len(visible):
            raise ValueError(
                f"--gpu-ids {settings.gpu_ids}: CUDA_VISIBLE_DEVICES lists {len(visible)} GPUs"
            )
        names = [visible[int(name)] for name in names]
    # Set before the GPUs are counted: counting may initialize CUDA, which reads it only once.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    count = gpu_count()
    if count is not None and count < len(names) and (count or not is_default):
        raise ValueError(f"--gpu-ids {settings.gpu_ids}: CUDA finds {count} of these GPUs")


def check_gpu_count(settings: VideoSettings, needed: int) -> None:
    """Raise ValueError if there are too few GPUs; with none, vLLM may be a build for CPUs."""
    selected = settings.selected_gpus
    count = len(selected) if selected else gpu_count()
    if gpu_count() and count is not None and count < needed:
        raise ValueError(
            f"tensor parallel size times data parallel size needs {needed} GPUs, there are "
            f"{count}; if the model fits on one GPU, set tensor_parallel_size=1"
        )


def gpu_count() -> int | None:
    """Return the number of GPUs that CUDA finds; None if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # noqa: PLC0415 - takes seconds

    return int(torch.cuda.device_count())


def prepare_engine_environment() -> None:
    """Set the environment variables of vLLM, for this process and those that vLLM starts."""
    os.environ[_ENGINE_MARKER] = "1"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # no usage reports
    # Forking a process with threads may deadlock.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


def started_by_service() -> bool:
    """Return whether this process belongs to an engine that a rewardfleet service started."""
    return _ENGINE_MARKER in os.environ
