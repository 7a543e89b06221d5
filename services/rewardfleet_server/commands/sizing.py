"""`rewardfleet size`: how many replicas a load needs, by simulation.

A replica works on a limited number of items at a time, and the others wait in its queue; an item
goes to the replica with the fewest outstanding items, as the clients and the gateway send it.
Equal arguments give equal results.
"""

import dataclasses
import heapq
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from rewardfleet_server.settings import redact

#: The metric with the time of each stage of an item.
_METRIC = "rewardfleet_stage_duration_seconds"
#: Items that are simulated, and the share of them, at the start, that is not counted.
_ITEMS, _WARM_UP = 20_000, 0.1
#: The fewest items from which service times are read.
_MIN_MEASURED = 20
#: The largest share of items that may miss the deadline, and of the time that slots are occupied:
#: queues grow without limit above 1.
_MAX_LATE, _MAX_BUSY = 0.001, 0.95
_MIN_BURSTS = 20
#: The most items of a burst.
MAX_BURST = 50_000
_MAX_REPLICAS = 1000
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Histogram:
    """The durations of one stage, as a service measured them.

    Attributes:
        bounds: Upper bounds of the buckets in seconds; the last one is infinite.
        counts: Items in each bucket.
        total_s: The sum of all durations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_s: float

    def sample(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return durations, `[count]`: even within a bucket, with the measured mean."""
        lower = np.array([0.0, *self.bounds[:-1]])
        upper = np.array([*self.bounds[:-1], 2 * self.bounds[-2]])
        weights = np.array(self.counts) / sum(self.counts)
        buckets = random.choice(len(weights), count, p=weights)
        drawn = random.uniform(lower[buckets], upper[buckets])
        return drawn * (self.total_s / sum(self.counts) / float(drawn.mean()))


