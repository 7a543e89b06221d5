"""What the video service can be told."""

from pydantic import DirectoryPath, Field, PositiveInt

from rewardfleet_server.settings import ServerSettings


class VideoSettings(ServerSettings):
    """`rewardfleet serve video`."""

    # fmt: off - one line a setting: its unit, and why one would change it
    video_root: list[DirectoryPath] = Field(
        [],
        description="Folder under which video_path is read; repeat for several. None: no path is accepted.",
    )
    max_video_mb: PositiveInt = Field(64, description="MiB of one video file.")
    backend: str | None = Field(
        None,
        description="The judge of requests that name none. Default: reference, or qwen2_5_vl_vllm with --model-path.",
    )
    model_path: str | None = Field(
        None,
        description="Checkpoint of a vision-language model; makes qwen2_5_vl_vllm the default judge.",
    )
    references: DirectoryPath | None = Field(
        None,
        description="Folder of labelled rollouts for the judge `reference`. Default: those in the package.",
    )
    # fmt: on

    @property
    def default_backend(self) -> str:
        """The judge of requests that name none."""
        return self.backend or ("qwen2_5_vl_vllm" if self.model_path else "reference")
