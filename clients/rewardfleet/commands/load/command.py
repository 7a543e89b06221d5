"""`rewardfleet load`: from the arguments to the report."""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rewardfleet.client import SERVICES
from rewardfleet.commands.options import API_KEY, AS_JSON, SERVICE_URLS, Number
from rewardfleet_server.serve import raise_descriptor_limit

from . import report
from .generator import LoadGenerator, Plan
from .html import as_html
from .requests import GeneratedRequests, RecordedRequests
from .results import Results
from .targets import find_services

_PROGRESS_SECONDS = 0.25
_INTERRUPTED = 130
#: Width of tables where the output is not a terminal.
_PLAIN_WIDTH = 200


@dataclass(frozen=True)
class Limits:
    """What makes a run fail.

    Attributes:
        p99_s: The highest p99 of any service in seconds; None for any.
        errors: The highest share of requests without an answer, of any service; None for any,
            unless no request at all is answered.
    """

    p99_s: float | None
    errors: float | None


@dataclass(frozen=True)
class Output:
    """Where results go.

    Attributes:
        html: File of the report; None for none.
        as_json: Print JSON instead of a table.
    """

    html: Path | None
    as_json: bool


def run_load(
    url: str | None,
    named: Sequence[str],
    plan: Plan,
    *,
    mix: str | None,
    requests: Path | None,
    api_key: str | None,
    limits: Limits,
    output: Output,
) -> int:
    """Send requests to a fleet and report latencies and failures.

    Args:
        url: That of a fleet or a service; None if all services are in `named`.
        named: Single services as `NAME=URL`.
        plan: When requests are sent.
        mix: How often each service gets a request, like `code=2,tools=1`; None for all services,
            equally often.
        requests: File with requests, which are sent instead.
        api_key: Sent as a bearer token.
        limits: What makes the run fail.
        output: Where results go.

    Returns:
        The exit status: 0, or 1 if a limit was exceeded, or 130 if the run was interrupted.

    Raises:
        ValueError: An argument is not valid, or no service answers.
        OSError: A file cannot be read or written.
    """
    key = (api_key or "").strip()
    if not (key.isascii() and (key.isprintable() or not key)):
        raise ValueError("the API key is not one line of plain ASCII")
    recorded = None if requests is None else RecordedRequests(requests)
    urls = asyncio.run(find_services(url, named, key))
    source = recorded or GeneratedRequests(_weights(mix, urls))
    if missing := source.services - urls.keys():
        raise ValueError(f"there is no service {', '.join(sorted(missing))} at that URL")
    if output.html is not None:
        output.html.touch()  # so that it does not fail after the run
    raise_descriptor_limit()  # a connection for each request in flight
    console = Console(stderr=True, highlight=False)
    generator = LoadGenerator(plan, source, {name: urls[name] for name in source.services}, key)
    asyncio.run(_run(generator, plan, console))
    results = generator.results
    failures = _failures(results, limits)
    _print(plan, results, failures, as_json=output.as_json)
    if output.html is not None:
        output.html.write_text(as_html(plan, results, failures, urls), encoding="utf-8")
        console.print(f"Report: {output.html}", markup=False)
    return _INTERRUPTED if results.interrupted else int(bool(failures))


def _weights(mix: str | None, urls: Mapping[str, str]) -> dict[str, float]:
    if mix is None:
        return dict.fromkeys(urls, 1.0)
    weights: dict[str, float] = {}
    for each in mix.split(","):
        name, separator, number = each.strip().partition("=")
        try:
            weight = float(number) if separator else 1.0
        except ValueError:
            weight = 0.0
        if name not in SERVICES or name in weights or not 0 < weight <= 1e6:
            known = ", ".join(SERVICES)
            raise ValueError(
                f"--mix {mix[:100]}: give NAME=N,NAME=N with N above 0; NAME is one of {known}"
            )
        weights[name] = weight
    return weights


