"""The normal form of a Python program: a key for the cache of verdicts, never the code that runs.

Programs with one key behave alike, so that a verdict on one of them is a verdict on the others. The
key is the syntax tree with a number for every local variable that is only assigned: the program
again under fresh names. docs/code-service.md#cached-verdicts says when it is the text instead, and
docs/benchmarks/code.md why no other names have numbers. By decision, not observed: what is written
to standard error; addresses, sizes and timings.
"""

import ast
import re
import symtable
from collections.abc import Sequence

from rewardfleet.text.python import exclusive_parser

from .introspection import Collector, ReflectsSource, Uses
from .writer import CanonicalWriter

#: Longer sources are their own key. Hardly any solution is as long; and CPython's parser takes the
#: square of the fields of an f-string before Python 3.12: half a second for this much.
LARGEST = 50_000  # characters

#: What makes source code not one of which this analysis knows what it observes.
_FAILURES = (ReflectsSource, SyntaxError, ValueError, RecursionError, MemoryError)


def names_of_tests(setup: str, cases: Sequence[str] = ()) -> Uses | None:
    """Return what tests use, or None if they may observe local names or lines of programs.

    Args:
        setup: Source code that runs in a program's module, before the program.
        cases: Source code that runs there after it.
    """
    try:
        body = [node for source in (setup, *cases) for node in _parse(source).body]
        tree = ast.Module(body, [])
        CanonicalWriter(tree)
        uses = Collector().collect(tree)
        uses.check()
    except _FAILURES:
        return None
    return uses


def normal_form(source: str, *, tests: Uses | None = None) -> str:
    """Return the key of a program, without lone surrogates; never raises, mostly takes 0.1 ms.

    Args:
        tests: What the tests use, if they are source code.
    """
    # A file is decoded as its coding line says, a string is not: there a comment matters.
    if len(source) <= LARGEST and not _OTHER_CODING.match(source):
        try:
            tree = _parse(source)
            uses = Collector().collect(tree)
            shows_errors = (uses if tests is None else uses | tests).check()
            return f"form\n{CanonicalWriter(tree).text(keeps_names=shows_errors)}"
        except _FAILURES:
            pass
    return f"text\n{source!r}"


_OTHER_CODING = re.compile(
    r"(?:[^\n]*\n)?[ \t\f]*#[^\n]*coding[:=][ \t]*+(?=[-\w.])(?!utf[-_]?8\b)", re.IGNORECASE
)


def _parse(source: str) -> ast.Module:
    """Parse, and look for errors of scopes: `global x` after `y: x = 1`, which a form omits."""
    with exclusive_parser():
        tree = ast.parse(source)
        symtable.symtable(source, "program.py", "exec")
        return tree
