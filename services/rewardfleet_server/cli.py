"""The `rewardfleet` command."""

import asyncio
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

import rewardfleet

from .extras import install_command
from .registry import SERVICES

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    try:
        status = command.main(argv, prog_name="rewardfleet", standalone_mode=False)
    except click.NoSuchOption as error:
        near = f"\ndid you mean {error.possibilities[0]}?" if error.possibilities else ""
        return _fail(f"no such option: {error.option_name}{near}")
    except click.ClickException as error:
        return _fail(error.format_message())
    except click.Abort:
        return 130
    except rewardfleet.RewardFleetError as error:
        return _fail(error.detail)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        return _fail(str(error))
    return int(status or 0)


def _fail(reason: str) -> int:
    print(f"rewardfleet: {reason}", file=sys.stderr)
    return 2


class _Group(click.Group):
    """A group of commands; a typo suggests one of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            raise click.UsageError(f"no such command: {args[0]}{_suggest(args[0], names)}")
        return super().resolve_command(ctx, args)


class _Services(_Group):
    """`rewardfleet serve`. The modules of a service are imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(SERVICES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        entry = SERVICES.get(cmd_name)
        if entry is None:
            return None

        def load() -> click.Command:
            from .flags import ServiceCommand  # noqa: PLC0415 - needs the server's packages
            from .serve import serve  # noqa: PLC0415 - likewise

            settings_type = entry.load_settings()
            return ServiceCommand(cmd_name, entry.description, settings_type, partial(serve, entry))

        return _with_server(load)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Services"):
            formatter.write_dl([(name, entry.description) for name, entry in SERVICES.items()])


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"\ndid you mean {near[0]}?" if near else ""


def _with_server(work: Callable[[], T]) -> T:
    """Do what needs the server's packages, or say how to install them."""
    try:
        return work()
    except ModuleNotFoundError as error:
        command_line = install_command("server")
        raise click.ClickException(
            f"the package {error.name} is not installed; install the server's packages: "
            f"{command_line}"
        ) from None


@click.group(cls=_Group, help="Rewards for reinforcement learning over HTTP.")
@click.version_option(rewardfleet.__version__, message="rewardfleet %(version)s")
def command() -> None:
    pass


@command.group(cls=_Services, name="serve", help="Run a service; `serve video --help` lists flags.")
def serve_group() -> None:
    pass


@command.group(cls=_Group, name="score", help="Score one item with a running service.")
def score_group() -> None:
    pass


@score_group.command(name="video", help="Send the video file CLIP; print the response as JSON.")
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--url",
    default="http://127.0.0.1:18080",
    envvar="REWARDFLEET_VIDEO_URL",
    show_default=True,
    show_envvar=True,
    help="Base URL of the video service.",
)
@click.option("--api-key", envvar="REWARDFLEET_API_KEY", hidden=True)
@click.option("--nframes", default=16, show_default=True, help="Frames that the judge sees, 1-128.")
@click.option("--backend", metavar="JUDGE", help="Judge.  [default: the service's]")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds to wait.")
def score_video(
    clip: Path,
    task: str,
    url: str,
    api_key: str | None,
    nframes: int,
    backend: str | None,
    timeout: float,
) -> int:
    async def score() -> rewardfleet.VideoScore:
        # The content is sent: the service need not see this machine's files.
        content = await asyncio.to_thread(clip.read_bytes)
        async with rewardfleet.RewardFleet(video=url, api_key=api_key, timeout_s=timeout) as fleet:
            return await fleet.video.score(task, content, nframes=nframes, backend=backend)

    result = asyncio.run(score())
    print(result.model_dump_json(indent=2))
    return 0 if result.score is not None else 3


@command.group(cls=_Group, name="references", help="The library of the judge `reference`.")
def references_group() -> None:
    pass


@references_group.command(name="add", help="Add the labeled video file CLIP to the folder LIBRARY.")
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--success/--failure", default=None, help="Whether the task was done at the end; required."
)
@click.option("--success-frame", type=int, metavar="N", help="First frame that shows the success.")
def add_reference(
    library: Path, clip: Path, task: str, success: bool | None, success_frame: int | None
) -> None:
    if success is None:
        raise click.UsageError("give --success or --failure")

    def add() -> str:
        from .video.references.library import add_reference as add_to  # noqa: PLC0415 - needs the server's packages

        return add_to(library, clip, task, success=success, success_frame=success_frame).file

    file = _with_server(add)
    print(f"{library}: added {file} as a {'success' if success else 'failure'}")


@command.command(name="doctor", help="Report what works on this machine, and how to fix the rest.")
def doctor_command() -> int:
    def run() -> int:
        from .doctor import run_doctor  # noqa: PLC0415 - needs the server's packages

        return run_doctor()

    return _with_server(run)
