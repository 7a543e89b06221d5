r"""The overall judgment of a critique.

What is decided; a critique is valid where all that it says overall comes to one judgment:

    Overall judgment: Correct            in any case, with `judgement`, `is`, markdown, tags or
                                         \boxed{} around, or alone in a line below the mark
    ...: Correct/Incorrect               none: the template, echoed, is both at once
    ...: Correct  ...  ...: Incorrect    none, likewise; the same twice is one
    ...: Incorrect. The correct sum is   incorrect: prose behind it is no second judgment
    ...: not correct, partly correct     none: nothing but the word itself is explicit
    what comes before a </think>         counts for nothing
"""

import re

from rewardfleet.wire.code import CritiqueJudgment

_THINKING = re.compile(r".*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_MARK = re.compile(r"(?<![^\W_])overall[\s*_-]{1,10}judge?ment", re.IGNORECASE)
#: Characters behind a mark that are looked at: bounds the time that each takes.
_REACH = 200

#: What may stand around the word: markdown, brackets, tags, LaTeX's boxes; not what ends a clause.
_AROUND = r"(?:</?\w{1,10} ?/?>|\\(?:boxed|text(?:bf)?)\b|[^\w\n,.;!?]|_)*"
_WORD = r"((?:in)?correct)(?![^\W_])"
_BESIDE = re.compile(rf"{_AROUND}(?:is\b{_AROUND})?{_WORD}", re.IGNORECASE)
_BELOW = re.compile(
    rf"{_AROUND}(?:\n{_AROUND})+{_WORD}(?={_AROUND}[.!]?{_AROUND}(?:\n|$))", re.IGNORECASE
)
#: The judgment goes on: as a question, or with another word.
_ASKED = re.compile(rf"{_AROUND}\?")
_OTHER = re.compile(rf"([\W_]*(?:(?:or|and)\b[\W_]*)?){_WORD}", re.IGNORECASE)
#: What joins the other word to the first; and what must follow it where nothing does.
_JOINT = re.compile(r"[/|]|[^\W_]")
_END = re.compile(r"[\W_]*(?:\n|$)|[\s*_]*[^\w\s]")


def overall_judgment(critique: str) -> CritiqueJudgment | None:
    """Return the one explicit overall judgment of a critique; None where there is none, or two.

    The time is linear in the text.
    """
    thinking = _THINKING.match(critique)
    start = thinking.end() if thinking else 0
    said: set[str] = set()
    for mark in _MARK.finditer(critique, start):
        said |= _said(critique[mark.end() : mark.end() + _REACH])
    if len(said) != 1:
        return None
    return "correct" if said == {"correct"} else "incorrect"


def _said(behind: str) -> set[str]:
    """Return the judgments that stand behind a mark."""
    first = _BESIDE.match(behind) or _BELOW.match(behind)
    if first is None or _ASKED.match(behind, first.end()):
        return set()
    other = _OTHER.match(behind, first.end())
    if other is None or not (_JOINT.search(other[1]) or _END.match(behind, other.end())):
        return {first[1].lower()}
    return {first[1].lower(), other[2].lower()}
