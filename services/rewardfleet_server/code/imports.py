"""Imports of tests: whether the modules that a caller's tests import are there.

A test that fails because its own import fails says nothing about the program, so such tests are
invalid. That is found out without the program, whose failures are always judged.
"""

import ast
import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from rewardfleet.wire.code import AssertTests, PlainTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import Timing
from rewardfleet_server.cache.single_flight import SingleFlight

from .packages import how_to_add
from .sandboxes import Check, Job, ProgramRun, RunLimits, RunResult, Sandbox
from .settings import CodeSettings

#: Imports that worked, whose digests are held in memory.
_MAX_CHECKED = 4096
_LIMITS = RunLimits(cpu_s=10, wall_s=30, memory_bytes=1 << 30, output_bytes=1 << 20)

#: Modules of the program, which is not there when imports are checked.
_OF_PROGRAM = {"program", "__main__", "__future__"}
#: Tests that change what can be imported.
_CHANGES_IMPORTS = re.compile(r"\bsys\s*\.\s*(?:path|modules|meta_path)\b")
_DYNAMIC_IMPORTS = {"__import__", "import_module"}
#: The last line of a traceback, and the module that it names.
_FAILURE = re.compile(r"(?m)^(?:ModuleNotFoundError|ImportError): ?(.*)$")
_MODULE = re.compile(r"No module named '([^'.]+)")
_MAX_REASON = 200


class ImportCheck:
    """Checks that the imports of tests work, once for all tests with the same ones.

    Args:
        sandbox: Where the programs run.
        settings: Of the service.
    """

    def __init__(self, sandbox: Sandbox, settings: CodeSettings) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._checked: OrderedDict[str, None] = OrderedDict()
        self._running: SingleFlight[None] = SingleFlight()

    async def check(self, tests: PlainTests) -> None:
        """Check the imports of the setup and of the asserts.

        Raises:
            InvalidRequest: One of them fails.
        """
        cases = tests.cases if isinstance(tests, AssertTests) else []
        sources = [each for each in (tests.setup, *cases) if "import" in each]
        if not sources:
            return
        setup = tests.setup if "import" in tests.setup else ""
        statements = await asyncio.to_thread(import_statements, sources)
        content = f"{statements}\n\0{setup}".encode(errors="surrogatepass")
        key = hashlib.sha256(content).hexdigest()
        if key not in self._checked:
            await self._running.do(key, lambda: self._run(key, setup, statements))

    async def _run(self, key: str, setup: str, statements: str) -> None:
        check = Check("assert", statements, secrets.token_hex(16))
        results: list[RunResult] = []

        def on_result(result: RunResult) -> bool:
            results.append(result)
            return False

        job = Job("", [ProgramRun(setup=setup, checks=(check,))], _LIMITS)
        await self._sandbox.run(job, on_result, Timing())
        result = results[0]
        failures = _FAILURE.findall(result.stderr.decode(errors="replace"))
        if failures and (result.exit_code or b'"raised"' in result.report):
            raise InvalidRequest(self._explain(failures[-1].strip()))
        if result.stopped != "died":
            self._checked[key] = None
            if len(self._checked) > _MAX_CHECKED:
                self._checked.popitem(last=False)

    def _explain(self, reason: str) -> str:
        message = f"tests: an import fails: {reason[:_MAX_REASON] or 'ImportError'}"
        module = _MODULE.search(reason)
        if module is None:
            return message
        return f"{message}; to add a package: {how_to_add(self._settings, module[1])}"


def import_statements(sources: Sequence[str]) -> str:
    """Return the imports of tests, each once, as a program.

    Only those that are not conditional: not the ones in `try`, `with` or `if`. Tests that are not
    valid Python, or that change `sys.path`, have none.
    """
    found: dict[str, None] = {}
    for source in sources:
        if _CHANGES_IMPORTS.search(source):
            continue
        try:
            found |= dict.fromkeys(_imports(ast.parse(source).body))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return "\n".join(sorted(found)) or "pass"


def _imports(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Import(names=names):
                modules = (each.name for each in names)
                yield from (f"import {each}" for each in modules if _is_external(each))
            case ast.ImportFrom(module=module) if module is None or _is_external(module):
                yield ast.unparse(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from _imports(node.body)
            case ast.Assert() | ast.Assign() | ast.AnnAssign() | ast.Expr() | ast.Return():
                for each in ast.walk(node):
                    if isinstance(each, ast.Call) and (name := _dynamic_import(each)):
                        yield f"import {name}"


def _is_external(module: str) -> bool:
    return module.partition(".")[0] not in _OF_PROGRAM


def _dynamic_import(call: ast.Call) -> str | None:
    """Return the module of `__import__("module")` or `importlib.import_module("module")`."""
    match call:
        case ast.Call(
            func=ast.Name(id=function) | ast.Attribute(attr=function),
            args=[ast.Constant(value=str(module)), *_],
        ) if function in _DYNAMIC_IMPORTS and _is_external(module):
            return module if all(map(str.isidentifier, module.split("."))) else None
    return None
