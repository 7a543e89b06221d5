"""Batches: split and joined by the client, or coalesced from single calls."""

import asyncio
import base64
import copy
import math

import pytest

import rewardfleet
from rewardfleet import RewardFleet, service, video_request
from rewardfleet.http import transport
from rewardfleet.http.coalesce import Coalescer
from rewardfleet.wire.errors import Overloaded
from rewardfleet_server.testing import FakeJudge
from rewardfleet_server.video.judges import Judgment

from ..conftest import Serve, image_base64
from .conftest import Received, Reply, healthy, holding, refusal, scored, until

IMAGES = [base64.b64decode(image_base64())]


class NumberJudge(FakeJudge):
    """Scores each task with the number at its end, in millionths."""

    def __init__(self, failing: dict[int, list[Exception]] | None = None) -> None:
        super().__init__(deterministic=False)
        self.failing = failing or {}
        self.judged: list[int] = []

    async def judge(self, task_text, clip, backend_kwargs):
        number = int(task_text.split()[-1])
        self.judged.append(number)
        if self.failing.get(number):
            raise self.failing[number].pop(0)
        return Judgment(number / 1e6, task_text)


def requests(count: int) -> list[rewardfleet.VideoRequest]:
    return [video_request(f"task {number}", IMAGES) for number in range(count)]


def numbers(scores: list[rewardfleet.VideoScore]) -> list[int]:
    return [round(score.score * 1e6) for score in scores]


async def test_a_large_batch_is_split_sent_to_all_replicas_and_joined_in_order(replica):
    both = [await replica(), await replica()]
    async with RewardFleet(video=[each.url for each in both], max_concurrency=2000) as fleet:
        assert numbers(await fleet.video.score_batch(requests(600))) == list(range(600))
    sizes = sorted(len(request.items) for each in both for request in each.received)
    assert sizes == [88, 256, 256], "no more than a service accepts, and each item once"
    assert all(each.received for each in both)


async def test_no_part_has_more_bytes_than_the_limit(replica, monkeypatch):
    monkeypatch.setattr(service, "MAX_BATCH_BYTES", 10_000)
    monkeypatch.setattr(transport, "MAX_BATCH_BYTES", 10_000)
    clips = [bytes(size) for size in (3000, 3000, 3000, 20_000, 10, 10)]
    batch = [video_request(f"task {i}", clip) for i, clip in enumerate(clips)]
    only = await replica()
    async with RewardFleet(video=only.url) as fleet:
        assert numbers(await fleet.video.score_batch(batch)) == list(range(6))
    sizes = sorted((len(request.items), len(request.body) > 10_000) for request in only.received)
    assert sizes == [(1, False), (1, True), (2, False), (2, False)]


async def test_a_batch_of_long_texts_is_encoded_and_then_sent_in_parts(replica, monkeypatch):
    async def accepted(request: Received) -> Reply:
        results = [{"score": 1, "status": "ok", "code": each["revision"]} for each in request.items]
        is_batch = request.path == "/score/batch"
        return Reply(body={"results": results} if is_batch else results[0])

    monkeypatch.setattr(transport, "MAX_BATCH_BYTES", 10_000)
    tests = {"kind": "asserts", "cases": ["assert True"]}
    programs = [f"x = {'1' * length}" for length in (3000, 3000, 3000, 20_000, 10)]
    only = await replica(accepted)
    async with RewardFleet(code=only.url) as fleet:
        batch = [rewardfleet.code_request(program, tests) for program in programs]
        scores = await fleet.code.score_batch(batch)
    assert [score.code for score in scores] == programs
    assert all(len(each.items) == 1 or len(each.body) <= 10_000 for each in only.received)
    assert sum(len(each.items) for each in only.received) == 5, "each item is sent once"


async def test_items_with_retryable_errors_are_retried_as_single_requests(serve: Serve):
    flaky = NumberJudge(
        {3: [RuntimeError("died")], 5: [Overloaded("full", retry_after=0.1)], 7: [ValueError()] * 9}
    )
    async with RewardFleet(video=str(serve(flaky).base_url)) as fleet:
        scores = await fleet.video.score_batch(requests(10))
    assert numbers(scores[:7] + scores[8:]) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert scores[7].error.kind == "backend_failed", "retries are limited"
    assert {number for number in flaky.judged if flaky.judged.count(number) > 1} == {3, 5, 7}


@pytest.mark.slow
async def test_the_retry_after_of_an_item_is_respected(replica):
    async def first_item_full(request: Received) -> Reply:
        if request.path == "/score":
            return await healthy(request)
        full = {"score": None, "status": "error", "error": refusal(429, "overloaded", 0.4).body}
        return Reply(body={"results": [full, *map(scored, request.items[1:])]})

    only = await replica(first_item_full)
    async with RewardFleet(video=only.url) as fleet:
        assert numbers(await fleet.video.score_batch(requests(3))) == [0, 1, 2]
    batch, single = only.received
    assert single.at - batch.at >= 0.4
    assert [item["task_text"] for item in single.items] == ["task 0"]


