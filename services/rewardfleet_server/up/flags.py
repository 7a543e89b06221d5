"""The flags that say where a fleet listens and who may use it. It imports little, as the CLI."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def network_flags(listener: str, *, has_keys: bool = True) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that adds the flags to a command.

    Args:
        listener: What listens, for the help, e.g. `the gateway`.
        has_keys: Whether it is given the API keys. Without them, it is given the names by which it
            may be addressed; with them, any name will do, or a file has the names.
    """
    keys = [
        click.option(
            "--api-key-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File of accepted API keys; required if --host is not a loopback address.",
        ),
        click.option(
            "--allow-unauthenticated",
            is_flag=True,
            default=None,
            help="Listen beyond loopback without API keys.",
        ),
    ]
    flags = [
        click.option(
            "--host", metavar="HOST", help=f"Address of {listener}.  [default: 127.0.0.1]"
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            metavar="PORT",
            help=f"Port of {listener}.  [default: 18000]",
        ),
    ]
    names = [
        click.option(
            "--allowed-host",
            multiple=True,
            metavar="NAME",
            callback=lambda _context, _parameter, names: list(names) or None,
            help=f"Name by which callers may address {listener} (`Host`), besides loopback names; "
            "may be repeated, and `*` is any.",
        ),
    ]
    flags += keys if has_keys else names

    def add(function: _FunctionT) -> _FunctionT:
        for flag in reversed(flags):
            function = flag(function)
        return function

    return add
