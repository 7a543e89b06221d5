"""The sandbox `fusion`: programs run at a SandboxFusion server, by its `run_code`.

What is run there is a guest, a few lines around the jail's warden, which runs the program as a
jail does: with the same limits on CPU, memory and output, the same questions, the same report.
What the program writes comes back as files: SandboxFusion cuts off its pipes without a word, and
stops reading them at all past a megabyte. How programs are kept in there is that server's affair.

The published client raises one and the same exception for an outage and a refusal, and tries
again by itself; here each try is one call of it, and what it raised is told apart.
"""

import asyncio
import base64
import hashlib
import importlib
import json
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rewardfleet.wire.errors import BackendFailed, Unavailable
from rewardfleet_server.code.settings import CodeSettings

from . import MAX_REPORT_BYTES, Job, ProgramRun, RunLimits, RunResult

log = logging.getLogger(__name__)

#: Tries of one run in all, and the longest wait between two, in seconds.
_TRIES = 4
_MAX_WAIT = 5.0
#: Seconds that an answer may come later than the run's own bound: a crowded server.
_LATE_SECONDS = 10.0

_REFUSED = re.compile(r"Faas api responded with code (\d+)")
_OUTPUTS = ("stdout", "stderr", "report")

_WARDEN = (Path(__file__).parent / "jail" / "warden.py").read_bytes()
#: Reads its orders before the program is there to read them, then becomes the program.
_GUEST = """
import json, math, os, resource, time, types
import warden

def opened(name):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

class Guest(warden.Run):
    def take_limits(self):
        warden.limit_all_runs()
        warden.limit(resource.RLIMIT_NPROC, 4096)
        seconds = math.ceil(self.order["cpu_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        with open("/proc/self/statm") as statm:
            base = int(statm.read().split()[0]) * resource.getpagesize()
        warden.limit(resource.RLIMIT_AS, base + self.order["memory_bytes"])

    def flush(self):
        super().flush()
        self.tell({"cpu_ms": time.process_time() * 1000})

given = b"".join(iter(lambda: os.read(0, 1 << 20), b""))
text, _, stdin = given.partition(b"\\n")
order = json.loads(text)
files = types.SimpleNamespace(stdin=opened("stdin"), out=opened("stdout"), err=opened("stderr"))
files.report, files.code = opened("report"), None
warden.write_all(files.stdin, stdin)
os.lseek(files.stdin, 0, os.SEEK_SET)
del given, text, stdin
warden.open_streams()
Guest(types.SimpleNamespace(source=order.pop("source"), code=None), order, files).go()
"""
_CPU = re.compile(rb'\{"cpu_ms": ([\d.]{1,20})\}\n\Z')

_PROBE = Job(
    "import sys\nprint(input(), sys.version.split()[0])",
    [ProgramRun(stdin=b"in")],
    RunLimits(cpu_s=5, wall_s=20, memory_bytes=256 << 20, output_bytes=1 << 16),
)

#: The client's `run_code_async`.
_Call = Callable[..., Awaitable[Any]]


def build(settings: CodeSettings) -> "Fusion":
    """Make the sandbox that the settings describe. The server need not be there yet.

    Raises:
        ValueError: Its URL or the client's package is missing.
    """
    if settings.fusion_url is None:
        raise ValueError("the sandbox fusion needs --fusion-url")
    try:
        client = importlib.import_module("sandbox_fusion")
    except ImportError:
        raise ValueError(
            "the sandbox fusion needs a package: pip install 'rewardfleet[fusion]'"
        ) from None
    # It logs whole programs when it gives up; what failed is logged here.
    logging.getLogger("sandbox_fusion").setLevel(logging.CRITICAL)
    return Fusion(
        str(settings.fusion_url),
        settings.fusion_concurrency,
        client.run_code_async,
        client.RunCodeRequest,
    )


