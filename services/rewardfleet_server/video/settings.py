"""What the video service can be told."""

import os
import re
from typing import Annotated

from pydantic import BeforeValidator, DirectoryPath, Field, PositiveInt
from pydantic_settings import NoDecode

from rewardfleet_server.settings import ServerSettings


def _split(value: object) -> object:
    """Paths in one text are joined as in PATH; repeated flags come joined by commas."""
    return re.split(f"[,{os.pathsep}]", value) if isinstance(value, str) else value


PathList = Annotated[list[DirectoryPath], NoDecode, BeforeValidator(_split)]


class VideoSettings(ServerSettings):
    """`rewardfleet serve video`."""

    # One line a setting: its unit, and why one would change it.
    # fmt: off
    video_root: PathList = Field([], description="Folder under which video_path is read; repeat for several, or join them with colons. None: no path is accepted.")
    max_video_mb: PositiveInt = Field(64, description="MiB of one video file.")
    backend: str | None = Field(None, description="The judge of requests that name none. Default: reference, or qwen2_5_vl_vllm with --model-path.")
    model_path: str | None = Field(None, description="Checkpoint of a vision-language model; makes qwen2_5_vl_vllm the default judge.")
    references: DirectoryPath | None = Field(None, description="Folder of labelled rollouts for the judge `reference`. Default: those in the package.")
    # fmt: on

    @property
    def default_backend(self) -> str:
        """The judge of requests that name none."""
        return self.backend or ("qwen2_5_vl_vllm" if self.model_path else "reference")
