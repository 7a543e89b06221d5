"""Scoring the items of an input, with as many in flight as the fleet scores faster with."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rewardfleet.client import RewardFleet
from rewardfleet.rows import scores_of
from rewardfleet.services import SERVICES
from rewardfleet.wire.episode import MAX_EPISODES, EpisodeRequest
from rewardfleet.wire.errors import ErrorKind, InvalidRequest, RewardFleetError
from rewardfleet.wire.score import MAX_BATCH_ITEMS, Request, Score, failed
from rewardfleet.wire.video import VideoRequest

from .requests import Item, RequestBuilder

#: Items in flight at first, and at most for each replica.
_FIRST, MOST_IN_FLIGHT = 8, 1024
#: Bytes of clips that are in flight, and of those that are read at a time, after which no more are.
_MOST_BYTES, _CHUNK_BYTES = 256 * 2**20, 32 * 2**20
#: Seconds over which a rate is measured, at least.
_ROUND_SECONDS = 0.1
#: Seconds of work of a request, at least.
_CHUNK_SECONDS = 0.05
#: Rounds without a try, at most.
_MOST_ROUNDS = 32
#: By which factor the rate must rise for more items in flight to be kept.
_BETTER = 1.1
#: Failures that say that there are too many items in flight.
_OVERLOAD = {ErrorKind.OVERLOADED, ErrorKind.DEADLINE_EXCEEDED, ErrorKind.UNAVAILABLE}


class InFlightLimit:
    """The number of items in flight: raised while that raises the rate, halved at an overload.

    It is doubled, or what two requests of a short time have, if that is more. After a try that does
    not raise the rate, it is the one before, for twice as many rounds as after the try before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.now = self._kept = min(_FIRST, most)
        self._kept_rate = 0.0
        self._rounds_left, self._rounds = 0, 1  # before the next try
        self._scored, self._since = 0, time.monotonic()

    @property
    def chunk(self) -> int:
        """How many items a request has: those of a short time, as small requests cost more."""
        return max(self.now // 4, min(int(self._kept_rate * _CHUNK_SECONDS), self.now // 2), 1)

    def record(self, scores: Sequence[Score]) -> None:
        """Count scores that have arrived."""
        is_overload = any(each.error and each.error.kind in _OVERLOAD for each in scores)
        self._scored += len(scores)
        elapsed = time.monotonic() - self._since
        if not is_overload and (self._scored < self.now or elapsed < _ROUND_SECONDS):
            return
        rate = self._scored / max(elapsed, _ROUND_SECONDS)
        if is_overload:
            self._kept, self._kept_rate = max(1, self._kept // 2), 0.0
        if is_overload or (self.now > self._kept and rate < self._kept_rate * _BETTER):
            self.now = self._kept  # the try was in vain
            self._rounds_left = self._rounds = min(2 * self._rounds, _MOST_ROUNDS)
        elif self._rounds_left > 0:
            self._kept_rate, self._rounds_left = rate, self._rounds_left - 1
        else:
            self._kept, self._kept_rate = self.now, rate
            self.now = min(max(2 * self.now, int(2 * rate * _CHUNK_SECONDS)), self._most)
        self._scored, self._since = 0, time.monotonic()


class ScoredItem(NamedTuple):
    """An item, its request if it is valid, and its score."""

    item: Item
    request: Request | None
    score: Score


def _is_invalid(scored: ScoredItem) -> bool:
    error = scored.score.error
    return error is not None and error.kind is ErrorKind.INVALID


#: An item, and its request or why it is invalid.
_Built = tuple[Item, Request | InvalidRequest]


def _bytes_of(chunk: Iterable[_Built]) -> int:
    """Return the bytes of the clips of items."""
    clips = (each.content for _, each in chunk if isinstance(each, VideoRequest))
    return sum(map(len, itertools.chain.from_iterable(clips)))


class Run:
    """Scores items with a service of a fleet.

    Args:
        fleet: Its `timeout_s` is the time of an item.
    """

    def __init__(self, fleet: RewardFleet, builder: RequestBuilder, replicas: int = 1) -> None:
        self._client = getattr(fleet, builder.service)
        self._builder = builder
        self._kind = SERVICES[builder.service].scores
        self._next: list[_Built] = []  # a group that was read, but is no part of the chunk before
        self._limit = InFlightLimit(most=MOST_IN_FLIGHT * replicas)

    async def score(
        self,
        groups: Iterator[list[Item]],
        keep: Callable[[list[ScoredItem]], Awaitable[None]],
    ) -> None:
        """Score all items, and close the connections.

        Args:
            groups: Items of one group are scored in one request.
            keep: Called with what has been scored, in any order.

        Raises:
            Unauthorized: The service does not accept the API key.
            InvalidRequest: Before anything is scored, items are invalid by the fields of all.
        """
        tasks: dict[asyncio.Task[list[ScoredItem]], list[_Built]] = {}
        is_read = is_checked = False
        held: list[ScoredItem] = []  # until there is one that is valid
        try:
            while True:
                while not is_read:
                    free = self._limit.now - sum(map(len, tasks.values()))
                    if free < 1 or sum(map(_bytes_of, tasks.values())) >= _MOST_BYTES:
                        break
                    size = min(free, self._limit.chunk, MAX_BATCH_ITEMS)
                    chunk = await self._read(groups, size)
                    is_read = not chunk
                    if chunk:
                        tasks[asyncio.create_task(self._scored(chunk))] = chunk
                if tasks:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        del tasks[task]
                        self._limit.record([each.score for each in task.result()])
                        held += task.result()
                    if not is_checked and len(held) < _FIRST and all(map(_is_invalid, held)):
                        continue
                elif not held:
                    return
                if not is_checked:
                    await self._check_changes(held)
                    is_checked = True
                await keep(held)
                held = []
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._client.aclose()

    async def score_chunk(self, items: Iterable[Item]) -> list[ScoredItem]:
        """Score a few items at once, in order, and keep the connections."""
        return await self._scored([self._built(item) for item in items])

    async def _check_changes(self, scored: Sequence[ScoredItem]) -> None:
        """Check that not all items are invalid by what is set for all requests.

        Raises:
            InvalidRequest: They are, as the first one is valid without that.
        """
        if not self._builder.changes or not all(map(_is_invalid, scored)):
            return
        plain = replace(self._builder, changes={})
        try:
            request = plain.build(scored[0].item)
        except InvalidRequest:
            return
        (score,) = await scores_of(self._client, [request], plain.options)
        error = scored[0].score.error
        if error is not None and not _is_invalid(ScoredItem(scored[0].item, request, score)):
            names = ", ".join(self._builder.changes)
            raise InvalidRequest(f"--set or --judge ({names}): {error.detail}; nothing was scored")

    async def _read(self, groups: Iterator[list[Item]], size: int) -> list[_Built]:
        if self._kind != "episode":
            chunk = itertools.islice(itertools.chain.from_iterable(groups), size)
            if self._kind == "clip":
                return await asyncio.to_thread(self._read_clips, chunk)
            return [self._built(item) for item in chunk]
        built: list[_Built] = []
        uids: set[str] = set()  # of a request, in which each occurs once
        while len(built) < size:
            more = self._next or [self._built(each) for each in next(groups, ())]
            names = {each.uid for _, each in more if isinstance(each, EpisodeRequest)}
            is_full = len(built) + len(more) > MAX_EPISODES or not uids.isdisjoint(names)
            self._next = more if built and is_full else []
            if self._next or not more:
                break
            built += more
            uids |= names
        return built

    def _read_clips(self, items: Iterator[Item]) -> list[_Built]:
        built: list[_Built] = []
        while _bytes_of(built) < _CHUNK_BYTES and (item := next(items, None)):
            built.append(self._built(item))
        return built

    def _built(self, item: Item) -> _Built:
        try:
            return item, self._builder.build(item)
        except InvalidRequest as error:
            return item, error

    async def _scored(self, chunk: list[_Built]) -> list[ScoredItem]:
        requests = [each for _, each in chunk if isinstance(each, Request)]
        scores = iter(await self._scores_of(requests) if requests else [])
        return [
            ScoredItem(item, each, next(scores))
            if isinstance(each, Request)
            else ScoredItem(item, None, failed(each, Score))
            for item, each in chunk
        ]

    async def _scores_of(self, requests: list[Any]) -> list[Score]:
        scores: list[Score] = await scores_of(self._client, requests, self._builder.options)
        errors = {place: each.error for place, each in enumerate(scores) if each.error is not None}
        for error in errors.values():
            if error.kind is ErrorKind.UNAUTHORIZED:
                raise RewardFleetError.from_problem(error)
        # A batch has the time of one item: those that it was too short for get their own.
        late = [at for at, each in errors.items() if each.kind is ErrorKind.DEADLINE_EXCEEDED]
        if len(requests) > 1 and self._kind != "episode":
            again = await asyncio.gather(*(self._scores_of([requests[each]]) for each in late))
            for place, [score] in zip(late, again, strict=True):
                scores[place] = score
        return scores
