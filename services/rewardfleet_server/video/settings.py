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

from rewardfleet_server.settings import CacheSettings, NameList, given_flag, setting, unread

from .judges.completion import complete_judge, complete_set
from .judges.settings import ALIASES, GivenValues, JudgeSettings, all_built_in, built_in
from .prompts import Template

#: Environment variable that marks the processes of an engine started by a rewardfleet service.
_ENGINE_MARKER = "REWARDFLEET_ENGINE_PROCESS"


def _split(value: object) -> object:
    """Split paths joined as in PATH, or by commas, as repeated flags are."""
    return re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value


#: The name of a judge of `--custom-backend-factory` if `--backend` names none.
CUSTOM = "custom"

#: A comma between pairs of `--set`, and not within a value.
_COMMA = re.compile(r",(?=[^,=\s]+=)")


def _split_pairs(value: object) -> object:
    return _COMMA.split(value) if value and isinstance(value, str) else value or []


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

#: A list of folders.
PathList = Annotated[list[DirectoryPath], NoDecode, BeforeValidator(_split)]


class OriginalFlags(CacheSettings):
    """The flags of the original LIBERO reward server that set something of a judge.

    `--help` does not list them. Those that begin with `primo` are for PRIMO-R1, and the others for
    each other judge. Factories get them all, with these defaults.
    """

    # One line per setting.
    # fmt: off
    tensor_parallel_size: PositiveInt = setting(2)
    max_model_len: PositiveInt = setting(16384)
    gpu_memory_utilization: float = setting(0.8, gt=0, le=1)
    temperature: float = setting(0.0, ge=0, le=2)
    top_p: float = setting(0.001, gt=0, le=1)
    max_tokens: PositiveInt = setting(64)
    prompt_template: Template | None = setting(None)
    primo_tensor_parallel_size: PositiveInt = setting(1)
    primo_max_model_len: PositiveInt = setting(16384)
    primo_gpu_memory_utilization: float = setting(0.9, gt=0, le=1)
    primo_temperature: float = setting(0.1, ge=0, le=2)
    primo_top_p: float = setting(0.001, gt=0, le=1)
    primo_max_tokens: PositiveInt = setting(4096)
    primo_system_prompt: Template | None = setting(None)
    primo_user_prompt: Template | None = setting(None)
    # fmt: on


#: Beginnings of names of flags that are for one judge.
_PREFIXES = {"primo": "PRIMO-R1", "openai": "openai"}


def judge_setting(name: str) -> tuple[str | None, str]:
    """Return the judge and its setting that a flag sets; None for each judge that has it."""
    prefix, _, rest = name.partition("_")
    return (_PREFIXES[prefix], rest) if prefix in _PREFIXES else (None, name)


