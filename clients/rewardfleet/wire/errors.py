"""The failures that services tell and clients raise: one list, one table to HTTP status.

RewardFleetError
├── InvalidRequest      422  the request is malformed or asks for what is not accepted
├── Unauthorized        401  no key, or a wrong one
├── Forbidden           403  the key is right, the thing asked for is not allowed
├── NotFound            404  no such file or endpoint
├── TooLarge            413  past a limit on size, pixels, frames or items
├── Overloaded          429  the house is full; come again after `retry_after`
├── BackendFailed       502  the judge or sandbox broke or answered nonsense
├── Unavailable         503  the service cannot score now (starting, draining, engine dead)
├── DeadlineExceeded    504  the caller's or the service's time was up
└── InternalError       500  a bug of ours

A failure is never a reward: none of these carries a score.
"""

from enum import StrEnum
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field


class ErrorKind(StrEnum):
    """What went wrong, as a word that programs may branch on."""

    INVALID = "invalid"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    OVERLOADED = "overloaded"
    BACKEND_FAILED = "backend_failed"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"


STATUS: dict[ErrorKind, int] = {
    ErrorKind.INVALID: 422,
    ErrorKind.UNAUTHORIZED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.OVERLOADED: 429,
    ErrorKind.BACKEND_FAILED: 502,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.DEADLINE_EXCEEDED: 504,
    ErrorKind.INTERNAL: 500,
}

#: Kinds that the same request may survive when it is sent again.
RETRYABLE = frozenset({ErrorKind.OVERLOADED, ErrorKind.BACKEND_FAILED, ErrorKind.UNAVAILABLE})


class Problem(BaseModel):
    """The body of every failure, `application/problem+json` (RFC 9457)."""

    model_config = ConfigDict(extra="ignore")

    type: str = "about:blank"
    title: str = Field(description="The kind in words, e.g. `Too large`.")
    status: int = Field(description="The HTTP status of this kind.")
    detail: str = Field(description="What was wrong and what is accepted.")
    kind: ErrorKind
    retryable: bool = Field(description="Whether the same request may succeed later.")
    retry_after: float | None = Field(None, description="Seconds to wait before trying again.")
    request_id: str | None = Field(None, description="The id under which the service logged it.")


class RewardFleetError(Exception):
    """Any failure of a reward service. Raised by the services, and again by the clients.

    Args:
        detail: What was wrong and what is accepted.
        retry_after: Seconds after which trying again makes sense.
        request_id: The id under which the service logged the request.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(
        self, detail: str, *, retry_after: float | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self.request_id = request_id

    @property
    def status(self) -> int:
        """The HTTP status of this failure."""
        return STATUS[self.kind]

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in RETRYABLE

    def problem(self, request_id: str | None = None) -> Problem:
        """Return this failure as it goes over the wire.

        Args:
            request_id: Used if the failure has no request id of its own.
        """
        return Problem(
            title=self.kind.replace("_", " ").capitalize(),
            status=self.status,
            detail=self.detail,
            kind=self.kind,
            retryable=self.retryable,
            retry_after=self.retry_after,
            request_id=self.request_id or request_id,
        )

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The failure that came over the wire, as this class."""
        return cls(problem.detail, retry_after=problem.retry_after, request_id=problem.request_id)


class InvalidRequest(RewardFleetError):
    kind = ErrorKind.INVALID


class Unauthorized(RewardFleetError):
    kind = ErrorKind.UNAUTHORIZED


class Forbidden(RewardFleetError):
    kind = ErrorKind.FORBIDDEN


class NotFound(RewardFleetError):
    kind = ErrorKind.NOT_FOUND


class TooLarge(RewardFleetError):
    kind = ErrorKind.TOO_LARGE


class Overloaded(RewardFleetError):
    kind = ErrorKind.OVERLOADED


class BackendFailed(RewardFleetError):
    kind = ErrorKind.BACKEND_FAILED


class Unavailable(RewardFleetError):
    kind = ErrorKind.UNAVAILABLE


class DeadlineExceeded(RewardFleetError):
    kind = ErrorKind.DEADLINE_EXCEEDED


class InternalError(RewardFleetError):
    kind = ErrorKind.INTERNAL


ERRORS: dict[ErrorKind, type[RewardFleetError]] = {
    error.kind: error
    for error in (
        InvalidRequest,
        Unauthorized,
        Forbidden,
        NotFound,
        TooLarge,
        Overloaded,
        BackendFailed,
        Unavailable,
        DeadlineExceeded,
        InternalError,
    )
}
