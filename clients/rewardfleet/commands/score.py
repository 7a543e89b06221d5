"""`rewardfleet score`: score a clip, or whole data sets."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from rewardfleet.bulk.job import Job
from rewardfleet.bulk.lerobot import write_rewards
from rewardfleet.bulk.output import Output, Printer
from rewardfleet.bulk.records import columns_of
from rewardfleet.bulk.requests import Columns, Item, RequestBuilder
from rewardfleet.bulk.rows import Row, Source, open_sources
from rewardfleet.bulk.run import MOST_IN_FLIGHT, Run, score_type_of
from rewardfleet.client import SERVICES, RewardFleet
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError

from .index import base_url, find_services, http_client, printable, redact
from .local_service import local_service
from .options import API_KEY, TIMEOUT, CommandGroup, load_attribute

RecordT = TypeVar("RecordT")

#: Of a service that runs alone.
_DEFAULT_URL = "http://127.0.0.1:18080"
#: How many items `--dry-run` shows, and how many characters of each.
_SHOWN, _SHOWN_CHARACTERS = 3, 2000


@dataclass(frozen=True)
class Scorer:
    """What scores the items."""

    url: Sequence[str]
    start: str | None
    timeout: float
    api_key: str


@dataclass(frozen=True)
class Fields:
    """What requests have that is not in the rows."""

    set_field: Sequence[str]
    task: str | None = None
    judge: str | None = None
    by_path: bool = False


@dataclass(frozen=True)
class Selection:
    """Which items are scored."""

    limit: int | None
    sample: int | None
    retry_failed: bool
    dry_run: bool


@dataclass(frozen=True)
class Destination:
    """Where the scores go."""

    output: Path | None
    format: Any


class _Commands(CommandGroup):
    """The services, and `replay`, which is imported when it is named, as it uses this module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "replay"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "replay":
            return super().get_command(ctx, cmd_name)
        replay: click.Command = load_attribute("rewardfleet.commands.replay:command")
        return replay


@click.group(
    cls=_Commands, name="score", help="Score clips, programs, answers or episodes of data sets."
)
def command() -> None:
    """Group the commands, one for each service."""


def _column(name: str, what: str) -> Callable[[Any], Any]:
    return click.option(f"--{name}-column", metavar="NAME", help=f"The column with {what}.")


#: Options of all services.
_COMMON = [
    click.argument("inputs", nargs=-1, required=True, metavar="INPUT..."),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Where the scores are kept; the same command goes on with what is there.  "
        "[default: JSON lines to standard output]",
    ),
    click.option(
        "--format",
        type=click.Choice(["parquet", "jsonl"]),
        default="parquet",
        show_default=True,
        help="Format of the scores in FOLDER. Parquet needs pyarrow.",
    ),
    click.option(
        "--start",
        metavar="OPTIONS",
        help="Start the service for this command, with options of `rewardfleet serve`; '' for "
        "none.",
    ),
    _column("id", "the id of a row, which the scores have as `uid`"),
    click.option(
        "--set",
        "set_field",
        multiple=True,
        metavar="FIELD=JSON",
        help="A field of all requests, e.g. `mode=all_pass` or `nframes=32`. Can be repeated.",
    ),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N rows."),
    click.option(
        "--sample",
        type=click.IntRange(1),
        metavar="N",
        help="Only N rows drawn at random, the same ones each time.",
    ),
    click.option("--retry-failed", is_flag=True, help="Score again what failed in FOLDER."),
    click.option("--dry-run", is_flag=True, help="Show the first requests and send nothing."),
    TIMEOUT,
    API_KEY,
]  # fmt: skip
_COMPLETION = _column("completion", "what the policy wrote: a text, messages, or a list of these")
_OWN = {
    "video": [
        _column("clip", "the path or the content of a clip"),
        _column("task", "its task"),
        click.option("--task", metavar="TEXT", help="The task of clips without one."),
        click.option("--camera", metavar="NAME", help="Camera of a LeRobot data set."),
        click.option(
            "--judge", "--backend", metavar="JUDGE", help="Judge.  [default: the service's]"
        ),
        click.option(
            "--by-path",
            is_flag=True,
            help="Send paths instead of contents: the service reads clips under its --video-root.",
        ),
    ],
    "code": [_COMPLETION, _column("tests", "the tests.  [default: `tests`, or the whole row]")],
    "tools": [_COMPLETION, _column("tests", "the ground truth")],
    "episode": [],
}
_INPUTS = {
    "video": "clips, folders of clips, LeRobot data sets, or tables",
    "code": "tables of programs and tests, or of rows of data sets",
    "tools": "tables of answers and ground truths",
    "episode": "tables of episodes, of which groups are on rows one after another",
}


