"""The sandbox `fusion`: programs run on a SandboxFusion server, through its `run_code`.

The server runs a guest: a few lines around the code of the jail (jail/guest), which run the program
as in a jail, with the same limits on CPU, memory and output, the same checks and the same report.
Output comes back as files, because SandboxFusion silently truncates its pipes, and stops reading
them after a megabyte. Isolation is up to that server. The published client raises one exception for
an outage and for a rejected request, which only its message distinguishes, and retries on its own.
"""

import asyncio
import base64
import hashlib
import importlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from rewardfleet.wire.errors import BackendFailed, Unavailable
from rewardfleet.wire.optional_imports import require
from rewardfleet.wire.score import Timing
from rewardfleet.wire.waiting import backoff_with_jitter
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.observe.tracing import stage

from . import MAX_REPORT_BYTES, Job, ProgramRun, RunLimits, RunResult
from .jail.guest import loader
from .jail.run_files import prints_last

log = logging.getLogger(__name__)

#: Attempts of one run in total, and the longest wait between two, in seconds.
_MAX_ATTEMPTS = 4
_MAX_WAIT_S = 5.0
#: Seconds that a busy server may take in addition to the wall time limit of the run.
_GRACE_S = 10.0

#: The HTTP status in the client's exceptions.
_STATUS = re.compile(r"Faas api responded with code (\d+)")
_OUTPUTS = ("stdout", "stderr", "report")

_LOADER = loader("program").encode()
#: Reads its input before the program can read it, then becomes the program.
_GUEST = """
import json, math, os, resource, time
import loader
from rewardfleet_guest import confinement, descriptors, program

def opened(name):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

def confine(cpu_s, memory_bytes):
    confinement.limit_all_runs()
    confinement.limit(resource.RLIMIT_NPROC, 4096)
    seconds = math.ceil(cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    confinement.limit(resource.RLIMIT_AS, confinement.mapped_bytes() + memory_bytes)

class Guest(program.Program):
    def flush(self):
        super().flush()
        line = json.dumps({"cpu_ms": time.process_time() * 1000})
        descriptors.write_all(self.report_file, line.encode() + b"\\n")

given = b"".join(iter(lambda: os.read(0, 1 << 20), b""))
text, _, stdin = given.partition(b"\\n")
fields = json.loads(text)
stdin_file, out, err, source = map(opened, ("stdin", "stdout", "stderr", "source"))
code, report = os.memfd_create("code", os.MFD_ALLOW_SEALING), opened("report")
arguments = [os.open(name, os.O_RDONLY) for name in fields.pop("arguments")]
descriptors.write_all(source, fields.pop("source").encode(errors="surrogatepass"))
descriptors.write_all(stdin_file, stdin)
os.lseek(stdin_file, 0, os.SEEK_SET)
descriptors.open_streams()
guest = Guest()
guest.script = descriptors.Script(fields.pop("setup"), fields.pop("checks"))
order = descriptors.Order(number=0, tests_apart=False, has_script=False, **fields)
files = (stdin_file, out, err, source, code, report, *arguments)
del given, text, stdin, fields
guest.run(confine, descriptors.ORDER.pack(*order), files)
"""
#: The line that the guest appends to the report.
_CPU = re.compile(rb'\{"cpu_ms": ([\d.]{1,20})\}\n\Z')

#: A known-good program: prints what it read, and its version of Python.
_PROBE = Job(
    "import sys\nprint(input(), sys.version.split()[0])",
    [ProgramRun(stdin=b"in")],
    RunLimits(cpu_s=5, wall_s=20, memory_bytes=256 << 20, output_bytes=1 << 16),
)


