"""The `rewardfleet` command."""

import asyncio
import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource

import rewardfleet
import rewardfleet.blocking

from . import harbor
from .extras import install_command
from .fleet.flags import network_flags
from .registry import SERVICES

_OWN_PACKAGES = {"rewardfleet", "rewardfleet_server"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        Its exit status: 0 for success, 2 for invalid arguments or settings, 3 if a clip got no
        score, 130 if it was interrupted, 1 for any other failure.
    """
    try:
        status = command.main(argv, prog_name="rewardfleet", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
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


class _Number(click.FloatRange):
    """A number of seconds or items: above 0, or 0 or more; at most 1,000,000."""

    def __init__(self, *, above_zero: bool = True) -> None:
        super().__init__(min=0, min_open=above_zero, max=1e6)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("give a number", param, ctx)
        return number


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
    """`rewardfleet serve`. The modules of a service are imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(SERVICES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        entry = SERVICES.get(cmd_name)
        if entry is None:
            return None
        from .flags import ServiceCommand  # noqa: PLC0415 - needs the server's packages
        from .serve import serve  # noqa: PLC0415 - needs the server's packages

        settings_type = entry.load_settings()
        return ServiceCommand(cmd_name, entry.description, settings_type, partial(serve, entry))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Services"):
            formatter.write_dl([(name, entry.description) for name, entry in SERVICES.items()])


def _suggest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"\ndid you mean {near[0]}?" if near else ""


# Options of several commands.
_SERVICES = click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME=URL",
    help="Single service, e.g. video=http://127.0.0.1:18080.",
)
_API_KEY = click.option("--api-key", envvar="REWARDFLEET_API_KEY", hidden=True)
_TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the score.",
)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=_Group, help="Rewards for reinforcement learning over HTTP.")
@click.version_option(rewardfleet.__version__, message="rewardfleet %(version)s")
def command() -> None:
    """Group all commands."""


@command.group(cls=_Services, name="serve", help="Run a service; `serve video --help` lists flags.")
def serve_group() -> None:
    """Group the services."""


@command.command(name="up", help="Run all services on this machine, below one address.")
@click.option("--only", metavar="NAMES", help="Services to start, e.g. video,code.  [default: all]")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with these flags, and a table with settings for each service.",
)
@click.option(
    "--replicas", multiple=True, metavar="NAME=N", help="Processes of a service.  [default: 1]"
)
@network_flags("the gateway")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Caches, run state and logs.  [default: ~/.local/state/rewardfleet]",
)
@click.option("--logs", is_flag=True, help="Print the logs of all services, with their names.")
def up_command(
    config: Path | None, only: str | None, replicas: tuple[str, ...], logs: bool, **given: object
) -> int:
    """Start all services; return 1 if one cannot start."""
    from .fleet.settings import read_config  # noqa: PLC0415 - needs the server's packages
    from .fleet.up import run_up  # noqa: PLC0415 - needs the server's packages

    overrides = {name: value for name, value in given.items() if value is not None}
    if only is not None:
        overrides["only"] = [name.strip() for name in only.split(",")]
    counts = {}
    for each in replicas:
        name, _, count = each.partition("=")
        if not count.isdecimal():
            raise click.UsageError(f"--replicas {each}: give NAME=N, e.g. code=2")
        counts[name] = int(count)
    return run_up(read_config(config, {**overrides, "replicas": counts}), show_logs=logs)


@command.command(
    name="gateway",
    help="Run one address for services that run elsewhere, e.g. in containers. The services check "
    "API keys.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME=URL",
    help="Service, e.g. code=http://code:8080. Each address of the name is a replica. May be "
    "repeated, also for one service.",
)
@network_flags("the gateway", has_keys=False)
def gateway_command(
    services: tuple[str, ...], host: str | None, port: int | None, allowed_host: list[str] | None
) -> int:
    """Run a gateway."""
    from .fleet.command import GatewayConfig, read_services, run_gateway  # noqa: PLC0415 - needs the server's packages

    port = 18000 if port is None else port
    names = read_services(services)
    return run_gateway(GatewayConfig(host or "127.0.0.1", port, allowed_host or [], names))


