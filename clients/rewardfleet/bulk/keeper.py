"""The process that keeps scores, beside the one that scores.

Each message and each answer between the processes is a line of JSON. It imports little, as each
command with a folder starts it.
"""

import gc
import json
import os
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .lerobot import write_rewards
from .output import Output, Printer
from .summary import Summary


@dataclass
class Progress:
    """What is kept or printed so far, with what an earlier command has kept."""

    rows: int = 0  #: of the input
    items: int = 0
    missing: int = 0  #: items without a score
    failed: int = 0  #: those of them that failed
    mean: float | None = None  #: of the scores; None if there are none
    lines: list[str] = field(default_factory=list)  #: at the end, the summary


@dataclass
class Kept:
    """The rows that an earlier command has kept."""

    before: int = 0  #: all rows before this one
    after: list[int] = field(default_factory=list)  #: and these
    again: list[int] = field(default_factory=list)  #: but not these, which are scored again

    def __post_init__(self) -> None:
        self._after, self._again = set(self.after), set(self.again)

    def __contains__(self, row: int) -> bool:
        return (row < self.before or row in self._after) and row not in self._again


class Store:
    """Keeps or prints scores, and counts them. Blocks."""

    def __init__(self, output: Output | Printer) -> None:
        self._output = output
        self._summary = Summary()
        self._rows = 0
        self._kept = Kept()
        self._is_stale = False  # the summary has scores that were replaced

    def load(self, kept: Output, *, retry_failed: bool) -> Kept:
        """Count what an earlier command has kept, except for failures that are scored again."""
        again = []
        for record in kept.records():
            if retry_failed and record["status"] == "error":
                again.append(record["row"])
            else:
                self._count(record)
        self._kept = Kept(*kept.kept(), again)
        return self._kept

    def add(self, line: bytes) -> None:
        """Keep what `encode_scores` has encoded.

        Raises:
            OSError: It cannot be written.
        """
        for record in self._output.add(line):
            if record["row"] in self._kept:  # its group is scored again
                self._is_stale = True
            else:
                self._count(record)

    @property
    def progress(self) -> Progress:
        """What is kept so far."""
        found = self._summary
        failed = found.statuses["error"]
        return Progress(self._rows, found.items, found.missing, failed, found.mean)

    def finish(self, *, is_complete: bool, lerobot: str | None = None) -> Progress:
        """Return the totals, with the summary, once all items that could be scored are.

        Args:
            is_complete: Whether there are no further items, so that the last part can be written.
            lerobot: A data set to write a copy of, with the scores as rewards.

        Raises:
            OSError: The output cannot be written.
        """
        if is_complete:
            self._output.finish()
            if lerobot is not None and isinstance(self._output, Output):
                write_rewards(
                    Path(lerobot), self._output.folder / "lerobot", self._output.records()
                )
        if self._is_stale and isinstance(self._output, Output):
            self._summary = Summary()
            for record in self._output.records():
                self._summary.add(record)
        return replace(self.progress, lines=self._summary.lines())

    def _count(self, record: dict[str, Any]) -> None:
        self._summary.add(record)
        self._rows += not record["completion"]


def main() -> None:
    """Keep what the standard input has, until it ends, as it does with the process that scores."""
    gc.disable()  # records have no cycles; looking for some among them takes half of the time
    opening = json.loads(sys.stdin.buffer.readline())
    retry_failed = opening.pop("retry_failed")
    folder = opening["folder"] = Path(opening["folder"])
    try:
        with Output(**opening) as output:
            store = Store(output)
            kept = store.load(output, retry_failed=retry_failed)
            _send_answer("kept", asdict(kept))
            _send_answer("progress", asdict(store.progress))
            for line in sys.stdin.buffer:
                if not line.endswith(b"\n"):
                    break  # the process that scores was killed while it wrote
                if line.startswith(b"["):
                    store.add(line)
                    _send_answer("progress", asdict(store.progress))
                else:
                    _send_answer("totals", asdict(store.finish(**json.loads(line))))
    except OSError as error:
        _send_answer("OSError", f"{error.filename or folder}: {error.strerror}")
    except ValueError as error:
        _send_answer("ValueError", str(error))


def _send_answer(kind: str, value: Any) -> None:
    try:
        sys.stdout.buffer.write(json.dumps([kind, value]).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the process that scores was killed; what it has sent is kept even so
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