async def test_a_failed_part_does_not_affect_the_other_parts(replica):
    async def reject_the_second(request: Received) -> Reply:
        if request.items[0]["task_text"] == "task 2":
            return refusal(404, "not_found")
        return await healthy(request)

    only = await replica(reject_the_second)
    async with RewardFleet(video=only.url, max_concurrency=4, on_failure=-1.0) as fleet:
        scores = await fleet.video.score_batch(requests(6))
        assert [score.status for score in scores] == ["ok", "ok", "error", "error", "ok", "ok"]
        assert scores[2].error.kind == "not_found"
        assert await fleet.video.rewards(requests(6)) == [0, 0, -1, -1, 0, 0]


async def test_a_part_that_is_too_large_for_the_service_is_sent_in_halves(replica):
    async def at_most_two(request: Received) -> Reply:
        too_large = len(request.items) > 2 or request.items[0]["task_text"] == "task 5"
        return refusal(413, "too_large") if too_large else await healthy(request)

    only = await replica(at_most_two)
    async with RewardFleet(video=only.url, max_concurrency=1, on_failure=-1.0) as fleet:
        assert numbers(await fleet.video.score_batch(requests(5))) == [0, 1, 2, 3, 4]
        scores = await fleet.video.score_batch(requests(7))
        assert [score.status for score in scores] == [*["ok"] * 5, "error", "ok"]
        assert scores[5].error.kind == "too_large"
        with pytest.raises(rewardfleet.TooLarge):  # the caller must send something else
            await fleet.video.rewards(requests(7))


async def test_an_item_that_cannot_be_encoded_fails_alone(replica):
    """Also among coalesced calls of others."""
    only = await replica()
    options = {"backend": "fake", "backend_kwargs": {"prompt": "\ud800"}}
    items = requests(5)
    items[2] = video_request("task 2", IMAGES, **options)
    async with RewardFleet(video=only.url, coalesce_s=0.02, on_failure=math.nan) as fleet:
        scores = await fleet.video.score_batch(items)
        calls = [fleet.video.reward("task 7", IMAGES, **options)]
        calls += [fleet.video.reward(f"task {n}", IMAGES) for n in (600_000, 1)]
        failed, *rewards = await asyncio.gather(*calls, return_exceptions=True)
    assert [score.status for score in scores] == ["ok", "ok", "error", "ok", "ok"]
    assert scores[2].error.kind == "invalid"
    assert scores[2].error.detail.startswith("backend_kwargs: the request cannot be encoded")
    assert rewards == [1.0, 0.0]
    assert isinstance(failed, rewardfleet.InvalidRequest)


async def test_a_batch_whose_parts_are_all_refused_raises(replica):
    only = await replica(refusal(401, "unauthorized"))
    async with RewardFleet(video=only.url, max_concurrency=4) as fleet:
        with pytest.raises(rewardfleet.Unauthorized):
            await fleet.video.score_batch(requests(6))
        with pytest.raises(rewardfleet.InvalidRequest, match="items"):
            await fleet.video.score_batch([])


@pytest.mark.parametrize("results", [[], [{"score": 0.5, "status": "ok"}] * 4])
async def test_a_wrong_number_of_results_is_a_backend_failure(replica, results):
    only = await replica(Reply(body={"results": results}))
    async with RewardFleet(video=only.url) as fleet:
        with pytest.raises(rewardfleet.BackendFailed, match="results"):
            await fleet.video.score_batch(requests(3))


# Coalescing


def coalescing(url: str, **options: object) -> RewardFleet:
    return RewardFleet(video=url, **{"coalesce_s": 0.02, **options})


async def score(fleet: RewardFleet, number: int) -> rewardfleet.VideoScore:
    return await fleet.video.score(f"task {number}", IMAGES)


async def test_single_calls_are_sent_as_batches_and_get_their_own_results(replica):
    only = await replica()
    # Requests are encoded in threads: on a busy machine, 100 take longer than a short window.
    async with coalescing(only.url, coalesce_s=0.3, max_concurrency=1024) as fleet:
        scores = await asyncio.gather(*(score(fleet, number) for number in range(100)))
        rewards = await asyncio.gather(
            *(fleet.video.reward(f"task {600_000 * (i % 2)}", IMAGES) for i in range(50))
        )
    assert numbers(scores) == list(range(100))
    assert rewards == [0.0, 1.0] * 25
    assert len(only.received) <= 10
    assert sum(len(request.items) for request in only.received) == 150


@pytest.mark.parametrize(("coalesce_s", "calls"), [(0.0, 20), (0.001, 1)])
async def test_a_call_without_others_is_sent_as_a_single_request(replica, coalesce_s, calls):
    only = await replica()
    async with coalescing(only.url, coalesce_s=coalesce_s) as fleet:
        scores = await asyncio.gather(*(score(fleet, number) for number in range(calls)))
    assert numbers(scores) == list(range(calls))
    assert [request.path for request in only.received] == ["/score"] * calls


