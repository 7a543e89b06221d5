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
_PORT = click.IntRange(0, 65535)


def network_flags(
    listener: str, *, port: int = 18000, has_keys: bool = True
) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that adds the flags to a command; its help says what listens."""
    host = f"Address of {listener}.  [default: 127.0.0.1]"
    port_help = f"Port of {listener}.  [default: {port}]"

    def add(function: _FunctionT) -> _FunctionT:
        function = _KEYS(function) if has_keys else function
        function = click.option("--port", type=_PORT, metavar="PORT", help=port_help)(function)
        return click.option("--host", metavar="HOST", help=host)(function)

    return add
