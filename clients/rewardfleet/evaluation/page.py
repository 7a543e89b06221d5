"""The pages of reports: one HTML file each without scripts, which needs no network.

What judges, labels and file names say is data: the template escapes all of it, and a content
security policy lets the page load and run nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .frames import strip_of
from .labels import LabeledClip
from .report import Report

_FOLDER = Path(__file__).parent


def render(report: Report, clips: Sequence[LabeledClip]) -> str:
    """Return the page of a report, with frames of the clips that were judged wrong."""
    by_row = {each.record["row"]: each for each in clips}
    strips = {
        each["row"]: strip_of(by_row[each["row"]].row, each["camera"])
        for each in report["mistakes"]
    }
    provenance = json.dumps(report["provenance"], indent=1)
    return page(_FOLDER / "page.html", report=report, strips=strips, provenance=provenance)


def page(template: Path, **values: Any) -> str:
    """Return the page of a template, which extends `base.html`."""
    import jinja2  # noqa: PLC0415 - optional

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _FOLDER]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "interval": lambda each: "too few" if each is None else f"{each[0]:.2f} to {each[1]:.2f}",
        "share": lambda each: f"{each['count']} of {each['of']}" if each["of"] else "none",
    }
    return environment.get_template(template.name).render(values)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
