"""What the video service can be told."""

import os
import re
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    DirectoryPath,
    Field,
    FilePath,
    HttpUrl,
    PositiveInt,
    field_validator,
)
from pydantic_settings import NoDecode

from rewardfleet_server.settings import NameList, ServerSettings

#: Tells the processes of an engine that a service of ours began them.
_MARK = "REWARDFLEET_ENGINE"


def _split(value: object) -> object:
    """Paths in one text are joined as in PATH; repeated flags come joined by commas."""
    return re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value


PathList = Annotated[list[DirectoryPath], NoDecode, BeforeValidator(_split)]


class VideoSettings(ServerSettings):
    """`rewardfleet serve video`."""

    # One line a setting: its unit, and why one would change it.
    # fmt: off
    video_root: PathList = Field([], description="Folder under which video_path is read; repeat for several, or join them with colons. None: no path is accepted.")
    video_url_host: NameList = Field([], description="Host from which video_url is fetched (https only); repeat for several. None: video_url is refused.")
    max_video_mb: PositiveInt = Field(64, description="MiB of one video file.")
    backend: NameList = Field([], description="A judge to load; repeat for several. The first is that of requests that name none. Default: reference, or qwen2_5_vl_vllm with --model-path.")
    model_path: str | None = Field(None, description="Checkpoint of a vision-language model; makes qwen2_5_vl_vllm the default judge.")
    references: DirectoryPath | None = Field(None, description="Folder of labelled rollouts for the judge `reference`. Default: those in the package.")
    custom_backend_factory: str | None = Field(None, description="pkg.mod:function that builds a judge of your own, loaded under the name that --backend gives.")
    prompt_template: str | None = Field(None, description="What a model is asked, with {task} in it. Default: our prompt for the readout.")
    readout: Literal["text", "constrained", "probability", "rubric"] = Field("text", description="text: the model's words are read. constrained: it can only say a number. probability: P(yes) against P(no) of its first token. rubric: the expected grade from 1 to 5 of its first token. A request may choose another; openai has text and probability, PRIMO-R1 text.")
    temperature: float = Field(0.0, ge=0, le=2, description="Of the model's sampling. Above 0, answers differ and are not cached.")
    top_p: float = Field(0.001, gt=0, le=1, description="Of the model's sampling.")
    max_tokens: PositiveInt = Field(64, description="Tokens of the model's answer. One that is cut there is an abstention.")
    openai_url: HttpUrl | None = Field(None, description="Base URL of an OpenAI-compatible endpoint for the judge `openai`, e.g. http://127.0.0.1:8000/v1.")
    openai_model: str | None = Field(None, description="Model to name at that endpoint.")
    openai_api_key_file: FilePath | None = Field(None, description="File with the endpoint's key. Default: the environment variable OPENAI_API_KEY, where it is set.")
    openai_send: Literal["images", "video"] = Field("images", description="images: one JPEG a frame. video: one mp4, where the endpoint takes video_url.")
    openai_concurrency: PositiveInt = Field(32, description="Requests at the endpoint at once.")
    frames: Literal["once", "qwen-vl-utils"] = Field("once", description="How frames come to a local model's size. once: one resize. qwen-vl-utils: by that library, which is slower.")
    gpu_ids: str = Field("0,1", description="GPUs for vLLM, by number, e.g. 0 or 0,1. Default: those that CUDA shows.")
    tensor_parallel_size: PositiveInt = Field(2, description="GPUs that one replica of the model is spread over. 1 where it fits on one: then use more replicas.")
    data_parallel_size: PositiveInt = Field(1, description="Replicas of the model, each on GPUs of its own.")
    max_model_len: PositiveInt = Field(16384, description="Tokens of question, frames and answer together.")
    gpu_memory_utilization: float = Field(0.8, gt=0, le=1, description="Share of a GPU's memory for the model.")
    enforce_eager: bool = Field(False, description="Start sooner and run slower: vLLM compiles nothing.")
    mm_processor_cache_gb: float = Field(0.0, ge=0, description="GiB in which vLLM keeps what its processor made of frames. Of use only where clips repeat.")
    primo_model_path: str | None = Field(None, description="Checkpoint of PRIMO-R1, where --model-path is that of another judge.")
    primo_tensor_parallel_size: PositiveInt = Field(1, description="As above, for PRIMO-R1.")
    primo_max_model_len: PositiveInt = Field(16384, description="As above, for PRIMO-R1.")
    primo_gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="As above, for PRIMO-R1.")
    primo_temperature: float = Field(0.1, ge=0, le=2, description="As above, for PRIMO-R1.")
    primo_top_p: float = Field(0.001, gt=0, le=1, description="As above, for PRIMO-R1. A larger one garbles its answers.")
    primo_max_tokens: PositiveInt = Field(4096, description="As above, for PRIMO-R1, which thinks before it answers.")
    primo_prompts: FilePath | None = Field(None, description="The authors' src/primo_prompts.py, whose texts then replace ours. It is read, not run.")
    primo_system_prompt: str | None = Field(None, description="What PRIMO-R1 is told before. Default: our wording of its format.")
    primo_user_prompt: str | None = Field(None, description="What PRIMO-R1 is asked, with {task} in it. Default: likewise.")
    device: str = Field("auto", description="Where the judge `transformers` runs, as torch names it: cuda, cuda:1, mps, cpu.")
    batch_size: PositiveInt = Field(8, description="Clips of one forward pass of the judge `transformers`.")
    frame_pixels: PositiveInt = Field(50176, description="Pixels of a frame for the judge `transformers`; 50176 is 224x224. More sees finer, and takes longer on a CPU.")
    # fmt: on

    @field_validator("gpu_ids")
    @classmethod
    def _gpu_numbers(cls, value: str) -> str:
        ids = value.split(",")
        if not all(name.isdecimal() for name in ids) or len(set(ids)) < len(ids):
            raise ValueError(f"{value!r}: give numbers, each once, like 0 or 0,1")
        return value

    @property
    def backends(self) -> list[str]:
        """The judges to load; the first is the default."""
        return self.backend or ["qwen2_5_vl_vllm" if self.model_path else "reference"]

    @property
    def openai_api_key(self) -> str | None:
        """The endpoint's key. It has no flag, as other users could read it there."""
        if self.openai_api_key_file is not None:
            return self.openai_api_key_file.read_text().strip()
        return os.environ.get("OPENAI_API_KEY")


