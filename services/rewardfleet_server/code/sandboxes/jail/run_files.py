"""The files of a run, in memory. Their descriptors are all that a jail gets of a submission."""

import fcntl
import os
import socket
from contextlib import ExitStack

from rewardfleet_server.code.sandboxes import MAX_REPORT_BYTES, Job, ProgramRun

from .guest.descriptors import ALL_SEALS, Order, contents, encode_order, write_all

#: Checks that are made by a process of their own.
_TESTED_APART = {"assert", "value"}


class ProgramFiles:
    """The files that all runs of a program share.

    Args:
        program: The source code.

    Attributes:
        source: Descriptor of the source code, which cannot be changed.
        code: Descriptor of a file for the compiled program, which the first run seals.

    Raises:
        OSError: The service has too many open files, or no memory.
    """

    def __init__(self, program: str) -> None:
        with ExitStack() as files:
            self.source = _memory_file(files, program.encode(errors="surrogatepass"), sealable=True)
            fcntl.fcntl(self.source, fcntl.F_ADD_SEALS, ALL_SEALS)
            self.code = _memory_file(files, sealable=True)
            self.close = files.pop_all().close

    def reset(self) -> None:
        """Prepare for another attempt of the first run, whose jail died."""
        if fcntl.fcntl(self.code, fcntl.F_GET_SEALS) != ALL_SEALS:
            os.ftruncate(self.code, 0)
            os.lseek(self.code, 0, os.SEEK_SET)


class RunFiles:
    """The files of one run. What it writes can be read once it has ended.

    Args:
        program: The files of its program.
        job: Has its limits.
        run: Its input and checks.

    Attributes:
        tests_apart: Whether the checks are made by a process of their own.

    Raises:
        OSError: The service has too many open files, or no memory.
    """

    def __init__(self, program: ProgramFiles, job: Job, run: ProgramRun) -> None:
        self.tests_apart = any(check.kind in _TESTED_APART for check in run.checks)
        self._limits = limits = job.limits
        order = Order(
            limits.cpu_s,
            limits.memory_bytes,
            limits.output_bytes,
            MAX_REPORT_BYTES,
            run.setup,
            [check.as_json() for check in run.checks],
        )
        own_order = order._replace(checks=(), tests_apart=True) if self.tests_apart else order
        self._links: tuple[socket.socket, ...] = ()
        self._test_err = self._test_report = -1
        with ExitStack() as files:
            first = [_memory_file(files, each) for each in (encode_order(own_order), run.stdin)]
            self._out, self._err, self._report = (_memory_file(files) for _ in range(3))
            # An open file of its own: a position that a run leaves in it reaches no other one.
            source = os.open(f"/proc/self/fd/{program.source}", os.O_RDONLY | os.O_CLOEXEC)
            files.callback(os.close, source)
            self._sent = [*first, self._out, self._err, source, program.code, self._report]
            if self.tests_apart:
                self._add_tests(files, order)
            else:
                self._sent += [_memory_file(files, file) for file in run.files]
            self.close = files.pop_all().close

    def _add_tests(self, files: ExitStack, order: Order) -> None:
        self._links = socket.socketpair()
        for link in self._links:
            files.enter_context(link)
        test_order, stdin = _memory_file(files, encode_order(order)), _memory_file(files)
        self._test_err, self._test_report = _memory_file(files), _memory_file(files)
        self._sent += [link.fileno() for link in self._links]
        self._sent += [test_order, stdin, self._test_err, self._test_report]

    def send(self, zygote: socket.socket) -> None:
        """Let a zygote start the processes of the run, in `zygote.ROLES`.

        Raises:
            OSError: The zygote has ended.
        """
        socket.send_fds(zygote, [b"t" if self.tests_apart else b"p"], self._sent)
        for link in self._links:  # so that each process notices the end of the other
            link.close()

    def outputs(self) -> dict[str, bytes | None]:
        """Return what the run wrote, by the fields of a `RunResult`."""
        most = self._limits.output_bytes + 1
        stderr = contents(self._err, most)
        if not self.tests_apart:
            report: bytes | None = None
        else:
            stderr += contents(self._test_err, most)
            report = contents(self._test_report, MAX_REPORT_BYTES + 1)
        return {
            "stdout": contents(self._out, most),
            "stderr": stderr[:most],
            "report": contents(self._report, MAX_REPORT_BYTES + 1),
            "test_report": report,
        }


def _memory_file(files: ExitStack, content: bytes = b"", *, sealable: bool = False) -> int:
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
    file = os.memfd_create("run", flags)
    files.callback(os.close, file)
    if content:
        write_all(file, content)
        os.lseek(file, 0, os.SEEK_SET)
    return file
