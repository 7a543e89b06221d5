"""What the video service can be told."""

import os
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, DirectoryPath, Field, FilePath, HttpUrl, PositiveInt
from pydantic_settings import NoDecode

from rewardfleet_server.settings import ServerSettings


def _split(value: object) -> object:
    """Paths in one text are joined as in PATH; repeated flags come joined by commas."""
    return re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value


def _split_at_commas(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


PathList = Annotated[list[DirectoryPath], NoDecode, BeforeValidator(_split)]
NameList = Annotated[list[str], NoDecode, BeforeValidator(_split_at_commas)]


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
    readout: Literal["text", "probability"] = Field("text", description="text: the model's words are read. probability: P(yes) against P(no) of its first token.")
    temperature: float = Field(0.0, ge=0, le=2, description="Of the model's sampling. Above 0, answers differ and are not cached.")
    top_p: float = Field(0.001, gt=0, le=1, description="Of the model's sampling.")
    max_tokens: PositiveInt = Field(64, description="Tokens of the model's answer. One that is cut there is an abstention.")
    openai_url: HttpUrl | None = Field(None, description="Base URL of an OpenAI-compatible endpoint for the judge `openai`, e.g. http://127.0.0.1:8000/v1.")
    openai_model: str | None = Field(None, description="Model to name at that endpoint.")
    openai_api_key_file: FilePath | None = Field(None, description="File with the endpoint's key. Default: the environment variable OPENAI_API_KEY, where it is set.")
    openai_send: Literal["images", "video"] = Field("images", description="images: one JPEG a frame. video: one mp4, where the endpoint takes video_url.")
    openai_concurrency: PositiveInt = Field(32, description="Requests at the endpoint at once.")
    gpu_ids: str = Field("0,1", description="GPUs of a model loaded here, by number. Like all settings below, handed to your own factory; no judge here uses it yet.")
    tensor_parallel_size: PositiveInt = Field(2, description="GPUs that one model is spread over.")
    max_model_len: PositiveInt = Field(16384, description="Tokens of prompt, frames and answer together.")
    gpu_memory_utilization: float = Field(0.8, gt=0, le=1, description="Share of a GPU's memory for the model.")
    primo_tensor_parallel_size: PositiveInt = Field(1, description="As above, for PRIMO-R1.")
    primo_max_model_len: PositiveInt = Field(16384, description="As above, for PRIMO-R1.")
    primo_gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="As above, for PRIMO-R1.")
    primo_temperature: float = Field(0.1, ge=0, le=2, description="As above, for PRIMO-R1.")
    primo_top_p: float = Field(0.001, gt=0, le=1, description="As above, for PRIMO-R1. A larger one garbles its answers.")
    primo_max_tokens: PositiveInt = Field(4096, description="As above, for PRIMO-R1, which thinks before it answers.")
    primo_system_prompt: str | None = Field(None, description="As above, for PRIMO-R1.")
    primo_user_prompt: str | None = Field(None, description="As above, for PRIMO-R1.")
    # fmt: on

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
