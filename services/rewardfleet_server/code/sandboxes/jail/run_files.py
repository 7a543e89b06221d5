"""The files of a run, in memory. Their descriptors are all that a jail gets of a submission."""

import fcntl
import os
import socket

from rewardfleet_server.code.sandboxes import MAX_REPORT_BYTES, Job, ProgramRun

from .guest.descriptors import ALL_SEALS, Order, contents, encode_order, write_all

#: Checks that are made by a process of their own.
_TESTED_APART = {"assert", "value", "inside"}


class ProgramFiles:
    """The files that all runs of a program share.

    Args:
        program: The source code.

    Attributes:
        source: Descriptor of the source code, which cannot be changed.
        code: Descriptor of a file for the compiled program, which the first run seals.
    """

    def __init__(self, program: str) -> None:
        self.source = _memory_file(program.encode(errors="surrogatepass"), sealable=True)
        fcntl.fcntl(self.source, fcntl.F_ADD_SEALS, ALL_SEALS)
        self.code = _memory_file(sealable=True)

    def reset(self) -> None:
        """Prepare for another attempt of the first run, whose jail died."""
        if fcntl.fcntl(self.code, fcntl.F_GET_SEALS) != ALL_SEALS:
            os.ftruncate(self.code, 0)
            os.lseek(self.code, 0, os.SEEK_SET)

    def close(self) -> None:
        """Close the files."""
        os.close(self.source)
        os.close(self.code)


class RunFiles:
    """The files of one run. What it writes can be read once it has ended.

    Args:
        program: The files of its program.
        job: Has its limits.
        run: Its input and checks.

    Attributes:
        tests_apart: Whether the checks are made by a process of their own.
    """

    def __init__(self, program: ProgramFiles, job: Job, run: ProgramRun) -> None:
        self.tests_apart = any(check.kind in _TESTED_APART for check in run.checks)
        self._limits = job.limits
        limits = job.limits
        order = Order(
            limits.cpu_s,
            limits.memory_bytes,
            limits.output_bytes,
            MAX_REPORT_BYTES,
            run.setup,
            [check.as_json() for check in run.checks],
        )
        own_order = order._replace(checks=(), tests_apart=True) if self.tests_apart else order
        stdin = _memory_file(run.stdin)
        self._out, self._err, self._report = (_memory_file() for _ in range(3))
        first = [_memory_file(encode_order(own_order)), stdin, self._out, self._err]
        self._own = [*first, self._report]
        self._sent = [*first, program.source, program.code, self._report]
        self._test_err = self._test_report = -1
        self._links: tuple[socket.socket, ...] = ()
        if self.tests_apart:
            self._add_tests(order)
        else:
            arguments = [_memory_file(file) for file in run.files]
            self._own += arguments
            self._sent += arguments

    def _add_tests(self, order: Order) -> None:
        self._links = socket.socketpair()
        self._test_err, self._test_report = _memory_file(), _memory_file()
        added = [_memory_file(encode_order(order)), self._test_err, self._test_report]
        self._own += added
        self._sent += [*(link.fileno() for link in self._links), *added]

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

    def close(self) -> None:
        """Close the files."""
        for link in self._links:
            link.close()
        for file in self._own:
            os.close(file)


def _memory_file(content: bytes = b"", *, sealable: bool = False) -> int:
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
    file = os.memfd_create("run", flags)
    if content:
        write_all(file, content)
        os.lseek(file, 0, os.SEEK_SET)
    return file