def _command_of(service: str) -> click.Command:
    """Return the command that scores with a service."""
    variables = ["REWARDFLEET_URL", f"REWARDFLEET_{service.upper()}_URL"]
    urls = click.option(
        "--url",
        multiple=True,
        envvar=variables,
        metavar="URL",
        help=f"Of a fleet or of the service; several are replicas.  [env var: "
        f"{', '.join(variables)}; default: {_DEFAULT_URL}]",
    )

    def run(inputs: Sequence[str], **given: Any) -> int:
        return _ScoreCommand(service, given).run(inputs)

    for option in reversed([*_COMMON, urls, *_OWN[service]]):
        run = option(run)
    help_text = (
        f"Score INPUT: {_INPUTS[service]}. Tables are files .jsonl, .csv, .parquet and .arrow, and "
        "folders of them."
    )
    return click.command(name=service, help=help_text)(run)


for _service in SERVICES:
    command.add_command(_command_of(_service))


class _ScoreCommand:
    """One run of the command.

    Args:
        service: The service that scores.
        given: The options.
    """

    def __init__(self, service: str, given: dict[str, Any]) -> None:
        self._service = service
        self._columns = _pick(Columns, given)
        self._scorer = _pick(Scorer, given)
        self._fields = _pick(Fields, given)
        self._selection = _pick(Selection, given)
        self._destination = _pick(Destination, given)

    def run(self, inputs: Sequence[str]) -> int:
        """Score an input.

        Returns:
            0; 1 if an item has no score, 3 if it is a single clip; 2 if none could be scored; 130
            if it was interrupted.
        """
        paths, task = _inputs_of(inputs, self._fields.task)
        sources = open_sources(paths)
        count = sum(source.count() for source in sources)
        builder = RequestBuilder(
            self._service,
            self._columns,
            task=task,
            by_path=self._fields.by_path or self._scorer.start is not None,
            changes=changes_of(self._fields),
        )
        rows, expected = _selected(sources, count, self._selection)
        items = builder.items(rows)
        if self._selection.dry_run:
            return _show(builder, items, expected)
        is_single = self._destination.output is None and sources[0].is_clip and count == 1
        with self._urls(paths) as urls:
            found = asyncio.run(find(self._service, urls, self._scorer.api_key))
            given: Any = {self._service: found}
            fleet = RewardFleet(
                api_key=self._scorer.api_key,
                timeout_s=self._scorer.timeout,
                max_concurrency=MOST_IN_FLIGHT,  # `Run` finds how many
                **given,
            )
            if is_single:
                return asyncio.run(_score_one(fleet, builder.build(next(items))))
            run = Run(fleet, builder, replicas=len(found))
            with self._output(sources, builder) as output:
                return self._score(run, output, items, expected, sources)

    @contextlib.contextmanager
    def _urls(self, paths: Sequence[Path]) -> Iterator[Sequence[str]]:
        """Give the base URLs of the service, which runs for the block if this command starts it."""
        options = self._scorer.start
        if options is None:
            yield self._scorer.url or [_DEFAULT_URL]
            return
        if self._service == "video" and "--video-root" not in options:
            folders = {(path if path.is_dir() else path.parent).resolve() for path in paths}
            options += "".join(f" --video-root {shlex.quote(str(each))}" for each in folders)
        with local_service(self._service, options) as url:
            yield [url]

    def _output(self, sources: Sequence[Source], builder: RequestBuilder) -> Output | Printer:
        if self._destination.output is None:
            return Printer()
        key = {
            "service": self._service,
            "inputs": [source.stamp() for source in sources],
            "columns": dataclasses.asdict(self._columns),
            "task": builder.task,
            "fields": builder.changes,
            "sample": self._selection.sample,
        }
        columns = columns_of(score_type_of(self._service))
        return Output(self._destination.output, columns, key, self._destination.format)

    def _score(
        self,
        run: Run,
        output: Output | Printer,
        items: Iterator[Item],
        expected: int,
        sources: Sequence[Source],
    ) -> int:
        """Score the items, with a progress bar and a summary on standard error."""
        stamps = [source.stamp() for source in sources]
        started = time.monotonic()
        with click.progressbar(
            length=expected, label="scored", show_pos=True, file=sys.stderr, item_show_func=str
        ) as bar:

            def show(scored: int) -> None:
                rate = job.summary.items / (time.monotonic() - started)
                text = f"{rate:,.1f}/s, mean {job.summary.mean:.3f}, no score {job.summary.missing}"
                bar.update(scored, text)

            job = Job(run, output, show)
            job.load(retry_failed=self._selection.retry_failed)
            complete = job.score(items)
        if (
            complete
            and self._destination.output
            and [each.is_lerobot for each in sources] == [True]
        ):
            target = self._destination.output / "lerobot"
            write_rewards(sources[0].path.parent.parent, target, output.records())
        for line in job.summary.lines():
            click.echo(printable(line, _SHOWN_CHARACTERS), err=True)
        for source, stamp in zip(sources, stamps, strict=True):
            if source.stamp() != stamp:
                click.echo(f"{source.path} changed while it was read: score it again", err=True)
                return 1
        if not complete:
            click.echo("interrupted; the same command goes on from here", err=True)
            return 130
        if job.summary.statuses["error"] == job.summary.items:
            return 2
        return int(job.summary.missing > 0)


