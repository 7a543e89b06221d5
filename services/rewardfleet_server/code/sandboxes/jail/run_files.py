"""The files of a run, in memory. Their descriptors are all that a jail gets of a submission."""

import fcntl
import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import astuple

from rewardfleet_server.code.sandboxes import MAX_REPORT_BYTES, Check, Job, ProgramRun

from .guest.descriptors import ALL_SEALS, ORDER, Order, contents, write_all

#: Checks that are made by a process of their own.
_TESTED_APART = {"assert", "value", "alone"}
#: Programs whose objects may print when they are destroyed, e.g. files and generators. Destroying
#: the objects of all others would take some of them a third of their time, for nothing.
_PRINTS_LAST = (
    *("__del__", "ctypes", "open", "File", "Wrapper", "Writer", "type(", "__class__", "detach"),
    *("weakref", "yield", "async", "exec", "eval", "__import__", "import_module"),
)
#: Characters of a program in which they are not sought.
_LONG = 50_000
_IO = re.compile(r"io(?<!\wio)(?!\w)")  # a pattern that begins with letters is sought fast


class MemoryFiles:
    """Files in memory, which are closed together.

    Raises:
        OSError: The service has too many open files, or no memory.
    """

    def __init__(self) -> None:
        self._opened: list[int] = []

    def add(self, content: bytes = b"", *, sealable: bool = False) -> int:
        """Return the descriptor of a new file."""
        flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
        file = os.memfd_create("run", flags)
        self._opened.append(file)
        if content:
            write_all(file, content)
            os.lseek(file, 0, os.SEEK_SET)
        return file

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())


class ProgramFiles(MemoryFiles):
    """The files that all runs of a program share."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.prints_last = prints_last(program)
        self.last_run: RunFiles | None = None  #: of the last run, which are closed with these
        try:
            #: Descriptor of the source code, which cannot be changed.
            self.source = self.add(program.encode(errors="surrogatepass"), sealable=True)
            fcntl.fcntl(self.source, fcntl.F_ADD_SEALS, ALL_SEALS)
            #: Descriptor of a file for the compiled program, which the first run seals.
            self.code = self.add(sealable=True)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        if self.last_run is not None:
            self.last_run.close()

    def reset(self) -> None:
        """Prepare for another attempt of the first run, whose jail died."""
        if fcntl.fcntl(self.code, fcntl.F_GET_SEALS) != ALL_SEALS:
            os.ftruncate(self.code, 0)
            os.lseek(self.code, 0, os.SEEK_SET)


class RunFiles(MemoryFiles):
    """The files of one run. What it writes can be read once it has ended, until the next one."""

    def __init__(self, program: ProgramFiles, job: Job, run: ProgramRun) -> None:
        super().__init__()
        self._limits = job.limits
        self._tests_apart = has_tests_apart(run)
        own_checks = () if self._tests_apart else run.checks
        self._has_script = bool(run.setup or own_checks)
        self._prints_last = program.prints_last or prints_last(run.setup)
        self._links: tuple[socket.socket, ...] = ()
        if program.last_run is not None:
            program.last_run.close()
        program.last_run = self
        stdin = self.add(run.stdin)
        self._out, self._err, self._report = self.add(), self.add(), self.add()
        self._sent = [stdin, self._out, self._err, program.source, program.code, self._report]
        if self._has_script:
            self._sent.append(self.add(_script(run.setup, own_checks)))
        if self._tests_apart:
            self._test_err, self._test_report = self.add(), self.add()
            self._links = socket.socketpair()
            self._sent += [link.fileno() for link in self._links]
            self._sent += [self.add(_script(run.setup, run.checks)), self.add()]
            self._sent += [self._test_err, self._test_report]
        else:
            self._sent += map(self.add, run.files)

    def close(self) -> None:
        super().close()
        for link in self._links:
            link.close()

    def send(self, zygote: socket.socket, number: int) -> None:
        """Let a zygote start the processes of the run, which is stopped by its number.

        Raises:
            OSError: The zygote has ended.
        """
        what = self._tests_apart, self._has_script, self._prints_last
        order = Order._make((number, *what, *astuple(self._limits), MAX_REPORT_BYTES))
        socket.send_fds(zygote, [ORDER.pack(*order)], self._sent)
        for link in self._links:  # so that each process notices the end of the other
            link.close()

    def outputs(self) -> dict[str, bytes | None]:
        """Return what the run wrote, by the fields of a `RunResult`."""
        most = self._limits.output_bytes + 1
        stderr, test_report = contents(self._err, most), None
        if self._tests_apart:
            stderr += contents(self._test_err, most)
            test_report = contents(self._test_report, MAX_REPORT_BYTES + 1)
        return {
            "stdout": contents(self._out, most),
            "stderr": stderr[:most],
            "report": contents(self._report, MAX_REPORT_BYTES + 1),
            "test_report": test_report,
        }


def has_tests_apart(run: ProgramRun) -> bool:
    """Return whether a process of its own makes the checks of a run."""
    return any(check.kind in _TESTED_APART for check in run.checks)


def prints_last(source: str) -> bool:
    """Return whether a program may print when its objects are destroyed. A long one may."""
    if len(source) > _LONG:  # the search would hold up all threads for milliseconds
        return True
    # One pattern for all takes five times as long.
    return any(word in source for word in _PRINTS_LAST) or _IO.search(source) is not None


def _script(setup: str, checks: Sequence[Check]) -> bytes:
    return json.dumps([setup, [vars(check) for check in checks]]).encode()
