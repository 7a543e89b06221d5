"""The services: what the client, its commands and its adapters know of each one.

No other module lists them, or has a table by their names. The server imports it as well, and no
client with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .lazy import Lazy
from .wire.causes import AnswersCause, Cause, CodeCause, EpisodeCause, ToolsCause, VideoCause
from .wire.score import Request

if TYPE_CHECKING:
    from .service import ServiceClient


@dataclass(frozen=True)
class Service:
    """What is known of a service."""

    client_class: Lazy  #: of `ServiceClient`
    causes: type[Cause]
    port: int  #: of `rewardfleet serve`
    #: What an item is: a policy's text, a clip, or an episode, scored together with its group.
    scores: Literal["text", "clip", "episode"]
    group: str  #: the field of a request that the samples of one prompt have in common
    #: Builds a request from the arguments of the client's `score`.
    request: Callable[..., Request]
    inputs: str  #: what `rewardfleet score` reads, for its help
    #: Yields the parts of the story of a score, from the fields of the request and of the score.
    story: Lazy
    #: Returns a request that no other number has, as JSON, and its only right score, None if any.
    item: Lazy
    example: str  #: what that item is
    #: Bounds of the parts of charts and metrics, from the least to the largest usual score.
    score_bounds: tuple[float, ...] = tuple(tenth / 10 for tenth in range(11))
    is_fast: bool = False  #: whether scores take microseconds: score logs keep a share of them
    #: The column of a row with what a text is scored by, or with a clip; empty if the service does
    #: not score samples one by one, as trainers need it. The rest is for services that do.
    truth: str = ""
    takes_rows: bool = False  #: whether a row without that column may be the truth as a whole
    columns: tuple[str, ...] = ()  #: further columns that a request needs
    #: Returns the arguments of `request`, from a policy's text, the truth, and options in the row.
    fields: Callable[..., Any] = dict
    reported: tuple[str, ...] = ()  #: fields and `numbers` of a score that trainers log

    @property
    def client(self) -> "type[ServiceClient]":
        """Its client."""
        return self.client_class.load()  # type: ignore[no-any-return]


# fmt: off
SERVICES: dict[str, Service] = {
    "video": Service(
        Lazy("rewardfleet.video:VideoClient"), VideoCause, port=18080, scores="clip",
        group="task_text", request=Lazy("rewardfleet.video:video_request"),
        inputs="clips, folders of clips, LeRobot data sets, or tables",
        story=Lazy("rewardfleet.story.figures:story_of_clip"),
        item=Lazy("rewardfleet.commands.load.requests:clip"), example="a clip of colors",
        truth="clip", columns=("task",), fields=Lazy("rewardfleet.rows:clip_fields"),
    ),
    "code": Service(
        Lazy("rewardfleet.code:CodeClient"), CodeCause, port=18081, scores="text",
        group="tests", request=Lazy("rewardfleet.code:code_request"),
        inputs="tables of programs and tests, or of rows of data sets",
        story=Lazy("rewardfleet.story.code:story_of_program"),
        item=Lazy("rewardfleet.commands.load.requests:program"),
        example="a program that passes 2 tests",
        truth="tests", takes_rows=True, fields=Lazy("rewardfleet.rows:code_fields"),
        reported=("pass_rate", "critique_valid", "details/judgment_correct"),
    ),
    "episode": Service(
        Lazy("rewardfleet.episode:EpisodeClient"), EpisodeCause, port=18082,
        scores="episode", group="group", is_fast=True,
        request=Lazy("rewardfleet.episode:episode_request"),
        inputs="tables of episodes, of which groups are on rows one after another",
        story=Lazy("rewardfleet.story.figures:story_of_episode"),
        item=Lazy("rewardfleet.commands.load.requests:episode"),
        example="a success after 120 of 512 steps",
    ),
    "tools": Service(
        Lazy("rewardfleet.tools:ToolsClient"), ToolsCause, port=18083, scores="text",
        group="ground_truth", is_fast=True, request=Lazy("rewardfleet.tools:tools_request"),
        inputs="tables of answers and ground truths",
        story=Lazy("rewardfleet.story.tools:story_of_answer"),
        item=Lazy("rewardfleet.commands.load.requests:answer"),
        example="an answer with the right call", score_bounds=tuple(map(float, range(-3, 5))),
        truth="ground_truth", takes_rows=True, fields=Lazy("rewardfleet.rows:tools_fields"),
        reported=("format", "correctness", "length", "tool_cost", "details/cost"),
    ),
    "answers": Service(
        Lazy("rewardfleet.answers:AnswersClient"), AnswersCause, port=18084, scores="text",
        group="reference", request=Lazy("rewardfleet.answers:answers_request"),
        inputs="tables of responses and references",
        story=Lazy("rewardfleet.story.figures:story_of_answer"),
        item=Lazy("rewardfleet.commands.load.requests:number"),
        example="a number, in a box",
        truth="reference", takes_rows=True, fields=Lazy("rewardfleet.answers:answers_fields"),
        reported=("correct",),
    ),
}
# fmt: on
