"""The solutions that rows bring along: whether they pass, and whether programs can import as much.

A row whose own solution fails says nothing about a program, so it is invalid.
"""

import asyncio
import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from rewardfleet.wire.code import Outcome, PlainTests, Verdict
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.cache.single_flight import SingleFlight

from .packages import how_to_add, last_error, missing_module
from .preflight import import_statements
from .sandboxes import Job, ProgramRun, RunLimits, Sandbox, run_once
from .settings import CodeSettings
from .submission import SHORT_TEXT, SubmissionRun
from .verdict import SANDBOX_DIED

#: Runs a program on tests.
Run = Callable[[str, PlainTests, RunLimits], Awaitable[SubmissionRun]]

#: Tests whose solution passed, and imports that succeeded, whose digests are held in memory.
_MAX_CHECKED = 4096
#: The modules that lines of a program may import.
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)


class References:
    """Checks the solutions of rows, once for all equal ones.

    Args:
        sandbox: Where they run.
        settings: The settings of the service.
        run: Runs a program on all tests, until one fails.
    """

    def __init__(self, sandbox: Sandbox, settings: CodeSettings, run: Run) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._run = run
        self._checked: OrderedDict[str, None] = OrderedDict()
        self._running: SingleFlight[None] = SingleFlight()

    async def check_imports(self, solution: str, limits: RunLimits) -> None:
        """Check that programs can import the packages that a solution imports.

        Raises:
            InvalidRequest: One is missing.
            Unavailable: Their jail died.
        """
        if not set(_IMPORT.findall(solution)) - sys.stdlib_module_names:
            return
        if len(solution) <= SHORT_TEXT:
            script = import_statements([solution])
        else:
            script = await asyncio.to_thread(import_statements, [solution])
        await self._once(f"imports {limits} {script}", lambda: self._import(script, limits))

    async def check(self, solution: str, tests: PlainTests, limits: RunLimits) -> None:
        """Check that a solution passes the tests.

        Raises:
            InvalidRequest: It does not.
            Unavailable: Its jail died.
        """
        key = f"{asdict(limits)} {tests.model_dump_json()} {solution}"
        await self._once(key, lambda: self._try(solution, tests, limits))

    async def _once(self, key: str, check: Callable[[], Awaitable[None]]) -> None:
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
        if digest in self._checked:
            return

        async def checked() -> None:
            await check()
            self._checked[digest] = None
            if len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)

        await self._running.do(digest, checked)

    async def _import(self, script: str, limits: RunLimits) -> None:
        result = await run_once(self._sandbox, Job(script, [ProgramRun()], limits))
        if result.stopped == "died":  # the machine may have no memory left
            raise Unavailable("tests.row: the jail died", retry_after=1)
        module = missing_module(result.stderr.decode(errors="replace"))
        if module:
            raise InvalidRequest(f"tests.row: its solution imports {self._missing(module)}")

    async def _try(self, solution: str, tests: PlainTests, limits: RunLimits) -> None:
        run = await self._run(solution, tests, limits)
        if any(SANDBOX_DIED in each for each in run.suspicions):
            raise Unavailable("tests.row: the jail of the row's solution died", retry_after=1)
        for number, verdict in zip(run.numbers, run.verdicts, strict=False):
            if verdict.verdict is not Outcome.ACCEPTED:
                reason = self._reason(verdict)
                raise InvalidRequest(f"tests.row: its own solution fails test {number}: {reason}")
        if len(run.verdicts) < len(run.numbers):
            longest = self._settings.max_submission_s
            raise InvalidRequest(
                f"tests.row: its own solution takes more than --max-submission-s ({longest:g} s)"
            )

    def _reason(self, verdict: Verdict) -> str:
        outcome = str(verdict.verdict).replace("_", " ")
        if module := missing_module(verdict.stderr):
            return f"{outcome}: it imports {self._missing(module)}"
        error = last_error(verdict.stderr)
        return f"{outcome}: {error}" if error else outcome

    def _missing(self, module: str) -> str:
        how = how_to_add(self._settings, module)
        return f"{module!r}, which programs cannot import; to add it: {how}"
