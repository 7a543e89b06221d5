"""The failures that services report and clients raise. None of them carries a score.

A new kind is a member of `ErrorKind` and a class. The tables are derived from the classes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, Field

if TYPE_CHECKING:  # it imports this module
    from .score import Score


class ErrorKind(StrEnum):
    """The kind of a failure: a word that programs may branch on."""

    INVALID = "invalid"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_LARGE = "too_large"
    ABSTAINED = "abstained"
    OVERLOADED = "overloaded"
    BACKEND_FAILED = "backend_failed"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"


class Problem(BaseModel, extra="ignore"):
    """The body of every failure, `application/problem+json` (RFC 9457)."""

    type: str = Field("about:blank", description="Always `about:blank`: `kind` has the type.")
    title: str = Field(description="The kind as text, e.g. `Too large`.")
    status: int = Field(description="The HTTP status of this kind.")
    detail: str = Field(description="What was wrong and what is accepted.")
    kind: ErrorKind | str = Field(
        union_mode="left_to_right",
        description="The kind of the failure, for programs to branch on. Newer services may have "
        "further ones.",
    )
    retryable: bool = Field(description="Whether the same request may succeed later.")
    retry_after: float | None = Field(None, description="Seconds until a retry; null if unknown.")
    request_id: str | None = Field(None, description="The request id, as in the service's log.")


#: The class of each kind. Each class enters itself.
ERRORS: dict[ErrorKind, type["RewardFleetError"]] = {}


class RewardFleetError(Exception):
    """Any failure of a reward service. Services raise it, and clients raise it again.

    A subclass declares its kind: `class NotFound(RewardFleetError, kind=…, status=404)`.

    Args:
        detail: What was wrong and what is accepted.
        retry_after: Seconds after which another attempt makes sense, 0 or more; None if unknown.
        request_id: The request id, as it appears in the service's log.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    status: ClassVar[int] = 500  #: of HTTP
    #: Whether the same request may succeed later. A service may say so of a single failure, which
    #: the client repeats by its kind only.
    retryable: bool = False
    is_foreign: bool = False  #: whether a proxy or another server answered in place of the service
    #: Whether it is over once the service runs again: the client tries until its deadline.
    is_outage: bool = False
    #: Whether the URL or the key seems wrong and has never worked: no reward replaces this.
    blames_url: bool = False

    def __init_subclass__(
        cls, *, kind: ErrorKind | None = None, status: int | None = None, retryable: bool = False
    ) -> None:
        """Enter a class that declares a kind in the table of errors."""
        super().__init_subclass__()
        if kind is not None and status is not None:
            cls.kind, cls.status, cls.retryable = kind, status, retryable
            ERRORS[kind] = cls

    def __init__(
        self, detail: str, *, retry_after: float | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self.request_id = request_id

    def problem(self, request_id: str | None = None) -> Problem:
        """Return this failure as the body of a response, with the id of its request."""
        return Problem(
            title=self.kind.replace("_", " ").capitalize(),
            status=self.status,
            detail=self.detail,
            kind=self.kind,
            retryable=self.retryable,
            retry_after=self.retry_after,
            request_id=self.request_id or request_id,
        )

    @staticmethod
    def from_problem(problem: Problem) -> "RewardFleetError":
        """Return the failure that a response's body describes, as the class of its kind.

        That of an unknown kind, of a newer service, is the class of its HTTP status.
        """
        is_known = isinstance(problem.kind, ErrorKind)
        of_status = ERROR_OF_STATUS.get(problem.status, InternalError)
        error = ERRORS[ErrorKind(problem.kind)] if is_known else of_status
        return error(problem.detail, retry_after=problem.retry_after, request_id=problem.request_id)


class InvalidRequest(RewardFleetError, kind=ErrorKind.INVALID, status=422):
    """The request is malformed or asks for something that is not accepted."""


class Unauthorized(RewardFleetError, kind=ErrorKind.UNAUTHORIZED, status=401):
    """The request has no API key, or an unknown one."""


class Forbidden(RewardFleetError, kind=ErrorKind.FORBIDDEN, status=403):
    """The key is valid, but what it asks for is not allowed."""


class NotFound(RewardFleetError, kind=ErrorKind.NOT_FOUND, status=404):
    """There is no such file or route."""


class Conflict(RewardFleetError, kind=ErrorKind.CONFLICT, status=409):
    """The call differs from an earlier one that it repeats, or is of an attempt that has ended."""


class MethodNotAllowed(RewardFleetError, kind=ErrorKind.METHOD_NOT_ALLOWED, status=405):
    """The route exists, for other methods; the response names them in `Allow`."""

    #: The methods of the route; empty if they are not known.
    allowed: Sequence[str] = ()


class TooLarge(RewardFleetError, kind=ErrorKind.TOO_LARGE, status=413):
    """The request is over a limit on size, pixels, frames or items."""


class Abstained(RewardFleetError, kind=ErrorKind.ABSTAINED, status=424):
    """The judge answered, without a usable verdict. Services send it with `--abstention error`."""

    #: The judge's answer, whose `score` is None. None if the response does not contain it.
    score: "Score | None" = None


class Overloaded(RewardFleetError, kind=ErrorKind.OVERLOADED, status=429, retryable=True):
    """The service is at capacity."""


class BackendFailed(RewardFleetError, kind=ErrorKind.BACKEND_FAILED, status=502, retryable=True):
    """The judge or the sandbox failed, or its answer was unusable."""


class Unavailable(RewardFleetError, kind=ErrorKind.UNAVAILABLE, status=503, retryable=True):
    """The service cannot score now: it ends, is too busy, or what it needs has failed."""

    is_outage = True


class DeadlineExceeded(RewardFleetError, kind=ErrorKind.DEADLINE_EXCEEDED, status=504):
    """The caller's or the service's time limit was reached."""


class InternalError(RewardFleetError, kind=ErrorKind.INTERNAL, status=500):
    """There is a bug in the service."""


#: Errors that the caller must correct, which no reward replaces.
CALLER_ERRORS = InvalidRequest | Unauthorized | Forbidden | MethodNotAllowed | TooLarge | Conflict
#: The class of each HTTP status, also for responses without a problem, e.g. those of a proxy.
ERROR_OF_STATUS = {error.status: error for error in ERRORS.values()}
