"""Scores as HTML tables, for notebooks."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .score import Score

#: Rows of a table, and characters of a cell, at most.
_MAX_ROWS, _MAX_CHARACTERS = 100, 300
_COLUMNS = ("score", "status", "cause", "backend", "cached", "ms", "")


def scores_html(scores: Sequence["Score"]) -> str:
    """Return scores as a table. What a model or a policy wrote is escaped."""
    lines = [_row("th", _COLUMNS)]
    lines += [_row("td", _cells(score)) for score in scores[:_MAX_ROWS]]
    if len(scores) > _MAX_ROWS:
        lines.append(f"<caption>The first {_MAX_ROWS} of {len(scores):,}</caption>")
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _cells(score: "Score") -> list[str]:
    text = getattr(score, "model_output", "") if score.error is None else score.error.detail
    return [
        "" if score.score is None else f"{score.score:.4g}",
        score.status.value,
        str(score.cause or ""),
        score.backend,
        "yes" if score.cached else "no",
        f"{score.timing_ms.total:.1f}",
        text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…",
    ]
