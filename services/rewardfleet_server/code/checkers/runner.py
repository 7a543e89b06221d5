"""Running the checker programs of requests."""

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewardfleet.wire.code import CodeTiming, DatasetTests, Outcome, StdioCase, StdioTests, Tests
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.cache.single_flight import Memo, bytes_of
from rewardfleet_server.code.judging.verdict import (
    CHECKER_RAISED,
    CheckerFiles,
    decision,
    encoded,
)
from rewardfleet_server.code.running.submission import SubmissionRun
from rewardfleet_server.code.sandboxes import Job, ProgramRun, RunLimits, RunResult, Sandbox
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.code.tests.asserts import parse
from rewardfleet_server.code.tests.prepared import PreparedTests
from rewardfleet_server.observe.tracing import stage

from .compiler import Compiler

#: Limits of one run: seconds of CPU and wall time, MiB of memory, KiB of what it prints.
_CPU_S, _WALL_S, _MEMORY_MB, _OUTPUT_KB = 10.0, 15.0, 1024, 1024
_MAX_ERRORS = 500  #: characters of a failed checker's errors that a refusal shows
_MAX_TRIED = 2**20  #: bytes of digests that are remembered as those of tests whose checker works

#: Exceptions of a checker in Python that are due to its source code.
_BUG = re.compile("NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError")

#: Outputs that are wrong where another one is expected.
_WRONG = {"an empty output": b"", "an output of random words": b"quartz umbrella 7 sphinx\n"}

#: Calls `main` of the library that is its last argument, and exits as a C++ program does.
_CALL_LIBRARY = """
import ctypes, sys
*files, library = sys.argv[1:]
main = ctypes.CDLL(library).main
arguments = [b"checker", *map(str.encode, files), None]
ctypes.CDLL(None).exit(main(len(files) + 1, (ctypes.c_char_p * len(arguments))(*arguments)))
"""


@dataclass(frozen=True)
class Checker:
    """A checker that can be run."""

    program: str  #: Python source code
    library: tuple[bytes, ...] = ()  #: the compiled checker, if it is in C++


class Checkers:
    """Prepares and runs the checkers of one service."""

    def __init__(self, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._sandbox = sandbox
        self._compiler = Compiler(str(sandbox.provenance["isolation"]), settings)
        self._max_seconds = settings.max_submission_s
        self._limits = RunLimits(
            min(_CPU_S, settings.max_cpu_s),
            min(_WALL_S, settings.max_wall_s),
            min(_MEMORY_MB, settings.max_memory_mb) * 2**20,
            _OUTPUT_KB * 2**10,
        )
        self._trials: Memo[None] = Memo(_MAX_TRIED, bytes_of)

    async def version(self, tests: Tests) -> str | None:
        """Return what decisions of the tests' checker depend on besides the request."""
        if not isinstance(tests, StdioTests | DatasetTests):
            return None
        program = tests.checker_program
        is_cpp = program is not None and program.language == "cpp"
        if is_cpp or (isinstance(tests, DatasetTests) and tests.row.get("checker")):
            return await self._compiler.version()
        return None

    async def prepare(self, tests: PreparedTests) -> Checker | None:
        """Return the checker of the tests, if they have one, after a trial.

        It must work on the expected output: so it is invalid for all programs or for none. And it
        must reject what is no output of the problem: one that prints its decision accepts all.

        Raises:
            InvalidRequest: It does not compile, fails in the trial, or accepts wrong outputs.
            Unavailable: It cannot be run now, did not end in time, or its jail died.
        """
        plain = tests.tests
        if not isinstance(plain, StdioTests) or plain.checker_program is None:
            return None
        program = plain.checker_program
        if program.language == "python":
            checker = Checker(program.source)
        else:
            checker = Checker(_CALL_LIBRARY, (await self._compiler.compile(program.source),))
        await self._trials.get(tests.digest, lambda: self._try(checker, plain.cases))
        return checker

    async def _try(self, checker: Checker, cases: Sequence[StdioCase]) -> None:
        """Run a checker on expected outputs, as far as there is time; see `prepare`."""
        await asyncio.to_thread(parse, checker.program, "checker_program.source")
        answers = [(encoded(case.stdin), encoded(case.stdout)) for case in cases]
        files = [CheckerFiles(stdin, answer, answer) for stdin, answer in answers]
        results: list[RunResult] = []
        ms_left = self._max_seconds * 1000

        def on_result(result: RunResult) -> bool:
            nonlocal ms_left
            ms_left -= result.charged_ms
            results.append(result)
            return ms_left > 0 and self._failure(checker, files[len(results) - 1], result) is None

        await self._run(checker, files, on_result, CodeTiming())
        last = results[-1]
        failed = self._failure(checker, files[len(results) - 1], last)
        if failed is None:
            await self._require_rejection(checker, files)
            return
        reason = f"the checker program failed on an expected output ({failed})"
        if last.stopped in {"wall", "died"}:  # the machine may be too busy
            raise Unavailable(reason, retry_after=1)
        errors = last.stderr.decode(errors="replace").strip()
        raise InvalidRequest(f"{reason}: {errors[-_MAX_ERRORS:]}")

    async def _require_rejection(self, checker: Checker, files: Sequence[CheckerFiles]) -> None:
        """Raise InvalidRequest if a checker accepts outputs that are certainly wrong."""
        case = next((each for each in files if each.answer.strip()), None)
        if case is None:
            return
        accepted: list[bool] = []

        def on_result(result: RunResult) -> bool:
            accepted.append(decision(result, self._limits).outcome is Outcome.ACCEPTED)
            return True

        wrong = [case._replace(output=output) for output in _WRONG.values()]
        await self._run(checker, wrong, on_result, CodeTiming())
        for name in itertools.compress(_WRONG, accepted):
            raise InvalidRequest(
                f"the checker program accepts {name} where {case.answer[:60]!r} is expected: it "
                "must reject by an exit status other than 0 (what it prints does not count), and "
                "its arguments are the files INPUT, OUTPUT and ANSWER, in this order"
            )

    def _failure(self, checker: Checker, files: CheckerFiles, result: RunResult) -> str | None:
        """Return why a checker failed in its trial; None if it worked."""
        failed = decision(result, self._limits).failed
        if files.answer.strip() or failed == Outcome.COMPILE_ERROR.replace("_", " "):
            return failed
        # On an empty output, many checkers may fail: only errors count that no output can cause.
        last_line = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        is_bug = failed == CHECKER_RAISED and (checker.library or _BUG.match(last_line))
        return failed if is_bug else None

    async def decide(self, checker: Checker, run: SubmissionRun) -> None:
        """Replace the verdicts on outputs that the checker must decide on."""

        def on_result(result: RunResult) -> bool:
            return run.on_decision(decision(result, self._limits), result)

        queue_before = run.timing.queue
        with stage(run.timing, "check"):
            while run.undecided:  # again, if an output broke its jail
                files = [each for _, each in run.undecided]
                await self._run(checker, files, on_result, run.timing)
        queue = run.timing.queue - queue_before
        run.timing.check = round(run.timing.check - queue, 3)

    async def _run(
        self,
        checker: Checker,
        files: Sequence[CheckerFiles],
        on_result: Callable[[RunResult], bool],
        timing: CodeTiming,
    ) -> None:
        runs = [ProgramRun(files=(*each, *checker.library)) for each in files]
        job = Job(checker.program, runs, self._limits, is_checker=True)
        await self._sandbox.run(job, on_result, timing)
