"""`rewardfleet size`: how many replicas a load needs, by simulation.

A request has one item or more, and goes to the replica with the fewest unanswered requests, as the
clients and the gateway send it. Each of its items waits there for one of the slots of the backend,
in turn; the request is answered when all of its items have their score. Equal arguments give equal
results.
"""

import asyncio
import bisect
import functools
import heapq
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from rewardfleet.commands.index import get, http_client, redact
from rewardfleet.commands.options import API_KEY, AS_JSON, key_hint, number, table

#: Seconds of items.
Times = NDArray[np.float64]

#: The metric with the time of each stage of an item.
_METRIC = "rewardfleet_stage_duration_seconds"
#: The fewest items from which times are read, and into how many equally probable ones.
_MIN_MEASURED, _QUANTILES = 20, 10_000
#: Items that are simulated, in so many bursts or more, and the share at the start that is not
#: counted.
_ITEMS, _MIN_BURSTS, _WARM_UP = 20_000, 20, 0.1
#: The most items that come together: twenty times as many are simulated.
_MAX_TOGETHER = 50_000
#: The largest share of the time that slots may be occupied: queues grow without limit above 1.
_MAX_BUSY = 0.95
_MAX_REPLICAS = 1000
_COUNT = click.IntRange(1, 10_000)

#: The columns of the table, each a field of a prediction, and their formats.
_COLUMNS = ("replicas", "items/s", "busy", "p50 s", "p95 s", "p99.9 s", "burst p95 s")
_FORMATS = ("d", ".4g", ".0%", ".3g", ".3g", ".3g", ".3g")


def read_times(seconds: str, api_key: str = "") -> list[Times]:
    """Return equally probable times of an item at the backend, stage by stage.

    Args:
        seconds: Numbers of seconds, separated by commas, or the URL of a service that has measured
            them.

    Raises:
        ValueError: They are neither, or the service has measured too few items.
    """
    if seconds.startswith(("http://", "https://")):
        return measured_times(asyncio.run(read_durations(seconds, api_key)))
    with suppress(ValueError):
        values = np.array(seconds.split(","), float)
        if all(0 < each < math.inf for each in values):
            return [values]
    raise ValueError(
        f"--seconds {seconds[:100]}: give seconds above 0, like 0.8 or 0.7,0.8,2.1, or the URL of "
        "a service"
    )