class VideoSettings(OriginalFlags):
    """The settings of `rewardfleet serve video`."""

    most_used = (
        "port", "video_root", "backend", "model_path", "gpu_ids",
        "openai_url", "openai_model", "api_key_file", "host", "cache",
    )  # fmt: skip
    hidden: ClassVar = (*CacheSettings.hidden, *OriginalFlags.__annotations__)
    other_flags: ClassVar = {"backend": "--judge"}
    completions: ClassVar = {"backend": complete_judge, "set": complete_set}

    # One line per setting.
    # fmt: off
    video_root: PathList = setting([], "Folder of the files that video_path may name; repeatable.", group="Video")
    video_url_host: NameList = setting([], "Host of video_url, which is fetched by https; repeatable.", group="Video")
    backend: NameList = setting([], "Judge to load, see `rewardfleet judges`; repeatable. The first is the default of requests.", metavar="JUDGE", shown="reference, or that of a flag below", group="Video")
    model_path: str | None = setting(None, "Checkpoint: a folder, or a name on a hub. Selects qwen2_5_vl_vllm.", metavar="MODEL", group="Video")
    gpu_ids: str = setting("0,1", "GPUs for all judges, e.g. 0,1.", shown="those that CUDA shows", group="Video")
    openai_url: HttpUrl | None = setting(None, "Endpoint such as http://127.0.0.1:8000/v1. Selects the judge openai.", group="Video")
    openai_model: str | None = setting(None, "Model to request there.", group="Video")
    custom_backend_factory: str | None = setting(None, "pkg.mod:function that builds your own judge, named by --backend.", metavar="FUNCTION", group="Video")
    judge_config: FilePath | None = setting(None, "TOML file with a table of options for each judge.", group="Video")
    set: Annotated[list[str], NoDecode, BeforeValidator(_split_pairs)] = setting([], "Option of the judge: top_p=0.9, or JUDGE.top_p=0.9 of several; repeatable. `rewardfleet judges JUDGE` lists them.", metavar="NAME=VALUE", group="Video")
    calibration: FilePath | None = setting(None, "Of `rewardfleet calibrate`: scores are calibrated. Another judge or other options are refused.", group="Video")
    label_fraction: float = setting(0.0, "Of scores, drawn for people to label; needs --score-log.", ge=0, le=1, group="Logging", metavar="SHARE")
    abstention: Annotated[Literal["null", "error"] | float, BeforeValidator(_read_abstention)] = setting("null", "null: a score of null. error: the HTTP error `abstained`. A number in [0, 1]: null, and on /rlinf/score, which it opens, the number.", metavar="null|error|NUMBER", group="Video")
    profile: Literal["rlinf-rlaif"] | None = setting(None, "Defaults of the original LIBERO server; flags win over them.", group="Video")
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
            return [CUSTOM]
        default = "qwen2_5_vl_vllm" if self.profile else "reference"
        return [*self._selected_by_flags().values()] or [default]

    @property
    def _canonical_backends(self) -> list[str]:
        return [ALIASES.get(name, name) for name in self.backends]

    def _selected_by_flags(self) -> dict[str, str]:
        selected = {}
        if self.model_path:
            selected["--model-path"] = "qwen2_5_vl_vllm"
        if self.openai_url:
            selected["--openai-url"] = "openai"
        return selected

    @model_validator(mode="after")
    def _keeps_what_is_to_be_labeled(self) -> Self:
        if self.label_fraction and self.score_log is None:
            raise ValueError(
                f"--label-fraction {self.label_fraction:g} marks scores in the score log: give "
                "--score-log FOLDER as well"
            )
        return self

    @model_validator(mode="after")
    def _selects_one_judge(self) -> Self:
        selected = self._selected_by_flags()
        if not self.backend and not self.custom_backend_factory and len(selected) > 1:
            choices = " and ".join(f"{flag} selects {name}" for flag, name in selected.items())
            raise ValueError(f"{choices}: name the judges to load, each by --backend")
        return self

    @model_validator(mode="after")
    def _judges_read_all(self) -> Self:
        """Refuse a setting that no judge to load reads, and a value that one does not accept."""
        loaded = self._canonical_backends
        self._given_to_judges().check()
        selecting = self.model_fields_set & {"custom_backend_factory", "gpu_ids"}
        judges = [built_in(name) for name in loaded] if selecting else []
        if self.custom_backend_factory and all(judges):
            flag = given_flag("custom_backend_factory", self.custom_backend_factory)
            raise ValueError(unread(flag, loaded, ["a judge of your own, which --backend names"]))
        if "gpu_ids" in selecting and not any(each is None or each.has_model for each in judges):
            readers = [each.name for each in all_built_in() if each.has_model]
            raise ValueError(unread(given_flag("gpu_ids", self.gpu_ids), loaded, readers))
        return self

    def judge_settings(self, name: str) -> JudgeSettings:
        """Return the settings of a judge that comes with the service.

        Raises:
            ValueError: A value is not accepted.
        """
        return self._given_to_judges().settings_of(ALIASES.get(name, name))

    def factory_settings(self, name: str) -> Mapping[str, Any]:
        """Return what `--judge-config` and `--set` say about a judge of the user's own."""
        return self._given_to_judges().values(name)

    def _given_to_judges(self) -> GivenValues:
        """Return the values that judges get: `--set` comes before flags, and these before files.

        A flag for each judge is for those that have no value of their own. An empty one, as in
        `REWARDFLEET_MODEL_PATH=`, is not given.
        """
        loaded = self._canonical_backends
        given = GivenValues(loaded)
        if self.judge_config is not None:
            given.read_file(self.judge_config)
        names = ["openai_url", "openai_model", "model_path", *OriginalFlags.__annotations__]
        names = [name for name in names if name in self.model_fields_set]
        flags = {name: value for name in names if (value := getattr(self, name)) not in (None, "")}
        for name, value in flags.items():
            judge, key = judge_setting(name)
            # The factory of a judge that is not built in gets all flags.
            if judge in loaded or (judge and all(built_in(each) for each in loaded)):
                given.add(judge, key, value, given_flag(name, value))
        given.read_pairs(self.set)
        for name, value in flags.items():
            judge, key = judge_setting(name)
            if judge is None:
                but = ("PRIMO-R1",) if name in OriginalFlags.__annotations__ else ()
                given.add_for_all(key, value, given_flag(name, value), but)
        for judge in loaded if self.profile else ():
            for key, value in ORIGINAL_DEFAULTS.get(judge, {}).items():
                if key not in given.values(judge):
                    given.add(judge, key, value, f"--profile {self.profile}")
        return given

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
        judges = [name for name in self._canonical_backends if self.profile]
        replacing = {"prompts", "prompt_template", "user_prompt"}
        return [
            name
            for name in judges
            if name in ORIGINAL_DEFAULTS
            and not replacing & self._given_to_judges().values(name).keys()
        ]


def openai_api_key(file: Path | None) -> str | None:
    """Return the key of an endpoint, from a file or from `OPENAI_API_KEY`.

    There is no flag for it, as other users could read the command line.
    """
    return file.read_text().strip() if file is not None else os.environ.get("OPENAI_API_KEY")


def select_gpus(settings: VideoSettings) -> None:
    """Set `CUDA_VISIBLE_DEVICES` to the GPUs of `--gpu-ids`; call it before any judge is built.

    The numbers index the GPUs that `CUDA_VISIBLE_DEVICES` already lists, if a scheduler set it.
    Without the flag, the variable is left alone.

    Raises:
        ValueError: There is no such GPU.
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
    """Check that there are enough GPUs; with none at all, vLLM may be a build for CPUs.

    Raises:
        ValueError: There are some, but too few.
    """
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
    os.environ.setdefault(
        "VLLM_WORKER_MULTIPROC_METHOD", "spawn"
    )  # forking a process with threads may deadlock


def started_by_service() -> bool:
    """Return whether this process belongs to an engine that a rewardfleet service started."""
    return _ENGINE_MARKER in os.environ
