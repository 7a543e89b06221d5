"""The imports that tests and solutions make, as programs that are tried without any other."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests, PlainTests
from rewardfleet_server.code.sandboxes.jail.guest.names import PROGRAM_MODULES

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
_EXPECTS_FAILURE = re.compile(r"(?i)raises|suppress")  #: contexts in which an import may fail


def trial_script(tests: PlainTests) -> str:
    """Return a program that compiles the cases and makes all imports; "" if nothing can fail."""
    cases = tests.cases if isinstance(tests, AssertTests) else []
    sources = {f"tests.cases.{n}": case for n, case in enumerate(cases) if _WORDS.search(case)}
    if not sources and not tests.setup:
        return ""
    compiled = [f"compile({source!r}, {name!r}, 'exec')" for name, source in sources.items()]
    return "\n".join([*compiled, import_statements([tests.setup, *sources.values()])])


def imports_of_solution(solution: str) -> str:
    """Return the imports of a row's solution as a program; "" if they are of Python itself."""
    has_others = set(_IMPORT.findall(solution)) - sys.stdlib_module_names
    return import_statements([solution]) if has_others else ""


def import_statements(sources: Iterable[str]) -> str:
    """Return the imports of tests, each once, as a program.

    Not those that may fail or depend on the platform. Tests that are not valid Python have none.
    """
    found: set[str] = set()
    for source in sources:
        if "import" in source and not _CHANGES_IMPORTS.search(source):
            found.update(_imports_of(source))
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
