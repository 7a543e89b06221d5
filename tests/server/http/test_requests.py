"""Handling of a request, over real HTTP."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from rewardfleet_server.http import body as http_body
from rewardfleet_server.system import started
from rewardfleet_server.system.started import guarded
from rewardfleet_server.testing import FakeJudge, wait_until
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import Serve, client_of, image_base64
from ...measure import Stopwatch
from ..observe.test_in_flight import posting
from .raw import connect_to, head


def metric(client: httpx.Client, line: str) -> float:
    """Return the value of the first series that starts with `line`, or 0."""
    text = client.get("/metrics").text
    values = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(line)]
    return float(values[0]) if values else 0.0


def test_a_score_reports_provenance_and_timing(serve: Serve, frames_request):
    client = serve(FakeJudge(0.25, wait_s=0.05))
    answer = client.post("/score", json=frames_request)
    assert answer.status_code == 200
    score = answer.json()
    assert (score["score"], score["status"], score["backend"]) == (0.25, "ok", "fake")
    assert score["model_output"] == "fake judgment of 1 frames"
    assert score["cached"] is False and score["error"] is None
    assert score["provenance"]["judge"] == "fake"
    assert score["provenance"]["frames"]["indices"] == [0]
    timing = score["timing_ms"]
    assert 45 <= timing["backend"] <= timing["total"] < 30_000  # clocks are coarse
    assert timing["decode"] > 0 and timing["queue"] >= 0


@pytest.mark.parametrize(
    ("judge", "status"),
    [(FakeJudge(None), "abstained"), (FakeJudge(deterministic=False), "ok")],
    ids=["abstains", "not deterministic"],
)
def test_what_cannot_be_repeated_is_not_cached(serve: Serve, frames_request, judge, status):
    client = serve(judge)
    for _ in range(2):
        score = client.post("/score", json=frames_request).json()
        found = (score["score"], score["status"], score["cached"])
        assert found == (judge.score, status, False)
    assert len(judge.seen) == 2


def test_a_repeated_request_is_a_cache_hit(serve: Serve, frames_request):
    judge = FakeJudge()
    client = serve(judge)
    first, second = (client.post("/score", json=frames_request).json() for _ in range(2))
    assert (first["cached"], second["cached"]) == (False, True)
    volatile = {"cached", "timing_ms"}
    assert {k: v for k, v in first.items() if k not in volatile} == {
        k: v for k, v in second.items() if k not in volatile
    }
    assert len(judge.seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"task_text": "another task"},
        {"nframes": 3},
        {"max_pixels": 784},
        {"fps": 5},
        {"frames_base64": [image_base64(level=7)]},
        {"frames_base64": [image_base64(), image_base64()]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_the_score_depends_on_is_in_the_cache_key(serve: Serve, frames_request, change):
    client = serve()
    client.post("/score", json=frames_request)
    assert client.post("/score", json={**frames_request, **change}).json()["cached"] is False


@pytest.mark.slow
def test_a_shared_computation_continues_while_anyone_waits(serve: Serve, frames_request):
    """Each waiter has its own deadline; the work is cancelled when the last one leaves."""
    judge = FakeJudge(wait_s=4.5)
    client = serve(judge)
    hurried = {"x-request-timeout": "3"}
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(client.post, "/score", json=frames_request, headers=hurried)
        wait_until(lambda: len(judge.seen) == 1)
        late = pool.submit(client.post, "/score", json=frames_request)
        assert early.result().status_code == 504
        assert late.result().status_code == 200
    assert (len(judge.seen), judge.cancelled) == (1, 0)
    alone = {**frames_request, "task_text": "another task"}
    assert client.post("/score", json=alone, headers=hurried).status_code == 504
    wait_until(lambda: judge.cancelled == 1)
    judge.wait_s = 0  # nothing of a call that was too short is kept
    again = client.post("/score", json=alone).json()
    assert (again["score"], again["cached"]) == (1.0, False)


@pytest.mark.slow
def test_the_deadline_includes_the_time_in_the_queue(serve: Serve, frames_request):
    judge = FakeJudge(wait_s=5)
    client = serve(judge, max_in_flight=1, deadline_s=7.5)
    bodies = [{**frames_request, "task_text": f"task {index}"} for index in range(3)]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda body: client.post("/score", json=body), bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 504, 504]
    problem = next(answer for answer in answers if answer.status_code == 504).json()
    assert problem["kind"] == "deadline_exceeded"
    assert "7.5 s" in problem["detail"]


@pytest.mark.slow
def test_a_caller_can_shorten_the_deadline_but_not_extend_it(serve: Serve, frames_request):
    client = serve(FakeJudge(wait_s=1), deadline_s=0.2)
    answer = client.post("/score", json=frames_request, headers={"x-request-timeout": "100"})
    assert answer.status_code == 504
    for wrong in ("soon", "-1", "0", "nan", "inf"):
        answer = client.post("/score", json=frames_request, headers={"x-request-timeout": wrong})
        assert answer.status_code == 422
        assert "x-request-timeout" in answer.json()["detail"]


def test_work_is_cancelled_when_its_caller_disconnects(serve: Serve, frames_request):
    judge = FakeJudge(wait_s=30)
    client = serve(judge)
    with posting(client, "/score", frames_request):
        wait_until(lambda: len(judge.seen) == 1)
    wait_until(lambda: judge.cancelled == 1)
    wait_until(lambda: metric(client, "rewardfleet_admitted_requests{") == 0)


@pytest.mark.slow
def test_a_queued_item_is_dropped_when_its_caller_disconnects(serve: Serve, frames_request):
    judge = FakeJudge(wait_s=6)
    client = serve(judge, max_in_flight=1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/score", json=frames_request)
        wait_until(lambda: len(judge.seen) == 1)
        with posting(client, "/score", {**frames_request, "task_text": "another"}):
            wait_until(lambda: metric(client, "rewardfleet_queue_depth{") == 1)
        assert first.result().status_code == 200
    wait_until(lambda: metric(client, "rewardfleet_admitted_requests{") == 0)
    assert len(judge.seen) == 1


@pytest.mark.slow
def test_at_capacity_429_is_sent_before_the_body_is_read_and_health_is_answered(
    serve: Serve, frames_request
):
    client = serve(FakeJudge(wait_s=5), max_in_flight=1, max_queue_depth=1)
    bodies = [{**frames_request, "task_text": f"task {index}"} for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        inside = [pool.submit(client.post, "/score", json=body) for body in bodies]
        wait_until(lambda: metric(client, "rewardfleet_admitted_requests{") == 2)
        # The body is announced and never sent: the answer does not wait for it.
        with connect_to(str(client.base_url)) as refused:
            refused.sendall(head(1_000_000))
            answer = refused.recv(65536).decode()
        assert answer.startswith("HTTP/1.1 429")
        assert "retry-after: " in answer
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").json() == {"status": "ready"}
        assert all(each.result().status_code == 200 for each in inside)


def test_items_of_a_batch_fail_individually(serve: Serve, frames_request):
    client = serve()
    wrong = [{**frames_request, "nframes": 0}, {"video_path": "x"}, "no object", None]
    items = [frames_request, *wrong, {**frames_request, "task_text": "another"}]
    answer = client.post("/score/batch", json={"items": items})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["status"] for result in results] == ["ok", *["error"] * 4, "ok"]
    assert all(result["score"] is None for result in results[1:5])
    assert all(result["error"]["kind"] == "invalid" for result in results[1:5])
    assert "nframes" in results[1]["error"]["detail"]
    assert "task_text" in results[2]["error"]["detail"]


def test_shared_provenance_is_reported_once_per_batch(serve: Serve, frames_request):
    client = serve()
    answer = client.post("/score/batch", json={"items": [frames_request] * 2}).json()
    assert answer["provenance"]["fake"]["judge"] == "fake"
    assert all(set(result["provenance"]) == {"frames"} for result in answer["results"])


@pytest.mark.slow
def test_items_of_a_batch_are_judged_concurrently(serve: Serve, frames_request):
    client = serve(FakeJudge(wait_s=0.5))
    items = [{**frames_request, "task_text": f"task {index}"} for index in range(16)]
    watch = Stopwatch()
    results = client.post("/score/batch", json={"items": items}).json()["results"]
    assert [result["status"] for result in results] == ["ok"] * 16
    assert watch.seconds < 16 * 0.5


@pytest.mark.slow
def test_late_items_of_a_batch_fail_and_finished_ones_do_not(serve: Serve, frames_request):
    client = serve(FakeJudge(wait_s=4), max_in_flight=1)
    items = [{**frames_request, "task_text": f"task {index}"} for index in range(3)]
    hurried = {"x-request-timeout": "7.5"}
    answer = client.post("/score/batch", json={"items": items}, headers=hurried)
    results = answer.json()["results"]
    assert sorted(result["status"] for result in results) == ["error", "error", "ok"]
    late = [result["error"]["kind"] for result in results if result["error"]]
    assert late == ["deadline_exceeded"] * 2


async def test_a_block_has_its_turn_after_an_event_loop_that_was_busy(monkeypatch):
    """A handler that keeps the deadline is not cancelled, however late it learns of it."""
    monkeypatch.setattr(started, "_OVERDUE_SECONDS", 0.2)

    receive = asyncio.Event().wait  # its caller stays connected
    deadline = asyncio.get_running_loop().time() + 0.1

    async def keep_deadline() -> None:
        async with asyncio.timeout_at(deadline):
            await asyncio.sleep(0.05)  # meanwhile the request is watched
            time.sleep(0.5)
            monkeypatch.setattr(started, "_OVERDUE_SECONDS", 60)
            await asyncio.sleep(30)

    async def work() -> str:
        with pytest.raises(TimeoutError):
            await keep_deadline()
        for _ in range(10):  # e.g. the items of a batch are gathered
            await asyncio.sleep(0)
        return "done"

    assert await guarded(receive, deadline, work()) == "done"
    monkeypatch.setattr(started, "_OVERDUE_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        await guarded(receive, deadline, asyncio.sleep(30))  # the deadline is ignored


@pytest.mark.parametrize("count", [0, 257])
def test_a_batch_has_1_to_256_items(serve: Serve, frames_request, count):
    answer = serve().post("/score/batch", json={"items": [frames_request] * count})
    assert answer.status_code == 422
    assert "items" in answer.json()["detail"]


def test_a_failing_judge_is_an_error_and_never_a_zero(serve: Serve, frames_request):
    judge = FakeJudge(error=RuntimeError("the engine is dead" + "x" * 100_000))
    client = serve(judge)
    for _ in range(2):
        answer = client.post("/score", json=frames_request)
        assert answer.status_code == 502
        problem = answer.json()
        assert (problem["kind"], problem["retryable"]) == ("backend_failed", True)
        assert "the engine is dead" in problem["detail"]
        assert len(answer.text) < 1500
    assert len(judge.seen) == 2, "failures are not cached"


def test_the_request_id_is_the_callers_or_a_new_one(serve: Serve, frames_request):
    client = serve()
    given = client.post("/score", json=frames_request, headers={"x-request-id": "run-1.step_2"})
    assert given.headers["x-request-id"] == "run-1.step_2"
    ids = {client.post("/score", json=frames_request).headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5
    evil = client.post("/score", json={}, headers={"x-request-id": 'a"b<script>'})
    assert evil.headers["x-request-id"] == evil.json()["request_id"] != 'a"b<script>'


def test_lines_about_requests_can_be_sampled_but_not_those_about_failures(
    serve: Serve, frames_request, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "rewardfleet_server.request")

    def logged(rate: float) -> list[tuple[str, int, int]]:
        client = serve(FakeJudge(0.9), log_sample_rate=rate)
        caplog.clear()
        client.post("/score", json=frames_request)
        for items in ([frames_request] * 2, [frames_request, {}]):
            client.post("/score/batch", json={"items": items})
        client.post("/score", json={})
        client.get("/readyz")
        lines = [each for each in caplog.records if each.name == "rewardfleet_server.request"]
        return [(each.path, each.status, each.failed) for each in lines]

    failures = [("/score/batch", 200, 1), ("/score", 422, 1)]
    assert logged(1.0) == [("/score", 200, 0), ("/score/batch", 200, 0), *failures]
    assert logged(0.0) == failures


def test_metrics_count_requests_results_and_cache(serve: Serve, frames_request):
    client = serve(FakeJudge(0.9))
    for _ in range(2):
        client.post("/score", json=frames_request)
    client.post("/score", json={})
    client.post("/score/batch", json={"items": [frames_request, {}]})
    requests = 'rewardfleet_requests_total{{kind="{}",route="{}",service="video",status="{}"}}'
    assert metric(client, requests.format("", "/score", 200)) == 2
    assert metric(client, requests.format("", "/score/batch", 200)) == 1
    kind = requests.format("invalid", "/score", 422)
    assert metric(client, kind) == 1
    ok = 'rewardfleet_results_total{backend="fake",service="video",status="ok"}'
    assert metric(client, ok) == 3
    assert metric(client, 'rewardfleet_cache_lookups_total{result="hit",service="video"}') == 2
    assert metric(client, 'rewardfleet_cache_lookups_total{result="miss",service="video"}') == 1
    assert metric(client, 'rewardfleet_score_count{backend="fake",service="video"}') == 3
    for stage in ("queue", "decode", "backend"):
        count = f'rewardfleet_stage_duration_seconds_count{{service="video",stage="{stage}"}}'
        assert metric(client, count) == 1


def test_no_task_path_or_request_becomes_a_label(serve: Serve, frames_request):
    client = serve()
    for index in range(5):
        client.post("/score", json={**frames_request, "task_text": f"secret task {index}"})
        client.post("/score", json={"task_text": "x", "video_path": f"/secret/{index}.mp4"})
        client.post("/score", json={**frames_request, "backend": f"secret {index}"})
        client.get(f"/secret/{index}")
    assert "secret" not in client.get("/metrics").text


@pytest.mark.parametrize(
    "judgment",
    [
        None,
        0.5,
        Judgment("0.5", "x"),
        Judgment(0.5, None),
        Judgment(0.5, "x", {"a": float("nan")}),
        Judgment(0.5, "x", {"a": "b"}),
        *(Judgment(score, "x") for score in (1.5, -0.1, float("nan"), float("inf"))),
    ],
    ids=repr,
)
def test_a_judge_that_returns_no_judgment_in_range_is_a_backend_failure(
    serve: Serve, frames_request, judgment
):
    class Nonsense(FakeJudge):
        async def judge(self, *_: object) -> Judgment:
            return judgment

    answer = serve(Nonsense()).post("/score", json=frames_request)
    assert (answer.status_code, answer.json()["kind"]) == (502, "backend_failed")


def test_two_equal_judges_do_not_share_scores(frames_request):
    app = create_app(VideoSettings(), {"a": FakeJudge(), "b": FakeJudge()})
    with client_of(app) as client:
        for backend in ("a", "b"):
            answer = client.post("/score", json={**frames_request, "backend": backend}).json()
            assert (answer["backend"], answer["cached"]) == (backend, False)


@pytest.mark.slow
def test_requests_of_many_large_frames_take_turns(serve: Serve, monkeypatch):
    """Each may take 600 MB decoded; here there is memory for one at a time."""
    monkeypatch.setattr(
        "rewardfleet_server.video.clip.decoding_limit.DecodingLimit.CAPACITY", 640 * 2**20
    )
    judge = FakeJudge(wait_s=0.5)
    client = serve(judge)
    large = {"frames_base64": [image_base64()], "nframes": 128, "max_pixels": 1_605_632}
    bodies = [{**large, "task_text": f"task {index}"} for index in range(5)]
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda body: client.post("/score", json=body), bodies))
    assert [answer.status_code for answer in answers] == [200] * 5
    waited = sorted(answer.json()["timing_ms"]["queue"] for answer in answers)
    assert waited[-1] >= 700
    assert len(judge.seen) == 5


def test_a_post_to_an_unknown_path_is_counted_and_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
):
    client = serve(FakeJudge())
    with caplog.at_level("INFO"):
        response = client.post("/v1/score", json={}, headers={"x-request-id": "abc"})
    assert response.status_code == 404
    assert "no endpoint '/v1/score'" in response.json()["detail"]
    assert response.headers["x-request-id"] == response.json()["request_id"] == "abc"
    assert metric(client, 'rewardfleet_requests_total{kind="not_found"') == 1
    assert any(record.__dict__.get("kind") == "not_found" for record in caplog.records)


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [{}, {"x-request-timeout": "0.05"}])
def test_a_body_that_stops_arriving_is_reported(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, deadline: dict[str, str]
):
    """After a time of its own, or at the deadline of the request if that is earlier."""
    monkeypatch.setattr(http_body, "_SILENCE_SECONDS", 0.2)
    client = serve(FakeJudge())

    def begin() -> Iterator[bytes]:
        yield b'{"task_text": '
        wait_until(lambda: metric(client, "rewardfleet_requests_total{") == 1)
        yield b'"never read"}'

    with httpx.Client(trust_env=False, verify=False, timeout=60) as silent:
        headers = {"content-type": "application/json", **deadline}
        response = silent.post(f"{client.base_url}/score", content=begin(), headers=headers)
    reason = "deadline of this request passed (0.05 s)" if deadline else "arrived within 0.2 s"
    assert response.json()["kind"] == "deadline_exceeded"
    assert reason in response.json()["detail"]