@dataclass(frozen=True)
class ServiceTimes:
    """How long one item occupies the backend.

    Attributes:
        source: Where the numbers come from, for the output.
        decode: Values in seconds, of which each item has one, or what a service measured.
        backend: As `decode`; both are added.
        decode_factor: What `decode` is multiplied with, for clips of another length.
    """

    source: str
    decode: Sequence[float] | Histogram
    backend: Sequence[float] | Histogram
    decode_factor: float = 1.0

    def sample(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Return durations in seconds, `[count]`."""
        decode, backend = (_sample(each, random, count) for each in (self.decode, self.backend))
        times: NDArray[np.float64] = decode * self.decode_factor + backend
        return times

    def for_clips(self, frames: int, measured_frames: int) -> "ServiceTimes":
        """Return the times for clips with another number of frames than those measured."""
        return dataclasses.replace(self, decode_factor=frames / measured_frames)


def given_times(backend: str, decode_s: float = 0.0) -> ServiceTimes:
    """Return the times that a user gives.

    Args:
        backend: Seconds, separated by commas.
        decode_s: Seconds to decode a clip.

    Raises:
        ValueError: A value is not a number of seconds.
    """
    try:
        values = [float(each) for each in backend.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < each < math.inf for each in values):
        raise ValueError(
            f"--seconds {backend[:100]}: give seconds above 0, like 0.8 or 0.7,0.8,2.1"
        )
    count = f"{len(values)} given {'value' if len(values) == 1 else 'values'}"
    return ServiceTimes(count, [decode_s], values)


def measured_times(url: str, api_key: str | None = None) -> ServiceTimes:
    """Return the times that a running service has measured.

    Raises:
        ValueError: See `read_metrics`.
    """
    decode, backend = read_metrics(url, api_key)
    source = f"measured by {redact(url)} for {sum(backend.counts)} items"
    return ServiceTimes(source, decode, backend)


def _sample(
    values: Sequence[float] | Histogram, random: np.random.Generator, count: int
) -> NDArray[np.float64]:
    if isinstance(values, Histogram):
        return values.sample(random, count)
    chosen: NDArray[np.float64] = random.choice(np.array(values, np.float64), count)
    return chosen


@dataclass(frozen=True)
class Load:
    """What callers send.

    Attributes:
        rate: Items per second on average; None if `callers` is given.
        burst: Items that come together. 1: they come independently of each other.
        callers: Callers that send their next item as soon as they have the score of the last one.
    """

    rate: float | None = None
    burst: int = 1
    callers: int | None = None


@dataclass(frozen=True)
class Sizing:
    """What is to be sized.

    Attributes:
        times: How long an item occupies the backend.
        load: What callers send.
        concurrency: Items at the backend of a replica at the same time.
        p95_s: The time in which 95 % of the items must have their score.
        deadline_s: Seconds after which an item is given up.
        gpus_per_replica: GPUs of a replica; a fraction if replicas share one.
        seed: Of the random numbers.
    """

    times: ServiceTimes
    load: Load
    concurrency: int
    p95_s: float
    deadline_s: float = 120.0
    gpus_per_replica: float = 0.0
    seed: int = 0

    def predict(self, replicas: int) -> "Prediction":
        """Return what a number of replicas does with the load."""
        random = np.random.default_rng(self.seed)
        bursts = max(_MIN_BURSTS, math.ceil(_ITEMS / self.load.burst))
        return simulate(
            self.times.sample(random, bursts * self.load.burst),
            self.load,
            replicas=replicas,
            concurrency=self.concurrency,
            deadline_s=self.deadline_s,
            random=random,
            gpus_per_replica=self.gpus_per_replica,
        )

    def suffices(self, prediction: "Prediction") -> bool:
        """Return whether a prediction keeps the targets."""
        is_stable = self.load.rate is None or prediction.busy <= _MAX_BUSY
        return is_stable and prediction.p95_s <= self.p95_s and prediction.late <= _MAX_LATE

    def solve(self) -> list["Prediction"]:
        """Return predictions for the smallest number of replicas that suffices, and its neighbors.

        Raises:
            ValueError: No number of replicas suffices.
        """
        found: dict[int, Prediction] = {}
        own = self.times.sample(np.random.default_rng(self.seed), _ITEMS)
        if (own_p95 := float(np.quantile(own, 0.95))) > min(self.p95_s, self.deadline_s):
            raise ValueError(
                f"no number of replicas suffices: 95 % of the items take up to {own_p95:.3g} s at "
                f"the backend alone (--p95-s {self.p95_s:g}, --deadline-s {self.deadline_s:g})"
            )

        def is_enough(replicas: int) -> bool:
            if replicas not in found:
                found[replicas] = self.predict(replicas)
            return self.suffices(found[replicas])

        low, high = 0, 1
        while not is_enough(high):
            if high == _MAX_REPLICAS:
                most = found[high]
                raise ValueError(
                    f"{high} replicas do not suffice: 95 % of the items take up to "
                    f"{most.p95_s:.3g} s, {most.late:.1%} miss the deadline, slots are occupied "
                    f"{most.busy:.0%} of the time"
                )
            low, high = high, min(2 * high, _MAX_REPLICAS)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return [
            found.get(each) or self.predict(each) for each in (high - 1, high, high + 1) if each
        ]


@dataclass(frozen=True)
class Prediction:
    """What a number of replicas does with a load.

    Attributes:
        replicas: How many there are.
        gpus: Those of all replicas.
        items_per_s: Items that get their score before the deadline.
        busy: Share of the time in which a slot for an item is occupied.
        p50_s: The median of the time from sending an item to its score.
        p95_s: Its 95th percentile.
        burst_p95_s: 95th percentile of the time until all items of a burst have their score.
        late: Share of the items that miss the deadline.
    """

    replicas: int
    gpus: float
    items_per_s: float
    busy: float
    p50_s: float
    p95_s: float
    burst_p95_s: float
    late: float


def simulate(
    times: NDArray[np.float64],
    load: Load,
    *,
    replicas: int,
    concurrency: int,
    deadline_s: float,
    random: np.random.Generator,
    gpus_per_replica: float = 0.0,
) -> Prediction:
    """Simulate the items, each of which needs one of `times`, `[N]`, at the backend.

    Args:
        times: Seconds at the backend; a multiple of the items of a burst.
        load: When they come.
        replicas: Replicas.
        concurrency: Items at the backend of a replica at the same time.
        deadline_s: Seconds after which an item is given up.
        random: For arrivals.
        gpus_per_replica: GPUs.
    """
    count = len(times)
    arrived = _arrivals(load, count, random)
    ended = np.zeros(count)
    is_late = np.zeros(count, bool)
    busy_s = 0.0
    waiting: list[deque[int]] = [deque() for _ in range(replicas)]
    at_work, outstanding = [0] * replicas, [0] * replicas
    # Times at which items come or leave the backend: (time, item, replica), replica -1: it comes.
    sent = count if load.callers is None else min(load.callers, count)
    events = [(arrived[item], item, -1) for item in range(sent)]
    heapq.heapify(events)
    while events:
        now, item, replica = heapq.heappop(events)
        if replica < 0:
            arrived[item] = now
            replica = min(range(replicas), key=outstanding.__getitem__)
            outstanding[replica] += 1
            waiting[replica].append(item)
        else:
            at_work[replica] -= 1
            outstanding[replica] -= 1
            ended[item] = now
            sent = _send_next(events, load, sent, count, now)
        while waiting[replica] and at_work[replica] < concurrency:
            started = waiting[replica].popleft()
            limit = arrived[started] + deadline_s
            if limit <= now:  # its deadline passed in the queue
                is_late[started], ended[started] = True, limit
                outstanding[replica] -= 1
                sent = _send_next(events, load, sent, count, now)
                continue
            end = min(now + times[started], limit)
            is_late[started] = now + times[started] > limit
            busy_s += end - now
            at_work[replica] += 1
            heapq.heappush(events, (end, started, replica))
    span = ended.max() - arrived.min()
    first = int(count * _WARM_UP) // load.burst * load.burst
    response = (ended - arrived)[first:]
    counted = slice(first, count)
    in_time = np.count_nonzero(~is_late[counted])
    seconds = ended.max() - arrived[first]
    bursts = response.reshape(-1, load.burst)
    p50, p95 = np.quantile(response, [0.5, 0.95])
    return Prediction(
        replicas=replicas,
        gpus=replicas * gpus_per_replica,
        items_per_s=float(in_time / seconds) if seconds else math.inf,
        busy=float(busy_s / (span * replicas * concurrency)) if span else 1.0,
        p50_s=float(p50),
        p95_s=float(p95),
        burst_p95_s=float(np.quantile(bursts.max(axis=1), 0.95)),
        late=float(is_late[counted].mean()),
    )


def _arrivals(load: Load, count: int, random: np.random.Generator) -> NDArray[np.float64]:
    if load.rate is None:
        return np.zeros(count)
    if load.burst == 1:
        return np.cumsum(random.exponential(1 / load.rate, count))
    number = np.arange(count, dtype=np.float64) // load.burst
    return number * (load.burst / load.rate)


def _send_next(
    events: list[tuple[float, int, int]], load: Load, sent: int, count: int, now: float
) -> int:
    """Let the caller that waited send its next item; return how many are sent now."""
    if load.callers is None or sent == count:
        return sent
    heapq.heappush(events, (now, sent, -1))
    return sent + 1


def read_metrics(url: str, api_key: str | None = None) -> tuple[Histogram, Histogram]:
    """Return the durations of the stages `decode` and `backend` of a running service.

    Args:
        url: Its base URL.
        api_key: Sent as a bearer token.

    Raises:
        ValueError: There is no such service, or it has scored too few items.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    address = f"{url.rstrip('/')}/metrics"
    try:
        with httpx.Client(headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False) as http:
            response = http.get(address)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(f"--metrics-url {redact(url)}: {error or type(error).__name__}") from None
    if response.status_code != 200:
        hint = "; set REWARDFLEET_API_KEY" if response.status_code == 401 else ""
        raise ValueError(
            f"--metrics-url {redact(url)}: /metrics answered {response.status_code}{hint}"
        )
    try:
        return parse_metrics(response.text)
    except ValueError as error:
        raise ValueError(f"--metrics-url {redact(url)}: {error}") from None


def parse_metrics(text: str) -> tuple[Histogram, Histogram]:
    """Return the durations of the stages `decode` and `backend` from Prometheus' text format.

    Raises:
        ValueError: They are not in it, or are those of too few items.
    """
    cumulative: dict[str, dict[float, float]] = {"decode": {}, "backend": {}}
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name != _METRIC:
            continue
        for sample in family.samples:
            stage = sample.labels.get("stage", "")
            if stage in cumulative and sample.name.endswith("_bucket"):
                cumulative[stage][float(sample.labels["le"])] = sample.value
            elif stage in cumulative and sample.name.endswith("_sum"):
                sums[stage] = sample.value
    found = []
    for stage, buckets in cumulative.items():
        measured = int(max(buckets.values(), default=0))
        if measured < _MIN_MEASURED:
            raise ValueError(
                f"{_METRIC} has {measured} computed items; score {_MIN_MEASURED} or more first, "
                "which are not cached"
            )
        bounds = sorted(buckets)
        counts = np.diff([buckets[each] for each in bounds], prepend=0).astype(int)
        found.append(Histogram(tuple(bounds), tuple(map(int, counts)), sums[stage]))
    return found[0], found[1]


def report(sizing: Sizing, predictions: Sequence[Prediction], *, as_json: bool) -> str:
    """Return predictions as text, with what they assume."""
    assumptions = _assumptions(sizing)
    enough = next((each for each in predictions if sizing.suffices(each)), None)
    if as_json:
        content: Mapping[str, object] = {
            "replicas": enough.replicas if enough else None,
            "gpus": enough.gpus if enough else None,
            "predictions": [dataclasses.asdict(each) for each in predictions],
            "assumptions": assumptions,
        }
        return json.dumps(content, indent=2)
    table = Table(box=None, pad_edge=False)
    columns = ("replicas", "GPUs", "items/s", "busy", "p50 s", "p95 s", "burst p95 s", "late", "")
    for column in columns:
        table.add_column(column, justify="right")
    for each in predictions:
        table.add_row(
            str(each.replicas),
            f"{each.gpus:g}",
            f"{each.items_per_s:.4g}",
            f"{each.busy:.0%}",
            f"{each.p50_s:.3g}",
            f"{each.p95_s:.3g}",
            f"{each.burst_p95_s:.3g}",
            f"{each.late:.2%}",
            "suffices" if each is enough else "" if sizing.suffices(each) else "too few",
        )
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get() + "".join(f"\n- {each}" for each in assumptions)


def _assumptions(sizing: Sizing) -> list[str]:
    """Return what the predictions assume, beginning with what they start from."""
    random = np.random.default_rng(sizing.seed)
    times = sizing.times.sample(random, _ITEMS)
    load = sizing.load
    if load.callers is not None:
        arrivals = f"{load.callers} callers, each with one item at a time"
    elif load.burst == 1:
        arrivals = f"{load.rate:g} items per second, independent of each other"
    else:
        assert load.rate is not None  # noqa: S101 - without callers there is a rate
        arrivals = f"{load.burst} items at once, every {load.burst / load.rate:.3g} s"
    mean, p95 = times.mean(), np.quantile(times, 0.95)
    lines = [
        f"load: {arrivals}",
        f"time at the backend: {sizing.times.source}; mean {mean:.3g} s, p95 {p95:.3g} s",
        f"{sizing.concurrency} items at the backend of a replica at a time, as slow as measured",
        "the measured items had as many others at the same time, on the same hardware",
        "replicas share neither cores nor GPUs; an item goes to the one with the fewest items",
        "no score is cached; the network and the caller take no time",
    ]
    if sizing.times.decode_factor != 1:
        factor = sizing.times.decode_factor
        lines.append(
            f"decoding takes {factor:.3g} times as long for clips of this length; the judge sees "
            "as many frames, so it takes as long as measured"
        )
    return lines
