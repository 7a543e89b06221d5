"""The simulation of `rewardfleet size`: against theory, and against services that run."""

import asyncio
import json
import time
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

from rewardfleet import RewardFleet, video_request
from rewardfleet.commands import main as cli
from rewardfleet_server.commands.size import Sizing, measured_times, read_times
from rewardfleet_server.testing import FakeJudge, serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.frames import Clip
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

from ...conftest import image_base64


def predict(times, *, replicas=1, concurrency=1, **load):
    sizing = Sizing([], concurrency, **load)
    requests = np.asarray(times, float).reshape(-1, sizing.batch)
    return sizing.simulate(requests, replicas)


@pytest.mark.slow
@pytest.mark.parametrize(
    "busy", [0.6, *(pytest.param(busy, marks=pytest.mark.full) for busy in (0.3, 0.8))]
)
def test_one_slot_with_random_times_is_an_m_m_1_queue(busy: float):
    times = np.random.default_rng(2).exponential(1.0, 200_000)
    found = predict(times, rate=busy)
    mean_wait = 1 / (1 - busy)  # of an exponential distribution, so its quantiles are known
    assert found.p50_s == pytest.approx(mean_wait * np.log(2), rel=0.06)
    assert found.p95_s == pytest.approx(mean_wait * np.log(20), rel=0.06)
    assert found.items_per_s == pytest.approx(busy, rel=0.02)
    assert found.busy == pytest.approx(busy, rel=0.02)


def test_a_burst_takes_turns_at_all_slots():
    found = predict([1.0] * 800, rate=8 / 100, burst=8, replicas=2, concurrency=2)
    assert (found.p50_s, found.burst_p95_s) == (1.5, 2)


def test_callers_that_wait_for_each_score_keep_all_slots_busy():
    found = predict([0.5] * 1000, callers=10, replicas=2, concurrency=2)
    assert found.items_per_s == pytest.approx(8, rel=0.01)
    assert found.busy == pytest.approx(1, abs=0.01)
    assert found.p95_s == pytest.approx(1.5)


def test_a_batch_stays_at_one_replica_and_is_answered_when_its_last_item_has_its_score():
    """As many single items at once are computed by both replicas."""
    batches = predict([1.0] * 800, rate=8 / 100, batch=8, replicas=2, concurrency=2)
    single = predict([1.0] * 800, rate=8 / 100, burst=8, replicas=2, concurrency=2)
    assert (batches.p50_s, single.burst_p95_s) == (4, 2)
    assert batches.items_per_s == pytest.approx(8 / 100, rel=0.3)  # of few random arrivals


def test_the_slowest_item_delays_its_batch():
    found = predict([1.0, 1.0, 1.0, 5.0] * 200, callers=1, batch=4, concurrency=4)
    assert (found.p50_s, found.p999_s, found.busy) == (5, 5, pytest.approx(8 / 20))


def test_batches_of_several_callers_wait_for_each_other():
    """Items take turns in the order in which their batches came."""
    found = predict([0.5] * 4000, callers=3, batch=10, concurrency=2)
    assert found.p50_s == pytest.approx(3 * 10 * 0.5 / 2)
    assert found.items_per_s == pytest.approx(4, rel=0.02)


@pytest.mark.slow
def test_the_smallest_sufficient_number_of_replicas_is_found():
    wanted = Sizing(read_times("1"), 1, rate=10, p95_s=1.5)
    below, enough, above = wanted.solve()
    assert not wanted.suffices(below) and wanted.suffices(enough) and wanted.suffices(above)
    assert enough.replicas == below.replicas + 1 == above.replicas - 1
    assert enough.replicas >= 11
    assert wanted.solve() == [below, enough, above], "equal arguments, equal results"


@pytest.mark.slow
def test_a_load_that_grows_the_queue_without_limit_never_suffices():
    """Even if so few items are simulated that the queue stays short."""
    wanted = Sizing(read_times("1"), 1, rate=100, p95_s=60)
    assert wanted.solve()[1].replicas > 100


# Times of a running service


def durations(decode: list[float], backend: list[float]) -> dict[tuple[str, str], float]:
    """How many of 100 durations were at most 0.1 and 1 s, their number, and their sum."""
    return {
        (stage, bound): value
        for stage, values in (("decode", decode), ("backend", backend))
        for bound, value in zip(("0.1", "1.0", "+Inf", ""), values, strict=True)
    }


def test_times_have_the_mean_and_the_buckets_of_a_histogram():
    decode, backend = measured_times(durations([0, 100, 100, 50], [0, 90, 100, 60]))
    assert backend.mean() == pytest.approx(0.6)
    assert 0.88 < np.mean(backend < 1.05) < 0.92
    assert decode.mean() == pytest.approx(0.5)
    assert (decode.min(), decode.max()) == pytest.approx((0.09, 0.91), abs=0.01)


