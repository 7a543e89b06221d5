"""Rewards for reinforcement learning over HTTP: thin async clients.

`rewardfleet.blocking` has the same for synchronous code.
"""

from .client import Abstained, RewardFleet, VideoClient
from .clips import ClipLike, video_request
from .wire.errors import (
    BackendFailed,
    DeadlineExceeded,
    ErrorKind,
    Forbidden,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Problem,
    RewardFleetError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from .wire.score import Score, Status, Timing
from .wire.video import VideoHealth, VideoRequest, VideoScore

__version__ = "0.1.0"

__all__ = [
    "Abstained",
    "BackendFailed",
    "ClipLike",
    "DeadlineExceeded",
    "ErrorKind",
    "Forbidden",
    "InternalError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "Problem",
    "RewardFleet",
    "RewardFleetError",
    "Score",
    "Status",
    "Timing",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "VideoClient",
    "VideoHealth",
    "VideoRequest",
    "VideoScore",
    "video_request",
]