async def _run(generator: LoadGenerator, plan: Plan, console: Console) -> None:
    """Run the generator, with progress. Ctrl-C and SIGTERM end it early."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, interrupted.set)
    progress = Progress(
        BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(),
        console=console, transient=True, auto_refresh=False, disable=not console.is_terminal,
    )  # fmt: skip
    try:
        with progress:
            bar = progress.add_task("", total=plan.duration_s)
            started = loop.time()
            running = asyncio.create_task(generator.run(interrupted))
            while not running.done():
                await asyncio.wait([running], timeout=_PROGRESS_SECONDS)
                seconds = min(loop.time() - started, plan.duration_s)
                progress.update(bar, completed=seconds, description=_description(generator))
                progress.refresh()
            running.result()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _description(generator: LoadGenerator) -> str:
    total = generator.results.total
    latencies = [report.milliseconds(total.latencies.quantile(q)) for q in (0.5, 0.99)]
    return (
        f"{total.due:,} due, {generator.in_flight:,} in flight, {total.errors.total():,} errors, "
        f"p50 {latencies[0] or '-'} ms, p99 {latencies[1] or '-'} ms"
    )


def _failures(results: Results, limits: Limits) -> list[str]:
    """Return why the run has failed; empty if it has not."""
    found = []
    for name, tally in sorted(results.services.items()):
        p99, errors = tally.latencies.quantile(0.99), tally.errors.total() / tally.due
        if limits.p99_s is not None and p99 is not None and p99 > limits.p99_s:
            found.append(f"{name}: p99 is {p99:.3g} s, above {limits.p99_s:g} s")
        if limits.errors is not None and errors > limits.errors:
            found.append(f"{name}: {errors:.2%} of the requests failed, above {limits.errors:.2%}")
    if not results.total.scored + results.total.abstained:
        found.append("no request was answered")
    return found


def _print(plan: Plan, results: Results, failures: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(report.as_json(plan, results))
    else:
        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        console = Console(highlight=False, soft_wrap=True, width=width)
        console.print(report.table(results))
        console.print(report.rates(plan, results))
        for service, kind, count, example in report.error_rows(results):
            console.print(escape(f"{service}: {count} x {kind}{example and f': {example}'}"))
        for each in report.warnings(plan, results):
            console.print(f"[yellow]Note:[/yellow] {escape(each)}")
    for each in failures:
        click.echo(f"failed: {each}", err=True)


@click.command(
    name="load",
    help="Send requests to a fleet or a service at a given rate, whatever it answers, and report "
    "latencies and failures. Nothing is retried. URL is that of a fleet or of a single service.  "
    "[env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@click.argument("url", required=False, envvar="REWARDFLEET_URL")
@SERVICE_URLS
@click.option(
    "--rate",
    type=Number(),
    default=10.0,
    show_default=True,
    metavar="N",
    help="Requests per second on average, to all services together.",
)
@click.option(
    "--duration-s",
    type=Number(),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long requests are sent.",
)
@click.option(
    "--mix",
    metavar="NAME=N,…",
    help="How often each service gets a request, e.g. code=2,tools=1.  "
    "[default: all services, equally often]",
)
@click.option(
    "--requests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to send instead of generated ones, in turn: JSON lines with `service`, `body`, "
    "and optionally `path` and the right `score`.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="poisson: independent of each other, as from many callers. constant: evenly spaced.",
)
@click.option(
    "--timeout-s",
    type=Number(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="When a request is given up.",
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Requests beyond this many unanswered ones are not sent, and count as failed. Limits "
    "memory.",
)
@click.option(
    "--max-p99-s",
    type=Number(),
    metavar="SECONDS",
    help="Exit with 1 if the p99 of a service is above.",
)
@click.option(
    "--max-errors",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Exit with 1 if a larger share of the requests to a service fails, e.g. 0.01.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with charts to this file.",
)
@AS_JSON
@API_KEY
def command(
    url: str | None,
    services: tuple[str, ...],
    rate: float,
    duration_s: float,
    mix: str | None,
    requests: Path | None,
    arrivals: Literal["poisson", "constant"],
    timeout_s: float,
    max_in_flight: int,
    max_p99_s: float | None,
    max_errors: float | None,
    html: Path | None,
    as_json: bool,
    api_key: str | None,
) -> int:
    """Put load on a fleet; return 1 if a limit is exceeded, 130 if it was interrupted."""
    if mix is not None and requests is not None:
        raise click.UsageError("--mix goes with generated requests, not with --requests")
    source = click.get_current_context().get_parameter_source("url")
    if services and source is not ParameterSource.COMMANDLINE:
        url = None
    elif url is None:
        url = "http://127.0.0.1:18000"
    return run_load(
        url,
        services,
        Plan(rate, duration_s, arrivals, timeout_s, max_in_flight),
        mix=mix,
        requests=requests,
        api_key=api_key,
        limits=Limits(max_p99_s, max_errors),
        output=Output(html, as_json),
    )