def select_gpus(settings: VideoSettings, needed: int) -> None:
    """Show CUDA the GPUs that the settings name, before anything is loaded on them.

    The numbers count those that `CUDA_VISIBLE_DEVICES` shows already, as a scheduler sets it.

    Raises:
        ValueError: They do not exist, or are fewer than needed.
    """
    import torch  # noqa: PLC0415 - only where a model is loaded

    there = torch.cuda.device_count()
    ids = [int(name) for name in settings.gpu_ids.split(",")]
    is_asked = "gpu_ids" in settings.model_fields_set
    if is_asked and max(ids) >= there:
        raise ValueError(f"--gpu-ids {settings.gpu_ids}: CUDA shows {there} GPUs here")
    if not there:
        return  # vLLM may be one for CPUs
    if is_asked:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = [shown[number] if len(shown) == there else str(number) for number in ids]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        there = len(ids)
    if there < needed:
        raise ValueError(
            f"{needed} GPUs are asked for (tensor times data parallel size), {there} are there; "
            "where one holds the model: --tensor-parallel-size 1"
        )


def has_gpus() -> bool:
    """Whether CUDA shows a GPU."""
    import torch  # noqa: PLC0415 - see above

    return bool(torch.cuda.device_count())


def prepare_engine_environment() -> None:
    """Set what vLLM takes from the environment alone, for it and the processes that it starts."""
    os.environ[_MARK] = "1"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nobody is told what runs here
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # threads run here already


def started_by_service() -> bool:
    """Whether this process belongs to an engine that a service of ours began."""
    return _MARK in os.environ