def _pick(record: type[RecordT], given: dict[str, Any]) -> RecordT:
    """Return a record of the options that its fields are named after."""
    names = [each.name for each in dataclasses.fields(record)]  # type: ignore[arg-type] # a dataclass
    return record(**{name: given[name] for name in names if name in given})


def _inputs_of(inputs: Sequence[str], task: str | None) -> tuple[list[Path], str | None]:
    """Return the paths of the input, and the task: of `CLIP TASK`, the second one."""
    paths = [Path(each) for each in inputs]
    if len(paths) == 2 and task is None and paths[0].is_file() and not paths[1].exists():
        return paths[:1], inputs[1]
    return paths, task


def changes_of(fields: Fields) -> dict[str, Any]:
    """Return the fields that all requests get.

    Raises:
        ValueError: One is not `FIELD=JSON`.
    """
    changes: dict[str, Any] = {}
    for each in fields.set_field:
        name, sign, value = each.partition("=")
        if not (name and sign):
            raise ValueError(f"--set: give FIELD=JSON, not {each!r}")
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value  # a word
    return changes if fields.judge is None else {**changes, "backend": fields.judge}


def _selected(
    sources: Sequence[Source], count: int, selection: Selection
) -> tuple[Iterator[Row], int]:
    """Return the rows that are scored, and how many there are."""
    rows = itertools.chain.from_iterable(source.rows() for source in sources)
    if selection.sample is not None and selection.sample < count:
        chosen = set(random.Random(0).sample(range(count), selection.sample))  # noqa: S311 - not a secret
        rows = (row for number, row in enumerate(rows) if number in chosen)  # type: ignore[assignment] # an iterator, too
        count = selection.sample
    return itertools.islice(rows, selection.limit), min(count, selection.limit or count)


async def find(service: str, urls: Sequence[str], api_key: str) -> list[str]:
    """Return the base URLs of a service, given its own ones or those of fleets.

    Raises:
        ValueError: It is not there.
    """
    found = []
    async with http_client(api_key) as http:
        for url in map(base_url, urls):
            site = await find_services(http, url)
            if service not in site.services and site.services:
                others = " and ".join(site.services)
                raise ValueError(
                    f"{redact(url)} is the {others} service, not the {service} service; check the "
                    "URL"
                )
            if service not in site.services:
                raise ValueError(f"there is no service {service} at {redact(url)}: {site.reason}")
            found.append(site.services[service])
    return found


def _show(builder: RequestBuilder, items: Iterator[Item], count: int) -> int:
    """Show the first requests, and why they are invalid; return 2 if all of them are."""
    valid = 0
    for item in itertools.islice(items, _SHOWN):
        try:
            request = builder.build(item)
        except InvalidRequest as error:
            click.echo(printable(f"{item.place}: {error.detail}", _SHOWN_CHARACTERS))
            continue
        valid += 1
        fields = request.model_dump(mode="json", exclude_defaults=True)
        text = json.dumps(fields, indent=1)  # ASCII: it may have control characters of a policy
        click.echo(f"{printable(item.place)}: {text[:_SHOWN_CHARACTERS]}")
    click.echo(f"{count:,} rows; nothing was sent")
    return 0 if valid else 2


async def _score_one(fleet: RewardFleet, request: Any) -> int:
    """Score one clip and print the response; return 3 if it has no score."""
    async with fleet:
        [score] = await fleet.video.score_batch([request])
    if score.error is not None:
        raise RewardFleetError.from_problem(score.error)
    click.echo(score.model_dump_json(indent=2))
    return 0 if score.score is not None else 3
