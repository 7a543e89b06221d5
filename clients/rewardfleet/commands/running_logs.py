"""The score logs of running services, found by the URLs of fleets or services."""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from rewardfleet.score_log.copying import LogCopies
from rewardfleet.wire.urls import redact

from .index import base_url, services_at


@contextlib.contextmanager
def copied(urls: Sequence[str], key: str | None) -> Iterator[list[LogCopies]]:
    """Give the block copies of the logs of running services, which go on until it ends.

    Args:
        urls: Base URLs of fleets or services.
        key: One of their `--score-log-key-file`.

    Raises:
        ValueError: There is no service, none shows its log, or there is no key.
    """
    if not urls:
        yield []
        return
    bases = [*map(base_url, urls)]
    if key is None:
        raise ValueError(
            f"{redact(urls[0])}: give --score-log-key-file FILE, with a key of the file that the "
            "services were started with by the same option, besides --score-log"
        )
    services = [[*asyncio.run(services_at(url)).values()] for url in bases]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rewardfleet-look-", ignore_cleanup_errors=True)
        )
        copies = []
        for number, (url, found) in enumerate(zip(bases, services, strict=True)):
            each = LogCopies(redact(url), found, key, Path(folder, str(number)))
            stack.callback(each.close)
            each.update()
            problems = each.problems()
            if len(each.failures) == len(found):
                raise ValueError(f"no service at {redact(url)} shows its score log: {problems[0]}")
            for problem in problems:
                click.echo(problem, err=True)
            each.start()
            copies.append(each)
        yield copies
