"""Preflight: whether tests work by themselves, i.e. without the program.

Tests whose setup fails, that do not compile, or whose own imports fail say nothing about the
program, so they are invalid. That is found out without the program, whose failures are always
judged.
"""

import ast
import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from rewardfleet.wire.code import AssertTests, PlainTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet.wire.score import Timing
from rewardfleet_server.cache.single_flight import SingleFlight

from .packages import how_to_add
from .parser import exclusive_parser
from .sandboxes import Check, Job, ProgramRun, RunLimits, RunResult, Sandbox
from .settings import CodeSettings
from .submission import SHORT_TEXT
from .verdict import encoded, failure

#: Tests that worked, whose digests are held in memory.
_MAX_CHECKED = 4096

#: Words of tests that may be valid Python and yet not compile, or import something.
_WORDS = re.compile(
    r"import|exec|eval|compile|return|yield|await|async|nonlocal|global|break|continue|def|lambda"
    r"|class|__debug__"
)
#: Modules of the program, which is not there in the preflight.
_OF_PROGRAM = {"program", "__main__", "__future__"}
#: Tests that change what can be imported.
_CHANGES_IMPORTS = re.compile(r"\bsys\s*\.\s*(?:path|modules|meta_path)\b")
_DYNAMIC_IMPORTS = {"__import__", "import_module"}
_RUNS_SOURCE = {"exec", "eval", "compile"}
#: Names in the condition of an import that is not made everywhere.
_GUARDS = re.compile(r"version|platform|TYPE_CHECKING|find_spec|hasattr|__name__|\bos\b")
#: Contexts in which an import may fail.
_EXPECTS_FAILURE = re.compile(r"(?i)raises|suppress")

#: The last line of a traceback, where the failure is, and the module that is missing.
_ERROR = re.compile(r"(?m)^(\w[\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*)$")
_PLACE = re.compile(r'File "(tests\.[\w.]+)", line \d+')
_IMPORT_ERROR = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError): ?(.*)$")
_MODULE = re.compile(r"No module named '([^'.]+)")
_MAX_REASON = 200


class Preflight:
    """Checks that tests work by themselves, once for all equal ones.

    Args:
        sandbox: Where they run.
        settings: Of the service.
    """

    def __init__(self, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._checked: OrderedDict[str, None] = OrderedDict()
        self._running: SingleFlight[None] = SingleFlight()

    async def check(self, tests: PlainTests, limits: RunLimits) -> None:
        """Run the setup, compile the asserts, and make their imports.

        Raises:
            InvalidRequest: One of them fails.
            Unavailable: Their jail died.
        """
        cases = tests.cases if isinstance(tests, AssertTests) else []
        if not tests.setup and not cases:
            return
        stdin = encoded(tests.cases[0].stdin) if isinstance(tests, StdioTests) else b""
        if sum(map(len, (tests.setup, stdin, *cases))) <= SHORT_TEXT:
            prepared = _prepare(cases, tests.setup, stdin, limits)
        else:
            prepared = await asyncio.to_thread(_prepare, cases, tests.setup, stdin, limits)
        key, script = prepared
        if not script or key in self._checked:
            return
        if isinstance(tests, StdioTests):
            job = Job(script, [ProgramRun(stdin, tests.setup)], limits)
        else:  # checks make the program a module, which the setup may depend on
            check = Check("assert", script, secrets.token_hex(16))
            job = Job("", [ProgramRun(setup=tests.setup, checks=(check,))], limits)
        await self._running.do(key, lambda: self._run(key, job))

    async def _run(self, key: str, job: Job) -> None:
        results: list[RunResult] = []

        def on_result(result: RunResult) -> bool:
            results.append(result)
            return False

        await self._sandbox.run(job, on_result, Timing())
        result = results[0]
        if result.stopped == "died":  # the machine may have no memory left
            raise Unavailable("tests: the jail died without the program", retry_after=1)
        failed = failure(result, job.limits)
        has_checks = bool(job.runs[0].checks)
        has_held = b'"held"' in (result.test_report or result.report)
        if failed is not None or (has_checks and not has_held):
            raise InvalidRequest(self._explain(result, str(failed or "").replace("_", " ")))
        self._checked[key] = None
        if len(self._checked) > _MAX_CHECKED:
            self._checked.popitem(last=False)

    def _explain(self, result: RunResult, failed: str) -> str:
        stderr = result.stderr.decode(errors="replace")
        import_errors = _IMPORT_ERROR.findall(stderr)
        if not import_errors:
            errors, places = _ERROR.findall(stderr), _PLACE.findall(stderr)
            where = places[-1] if places else "tests.setup"
            error = errors[-1][:_MAX_REASON] if errors else failed
            return f"{where}: fails without the program: {error}"
        message = f"tests: an import fails: {import_errors[-1][:_MAX_REASON] or 'ImportError'}"
        module = _MODULE.search(message)
        if module is None:
            return message
        return f"{message}; to add a package: {how_to_add(self._settings, module[1])}"


def _prepare(cases: Sequence[str], setup: str, stdin: bytes, limits: RunLimits) -> tuple[str, str]:
    """Return a digest of tests, and a program that compiles the cases and makes all imports.

    The program is empty if nothing can fail.
    """
    sources = {f"tests.cases.{n}": case for n, case in enumerate(cases) if _WORDS.search(case)}
    if not sources and not setup:
        return "", ""
    compiled = [f"compile({source!r}, {name!r}, 'exec')" for name, source in sources.items()]
    script = "\n".join([*compiled, import_statements([setup, *sources.values()])])
    digest = hashlib.sha256(f"{limits} {len(stdin)} {len(setup)}".encode())
    for part in (stdin, encoded(setup), encoded(script)):
        digest.update(part)
    return digest.hexdigest(), script


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
        with exclusive_parser():
            module = ast.parse(source)
        return list(_imports(module))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
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