@command.command(
    name="status",
    help="Show the replicas of a fleet: health, version, load. URL is that of a fleet or of a "
    "single service.  [env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@click.argument("urls", nargs=-1, metavar="[URL]...", envvar="REWARDFLEET_URL")
@_SERVICES
@click.option(
    "--inflight",
    "in_flight",
    is_flag=True,
    help="Show the samples in flight instead: stage, age, remaining time, replica.",
)
@_AS_JSON
@_API_KEY
def status_command(
    urls: tuple[str, ...],
    services: tuple[str, ...],
    in_flight: bool,
    as_json: bool,
    api_key: str | None,
) -> int:
    """Print the status of fleets and services; return 1 if one is not ready."""
    from .fleet.status import run_status  # noqa: PLC0415 - needs the server's packages

    source = click.get_current_context().get_parameter_source("urls")
    if services and source is not ParameterSource.COMMANDLINE:
        urls = ()
    elif not urls:
        urls = ("http://127.0.0.1:18000",)
    return run_status(urls, services, api_key=api_key, as_json=as_json, in_flight=in_flight)


@command.command(
    name="size",
    help="Predict by simulation how many replicas a load needs. Give the load by --rate or "
    "--callers, and the time at the backend by --seconds or --metrics-url.",
)
@click.option("--rate", type=_Number(), metavar="N", help="Rollouts per second, on average.")
@click.option(
    "--burst",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Rollouts that end at the same time, e.g. those of a training step.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Scores per rollout, e.g. one for each of its steps.",
)
@click.option(
    "--callers",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Callers that send the next item once they have the last score; instead of --rate.",
)
@click.option(
    "--seconds",
    metavar="S,S,…",
    help="Measured times of an item at the backend; each is equally probable.",
)
@click.option(
    "--metrics-url",
    metavar="URL",
    help="Running service, whose measured times are used.",
)
@click.option(
    "--decode-seconds",
    type=_Number(above_zero=False),
    default=0.0,
    metavar="S",
    help="Measured time to decode a clip, in addition to --seconds.  [default: 0]",
)
@click.option(
    "--clip-frames",
    nargs=2,
    type=click.IntRange(1),
    metavar="N MEASURED",
    help="Frames of a clip, and of the clips that were measured; decoding takes in proportion.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    required=True,
    metavar="N",
    help="Items at the backend of a replica at the same time: --workers of the code service, "
    "decode threads or the batch of a model of the video service.",
)
@click.option(
    "--gpus", type=_Number(above_zero=False), default=0.0, metavar="N", help="GPUs per replica."
)
@click.option(
    "--p95-s",
    type=_Number(),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time in which 95 % of the items must have their score.",
)
@click.option(
    "--deadline-s",
    type=_Number(),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Deadline of the service or the caller, whichever is less.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Predict what this many replicas do, instead.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="Of the random numbers."
)
@_AS_JSON
@_API_KEY
def size_command(
    rate: float | None,
    burst: int,
    steps: int,
    callers: int | None,
    seconds: str | None,
    metrics_url: str | None,
    decode_seconds: float,
    clip_frames: tuple[int, int] | None,
    concurrency: int,
    gpus: float,
    p95_s: float,
    deadline_s: float,
    replicas: int | None,
    seed: int,
    as_json: bool,
    api_key: str | None,
) -> None:
    """Print how many replicas a load needs."""
    from . import sizing  # noqa: PLC0415 - needs the server's packages

    if (rate is None) == (callers is None):
        raise click.UsageError("give either --rate or --callers")
    if (seconds is None) == (metrics_url is None):
        raise click.UsageError("give either --seconds or --metrics-url")
    if callers is not None and burst * steps > 1:
        raise click.UsageError("--burst and --steps go with --rate, not with --callers")
    if burst * steps > sizing.MAX_BURST:
        raise click.UsageError(f"--burst times --steps: give at most {sizing.MAX_BURST} items")
    if metrics_url is not None and decode_seconds:
        raise click.UsageError("--decode-seconds goes with --seconds: --metrics-url measures it")
    if clip_frames is not None and metrics_url is None and not decode_seconds:
        raise click.UsageError("--clip-frames needs --decode-seconds or --metrics-url")
    times = (
        sizing.given_times(str(seconds), decode_seconds)
        if metrics_url is None
        else sizing.measured_times(metrics_url, api_key)
    )
    if clip_frames is not None:
        times = times.for_clips(*clip_frames)
    load = sizing.Load(None if rate is None else rate * steps, burst * steps, callers)
    wanted = sizing.Sizing(times, load, concurrency, p95_s, deadline_s, gpus, seed)
    predictions = wanted.solve() if replicas is None else [wanted.predict(replicas)]
    print(sizing.report(wanted, predictions, as_json=as_json))


@command.command(
    name="load",
    help="Send requests to a fleet or a service at a given rate, whatever it answers, and report "
    "latencies and failures. Nothing is retried. URL is that of a fleet or of a single service.  "
    "[env var: REWARDFLEET_URL; default: http://127.0.0.1:18000]",
)
@click.argument("url", required=False, envvar="REWARDFLEET_URL")
@_SERVICES
@click.option(
    "--rate",
    type=_Number(),
    default=10.0,
    show_default=True,
    metavar="N",
    help="Requests per second on average, to all services together.",
)
@click.option(
    "--duration-s",
    type=_Number(),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long requests are sent.",
)
@click.option(
    "--mix",
    metavar="NAME=N,…",
    help="How often each service gets a request, e.g. code=2,tools=1.  "
    "[default: all services, equally often]",
)
@click.option(
    "--requests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to send instead of generated ones, in turn: JSON lines with `service`, `body`, "
    "and optionally `path` and the right `score`.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="poisson: independent of each other, as from many callers. constant: evenly spaced.",
)
@click.option(
    "--timeout-s",
    type=_Number(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="When a request is given up.",
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Requests beyond this many unanswered ones are not sent, and count as failed. Limits "
    "memory.",
)
@click.option(
    "--max-p99-s",
    type=_Number(),
    metavar="SECONDS",
    help="Exit with 1 if the p99 of a service is above.",
)
@click.option(
    "--max-errors",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Exit with 1 if a larger share of the requests to a service fails, e.g. 0.01.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with charts to this file.",
)
@_AS_JSON
@_API_KEY
def load_command(
    url: str | None,
    services: tuple[str, ...],
    rate: float,
    duration_s: float,
    mix: str | None,
    requests: Path | None,
    arrivals: Literal["poisson", "constant"],
    timeout_s: float,
    max_in_flight: int,
    max_p99_s: float | None,
    max_errors: float | None,
    html: Path | None,
    as_json: bool,
    api_key: str | None,
) -> int:
    """Put load on a fleet; return 1 if a limit is exceeded, 130 if it was interrupted."""
    from .load.command import Limits, Output, run_load  # noqa: PLC0415 - needs the server's packages
    from .load.generator import Plan  # noqa: PLC0415 - needs the server's packages

    if mix is not None and requests is not None:
        raise click.UsageError("--mix goes with generated requests, not with --requests")
    source = click.get_current_context().get_parameter_source("url")
    if services and source is not ParameterSource.COMMANDLINE:
        url = None
    elif url is None:
        url = "http://127.0.0.1:18000"
    return run_load(
        url,
        services,
        Plan(rate, duration_s, arrivals, timeout_s, max_in_flight),
        mix=mix,
        requests=requests,
        api_key=api_key,
        limits=Limits(max_p99_s, max_errors),
        output=Output(html, as_json),
    )


@command.group(cls=_Group, name="score", help="Score one item with a running service.")
def score_group() -> None:
    """Group the commands that score an item."""


@score_group.command(name="video", help="Send the video file CLIP; print the response as JSON.")
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--url",
    default="http://127.0.0.1:18080",
    envvar="REWARDFLEET_VIDEO_URL",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Base URL of the video service.",
)
@_API_KEY
@click.option(
    "--nframes",
    type=click.IntRange(1, 128),
    default=16,
    show_default=True,
    metavar="N",
    help="Frames that the judge sees.",
)
@click.option("--backend", metavar="JUDGE", help="Judge.  [default: the service's]")
@_TIMEOUT
def score_video(
    clip: Path,
    task: str,
    url: str,
    api_key: str | None,
    nframes: int,
    backend: str | None,
    timeout: float,
) -> int:
    """Score one clip and print the response; return 3 if it has no score."""

    async def score() -> rewardfleet.VideoScore:
        # The content is sent: the service need not see this machine's files.
        content = await asyncio.to_thread(clip.read_bytes)
        async with rewardfleet.RewardFleet(video=url, api_key=api_key, timeout_s=timeout) as fleet:
            return await fleet.video.score(task, content, nframes=nframes, backend=backend)

    result = asyncio.run(score())
    print(result.model_dump_json(indent=2))
    return 0 if result.score is not None else 3


@command.command(
    name="harbor",
    help="Verify a Harbor task, from its tests/test.sh: score FILE, which the agent wrote, and "
    "write reward.json. Without a score, no file is written. FILE is a program with --tests, an "
    "answer with --ground-truth, a video with --task.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--tests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The tests of the program: those of a request, or the ground truth of a dataset.",
)
@click.option(
    "--ground-truth",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The correct answer, for an answer that calls tools.",
)
@click.option("--task", metavar="TEXT", help="The task that the video shows.")
@click.option(
    "--mode",
    type=click.Choice(["pass_rate", "all_pass"]),
    default="pass_rate",
    show_default=True,
    help="pass_rate: the share of tests passed. all_pass: 1 or 0.",
)
@click.option(
    "--url",
    envvar="REWARDFLEET_URL",
    default="http://127.0.0.1:18000",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Base URL of the fleet.",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="NAME=URL",
    help="Single service instead, e.g. code=http://127.0.0.1:18081.",
)
@_API_KEY
@_TIMEOUT
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/logs/verifier"),
    show_default=True,
    metavar="FOLDER",
    help="Where the reward is written.",
)
def harbor_command(
    file: Path,
    tests: Path | None,
    ground_truth: Path | None,
    task: str | None,
    mode: Literal["pass_rate", "all_pass"],
    url: str,
    services: tuple[str, ...],
    api_key: str | None,
    timeout: float,
    output_dir: Path,
) -> int:
    """Write the reward of a file; return 3 if it has no score."""
    harbor.remove_rewards(output_dir)  # first of all: the agent may have written one
    if (tests is None) + (ground_truth is None) + (task is None) != 2:
        raise click.UsageError("give one of --tests, --ground-truth and --task")
    options: dict[str, Any] = {"api_key": api_key, "timeout_s": timeout}
    # Not by `fleet.status.named_url`: it needs the server's packages, which the image may lack.
    for each in services:
        name, _, service_url = each.partition("=")
        if name not in SERVICES:
            raise click.UsageError(
                f"--service {each}: give NAME=URL, e.g. code=http://10.0.0.7:18081"
            )
        options[name] = service_url
    with rewardfleet.blocking.RewardFleet(None if services else url, **options) as fleet:
        score: rewardfleet.Score
        if tests is not None:
            score = harbor.score_program(fleet, file, tests, mode)
        elif ground_truth is not None:
            score = fleet.tools.score(harbor.read_text(file), ground_truth.read_text())
        else:
            score = fleet.video.score(task or "", file.read_bytes())
    if score.score is None:
        print("rewardfleet: the judge abstained; no reward is written", file=sys.stderr)
        return 3
    harbor.write_reward(output_dir, score.score)
    return 0


