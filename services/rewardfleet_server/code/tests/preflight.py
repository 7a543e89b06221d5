"""Preflight: whether tests work by themselves, and prove anything about a program.

That is found out without the program, as its failures are always judged.
"""

import ast
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests, Outcome, StdioTests
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.cache.single_flight import Memo, bytes_of
from rewardfleet_server.code.judging.verdict import SANDBOX_DIED, assert_run, encoded, failure
from rewardfleet_server.code.running.packages import how_to_add, last_error, missing_module
from rewardfleet_server.code.running.submission import SubmissionRun
from rewardfleet_server.code.sandboxes import (
    Check,
    Job,
    ProgramRun,
    RunLimits,
    RunResult,
    Sandbox,
    run_once,
)
from rewardfleet_server.code.sandboxes.jail.guest.scripts import has_check
from rewardfleet_server.code.settings import CodeSettings

from .prepared import PreparedTests

#: Runs the solution of a row on its tests; the last argument is whether until one fails.
RunSolution = Callable[[PreparedTests, RunLimits, bool], Awaitable[SubmissionRun]]

_MAX_BYTES = 8 * 2**20  #: bytes of what is known of tests that worked

#: In a traceback: where the failure is, and the module that is missing.
_PLACE = re.compile(r'File "(tests\.[\w.]+)", line \d+')
_IMPORT_ERROR = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError): ?(.*)$")
_MODULE = re.compile(r"No module named '([^'.]+)")
_LINE = re.compile(r'File "test\.py", line (\d+)')
_MAX_REASON = 200


