"""The score logs of running services, found by the URLs of fleets or services."""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from rewardfleet.client import header_safe
from rewardfleet.score_log.copying import LogCopies
from rewardfleet.wire.urls import redact

from .index import base_url, services_at


@contextlib.contextmanager
def copied(urls: Sequence[str], key_file: Path | None) -> Iterator[list[LogCopies]]:
    """Give the block copies of the logs of running services, which go on until it ends.

    Args:
        urls: Base URLs of fleets or services.
        key_file: A file whose first line is a key of their `--score-log-key-file`.

    Raises:
        ValueError: There is no service, none shows its log, or there is no key.
    """
    if not urls:
        yield []
        return
    bases = [*map(base_url, urls)]
    if key_file is None:
        raise ValueError(
            f"{redact(urls[0])}: give --score-log-key-file FILE, with a key of the file that the "
            "services were started with by the same option, besides --score-log"
        )
    key = _key_of(key_file)
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


def _key_of(file: Path) -> str:
    try:
        lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except OSError as error:
        raise ValueError(f"--score-log-key-file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--score-log-key-file {file}: not a text file") from None
    key = next((line for line in lines if line and not line.startswith("#")), None)
    if key is None:
        raise ValueError(f"--score-log-key-file {file}: no key in it")
    return header_safe(key) or ""
