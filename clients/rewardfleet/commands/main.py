"""The `rewardfleet` command: its subcommands, and what it prints if one fails."""

import sys
from collections.abc import Sequence

import click

import rewardfleet
from rewardfleet.lazy import Lazy
from rewardfleet.wire.optional_imports import install_command
from rewardfleet_command import INTERRUPTED

from .groups import LazyGroup

_OWN_PACKAGES = {"rewardfleet", "rewardfleet_server"}

_CLIENT, _SERVER = "rewardfleet.commands", "rewardfleet_server.commands"
#: The subcommands: the packages with their modules, and what they do.
_COMMANDS = {
    "demo": (_SERVER, "Start all services, and score rollouts of robots."),
    "serve": (_SERVER, "Run a service."),
    "up": (_SERVER, "Run all services on this machine, below one address."),
    "gateway": (_SERVER, "Run one address for services that run elsewhere."),
    "status": (_CLIENT, "Show the replicas of a fleet."),
    "load": (_CLIENT, "Send requests at a given rate."),
    "score": (_CLIENT, "Score clips, programs, answers or episodes."),
    "lint": (_CLIENT, "Find rows of data sets that pay wrong answers."),
    "explain": (_CLIENT, "Tell why a score is what it is."),
    "report": (_CLIENT, "Report what happened in a run, from its score log."),
    "log": (_CLIENT, "List, count and delete what a score log has."),
    "run-state": (_CLIENT, "Delete what services store of a training run."),
    "look": (_SERVER, "Show a page of what was scored."),
    "eval": (_CLIENT, "Measure how good a judge is, on labeled clips."),
    "calibrate": (_CLIENT, "Calibrate a judge on labeled clips."),
    "harbor": (_CLIENT, "Write the reward of a Harbor task."),
    "judges": (_SERVER, "List the judges of the video service, and their options."),
    "references": (_SERVER, "Show or change the library of the judge `reference`."),
    "packages": (_SERVER, "Install packages that scored programs can import."),
    "doctor": (_CLIENT, "Report what works on this machine, and how to fix the rest."),
}


@click.group(
    cls=LazyGroup,
    commands_by_name={
        name: (Lazy(f"{package}.{name.replace('-', '_')}:command").load, what)
        for name, (package, what) in _COMMANDS.items()
    },
    help="Rewards for reinforcement learning over HTTP.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(rewardfleet.__version__, "-V", "--version", message="rewardfleet %(version)s")
def command() -> None:
    """Group all commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        Its exit status: 0 for success, 1 for what a command reports, e.g. a replica that is not
        ready, 2 if it failed, e.g. because of invalid arguments or a service that cannot be
        reached, 3 if the judge abstained, 130 if it was interrupted.
    """
    try:
        status = command.main(argv, prog_name="rewardfleet", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.NoSuchOption as error:
        near = f"\ndid you mean {error.possibilities[0]}?" if error.possibilities else ""
        return _fail(f"no such option: {error.option_name}{near}")
    except click.UsageError as error:
        is_wrong_value = type(error) is click.BadParameter  # not one that is missing
        usage = "" if is_wrong_value or error.ctx is None else f"\n{error.ctx.get_usage()}"
        return _fail(f"{error.format_message()}{usage}")
    except click.ClickException as error:
        return _fail(error.format_message())
    except click.Abort:
        return INTERRUPTED
    except rewardfleet.Unauthorized as error:
        return _fail(f"{error.detail}; commands send REWARDFLEET_API_KEY")
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (rewardfleet.RewardFleetError, ValueError) as error:
        return _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN_PACKAGES:
            raise  # an internal error
        return _fail(
            f"the package {error.name} is not installed; install the packages of the server: "
            f"{install_command('server')}"
        )
    return int(status or 0)


def _fail(reason: str) -> int:
    print(f"rewardfleet: {reason}", file=sys.stderr)
    return 2
