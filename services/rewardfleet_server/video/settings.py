"""The settings of the video service."""

import importlib.util
import os
import re
from typing import Annotated, Literal, Self

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

from rewardfleet_server.settings import NameList, ServerSettings, setting

from .prompts import Prompt

#: Environment variable that marks the processes of an engine started by a rewardfleet service.
_ENGINE_MARKER = "REWARDFLEET_ENGINE_PROCESS"


def _split(value: object) -> object:
    """Split paths joined as in PATH, or by commas, as repeated flags are."""
    return re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value


#: Alternative names of judges that requests and settings may use.
ALIASES: dict[str, str] = {"primo_r1_vllm": "PRIMO-R1"}
#: The name of a judge of `--custom-backend-factory` if `--backend` names none.
CUSTOM = "custom"

# Which judges read a setting, in the words of `VideoSettings.readers`.
_ON_EITHER_ENGINE = ("PRIMO-R1", "roboreward", "topreward", "sole-r1")
_MODELS = ("qwen2_5_vl_vllm", "transformers", "roboreward", "topreward", "sole-r1", "robometer")
_ALL_MODELS = ("PRIMO-R1", *_MODELS)
#: The judges that come with the service, as in `judges.JUDGES`, whose import takes long.
BUILT_IN = frozenset({"reference", "openai", *_ALL_MODELS})
_PROMPTED = ("openai", "qwen2_5_vl_vllm", "transformers")
_SAMPLED = ("openai with --readout text", "qwen2_5_vl_vllm", "transformers")
_VLLM = ("qwen2_5_vl_vllm", *(f"{name} with --engine vllm" for name in _ON_EITHER_ENGINE))
_VLLM_NOT_PRIMO = tuple(name for name in _VLLM if "PRIMO" not in name)
_TRANSFORMERS = (
    "transformers", "robometer",
    *(f"{name} with --engine transformers" for name in _ON_EITHER_ENGINE),
)  # fmt: skip

#: A list of folders.
PathList = Annotated[list[DirectoryPath], NoDecode, BeforeValidator(_split)]


