"""`POST /rlinf/score`: the format of the original LIBERO reward server, of RLinf-RLAIF."""

from pydantic import Field, FiniteFloat

from .causes import VideoCause
from .score import FiniteJson, ForeignRequest, Response
from .video import FrameCount, MaxPixels, TaskText, VideoPath


class RlinfRequest(ForeignRequest):
    """The clip of an episode. The limits are those of `POST /score`."""

    task_text: TaskText = Field(description="The task: what the robot was to do.")
    video_path: VideoPath = Field(description="A video file on the server.")
    nframes: FrameCount = Field(16, description="Number of frames that the judge sees.")
    max_pixels: MaxPixels = Field(200_704, description="The most pixels per frame.")
    backend: str | None = Field(None, max_length=200, description="The judge; null: the default.")
    backend_kwargs: dict[str, FiniteJson] = Field({}, description="Its options: `score_mode`, …")


class RlinfScore(Response):
    """A score; there is always one, as this format has no place for a missing one."""

    score: FiniteFloat = Field(
        ge=0, le=1, description="The judge's score, or after an abstention that of `--abstention`."
    )
    model_output: str = Field(description="The judge's text output.")
    backend: str = Field(description="The judge that answered.")
    abstained: bool = Field(description="Whether the judge abstained: `score` is no judgment.")
    cause: VideoCause | None = Field(None, description="Why it abstained, or gives less than 1.")
