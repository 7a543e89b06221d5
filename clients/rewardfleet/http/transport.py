"""One service over HTTP: requests out, models or typed errors back, before a deadline."""

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel

from rewardfleet.wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    RewardFleetError,
    TooLarge,
    Unavailable,
)
from rewardfleet.wire.frames import FRAMES_TYPE, ZSTD, Buffer, Frames, compress, encode_body
from rewardfleet.wire.headers import (
    CALL_TIMEOUT_HEADER,
    FALLBACK_REWARDS_HEADER,
    MAX_FALLBACK_REWARDS,
    REQUEST_ID_HEADER,
    TIMEOUT_HEADER,
)
from rewardfleet.wire.score import MAX_BATCH_ITEMS

from .pending import PendingCall, PendingCalls
from .replicas import Replica, Replicas, rest_seconds, retry_wait
from .responses import map_http_errors, max_response_bytes, model_of, new_request_id, receive
from .timeouts import timeout_at
from .tracing import span, trace_headers

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

#: The largest body of a request with several items in bytes: below the limit of the services, which
#: is 64 MiB.
MAX_BATCH_BYTES = 48 * 2**20
#: How many times a call backs off and returns to replicas that failed it. A 429 does not count.
_RETRIES = 4
_CONNECT_SECONDS = 5.0
#: Bytes of a body that are copied to be sent at once.
_PIECE_BYTES = 4 * 2**20
#: The part of a path that names a training run. Spans of all runs have the same name.
_RUN = re.compile(r"(?<=^/budgets/)[^/]+")
#: The service's deadline is earlier than the client's, as its response takes time: by a tenth of
#: the remaining time, and at most by this many seconds.
_MAX_RESPONSE_SECONDS = 1.0


class NotEncoded(InvalidRequest):
    """A body cannot be encoded, so nothing was sent. Without some of its items it may be."""


@dataclass(eq=False, kw_only=True)
class _HttpCall(PendingCall, Generic[ModelT]):
    """One call."""

    method: str
    response_type: type[ModelT]
    body: BaseModel | None = None  #: None for a route that takes no body
    timeout_s: float  #: of a complete call
    compress_frames: bool = False  #: whether a body with frames is compressed
    #: The media type of the body and its parts, once it is encoded.
    encoded: tuple[str, list[Buffer]] | None = None
    request_id: str = ""  #: the id of the last request that was answered; empty if there was none
    #: The replicas that failed it since the last back-off.
    failed_urls: set[str] = field(default_factory=set)

    async def build_request(self, replica: Replica, fallback_rewards: int) -> httpx.Request:
        """Build the request. The body is encoded only now, so that few are in memory at once."""
        headers = trace_headers()
        headers[REQUEST_ID_HEADER] = new_request_id()  # of this attempt, not of the call
        if fallback_rewards:
            headers[FALLBACK_REWARDS_HEADER] = str(fallback_rewards)
        content: bytes | _Parts | None = None
        if self.body is not None:
            if self.encoded is None:
                # Of frames, only the shape is encoded.
                has_frames = isinstance(getattr(self.body, "frames", None), Frames)
                is_fast = has_frames and not self.compress_frames
                self.encoded = (
                    self._encode() if is_fast else await in_thread(self._encode, self.deadline)
                )
            headers["content-type"], parts = self.encoded
            if self.compress_frames and headers["content-type"] == FRAMES_TYPE:
                headers["content-encoding"] = ZSTD
            size = sum(map(len, parts))
            if self.item_count > 1 and size > MAX_BATCH_BYTES:
                raise TooLarge(f"a batch may have {MAX_BATCH_BYTES} bytes")
            headers["content-length"] = str(size)
            content = _Parts(parts) if len(parts) > 1 else bytes(parts[0])
        left = self.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the request could be sent")
        service_timeout = left - min(left / 10, _MAX_RESPONSE_SECONDS)
        headers[TIMEOUT_HEADER] = f"{max(service_timeout, 0.001):.3f}"
        headers[CALL_TIMEOUT_HEADER] = f"{self.timeout_s:g}"
        timeout = httpx.Timeout(left, connect=min(left, _CONNECT_SECONDS))
        return replica.request(self.method, self.path, headers, timeout, content)

    def _encode(self) -> tuple[str, list[Buffer]]:
        assert self.body is not None  # noqa: S101 - the caller has checked it
        try:
            media_type, parts = encode_body(self.body)
        except InvalidRequest as error:
            raise NotEncoded(error.detail) from None
        is_compressed = self.compress_frames and media_type == FRAMES_TYPE
        return media_type, [compress(parts)] if is_compressed else parts


