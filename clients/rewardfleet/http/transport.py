"""One service over HTTP: requests out, models or typed errors back, before a deadline."""

import asyncio
import copy
import math
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from rewardfleet.wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    RewardFleetError,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from rewardfleet.wire.frames import FRAMES_TYPE, ZSTD, Buffer, Frames, compress, encode_body
from rewardfleet.wire.headers import (
    CALL_TIMEOUT_HEADER,
    FALLBACK_REWARDS_HEADER,
    GATEWAY,
    MAX_FALLBACK_REWARDS,
    REQUEST_ID_HEADER,
    RUN_STATE_HEADER,
    SERVICE_HEADER,
    TIMEOUT_HEADER,
    bearer,
)
from rewardfleet.wire.score import MAX_BATCH_ITEMS

from .pending import PendingCall, PendingCalls
from .replicas import Replica, Replicas, retry_wait
from .responses import check_head, model_of, new_request_id, too_long, unreachable
from .tracing import span, trace_headers

ModelT = TypeVar("ModelT", bound=BaseModel)

#: The largest body of a request with several items, below the 64 MiB that services accept.
MAX_BATCH_BYTES = 48 * 2**20
#: Bytes of a response to one item, as many as a request may have, and what each item adds.
_MAX_RESPONSE_BYTES, _MAX_ITEM_BYTES = 64 * 2**20, 2 * 2**20
#: How many times a call returns to replicas that failed it or ended: it may be what ends them.
_RETRIES = 4
#: A call that fails with less time left than this many seconds is not tried again.
_LEAST_SECONDS = 0.05
_CONNECT_SECONDS = 5.0
#: Bytes of a body that are copied to be sent at once.
_PIECE_BYTES = 4 * 2**20
#: The part of a path that names a training run. Spans of all runs have the same name.
_RUN = re.compile(r"(?<=^/budgets/)[^/]+|(?<=^/runs/)[^/]+")
#: The service's deadline is earlier than the client's, as its response takes time: by a tenth of
#: the remaining time, and at most by this many seconds.
_MAX_RESPONSE_SECONDS = 1.0

_parsed = lru_cache(maxsize=256)(httpx.URL)


class NotEncoded(InvalidRequest):
    """A body cannot be encoded, so nothing was sent. Without some of its items it may be."""


@dataclass(eq=False, kw_only=True)
class _HttpCall(PendingCall):
    method: str
    body: BaseModel | None
    #: The media type of the body and its parts, once it is encoded.
    encoded: tuple[str, list[Buffer]] | None = None
    retries: int = 0  #: how many times it has backed off
    faults: int = 0  #: how many of these were not after an outage
    is_corrected: bool = False  #: whether a URL that it was sent to was wrong
    #: The replicas that failed it since the last back-off.
    failed_urls: set[str] = field(default_factory=set)


