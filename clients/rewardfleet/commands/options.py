"""What the commands have in common: types of options, options of several commands, tables."""

import dataclasses
import functools
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from rewardfleet.http.index import base_url, printable

T = TypeVar("T")


def _no_nan(_context: Any, option: click.Parameter, value: Any) -> Any:
    if value != value:  # noqa: PLR0124 - NaN
        raise click.BadParameter("give a number", param=option)
    return value


def grouped(**records: type) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Pass options in records, each of which takes the options that its fields are named after.

    A field that the command has no option for has its default.

    Args:
        records: Dataclasses, by the names of the command's arguments.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def call(**given: Any) -> T:
            for name, record in records.items():
                fields = [each.name for each in dataclasses.fields(record)]
                given[name] = record(**{each: given.pop(each) for each in fields if each in given})
            return function(**given)

        return call

    return decorate


def number(
    flag: str, metavar: str, help_text: str, default: float | None = None, *, of: Any = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return an option that is a number.

    Args:
        of: Its click type. Without one, it is above 0 and at most 1,000,000.
    """
    return click.option(
        flag,
        type=of or click.FloatRange(0, 1e6, min_open=True),
        callback=_no_nan,
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=help_text,
    )


def path_option(
    flag: str, metavar: str, help_text: str, *names: str, **more: Any
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return an option that is the path of a file, or of a folder if `metavar` says so.

    Args:
        names: Its other spellings, or the name of its argument.
        more: Arguments of `click.option`.
    """
    is_folder = metavar == "FOLDER"
    kind = click.Path(path_type=Path, file_okay=not is_folder, dir_okay=is_folder)
    return click.option(flag, *names, type=kind, metavar=metavar, help=help_text, **more)


def output_option(help_text: str, **more: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return the option with the folder of an output; see `path_option`."""
    return path_option("-o", "FOLDER", help_text, "--output", **more)


def set_option(help_text: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return the option with fields of all requests."""
    return click.option("--set", "set_field", multiple=True, metavar="FIELD=JSON", help=help_text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a table as text; if the terminal is too narrow for it, each row as a list.

    Args:
        rows: One cell for each column, without control characters in the output.
        numbers: Whether all columns except the first one are aligned to the right.
    """
    lines = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    # Output that is not for a terminal has no width, unless COLUMNS says so.
    if sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size((sys.maxsize, 0)).columns:
        longest = max(map(len, columns))
        return "\n\n".join(
            "\n".join(
                f"{name:{longest}}  {cell}" for name, cell in zip(columns, row, strict=True) if cell
            )
            for row in lines[1:]
        )
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


#: A share, or a score.
SHARE = click.FloatRange(0, 1)
_DEFAULT_URL = "http://127.0.0.1:18000"

# Options of several commands.


def one_url(help_text: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return the option with the URL of one fleet or service."""
    return click.option(
        "--url",
        envvar="REWARDFLEET_URL",
        default=_DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help=help_text,
    )


URLS = click.argument(
    "urls",
    nargs=-1,
    metavar="[URL]...",
    envvar="REWARDFLEET_URL",
    callback=lambda _context, _parameter, urls: [*map(base_url, urls or (_DEFAULT_URL,))],
)
TIMEOUT = number("--timeout", "SECONDS", "Most seconds to wait for the score.", 120.0)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
