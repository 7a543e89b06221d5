"""`POST /score`, `/score/batch` and `/rlinf/score` of the video service."""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, ValidationInfo, model_validator
from pydantic.json_schema import SkipJsonSchema

from .causes import VideoCause, cause_field
from .errors import ErrorKind
from .frames import FRAMES_TYPE, MAX_FRAMES_SENT, Buffer, Frames
from .score import (
    RUN_LABEL,
    STEP_LABEL,
    UID_LABEL,
    FiniteJson,
    ForeignRequest,
    Health,
    JsonSchema,
    Request,
    Response,
    Score,
    Step,
)

#: The fields of a JSON body that provide the video.
JSON_INPUTS = ("video_path", "video_base64", "video_url", "frames_base64")
#: The fields that provide the video; a request has exactly one of them.
INPUTS = (*JSON_INPUTS, "frames")
#: The fields that a form does not have, as its file replaces them.
FILE_REPLACES = (*INPUTS, "fps")

TaskText = Annotated[str, Field(min_length=1, max_length=4096)]
VideoPath = Annotated[
    str, Field(min_length=1, max_length=4096, json_schema_extra={"pattern": "^[^\\x00]*$"})
]
_HTTPS: JsonSchema = {"pattern": "^[hH][tT][tT][pP][sS]://[^/?#@]+([/?#]|$)"}
VideoUrl = Annotated[str, Field(min_length=1, max_length=4096, json_schema_extra=_HTTPS)]
#: The latest time in a video file, in seconds: a day.
MAX_SECONDS = 86_400.0
FrameCount = Annotated[int, Field(ge=1, le=128)]
MaxPixels = Annotated[int, Field(ge=784, le=1_605_632)]


def sample_indices(total: int, count: int) -> tuple[int, ...]:
    """Return `count` (1 or more) indices spread evenly over `total` (0 or more) frames.

    The first and the last are among them; of a count of 1 the last, as it shows how the rollout
    ended. If there are at most `count` frames, all of them are.
    """
    if total <= count:
        return tuple(range(total))
    if count == 1:
        return (total - 1,)
    return tuple(round(index * (total - 1) / (count - 1)) for index in range(count))


def _base64_pattern(alphabet: str) -> str:
    """Return a pattern of complete bytes, whose unused bits are 0; the padding is optional."""
    return (
        f"([{alphabet}]{{4}})*"
        f"([{alphabet}]{{4}}|[{alphabet}][AQgw](=|==)?|[{alphabet}]{{2}}[AEIMQUYcgkosw048]=?)"
    )


_BASE64: JsonSchema = {
    "contentEncoding": "base64",
    "pattern": f"^({_base64_pattern('A-Za-z0-9+/')}|{_base64_pattern('A-Za-z0-9_-')})$",
}


_Image = Annotated[bytes, Field(json_schema_extra=_BASE64)]
Images = Annotated[list[_Image], Field(min_length=1, max_length=MAX_FRAMES_SENT)]


def _only(name: str) -> JsonSchema:
    """Return the schema of requests with one of the inputs, where null is no input."""
    others: JsonSchema = {each: {"type": "null"} for each in JSON_INPUTS if each != name}
    absent = ("start_s", "end_s") if name == "frames_base64" else ("fps",)
    others |= {each: {"type": "null"} for each in absent}
    return {"properties": {name: {"not": {"type": "null"}}, **others}, "required": [name]}


