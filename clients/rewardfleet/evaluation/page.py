"""The page of a report: one HTML file without scripts, which needs no network.

What judges, labels and file names say is data: the template escapes all of it, and a content
security policy lets the page load and run nothing.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .frames import strip_of
from .labels import LabeledClip
from .report import Report

_TEMPLATE = Path(__file__).parent / "page.html"
#: Is replaced by the color of the text around a plot, which is dark or light.
_INK = "#123456"
_BAR = "#4c8dbf"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rewardfleet",
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "font.size": 9,
}


def render(report: Report, clips: Sequence[LabeledClip]) -> str:
    """Return the page of a report, with frames of the clips that were judged wrong."""
    import jinja2  # noqa: PLC0415 - optional

    by_row = {each.record["row"]: each for each in clips}
    strips = {
        each["row"]: strip_of(by_row[each["row"]].row, each["camera"])
        for each in report["mistakes"]
    }
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": _number,
        "interval": lambda each: "too few" if each is None else f"{each[0]:.2f} to {each[1]:.2f}",
        "share": lambda each: f"{each['count']} of {each['of']}" if each["of"] else "none",
    }
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        report=report,
        strips=strips,
        provenance=json.dumps(report["provenance"], indent=1),
        histograms={each["kind"]: _histogram(each["histogram"]) for each in report["kinds"]},
        reliability=_reliability(report["reliability"]["bins"]),
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _histogram(counts: Sequence[int]) -> Any:
    figure, axes = _figure(4.2, 0.9)
    axes.bar([(place + 0.5) / len(counts) for place in range(len(counts))], counts,
             width=0.9 / len(counts), color=_BAR)  # fmt: skip
    axes.set(xlim=(0, 1), yticks=[0, max(*counts, 1)])
    return _svg(figure)


def _reliability(bins: Sequence[Mapping[str, Any]]) -> Any:
    figure, axes = _figure(4.2, 3.2)
    axes.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle=":")
    x, y = [each["mean_score"] for each in bins], [each["successes"] for each in bins]
    axes.plot(x, y, color=_BAR)
    axes.scatter(x, y, s=[20 + 3 * min(100, each["clips"]) for each in bins], color=_BAR)
    axes.set(xlim=(0, 1), ylim=(-0.03, 1.03), xlabel="mean score", ylabel="share of successes")
    return _svg(figure)


def _figure(width: float, height: float) -> Any:
    """Return a figure and its axes, which need no display."""
    import matplotlib as mpl  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> Any:
    """Return a figure as an element of the page. It has no text that is data."""
    import matplotlib as mpl  # noqa: PLC0415 - optional
    from markupsafe import Markup  # noqa: PLC0415

    content = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = content.getvalue()
    return Markup(text[text.index("<svg") :].replace(_INK, "currentColor"))  # noqa: S704 - our own