class _Parts:
    """A body that is sent in pieces, so that a large one is never copied as a whole."""

    def __init__(self, parts: list[Buffer]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        piece: list[Buffer] = []
        size = 0
        for part in self._parts:
            for start in range(0, len(part), _PIECE_BYTES):
                piece.append(part[start : start + _PIECE_BYTES])
                size += len(piece[-1])
                if size >= _PIECE_BYTES:
                    yield b"".join(piece)
                    piece.clear()
                    size = 0
        if piece:
            yield b"".join(piece)


class ServiceTransport:
    """One service at its replicas: requests out, models or typed errors back.

    Args:
        service: The service that must answer, e.g. `video`.
        api_key, timeout_s, max_concurrency, compress_frames: See `RewardFleet`.
        pending: Watches the calls of all services.
    """

    def __init__(
        self,
        service: str,
        urls: list[str],
        *,
        api_key: str | None,
        timeout_s: float,
        max_concurrency: int,
        compress_frames: bool,
        pending: PendingCalls,
    ) -> None:
        self.service = service
        #: How many rewards were replaced by `on_failure` and are not reported yet. The next request
        #: reports them, for the metrics of the service.
        self.fallback_rewards = 0
        self._pending = pending
        self._urls = urls
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._max_concurrency = max_concurrency
        self._compress_frames = compress_frames
        # The entries of a parent process stay: releasing its event loop would unregister the
        # parent's sockets, as both processes share the selector that watches them.
        self._connected: dict[tuple[int, asyncio.AbstractEventLoop], Replicas] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections: they belong to this process's event loops."""
        return {**self.__dict__, "_connected": {}}

    def count_fallback(self) -> None:
        """Count a reward that was replaced by `on_failure`."""
        self.fallback_rewards += 1

    def deadline(self) -> float:
        """Return when a call that starts now must end, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self._timeout_s

    def batch_items(self, count: int) -> int:
        """Return how many of `count` items to send per request.

        Each replica gets a share; one request takes at most half of its `max_concurrency`.
        """
        share = math.ceil(count / len(self._urls))
        return min(MAX_BATCH_ITEMS, share, max(self._max_concurrency // 2, 1))

    async def call(
        self,
        method: str,
        path: str,
        response_type: type[ModelT],
        body: BaseModel | None = None,
        *,
        deadline: float | None = None,
        item_count: int = 1,
    ) -> ModelT:
        """Send a request and return the response as a model.

        Args:
            path: The route, e.g. `/score`.
            body: What is sent; None for a route that takes no body.
            deadline: When the call must end, by the clock of the event loop; by default after the
                timeout of a call.

        Raises:
            TooLarge: The body has several items and more than `MAX_BATCH_BYTES`.
            NotEncoded: The body cannot be encoded.
            RewardFleetError: The service's failure, or why it did not answer.
        """
        call = _HttpCall(
            service=self.service,
            method=method,
            path=path,
            response_type=response_type,
            body=body,
            deadline=self.deadline() if deadline is None else deadline,
            timeout_s=self._timeout_s,
            item_count=item_count,
            compress_frames=self._compress_frames,
        )
        self._pending.add(call)
        try:
            name = f"{method} {_RUN.sub('{run}', path)}"
            with span(name, self.service, item_count, is_request=True) as current:
                try:
                    return await self._try_call(call)
                finally:
                    if current is not None:
                        current.set_attribute("rewardfleet.attempts", call.attempts)
                        current.set_attribute("rewardfleet.request_id", call.request_id)
        finally:
            self._pending.remove(call)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        replicas = self._connected.pop((os.getpid(), asyncio.get_running_loop()), None)
        if replicas is not None:
            await replicas.aclose()

    def _replicas(self) -> Replicas:
        current = os.getpid(), asyncio.get_running_loop()
        replicas = self._connected.get(current)
        if replicas is None:
            for pid, loop in list(self._connected):
                if pid == current[0] and loop.is_closed():
                    self._connected.pop((pid, loop), None)
            replicas = self._connected[current] = Replicas(
                self._urls,
                headers=self._headers,
                max_concurrency=self._max_concurrency,
                timeout_s=self._timeout_s,
            )
        return replicas

    async def _try_call(self, call: _HttpCall[ModelT]) -> ModelT:
        """Try until there is a response, an error that a retry does not help, or no time left.

        A failed call goes to another replica at once. When all have failed it, it backs off.
        """
        replicas = self._replicas()
        loop = asyncio.get_running_loop()
        failure: RewardFleetError | None = None
        retries = 0
        while True:
            try:
                return await self._attempt(replicas, call)
            except RewardFleetError as error:
                is_late = isinstance(error, DeadlineExceeded) and not error.is_foreign
                if is_late and failure is not None:
                    detail = f"{error.detail}; before that: {failure}"
                    raise DeadlineExceeded(detail) from failure
                if is_late:  # another attempt would have the same time, or less
                    raise
                failure = error
            has_alternative = replicas.has_alternative(call.failed_urls)
            if not (failure.retryable or (failure.is_foreign and has_alternative)):
                raise failure
            if not has_alternative and loop.time() + (failure.retry_after or 0.0) >= call.deadline:
                raise failure
            if isinstance(failure, Overloaded):  # the replica cools down: `acquire` waits for it
                if replicas.next_available_at() >= call.deadline:
                    raise failure
            elif not has_alternative:
                retries += 1
                pause = rest_seconds(failure) + retry_wait(retries)
                if retries > _RETRIES or loop.time() + pause >= call.deadline:
                    raise failure
                call.failed_urls.clear()
                await asyncio.sleep(pause)

    async def _attempt(self, replicas: Replicas, call: _HttpCall[ModelT]) -> ModelT:
        """Acquire a replica and send it the request once."""
        replica = await self._acquire(replicas, call)
        try:
            return await self._exchange(replicas, replica, call)
        finally:
            replicas.release(replica, call.item_count)
            call.url = ""

    async def _exchange(
        self, replicas: Replicas, replica: Replica, call: _HttpCall[ModelT]
    ) -> ModelT:
        """Send a request to an acquired replica once, and report how it went."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        sent = math.inf
        response: httpx.Response | None = None
        reported = min(self.fallback_rewards, MAX_FALLBACK_REWARDS)
        self.fallback_rewards -= reported
        try:
            request = await call.build_request(replica, reported)
            sent = loop.time()
            with map_http_errors(replica.url, self._timeout_s):
                response = await self._send(replicas, replica, request, call)
            call.request_id = response.headers.get(REQUEST_ID_HEADER, "")
            replica.returns_ids |= bool(call.request_id)
            model = model_of(response, replica.url, self.service, call.response_type)
        except RewardFleetError as error:
            had_fair_share = call.deadline - sent >= self._timeout_s / 2
            if isinstance(error, DeadlineExceeded) and response is None and had_fair_share:
                # The request carried a deadline, and the replica was silent past it.
                replicas.eject(replica, started=sent)
            replicas.failed(replica, error, started=started)
            if not isinstance(error, Overloaded):
                call.failed_urls.add(replica.url)
            raise
        else:
            replicas.succeeded(replica, call.item_count, started=started)
            return model
        finally:
            if response is None or response.status_code != 200:
                self.fallback_rewards += reported

    @staticmethod
    async def _send(
        replicas: Replicas, replica: Replica, request: httpx.Request, call: _HttpCall[ModelT]
    ) -> httpx.Response:
        """Send a request and wait until it is answered, or the replica is found to be silent."""
        limit = timeout_at(call.deadline)
        try:
            async with limit:
                with replicas.watching(replica, limit):
                    return await receive(
                        replica.http,
                        request,
                        max_response_bytes(call.item_count),
                        lambda: replicas.heard(replica),
                        needs_id=replica.returns_ids,
                    )
        except TimeoutError:
            if limit.when() == call.deadline:
                raise
            raise Unavailable(f"{replica.url} has stopped answering, also at /readyz") from None

    async def _acquire(self, replicas: Replicas, call: _HttpCall[ModelT]) -> Replica:
        """Wait for capacity at a replica."""
        try:
            async with timeout_at(call.deadline):
                replica = await replicas.acquire(
                    call.item_count, avoid=call.failed_urls, at_front=call.attempts > 0
                )
        except TimeoutError:
            raise DeadlineExceeded(
                f"no capacity at {', '.join(self._urls)} within {self._timeout_s:g} s"
            ) from None
        call.attempts += 1
        call.url = replica.url
        return replica


async def in_thread(work: Callable[[], T], deadline: float) -> T:
    """Run CPU-bound work in a thread, until a time of the event loop's clock.

    Raises:
        DeadlineExceeded: The deadline passed first.
    """
    try:
        async with timeout_at(deadline):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed before the request was encoded") from None
