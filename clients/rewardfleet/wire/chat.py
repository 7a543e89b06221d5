"""Models of the video service's `POST /v1/chat/completions` and `GET /v1/models`: OpenAI's format.

Only what a client that sends frames and reads text needs. Unknown fields, e.g. sampling parameters,
are ignored, as by other servers of this format. Fields that would need another response are
refused.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .errors import Problem
from .frames import MAX_FRAMES_SENT
from .score import ForeignRequest, JsonSchema, Response, having
from .video import VideoScore

#: OpenAI's type of an error, by HTTP status; of any other 4xx it is an invalid request.
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    424: "server_error",
    429: "rate_limit_error",
}

_NO_USAGE = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)

#: Data URLs, whose base64 is padded.
_DATA_URL = (
    "^data:[^,]*;base64,([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)$"
)


def _as_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _refuse_stream(value: bool | None) -> bool | None:
    if value:
        raise ValueError("this service does not stream; send false or omit it")
    return value


def _contains(name: str, value: str, most: int = 1) -> JsonSchema:
    return {"contains": having(name, value), "minContains": 1, "maxContains": most}


_TEXT: JsonSchema = {"text": {"type": "string", "pattern": r"\S"}}


class ImageUrl(ForeignRequest):
    """Where an image is: in the URL itself."""

    url: str = Field(
        json_schema_extra={"pattern": _DATA_URL},
        description="A data URL with a JPEG or PNG: `data:image/jpeg;base64,…`. Other URLs are "
        "refused.",
    )


def _of_type(name: str) -> JsonSchema:
    fields: JsonSchema = {"type": {"const": name}, name: {"not": {"type": "null"}}}
    return {"properties": fields, "required": ["type", name]}


class ContentPart(
    ForeignRequest, json_schema_extra={"oneOf": [_of_type("text"), _of_type("image_url")]}
):
    """A part of a turn: the text, or one frame."""

    type: Literal["text", "image_url"] = Field(description="Which of the fields it has.")
    text: str | None = Field(None, description="The text.")
    image_url: ImageUrl | None = Field(None, description="The frame.")

    @model_validator(mode="after")
    def _has_its_field(self) -> Self:
        if getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type!r} needs the field {self.type!r}")
        return self


_ONE_TEXT_AND_FRAMES: JsonSchema = {
    "type": "array",
    "allOf": [
        _contains("type", "text"),
        {"contains": {"properties": _TEXT, "required": ["text"]}},
        _contains("type", "image_url", MAX_FRAMES_SENT),
    ],
}
_ASKS: JsonSchema = {"properties": {"content": _ONE_TEXT_AND_FRAMES}}


class ChatMessage(ForeignRequest, json_schema_extra={"if": having("role", "user"), "then": _ASKS}):
    """A turn. The service reads that of the user and ignores system prompts: judges have theirs."""

    role: Literal["system", "developer", "user"] = Field(description="Whose turn it is.")
    content: Annotated[
        list[ContentPart],
        BeforeValidator(_as_parts, json_schema_input_type=str | list[ContentPart]),
    ] = Field(
        fail_fast=True,
        description="One text part, and 1 to 1024 frames as image parts, in order. If the text "
        "names two synchronized videos, all frames of the main camera come first.",
    )


class ChatRequest(ForeignRequest):
    """Frames and a prompt that names a task. Other fields, e.g. `temperature`, are ignored."""

    model: str | None = Field(
        None, description="Name of a loaded judge; any other name stands for the default judge."
    )
    messages: list[ChatMessage] = Field(
        min_length=1,
        fail_fast=True,
        json_schema_extra=_contains("role", "user"),
        description="Exactly one turn of the user; system prompts are ignored.",
    )
    stream: Annotated[bool | None, AfterValidator(_refuse_stream)] = Field(
        None,
        json_schema_extra={"not": {"const": True}},
        description="Not supported: false or omitted.",
    )
    n: int | None = Field(None, ge=1, le=1, description="Only 1 or omitted: there is one choice.")

    @model_validator(mode="after")
    def _one_turn_of_the_user(self) -> Self:
        turns = [message for message in self.messages if message.role == "user"]
        if len(turns) != 1:
            raise ValueError(f"messages: send exactly one turn of the user (got {len(turns)})")
        kinds = [part.type for part in turns[0].content]
        texts, frames = kinds.count("text"), kinds.count("image_url")
        if texts != 1:
            raise ValueError(
                f"messages: send exactly one text part, which names the task (got {texts})"
            )
        if not 1 <= frames <= MAX_FRAMES_SENT:
            raise ValueError(
                f"messages: send 1 to {MAX_FRAMES_SENT} frames as image_url parts (got {frames})"
            )
        return self

    @property
    def parts(self) -> list[ContentPart]:
        """The parts of the user's turn."""
        return next(message.content for message in self.messages if message.role == "user")


class ChatAnswer(Response):
    """The judge's answer as a message."""

    role: Literal["assistant"] = Field("assistant", description="Always `assistant`.")
    content: str = Field(
        description='The score in [0, 1], e.g. `0.912340`. For a trend: `{"trend": "positive"}`, '
        '`"negative"` or `"unclear"`. If the judge abstained: `null` or `{"trend": null}`.'
    )
    refusal: str | None = Field(None, description="That the judge abstained, else null.")


class ChatChoice(Response):
    """The only choice."""

    index: int = Field(0, description="Always 0.")
    message: ChatAnswer = Field(description="The answer.")
    finish_reason: Literal["stop"] = Field("stop", description="Always `stop`.")
    logprobs: None = Field(None, description="Always null.")


class ChatCompletion(Response):
    """The answer in OpenAI's format, and the scores that it was made from."""

    id: str = Field(description="`chatcmpl-` and the request id.")
    object: Literal["chat.completion"] = Field("chat.completion", description="Constant.")
    created: int = Field(description="Seconds since 1970.")
    model: str = Field(description="The judge that answered.")
    choices: list[ChatChoice] = Field(description="One.")
    usage: dict[str, int] = Field(_NO_USAGE, description="Zeros: tokens are not counted.")
    task_text: str = Field(description="The task that was read from the text.")
    scores: list[VideoScore] = Field(
        description="The response of `/score`; for a trend, of the first and of the last frame."
    )


class ChatModel(Response):
    """A loaded judge."""

    id: str = Field(description="Its name.")
    object: Literal["model"] = Field("model", description="Always `model`.")
    created: int = Field(0, description="Always 0.")
    owned_by: str = Field("rewardfleet", description="Always `rewardfleet`.")


class ChatModels(Response):
    """The loaded judges; the first is the default."""

    object: Literal["list"] = Field("list", description="Always `list`.")
    data: list[ChatModel] = Field(description="The judges.")


class ChatErrorDetail(Response):
    """What was wrong."""

    message: str = Field(description="What was wrong and what is accepted.")
    type: str = Field(description="OpenAI's type of error, e.g. `invalid_request_error`.")
    code: str = Field(description="The kind of the failure.")
    param: None = Field(None, description="Always null.")


class ChatError(Response):
    """A failure in OpenAI's format; its HTTP status and headers are those of all routes."""

    error: ChatErrorDetail = Field(description="The failure.")

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """Return a failure in this format."""
        fallback = "invalid_request_error" if problem.status < 500 else "server_error"
        kind = _ERROR_TYPES.get(problem.status, fallback)
        return cls(error=ChatErrorDetail(message=problem.detail, type=kind, code=problem.kind))