class Preflight:
    """Checks tests by themselves, and solutions of rows, once for all equal ones."""

    def __init__(self, sandbox: Sandbox, settings: CodeSettings, run_solution: RunSolution) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._run_solution = run_solution
        self._checked: Memo[Mapping[int, str]] = Memo(_MAX_BYTES, bytes_of)

    async def check(self, tests: PreparedTests, limits: RunLimits) -> Mapping[int, str]:
        """Return why cases do not count, by index: those that pass without a program.

        Raises:
            InvalidRequest: The setup, an import or a case fails by itself, or all cases pass.
            Unavailable: Their jail died.
        """
        if not tests.trial:
            return {}
        key = f"{limits} {tests.trial} {tests.solution and tests.digest}"
        return await self._checked.get(key, lambda: self._run(tests, limits))

    async def check_solution(self, tests: PreparedTests, limits: RunLimits) -> None:
        """Check that programs can import what a row's solution does, or also that it passes.

        Raises:
            InvalidRequest: It does not pass, or a package is missing.
            Unavailable: Its jail died.
        """
        if imports := tests.solution_imports:
            key = f"imports {limits} {imports}"
            await self._checked.get(key, lambda: self._import(imports, limits))
        if tests.check_reference:
            key = f"solution {limits} {tests.digest}"
            await self._checked.get(key, lambda: self._try(tests, limits))

    async def repeated_as_needed(self, tests: PreparedTests, limits: RunLimits) -> PreparedTests:
        """Return tests that are repeated only if the solution of the row passes only then."""
        may_repeat = any(each.may_repeat for each in tests.asserts)
        if not (may_repeat and tests.solution):
            return tests
        once = replace(tests, asserts=[replace(each, may_repeat=False) for each in tests.asserts])

        async def passed(tests: PreparedTests) -> set[int]:
            done = await self._solved(tests, limits, stop_at_failure=False)
            return {n for n, each in enumerate(done.verdicts) if each.verdict is Outcome.ACCEPTED}

        async def helped() -> Mapping[int, str]:
            alone = await passed(once)
            is_all = len(alone) == len(tests.asserts)
            return {} if is_all else dict.fromkeys(await passed(tests) - alone, "")

        needed = await self._checked.get(f"repeats {limits} {tests.digest}", helped)
        asserts = [(tests if n in needed else once).asserts[n] for n in range(len(tests.asserts))]
        return replace(tests, asserts=asserts)

    async def _run(self, tests: PreparedTests, limits: RunLimits) -> Mapping[int, str]:
        plain = tests.tests
        if isinstance(plain, StdioTests):
            run = ProgramRun(encoded(plain.cases[0].stdin), plain.setup)
            result = await self._result(Job(tests.script, [run], limits))
            has_held = True
        else:  # checks make the program a module, which the setup may depend on
            check = Check("assert", tests.script or "pass")
            run = ProgramRun(setup=plain.setup, checks=(check,))
            result = await self._result(Job("", [run], limits))
            has_held = b'"held"' in (result.test_report or result.report)
        failed = failure(result, limits)
        if failed is not None or not has_held:
            raise InvalidRequest(self._explain(result, str(failed or "").replace("_", " ")))
        if not isinstance(plain, AssertTests):
            return {}
        left_out: Mapping[int, str] = {}
        if tests.alone:
            call_run = assert_run(plain, [tests.asserts[index] for index in tests.alone])
            result = await self._result(Job("", [call_run.run], limits))
            left_out = _left_out(plain.cases, tests.alone, call_run.checks_alone(result))
        # SandboxFusion has no process of the tests; with `check_reference`, all cases must pass.
        if self._settings.sandbox == "jail" and not tests.check_reference:
            await self._try_all(tests.without(left_out) if left_out else tests, plain, limits)
        return left_out

    async def _try_all(self, tests: PreparedTests, plain: AssertTests, limits: RunLimits) -> None:
        """Run cases with the solution of the row, or, without one, until they use the program."""
        solution = tests.solution or ""
        if solution:  # a case that passes only in the program's process stays one to repeat
            tests = await self.repeated_as_needed(tests, limits)

        async def failing(indexes: Sequence[int]) -> Mapping[int, str]:
            planned = assert_run(plain, [tried[index] for index in indexes])
            result = await run_once(self._sandbox, Job(solution, [planned.run], limits))
            stderr = result.stderr.decode(errors="replace")
            line, error = (_LINE.findall(stderr) or [1])[-1], last_error(stderr)[:_MAX_REASON]
            return {
                index: f"line {line} fails {how}: {error or answer['raised']}"
                for index, answer in zip(indexes, planned.answers(result), strict=True)
                if answer.get("own") is True
                # The program may have changed what a test in its process uses.
                and (tests.asserts[index].kind != "inside" or answer["raised"] == "PermissionError")
            }

        how = "with the row's solution" if solution else "without the program"
        complete = {"value", "assert"} if solution else set()
        tried = [a if a.kind in complete else replace(a, kind="alone") for a in tests.asserts]
        chosen = [
            index
            for index, each in enumerate(tests.asserts)
            if each.kind != "eval" and not (each.may_repeat if solution else each.fails_alone)
        ]
        for index in await failing(chosen) if chosen else ():
            # Again, as cases that share a process may disturb each other.
            for reason in (await failing([index])).values():
                raise InvalidRequest(f"tests.cases.{tests.numbers[index] - 1}: {reason}")

    async def _result(self, job: Job) -> RunResult:
        result = await run_once(self._sandbox, job)
        if result.stopped == "died":  # the machine may have no memory left
            raise Unavailable("tests: the jail died without the program", retry_after=1)
        return result

    def _explain(self, result: RunResult, failed: str) -> str:
        stderr = result.stderr.decode(errors="replace")
        import_errors = _IMPORT_ERROR.findall(stderr)
        if not import_errors:
            where = (_PLACE.findall(stderr) or ["tests.setup"])[-1]
            error = last_error(stderr)[:_MAX_REASON] or failed or "its process exits"
            return f"{where}: fails without the program: {error}"
        message = f"tests: an import fails: {import_errors[-1][:_MAX_REASON] or 'ImportError'}"
        module = _MODULE.search(message)
        if module is None:
            return message
        return f"{message}; to add a package: {how_to_add(self._settings, module[1])}"

    async def _import(self, script: str, limits: RunLimits) -> Mapping[int, str]:
        result = await self._result(Job(script, [ProgramRun()], limits))
        module = missing_module(result.stderr.decode(errors="replace"))
        if module:
            raise InvalidRequest(f"tests.row: its solution imports {self._missing(module)}")
        return {}

    async def _try(self, tests: PreparedTests, limits: RunLimits) -> Mapping[int, str]:
        done = await self._solved(tests, limits, stop_at_failure=True)
        for number, verdict in zip(done.numbers, done.verdicts, strict=False):
            if verdict.verdict is not Outcome.ACCEPTED:
                reason = last_error(verdict.stderr)
                if module := missing_module(verdict.stderr):
                    reason = f"it imports {self._missing(module)}"
                failed = ": ".join(filter(None, [verdict.verdict.replace("_", " "), reason]))
                raise InvalidRequest(f"tests.row: its own solution fails test {number}: {failed}")
        if len(done.verdicts) < len(done.numbers):
            limit = f"max_submission_s ({self._settings.max_submission_s:g} s)"
            raise InvalidRequest(f"tests.row: its own solution takes more than {limit}")
        return {}

    async def _solved(
        self, tests: PreparedTests, limits: RunLimits, *, stop_at_failure: bool
    ) -> SubmissionRun:
        run = await self._run_solution(tests, limits, stop_at_failure)
        if any(SANDBOX_DIED in each for each in run.suspicions):
            raise Unavailable("tests.row: the jail of the row's solution died", retry_after=1)
        return run

    def _missing(self, module: str) -> str:
        how = how_to_add(self._settings, module)
        return f"{module!r}, which programs cannot import; to add it: {how}"


def _left_out(
    cases: Sequence[str], indexes: Sequence[int], checks: Sequence[int | None]
) -> dict[int, str]:
    """Return why cases do not count, by index, given their checks; None: a case that failed."""
    found = {
        index: "it passes without a program" if count else _why_nothing(cases[index])
        for index, count in zip(indexes, checks, strict=True)
        if count is not None
    }
    if len(found) == len(cases):
        raise InvalidRequest(f"tests prove nothing: tests.cases.0: {found[0]}")
    return found


def _why_nothing(case: str) -> str:
    """Return why no check of a case is evaluated."""
    for each in parse_source(case).body:
        if isinstance(each, ast.FunctionDef) and has_check([each], {}):
            advice = "; give `entry_point`, which it is called with" * (each.name == "check")
            return f"its asserts are in `{each.name}`, which nothing calls{advice}"
    return "none of its checks is evaluated without a program"
