"""Groups of commands. Importing them takes little, as every command does first."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem


class CommandGroup(click.Group):
    """A group of commands; a typo suggests one of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            near = difflib.get_close_matches(args[0], names, 1)
            hint = f"\ndid you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
            raise click.UsageError(f"no such command: {args[0]}{hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """A group whose commands are imported when they are named.

    Args:
        what: What the commands are, as the heading of their list.
        commands_by_name: What returns each command, and what it does.
    """

    def __init__(
        self,
        *,
        what: str = "Commands",
        commands_by_name: Mapping[str, tuple[Callable[[], click.Command], str]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._what = what
        self._commands_by_name = commands_by_name

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(self._commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_by_name:
            return None
        try:
            return self._commands_by_name[cmd_name][0]()
        except ImportError:
            if ctx.resilient_parsing:  # a shell completes: nobody reads what is missing
                return None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section(self._what):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands_by_name.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # As click does, which would import all commands.
        named = [
            CompletionItem(name, help=text)
            for name, (_, text) in self._commands_by_name.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]
