"""The normal form of a Python program: a key for the cache of verdicts, never the code that runs.

Programs with one key behave alike, so that a verdict on one of them is a verdict on the others.
There are two kinds of keys:

    form    the syntax tree, in which every variable that nothing can observe is written as a
            number, `$0`, `$1`, in the order in which they first occur. That is the program again
            under fresh names, so equal trees are equal programs. Layout, comments, `pass` and
            docstrings are gone; so are type hints that do nothing when they are evaluated.
    text    the text itself.

A program has a form only if everything that it uses is on a list of what shows neither names nor
line numbers (`allowed.py`, `introspection.py`): builtins, modules and their attributes, attributes
of objects, special methods, base classes; and if it has no dynamic access, such as an attribute by
a computed name. Otherwise, and if it is not valid Python, too large or too deep, its key is its
text.

What keeps its name in a form:

    attributes, methods, keywords, modules, classes, everything in the body of a class
    names of the module    for `unit`, as the tests use them; for `stdin`, those that shadow a
                           builtin, or that a star import may bind
    parameters             that a call by keyword can reach: one in the program; or one in the
                           tests, for `unit`, of a function that is public, returned or passed on
    functions              that are more than called, as their name may then be shown
    everything             where the text of an error that may name variables is used

Tests that are source code are analyzed in the same way (`names_of_tests`), and a program is checked
together with what they use and bind. By decision, not observed: what is written to standard error;
addresses, sizes and timings.
"""

import ast
import re
import symtable
from collections.abc import Sequence

from rewardfleet.text.python import exclusive_parser

from . import allowed
from .introspection import check, check_tests, find_names_of_tests
from .naming import Naming
from .uses import Level, NamesOfTests, ReflectsSource
from .writer import CanonicalWriter

#: Raised with every change of the form; part of the key, so that no old verdict answers a new form.
NORMAL_FORM_VERSION = 4

#: Longer sources are their own key. Hardly any solution is as long; and CPython's parser takes the
#: square of the fields of an f-string before Python 3.12: half a second for this much.
LARGEST = 50_000  # characters


def names_of_tests(setup: str, cases: Sequence[str] = ()) -> NamesOfTests | None:
    """Return what tests use of programs, or None if they may observe more than public names.

    The same analysis as for programs decides. Names that begin with an underscore are not public,
    and the texts of errors may name variables.

    Args:
        setup: Source code that runs in a program's module, before the program.
        cases: Source code that runs there after it.
    """
    try:
        forbidden: set[str] = set()
        imported: set[str] = set()
        before, after = _parse(setup).body, [node for case in cases for node in _parse(case).body]
        body = before + after
        for statement in list(body):
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                names = allowed.STAR_NAMES_OF_TESTS.get(statement.module or "")
                if names is not None and not statement.level:
                    forbidden |= names
                    if statement not in before:
                        imported |= allowed.MODULES.get(
                            statement.module or "", allowed.ALL_BUILTINS
                        )
                    body.remove(statement)
        writer = CanonicalWriter(ast.Module(body, []), "unit")
        writer.is_test = True
        return find_names_of_tests(writer, frozenset(forbidden), frozenset(imported))
    except (ReflectsSource, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def normal_form(source: str, *, level: Level, tests: NamesOfTests | None = None) -> str:
    """Return the key of a program; never raises, and takes at most seconds, mostly 0.1 ms.

    Args:
        source: Any text.
        level: Who uses the program: `unit` tests, by the names of its module, or `stdin` tests,
            which see what it prints.
        tests: What the tests use, if they are source code.

    Returns:
        Text without lone surrogates.
    """
    kind, key = _read(source, level, tests)
    return f"{kind} {NORMAL_FORM_VERSION} {level}\n{key}"


def _read(source: str, level: Level, tests: NamesOfTests | None) -> tuple[str, str]:
    try:
        # A file is decoded as its coding line says, a string is not: there a comment matters.
        if len(source) <= LARGEST and not _OTHER_CODING.match(source):
            program = CanonicalWriter(_parse(source), level)
            check(program)
            if tests is not None:
                check_tests(program, tests)
            return "form", Naming(program).text()
    except (ReflectsSource, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return "text", repr(source)


_OTHER_CODING = re.compile(
    r"(?:[^\n]*\n)?[ \t\f]*#[^\n]*coding[:=][ \t]*+(?=[-\w.])(?!utf[-_]?8\b)", re.IGNORECASE
)


def _parse(source: str) -> ast.Module:
    """Parse, and look for errors of scopes: `global x` after `y: x = 1`, which a form omits."""
    with exclusive_parser():
        tree = ast.parse(source)
        symtable.symtable(source, "program.py", "exec")
        return tree
