"""Programs that may behave differently never share a key; programs equal up to names often do."""

import ast
import builtins
import contextlib
import copy
import dis
import inspect
import io
import json
import keyword
import random
import re
import runpy
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from rewardfleet_server.code.normal_form import LARGEST, allowed, normal_form

from ...measure import CpuStopwatch

#: Before any program has run here: some of them add a name, e.g. `_`.
BUILT_IN = frozenset(dir(builtins))

DATA = Path(__file__).parents[2] / "data" / "normal_form"


def kind(source: str, level: Any = "unit") -> str:
    return normal_form(source, level=level).split()[0]


# Cases written by hand

CASES = json.loads((DATA / "cases.json").read_text())

#: Equal programs with different keys: one is not a renaming, and only locals are numbers.
MISSED = {
    "while_to_for",
    "rename_lambda_param",
    "rename_local_import",
    "rename_param_reassigned",
    "rename_posonly_param",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_cases_share_a_key_as_expected(case: dict[str, Any]):
    a = normal_form(case["a"], level="unit")
    if case["expect"] != "no_crash":
        equal = case["expect"] == "equal" and case["id"] not in MISSED
        assert (a == normal_form(case["b"], level="unit")) is equal


@dataclass(frozen=True)
class Pair:
    """Two programs; `expression` is what a test evaluates after each of them."""

    name: str
    expect: str
    level: str
    expression: str
    sources: tuple[str, str]


def read_pairs() -> Iterator[Pair]:
    text = (DATA / "pairs.txt").read_text()
    for block in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, body = block.split("\n", 1)
        name, expect, level, *expression = head.split(" | ", 3)
        first, second = body.strip("\n").split("\n---\n")
        sources = (first + "\n", second + "\n")
        yield Pair(name, expect, level, expression[0] if expression else "", sources)


PAIRS = list(read_pairs())


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name.replace(" ", "-"))
def test_pairs_share_a_key_if_they_behave_alike(pair: Pair, tmp_path: Path):
    """Running the programs confirms that they behave alike, or differently.

    A pair that is `missed` behaves alike and has two keys.
    """
    a, b = (normal_form(source, level=pair.level) for source in pair.sources)
    assert (a == b) == (pair.expect == "equal")
    path = tmp_path / "program.py"
    behaviors = {observed(source, pair.expression, path) for source in pair.sources}
    assert len(behaviors) == (2 if pair.expect == "different" else 1)


def observed(source: str, expression: str, path: Path) -> str:
    """Return what a program prints, with the expression on its last line, and how it ends."""
    path.write_text(source + (f"\nprint(repr({expression}))\n" if expression else ""))
    out, end = io.StringIO(), ""
    argv, stderr, hook = sys.argv, sys.stderr, threading.excepthook
    try:
        sys.argv, threading.excepthook = [str(path)], threading.__excepthook__
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(path), run_name="__main__")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - programs may raise anything
        end = f"{type(error).__name__}: {error}"
    finally:
        sys.argv, sys.stderr, threading.excepthook = argv, stderr, hook
    return re.sub(r"0x[0-9a-f]+", "0x", out.getvalue()) + end


def test_the_levels_have_different_keys():
    assert normal_form("x = 1", level="unit") != normal_form("x = 1", level="stdin")


# Unusual input