@command.group(cls=_Group, name="references", help="The library of the judge `reference`.")
def references_group() -> None:
    """Group the commands that change a library."""


@references_group.command(name="add", help="Add the labeled video file CLIP to the folder LIBRARY.")
@click.argument("library", type=click.Path(path_type=Path))
@click.argument("clip", type=click.Path(path_type=Path))
@click.argument("task")
@click.option(
    "--success/--failure", default=None, help="Whether the task was done at the end; required."
)
@click.option("--success-frame", type=int, metavar="N", help="First frame that shows the success.")
def add_reference_command(
    library: Path, clip: Path, task: str, success: bool | None, success_frame: int | None
) -> None:
    """Add a clip to a library."""
    if success is None:
        raise click.UsageError("give --success or --failure")
    from .video.references.library import add_reference  # noqa: PLC0415 - needs the server's packages

    file = add_reference(library, clip, task, success=success, success_frame=success_frame).file
    print(f"{library}: added {file} as a {'success' if success else 'failure'}")


@command.group(cls=_Group, name="packages", help="Packages that scored programs can import.")
def packages_group() -> None:
    """Group the commands that install packages for programs."""


@packages_group.command(
    name="build", help="Install them once; `serve code` with the same flags uses them."
)
@click.option(
    "--packages",
    multiple=True,
    metavar="PACKAGES",
    help="Like the flag of `serve code`.  [default: numpy,pytest,sortedcontainers]",
)
@click.option("--python", metavar="FILE", help="Like the flag of `serve code`.")
def build_packages(packages: tuple[str, ...], python: str | None) -> None:
    """Build the environment that `serve code` uses with the same flags."""
    from .code.packages import environment_of  # noqa: PLC0415 - needs the server's packages
    from .code.settings import CodeSettings  # noqa: PLC0415 - needs the server's packages
    from .flags import read_settings  # noqa: PLC0415 - needs the server's packages

    flags = {"packages": packages, "python": python}
    given = {name: value for name, value in flags.items() if value}
    environment = environment_of(read_settings(CodeSettings, given))
    environment.build()
    environment.python()
    print(f"{environment.folder}: {', '.join(environment.requirements)}")