def test_too_few_measured_items_are_refused():
    with pytest.raises(ValueError, match="has 9 computed items; score 20 or more first"):
        measured_times(durations([0, 9, 9, 1], [0, 9, 9, 1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--seconds 1 --concurrency 1", "give either --rate or --callers"),
        ("--rate 1 --callers 1 --seconds 1 --concurrency 1", "give either --rate or --callers"),
        ("--rate 1 --concurrency 1", "Missing option '--seconds'"),
        ("--rate 1 --seconds 1", "concurrency"),
        ("--rate nan --seconds 1 --concurrency 1", "give a number"),
        ("--rate inf --seconds 1 --concurrency 1", "range"),
        ("--rate 0 --seconds 1 --concurrency 1", "range"),
        ("--rate 1 --seconds 1,x --concurrency 1", "--seconds 1,x: give seconds above 0"),
        ("--rate 1 --seconds 0 --concurrency 1", "--seconds 0: give seconds above 0"),
        ("--rate 1 --seconds nan --concurrency 1", "--seconds nan: give seconds above 0"),
        ("--callers 1 --burst 2 --seconds 1 --concurrency 1", "goes with --rate"),
        ("--rate 1 --burst 9999 --batch 999 --seconds 1 --concurrency 1", "at most 50000"),
        ("--rate 1 --seconds 30 --concurrency 1", "no number of replicas suffices"),
        pytest.param(
            "--rate 9999 --seconds 1 --concurrency 1",
            "1000 replicas do not suffice",
            marks=pytest.mark.full,
        ),
        ("--rate 1 --seconds http://127.0.0.1:1 --concurrency 1", "--seconds http://127.0.0.1:1: "),
    ],
)
def test_bad_input_is_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["size", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_output_is_a_table_or_json():
    arguments = "size --rate 4 --burst 64 --seconds 0.7,0.8,2.1 --concurrency 8 --p95-s 5"
    table = CliRunner().invoke(cli.command, arguments.split())
    assert table.exit_code == 0, table.output
    assert "suffices" in table.output and "backend: 1.2 s on average" in table.output
    found = CliRunner().invoke(cli.command, [*arguments.split(), "--json"])
    content = json.loads(found.output)
    assert content["replicas"] == content["predictions"][1]["replicas"] == 3


# Against a fleet that runs

REPLICAS, CONCURRENCY = 2, 4


class SlowJudge(FakeJudge):
    """A judge that waits for times of a known distribution, as a remote model would."""

    def __init__(self, seconds: Iterator[float]) -> None:
        super().__init__(0.5, deterministic=False)
        self._seconds = seconds

    async def judge(self, task_text: str, clip: Clip, backend_kwargs) -> Judgment:
        await asyncio.sleep(next(self._seconds))
        return Judgment(0.5, "")


async def measure(urls: list[str], load: Sizing, count: int) -> tuple[float, float]:
    """Send requests; return items per second, and the 95th percentile of the time of a request."""
    seconds: list[float] = []
    requests = iter(range(count))  # of which each caller takes the next one
    frames = [image_base64()]
    async with RewardFleet(video=urls, max_concurrency=1000) as fleet:

        async def score() -> None:
            started = time.monotonic()
            if load.batch == 1:
                await fleet.video.score("a task", frames)
            else:
                await fleet.video.score_batch([video_request("a task", frames)] * load.batch)
            seconds.append(time.monotonic() - started)

        async def caller() -> None:
            for _ in requests:
                await score()

        await asyncio.gather(*(score() for _ in range(4)))  # connections
        seconds.clear()
        started = time.monotonic()
        if load.callers is not None:
            await asyncio.gather(*(caller() for _ in range(load.callers)))
        else:
            bursts = []
            for number in range(count // load.burst):
                await asyncio.sleep(started + number * load.burst / load.rate - time.monotonic())
                bursts += [asyncio.create_task(score()) for _ in range(load.burst)]
            await asyncio.gather(*bursts)
        return load.batch * count / (time.monotonic() - started), float(np.quantile(seconds, 0.95))


@pytest.mark.serial
@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("load", "count"),
    [
        (Sizing([], CONCURRENCY, callers=24), 300),
        (Sizing([], CONCURRENCY, rate=10, burst=40), 200),
        (Sizing([], CONCURRENCY, callers=6, batch=8), 60),
    ],
    ids=["callers", "bursts", "batches"],
)
async def test_a_prediction_agrees_with_a_measured_fleet(load: Sizing, count: int):
    """Throughput within 20%, p95 within 30%, from what the fleet itself has measured."""
    random = np.random.default_rng(3)
    values = random.lognormal(np.log(0.4), 0.5, 10_000)
    exact = load._replace(times=[values]).predict(REPLICAS if load.batch == 1 else 1)
    settings = VideoSettings(max_in_flight=CONCURRENCY)
    for _ in range(4):  # a busy machine delays some of the items of a measurement
        waits = iter(random.lognormal(np.log(0.4), 0.5, 10_000))
        with (
            serving(create_app(settings, {"slow": SlowJudge(waits)})) as first,
            serving(create_app(settings, {"slow": SlowJudge(waits)})) as second,
        ):
            # The client would split a batch over two replicas.
            urls = [first, second] if load.batch == 1 else [first]
            throughput, p95 = await measure(urls, load, count)
            times = await asyncio.to_thread(read_times, first)
        found = load._replace(times=times).predict(len(urls))
        expected = pytest.approx(throughput, rel=0.2), pytest.approx(p95, rel=0.3)
        predicted = [(each.items_per_s, each.p95_s) for each in (found, exact)]
        if predicted == [expected] * 2:
            break
    assert predicted == [expected] * 2
