"""Preflight: whether tests work by themselves, and prove anything about a program.

Tests whose setup fails, that do not compile, or whose own imports fail say nothing about the
program, so they are invalid. So are tests that pass without a program. Both are found out without
it, as its failures are always judged. A row whose own solution fails is invalid, too, and one whose
solution imports what programs cannot.
"""

import ast
import asyncio
import hashlib
import re
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests, Outcome, PlainTests, StdioTests, Verdict
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.cache.single_flight import SingleFlight

from .packages import how_to_add, last_error, missing_module
from .sandboxes import Check, Job, ProgramRun, RunLimits, RunResult, Sandbox, run_once
from .sandboxes.jail.guest.names import PROGRAM_MODULES
from .sandboxes.jail.guest.scripts import has_check
from .settings import CodeSettings
from .submission import SubmissionRun
from .verdict import SANDBOX_DIED, CallRun, TestRun, encoded, failure, run_alone

#: Runs a program on tests.
Run = Callable[[str, PlainTests, RunLimits], Awaitable[SubmissionRun]]

#: Characters of tests and of solutions of rows that are parsed on the event loop.
_SHORT_TEXT = 20_000
#: Tests and imports that worked, whose digests are held in memory.
_MAX_CHECKED = 8192
#: The modules that lines of a program may import.
_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)

#: Words of tests that may be valid Python and yet not compile, or import something.
_WORDS = re.compile(
    r"import|exec|eval|compile|return|yield|await|async|nonlocal|global|break|continue|def|lambda"
    r"|class|__debug__"
)
#: Modules of the program, which is not there in the preflight.
_OF_PROGRAM = {*PROGRAM_MODULES, "__future__"}
#: Tests that change what can be imported.
_CHANGES_IMPORTS = re.compile(r"\bsys\s*\.\s*(?:path|modules|meta_path)\b")
_DYNAMIC_IMPORTS = {"__import__", "import_module"}
_RUNS_SOURCE = {"exec", "eval", "compile"}
#: Names in the condition of an import that is not made everywhere.
_GUARDS = re.compile(r"version|platform|TYPE_CHECKING|find_spec|hasattr|__name__|\bos\b")
#: Contexts in which an import may fail.
_EXPECTS_FAILURE = re.compile(r"(?i)raises|suppress")

#: In a traceback: where the failure is, and the module that is missing.
_PLACE = re.compile(r'File "(tests\.[\w.]+)", line \d+')
_IMPORT_ERROR = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError): ?(.*)$")
_MODULE = re.compile(r"No module named '([^'.]+)")
_MAX_REASON = 200


class Preflight:
    """Checks tests by themselves, and solutions of rows, once for all equal ones."""

    def __init__(self, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._checked: OrderedDict[str, Mapping[int, str]] = OrderedDict()
        self._running: SingleFlight[Mapping[int, str]] = SingleFlight()

    async def check(
        self, tests: PlainTests, planned: Sequence[TestRun], limits: RunLimits
    ) -> Mapping[int, str]:
        """Run the setup, compile the asserts, make their imports, and run them without a program.

        Returns:
            Why cases do not count, by index: those that pass without a program.

        Raises:
            InvalidRequest: One of them fails, or all cases pass without a program.
            Unavailable: Their jail died.
        """
        cases = tests.cases if isinstance(tests, AssertTests) else []
        if not tests.setup and not cases:
            return {}
        stdin = tests.cases[0].stdin if isinstance(tests, StdioTests) else ""
        alone = run_alone(tests, planned) if isinstance(tests, AssertTests) else None
        script = await _computed(partial(_script, cases, tests.setup), tests.setup, *cases)
        if not script and alone is None:
            return {}
        key = [f"{limits} {len(stdin)} {len(tests.setup)}", stdin, tests.setup, script]
        if alone is not None:
            run, indexes = alone
            key += [f"{each.kind} {each.source} {each.entry_point}" for each in run.run.checks]
            key.append(repr((run.expected, run.rule, indexes, len(cases))))
        return await self._once("\0".join(key), lambda: self._run(tests, script, limits, alone))

    async def check_imports(self, solution: str, limits: RunLimits) -> None:
        """Check that programs can import the packages that a solution imports.

        Raises:
            InvalidRequest: One is missing.
            Unavailable: Their jail died.
        """
        if not set(_IMPORT.findall(solution)) - sys.stdlib_module_names:
            return
        script = await _computed(partial(import_statements, [solution]), solution)
        await self._once(f"imports {limits} {script}", lambda: self._import(script, limits))

    async def check_solution(
        self, solution: str, tests: PlainTests, limits: RunLimits, run: Run
    ) -> None:
        """Check that a solution passes the tests.

        Args:
            run: Runs a program on all tests, until one fails.

        Raises:
            InvalidRequest: It does not.
            Unavailable: Its jail died.
        """
        key = f"{asdict(limits)} {tests.model_dump_json()} {solution}"
        await self._once(key, lambda: self._try(solution, tests, limits, run))

    async def _once(
        self, key: str, check: Callable[[], Awaitable[Mapping[int, str]]]
    ) -> Mapping[int, str]:
        """Make a check once for all equal tests. One that fails is made again."""
        digest = await _computed(lambda: hashlib.sha256(encoded(key)).hexdigest(), key)

        async def checked() -> Mapping[int, str]:
            found = self._checked[digest] = await check()
            if len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)
            return found

        found = self._checked.get(digest)
        return await self._running.do(digest, checked) if found is None else found

    async def _run(
        self,
        tests: PlainTests,
        script: str,
        limits: RunLimits,
        alone: tuple[CallRun, list[int]] | None,
    ) -> Mapping[int, str]:
        if isinstance(tests, StdioTests):
            run = ProgramRun(encoded(tests.cases[0].stdin), tests.setup)
            result = await self._result(Job(script, [run], limits))
            has_held = True
        else:  # checks make the program a module, which the setup may depend on
            check = Check("assert", script or "pass")
            run = ProgramRun(setup=tests.setup, checks=(check,))
            result = await self._result(Job("", [run], limits))
            has_held = b'"held"' in (result.test_report or result.report)
        failed = failure(result, limits)
        if failed is not None or not has_held:
            raise InvalidRequest(self._explain(result, str(failed or "").replace("_", " ")))
        if alone is None or not isinstance(tests, AssertTests):
            return {}
        call_run, indexes = alone
        result = await self._result(Job("", [call_run.run], limits))
        return _left_out(tests.cases, indexes, call_run.checks_alone(result))

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
            error = last_error(stderr)[:_MAX_REASON] or failed
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

    async def _try(
        self, solution: str, tests: PlainTests, limits: RunLimits, run: Run
    ) -> Mapping[int, str]:
        done = await run(solution, tests, limits)
        if any(SANDBOX_DIED in each for each in done.suspicions):
            raise Unavailable("tests.row: the jail of the row's solution died", retry_after=1)
        for number, verdict in zip(done.numbers, done.verdicts, strict=False):
            if verdict.verdict is not Outcome.ACCEPTED:
                reason = self._reason(verdict)
                raise InvalidRequest(f"tests.row: its own solution fails test {number}: {reason}")
        if len(done.verdicts) < len(done.numbers):
            longest = self._settings.max_submission_s
            raise InvalidRequest(
                f"tests.row: its own solution takes more than --max-submission-s ({longest:g} s)"
            )
        return {}

    def _reason(self, verdict: Verdict) -> str:
        outcome = str(verdict.verdict).replace("_", " ")
        if module := missing_module(verdict.stderr):
            return f"{outcome}: it imports {self._missing(module)}"
        error = last_error(verdict.stderr)
        return f"{outcome}: {error}" if error else outcome

    def _missing(self, module: str) -> str:
        how = how_to_add(self._settings, module)
        return f"{module!r}, which programs cannot import; to add it: {how}"