class VideoRequest(Request, json_schema_extra={"oneOf": [*map(_only, JSON_INPUTS)]}):
    """One rollout to judge. Provide exactly one of the fields in `INPUTS`."""

    task_text: TaskText = Field(description="The task: what the robot was to do.")
    video_path: VideoPath | None = Field(
        None,
        description="A video file on the server, under one of its `--video-root` folders; a "
        "relative path is looked up in each of them.",
    )
    video_base64: Annotated[bytes, Field(min_length=1)] | None = Field(
        None,
        description="A video file (mp4, mov, mkv, webm or avi), in base64.",
        json_schema_extra=_BASE64,
    )
    video_url: VideoUrl | None = Field(
        None,
        description="An https URL of a video file, on a host that the service allows with "
        "`video_url_host`.",
    )
    frames_base64: Images | None = Field(
        None, description="The frames in order, each a JPEG or PNG in base64, all of one size."
    )
    #: Not in the schema of JSON bodies.
    frames: SkipJsonSchema[Frames | None] = Field(
        None, description=f"The shape of raw frames, in a body of the type `{FRAMES_TYPE}`."
    )
    fps: FiniteFloat | None = Field(
        None,
        gt=0,
        le=1000,
        description="Frames per second of `frames_base64` or `frames`. Video files contain their "
        "own rate.",
    )
    start_s: Annotated[FiniteFloat, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        None,
        description="The part of a video file that is judged begins with the frame that is shown "
        "at this time, in seconds. Only this part is decoded, from the keyframe before it on. "
        "Null: with the first frame.",
    )
    end_s: Annotated[FiniteFloat, Field(gt=0, le=MAX_SECONDS)] | None = Field(
        None,
        description="The part ends before the frame that is shown at this time, in seconds. Null: "
        "with the last frame.",
    )
    # A plain text, as below: forms have any other type as JSON.
    sha256: str | None = Field(
        None,
        pattern="^[0-9a-fA-F]{64}$",
        description="SHA-256 of the video file, of the images of `frames_base64` one after "
        "another, or of the pixels of `frames`, in hex. Content that has another one is refused.",
    )
    nframes: FrameCount = Field(16, description="Frames that the judge sees, evenly spread.")
    max_pixels: MaxPixels = Field(
        200_704, description="Larger frames are scaled down to these pixels (height times width)."
    )
    backend: str | None = Field(
        None, max_length=200, description="Name of the judge; null for the service's default."
    )
    backend_kwargs: dict[str, FiniteJson] = Field(
        default_factory=dict, description="Options of the judge, e.g. `score_mode`."
    )
    run: str | None = RUN_LABEL
    step: Step | None = STEP_LABEL
    uid: str | None = UID_LABEL

    @property
    def content(self) -> Sequence[Buffer]:
        """The video in the request itself, in parts; empty if it is at a path or a URL."""
        if self.frames is not None:
            return self.frames.pixels
        return self.frames_base64 or ([] if self.video_base64 is None else [self.video_base64])

    @model_validator(mode="after")
    def _exactly_one_input(self, info: ValidationInfo) -> Self:
        given = [name for name in INPUTS if getattr(self, name) is not None]
        if info.context is not None and info.context.get("uploaded"):
            given.append("an uploaded file")
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(INPUTS)} or an uploaded file; "
                f"got {' and '.join(given) or 'none'}"
            )
        if self.fps is not None and self.frames_base64 is None and self.frames is None:
            raise ValueError("fps goes with frames only; a video file contains its own")
        has_part = self.start_s is not None or self.end_s is not None
        if has_part and (self.frames_base64 is not None or self.frames is not None):
            raise ValueError("start_s and end_s go with video files only; send fewer frames")
        if self.end_s is not None and self.end_s <= (self.start_s or 0.0):
            raise ValueError("end_s: give a time after start_s")
        return self


class Curve(Response):
    """Scores of prefixes of a clip, from short to complete."""

    frames: list[NonNegativeInt] = Field(
        description="The source's index of the last frame of each prefix."
    )
    values: list[Annotated[FiniteFloat, Field(ge=0, le=1)] | None] = Field(
        description="The score of each prefix, in [0, 1]; null if the judge abstained."
    )


class NearestReference(Response):
    """The frame of a labeled rollout that is nearest to how a clip ends, by `reference`."""

    file: str = Field(description="The rollout: its name in the library.")
    frame: str = Field(description="Which frame of it, in words.")
    finished: bool = Field(description="Whether the task is done in this frame.")
    distance: FiniteFloat = Field(ge=0, description="How far it is from the clip, in gray levels.")


class VideoScore(Score):
    """A `Score` in [0, 1] with the judge's output."""

    score: FiniteFloat | None = Field(ge=0, le=1, description="In [0, 1]; null if there is none.")
    cause: VideoCause | ErrorKind | str | None = cause_field()
    model_output: str = Field("", description="The judge's text output.")
    suspicions: list[str] = Field(default_factory=list, description="Faults of the recording.")
    curve: Curve | None = Field(
        None,
        description="Values after prefixes: K with `backend_kwargs: {curve: K}`; some judges "
        "always report them.",
    )
    references: list[NearestReference] = Field(
        default_factory=list,
        description="Of the judge `reference`: the nearest frame in which the task is done, then "
        "the nearest other one.",
    )


class RlinfRequest(ForeignRequest):
    """`POST /rlinf/score`: a clip in the format of the original LIBERO server, of RLinf-RLAIF."""

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


class VideoHealth(Health):
    """The response of `GET /health`, as in the original LIBERO reward server."""

    status: str = Field(description="`ok`.")
    default_backend: str = Field(description="The judge of requests that name none.")
    loaded_backends: list[str] = Field(description="Names of the loaded judges, sorted.")
