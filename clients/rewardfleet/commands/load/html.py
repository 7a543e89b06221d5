"""The results as one HTML file without scripts, which refers to no other file or server."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from rewardfleet import __version__
from rewardfleet_server.settings import redact

from . import report
from .generator import Plan
from .latency import Latencies
from .results import Results

#: Size of a chart in units of its coordinates, and its margins: left, top, right, bottom.
_WIDTH, _HEIGHT = 560, 250
_LEFT, _TOP, _RIGHT, _BOTTOM = 58, 12, 22, 40
#: How many buckets of 2 % are joined into one bar.
_BAR_BUCKETS = 5
#: The quantiles of the curves.
_CURVE = [*(each / 100 for each in range(1, 100)), 0.995, 0.999, 0.9995, 0.9999]
_QUANTILE_TICKS = {0.5: "50 %", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}

_STYLE = """
:root { --ink: #1b1f24; --dim: #57606a; --line: #d0d7de; --page: #fff; --panel: #f6f8fa;
  --bar: #4c8bc4; --bad: #c62828; --c0: #0072b2; --c1: #d55e00; --c2: #00876c; --c3: #a8518a;
  --c4: #444; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9aa4af; --line: #3a424b;
  --page: #14181d; --panel: #1c2128; --bar: #5b9bd5; --bad: #ff7b72; --c0: #58a6e8; --c1: #ff9b57;
  --c2: #3fc7a5; --c3: #d98cc0; --c4: #ccc; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0 0 .4rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); }
.bad { color: var(--bad); font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem 1rem; } .tile b { display: block; font-size: 1.4rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr));
  gap: 1.2rem; margin: 1.2rem 0; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; }
.wide { grid-column: 1 / -1; } svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
.grid { stroke: var(--line); stroke-width: 1; } .curve { fill: none; stroke-width: 2; }
.bar { fill: var(--bar); } .error { fill: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .4rem 0 1.4rem; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: var(--dim); font-weight: 600; } .text { text-align: left; }
td.long { white-space: normal; text-align: left; min-width: 20rem; }
.legend span { margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: 1rem; height: .2rem; vertical-align: middle;
  margin-right: .35rem; }
