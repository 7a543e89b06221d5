"""Texts of policies, judges and tests as lines without control characters."""

from collections.abc import Iterator

from rewardfleet.commands.options import escaped

#: Characters of a value and of a line, and lines of a text, that are shown.
_MAX_VALUE, _MAX_LINE, _MAX_LINES = 400, 1000, 12


def quoted(text: str) -> str:
    """Return a text in quotation marks on one line."""
    return f'"{escaped(text, _MAX_VALUE)}"'


def number(value: float | str) -> str:
    """Return a number with at most six digits; a text, as some details are, as it is."""
    return value if isinstance(value, str) else f"{value:.6g}"


def block(text: str) -> Iterator[str]:
    """Yield the lines of a text, of a long one the first and the last ones."""
    lines = text.split("\n")
    half = _MAX_LINES // 2
    left_out = len(lines) - 2 * half
    if left_out > 0:
        lines = [*lines[:half], *lines[-half:]]
    for index, line in enumerate(lines):
        if left_out > 0 and index == half:
            yield f"  … {left_out} lines …"
        yield f"  | {escaped(line, _MAX_LINE)}"
