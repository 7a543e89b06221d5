"""Copies of the score logs of running services, in a folder that `reading` reads."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import httpx
from pydantic import ValidationError

from rewardfleet.bulk.files import OWNER_ONLY, new_file
from rewardfleet.wire.errors import Problem
from rewardfleet.wire.log_segments import MAX_CHUNK_BYTES, PATH, LogSegment, LogSegments

from .segments import OPEN, prepare_folder, replacing

log = logging.getLogger(__name__)

#: Bytes of all copies; beyond them, the oldest segments are left out.
_MAX_BYTES = 2**30
#: Bytes of an answer that is no content.
_MAX_ANSWER_BYTES = 2**20
#: Seconds between two looks at the services, and for an answer.
_POLL_SECONDS, _ANSWER_SECONDS = 2.0, 30.0
#: Seconds that closing may wait for an answer.
_CLOSE_SECONDS = 2.0
_MAX_REASON = 300


class CopyFailed(Exception):
    """The log of a service cannot be copied now.

    Args:
        is_gone: Whether a segment was replaced or deleted: the next list says so.
    """

    def __init__(self, reason: str, *, is_gone: bool = False) -> None:
        super().__init__(reason[:_MAX_REASON])
        self.is_gone = is_gone


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
        self._left_out = 0  # older segments that are not copied
        self._http = httpx.Client(
            headers={"authorization": f"Bearer {key}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=5.0),
            trust_env=False,
        )
        self._logs: dict[str, tuple[str, list[LogSegment]]] = {}  # by log: a URL, and its segments
        self._versions: dict[str, str] = {}  # of the copies, by name
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copy-score-logs", daemon=True)
        prepare_folder(folder)
        with replacing(folder):
            pass  # it is a log from now on, even if there are no segments

    def start(self) -> None:
        """Go on copying, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop copying. The folder stays."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self._http.close()

    def problems(self) -> list[str]:
        """Return why records may be missing."""
        older = f"{self.name}: the {self._left_out} oldest files of the log are left out"
        failures = [f"{url}: {reason}" for url, reason in self.failures.items()]
        return [*failures, *([older] if self._left_out else ())]

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
                found = self._list(url)
            except CopyFailed as error:
                failures[url] = str(error)
                continue
            self._logs[found.log] = (url, found.segments)
        wanted = self._newest()
        missing = set()
        for url, segment in wanted.values():
            try:
                self._copy(url, segment)
            except CopyFailed as error:
                missing.add(Path(segment.name).stem)
                if not error.is_gone:
                    failures[url] = str(error)
        for name in self._versions.keys() - wanted.keys():
            if Path(name).stem not in missing:  # else it stands in for what replaces it
                self._delete(name)
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
        if self._versions.get(segment.name) not in {None, segment.version}:
            self._delete(segment.name)
        if segment.name.endswith(OPEN):
            self._versions[segment.name] = segment.version
            size = path.stat().st_size if path.exists() else 0
            while size < segment.size:
                with path.open("ab") as file:
                    size += file.write(self._content(url, segment, size))
        elif not path.exists():
            size = 0
            with new_file(path, OWNER_ONLY) as file:
                while size < segment.size:
                    size += file.write(self._content(url, segment, size))
            self._versions[segment.name] = segment.version

    def _delete(self, name: str) -> None:
        with replacing(self.folder):
            (self.folder / name).unlink(missing_ok=True)
        self._versions.pop(name, None)

    def _list(self, url: str) -> LogSegments:
        content = self._get(url + PATH, _MAX_ANSWER_BYTES)
        try:
            return LogSegments.model_validate_json(content)
        except ValidationError:
            raise CopyFailed("its answer is no list of segments") from None

    def _content(self, url: str, segment: LogSegment, offset: int) -> bytes:
        query = urlencode({"version": segment.version, "offset": offset})
        content = self._get(f"{url}{PATH}/{segment.name}?{query}", MAX_CHUNK_BYTES)
        if not content:
            raise CopyFailed("a segment is shorter than it says")
        return content

    def _get(self, url: str, max_bytes: int) -> bytes:
        content, until = b"", time.monotonic() + _ANSWER_SECONDS
        try:
            with self._http.stream("GET", url) as response:
                for part in response.iter_raw():
                    content += part
                    if len(content) > max_bytes:
                        raise CopyFailed("its answer is too long")
                    if time.monotonic() > until:
                        raise CopyFailed(f"no answer within {_ANSWER_SECONDS:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CopyFailed(f"no answer: {error}") from None
        if response.status_code == 200:
            return content
        if response.status_code == 401:
            raise CopyFailed("it does not accept the key of --score-log-key-file")
        try:
            reason = Problem.model_validate_json(content).detail
        except ValidationError:
            reason = f"HTTP {response.status_code}, not an answer of rewardfleet"
        raise CopyFailed(reason, is_gone=response.status_code == 404)
