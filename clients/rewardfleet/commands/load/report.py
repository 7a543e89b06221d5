"""The results as text and JSON."""

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .generator import Plan
from .latency import Latencies
from .results import Results, Tally

#: The quantiles that are reported, by name.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
#: Beyond these, the generator was too slow for its results to be those of the fleet: seconds, and
#: a share of the latency, both at p99.
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.25
_MS = 1000.0


def warnings(plan: Plan, results: Results) -> list[str]:
    """Return why the results may not be those of the fleet."""
    found = []
    late, latency = results.lateness.quantile(0.99) or 0.0, results.total.latencies.quantile(0.99)
    if late > max(_LATE_SECONDS, _LATE_SHARE * (latency or 0.0)):
        found.append(
            f"The generator was late: 1 % of the requests were sent {late * _MS:.0f} ms or more "
            "after they were due, which is part of their latency. Use a machine with idle cores, "
            "or a lower --rate."
        )
    if results.interrupted:
        found.append(
            f"Interrupted after {results.sending_s:.1f} of {plan.duration_s:g} s; requests in "
            "flight were given up."
        )
    for name, tally in results.services.items():
        answered = tally.scored + tally.abstained
        if tally.cached > answered / 10:
            found.append(
                f"{name}: {tally.cached} of {answered} answers came from the cache, so their "
                "latencies are not those of new items."
            )
    return found


def rows(results: Results) -> list[tuple[str, Tally]]:
    """Return the results by service, and those of all if there are several."""
    found = sorted(results.services.items())
    return [*found, ("all", results.total)] if len(found) > 1 else found


def milliseconds(seconds: float | None) -> str:
    """Return a latency as text; empty if there is none."""
    if seconds is None:
        return ""
    value = seconds * _MS
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def latency_cells(latencies: Latencies) -> list[str]:
    """Return the quantiles and the maximum in milliseconds, as text."""
    quantiles = [milliseconds(latencies.quantile(q)) for q in QUANTILES.values()]
    return [*quantiles, milliseconds(latencies.longest if latencies.count else None)]


def rates(plan: Plan, results: Results) -> str:
    """Return which rate was requested, and which was achieved."""
    total = results.total
    seconds = max(results.sending_s, 1e-9)
    sent = results.lateness.count
    return (
        f"{plan.rate:g} requests per second requested ({plan.arrivals} arrivals), "
        f"{sent / seconds:.4g} sent, {(total.scored + total.abstained) / seconds:.4g} answered; "
        f"{results.sending_s:.1f} s; at most {results.most_in_flight} in flight"
    )


def table(results: Results) -> Table:
    """Return the table of services for a terminal."""
    shown = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption="latency in milliseconds, from when a request was due",
        caption_justify="left",
    )
    shown.add_column("service", no_wrap=True)
    for column in COLUMNS:
        shown.add_column(column, justify="right", no_wrap=True)
    for name, tally in rows(results):
        shown.add_row(name, *cells(tally))
    return shown


#: The columns of a table besides the service.
COLUMNS = ["due", "scored", "cached", "abstained", "errors", *QUANTILES, "max"]


def cells(tally: Tally) -> list[str]:
    """Return the cells of a row, one for each of `COLUMNS`."""
    errors = tally.errors.total()
    counts = (tally.due, tally.scored, tally.cached, tally.abstained, errors)
    return [*(f"{each:,}" for each in counts), *latency_cells(tally.latencies)]


def error_rows(results: Results) -> list[Sequence[str]]:
    """Return (service, kind, number, example) for each kind of failure."""
    return [
        (name, kind, f"{count:,}", tally.examples.get(kind, ""))
        for name, tally in sorted(results.services.items())
        for kind, count in tally.errors.most_common()
    ]


def as_json(plan: Plan, results: Results) -> str:
    """Return all results as JSON; times are in seconds."""
    content = {
        "rate": plan.rate,
        "duration_s": plan.duration_s,
        "arrivals": plan.arrivals,
        "timeout_s": plan.timeout_s,
        "max_in_flight": plan.max_in_flight,
        "sending_s": results.sending_s,
        "sent": results.lateness.count,
        "most_in_flight": results.most_in_flight,
        "interrupted": results.interrupted,
        "lateness_s": _summary(results.lateness),
        "warnings": warnings(plan, results),
        "services": {name: _tally(tally) for name, tally in rows(results)},
        "windows": [
            {
                "start_s": place * results.window_s,
                "due": window.due,
                "errors": window.errors,
                "latency_s": _summary(window.latencies),
            }
            for place, window in enumerate(results.windows)
        ],
    }
    return json.dumps(content, indent=2)


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "due": tally.due,
        "scored": tally.scored,
        "cached": tally.cached,
        "abstained": tally.abstained,
        "errors": dict(tally.errors.most_common()),
        "examples": tally.examples,
        "latency_s": _summary(tally.latencies),
    }


def _summary(latencies: Latencies) -> dict[str, float | None]:
    quantiles = {name: latencies.quantile(q) for name, q in QUANTILES.items()}
    return {**quantiles, "max": latencies.longest if latencies.count else None}
