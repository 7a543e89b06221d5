"""The flags that say where a fleet listens and who may use it. It imports little, as the CLI."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])

_KEYS = click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of accepted API keys; required if --host is not a loopback address.",
)


def network_flags(
    listener: str, *, port: int = 18000, has_keys: bool = True
) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that adds the flags to a command.

    Args:
        listener: What listens, for the help, e.g. `the gateway`.
        port: The default of `--port`, for the help.
        has_keys: Whether it is given the API keys.
    """
    host = f"Address of {listener}.  [default: 127.0.0.1]"
    port_help = f"Port of {listener}.  [default: {port}]"

    def add(function: _FunctionT) -> _FunctionT:
        function = _KEYS(function) if has_keys else function
        number = click.IntRange(0, 65535)
        function = click.option("--port", type=number, metavar="PORT", help=port_help)(function)
        return click.option("--host", metavar="HOST", help=host)(function)

    return add
