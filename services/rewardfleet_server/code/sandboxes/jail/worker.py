"""One jail, as seen from outside. All calls block."""

import json
import logging
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, RunResult
from rewardfleet_server.system.listener import has_input

from . import guest
from .guest.descriptors import KILLED, contents
from .isolation import IsolationSpec, runs_at_all, spawn
from .run_files import ProgramFiles, RunFiles
from .seccomp import Filters

if TYPE_CHECKING:  # it imports this module
    from .pool import CoreTurn

log = logging.getLogger(__name__)

#: What a jail runs.
_GUEST = f"{guest.loader('supervisor')}\npackage.supervisor.main()\n".encode()
#: Bytes of the longest message of a jail: of one that names packages, and of any other.
_MAX_NAMES, _MAX_MESSAGE = 2**17, 2**12
_START_TIMEOUT_S = 20.0
#: Seconds for which a jail may send nothing, in addition to the wall time limit of a run.
_GRACE_S = 20.0
_END_TIMEOUT_S = 5.0

#: Modules that programs often import. Each 20 MB or so of them adds a millisecond to every fork.
_PRELOAD = (
    "abc array ast bisect cmath collections collections.abc contextlib copy dataclasses datetime "
    "decimal enum fractions functools heapq io itertools json math numbers operator os queue "
    "random re statistics string sys textwrap threading time typing"
)


class JailUnavailable(Exception):
    """A jail could not be started, or does not isolate."""


class PythonUnusable(JailUnavailable):
    """The interpreter, or a module to preload, cannot be used in jails that work otherwise."""


class JailDied(Exception):
    """A jail ended, or stopped responding, while a program ran."""


class Killed(JailDied):
    """SIGKILL ended a process of a jail. No program can send it, so none is to blame."""


@dataclass(frozen=True)
class WorkerConfig:
    """How to start the jails of a service."""

    spec: IsolationSpec  #: how to start a supervisor
    seccomp: Filters
    preload: tuple[str, ...]  #: modules to import before the first program, besides the usual ones
    #: The last sets of modules that jails could not import.
    not_preloaded: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=1000))


