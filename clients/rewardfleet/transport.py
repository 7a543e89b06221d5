"""One service over HTTP: requests out, models or typed errors back, before a deadline."""

import asyncio
import email.utils
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from .replicas import Replica, Replicas, backoff
from .wire.errors import (
    ERRORS,
    STATUS,
    BackendFailed,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Problem,
    RewardFleetError,
    Unavailable,
)
from .wire.score import MAX_BATCH_ITEMS

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

#: HTTP status back to the error's class, for answers that carry no problem (a proxy's, say).
ERROR_OF_STATUS = {STATUS[kind]: error for kind, error in ERRORS.items()}

#: Names the service that answered.
SERVICE_HEADER = "x-rewardfleet-service"

#: How often a call comes back to replicas that failed it. A 429 does not count.
_RETRIES = 4
_CONNECT_SECONDS = 5.0
#: What the service's deadline leaves of the client's for the way back: a tenth, and at most this.
_MAX_WAY_BACK_SECONDS = 1.0


@dataclass(eq=False)
class _Call:
    """One call, over all its attempts."""

    method: str
    path: str
    body: BaseModel | None
    samples: int
    deadline: float
    attempted: bool = False
    failed_at: set[str] = field(default_factory=set)  #: URLs, since the last back-off
    content: bytes | None = None

    async def request(self, replica: Replica) -> httpx.Request:
        """Write the request; the body only once there is a place, so that few are in memory."""
        headers = {}
        if self.body is not None:
            headers["content-type"] = "application/json"
            if self.content is None:
                # What was not given is not sent: a service of an older version need not know it.
                dump = partial(self.body.model_dump_json, exclude_unset=True)
                text = await in_thread(dump, self.deadline)
                self.content = text.encode()
        left = self.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the time was up before the request could be sent")
        told = left - min(left / 10, _MAX_WAY_BACK_SECONDS)
        headers["x-request-timeout"] = f"{max(told, 0.001):.3f}"
        return replica.http.build_request(
            self.method,
            replica.url + self.path,
            content=self.content,
            headers=headers,
            timeout=httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS)),
        )


