"""Copies of the score logs of running services, in a folder that `reading` reads."""

import asyncio
import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from rewardfleet.bulk.files import OWNER_ONLY, new_file
from rewardfleet.http.index import Reply, base_url, get, http_client, services_at
from rewardfleet.wire.errors import NotFound, RewardFleetError, Unavailable
from rewardfleet.wire.log_segments import MAX_CHUNK_BYTES, PATH, LogSegment, LogSegments
from rewardfleet.wire.urls import redact

from .segments import LINES, prepare_folder, segments

log = logging.getLogger(__name__)

#: Bytes of all copies; beyond them, the oldest segments are left out.
_MAX_BYTES = 2**30
#: Seconds between two looks at the services, and for an answer.
_POLL_SECONDS, _ANSWER_SECONDS = 2.0, 30.0
#: Seconds that closing may wait for an answer.
_CLOSE_SECONDS = 2.0


class LogCopies:
    """Copies the logs of services, and what is added to them, until it is closed.

    What a service deletes is deleted here as well. Copies of one that does not answer stay.

    Args:
        name: What they are shown as.
        urls: The base URLs of services. Those that share a log are copied once.
        key: A key of `--score-log-key-file`.
        folder: Is created; only its owner can read what is in it.
    """

    def __init__(self, name: str, urls: Sequence[str], key: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.failures: dict[str, str] = {}  #: why a log is not copied now, by URL
        self._urls = urls
        self._key = key
        self._left_out = 0  # older segments that are not copied
        self._logs: dict[str, tuple[str, list[LogSegment]]] = {}  # by log: a URL, and its segments
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copy-score-logs", daemon=True)
        prepare_folder(folder)

    def start(self) -> None:
        """Go on copying, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop copying. The folder stays."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def problems(self) -> list[str]:
        """Return why records may be missing."""
        found = [f"{url}: {reason}" for url, reason in self.failures.items()]
        if self._left_out:
            found.append(f"{self.name}: the {self._left_out} oldest files of the log are left out")
        return found

    def _run(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            try:
                self.update()
            except Exception:  # e.g. a full disk, which may be emptied
                log.exception("score logs cannot be copied")

    def update(self) -> None:
        """Copy what is new, as far as services answer; see `failures`."""
        failures = {}
        for url in self._urls:
            try:
                found = LogSegments.model_validate_json(self._get(url + PATH))
                self._logs[found.log] = (url, found.segments)
            except ValidationError:
                failures[url] = "its answer is no list of segments"
            except RewardFleetError as error:
                failures[url] = error.detail
        wanted = self._newest()
        for url, segment in wanted.values():
            try:
                self._copy(url, segment)
            except NotFound:
                continue  # it was replaced or deleted: the next list says so
            except RewardFleetError as error:
                failures[url] = error.detail
        for path in segments(self.folder):
            if path.name not in wanted:
                path.unlink()
        self.failures = failures

    def _newest(self) -> dict[str, tuple[str, LogSegment]]:
        """Return where the newest segments are, by name, the newest first."""
        found = {each.name: (url, each) for url, some in self._logs.values() for each in some}
        newest, size = {}, 0
        for name in sorted(found, reverse=True):
            size += found[name][1].size
            if size > _MAX_BYTES:
                break
            newest[name] = found[name]
        self._left_out = len(found) - len(newest)
        return newest

    def _copy(self, url: str, segment: LogSegment) -> None:
        path = self.folder / segment.name
        size = path.stat().st_size if path.exists() else 0
        if size >= segment.size:
            return
        with path.open("ab") if path.suffix == LINES else new_file(path, OWNER_ONLY) as file:
            while size < segment.size:
                content = self._get(f"{url}{PATH}/{segment.name}?offset={size}")
                if not content:
                    raise Unavailable("a segment is shorter than it says")
                size += file.write(content)

    def _get(self, url: str) -> bytes:
        async def answer() -> Reply:
            async with http_client(self._key) as http:
                return await get(http, url, _ANSWER_SECONDS)

        reply = asyncio.run(answer())
        if reply.status == 401:
            raise Unavailable("it does not accept the key of --score-log-key-file")
        if reply.status != 200:
            reason = reply.reason if reply.status else f"no answer: {reply.reason}"
            raise (NotFound if reply.status == 404 else Unavailable)(reason)
        if len(reply.content) > MAX_CHUNK_BYTES:
            raise Unavailable("its answer is too long")
        return reply.content


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
    services = {url: [*asyncio.run(services_at(url)).values()] for url in bases}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="rewardfleet-look-", ignore_cleanup_errors=True)
        )
        copies = []
        for number, (url, found) in enumerate(services.items()):
            each = LogCopies(redact(url), found, key, Path(folder, str(number)))
            stack.callback(each.close)
            each.update()
            problems = each.problems()
            if len(each.failures) == len(found):
                raise ValueError(f"no service at {redact(url)} shows its score log: {problems[0]}")
            for problem in problems:
                log.warning("%s", problem)
            each.start()
            copies.append(each)
        yield copies
