"""`rewardfleet serve`: run one service."""

from functools import partial

import click

from rewardfleet.commands.options import CommandGroup
from rewardfleet_server.registry import SERVICES


class Services(CommandGroup):
    """`rewardfleet serve`. The modules of a service are imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(SERVICES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        entry = SERVICES.get(cmd_name)
        if entry is None:
            return None
        from rewardfleet_server.flags import ServiceCommand  # noqa: PLC0415 - needs the server's packages
        from rewardfleet_server.serve import serve  # noqa: PLC0415 - needs the server's packages

        settings_type = entry.load_settings()
        return ServiceCommand(cmd_name, entry.description, settings_type, partial(serve, entry))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Services"):
            formatter.write_dl([(name, entry.description) for name, entry in SERVICES.items()])


@click.group(cls=Services, name="serve", help="Run a service; `serve video --help` lists flags.")
def command() -> None:
    """Group the services."""