class Fusion:
    """A SandboxFusion server, which need not be up yet.

    Raises:
        ValueError: The client's package is missing.
    """

    #: There are no jails here; the server reports no kills, and has limits of its own.
    counts: Mapping[str, int] = MappingProxyType({})

    def __init__(self, settings: CodeSettings) -> None:
        self._url = str(settings.fusion_url).rstrip("/")
        self._permits = asyncio.Semaphore(settings.workers)
        require("fusion", "--fusion-url", "sandbox_fusion")
        self._client: Any = importlib.import_module("sandbox_fusion")
        # It logs complete programs when it gives up. Failures are logged in this module instead.
        logging.getLogger("sandbox_fusion").setLevel(logging.CRITICAL)
        self._python: str | None = None

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "sandbox": "fusion",
            "isolation": "fusion",
            "url": self._url,
            "guest": hashlib.sha256(_LOADER + _GUEST.encode()).hexdigest()[:16],
            "python": self._python,
        }

    async def run(self, job: Job, on_result: Callable[[RunResult], bool], timing: Timing) -> None:
        """See `Sandbox.run`. Programs cannot run if the server does not run a known-good one."""
        if self._python is None:
            await self._probe(timing)
        for run in job.runs:
            result = await self._run(job, run, timing)
            if result is None:  # an output file is missing; if the server works, the program did it
                await self._probe(timing)
                result = RunResult(exit_code=-9, stopped="died")
            if not await asyncio.to_thread(on_result, result) or result.stopped == "died":
                break

    async def aclose(self) -> None:
        """Do nothing: no connection is held."""

    async def _probe(self, timing: Timing) -> None:
        """Run a known-good program; see `run` for what it raises."""
        result = await self._run(_PROBE, _PROBE.runs[0], timing)
        output = (result.stdout if result else b"").decode(errors="replace")
        echo, _, python = output.partition(" ")
        if echo != "in":
            why = result.stderr[-300:].decode(errors="replace") if result else "returns no files"
            raise Unavailable(
                f"SandboxFusion at {self._url} does not run a known-good program: {why}"
            )
        self._python = python.strip()

    async def _run(self, job: Job, run: ProgramRun, timing: Timing) -> RunResult | None:
        """Return the result of a run, None if output files are missing."""
        request = await asyncio.to_thread(self._request, job, run)
        response = await self._post(request, job.limits.wall_s + _GRACE_S, timing)
        return await asyncio.to_thread(_result, response, job.limits)

    def _request(self, job: Job, run: ProgramRun) -> Any:
        arguments = {f"argument{number}": file for number, file in enumerate(run.files)}
        limits = job.limits
        order = {
            "source": job.program,
            **asdict(limits),
            "report_bytes": MAX_REPORT_BYTES,
            "prints_last": prints_last(job.program + run.setup),
            "setup": run.setup,
            "checks": [vars(check) for check in run.checks],
            "arguments": list(arguments),
        }
        files = {"loader.py": _LOADER, **arguments}
        return self._client.RunCodeRequest(
            code=_GUEST,
            language="python",
            stdin=f"{json.dumps(order)}\n{run.stdin.decode()}",
            run_timeout=limits.wall_s,
            files={name: base64.b64encode(file).decode() for name, file in files.items()},
            fetch_files=list(_OUTPUTS),
        )

    async def _post(self, request: Any, timeout_s: float, timing: Timing) -> Any:
        """Send a request, and retry temporary failures. The caller's deadline limits the total.

        A timeout is not retried: too many requests are what makes the server hang.
        """
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                response = await self._call_with_permit(request, timeout_s, timing)
            except TimeoutError:
                raise Unavailable(
                    f"SandboxFusion at {self._url} did not answer within {timeout_s:g} s"
                ) from None
            except Exception as error:  # noqa: BLE001 - all that it raises for a rejection
                reason = f"{type(error).__name__}: {str(error)[:300]}"
            else:
                result = response.run_result
                how = result and result.status
                has_ended = how == "Finished" and result.return_code is not None
                if has_ended or how == "TimeLimitExceeded":
                    return response
                reason = f"the response has no result of the run: {response.message[:300]}"
            rejection = _STATUS.search(reason)
            status = int(rejection[1]) if rejection else 500
            if status < 500 and status not in {408, 429}:
                raise BackendFailed(f"SandboxFusion at {self._url} rejected the request: {reason}")
            log.warning("SandboxFusion at %s, attempt %d: %s", self._url, attempt, reason)
            if attempt < _MAX_ATTEMPTS:
                # Full jitter, so that requests that failed together are not retried together.
                await asyncio.sleep(backoff_with_jitter(attempt, 0.4, _MAX_WAIT_S))
        raise Unavailable(f"SandboxFusion at {self._url} failed {_MAX_ATTEMPTS} times: {reason}")

    async def _call_with_permit(self, request: Any, timeout_s: float, timing: Timing) -> Any:
        with stage(timing, "queue"):
            await self._permits.acquire()
        try:
            with stage(None, "sandbox"):
                return await self._client.run_code_async(
                    request, endpoint=self._url, max_attempts=1, client_timeout=timeout_s
                )
        finally:
            self._permits.release()


def _result(response: Any, limits: RunLimits) -> RunResult | None:
    """Convert a response; None if the run ended and output files are missing."""
    result, files = response.run_result, response.files
    is_late = result.status == "TimeLimitExceeded"
    if not is_late and not set(_OUTPUTS) <= set(files):
        return None
    stdout, stderr, report = (base64.b64decode(files.get(name, "")) for name in _OUTPUTS)
    code = result.return_code or 0
    run_ms = 1000 * (result.execution_time or 0.0)
    cpu = _CPU.search(report)
    return RunResult(
        # A shell reports a signal as 128 plus its number.
        exit_code=128 - code if code > 128 else code,
        stopped="wall" if is_late else "",
        stdout=stdout[: limits.output_bytes + 1],
        stderr=stderr[: limits.output_bytes + 1],
        report=_CPU.sub(b"", report)[: MAX_REPORT_BYTES + 1],
        cpu_ms=float(cpu[1]) if cpu else 0.0,
        charged_ms=run_ms,
        run_ms=run_ms,
    )