async def read_durations(url: str, api_key: str = "") -> dict[tuple[str, str], float]:
    """Return what a running service has measured of the stages of items.

    By stage and upper bound in seconds, how many durations were at most that; and by stage and "",
    their sum in seconds.

    Raises:
        ValueError: There is no such service.
    """
    async with http_client(api_key) as http:
        reply = await get(http, f"{url.rstrip('/')}/metrics")
    if reply.status != 200:
        hint = f"; it {key_hint(api_key)}" if reply.status == 401 else ""
        raise ValueError(f"--seconds {redact(url)}: {reply.reason}{hint}")
    return {
        (sample.labels["stage"], sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(reply.content.decode())
        for sample in family.samples
        if sample.name in {f"{_METRIC}_bucket", f"{_METRIC}_sum"}
    }


def measured_times(durations: Mapping[tuple[str, str], float]) -> list[Times]:
    """Return equally probable times of the stages `decode` and `backend`, even within a bucket.

    Raises:
        ValueError: Too few items were measured.
    """
    times = []
    for stage in ("decode", "backend"):
        buckets = [(float(le), n) for (of, le), n in durations.items() if of == stage and le]
        bounds, below = np.array([(0.0, 0.0), *sorted(buckets)]).T
        if below[-1] < _MIN_MEASURED:
            raise ValueError(
                f"{_METRIC} has {below[-1]:g} computed items; score {_MIN_MEASURED} or more first, "
                "which are not cached"
            )
        bounds[-1] = 2 * bounds[-2]  # instead of infinity
        ranks = (np.arange(_QUANTILES) + 0.5) / _QUANTILES * below[-1]
        spread = np.interp(ranks, below, bounds)
        times.append(spread * (durations[stage, ""] / below[-1] / spread.mean()))
    return times


class Prediction(NamedTuple):
    """What a number of replicas does with a load."""

    replicas: int
    items_per_s: float  #: items that get their score
    busy: float  #: share of the time in which a slot is occupied
    #: Percentiles of the time from sending a request to its answer.
    p50_s: float
    p95_s: float
    p999_s: float
    burst_p95_s: float  #: 95th percentile of the time until all requests of a burst are answered


class Sizing(NamedTuple):
    """What is to be sized."""

    #: Equally probable seconds of each stage of an item at the backend.
    times: Sequence[Times]
    concurrency: int  #: items at the backend of a replica at the same time: its slots
    #: Items per second on average; None if `callers` is given.
    rate: float | None = None
    burst: int = 1  #: requests that come together. 1: they come independently of each other
    batch: int = 1
    #: Callers that send their next request as soon as the last one is answered.
    callers: int | None = None
    p95_s: float = math.inf  #: the time in which 95% of the requests must be answered

    def simulate(self, times: Times, replicas: int) -> Prediction:
        """Simulate requests whose items take `times` at the backend, `[requests, items]`.

        The number of requests is a multiple of those of a burst.
        """
        if self.rate is None:  # the first request of each caller
            due = [0.0] * min(self.callers or 1, len(times))
        else:
            bursts, period = len(times) // self.burst, self.burst * self.batch / self.rate
            gaps = np.full(bursts, period)
            if self.burst == 1:
                gaps = np.random.default_rng(1).exponential(period, bursts)
            due = gaps.cumsum().repeat(self.burst).tolist()
        sent, answered = np.array([*self._run(times, replicas, due)]).T
        first = int(len(times) * _WARM_UP) // self.burst * self.burst
        waited = (answered - sent)[first:]
        slowest = waited.reshape(-1, self.burst).max(axis=1)  # of each burst
        throughput = times[first:].size / (answered.max() - sent[first])
        busy = times.sum() / ((answered.max() - sent[0]) * replicas * self.concurrency)
        p50, p95, p999 = np.quantile(waited, [0.5, 0.95, 0.999])
        found = map(float, (throughput, busy, p50, p95, p999, np.quantile(slowest, 0.95)))
        return Prediction._make((replicas, *found))

    def _run(self, times: Times, replicas: int, due: list[float]) -> Iterator[tuple[float, float]]:
        """Yield when each request is sent and answered; `due` has the first one of each caller."""
        free_at = [[0.0] * self.concurrency for _ in range(replicas)]  # each slot
        outstanding = [0] * replicas
        answers: list[tuple[float, int]] = []  # when, and by which replica
        for seconds_of_items in times.tolist():
            now = end = heapq.heappop(due)
            while answers and answers[0][0] <= now:
                outstanding[heapq.heappop(answers)[1]] -= 1
            replica = min(range(replicas), key=outstanding.__getitem__)
            for seconds in seconds_of_items:
                item_end = max(now, free_at[replica][0]) + seconds
                heapq.heapreplace(free_at[replica], item_end)
                end = max(end, item_end)
            outstanding[replica] += 1
            heapq.heappush(answers, (end, replica))
            yield now, end
            if self.callers is not None:
                heapq.heappush(due, end)

    def predict(self, replicas: int) -> Prediction:
        """Return what a number of replicas does with the load."""
        random = np.random.default_rng(0)
        bursts = max(_MIN_BURSTS, math.ceil(_ITEMS / (self.burst * self.batch)))
        shape = bursts * self.burst, self.batch
        times = np.sum([random.choice(stage, shape) for stage in self.times], axis=0)
        return self.simulate(times, replicas)

    def suffices(self, prediction: Prediction) -> bool:
        """Return whether a prediction keeps the targets."""
        is_stable = self.rate is None or prediction.busy <= _MAX_BUSY
        return is_stable and prediction.p95_s <= self.p95_s

    def solve(self) -> list[Prediction]:
        """Return predictions for the smallest number of replicas that suffices, and its neighbors.

        Raises:
            ValueError: No number of replicas suffices.
        """
        alone = self._replace(rate=None, burst=1, callers=1).predict(1)
        if alone.p95_s > self.p95_s:
            raise ValueError(
                "no number of replicas suffices: 95% of the requests take up to "
                f"{alone.p95_s:.3g} s at an idle replica (--p95-s {self.p95_s:g})"
            )
        predict = functools.cache(self.predict)
        numbers = range(1, _MAX_REPLICAS + 1)
        enough = 1 + bisect.bisect_left(numbers, True, key=lambda n: self.suffices(predict(n)))
        if enough > _MAX_REPLICAS:
            most = predict(_MAX_REPLICAS)
            raise ValueError(
                f"{most.replicas} replicas do not suffice: 95% of the requests take up to "
                f"{most.p95_s:.3g} s, slots are occupied {most.busy:.0%} of the time"
            )
        return [predict(n) for n in (enough - 1, enough, enough + 1) if n]


@click.command(name="size")
@number("--rate", "N", "Items per second, on average.")
@number("--burst", "N", "Requests that come at the same time, e.g. of a step.", 1, of=_COUNT)
@number("--batch", "N", "Items of a request.", 1, of=click.IntRange(1, 1000))
@number("--callers", "N", "Callers that wait for each answer, instead of --rate.", of=_COUNT)
@click.option(
    "--seconds",
    required=True,
    metavar="S,S,…|URL",
    help="Times of an item at the backend, equally probable; or a service that has measured them.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="N",
    help="Items at the backend of a replica at the same time: --workers of the code service, "
    "decode threads or the batch of a model of the video service.",
)
@number("--p95-s", "SECONDS", "Time in which 95% of the requests must be answered.", 10.0)
@AS_JSON
@API_KEY
def command(seconds: str, as_json: bool, api_key: str, **load: Any) -> None:
    """Predict by simulation how many replicas a load needs, given by --rate or --callers."""
    sizing = Sizing(read_times(seconds, api_key), **load)
    if (sizing.rate is None) == (sizing.callers is None):
        raise click.UsageError("give either --rate or --callers")
    if sizing.callers is not None and sizing.burst > 1:
        raise click.UsageError("--burst goes with --rate, not with --callers")
    if sizing.burst * sizing.batch > _MAX_TOGETHER:
        raise click.UsageError(f"--burst times --batch: give at most {_MAX_TOGETHER} items")
    predictions = sizing.solve()
    enough = next(each for each in predictions if sizing.suffices(each))
    if as_json:
        found = [each._asdict() for each in predictions]
        print(json.dumps({"replicas": enough.replicas, "predictions": found}, indent=2))
        return
    rows = []
    for each in predictions:
        verdict = "suffices" if each is enough else "" if sizing.suffices(each) else "too few"
        rows.append([*map(format, each, _FORMATS), verdict])
    print(table((*_COLUMNS, ""), rows, numbers=True))
    print(f"time of an item at the backend: {sum(map(np.mean, sizing.times)):.3g} s on average")
