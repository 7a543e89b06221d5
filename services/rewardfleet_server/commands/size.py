"""`rewardfleet size`: how many replicas a load needs."""

import json
from dataclasses import asdict

import click

from rewardfleet.commands.options import API_KEY, AS_JSON, grouped, number, table

from .sizing import OfferedLoad, Sizing, given_times, read_times

#: The most items that come together: twenty times as many are simulated.
_MAX_TOGETHER = 50_000
_COUNT = click.IntRange(1, 10_000)


@click.command(
    name="size",
    help="Predict by simulation how many replicas a load needs. Give the load by --rate or "
    "--callers.",
)
@number("--rate", "N", "Items per second, on average.")
@number("--burst", "N", "Requests that come at the same time, e.g. of a step.", 1, of=_COUNT)
@number("--batch", "N", "Items of a request.", 1, of=click.IntRange(1, 1000))
@number(
    "--callers",
    "N",
    "Callers that send the next request once the last one is answered; instead of --rate.",
    of=_COUNT,
)
@click.option(
    "--seconds",
    required=True,
    metavar="S,S,…|URL",
    help="Measured times of an item at the backend, each equally probable; or a running service, "
    "whose measured times are used.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="N",
    help="Items at the backend of a replica at the same time: --workers of the code service, "
    "decode threads or the batch of a model of the video service.",
)
@number("--p95-s", "SECONDS", "Time in which 95 % of the requests must be answered.", 10.0)
@AS_JSON
@API_KEY
@grouped(load=OfferedLoad)
def command(
    load: OfferedLoad, seconds: str, concurrency: int, p95_s: float, as_json: bool, api_key: str
) -> None:
    """Print how many replicas a load needs."""
    if (load.rate is None) == (load.callers is None):
        raise click.UsageError("give either --rate or --callers")
    if load.callers is not None and load.burst > 1:
        raise click.UsageError("--burst goes with --rate, not with --callers")
    if load.burst * load.batch > _MAX_TOGETHER:
        raise click.UsageError(f"--burst times --batch: give at most {_MAX_TOGETHER} items")
    is_url = seconds.startswith(("http://", "https://"))
    times = read_times(seconds, api_key) if is_url else given_times(seconds)
    sizing = Sizing(times, load, concurrency, p95_s)
    predictions = sizing.solve()
    enough = next(each for each in predictions if sizing.suffices(each))
    if as_json:
        found = [asdict(each) for each in predictions]
        print(json.dumps({"replicas": enough.replicas, "predictions": found}, indent=2))
        return
    columns = ("replicas", "items/s", "busy", "p50 s", "p95 s", "p99.9 s", "burst p95 s", "")
    rows = [
        [
            str(each.replicas),
            f"{each.items_per_s:.4g}",
            f"{each.busy:.0%}",
            *(f"{s:.3g}" for s in (each.p50_s, each.p95_s, each.p999_s, each.burst_p95_s)),
            "suffices" if each is enough else "" if sizing.suffices(each) else "too few",
        ]
        for each in predictions
    ]
    print(table(columns, rows, numbers=True))
    print(f"time of an item at the backend: {sum(each.mean_s for each in times):.3g} s on average")
