"""How many replicas a load needs, by simulation.

A request has one item or more, and goes to the replica with the fewest unanswered requests, as the
clients and the gateway send it. Each of its items waits there for one of the slots of the backend,
in turn; the request is answered when all of its items have their score. Equal arguments give equal
results.
"""

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import httpx
import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from rewardfleet_server.settings import redact

#: The metric with the time of each stage of an item.
_METRIC = "rewardfleet_stage_duration_seconds"
#: The fewest items from which times are read.
_MIN_MEASURED = 20
#: Items that are simulated, in so many bursts or more, and the share at the start that is not
#: counted.
_ITEMS, _MIN_BURSTS, _WARM_UP = 20_000, 20, 0.1
#: The largest share of the time that slots may be occupied: queues grow without limit above 1.
_MAX_BUSY = 0.95
_MAX_REPLICAS = 1000


@dataclass(frozen=True)
class StageTimes:
    """Durations of a stage of an item, even within each of several ranges.

    Attributes:
        lower: Where each range begins, in seconds.
        upper: Where it ends.
        counts: How often durations are in it.
        mean_s: The mean of all durations.
    """

    lower: Sequence[float]
    upper: Sequence[float]
    counts: Sequence[float]
    mean_s: float

    def sample(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return durations, `[count]`, which have the mean."""
        weights = np.array(self.counts) / sum(self.counts)
        ranges = random.choice(len(weights), count, p=weights)
        drawn = random.uniform(np.array(self.lower)[ranges], np.array(self.upper)[ranges])
        return drawn * (self.mean_s / float(drawn.mean()))


def given_times(text: str) -> list[StageTimes]:
    """Return the times of items that a user gives as seconds, separated by commas.

    Raises:
        ValueError: One is not a number of seconds.
    """
    try:
        values = [float(each) for each in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < each < math.inf for each in values):
        raise ValueError(
            f"--seconds {text[:100]}: give seconds above 0, like 0.8 or 0.7,0.8,2.1, or the URL of "
            "a service"
        )
    return [StageTimes(values, values, [1] * len(values), sum(values) / len(values))]


def read_times(url: str, api_key: str = "") -> list[StageTimes]:
    """Return the times of the stages `decode` and `backend` that a running service has measured.

    Raises:
        ValueError: There is no such service, or it has computed too few items.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        response = httpx.get(f"{url.rstrip('/')}/metrics", headers=headers, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"--seconds {redact(url)}: {error or type(error).__name__}") from None
    if response.status_code != 200:
        hint = "; set REWARDFLEET_API_KEY" if response.status_code == 401 else ""
        raise ValueError(f"--seconds {redact(url)}: /metrics answered {response.status_code}{hint}")
    return parse_times(response.text)


def parse_times(text: str) -> list[StageTimes]:
    """Return the times of the stages `decode` and `backend` from Prometheus' text format.

    Raises:
        ValueError: They are not in it, or are those of too few items.
    """
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        if family.name == _METRIC
        for sample in family.samples
    ]
    stages = []
    for stage in ("decode", "backend"):
        own = [each for each in samples if each.labels.get("stage") == stage]
        buckets = {float(each.labels["le"]): each.value for each in own if "le" in each.labels}
        bounds = [0.0, *sorted(buckets)]
        measured = max(buckets.values(), default=0)
        if measured < _MIN_MEASURED:
            raise ValueError(
                f"{_METRIC} has {measured:g} computed items; score {_MIN_MEASURED} or more first, "
                "which are not cached"
            )
        total_s = sum(each.value for each in own if each.name.endswith("_sum"))
        counts = np.diff([0, *(buckets[each] for each in bounds[1:])])
        bounds[-1] = 2 * bounds[-2]  # instead of infinity
        stages.append(StageTimes(bounds[:-1], bounds[1:], [*counts], total_s / measured))
    return stages