async def test_a_coalesced_result_equals_a_single_one(serve: Serve):
    url = str(serve(FakeJudge(0.5)).base_url)
    async with RewardFleet(video=url) as plain, coalescing(url) as fleet:
        single = await score(plain, 1)
        coalesced = await asyncio.gather(*(score(fleet, 1) for _ in range(3)))
    for each in coalesced:
        assert each.provenance == single.provenance
    coalesced[0].provenance["frames"]["fps"] = "changed"
    assert coalesced[1].provenance == single.provenance, "callers share no mutable state"


async def test_each_caller_gets_its_own_failure(serve: Serve):
    judge = NumberJudge({2: [ValueError("two")] * 9})
    async with coalescing(str(serve(judge).base_url)) as fleet:
        answers = await asyncio.gather(
            *(score(fleet, number) for number in range(4)),
            fleet.video.score("task 9", "no-such-file.mp4"),
            return_exceptions=True,
        )
    assert numbers([answers[0], answers[1], answers[3]]) == [0, 1, 3]
    assert isinstance(answers[2], rewardfleet.BackendFailed) and "two" in str(answers[2])
    assert isinstance(answers[4], rewardfleet.NotFound)


@pytest.mark.slow
@pytest.mark.parametrize("error", [rewardfleet.Forbidden, rewardfleet.DeadlineExceeded])
async def test_the_failure_of_a_batch_is_a_new_exception_for_each_caller(replica, error):
    never, is_late = asyncio.Event(), error is rewardfleet.DeadlineExceeded
    only = await replica(holding(never) if is_late else refusal(403, "forbidden"))
    async with coalescing(only.url, timeout_s=1.0 if is_late else 60.0) as fleet:
        answers = await asyncio.gather(*(score(fleet, i) for i in range(9)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {error}
    assert len({id(answer) for answer in answers}) == 9
    never.set()


async def test_a_call_after_the_last_caller_left_begins_a_batch_of_its_own():
    async def send(items: list[int], deadline: float) -> list[int]:
        return items

    coalescer = Coalescer(send, window_s=0.02, max_items=8)
    deadline = asyncio.get_running_loop().time() + 60
    left = asyncio.create_task(coalescer.submit(1, deadline))
    await asyncio.sleep(0)  # it waits
    left.cancel()
    following = asyncio.create_task(coalescer.submit(2, deadline))  # before the batch has ended
    assert await following == 2
    assert left.cancelled()


async def test_a_bug_is_raised_to_the_callers_instead_of_hanging_them(monkeypatch):
    async with coalescing("http://127.0.0.1:1") as fleet:
        monkeypatch.setattr(fleet.video._coalescer, "send", None)
        async with asyncio.timeout(5):
            with pytest.raises(TypeError):
                await score(fleet, 1)


async def test_arguments_are_neither_changed_nor_mixed_between_calls(replica):
    """Trainers share one dict of extras among samples, and reuse their lists."""
    only = await replica()
    shared = {"score_mode": "unit", "nested": {"a": [1]}}
    frames = list(IMAGES)
    before = copy.deepcopy((shared, frames))
    async with coalescing(only.url) as fleet:
        calls = [
            fleet.video.score(f"task {i}", frames, nframes=i + 1, backend_kwargs=shared)
            for i in range(8)
        ]
        assert numbers(await asyncio.gather(*calls)) == list(range(8))
    assert (shared, frames) == before
    items = [item for request in only.received for item in request.items]
    sent = sorted((item["task_text"], item["nframes"]) for item in items)
    assert sent == [(f"task {i}", i + 1) for i in range(8)]


async def test_a_cancelled_caller_does_not_affect_the_others(replica):
    release = asyncio.Event()
    only = await replica(holding(release))
    async with coalescing(only.url, max_concurrency=1024) as fleet:
        coalescer = fleet.video._coalescer
        coalescer.window_s = 60.0  # it is ended below
        calls = [asyncio.create_task(score(fleet, number)) for number in range(6)]
        await until(lambda: any(len(each.items) == 6 for each in coalescer._open.values()))
        calls[0].cancel()  # before the batch is sent
        ((_, batch),) = coalescer._open.items()
        await until(lambda: len(batch.items) == 5)
        batch.is_full.set()
        await until(lambda: bool(only.received))
        calls[1].cancel()  # while the batch is in flight
        release.set()
        assert numbers(await asyncio.gather(*calls[2:])) == [2, 3, 4, 5]
        assert all(call.cancelled() for call in calls[:2])
    # Requests are encoded in threads, so their order within a batch is arbitrary.
    sent = sorted(item["task_text"] for item in only.received[0].items)
    assert sent == [f"task {i}" for i in range(1, 6)]


async def test_a_batch_whose_callers_are_all_cancelled_is_cancelled(serve: Serve):
    judge = FakeJudge(wait_s=30)
    async with coalescing(str(serve(judge).base_url)) as fleet:
        calls = [asyncio.create_task(score(fleet, number)) for number in range(3)]
        await until(lambda: len(judge.seen) == 3)
        for call in calls:
            call.cancel()
        await until(lambda: judge.cancelled == 3)
