"""`rewardfleet load`: what a fleet does at a given rate, from the arguments to the report."""

import asyncio
import itertools
import json
import resource
import signal
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from rewardfleet.commands.options import AS_JSON, SHARE, URLS, grouped, number, path_option, table
from rewardfleet.commands.settings import api_key
from rewardfleet.http.index import services_at

from .generator import ALL, LoadGenerator, LoadPlan, LoadResults
from .requests import ABSTAINED, ANSWERED, CACHED, SCORED, generate_requests, read_requests

#: The quantiles that are reported, by name.
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

#: Beyond this p99 of its lateness, the generator was too slow for the results to be the fleet's.
_LATE_SECONDS = 0.005


@click.command(
    name="load",
    help="Send requests to fleets and services at a given rate, whatever they answer, and report "
    "latencies and failures. Nothing is retried. Each URL is that of a fleet or of a single "
    "service.  [env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@URLS
@number("--rate", "N", "Requests per second to all services together.", 10.0)
@number("--duration-s", "SECONDS", "Seconds in which requests are sent.", 30.0)
@path_option(
    "--requests",
    "FILE",
    "Requests to send instead of generated ones, in turn: JSON lines with `service`, `body`, "
    "and optionally `path` and the right `score`.",
)
@number("--timeout-s", "SECONDS", "Seconds after which a request is given up.", 60.0)
@number("--max-p99-s", "SECONDS", "Exit with 1 if the p99 of a service is above SECONDS.")
@number(
    "--max-errors",
    "SHARE",
    "Exit with 1 if a larger share of the requests to a service fails, e.g. 0.01.",
    of=SHARE,
)
@AS_JSON
@grouped(plan=LoadPlan)
def command(urls: list[str], plan: LoadPlan, requests: Path | None, as_json: bool) -> int:
    """Put load on a fleet; return 1 if a limit is exceeded, 130 if it was interrupted."""
    recorded = [] if requests is None else read_requests(requests)
    found = [each for url in urls for each in asyncio.run(services_at(url, api_key())).items()]
    names = {each.service for each in recorded} or {name for name, _ in found}
    services = {name: url for name, url in found if name in names}
    if missing := names - services.keys():
        raise ValueError(f"there is no service {', '.join(sorted(missing))} at that URL")
    generated = generate_requests([name for name, _ in found])
    source = itertools.cycle(recorded) if recorded else generated
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # one for each request
    generator = LoadGenerator(plan, source, services, api_key())
    asyncio.run(_run(generator))
    report = _report(plan, generator.results)
    failures = list(_failures(plan, report["services"]))
    click.echo(json.dumps(report, indent=2) if as_json else _text(report))
    for each in failures:
        click.echo(f"failed: {each}", err=True)
    return 130 if generator.results.interrupted else int(bool(failures))


async def _run(generator: LoadGenerator) -> None:
    """Run the generator until it ends, or until Ctrl-C or SIGTERM."""
    running = asyncio.ensure_future(generator.run())
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, running.cancel)
    await running


def quantiles(seconds: "array[float]") -> dict[str, float | None]:
    """Return the quantiles of durations; each is one of them, or None if there are none."""
    if not seconds:
        return dict.fromkeys(_QUANTILES)
    found = np.quantile(seconds, list(_QUANTILES.values()), method="inverted_cdf")
    return dict(zip(_QUANTILES, map(float, found), strict=True))


def _of_service(results: LoadResults, name: str) -> dict[str, Any]:
    kinds = results.kinds[name]
    errors = {kind: count for kind, count in kinds.most_common() if kind not in ANSWERED}
    return {
        "due": kinds.total(),
        "scored": kinds[SCORED] + kinds[CACHED],
        "cached": kinds[CACHED],
        "abstained": kinds[ABSTAINED],
        "errors": errors,
        "examples": {kind: results.examples[name, kind] for kind in errors},
        "latency_s": quantiles(results.latencies[name]),
    }


def _report(plan: LoadPlan, results: LoadResults) -> dict[str, Any]:
    """Return all results; times are in seconds."""
    names = sorted(results.kinds.keys() - {ALL})
    shown = [*names, ALL] if len(names) > 1 else names
    services = {name: _of_service(results, name) for name in shown}
    lateness = quantiles(results.lateness)
    warnings = [
        f"{name}: {each['cached']} of {each['scored']} scores came from the cache, so their "
        "latencies are not those of new items."
        for name, each in services.items()
        if each["cached"] > each["scored"] / 10
    ]
    if (late := lateness["p99"] or 0.0) > _LATE_SECONDS:
        warnings.append(
            f"The generator was late: 1% of the requests were sent {late * 1000:.0f} ms or more "
            "after they were due, which is part of their latency. Use a machine with idle cores, "
            "or a lower --rate."
        )
    if results.interrupted:
        warnings.append("Interrupted: requests in flight were given up.")
    return {
        **asdict(plan),
        "sending_s": results.sending_s,
        "sent": len(results.lateness),
        "most_in_flight": results.most_in_flight,
        "interrupted": results.interrupted,
        "lateness_s": lateness,
        "warnings": warnings,
        "services": services,
    }


def _failures(plan: LoadPlan, services: Mapping[str, Any]) -> Iterator[str]:
    for name, each in services.items():
        p99, errors = each["latency_s"]["p99"], sum(each["errors"].values()) / each["due"]
        if plan.max_p99_s is not None and p99 is not None and p99 > plan.max_p99_s:
            yield f"{name}: p99 is {p99:.3g} s, above {plan.max_p99_s:g} s"
        if plan.max_errors is not None and errors > plan.max_errors:
            yield f"{name}: {errors:.2%} of the requests failed, above {plan.max_errors:.2%}"
    if not any(each["scored"] + each["abstained"] for each in services.values()):
        yield "no request was answered"


def _text(report: Mapping[str, Any]) -> str:
    counts = ("due", "scored", "cached", "abstained")
    rows, errors = [], []
    for name, each in report["services"].items():
        numbers = [*(each[count] for count in counts), sum(each["errors"].values())]
        times = [f"{1000 * (seconds or 0):,.4g}" for seconds in each["latency_s"].values()]
        rows.append([name, *(f"{number:,}" for number in numbers), *times])
        for kind, n in each["errors"].items() if name != ALL else ():
            errors.append(f"{name}: {n:,} x {kind}: {each['examples'][kind]}".rstrip(": "))
    lines = [table(("service", *counts, "errors", *_QUANTILES), rows, numbers=True)]
    lines.append("latency in milliseconds, from when a request was due")
    sent = report["sent"] / max(report["sending_s"], 1e-9)
    lines.append(
        f"{report['rate']:g} requests per second requested, {sent:.4g} sent; "
        f"{report['sending_s']:.1f} s; at most {report['most_in_flight']} in flight"
    )
    return "\n".join([*lines, *errors, *(f"Note: {each}" for each in report["warnings"])])
