"""Async clients of reward services for reinforcement learning.

`rewardfleet.blocking` has the same clients for synchronous code.
"""

from typing import TYPE_CHECKING, Any

from . import _interrupt  # noqa: F401 - first: it is for what the others take to be imported
from .client import RewardFleet
from .code import CodeClient, code_request
from .episode import EpisodeClient, episode_request
from .tools import ToolsClient, tools_request
from .video import ClipLike, VideoClient, video_request
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

if TYPE_CHECKING:
    from .sample_tables import SampleTables

__version__ = "0.1.0"

__all__ = [
    "Abstained",
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
    "code_request",
    "episode_request",
    "tools_request",
    "video_request",
]


def __getattr__(name: str) -> Any:
    """Import `SampleTables` when it is asked for: few clients have one, and it needs numpy."""
    if name == "SampleTables":
        from .sample_tables import SampleTables  # noqa: PLC0415

        return SampleTables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
