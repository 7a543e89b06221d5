"""The sandboxes of the code service, and the protocol that they implement.

A sandbox is registered as a lazy `module:attribute` string. The attribute is called with the
service's `CodeSettings` and returns a `Sandbox`.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from rewardfleet.wire.score import Timing

from .jail.guest.nodes import Signature

#: The sandboxes that come with the service, by name.
SANDBOXES: dict[str, str] = {
    "jail": "rewardfleet_server.code.sandboxes.jail.pool:build",
    "fusion": "rewardfleet_server.code.sandboxes.fusion:Fusion",
}

#: Maximum bytes of the report of a run. Parsed as JSON, it takes many times as much memory.
MAX_REPORT_BYTES = 4 * 2**20


@dataclass(frozen=True)
class RunLimits:
    """Limits of one run, in the order in which an `Order` has them."""

    cpu_s: float
    wall_s: float  #: in a jail, without the time in which it was ready and had no core, or paused
    memory_bytes: int  #: memory in addition to the interpreter's own
    output_bytes: int  #: size of standard output, and of any other file that is written


@dataclass(frozen=True)
class Check:
    """A call, an expression or an assert to evaluate after the program has run. Jails read it."""

    #: `call`: call the function named `source` with `args`. `eval`: evaluate the expression
    #: `source`, a call of the program with constants. `assert`: run the statements `source`, and
    #: `value`: evaluate the expression `source`, both in a process of the tests. `alone`: the same
    #: until it uses the program. `inside`: run the statements `source` in the program's process.
    kind: Literal["call", "eval", "assert", "value", "alone", "inside"]
    source: str  #: a name, or source code
    #: A secret that the answer repeats. Without it, the program cannot forge an answer.
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    args: tuple[JsonValue, ...] = ()  #: the arguments of a `call`
    integer_keys: bool = False  #: whether the keys of its first one are integers, as in no JSON
    #: If a `call` is made as LeetCode makes it: the signatures of the function, or of the methods
    #: that are called in turn, and their names, of which the first is the class.
    signatures: tuple[Signature, ...] = ()
    methods: tuple[str, ...] = ()
    entry_point: str = ""  #: what the tests of a script call, if it does not name it


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program, without expected values."""

    stdin: bytes = b""
    setup: str = ""  #: source code that runs before the program
    #: Evaluated after the program, which then runs as an imported module.
    checks: tuple[Check, ...] = ()
    #: Files that the program may read. Their paths are its arguments.
    files: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Job:
    """A program and its runs, in order."""

    program: str
    runs: Sequence[ProgramRun]  #: at least one
    limits: RunLimits  #: the limits of each run
    #: Whether the program is a checker. The supervisor of its jail reads expected outputs, so the
    #: jail runs no other programs.
    is_checker: bool = False


@dataclass(frozen=True)
class RunResult:
    """The result of a run, as observed from outside the program."""

    exit_code: int = 0  #: the exit code as in Python's `subprocess`: negative for a signal
    #: The limit that ended the run, if one did (`files`: it created too many files); `died` if the
    #: jail ended together with the run.
    stopped: Literal["", "cpu", "wall", "files", "died"] = ""
    #: Standard output, at most one byte longer than its limit, as are `stderr` and `report`.
    stdout: bytes = b""
    stderr: bytes = b""
    #: The answers to the checks: lines of JSON. The program may have written to it.
    report: bytes = b""
    #: The answers of the process of the tests, which the program cannot write to; None if there was
    #: none.
    test_report: bytes | None = None
    cpu_ms: float = 0.0
    #: Milliseconds of wall time that are charged to the program: those that count for its limit,
    #: and the CPU time to remove what it left behind.
    charged_ms: float = 0.0
    fork_ms: float = 0.0  #: milliseconds to create the process
    run_ms: float = 0.0  #: milliseconds of wall time of the process
    clean_ms: float = 0.0  #: milliseconds to remove what the run left behind


class Sandbox(Protocol):
    """Where programs run. It never sees expected values or HTTP."""

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        """Isolation, Python and versions: all that verdicts depend on besides the request."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What disturbed programs so far, by the names of the service's metrics."""

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        """Run the job's runs in order, until `on_result` returns False for a result.

        A run that breaks its jail is a failure of the program (`died`), and the last run of the
        job. One that SIGKILL ended is repeated, and is no result.

        Args:
            on_result: Called with each result, off the event loop.
            timing: The time for which the job waits for its turn is added to its `queue`.

        Raises:
            Unavailable: Programs cannot run now, or SIGKILL ended one again.
            BackendFailed: A remote sandbox rejected the job.
        """

    async def aclose(self) -> None:
        """End every process."""


async def run_once(sandbox: Sandbox, job: Job) -> RunResult:
    """Return the result of the first run of a job.

    Raises:
        Unavailable, BackendFailed: See `Sandbox.run`.
    """
    results: list[RunResult] = []

    def on_result(result: RunResult) -> bool:
        results.append(result)
        return False

    await sandbox.run(job, on_result, Timing())
    return results[0]