class ServiceTransport:
    """One service at its replicas: requests out, models or typed errors back.

    Args:
        service: The service that must answer, e.g. `video`.
        urls: Base URLs of the replicas.
        api_key: Sent as a bearer token.
        timeout_s: Seconds for a whole call.
        max_concurrency: Samples in flight at a replica at once.
    """

    def __init__(
        self,
        service: str,
        urls: list[str],
        *,
        api_key: str | None,
        timeout_s: float,
        max_concurrency: int,
    ) -> None:
        self._service = service
        self._urls = urls
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._max_concurrency = max_concurrency
        # Those of a parent process stay: to let go of its event loop would unregister the
        # parent's sockets, as both processes share what watches them.
        self._connected: dict[tuple[int, asyncio.AbstractEventLoop], Replicas] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connections: they belong to this process's event loops."""
        return {**self.__dict__, "_connected": {}}

    def deadline(self) -> float:
        """When a call that begins now must be over, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self._timeout_s

    def batch_items(self, count: int) -> int:
        """How many of `count` items to send in a request: for all replicas, two at each."""
        share = math.ceil(count / len(self._urls))
        return min(MAX_BATCH_ITEMS, share, max(self._max_concurrency // 2, 1))

    async def post(
        self,
        path: str,
        body: BaseModel,
        answer: type[ModelT],
        *,
        deadline: float,
        samples: int = 1,
    ) -> ModelT:
        """Send `body`, which stands for so many samples, by a time of the event loop's clock."""
        return await self._call(_Call("POST", path, body, samples, deadline), answer)

    async def get(self, path: str, answer: type[ModelT]) -> ModelT:
        return await self._call(_Call("GET", path, None, 1, self.deadline()), answer)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        replicas = self._connected.pop((os.getpid(), asyncio.get_running_loop()), None)
        if replicas is not None:
            await replicas.aclose()

    def _replicas(self) -> Replicas:
        here = os.getpid(), asyncio.get_running_loop()
        replicas = self._connected.get(here)
        if replicas is None:
            for pid, loop in list(self._connected):
                if pid == here[0] and loop.is_closed():
                    self._connected.pop((pid, loop), None)
            replicas = self._connected[here] = Replicas(
                self._urls, headers=self._headers, max_concurrency=self._max_concurrency
            )
        return replicas

    async def _call(self, call: _Call, answer: type[ModelT]) -> ModelT:
        """Try until there is an answer, an error that trying does not help, or no time left.

        A failed call goes to another replica at once. When all have failed it, it backs off.
        """
        replicas = self._replicas()
        loop = asyncio.get_running_loop()
        failure: RewardFleetError | None = None
        retries = 0
        while True:
            try:
                return await self._attempt(replicas, call, answer)
            except DeadlineExceeded as late:
                if failure is None:
                    raise
                raise DeadlineExceeded(f"{late.detail}; before that: {failure}") from failure
            except RewardFleetError as error:
                failure = error
            if not failure.retryable:
                raise failure
            if isinstance(failure, Overloaded):  # the replica rests, and the queue knows it
                if replicas.next_available_at() >= call.deadline:
                    raise failure
            elif not replicas.has_alternative(call.failed_at):
                retries += 1
                pause = (failure.retry_after or 0.0) + backoff(retries)
                if retries > _RETRIES or loop.time() + pause >= call.deadline:
                    raise failure
                call.failed_at.clear()
                await asyncio.sleep(pause)

    async def _attempt(self, replicas: Replicas, call: _Call, answer: type[ModelT]) -> ModelT:
        """Wait for a place at a replica, and ask it."""
        try:
            async with asyncio.timeout_at(call.deadline):
                replica = await replicas.acquire(
                    call.samples, avoid=call.failed_at, first=call.attempted
                )
        except TimeoutError:
            raise DeadlineExceeded(
                f"no place at {', '.join(self._urls)} was free within {self._timeout_s:g} s"
            ) from None
        call.attempted = True
        started = asyncio.get_running_loop().time()
        try:
            model = await self._ask(replicas, replica, call, answer)
        except RewardFleetError as error:
            replicas.failed(replica, error, started=started)
            if not isinstance(error, Overloaded):
                call.failed_at.add(replica.url)
            raise
        else:
            replicas.succeeded(replica, call.samples, started=started)
            return model
        finally:
            replicas.release(replica, call.samples)

    async def _ask(
        self, replicas: Replicas, replica: Replica, call: _Call, answer: type[ModelT]
    ) -> ModelT:
        """Make one HTTP request; the service is told how much time is left."""
        request = await call.request(replica)
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(call.deadline):
                response = await replica.http.send(request)
        except httpx.ConnectTimeout:
            raise Unavailable(
                f"{replica.url} cannot be reached: connecting took too long"
            ) from None
        except (TimeoutError, httpx.TimeoutException):
            if call.deadline - started >= self._timeout_s / 2:
                # It was told when to answer and had a fair share of the time: it is sick.
                replicas.eject(replica, started=started)
            raise DeadlineExceeded(
                f"no answer from {replica.url} within {self._timeout_s:g} s"
            ) from None
        except httpx.RequestError as error:
            raise Unavailable(
                f"{replica.url} cannot be reached: {type(error).__name__}: {error}"
            ) from error
        served_by = response.headers.get(SERVICE_HEADER, self._service)
        if served_by != self._service:
            raise InvalidRequest(
                f"{replica.url} is the {served_by[:40]} service, not the {self._service} service; "
                "check the URL"
            )
        if response.status_code != 200:
            raise _error_of(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise BackendFailed(
                f"{replica.url} answered what is no {answer.__name__}; is it a rewardfleet "
                "service of this version?"
            ) from error


async def in_thread(work: Callable[[], T], deadline: float) -> T:
    """Do what takes the CPU off the event loop.

    Raises:
        DeadlineExceeded: The time was up first.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise DeadlineExceeded("the time was up before the request was encoded") from None


def _error_of(response: httpx.Response) -> RewardFleetError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        # Of others' answers, only a failing server's may be another one tomorrow.
        otherwise = BackendFailed if response.status_code >= 500 else InvalidRequest
        error = ERROR_OF_STATUS.get(response.status_code, otherwise)
        return error(
            f"HTTP {response.status_code} without a problem: {response.text[:200]!r}",
            retry_after=_retry_after(response.headers.get("retry-after", "")),
        )
    return ERRORS[problem.kind].of(problem)


def _retry_after(header: str) -> float | None:
    """Seconds that a `Retry-After` asks for, which gives them or a date (RFC 9110, 10.2.3)."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        date = email.utils.parsedate_to_datetime(header)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