class VideoSettings(ServerSettings):
    """The settings of `rewardfleet serve video`."""

    most_used = (
        "port", "video_root", "backend", "model_path", "gpu_ids",
        "openai_url", "openai_model", "api_key_file", "host", "cache_file",
    )  # fmt: skip

    # One line per setting.
    # fmt: off
    video_root: PathList = setting([], "Folder of the files that video_path may name. Repeat the flag for several folders. Default: video_path is not accepted.", group="Inputs")
    video_url_host: NameList = setting([], "Host from which video_url may be fetched, by https. Repeat the flag for several hosts. Default: video_url is not accepted.", group="Inputs")
    max_video_mb: PositiveInt = setting(64, "MiB of one video file.", group="Inputs")
    backend: NameList = setting([], "Judge to load. Repeat the flag for several judges; the first is the default of requests. --judge is the same flag.", metavar="JUDGE", other_flag="--judge", shown="reference; custom, openai or qwen2_5_vl_vllm with the flags below", group="Judges")
    model_path: str | None = setting(None, "Checkpoint of a vision-language model: a folder, or a name on a hub. Makes qwen2_5_vl_vllm the default judge.", metavar="MODEL", shown="that of the authors, for a published model", group="Judges", read_by=(*_MODELS, "PRIMO-R1 without --primo-model-path"))
    engine: Literal["vllm", "transformers"] = setting("vllm", "Engine of the judges roboreward, topreward, sole-r1 and PRIMO-R1. robometer always runs on transformers.", group="Judges", read_by=_ON_EITHER_ENGINE)
    references: DirectoryPath | None = setting(None, "Folder of labeled rollouts for the judge `reference`.", shown="the library in the package", group="Judges", read_by=("reference",))
    custom_backend_factory: str | None = setting(None, "Function that builds your own judge, as pkg.mod:function. Makes it the default judge. Its name is that of --backend, or custom.", metavar="MODULE:FUNCTION", group="Judges", read_by=("a judge of your own, which --backend names",))
    prompt_template: str | None = setting(None, "Prompt of the model; {task} stands for the task's text.", shown="that of the readout", group="Judges", read_by=_PROMPTED)
    readout: Literal["text", "constrained", "probability", "rubric"] = setting("text", "How a model's answer becomes a score. text: parse it. constrained: it can only be a number. probability: P(yes) against P(no). rubric: the expected grade from 1 to 5. openai has text and probability, PRIMO-R1 has text only.", group="Judges", read_by=_PROMPTED)
    abstention: Literal["null", "error"] = setting("null", "What an abstention is. null: a response whose score is null. error: the HTTP error `abstained`, for clients that take null for a score.", group="Judges")
    temperature: float = setting(0.0, "Sampling temperature of the model. Scores sampled above 0 are not cached.", ge=0, le=2, group="Sampling", read_by=_SAMPLED)
    top_p: float = setting(0.001, "Nucleus sampling of the model.", gt=0, le=1, group="Sampling", read_by=_SAMPLED)
    max_tokens: PositiveInt = setting(64, "Most tokens of the model's answer. If a longer answer is cut, the judge abstains.", group="Sampling", read_by=_SAMPLED)
    openai_url: HttpUrl | None = setting(None, "Base URL of the endpoint of the judge `openai`, e.g. http://127.0.0.1:8000/v1. Makes it the default judge.", group="OpenAI-compatible endpoint", read_by=("openai",))
    openai_model: str | None = setting(None, "Model to request there.", group="OpenAI-compatible endpoint", read_by=("openai",))
    openai_api_key_file: FilePath | None = setting(None, "File with the endpoint's API key.", shown="the environment variable OPENAI_API_KEY", group="OpenAI-compatible endpoint", read_by=("openai",))
    openai_media: Literal["images", "video"] = setting("images", "How frames are sent. images: one JPEG per frame. video: one mp4, if the endpoint accepts video_url.", group="OpenAI-compatible endpoint", read_by=("openai",))
    openai_concurrency: PositiveInt = setting(32, "Requests at the endpoint at the same time.", group="OpenAI-compatible endpoint", read_by=("openai",))
    gpu_ids: str = setting("0,1", "GPUs for all judges, by number, e.g. 0 or 0,1.", shown="the GPUs that CUDA shows", group="Models in the process", read_by=_ALL_MODELS)
    tensor_parallel_size: PositiveInt = setting(2, "GPUs per replica of the model. If the model fits on one GPU, use 1 and more replicas.", group="Models in the process", read_by=_VLLM_NOT_PRIMO)
    data_parallel_size: PositiveInt = setting(1, "Replicas of the model, each on its own GPUs.", group="Models in the process", read_by=_VLLM)
    max_model_len: PositiveInt = setting(16384, "Tokens of prompt, frames and answer together.", group="Models in the process", read_by=_MODELS)
    gpu_memory_utilization: float = setting(0.8, "Share of a GPU's memory for the model.", gt=0, le=1, group="Models in the process", read_by=_VLLM_NOT_PRIMO)
    enforce_eager: bool = setting(False, "Start faster and run slower: vLLM compiles nothing.", group="Models in the process", read_by=_VLLM)
    mm_processor_cache_gb: float = setting(0.0, "GiB of vLLM's cache of processed frames. Useful only if clips repeat.", ge=0, group="Models in the process", read_by=_VLLM)
    frame_resize: Literal["single", "qwen-vl-utils"] = setting("single", "How frames are resized for a model in the process. single: one resize. qwen-vl-utils: by that library, which is slower.", group="Models in the process", read_by=_ALL_MODELS)
    device: str = setting("auto", "Device of the engine transformers, as torch names it: cuda, cuda:1, mps, cpu.", group="Models in the process", read_by=_TRANSFORMERS)
    batch_size: PositiveInt = setting(8, "Most clips in one forward pass of the engine transformers.", group="Models in the process", read_by=_TRANSFORMERS)
    frame_pixels: PositiveInt = setting(50176, "Most pixels per frame for the judge `transformers`, and for `robometer` if given; 50176 is 224x224. More pixels show more detail and are slower on a CPU.", group="Models in the process", read_by=("transformers", "robometer"))
    primo_model_path: str | None = setting(None, "Checkpoint of PRIMO-R1, if --model-path is another judge's.", metavar="MODEL", group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_tensor_parallel_size: PositiveInt = setting(1, "Like --tensor-parallel-size.", group="PRIMO-R1", read_by=("PRIMO-R1 with --engine vllm",))
    primo_max_model_len: PositiveInt = setting(16384, "Like --max-model-len.", group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_gpu_memory_utilization: float = setting(0.9, "Like --gpu-memory-utilization.", gt=0, le=1, group="PRIMO-R1", read_by=("PRIMO-R1 with --engine vllm",))
    primo_temperature: float = setting(0.1, "Like --temperature.", ge=0, le=2, group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_top_p: float = setting(0.001, "Like --top-p. Larger values garble its answers.", gt=0, le=1, group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_max_tokens: PositiveInt = setting(4096, "Like --max-tokens. PRIMO-R1 thinks before it answers.", group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_prompts: FilePath | None = setting(None, "The authors' src/primo_prompts.py, whose prompts replace the shipped ones. It is parsed, not executed.", group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_system_prompt: str | None = setting(None, "System prompt.", shown="the shipped prompt", group="PRIMO-R1", read_by=("PRIMO-R1",))
    primo_user_prompt: str | None = setting(None, "User prompt; {task} stands for the task's text.", shown="the shipped prompt", group="PRIMO-R1", read_by=("PRIMO-R1",))
    roboreward_prompts: FilePath | None = setting(None, "A file of the authors with RoboReward's prompt, which replaces the shipped one: the README.md of the checkpoint, or a Python file. It is parsed, not executed.", group="Published reward models", read_by=("roboreward",))
    topreward_prompts: FilePath | None = setting(None, "A file of the authors with TOPReward's prompt, e.g. topreward/clients/qwen.py. It is parsed, not executed.", group="Published reward models", read_by=("topreward",))
    sole_prompts: FilePath | None = setting(None, "A file of the authors with SOLE-R1's prompts, e.g. reward_server/src/reward_server/constants.py. It is parsed, not executed.", group="Published reward models", read_by=("sole-r1",))
    robometer_prompts: FilePath | None = setting(None, "The authors' robometer/data/collators/rbm_heads.py, whose prompt replaces the shipped one. It is parsed, not executed.", group="Published reward models", read_by=("robometer",))
    # fmt: on

    @field_validator("gpu_ids")
    @classmethod
    def _gpu_numbers(cls, value: str) -> str:
        ids = value.split(",")
        if not all(name.isdecimal() for name in ids) or len(set(ids)) < len(ids):
            raise ValueError("give numbers, each once, like 0 or 0,1")
        return value

    @field_validator("prompt_template", "primo_system_prompt", "primo_user_prompt")
    @classmethod
    def _is_prompt_template(cls, value: str | None) -> str | None:
        if value:  # an empty text stands for the shipped prompt
            Prompt.of(value)
        return value

    @property
    def backends(self) -> list[str]:
        """Names of the judges to load; the first is the default."""
        if self.backend:
            return self.backend
        if self.custom_backend_factory:  # which gets all settings, the other two as well
            return [CUSTOM]
        return [*self._selected_by_flags().values()] or ["reference"]

    def _selected_by_flags(self) -> dict[str, str]:
        selected = {}
        if self.model_path:
            selected["--model-path"] = "qwen2_5_vl_vllm"
        if self.openai_url:
            selected["--openai-url"] = "openai"
        return selected

    @property
    def readers(self) -> frozenset[str] | None:
        names = [ALIASES.get(name, name) for name in self.backends]
        if not BUILT_IN.issuperset(names):
            return None  # the factory of another judge gets all settings
        more = (f"--engine {self.engine}", f"--readout {self.readout}")
        readers = {*names, *(f"{name} with {flag}" for name in names for flag in more)}
        if "PRIMO-R1" in names and self.primo_model_path is None:
            readers.add("PRIMO-R1 without --primo-model-path")
        return frozenset(readers)

    @model_validator(mode="after")
    def _selects_one_judge(self) -> Self:
        selected = self._selected_by_flags()
        if not self.backend and not self.custom_backend_factory and len(selected) > 1:
            choices = " and ".join(f"{flag} selects {name}" for flag, name in selected.items())
            raise ValueError(f"{choices}: name the judges to load, each by --backend")
        return self

    @property
    def openai_api_key(self) -> str | None:
        """The endpoint's key. There is no flag for it, as other users could read the command line."""
        if self.openai_api_key_file is not None:
            return self.openai_api_key_file.read_text().strip()
        return os.environ.get("OPENAI_API_KEY")


def select_gpus(settings: VideoSettings) -> None:
    """Set `CUDA_VISIBLE_DEVICES` to the GPUs of `--gpu-ids`; call it before any judge is built.

    The numbers index the GPUs that `CUDA_VISIBLE_DEVICES` already lists, if a scheduler set it.
    Without the flag, the variable is left alone.

    Raises:
        ValueError: There is no such GPU.
    """
    if "gpu_ids" not in settings.model_fields_set:
        return
    names = settings.gpu_ids.split(",")
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
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
    if count is not None and count < len(names):
        raise ValueError(f"--gpu-ids {settings.gpu_ids}: CUDA finds {count} of these GPUs")


def check_gpu_count(settings: VideoSettings, needed: int) -> None:
    """Check that there are enough GPUs; with none at all, vLLM may be a build for CPUs.

    Raises:
        ValueError: There are some, but too few.
    """
    is_selected = "gpu_ids" in settings.model_fields_set
    count = len(settings.gpu_ids.split(",")) if is_selected else gpu_count()
    if gpu_count() and count is not None and count < needed:
        raise ValueError(
            f"tensor parallel size times data parallel size needs {needed} GPUs, there are "
            f"{count}; if the model fits on one GPU, use --tensor-parallel-size 1"
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
