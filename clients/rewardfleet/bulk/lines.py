"""Lines in a file, of which only the places are in memory."""

import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path


class Lines:
    """Lines by row: eight bytes of memory for each row up to the last one.

    Args:
        path: The file, whose lines are not known yet; None for an unnamed one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.file = path.open("a+b") if path else tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self.size = 0  #: bytes of the file
        self._places = array("q")  # -1: no such line

    def put(self, row: int, line: bytes) -> None:
        """Write a line, in place of one that is there."""
        self.file.seek(self.size)
        self.file.write(line)
        self.file.flush()
        self.found(row, line)

    def found(self, row: int, line: bytes) -> None:
        """Note a line that the file has at its end."""
        self._places.extend([-1] * (row + 1 - len(self._places)))
        self._places[row] = self.size
        self.size += len(line)

    def get(self, row: int) -> bytes | None:
        """Return a line; None if there is none."""
        if row >= len(self._places) or self._places[row] < 0:
            return None
        self.file.seek(self._places[row])
        return self.file.readline()

    def drop(self, rows: range) -> None:
        """Forget lines that are there."""
        self._places[rows.start : rows.stop] = array("q", [-1]) * len(rows)

    def rows(self, start: int = 0) -> Iterator[int]:
        """Yield the rows that have a line, from one on."""
        return (row for row in range(start, len(self._places)) if self._places[row] >= 0)

    def __del__(self) -> None:
        self.file.close()