UNUSUAL = {
    "20,000 minuses": "x = " + "-" * 20_000 + "1",
    "5,000 attributes": "x = a" + ".b" * 5_000,
    "20,000 terms": "x = " + "+".join(["1"] * 20_000),
    "20,000 parentheses": "(" * 20_000 + "1" + ")" * 20_000,
    "open brackets": "[" * 199,
    "brackets around an error": "{" * 150 + "1 2" + "}" * 150,
    "3,000 lambdas": "lambda: " * 3_000 + "1",
    "3,000 elifs": "if x: pass\n" + "elif x: pass\n" * 3_000,
    "a number of 80,000 digits": "x = 0x" + "f" * 80_000,
    "lone surrogate": "x = '\ud800'",
    "lone surrogate in a comment": "x = 1  # \udfff",
    "NUL": "x = 1\0",
    "byte order mark": "\ufeffx = 1",
    "Python 2": "print 'x'\nexec 'y'",
    "tabs and spaces": "if 1:\n\tx\n        y",
    "words": "I think the answer is 42.",
    "nothing": "",
    "invalid escape": "x = '\\d'",
    "Python 3.12": "type X[T] = list[T]\ndef f[T](x: T) -> T: return x",
    "many fields": 'x = f"' + "{a}" * 10_000 + '"',
    "many statements": "x = 1\n" * 8_000,
    "many hints": "def f(x: int) -> int: return x\n" * 3_200,
    "many lambdas": "f(key=lambda x: x)\n" * 2_000,
    "many arguments": "f(" + "a," * 49_000 + ")",
    "many threads": "from threading import Thread\n" + "t = Thread(target=f)\n" * 4_700,
    "many names": "".join(f"def f{n}(): f{n}()\n" for n in range(5_000)),
    "many functions passed on": "".join(f"def f{n}(g): f{n + 1}(g)\n" for n in range(4_000)),
    "many decorators": "def d(f):\n def g(): f()\n return g\n" + "@d\ndef f(): 1\n" * 6_000,
    "many classes' names": "class A:\n" + "".join(f" a{n} = b{n}\n" for n in range(6_000)),
    "many builtins": "dir = 1\n" * 12_000,
    "many handlers": "class E(Exception): pass\n" + "try: f()\nexcept E as e: print(e)\n" * 3_000,
    "many classes": "from enum import Enum\nclass A: pass\n"
    + "class A(A):\n def f(x): x\n" * 3_800,
    "many generators": "from collections import *\nx = 'a b c'\n" + "sum(x for x in y)\n" * 5_000,
    "many underscores": "x = '" + "__a" * 30_000 + "'",
    "many coding lines": "#coding:" * 12_000,
    "too large": "x = 1\n" * 1_000_000,
}


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("level", ["unit", "stdin"])
def test_unusual_input_has_a_key_in_limited_time(name: str, level: Any):
    watch = CpuStopwatch()
    key = normal_form(UNUSUAL[name], level=level)
    assert watch.seconds < 5  # about a second, on a busy machine
    key.encode()  # keys are hashed, so they must not contain lone surrogates


def test_a_key_does_not_depend_on_warnings_that_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kind(r"x = '\d'") == "form"


@pytest.mark.slow
def test_the_key_of_a_very_large_program_is_its_text():
    source = "x = 1\n" * (LARGEST // 6)
    assert (kind(source), kind(source + "y = 2\n")) == ("form", "text")


def test_threads_compute_the_same_key_and_do_not_change_the_warning_filters():
    filters = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        keys = set(
            pool.map(lambda _: normal_form("def f(): return '\\d'", level="unit"), range(200))
        )
    assert len(keys) == 1
    assert warnings.filters == filters


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(x): return eval(x)", "text"),
        ("import numba", "text"),
        ("from . import a", "text"),
        ("import inspect", "text"),
        ("exec('import inspect')", "text"),
        ("print(__file__)", "text"),
        ("if __name__ == '__main__': pass", "form"),
        ("import re; re.compile('x')", "form"),
        ("def f(dir): return dir", "form"),
        ("class A:\n    def __repr__(self): return 'A'", "form"),
    ],
)
def test_reflection_determines_the_kind_of_key(source: str, expected: str):
    assert kind(source) == expected


def test_the_lists_of_what_is_allowed_are_valid():
    for words in (allowed.BUILTINS, allowed.BASES, *allowed.MODULES.values()):
        assert all(word.partition("(")[0].isidentifier() for word in words)
    for error in allowed.NAMELESS_ERRORS:
        assert issubclass(getattr(builtins, error), BaseException)
    assert allowed.ALL_BUILTINS | {"__name__"} >= allowed.BUILTINS
    assert allowed.MODULES.keys() | {"builtins"} >= allowed.STAR_MODULES


