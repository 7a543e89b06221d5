"""The normal form of a Python program: a key for the cache of verdicts, never the code that runs.

Programs with one key behave alike, so that a verdict on one of them is a verdict on the others.
There are two kinds of keys:

    form    the syntax tree, in which every local variable that is only assigned is written as a
            number, `$0`, `$1`, in the order in which they first occur. That is the program again
            under fresh names, so equal trees are equal programs. Layout, comments, docstrings, and
            `pass` in a block are gone.
    text    the text itself.

A program has a form only if what it uses is on a list of what shows neither local names nor line
numbers (`allowed.py`, `introspection.py`): builtins, modules and what they have, special methods,
base classes; and if it has no dynamic access, such as an attribute by a computed name. Otherwise,
and if it is not valid Python, too large or too deep, its key is its text.

All other names are kept: of attributes, functions, parameters, classes, modules, and everything in
the body of a module or a class. If the text of an error is used that may name a local variable, all
names are kept. To write numbers for more would bring hardly any hit: see the code service's
benchmark page.

A program and the source code of its tests (`names_of_tests`) are checked together. By decision, not
observed: what is written to standard error; addresses, sizes and timings.
"""

import ast
import re
import symtable
from collections.abc import Sequence
from typing import Literal

from rewardfleet.text.python import exclusive_parser

from .introspection import ReflectsSource, Uses, uses_of
from .writer import CanonicalWriter

Level = Literal["unit", "stdin"]

#: Raised with every change of the form; part of the key, so that no old verdict answers a new form.
NORMAL_FORM_VERSION = 5

#: Longer sources are their own key. Hardly any solution is as long; and CPython's parser takes the
#: square of the fields of an f-string before Python 3.12: half a second for this much.
LARGEST = 50_000  # characters

#: What makes source code not one of which this analysis knows what it observes.
_FAILURES = (ReflectsSource, SyntaxError, ValueError, RecursionError, MemoryError)


def names_of_tests(setup: str, cases: Sequence[str] = ()) -> Uses | None:
    """Return what tests use, or None if they may observe local names or lines of programs.

    The same analysis as for programs decides.

    Args:
        setup: Source code that runs in a program's module, before the program.
        cases: Source code that runs there after it.
    """
    try:
        body = [node for source in (setup, *cases) for node in _parse(source).body]
        tree = ast.Module(body, [])
        CanonicalWriter(tree)
        uses = uses_of(tree)
        uses.check()
    except _FAILURES:
        return None
    return uses


def normal_form(source: str, *, level: Level = "unit", tests: Uses | None = None) -> str:
    """Return the key of a program; never raises, and takes at most seconds, mostly 0.1 ms.

    Args:
        source: Any text.
        level: Who uses the program: `unit` tests, by the names of its module, or `stdin` tests,
            which see what it prints. It is part of the key.
        tests: What the tests use, if they are source code.

    Returns:
        Text without lone surrogates.
    """
    kind, key = _read(source, tests)
    return f"{kind} {NORMAL_FORM_VERSION} {level}\n{key}"


def _read(source: str, tests: Uses | None) -> tuple[str, str]:
    try:
        # A file is decoded as its coding line says, a string is not: there a comment matters.
        if len(source) <= LARGEST and not _OTHER_CODING.match(source):
            tree = _parse(source)
            uses = uses_of(tree)
            shows_errors = (uses if tests is None else uses | tests).check()
            return "form", CanonicalWriter(tree).text(keeps_names=shows_errors)
    except _FAILURES:
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
