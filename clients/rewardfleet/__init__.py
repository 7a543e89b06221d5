"""Async clients of reward services for reinforcement learning.

`rewardfleet.blocking` has the same clients for synchronous code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import AnswersClient, answers_request
    from .client import RewardFleet
    from .code import CodeClient, code_request
    from .episode import EpisodeClient, episode_request
    from .sample_tables import SampleTables
    from .tools import ToolsClient, tools_request
    from .video import ClipLike, VideoClient, video_request
    from .wire.answers import AnswersRequest, AnswersScore
    from .wire.code import (
        AssertTests,
        CodeRequest,
        CodeScore,
        FunctionalCase,
        FunctionalTests,
        Limits,
        Outcome,
        StdioCase,
        StdioTests,
        Verdict,
    )
    from .wire.episode import EpisodeBatchResponse, EpisodeOptions, EpisodeRequest, EpisodeScore
    from .wire.errors import (
        Abstained,
        BackendFailed,
        Conflict,
        DeadlineExceeded,
        ErrorKind,
        Forbidden,
        InternalError,
        InvalidRequest,
        MethodNotAllowed,
        NotFound,
        Overloaded,
        Problem,
        RewardFleetError,
        TooLarge,
        Unauthorized,
        Unavailable,
    )
    from .wire.score import Score, Status, Timing
    from .wire.tools import Budget, BudgetUpdate, ToolsOptions, ToolsRequest, ToolsScore
    from .wire.video import VideoHealth, VideoRequest, VideoScore

__version__ = "0.1.0"

#: Where the names are sought, in this order: what takes longest to import comes last.
_SERVICES = ("code", "episode", "tools", "answers", "video")
_WIRE = [f"wire.{name}" for name in ("errors", "score", *_SERVICES)]
_MODULES = (*_WIRE, *_SERVICES, "client", "sample_tables")

__all__ = [
    "Abstained",
    "AnswersClient",
    "AnswersRequest",
    "AnswersScore",
    "AssertTests",
    "BackendFailed",
    "Budget",
    "BudgetUpdate",
    "ClipLike",
    "CodeClient",
    "CodeRequest",
    "CodeScore",
    "Conflict",
    "DeadlineExceeded",
    "EpisodeBatchResponse",
    "EpisodeClient",
    "EpisodeOptions",
    "EpisodeRequest",
    "EpisodeScore",
    "ErrorKind",
    "Forbidden",
    "FunctionalCase",
    "FunctionalTests",
    "InternalError",
    "InvalidRequest",
    "Limits",
    "MethodNotAllowed",
    "NotFound",
    "Outcome",
    "Overloaded",
    "Problem",
    "RewardFleet",
    "RewardFleetError",
    "SampleTables",
    "Score",
    "Status",
    "StdioCase",
    "StdioTests",
    "Timing",
    "TooLarge",
    "ToolsClient",
    "ToolsOptions",
    "ToolsRequest",
    "ToolsScore",
    "Unauthorized",
    "Unavailable",
    "Verdict",
    "VideoClient",
    "VideoHealth",
    "VideoRequest",
    "VideoScore",
    "answers_request",
    "code_request",
    "episode_request",
    "tools_request",
    "video_request",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: a command, or a reader of scores, needs few of them."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found:
                return globals().setdefault(name, found[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