@pytest.mark.parametrize("path", sorted(allowed.MODULES))
def test_the_modules_have_the_attributes_that_are_allowed(path: str):
    """Or a word is misspelled. Some are in newer versions of Python only."""
    module = pytest.importorskip(path)
    missing = {
        name for name in allowed.MODULES[path] if not hasattr(module, name.partition("(")[0])
    }
    assert not missing - {"UTC"}


# Mutants: programs with one word changed, or one variable renamed. CPython's bytecode is the oracle
# that says whether they may behave differently.


class Bytecode:
    """The bytecode of a program, without the names that a key may omit.

    The instructions of all code objects, nested in the order in which they are loaded. Variables of
    functions are numbered in the order of their first use, because their indices in the bytecode
    depend on their names (cells are sorted). Omitted are caches, cells, line tables and the names
    of code objects. Included are the names of attributes, globals (for `stdin`, except those that
    the module binds) and keywords; constants with their types; and, for `unit`, the names of
    parameters that a test may use. Hints are removed, except in classes, as a key may omit them.
    """

    SILENT = frozenset({"CACHE", "EXTENDED_ARG", "LOAD_CLOSURE", "MAKE_CELL", "NOP"})

    def __init__(self, source: str, level: str) -> None:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.returns = None
        tree.body = [
            ast.copy_location(ast.Assign([node.target], node.value), node)
            if isinstance(node, ast.AnnAssign) and node.value
            else node
            for node in tree.body
        ]
        code = compile(tree, "program", "exec", dont_inherit=True)
        self.level = level
        self.numbers: dict[Any, int] = {}
        self.renamed: set[str] = set()
        if level == "stdin":
            self.renamed = {
                name for name in stored(code) if name not in BUILT_IN and not name.startswith("__")
            }
        self.lines = list(self.read(code, {}, public=True))

    def number(self, variable: Any) -> str:
        return f"${self.numbers.setdefault(variable, len(self.numbers))}"

    def read(self, code: CodeType, around: dict[str, Any], *, public: bool) -> Iterator[Any]:
        variables: dict[str, Any] = {
            name: (code, name) for name in code.co_varnames + code.co_cellvars
        }
        variables |= {name: around[name] for name in code.co_freevars if name in around}
        named = code.co_argcount + code.co_kwonlyargcount
        stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(
            code.co_flags & inspect.CO_VARKEYWORDS
        )
        yield (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        yield code.co_flags & ~inspect.CO_NESTED
        yield [self.number(variables[name]) for name in code.co_varnames[: named + stars]]
        if public and self.level == "unit":
            yield code.co_varnames[code.co_posonlyargcount : named]
        instructions = list(dis.get_instructions(code))
        indices, index = {}, 0
        for step in instructions:
            indices[step.offset] = index
            index += step.opname not in self.SILENT
        for step in instructions:
            if step.opname in self.SILENT:
                continue
            yield step.opname
            if isinstance(step.argval, CodeType):
                of_module = not code.co_flags & inspect.CO_OPTIMIZED  # or of a class
                private = re.match(r"_(?!_)", step.argval.co_name)
                yield from self.read(step.argval, variables, public=of_module and not private)
            elif step.opname == "KW_NAMES":  # dis does not resolve it
                yield code.co_consts[step.arg or 0]
            elif step.opcode in dis.hasconst:
                yield constant(step.argval)
            elif step.opcode in dis.haslocal or step.opcode in dis.hasfree:
                yield self.number(variables.get(step.argval, step.argval))
            elif step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                yield indices[step.argval]
            elif step.opcode in dis.hasname:
                yield from self.name(step, code)
            else:
                yield step.arg

    def name(self, step: dis.Instruction, code: CodeType) -> Iterator[Any]:
        in_module = code.co_name == "<module>" and step.opname.endswith("_NAME")
        in_module &= not step.opname.startswith("IMPORT")
        is_global = step.opname.endswith("_GLOBAL") or step.opname == "LOAD_NAME" or in_module
        yield self.number(step.argval) if is_global and step.argval in self.renamed else step.argval
        if step.opname == "LOAD_GLOBAL":
            yield (step.arg or 0) & 1


def stored(code: CodeType) -> Iterator[str]:
    """Yield the names that the module binds."""
    for step in dis.get_instructions(code):
        where = "_NAME" if code.co_name == "<module>" else "_GLOBAL"
        if step.opname in ("STORE" + where, "DELETE" + where, "STORE_GLOBAL", "DELETE_GLOBAL"):
            yield step.argval
        if isinstance(step.argval, CodeType):
            yield from stored(step.argval)


def constant(value: object) -> Any:
    """Return a constant with its type, so that 1, 1.0 and True differ. Sets are sorted."""
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return type(value).__name__, repr(value)


def bytecode(source: str, level: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "program", "exec", dont_inherit=True)
            return Bytecode(source, level).lines
        except (SyntaxError, ValueError):
            return "not a program"


#: Modules of the standard library that compute, as solutions do.
COMPUTING = allowed.words("""
    _pydatetime _pydecimal _strptime base64 bisect calendar colorsys copy csv datetime decimal
    difflib fnmatch fractions graphlib heapq html.parser ipaddress json.decoder json.encoder
    posixpath pprint quopri random sched shlex statistics string stringprep textwrap uuid wave
""")

#: Modules of the standard library that use reflection, or the system.
REFLECTING = allowed.words("""
    argparse ast bdb cmd code codeop collections configparser contextlib dataclasses enum fileinput
    functools gettext getopt gzip imaplib keyword linecache locale mailbox netrc operator optparse
    pathlib pickletools plistlib rlcompleter shelve smtplib socketserver tabnanny tarfile timeit
    tokenize trace types typing unittest.mock weakref zipfile
""")


@cache
def programs(*, reflecting: bool = False) -> list[ast.Module]:
    """Return real programs: the functions and classes of these modules; and those of the pairs."""
    found = []
    for name in sorted(COMPUTING | REFLECTING if reflecting else COMPUTING):
        try:
            text = inspect.getsource(import_module(name))
        except ImportError:
            continue  # another version of Python
        found += [
            ast.unparse(node)
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        ]
    if reflecting:
        found += [source for pair in PAIRS for source in pair.sources]
    small = [source for source in found if len(source) < 6_000]
    return [ast.parse(source) for source in small if bytecode(source, "unit") != "not a program"]


WORDS = ("id", "arg", "name", "attr", "asname", "rest")


def words_of(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    """Return all names in a program, except those in hints, as node and field."""
    hints: set[ast.AST] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            hint = getattr(node, field, None)
            hints.update(ast.walk(hint) if hint else ())
    return [
        (node, field)
        for node in ast.walk(tree)
        for field in WORDS
        if node not in hints
        and isinstance(getattr(node, field, None), str)
        and not (isinstance(node, ast.alias) and field == "name")
    ]


def mutant(program: ast.Module, chance: random.Random) -> str:
    """Return the program with one name changed: to another of its names, or to a common one."""
    tree = copy.deepcopy(program)
    words = words_of(tree)
    if words:
        node, field = chance.choice(words)
        known = sorted({getattr(*word) for word in words})
        common = ["fresh", "x", "i", "_", "len", "sum", "result", "self", "__x"]
        setattr(node, field, chance.choice(known if chance.random() < 0.75 else common))
    return ast.unparse(tree)


def check_mutants(count: int, seed: int) -> None:
    """Check that a mutant with other bytecode than its program has another key."""
    chance, done = random.Random(seed), 0
    while done < count:
        program = chance.choice(programs(reflecting=True))
        level: Any = chance.choice(["unit", "unit", "stdin"])
        source, changed = ast.unparse(program), mutant(program, chance)
        if normal_form(source, level=level) == normal_form(changed, level=level):
            assert bytecode(source, level) == bytecode(changed, level), (level, source, changed)
            done += source != changed and bytecode(source, level) != bytecode(changed, level)
        else:
            done += bytecode(source, level) != bytecode(changed, level)


@pytest.mark.slow
def test_mutants_with_other_bytecode_have_other_keys():
    check_mutants(50, seed=1)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_5000_mutants_with_other_bytecode_have_other_keys():
    check_mutants(5_000, seed=2)


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def renamed(program: ast.Module, chance: random.Random) -> str | None:
    """Return the program with one local variable renamed; None if it has no local variable."""
    tree = copy.deepcopy(program)
    locals_ = []
    for scope in ast.walk(tree):
        if isinstance(scope, SCOPES):
            args = getattr(scope, "args", None)
            given = (
                {node.arg for node in ast.walk(args) if isinstance(node, ast.arg)} if args else ()
            )
            locals_ += [
                (scope, node.id)
                for node in ast.walk(scope)
                if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)
                and node.id not in given
            ]
    if not locals_:
        return None
    scope, name = chance.choice(locals_)
    for node in ast.walk(scope):
        for field in WORDS:
            outside = node is scope or isinstance(node, ast.keyword) or field == "attr"
            if not outside and getattr(node, field, None) == name:
                setattr(node, field, "fresh")
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = ["fresh" if word == name else word for word in node.names]
    return ast.unparse(tree)


@pytest.mark.slow
def test_renamed_locals_share_the_key():
    """At least 97% of the renamings that do not change the bytecode keep the key.

    Of the parts of modules that have a form: others use what their module imports. For complete
    programs, see test_normal_form_fuzz.py.
    """
    chance = random.Random(3)
    total = shared = 0
    parts = [part for part in programs() if kind(ast.unparse(part)) == "form"]
    assert len(parts) > 200
    while total < 150:
        program = chance.choice(parts)
        source, changed = ast.unparse(program), renamed(program, chance)
        if changed is not None and bytecode(source, "unit") == bytecode(changed, "unit"):
            total += 1
            shared += normal_form(source, level="unit") == normal_form(changed, level="unit")
    assert shared >= 0.97 * total


@pytest.mark.serial
@pytest.mark.slow
def test_a_key_costs_less_than_twice_a_parse_and_unparse():
    """As a ratio of medians, measured in turns."""
    chance = random.Random(4)
    key_seconds, parse_seconds = [], []
    for program in chance.sample(programs(reflecting=True), 40):
        source = ast.unparse(program)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(3):
            started = time.thread_time()
            normal_form(source, level="unit")
            between = time.thread_time()
            ast.unparse(ast.parse(source))
            times[0].append(between - started)
            times[1].append(time.thread_time() - between)
        key_seconds.append(min(times[0]))
        parse_seconds.append(min(times[1]))
    assert statistics.median(key_seconds) < 2 * statistics.median(parse_seconds)


def test_the_oracle_omits_the_names_of_locals_only():
    source = "def f(a):\n    b = a\n    def g(): return b\n    return g()"
    same = "def f(a):\n    z = a\n    def h(): return z\n    return h()"
    other = "def f(a):\n    b = a\n    def g(): return a\n    return g()"
    public = source.replace("a", "c")
    assert bytecode(source, "unit") == bytecode(same, "unit") != bytecode(other, "unit")
    assert bytecode(source, "unit") != bytecode(public, "unit")
    assert bytecode("x = 1", "unit") != bytecode("y = 1", "unit")
    assert bytecode("x = 1", "stdin") == bytecode("y = 1", "stdin") != bytecode("x = 1.0", "stdin")
    assert bytecode("f(a=1)", "unit") != bytecode("f(b=1)", "unit")
    assert bytecode("def f(a, a): 1", "unit") == "not a program"
    assert not keyword.iskeyword("fresh")
