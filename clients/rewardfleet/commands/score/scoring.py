"""One run of `rewardfleet score`: from its options to its exit status."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from rewardfleet.bulk.arrow import pyarrow
from rewardfleet.bulk.lerobot import write_rewards
from rewardfleet.bulk.output import Format, Output, Printer
from rewardfleet.bulk.requests import Columns, Item, RequestBuilder
from rewardfleet.bulk.rows import Row, Source, open_sources
from rewardfleet.bulk.run import MOST_IN_FLIGHT, Run
from rewardfleet.bulk.store import Store, in_groups, score_items
from rewardfleet.bulk.summary import Summary
from rewardfleet.client import RewardFleet
from rewardfleet.commands.local_service import local_service
from rewardfleet.commands.settings import api_key
from rewardfleet.http.index import find_service, printable
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError

#: How many items `--dry-run` shows, and how many characters of each.
_SHOWN, _SHOWN_CHARACTERS = 3, 2000
#: An option of all commands that score.
START = click.option(
    "--start",
    metavar="OPTIONS",
    help="Start the service for this command, with options of `rewardfleet serve`; '' for none.",
)


def default_url(service: str) -> str:
    """Return where `rewardfleet serve` starts a service if no port is given."""
    return f"http://127.0.0.1:{SERVICES[service].port}"


@dataclass(frozen=True)
class Connection:
    """What scores the items, and how long each may take."""

    url: Sequence[str]
    timeout: float
    start: str | None = None

    @contextlib.contextmanager
    def fleet(
        self, service: str, default: str, more: str = ""
    ) -> Iterator[tuple[RewardFleet, int]]:
        """Give the block a client of a service, and how many replicas it has.

        Args:
            default: The URL if none is given.
            more: Further options of the service, if it is started for the block.

        Raises:
            ValueError: The service is not there.
        """
        with contextlib.ExitStack() as stack:
            urls = self.url or [default]
            if self.start is not None:
                urls = [stack.enter_context(local_service(service, self.start + more))]
            found: Any = {service: asyncio.run(find_service(service, urls, api_key()))}
            limits: Any = {"timeout_s": self.timeout, "max_concurrency": MOST_IN_FLIGHT}
            yield RewardFleet(api_key=api_key(), **limits, **found), len(found[service])


@dataclass(frozen=True)
class Fields:
    """What requests have that is not in the rows."""

    set_field: Sequence[str]
    task: str | None = None
    judge: str | None = None
    by_path: bool = False

    def of_requests(self) -> dict[str, Any]:
        """Return the fields that all requests get, by `--set` and `--judge`.

        Raises:
            ValueError: One is not `FIELD=JSON`.
        """
        changes: dict[str, Any] = {}
        for each in self.set_field:
            name, sign, value = each.partition("=")
            if not (name and sign):
                raise ValueError(f"--set: give FIELD=JSON, not {each!r}")
            try:
                changes[name] = json.loads(value)
            except ValueError:
                changes[name] = value  # a word
        return changes if self.judge is None else {**changes, "backend": self.judge}


@dataclass
class Scoring:
    """One run of the command; see its options."""

    service: str
    columns: Columns
    connection: Connection
    fields: Fields
    output: Path | None
    format: Format
    retry_failed: bool
    limit: int | None = None
    sample: int | None = None
    dry_run: bool = False
    #: What becomes of the rows before they are scored.
    change: Callable[[Iterator[Row]], Iterator[Row]] = iter
    #: That scoring took, without starting a service.
    seconds: float = field(default=0.0, init=False)

    def run(self, inputs: Sequence[str]) -> int:
        """Score an input.

        Returns:
            0; 1 if an item has no score, 3 if it is a single clip; 2 if none could be scored; 130
            if it was interrupted.
        """
        paths, task = [Path(each) for each in inputs], self.fields.task
        if len(paths) == 2 and task is None and paths[0].is_file() and not paths[1].exists():
            paths, task = paths[:1], inputs[1]  # CLIP TASK
        output = self.output and self.output.resolve()
        for path in paths:
            if output and path.is_dir() and path.resolve() in (output, *output.parents):
                raise ValueError(f"-o: give a folder that is not in the input {path}")
        sources = open_sources(paths)
        builder = RequestBuilder(
            self.service,
            self.columns,
            task=task,
            by_path=self.fields.by_path or self.connection.start is not None,
            changes=self.fields.of_requests(),
        )
        count = sum(source.count() for source in sources)
        if not count:
            raise ValueError(f"there are no rows in {', '.join(map(str, paths))}")
        builder.check_columns(self._rows(sources))
        expected = min(self.sample or count, self.limit or count, count)

        def read() -> Iterator[Row]:
            rows = self._rows(sources)
            if self.sample is not None and self.sample < count:
                chosen = {*random.Random(0).sample(range(count), self.sample)}  # noqa: S311 - not a secret
                rows = (row for number, row in enumerate(rows) if number in chosen)
            return itertools.islice(rows, self.limit)

        if self.dry_run:
            return _show(builder, builder.items(read()), expected)
        is_lerobot = any(each.is_lerobot for each in sources)
        if self.output is not None and (self.format == "parquet" or is_lerobot):
            pyarrow()  # it writes the output: if it is missing, nothing is scored
        is_single = self.output is None and sources[0].is_clip and count == 1
        url, more = default_url(self.service), self._video_roots(paths)
        with self.connection.fleet(self.service, url, more) as (fleet, replicas):
            if is_single:
                return asyncio.run(_score_one(fleet, builder.build(next(builder.items(read())))))
            run = Run(fleet, builder, replicas)
            return self._score(run, builder, read, sources, expected)

    def _rows(self, sources: Sequence[Source]) -> Iterator[Row]:
        return self.change(itertools.chain.from_iterable(source.rows() for source in sources))

    def _video_roots(self, paths: Sequence[Path]) -> str:
        """Return the options by which a service of clips reads the folders of the input."""
        is_clip = SERVICES[self.service].scores == "clip"
        if not is_clip or "--video-root" in (self.connection.start or ""):
            return ""
        folders = {(path if path.is_dir() else path.parent).resolve() for path in paths}
        return "".join(f" --video-root {shlex.quote(str(each))}" for each in folders)

    def _score(
        self,
        run: Run,
        builder: RequestBuilder,
        read: Callable[[], Iterator[Row]],
        sources: Sequence[Source],
        expected: int,
    ) -> int:
        """Score the items, with a progress bar and a summary on standard error."""
        stamps = [source.stamp() for source in sources]
        is_episode = SERVICES[self.service].scores == "episode"
        items = in_groups(read, builder) if is_episode else builder.items(read())
        key = {
            "service": self.service,
            "inputs": stamps,
            "columns": dataclasses.asdict(self.columns),
            "task": builder.task,
            "fields": builder.changes,
            "sample": self.sample,
        }
        opened = Printer() if self.output is None else Output(self.output, key, self.format)
        with contextlib.closing(opened) as output:
            store = Store(output, builder, retry_failed=self.retry_failed)
            with progress_bar(expected) as show:
                started = time.monotonic()
                is_complete = asyncio.run(score_items(items, run, store, show))
                self.seconds = time.monotonic() - started
            is_lerobot = [each.is_lerobot for each in sources] == [True]
            if is_complete and is_lerobot and isinstance(output, Output):
                root = sources[0].path.parent.parent
                write_rewards(root, output.folder / "lerobot", output.records())
        totals = store.summary
        for line in totals.lines():
            click.echo(printable(line, _SHOWN_CHARACTERS), err=True)
        if changed := [old for old, new in zip(stamps, sources, strict=True) if old != new.stamp()]:
            other = "" if self.output is None else ", with another -o"
            for path, *_ in changed:
                click.echo(f"{path} changed while it was read: score it again{other}", err=True)
            return 1
        if not is_complete:
            click.echo("interrupted; the same command goes on from here", err=True)
            return 130
        failed = totals.statuses["error"]
        return 2 if failed == totals.items else int(totals.missing > 0)


@contextlib.contextmanager
def progress_bar(expected: int) -> Iterator[Callable[[Summary], None]]:
    """Show a progress bar on standard error; give what updates it."""
    started = time.monotonic()
    first: int | None = None  # items that an earlier command has kept
    with click.progressbar(
        length=expected,
        label="scored",
        show_pos=True,
        file=sys.stderr,
        item_show_func=lambda text: text or "",
    ) as bar:

        def show(now: Summary) -> None:
            nonlocal first
            first = now.items if first is None else first
            rate = (now.items - first) / (time.monotonic() - started)
            mean = "" if now.mean is None else f", mean {now.mean:.3f}"
            bar.update(now.rows - bar.pos, f"{rate:,.1f}/s{mean}, no score {now.missing}")

        yield show


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
