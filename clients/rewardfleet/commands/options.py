"""What the commands have in common: types of options, and options of several commands."""

import difflib
import importlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import click


class Number(click.FloatRange):
    """A number of seconds or items: above 0, or 0 or more; at most 1,000,000."""

    def __init__(self, *, above_zero: bool = True) -> None:
        super().__init__(min=0, min_open=above_zero, max=1e6)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("give a number", param, ctx)
        return number


class Group(click.Group):
    """A group of commands; a typo suggests one of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            raise click.UsageError(f"no such command: {args[0]}{suggest(args[0], names)}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands are imported when they are named.

    Args:
        commands_by_name: Where a command is, as `module:attribute`, and what it does.
    """

    def __init__(self, *, commands_by_name: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._targets = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(self._targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in self._targets:
            return None
        found: click.Command = load_attribute(self._targets[cmd_name][0])
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._targets.items()])


def load_attribute(target: str) -> Any:
    """Import the object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a line with the known word that is nearest; "" if none is near."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"\ndid you mean {near[0]}?" if near else ""


# Options of several commands.
SERVICE_URLS = click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME=URL",
    help="Single service, e.g. video=http://127.0.0.1:18080.",
)
API_KEY = click.option("--api-key", envvar="REWARDFLEET_API_KEY", hidden=True)
TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the score.",
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
