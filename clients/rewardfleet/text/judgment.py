r"""The overall judgment of a critique.

A critique is valid if all its overall judgments are the same, and there is at least one:

    Overall judgment: Correct            valid, also with `judgement`, `is`, markdown, tags or
                                         \boxed{} around the word, or with the word alone on a
                                         line below
    ...: Correct/Incorrect               no judgment: a copy of the template, which is both
    ...: Correct  ...  ...: Incorrect    no judgment, as the two differ; the same one twice is valid
    ...: Incorrect. The correct sum is   incorrect: prose after the word is not a second judgment
    ...: not correct, partly correct     no judgment: only the word itself is explicit
    thoughts, and turns of others        ignored; so is a critique that is cut in its thoughts
"""

import re
from typing import Literal

from .reading import read

_MARKER = re.compile(r"(?<![^\W_])overall[\s*_-]{1,10}judge?ment", re.IGNORECASE)
#: Characters after a marker that are parsed. Limits the time per marker.
_MAX_DISTANCE = 200

_EITHER = r"(?:in)?correct(?![^\W_])"
_WORD = rf"({_EITHER})"


def _decoration(tag: str) -> str:
    """Return a pattern of markdown, brackets, tags, LaTeX boxes; of nothing that ends a clause.

    It is possessive: `<_>` is a tag, and also three marks, so a few dozen have 2^n readings.
    """
    return rf"(?:</?{tag} ?/?>|\\(?:boxed|text(?:bf)?)\b|[^\w\n,.;!?]|_)*+"


#: What may surround the word; and the same where the word itself is in angle brackets.
_DECORATION = _decoration(r"\w{1,10}")
_BRACKETS = _decoration(rf"(?!_*{_EITHER})\w{{1,10}}")
_ON_SAME_LINE = [
    re.compile(rf"{each}(?:is\b{each})?{_WORD}", re.IGNORECASE) for each in (_DECORATION, _BRACKETS)
]
_ON_LINE_BELOW = [
    re.compile(
        rf"{each}(?:\n{each})+{_WORD}(?={_DECORATION}[.!]?{_DECORATION}(?:\n|$))", re.IGNORECASE
    )
    for each in (_DECORATION, _BRACKETS)
]
#: What may follow the word and change the judgment: a question mark, or a second word.
_QUESTION = re.compile(rf"{_DECORATION}\?")
_SECOND = re.compile(rf"([\W_]*(?:(?:or|and)\b[\W_]*)?){_WORD}", re.IGNORECASE)
#: A second word counts if it is joined to the first, or if the clause ends after it.
_JOINT = re.compile(r"[/|]|[^\W_]")
_END = re.compile(r"[\W_]*(?:\n|$)|[\s*_]*[^\w\s]")


def overall_judgment(critique: str) -> Literal["correct", "incorrect"] | None:
    """Return the overall judgment of a critique; None unless there is exactly one.

    Takes time linear in the length of the text.
    """
    answer = read(critique).last.answer
    found: set[str] = set()
    for marker in _MARKER.finditer(answer):
        found |= _judgments(answer[marker.end() : marker.end() + _MAX_DISTANCE])
    if len(found) != 1:
        return None
    return "correct" if found == {"correct"} else "incorrect"


def _judgments(text: str) -> set[str]:
    """Return the judgments at the beginning of the text after a marker."""
    patterns = (*_ON_SAME_LINE, *_ON_LINE_BELOW)
    first = next(filter(None, (pattern.match(text) for pattern in patterns)), None)
    if first is None or _QUESTION.match(text, first.end()):
        return set()
    second = _SECOND.match(text, first.end())
    if second is None or not (_JOINT.search(second[1]) or _END.match(text, second.end())):
        return {first[1].lower()}
    return {first[1].lower(), second[2].lower()}