@dataclass(eq=False, repr=False)  # the key is secret
class ServiceTransport:
    """One service at its replicas. The options are those of `RewardFleet`."""

    service: str  #: that must answer, e.g. `video`
    urls: list[str]  #: base URLs of the replicas
    api_key: str | None
    timeout_s: float  #: for a call
    max_concurrency: int
    compress_frames: bool
    connect: Callable[[str, int], httpx.AsyncHTTPTransport]
    pending: PendingCalls  #: of all services
    #: How many rewards were replaced by `on_failure` and are not reported yet. The next request
    #: reports them, for the metrics of the service.
    fallback_rewards: int = 0
    _worked: set[str] = field(default_factory=set)  #: URLs at which the service has answered
    # The entries of a parent process stay: releasing its event loop would unregister the parent's
    # sockets, as both processes share the selector that watches them.
    _connected: dict[tuple[int, asyncio.AbstractEventLoop], Replicas] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # Connections belong to this process's event loops.
        return {**self.__dict__, "_connected": {}}

    def count_fallback(self) -> None:
        """Count a reward that was replaced by `on_failure`."""
        self.fallback_rewards += 1

    def deadline(self) -> float:
        """Return when a call that starts now must end, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self.timeout_s

    def batch_items(self, count: int) -> int:
        """Return how many of `count` items to send per request: at most half of a replica's."""
        share = math.ceil(count / len(self.urls))
        return min(MAX_BATCH_ITEMS, share, max(self.max_concurrency // 2, 1))

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
            body: None for a route that takes none.
            deadline: When the call must end, by the loop's clock; by default after `timeout_s`.

        Raises:
            TooLarge: The body has several items and more than `MAX_BATCH_BYTES`.
            NotEncoded: The body cannot be encoded.
            RewardFleetError: The service's failure, or why it did not answer.
        """
        call = _HttpCall(
            service=self.service,
            method=method,
            path=path,
            body=body,
            deadline=self.deadline() if deadline is None else deadline,
            item_count=item_count,
        )
        name = f"{method} {_RUN.sub('{run}', path)}"
        with self.pending.watching(call), span(name, self.service, item_count, call):
            return await self._answer(call, response_type)

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
                self.urls, self.connect, bearer(self.api_key), self.max_concurrency
            )
        return replicas

    async def _answer(self, call: _HttpCall, response_type: type[ModelT]) -> ModelT:
        """Try until there is a response, an error that a retry does not help, or no time left.

        A failed call goes to another replica at once. When all have failed it, it backs off.
        """
        replicas = self._replicas()
        failure: RewardFleetError | None = None
        try:
            async with asyncio.timeout_at(call.deadline):
                while True:
                    replica = await replicas.acquire(
                        call.item_count, avoid=call.failed_urls, at_front=call.attempts > 0
                    )
                    call.attempts += 1
                    call.url = replica.url
                    is_repeated = replica.url in call.failed_urls  # as no other has capacity
                    try:
                        return await self._exchange(replicas, replica, call, response_type)
                    except RewardFleetError as error:
                        failure, url, call.url = error, call.url, ""
                        if error.blames_url and not call.is_corrected:
                            may_move = replicas.has_alternative(call.failed_urls)
                            if await self._is_corrected(replica, url, error, may_move):
                                call.is_corrected = True
                                continue
                    finally:
                        replicas.release(replica, call.item_count)
                    await asyncio.sleep(self._pause(replicas, call, failure, is_repeated))
        except TimeoutError:
            urls = ", ".join(replicas.urls)
            what = f"no answer from {call.url}" if call.url else f"no capacity at {urls}"
            before = f"; before that: {failure}" if failure else ""
            kind = type(failure) if failure and failure.is_outage else DeadlineExceeded
            late = kind(f"{what} within {self.timeout_s:g} s{before}")
            late.blames_url = not self._worked
            raise late from failure

    async def _is_corrected(
        self, replica: Replica, url: str, failure: RewardFleetError, may_move: bool
    ) -> bool:
        """Return whether a replica has another URL than the one that seems wrong; see `locate`."""
        from .index import locate  # noqa: PLC0415 - imports the services

        is_unreached = failure.is_foreign or isinstance(failure, Unavailable)
        # E.g. a proxy's page while the service restarts. With another URL, a run need not end.
        if url in self._worked or (self._worked and is_unreached):
            failure.blames_url, failure.is_outage = False, True
            return False
        if isinstance(failure, Unavailable | Unauthorized) or (failure.is_foreign and may_move):
            return False
        if replica.search is None or replica.search.done():  # concurrent calls share it
            search = locate(self.service, url, replica.headers, self.connect(url, 8))
            replica.search = asyncio.create_task(search)
        try:
            found = await asyncio.shield(replica.search)
        except InvalidRequest as error:
            raise copy.copy(error) from failure
        if found is None or found == url:
            return False
        if replica.url == url:
            replica.move(found)
        return True

    def _pause(
        self, replicas: Replicas, call: _HttpCall, failure: RewardFleetError, is_repeated: bool
    ) -> float:
        """Return for how many seconds a call backs off, or raise its failure if it has failed."""
        left = call.deadline - asyncio.get_running_loop().time()
        may_move = failure.retryable or failure.is_foreign or failure.is_outage
        is_late = isinstance(failure, DeadlineExceeded) and not failure.is_foreign
        if is_late:
            # After a freeze, a service takes all for late. A slow program has used half the time.
            may_move = left > self.timeout_s / 2
        if may_move and not is_repeated and replicas.has_alternative(call.failed_urls):
            return 0.0
        is_over = failure.blames_url or is_late or (failure.retry_after or 0.0) >= left
        # A first call may also fail for what never gets better, e.g. a port of another protocol.
        failure.blames_url |= (failure.retryable or is_late) and not self._worked
        if is_over or not (failure.retryable or failure.is_outage):
            raise failure
        if isinstance(failure, Overloaded):  # the replica is paused: `acquire` waits for it
            return 0.0
        call.retries += 1
        call.faults += not failure.is_outage
        if left < _LEAST_SECONDS or call.faults > _RETRIES:
            raise failure
        call.failed_urls.clear()
        return min(retry_wait(call.retries, failure), left / 2)

    async def _exchange(
        self, replicas: Replicas, replica: Replica, call: _HttpCall, response_type: type[ModelT]
    ) -> ModelT:
        """Send a request to an acquired replica once, and report how it went."""
        now = asyncio.get_running_loop().time
        started = now()
        reported = min(self.fallback_rewards, MAX_FALLBACK_REWARDS)
        self.fallback_rewards -= reported
        status, is_own = 0, False
        try:
            if call.body is not None and call.encoded is None:
                call.encoded = await self._encoded(call.body)
            request = self._request(replica, call, reported, call.deadline - now())
            limit = _MAX_RESPONSE_BYTES + _MAX_ITEM_BYTES * call.item_count
            answer = receive(replica.http, request, limit, needs_id=replica.returns_ids)
            try:
                if replicas.has_alternative({*call.failed_urls, replica.url}):
                    answer = replica.unless_silent((call.deadline - now()) / 2, answer)
                response = await answer
            except (httpx.RequestError, ssl.SSLError) as error:  # httpcore passes on the latter
                has_worked = replica.url in self._worked
                raise await unreachable(replica.url, error, has_worked=has_worked) from error
            status = response.status_code
            call.request_id = response.headers.get(REQUEST_ID_HEADER, "")
            replica.returns_ids |= bool(call.request_id)
            replica.heard_at = now()
            replica.run_state = response.headers.get(RUN_STATE_HEADER, replica.run_state)
            replicas.check_run_state(self.service)
            is_own = response.headers.get(SERVICE_HEADER) != GATEWAY  # which a proxy may drop
            model = model_of(response, replica.url, self.service, response_type)
        except RewardFleetError as error:
            is_of_service = is_own and not (error.is_foreign or error.blames_url)
            if is_of_service and status not in {0, 403, 404}:
                self._worked.add(replica.url)
            replicas.failed(replica, error, started=started)
            if not isinstance(error, Overloaded):
                call.failed_urls.add(replica.url)
            raise
        finally:
            if status != 200:
                self.fallback_rewards += reported
        self._worked.add(replica.url)
        replicas.succeeded(replica, call.item_count, started=started)
        return model

    async def _encoded(self, body: BaseModel) -> tuple[str, list[Buffer]]:
        """Encode a body, once there is capacity for it, so that few are in memory at once."""
        has_frames = isinstance(getattr(body, "frames", None), Frames)
        if has_frames and not self.compress_frames:  # of frames, only the shape is encoded
            return self._encode(body)
        return await asyncio.to_thread(self._encode, body)

    def _encode(self, body: BaseModel) -> tuple[str, list[Buffer]]:
        try:
            media_type, parts = encode_body(body)
        except InvalidRequest as error:
            raise NotEncoded(error.detail) from None
        is_compressed = self.compress_frames and media_type == FRAMES_TYPE
        return media_type, [compress(parts)] if is_compressed else parts

    def _request(
        self, replica: Replica, call: _HttpCall, fallback_rewards: int, left: float
    ) -> httpx.Request:
        """Build the request for a replica, `left` seconds before the deadline."""
        headers = {**replica.headers, **trace_headers()}
        headers[REQUEST_ID_HEADER] = new_request_id()  # of this attempt, not of the call
        service_timeout = left - min(left / 10, _MAX_RESPONSE_SECONDS)
        headers[TIMEOUT_HEADER] = f"{max(service_timeout, 0.001):.3f}"
        headers[CALL_TIMEOUT_HEADER] = f"{self.timeout_s:g}"
        if fallback_rewards:
            headers[FALLBACK_REWARDS_HEADER] = str(fallback_rewards)
        content: bytes | AsyncIterator[bytes] | None = None
        if call.encoded is not None:
            headers["content-type"], parts = call.encoded
            if self.compress_frames and headers["content-type"] == FRAMES_TYPE:
                headers["content-encoding"] = ZSTD
            size = sum(map(len, parts))
            if call.item_count > 1 and size > MAX_BATCH_BYTES:
                raise TooLarge(f"a batch may have {MAX_BATCH_BYTES} bytes")
            headers["content-length"] = str(size)
            content = _pieces(parts) if len(parts) > 1 else bytes(parts[0])
        return httpx.Request(
            call.method,
            _parsed(replica.url + call.path),
            headers=headers,
            content=content,
            extensions={"timeout": {"connect": _CONNECT_SECONDS}},
        )


async def _pieces(parts: list[Buffer]) -> AsyncIterator[bytes]:
    """Yield a body in pieces, so that a large one is never copied as a whole."""
    piece: list[Buffer] = []
    size = 0
    for part in parts:
        for start in range(0, len(part), _PIECE_BYTES):
            piece.append(part[start : start + _PIECE_BYTES])
            size += len(piece[-1])
            if size >= _PIECE_BYTES:
                yield b"".join(piece)
                piece.clear()
                size = 0
    if piece:
        yield b"".join(piece)


async def receive(
    http: httpx.AsyncHTTPTransport,
    request: httpx.Request,
    max_bytes: int,
    *,
    needs_id: bool = False,
) -> httpx.Response:
    """Send a request and return its response, completely read.

    A connection whose response has another `X-Request-Id` than the request, or none, is closed:
    what else arrives on it could be taken for the response to the next request.

    Args:
        request: It must not accept a `Content-Encoding`.
        needs_id: Whether a response without the request's id is a failure.

    Raises:
        BackendFailed: The response is to another request, or has more than `max_bytes`.
        httpx.RequestError: It could not be received.
    """
    response = await http.handle_async_request(request)
    try:
        has_id = check_head(response, request, max_bytes, needs_id=needs_id)
        body = bytearray()
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - of an asynchronous transport
        async for part in response.stream:
            body += part
            if len(body) > max_bytes:
                raise too_long(request, max_bytes)
        if not has_id:  # before the connection can be used again
            await response.extensions["network_stream"].aclose()
    finally:
        await response.aclose()  # closes the connection if the response is not complete
    return httpx.Response(
        response.status_code, headers=response.headers, content=bytes(body), request=request
    )
