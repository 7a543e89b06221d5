"""The sandboxes of the code service, and what each of them must be able to do.

A sandbox is found by a lazy `module:attribute` string. The attribute is called with the
service's `CodeSettings` and returns a `Sandbox`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

#: The sandboxes that come with the service, by name.
SANDBOXES: dict[str, str] = {
    "jail": "rewardfleet_server.code.sandboxes.jail.pool:build",
    "fusion": "rewardfleet_server.code.sandboxes.fusion:build",
}


#: Bytes of a run's answers to its checks. Read as JSON, they take many times that.
MAX_REPORT_BYTES = 4 * 2**20


@dataclass(frozen=True)
class RunLimits:
    """What one run may take.

    Attributes:
        memory_bytes: Beside what the interpreter takes.
        output_bytes: Of standard output, and of anything else that is written.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class Check:
    """One question to a program that has been run.

    Attributes:
        kind: `call`: call the function named by `source` with `args`. `eval`: evaluate the
            expression `source`. `assert`: run the statement `source`.
        nonce: The answer carries it. A program that was not given it cannot answer.
    """

    kind: Literal["call", "eval", "assert"]
    source: str
    nonce: str
    args: tuple[JsonValue, ...] = ()


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program: by itself, or to be asked something. Without expected answers."""

    stdin: bytes = b""
    setup: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Job:
    """A program, and what it is to be run on, in order."""

    program: str
    runs: Sequence[ProgramRun]
    bounds: RunLimits


@dataclass(frozen=True)
class RunResult:
    """How a run ended, as it was seen from outside the program.

    Attributes:
        exit_code: As Python's `subprocess` has it: of a signal, its number below 0.
        stopped: Which limit ended it, if one did (`files`: it made too many); `died` where the
            whole jail did.
        stdout: At most one byte more than the bound; likewise `stderr` and `report`.
        report: What answers there are to the checks: lines of JSON. The program may have written
            to it too.
    """

    exit_code: int = 0
    stopped: Literal["", "cpu", "wall", "files", "died"] = ""
    stdout: bytes = b""
    stderr: bytes = b""
    report: bytes = b""
    cpu_ms: float = 0.0
    fork_ms: float = 0.0
    run_ms: float = 0.0
    clean_ms: float = 0.0


class Sandbox(Protocol):
    """Where programs run. It knows no expected answers, and never sees HTTP.

    Attributes:
        provenance: Isolation, Python, versions: all that verdicts depend on beside the request.
    """

    @property
    def provenance(self) -> Mapping[str, JsonValue]: ...

    async def run(self, job: Job, on_result: Callable[[RunResult], bool]) -> float:
        """Run the job's runs in order, until `on_result` returns False for a result.

        `on_result` is called off the event loop. A run that breaks its jail is the program's
        failure (`died`), and the job's last.

        Returns:
            How many seconds the job waited for a place.

        Raises:
            Unavailable: There is no jail to be had now.
        """

    async def aclose(self) -> None:
        """End every process."""
