"""Lines in a file, of which only the places are in memory."""

import tempfile
from array import array
from collections.abc import Iterable, Iterator
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

    def put(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Write lines of rows, in place of those that are there."""
        self.file.seek(self.size)
        for row, line in lines:
            self.file.write(line)
            self.found(row, line)

    def found(self, row: int, line: bytes) -> None:
        """Note a line that the file has at its end."""
        missing = row + 1 - len(self._places)
        if missing > 0:
            self._places.extend([-1] * missing)
        self._places[row] = self.size
        self.size += len(line)

    def __contains__(self, row: int) -> bool:
        return row < len(self._places) and self._places[row] >= 0

    def get(self, row: int) -> bytes | None:
        """Return a line; None if there is none."""
        if row not in self:
            return None
        self.file.seek(self._places[row])
        return self.file.readline()

    def rows(self) -> Iterator[int]:
        """Yield the rows that have a line, in order."""
        return (row for row, place in enumerate(self._places) if place >= 0)

    def __del__(self) -> None:
        self.file.close()
