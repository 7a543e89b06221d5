"""The solutions that rows bring along."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from rewardfleet.text.program import extract_program
from rewardfleet.text.python import parse_source
from rewardfleet.wire.errors import InvalidRequest

from .columns import Row, json_of

#: Columns with one solution: HumanEval and BigCodeBench, LeetCodeDataset, ClassEval, MBPP, KodCode,
#: and others. A `completion` is one only in a row that says what is called.
_SINGLE = (
    "canonical_solution", "completion", "solution_code", "code", "solution", "reference",
    "reference_solution", "gold_standard_solution",
)  # fmt: skip
#: Columns with several, in all languages: APPS, TACO and CodeContests; CodeContests+.
_SEVERAL = ("solutions", "correct_submissions")
SOLUTIONS = (*_SINGLE, *_SEVERAL)  #: all of them
#: The names of Python 3 there, or if there is none. CodeContests has numbers.
_PYTHON = {"none", "3", "python", "python3", "py3"}
_MAX_TRIED = 100  #: solutions of one row that are tried to be read as Python


def solution_of(row: Row) -> str | None:
    """Return the only solution of a row, which may be a completion; None if it has none."""
    names = [name for name in _SINGLE if name != "completion" or row.get("entry_point")]
    for place in (row, row.get("extra_info")):
        if isinstance(place, dict):
            for text in map(place.get, names):
                if isinstance(text, str) and text.strip():
                    return extract_program(text, {str(row.get("entry_point") or "")})
    return None


def first_solution_of(row: Row) -> str:
    """Return the first solution that is valid Python; raise InvalidRequest if there is none."""
    only = solution_of(row)
    if only is not None:
        return only
    programs = (extract_program(text) for name in _SEVERAL for text in _texts(row.get(name), name))
    for program in filter(str.strip, islice(programs, _MAX_TRIED)):
        with suppress(SyntaxError):
            parse_source(program)
            return program
    raise InvalidRequest("check_reference: the row has no solution in Python")


def _texts(value: Any, column: str) -> Iterator[str]:
    """Yield the solutions in a column that may be Python."""
    if isinstance(value, str) and value.lstrip()[:1] not in {"[", "{"}:
        yield value
        return
    value = json_of(value, column)
    if isinstance(value, dict):  # CodeContests: parallel lists
        texts, languages = value.get("solution"), value.get("language")
        if not isinstance(texts, list):
            return
        if not isinstance(languages, list) or len(languages) != len(texts):
            languages = [None] * len(texts)
        value = [{"code": t, "language": name} for t, name in zip(texts, languages, strict=True)]
    for each in value if isinstance(value, list) else ():
        text = each
        if isinstance(each, dict):
            is_python = str(each.get("language")).lower() in _PYTHON
            text = each.get("code") or each.get("solution") if is_python else None
        if isinstance(text, str):
            yield text