async def _computed(work: Callable[[], str], *texts: str) -> str:
    """Compute something of texts: on the event loop if they are short, else in a thread."""
    is_short = sum(map(len, texts)) <= _SHORT_TEXT
    return work() if is_short else await asyncio.to_thread(work)


def _left_out(
    cases: Sequence[str], indexes: Sequence[int], checks: Sequence[int | None]
) -> dict[int, str]:
    """Return why cases do not count, by index.

    Args:
        indexes: The indexes of those that were evaluated without a program.
        checks: How many checks each evaluated; None for those that failed.
    """
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
    body = parse_source(case).body
    functions = [
        each for each in body if isinstance(each, ast.FunctionDef) and has_check([each], {})
    ]
    if not functions:
        return "none of its checks is evaluated without a program"
    name = functions[0].name
    advice = "; give `entry_point`, which it is called with" if name == "check" else ""
    return f"its asserts are in `{name}`, which nothing calls{advice}"


def _script(cases: Sequence[str], setup: str) -> str:
    """Return a program that compiles the cases and makes all imports; "" if nothing can fail."""
    sources = {f"tests.cases.{n}": case for n, case in enumerate(cases) if _WORDS.search(case)}
    if not sources and not setup:
        return ""
    compiled = [f"compile({source!r}, {name!r}, 'exec')" for name, source in sources.items()]
    return "\n".join([*compiled, import_statements([setup, *sources.values()])])


def import_statements(sources: Iterable[str]) -> str:
    """Return the imports of tests, each once, as a program.

    Not those that may fail or that depend on the platform: in `try` with handlers, in contexts like
    `suppress`, and under conditions on versions. Tests that are not valid Python, or that change
    `sys.path`, have none.
    """
    found: dict[str, None] = {}
    for source in sources:
        if "import" in source and not _CHANGES_IMPORTS.search(source):
            found |= dict.fromkeys(_imports_of(source))
    return "\n".join(sorted(found)) or "pass"


def _imports_of(source: str) -> list[str]:
    try:
        return list(_imports(parse_source(source)))
    except (SyntaxError, RecursionError):
        return []


def _imports(parent: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(parent):
        match node:
            case ast.Import(names=names):
                modules = (each.name for each in names)
                yield from (f"import {each}" for each in modules if _is_external(each))
            case ast.ImportFrom(module=module):
                if module is None or _is_external(module):
                    yield ast.unparse(node)
            case ast.Try(handlers=[_, *_]):
                yield from _imports(ast.Module(node.finalbody, []))
            case ast.With(items=items) if _mentions(_EXPECTS_FAILURE, *items):
                pass
            case ast.If(test=test) | ast.While(test=test) if _mentions(_GUARDS, test):
                pass
            case ast.Call():
                yield from _dynamic_imports(node)
                yield from _imports(node)
            case _:
                yield from _imports(node)


def _mentions(names: re.Pattern[str], *nodes: ast.AST) -> bool:
    return any(names.search(ast.unparse(node)) for node in nodes)


def _is_external(module: str) -> bool:
    return module.partition(".")[0] not in _OF_PROGRAM


def _dynamic_imports(call: ast.Call) -> Iterator[str]:
    """Return the imports of `__import__("module")`, `import_module("module")` and `exec("…")`."""
    function = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
    arguments = [*call.args, *(each.value for each in call.keywords)][:1]
    match arguments:
        case [ast.Constant(value=str(text))] if function in _DYNAMIC_IMPORTS:
            if _is_external(text) and all(map(str.isidentifier, text.split("."))):
                yield f"import {text}"
        case [ast.Constant(value=str(text))] if function in _RUNS_SOURCE:
            yield from _imports_of(text)