@dataclass(frozen=True)
class OfferedLoad:
    """What callers send.

    Attributes:
        rate: Items per second on average; None if `callers` is given.
        burst: Requests that come together. 1: they come independently of each other.
        batch: Items of a request.
        callers: Callers that send their next request as soon as the last one is answered.
    """

    rate: float | None = None
    burst: int = 1
    batch: int = 1
    callers: int | None = None

    def arrivals(self, requests: int, random: np.random.Generator) -> list[float]:
        """Return when requests come, in order; for callers, the first request of each."""
        if self.rate is None:
            return [0.0] * min(self.callers or 1, requests)
        seconds = self.burst * self.batch / self.rate
        if self.burst > 1:
            return [number // self.burst * seconds for number in range(requests)]
        return [*np.cumsum(random.exponential(seconds, requests))]


@dataclass(frozen=True)
class Prediction:
    """What a number of replicas does with a load.

    Attributes:
        replicas: How many there are.
        items_per_s: Items that get their score.
        busy: Share of the time in which a slot is occupied.
        p50_s: The median of the time from sending a request to its answer.
        p95_s: Its 95th percentile.
        p999_s: Its 99.9th percentile.
        burst_p95_s: 95th percentile of the time until all requests of a burst are answered.
    """

    replicas: int
    items_per_s: float
    busy: float
    p50_s: float
    p95_s: float
    p999_s: float
    burst_p95_s: float


def simulate(
    times: NDArray[np.float64],
    load: OfferedLoad,
    *,
    replicas: int,
    concurrency: int,
    random: np.random.Generator,
) -> Prediction:
    """Simulate requests whose items take `times` at the backend, `[requests, items]` in seconds.

    Args:
        times: A multiple of the requests of a burst.
        load: When requests come.
        replicas: Replicas.
        concurrency: The slots of a replica: items at its backend at the same time.
        random: For arrivals.
    """
    count = len(times)
    due = load.arrivals(count, random)
    free_at = [[0.0] * concurrency for _ in range(replicas)]  # each slot
    outstanding = [0] * replicas
    answers: list[tuple[float, int]] = []  # when, and by which replica
    arrived, ended = np.zeros(count), np.zeros(count)
    for number, seconds_of_items in enumerate(times.tolist()):
        now = end = heapq.heappop(due)
        while answers and answers[0][0] <= now:
            outstanding[heapq.heappop(answers)[1]] -= 1
        replica = min(range(replicas), key=outstanding.__getitem__)
        slots = free_at[replica]
        for seconds in seconds_of_items:
            item_end = max(now, slots[0]) + seconds
            heapq.heapreplace(slots, item_end)
            end = max(end, item_end)
        outstanding[replica] += 1
        heapq.heappush(answers, (end, replica))
        arrived[number], ended[number] = now, end
        if load.callers is not None:
            heapq.heappush(due, end)
    first = int(count * _WARM_UP) // load.burst * load.burst
    waited = (ended - arrived)[first:]
    bursts = waited.reshape(-1, load.burst).max(axis=1)
    p50, p95, p999 = map(float, np.quantile(waited, [0.5, 0.95, 0.999]))
    span = ended.max() - arrived.min()
    return Prediction(
        replicas,
        items_per_s=float(times[first:].size / (ended.max() - arrived[first])),
        busy=float(times.sum() / (span * replicas * concurrency)),
        p50_s=p50,
        p95_s=p95,
        p999_s=p999,
        burst_p95_s=float(np.quantile(bursts, 0.95)),
    )


@dataclass(frozen=True)
class Sizing:
    """What is to be sized.

    Attributes:
        times: The stages of an item at the backend, one after another.
        load: What callers send.
        concurrency: Items at the backend of a replica at the same time.
        p95_s: The time in which 95 % of the requests must be answered.
    """

    times: Sequence[StageTimes]
    load: OfferedLoad
    concurrency: int
    p95_s: float = math.inf

    def predict(self, replicas: int) -> Prediction:
        """Return what a number of replicas does with the load."""
        random, load = np.random.default_rng(0), self.load
        bursts = max(_MIN_BURSTS, math.ceil(_ITEMS / (load.burst * load.batch)))
        shape = bursts * load.burst, load.batch
        times = sum(each.sample(random, math.prod(shape)).reshape(shape) for each in self.times)
        return simulate(
            np.asarray(times), load, replicas=replicas, concurrency=self.concurrency, random=random
        )

    def suffices(self, prediction: Prediction) -> bool:
        """Return whether a prediction keeps the targets."""
        is_stable = self.load.rate is None or prediction.busy <= _MAX_BUSY
        return is_stable and prediction.p95_s <= self.p95_s

    def solve(self) -> list[Prediction]:
        """Return predictions for the smallest number of replicas that suffices, and its neighbors.

        Raises:
            ValueError: No number of replicas suffices.
        """
        alone = replace(self, load=OfferedLoad(callers=1, batch=self.load.batch)).predict(1)
        if alone.p95_s > self.p95_s:
            raise ValueError(
                "no number of replicas suffices: 95 % of the requests take up to "
                f"{alone.p95_s:.3g} s at an idle replica (--p95-s {self.p95_s:g})"
            )
        found: dict[int, Prediction] = {}

        def is_enough(replicas: int) -> bool:
            found[replicas] = found.get(replicas) or self.predict(replicas)
            return self.suffices(found[replicas])

        most = 1
        while not is_enough(most):
            if most == _MAX_REPLICAS:
                raise ValueError(
                    f"{most} replicas do not suffice: 95 % of the requests take up to "
                    f"{found[most].p95_s:.3g} s, slots are occupied {found[most].busy:.0%} of the "
                    "time"
                )
            most = min(2 * most, _MAX_REPLICAS)
        enough = bisect.bisect_left(range(most), True, lo=most // 2 + 1, key=is_enough)
        return [found.get(n) or self.predict(n) for n in (enough - 1, enough, enough + 1) if n]