@command.group(cls=_Group, name="tools", help="Datasets of tool use.")
def tools_group() -> None:
    """Group the commands that change datasets."""


@tools_group.command(
    name="label",
    help="Label datasets for the router: families of tools, and the route that fits each row. "
    "DATASET is a Parquet file in ToolRL's format, or a folder with such files. "
    "train.parquet becomes train_router.parquet.",
)
@click.argument(
    "datasets", nargs=-1, required=True, metavar="DATASET...", type=click.Path(path_type=Path)
)
@click.option(
    "--tool-families",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="JSON or CSV file with families of tools, as that of `serve tools`.",
)
@click.option(
    "--family-patterns",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help='JSON file with patterns by family, e.g. {"search": ["get*"]}; instead of built-in ones.',
)
@click.option(
    "--model-url",
    metavar="URL",
    help="Base URL of an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1. Its model "
    "labels tools; --tool-families comes before it. The endpoint's key is in OPENAI_API_KEY.",
)
@click.option("--model", metavar="NAME", help="Model to request there.")
@click.option("--api-key", envvar="OPENAI_API_KEY", hidden=True)
@click.option(
    "--model-rows",
    is_flag=True,
    help="Ask the model for the label of each row as well. Else it follows from the families of "
    "the tools that the ground truth calls.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1_000),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests to the model at the same time.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 100_000),
    default=512,
    show_default=True,
    metavar="N",
    help="The most tokens of an answer, thoughts included.",
)
@click.option(
    "--cache-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="SQLite file with the model's answers, from which an interrupted run resumes.  "
    "[default: router_labels.sqlite next to the first output]",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of the outputs.  [default: that of each dataset]",
)
@click.option(
    "--sidecar",
    type=click.Choice(["jsonl", "csv"]),
    help="Write the labels alone, by extra_info.index, e.g. train_router_labels.jsonl.",
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Split a single file into train_router and test_router, with this share in the latter.",
)
@_AS_JSON
def label_tools(
    datasets: tuple[Path, ...],
    tool_families: Path | None,
    family_patterns: Path | None,
    model_url: str | None,
    model: str | None,
    api_key: str | None,
    model_rows: bool,
    concurrency: int,
    max_tokens: int,
    cache_file: Path | None,
    output_dir: Path | None,
    sidecar: Literal["jsonl", "csv"] | None,
    test_share: float | None,
    as_json: bool,
) -> None:
    """Label datasets and print what was labeled."""
    if (model_url is None) != (model is None):
        raise click.UsageError("give --model-url and --model together")
    if model_url is not None and not model_url.startswith(("http://", "https://")):
        raise click.UsageError(
            f"--model-url {model_url}: give a URL, e.g. http://127.0.0.1:8000/v1"
        )
    if model_url is None and (model_rows or cache_file is not None):
        raise click.UsageError("--model-rows and --cache-file need --model-url and --model")
    from .tools.labeling import command as labeling  # noqa: PLC0415 - needs the server's packages

    endpoint = None
    if model_url is not None and model is not None:
        endpoint = labeling.ModelOptions(
            url=model_url,
            name=model,
            api_key=api_key,
            concurrency=concurrency,
            max_tokens=max_tokens,
            cache_file=cache_file,
            rows=model_rows,
        )
    options = labeling.LabelOptions(
        datasets=datasets,
        output_dir=output_dir,
        output_format=sidecar or "parquet",
        test_share=test_share,
        families=tool_families,
        patterns=family_patterns,
        model=endpoint,
    )
    report = labeling.run_label(options)
    print(report.as_json() if as_json else report.as_text())


@command.command(name="doctor", help="Report what works on this machine, and how to fix the rest.")
def doctor_command() -> int:
    """Print what works; return 1 if a service cannot run."""
    from .doctor import run_doctor  # noqa: PLC0415 - needs the server's packages

    return run_doctor()