"""


_EXPLANATION = (
    "Latency in milliseconds, from when a request was due, whether or not it was sent then, until "
    "it was answered. Requests without an answer in time count with the time that was waited; "
    "other failures are not part of it. Nothing was retried."
)


def as_html(plan: Plan, results: Results, failures: Sequence[str], urls: Mapping[str, str]) -> str:
    """Return the report.

    Args:
        plan: What was to be sent.
        results: The results.
        failures: Why the run has failed.
        urls: The base URL of each service.
    """
    total = results.total
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    targets = ", ".join(redact(urls[name]) for name in sorted(results.services) if name in urls)
    curves = {name: tally.latencies for name, tally in report.rows(results)}
    notes = [f'<p class="bad">Failed: {escape(each)}</p>' for each in failures]
    notes += [f"<p>Note: {escape(each)}</p>" for each in report.warnings(plan, results)]
    tiles = {
        "requests answered": f"{total.scored + total.abstained:,}",
        "failed": f"{total.errors.total():,}",
        "ms p50": report.milliseconds(total.latencies.quantile(0.5)) or "-",
        "ms p99": report.milliseconds(total.latencies.quantile(0.99)) or "-",
        "ms p99.9": report.milliseconds(total.latencies.quantile(0.999)) or "-",
        "answered per second": (
            f"{(total.scored + total.abstained) / max(results.sending_s, 1e-9):.4g}"
        ),
    }
    errors = report.error_rows(results)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>rewardfleet load, {when}</title><style>{_STYLE}</style></head><body>",
            f"<h1>rewardfleet load</h1><p>{escape(report.rates(plan, results))}</p>",
            f'<p class="dim">{when}; {escape(targets)}; rewardfleet {__version__}</p>',
            *notes,
            '<div class="tiles">',
            *(f'<div class="tile"><b>{text}</b>{name}</div>' for name, text in tiles.items()),
            "</div>",
            _table(["service", *report.COLUMNS], [
                [name, *report.cells(tally)] for name, tally in report.rows(results)
            ]),
            f'<p class="dim">{_EXPLANATION}</p>',
            '<div class="charts">',
            _figure("Latency by percentile", _percentiles(curves), curves),
            _figure("Histogram of latency", _histogram(total.latencies)),
            _figure("Latency over time", _over_time(results), ["p50", "p99"], "wide"),
            "</div>",
            *(["<h2>Failures</h2>", _table(["service", "kind", "requests", "example"], errors)]
              if errors else []),
            "</body></html>\n",
        ]
    )  # fmt: skip


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    texts = {"service", "kind"}

    def cell(column: str, text: str) -> str:
        kind = "text" if column in texts else "long" if column == "example" else ""
        return f'<td class="{kind}">{escape(text)}</td>'

    head = "".join(
        f'<th class="{"text" if name in {*texts, "example"} else ""}">{name}</th>'
        for name in columns
    )
    body = "".join(
        f"<tr>{''.join(cell(*each) for each in zip(columns, row, strict=True))}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _figure(title: str, svg: str, names: Iterable[str] = (), kind: str = "") -> str:
    legend = "".join(
        f'<span><i style="background: var(--c{place})"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    )
    return (
        f'<figure class="{kind}"><h2>{title}</h2><div class="legend dim">{legend}</div>{svg}'
        "</figure>"
    )


class _Axis(NamedTuple):
    """A linear or logarithmic axis: values from `low` to `high`, at places from `start` to `end`.

    Attributes:
        ticks: The text of each marked value.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Mapping[float, str]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the place of a value, within the chart."""
        low, high = (math.log(self.low), math.log(self.high)) if self.is_log else self[:2]
        share = ((math.log(value) if self.is_log else value) - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def _latency_axis(values: Sequence[float], start: float, end: float) -> _Axis:
    """Return a logarithmic axis that contains all values."""
    low, high = max(min(values, default=0.001) * 0.8, 1e-5), max(values, default=1.0) * 1.25
    ratio = high / low
    fine = [1, 2, 5] if ratio > 4 else [1, 1.5, 2, 3, 4, 5, 7]
    steps = [1] if ratio > 1e4 else [1, 3] if ratio > 300 else fine
    marked = [step * 10.0**power for power in range(-6, 5) for step in steps]
    ticks = {each: _duration(each) for each in marked if low <= each <= high}
    return _Axis(low, high, start, end, ticks, is_log=True)


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _vertical(values: Sequence[float]) -> _Axis:
    return _latency_axis(values, _HEIGHT - _BOTTOM, _TOP)


def _chart(x: _Axis, y: _Axis, x_name: str, marks: Iterable[str], width: int = _WIDTH) -> str:
    """Return a chart: its grid, the names of its axes, and its marks."""
    right, bottom = width - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y.place(v):.1f}" '
        f'y2="{y.place(v):.1f}"/><text x="{_LEFT - 6}" y="{y.place(v) + 4:.1f}" '
        f'text-anchor="end">{text}</text>'
        for v, text in y.ticks.items()
    ]
    parts += [
        f'<line class="grid" x1="{x.place(v):.1f}" x2="{x.place(v):.1f}" y1="{_TOP}" '
        f'y2="{bottom}"/><text x="{x.place(v):.1f}" y="{bottom + 15}" '
        f'text-anchor="middle">{text}</text>'
        for v, text in x.ticks.items()
    ]
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{x_name}</text>'
    )
    body = "".join([*parts, *marks])
    return f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img">{body}</svg>'


def _curve(points: Iterable[tuple[float, float]], color: int) -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="curve" style="stroke: var(--c{color})" points="{text}"/>'


def _percentiles(curves: Mapping[str, Latencies]) -> str:
    """Return the latency that each share of the requests does not exceed."""
    most = max((each.count for each in curves.values()), default=0)
    shown = [q for q in _CURVE if q <= 0.99 or most * (1 - q) >= 1]
    found = {
        name: [(q, each.quantile(q) or 0.0) for q in shown if q <= 0.9 or each.count * (1 - q) >= 1]
        for name, each in curves.items()
        if each.count
    }
    # Equal distances for 90 %, 99 %, 99.9 %: the axis is that of 1 / (1 - q).
    ticks = {1 / (1 - q): text for q, text in _QUANTILE_TICKS.items() if q <= shown[-1] + 1e-9}
    x = _Axis(1.0, 1 / (1 - shown[-1]), _LEFT, _WIDTH - _RIGHT, {1.0: "0 %", **ticks}, is_log=True)
    y = _vertical([value for points in found.values() for _, value in points])
    marks = [
        _curve(((x.place(1 / (1 - q)), y.place(value)) for q, value in points), color)
        for color, (_, points) in enumerate(found.items())
    ]
    return _chart(x, y, "percentile", marks)


def _histogram(latencies: Latencies) -> str:
    """Return how many requests took how long."""
    bars = latencies.histogram(_BAR_BUCKETS)
    edges = [edge for start, end, _ in bars for edge in (start, end)]
    x = _latency_axis(edges, _LEFT, _WIDTH - _RIGHT)
    y = _count_axis(max((count for _, _, count in bars), default=1))
    marks = [
        f'<rect class="bar" x="{x.place(start):.1f}" y="{y.place(count):.1f}" '
        f'width="{max(x.place(end) - x.place(start) - 0.5, 0.5):.1f}" '
        f'height="{y.place(0) - y.place(count):.1f}"><title>{report.milliseconds(start)} to '
        f"{report.milliseconds(end)} ms: {count:,} requests</title></rect>"
        for start, end, count in bars
        if count
    ]
    return _chart(x, y, "latency; the height is the number of requests", marks)


def _count_axis(most: int) -> _Axis:
    step = 10 ** math.floor(math.log10(max(most, 1)))
    step = next((each for each in (step / 4, step / 2, step) if most / each <= 5), step * 2)
    step = max(step, 1)
    ticks = {each * step: f"{each * step:,.0f}" for each in range(int(most / step) + 1)}
    return _Axis(0.0, most * 1.05, _HEIGHT - _BOTTOM, _TOP, ticks)


def _over_time(results: Results) -> str:
    """Return p50 and p99 of the requests that were due in each span of time, and failures."""
    width = 2 * _WIDTH + 40
    spans = [
        (place * results.window_s, each) for place, each in enumerate(results.windows) if each.due
    ]
    end = max(len(results.windows) * results.window_s, 1.0)
    step = next(
        step * 10**power
        for power in range(6)
        for step in (1, 2, 5)
        if end / (step * 10**power) <= 12
    )
    ticks = {float(each): f"{each}" for each in range(0, int(end) + 1, step)}
    x = _Axis(0.0, end, _LEFT, width - _RIGHT, ticks)
    lines = [
        [(start, value) for start, each in spans if (value := each.latencies.quantile(q))]
        for q in (0.5, 0.99)
    ]
    y = _vertical([value for points in lines for _, value in points])
    half = results.window_s / 2
    most = max((each.errors for _, each in spans), default=0)
    bottom = _HEIGHT - _BOTTOM
    marks = [
        f'<rect class="error" x="{x.place(start):.1f}" '
        f'y="{bottom - 60 * each.errors / most:.1f}" '
        f'width="{max(x.place(start + results.window_s) - x.place(start) - 1, 1):.1f}" '
        f'height="{60 * each.errors / most:.1f}"><title>{each.errors:,} of {each.due:,} requests '
        "failed</title></rect>"
        for start, each in spans
        if each.errors
    ]
    marks += [
        _curve(((x.place(start + half), y.place(value)) for start, value in points), color)
        for color, points in enumerate(lines)
    ]
    name = "seconds after the start"
    name += f"; red: failed requests, at most {most:,} in {results.window_s:g} s" if most else ""
    return _chart(x, y, name, marks, width)
