"""The parts of a story, and how a terminal shows them: as lines without control characters.

A part is a line, a `Text` or a `Table`. A terminal shows the first and last lines of a text, and of
a table what was told of it; the page of `rewardfleet look` shows all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

#: Characters of a value and of a line, and lines of a text and of a value, that are shown.
_MAX_VALUE, _MAX_LINE, _MAX_LINES, _MAX_VALUE_LINES = 400, 1000, 12, 3


class Text(NamedTuple):
    """What a policy, a judge or a data set wrote."""

    title: str
    text: str
    taken: str = ""  #: the part of it that was scored, if that is known


class Table(NamedTuple):
    """What came of each test or call. None is a value that is not known."""

    title: str
    rows: Iterable[Mapping[str, str | None]]  #: made as they are read, as a terminal needs none
    told: Mapping[str, str | None] = {}  #: what a terminal shows


Part: TypeAlias = str | Text | Table


def lines_of(part: Part) -> Iterator[str]:
    """Yield a part as lines for a terminal."""
    match part:
        case Text(title, text, taken):
            yield from () if taken else (f"{title}:",)
            yield from _block(taken or text)
        case Table(_, _, told):
            for name, value in told.items():
                if value is not None and value.count("\n") > _MAX_VALUE_LINES:
                    yield f"  {name}:"
                    yield from (f"  {line}" for line in _block(value))
                elif value is not None:
                    yield f"  {name + ':':16} {quoted(value)}"
        case _:
            yield part


def escaped(text: str, limit: int) -> str:
    """Return a text that a policy wrote on one line, with its control characters as escapes."""
    shown = text[:limit]
    if not shown.isprintable():
        parts = (each if each.isprintable() else ascii(each)[1:-1] for each in shown)
        shown = "".join(parts)
    return f"{shown}…" if len(text) > limit else shown


def quoted(text: str) -> str:
    """Return a text in quotation marks on one line."""
    return f'"{escaped(text, _MAX_VALUE)}"'


def number(value: float | str) -> str:
    """Return a number with at most six digits; a text, as some details are, as it is."""
    return value if isinstance(value, str) else f"{value:.6g}"


def _block(text: str) -> Iterator[str]:
    """Yield the lines of a text, of a long one the first and the last ones."""
    lines = text.strip("\n").split("\n")
    half = _MAX_LINES // 2
    if len(lines) > 2 * half:
        lines[half:-half] = [f"… {len(lines) - 2 * half} lines …"]
    yield from (f"  | {escaped(line, _MAX_LINE)}" for line in lines)