class Fusion:
    """A SandboxFusion server.

    Args:
        concurrency: Runs there at once.
        call: The client's `run_code_async`.
        request_type: The client's model of what that takes.
    """

    def __init__(
        self, url: str, concurrency: int, call: _Call, request_type: Callable[..., Any]
    ) -> None:
        self._url = url.rstrip("/")
        self._places = asyncio.Semaphore(concurrency)
        self._call = call
        self._request_type = request_type
        self._python: str | None = None

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "sandbox": "fusion",
            "isolation": "fusion",
            "url": self._url,
            "guest": hashlib.sha256(_WARDEN + _GUEST.encode()).hexdigest()[:16],
            "python": self._python,
        }

    async def run(self, job: Job, on_result: Callable[[RunResult], bool]) -> float:
        """See `Sandbox.run`.

        Raises:
            BackendFailed: The server refused.
            Unavailable: It is not to be had, or does not run a program that is known to be good.
        """
        waited = 0.0
        if self._python is None:
            waited += await self._probe()
        for run in job.runs:
            ended, seconds = await self._run(job, run)
            waited += seconds
            if ended is None:  # some output is missing; is it the server's fault?
                waited += await self._probe()
                ended = RunResult(exit_code=-9, stopped="died")
            if not await asyncio.to_thread(on_result, ended) or ended.stopped == "died":
                break
        return waited

    async def aclose(self) -> None:
        """Nothing is held."""

    async def _probe(self) -> float:
        """Run a program that is known to be good."""
        ended, waited = await self._run(_PROBE, _PROBE.runs[0])
        said, _, python = (ended.stdout if ended else b"").decode(errors="replace").partition(" ")
        if said != "in":
            why = ended.stderr[-300:].decode(errors="replace") if ended else "returns no files"
            raise Unavailable(
                f"SandboxFusion at {self._url} does not run a known-good program: {why}"
            )
        self._python = python.strip()
        return waited

    async def _run(self, job: Job, run: ProgramRun) -> tuple[RunResult | None, float]:
        """Return how a run ended, None where its outputs are gone, and the seconds waited."""
        request = await asyncio.to_thread(self._request, job, run)
        answer, waited = await self._ask(request, job.bounds.wall_s + _LATE_SECONDS)
        return await asyncio.to_thread(_ended, answer, job.bounds), waited

    def _request(self, job: Job, run: ProgramRun) -> Any:
        bounds = job.bounds
        order = {
            "source": job.program,
            "cpu_s": bounds.cpu_s,
            "memory_bytes": bounds.memory_bytes,
            "output_bytes": bounds.output_bytes,
            "setup": run.setup,
            "checks": [
                {check.kind: check.source, "args": list(check.args), "nonce": check.nonce}
                for check in run.checks
            ],
        }
        return self._request_type(
            code=_GUEST,
            language="python",
            stdin=f"{json.dumps(order)}\n{run.stdin.decode()}",
            run_timeout=bounds.wall_s,
            files={"warden.py": base64.b64encode(_WARDEN).decode()},
            fetch_files=list(_OUTPUTS),
        )

    async def _ask(self, request: Any, timeout_s: float) -> tuple[Any, float]:
        """Ask, and ask again what may be answered later. The request's deadline ends it all.

        A server that is silent is not asked again: too many questions are what silences it.
        """
        waited = 0.0
        for attempt in range(1, _TRIES + 1):
            asked = time.monotonic()
            async with self._places:
                waited += time.monotonic() - asked
                try:
                    answer = await self._call(
                        request, endpoint=self._url, max_attempts=1, client_timeout=timeout_s
                    )
                except TimeoutError:
                    raise Unavailable(
                        f"SandboxFusion at {self._url} gave no answer in {timeout_s:g} s"
                    ) from None
                except Exception as error:  # noqa: BLE001 - it raises no less for a refusal
                    reason = f"{type(error).__name__}: {str(error)[:300]}"
                else:
                    if _is_complete(answer.run_result):
                        return answer, waited
                    reason = f"the answer does not say how the run ended: {answer.message[:300]}"
            refused = _REFUSED.search(reason)
            status = int(refused[1]) if refused else 500
            if status < 500 and status not in {408, 429}:
                raise BackendFailed(f"SandboxFusion at {self._url} refused: {reason}")
            log.warning("SandboxFusion at %s, try %d: %s", self._url, attempt, reason)
            if attempt < _TRIES:
                # Full jitter, so that those who failed together do not come again together.
                await asyncio.sleep(random.uniform(0, min(_MAX_WAIT, 0.2 * 2**attempt)))  # noqa: S311 - no secret
        raise Unavailable(f"SandboxFusion at {self._url} failed {_TRIES} times: {reason}")


def _is_complete(result: Any) -> bool:
    if result is None:
        return False
    is_finished = result.status == "Finished" and result.return_code is not None
    return is_finished or result.status == "TimeLimitExceeded"


def _ended(answer: Any, bounds: RunLimits) -> RunResult | None:
    """Read an answer; None where the run ended, and what it wrote is not all there."""
    result, files = answer.run_result, answer.files
    is_late = result.status == "TimeLimitExceeded"
    if not is_late and not set(_OUTPUTS) <= set(files):
        return None
    stdout, stderr, report = (base64.b64decode(files.get(name, "")) for name in _OUTPUTS)
    code = result.return_code or 0
    run_ms = 1000 * (result.execution_time or 0.0)
    used = _CPU.search(report)
    return RunResult(
        # A shell tells of a signal by 128 and its number.
        exit_code=128 - code if code > 128 else code,
        stopped="wall" if is_late else "",
        stdout=stdout[: bounds.output_bytes + 1],
        stderr=stderr[: bounds.output_bytes + 1],
        report=_CPU.sub(b"", report)[: MAX_REPORT_BYTES + 1],
        cpu_ms=float(used[1]) if used else 0.0,
        run_ms=run_ms,
    )