class Worker:
    """Runs one job at a time in its jail, which is replaced if it breaks.

    Used by one thread at a time, except for `stop` and `pause`.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._zygote: socket.socket | None = None
        self._stopped = threading.Event()
        self._run_number = 0
        self._grant: CoreTurn | None = None
        #: What the next job's jail imports for all programs, and what this one has imported.
        self.modules = self._imported = frozenset[str]()
        #: What the supervisor reported when it started: its Python, packages and Landlock.
        self.handshake: Mapping[str, Any] = {}
        self.restarts = 0  #: how many times a jail was started in place of another one
        self.kills = 0  #: how many runs were ended from outside

    def start(self) -> None:
        """Start a jail unless there is one.

        Raises:
            JailUnavailable: It did not start.
            PythonUnusable: The reason is the interpreter, or a module to preload.
        """
        if self._channel is not None:
            if not has_input(self._channel):  # an idle supervisor sends nothing
                return
            self.close()  # it died while idle, so no program is to blame
        if self.handshake:
            self.restarts += 1
        channel, supervisor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygote, zygote_end = socket.socketpair()
        spec = self.config.spec
        config = {
            **vars(spec),
            "preload": [*_PRELOAD.split(), *self.config.preload],
            "modules": sorted(self.modules),
            "filters": [each.hex() for each in astuple(self.config.seccomp)],
        }
        with supervisor_end, zygote_end, os.fdopen(os.memfd_create("errors")) as errors:
            try:
                ends = supervisor_end.fileno(), zygote_end.fileno()
                self._process = spawn(spec.command, ends, errors.fileno())
                supervisor_end.close()
                zygote_end.close()
                assert self._process.stdin is not None  # noqa: S101 - a pipe was requested
                with self._process.stdin as stdin:
                    stdin.write(_GUEST)
                channel.settimeout(_START_TIMEOUT_S)
                _send(channel, config)
                environment = []
                while "packages" in (message := _receive(channel, _MAX_NAMES)):
                    environment += message["packages"]
                self.handshake = {**message, "environment": environment}
                self._channel, self._zygote = channel, zygote  # from now on, others may send to it
            except (OSError, subprocess.SubprocessError, JailDied) as error:
                channel.close()
                zygote.close()
                self.close()
                output = contents(errors.fileno(), 10_000).decode(errors="replace").strip()
                reason = output.rpartition("\n")[2][-500:] or str(error)
                # An OSError of the supervisor is of Landlock or seccomp, not of its interpreter.
                if not reason.startswith("OSError") and runs_at_all(spec):
                    raise PythonUnusable(
                        f"--python {spec.python}: programs cannot reach it, or what it needs, at "
                        f"isolation {spec.level} ({reason})"
                    ) from error
                raise JailUnavailable(f"{spec.level}: {reason}") from error
        if spec.level == "landlock" and not self.handshake["landlock"]:
            self.close()
            raise JailUnavailable("landlock: this kernel does not have it")
        if self.handshake["missing"]:
            self.close()
            name, reason = self.handshake["missing"][0]
            raise PythonUnusable(
                f"--preload {name}: cannot be imported by {spec.python}, which runs the programs "
                f"({reason})"
            )

    @property
    def has_started(self) -> bool:
        return self._channel is not None

    def begin(self, grant: "CoreTurn") -> None:
        """Prepare for the next job: undo `stop`, and use the job's permit."""
        self._grant = grant
        self._stopped.clear()

    def run(self, job: Job, on_result: Callable[[RunResult], bool]) -> bool:
        """Run a job; see `Sandbox.run`. Return False if `stop` ended it early.

        If the jail dies, or a process of the run is killed, the run is repeated once in a new jail.
        The program is to blame if that dies as well, and neither was killed.

        Raises:
            JailUnavailable: No jail can be started now.
            Killed: A run was killed, and could not be completed in a new jail.
        """
        if self.modules != self._imported:
            self._preload()
        self.start()
        try:
            return self._run_all(job, on_result)
        except JailDied as error:
            self.close()
            if self._stopped.is_set():
                return False
            if isinstance(error, Killed):
                raise
            self.probe()  # if a new jail does not work either, it is not the program's fault
            on_result(RunResult(exit_code=-signal.SIGKILL, stopped="died"))
            return True
        except OSError as error:
            self.close()
            raise JailUnavailable(f"no files for a run: {error}") from error
        except BaseException:
            self.close()  # its next message would belong to this job
            raise

    def _preload(self) -> None:
        """Start a jail that imports the modules. If there cannot be one, none tries it again."""
        self.close()
        self.handshake = {}  # it is not in place of one that died
        try:
            self.probe()
        except JailUnavailable:
            if not self._stopped.is_set():  # else that is the reason
                log.info("programs import %s themselves: no jail can before", [*self.modules])
                self.config.not_preloaded.append(self.modules)
            self.modules = frozenset()
        self._imported = self.modules

    def _run_all(self, job: Job, on_result: Callable[[RunResult], bool]) -> bool:
        """Run a job. The next run is started before `on_result` sees the last one."""
        program = ProgramFiles(job.program)
        try:
            files = self._send_run(program, job, job.runs[0])
            for run, following in zip(job.runs, [*job.runs[1:], None], strict=True):
                report, files = self._report_on(files, program, job, run)
                result = RunResult(**report["result"], **files.outputs())  # type: ignore[arg-type]
                if report["unclean"]:
                    log.warning("a jail could not be cleaned after a run, and is replaced")
                    self.close()
                    self.start()
                if self._stopped.is_set():
                    return False
                if following is not None:
                    files = self._send_run(program, job, following)
                if not on_result(result):
                    if following is not None:
                        self._send_order(stop=self._run_number)
                        try:
                            self._receive_report()
                        except JailDied:
                            self.close()  # the next job gets a new jail
                    break
            return True
        finally:
            program.close()

    def _report_on(
        self, files: RunFiles, program: ProgramFiles, job: Job, run: ProgramRun
    ) -> tuple[Mapping[str, Any], RunFiles]:
        """Return the report on a run that was sent; if its jail dies, repeat it in a new one."""
        try:
            return self._receive_report(), files
        except JailDied as error:
            self.close()
            if self._stopped.is_set():
                raise
            first = error
        self.kills += isinstance(first, Killed)
        why = "SIGKILL ended a program" if isinstance(first, Killed) else "the jail died with one"
        log.warning("%s, which is repeated in a new jail", why)
        self.start()
        program.reset()
        files = self._send_run(program, job, run)
        try:
            return self._receive_report(), files
        except JailDied as error:
            self.kills += isinstance(error, Killed)
            if isinstance(first, Killed):
                raise first from None
            raise

    def probe(self) -> None:
        """Run a known-good program that also attempts what must be refused.

        Raises:
            JailUnavailable: No jail can be started, or it does not isolate.
        """
        self.start()
        level = self.config.spec.level
        with closing(ProgramFiles(_PROBE.program)) as program:
            files = self._send_run(program, _PROBE, _PROBE.runs[0])
            try:
                report = self._receive_report()
            except JailDied as error:
                self.close()
                raise JailUnavailable(f"{level}: a known-good program ended the jail") from error
            result = RunResult(**report["result"], **files.outputs())  # type: ignore[arg-type]
        output = result.stdout.decode(errors="replace")
        if level == "none-unsafe":
            output = output.replace(_READS_FILES, "")
        if report["unclean"] or result.exit_code or output != "in\n":
            self.close()
            why = output.strip() or result.stderr.decode(errors="replace").strip()
            raise JailUnavailable(f"{level}: does not isolate: {why[-300:]}")

    def stop(self) -> None:
        """End the current job soon. Can be called from any thread while there is a job."""
        self._stopped.set()
        self._send_order(stop=self._run_number)
        if self._grant is not None:
            self._grant.cancel()

    def pause(self) -> None:
        """Pause the program, or the next one, until its job has a core, from any thread."""
        self._send_order(pause=True)

    def _send_order(self, **order: int) -> None:
        channel = self._channel
        if channel is not None:
            with suppress(JailDied):  # it has ended already
                _send(channel, order)

    def close(self) -> None:
        process, ends = self._process, (self._channel, self._zygote)
        self._process = self._channel = self._zygote = None
        for end in ends:
            if end is not None:
                end.close()
        if process is not None:
            process.kill()
            process.wait(_END_TIMEOUT_S)

    def _send_run(self, program: ProgramFiles, job: Job, run: ProgramRun) -> RunFiles:
        """Start a run and return its files. If the jail has died, receiving the report fails."""
        if self._grant is not None and self._grant.needs_core:  # e.g. the last run slept at its end
            self._grant.take()
        files = RunFiles(program, job, run)
        channel, zygote = self._channel, self._zygote
        if channel is None or zygote is None:
            return files
        self._run_number += 1
        channel.settimeout(job.limits.wall_s + _GRACE_S)
        try:
            files.send(zygote, self._run_number)
        except OSError:
            self.close()
        if self._stopped.is_set():  # maybe before there was this number
            self._send_order(stop=self._run_number)
        return files

    def _receive_report(self) -> Mapping[str, Any]:
        """Return the report on a run; raise JailDied, or JailUnavailable if it did not begin."""
        channel = self._channel
        if channel is None:
            raise JailDied
        try:
            report = _receive(channel)
            while "result" not in report and "refused" not in report:
                if "asleep" in report:
                    self._follow_sleep(channel, asleep=report["asleep"])
                elif "long" in report and self._grant is not None:
                    self._grant.take_long()  # any other one says that the jail is alive
                report = _receive(channel)
        except JailDied as error:
            if isinstance(error.__cause__, TimeoutError) or not self._was_killed():
                raise
            raise Killed from None
        if "refused" in report:
            raise JailUnavailable(f"{self.config.spec.level}: {report['refused']}")
        if report["killed"]:
            raise Killed
        return report

    def _was_killed(self) -> bool:
        assert self._process is not None  # noqa: S101 - it has a channel
        try:
            status = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False
        return status in {-signal.SIGKILL, KILLED}

    def _follow_sleep(self, channel: socket.socket, *, asleep: bool) -> None:
        """Lend the core while the program sleeps. Otherwise it is paused until it has one."""
        grant = self._grant
        if grant is not None and asleep:
            grant.lend()
        elif grant is not None and grant.needs_core:
            grant.take()
        if self._stopped.is_set():
            self._send_order(stop=self._run_number)
        elif not asleep:
            _send(channel, {"core": True})


def _send(channel: socket.socket, content: Mapping[str, Any]) -> None:
    try:
        channel.send(json.dumps(content).encode())
    except OSError as error:
        raise JailDied from error


def _receive(channel: socket.socket, max_bytes: int = _MAX_MESSAGE) -> dict[str, Any]:
    try:
        message = channel.recv(max_bytes)
    except OSError as error:
        raise JailDied from error
    if not message:
        raise JailDied
    return dict(json.loads(message))


#: What `none-unsafe` does not prevent.
_READS_FILES = "a program could read files of the host\n"
#: Prints what it read, and each forbidden action that succeeded.
_PROBE = Job(
    """
import ctypes, os, socket
print(input())
for name, attempt in {
    "read files of the host": lambda: open("/etc/hosts"),
    "write to /usr": lambda: open("/usr/.probe", "w"),
    "fork": os.fork,
    "signal": lambda: os.kill(os.getppid(), 0),
    "open a socket": socket.socket,
}.items():
    try:
        attempt()
    except OSError:
        continue
    if os.getpid() > 0:
        print("a program could " + name)
""",
    [ProgramRun(stdin=b"in")],
    RunLimits(cpu_s=5.0, wall_s=20.0, memory_bytes=256 * 2**20, output_bytes=2**20),
)
