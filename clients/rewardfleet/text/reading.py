"""Reading of a text: who wrote what, what of it is thoughts, and what is the answer.

A text is the policy's turn until a mark says otherwise. What a tool or a user wrote is never the
policy's, and the last turn of the policy has its answer. A thought that never ends is no answer.

A mark in a string or a block is text. Time is linear in the text.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from . import marks
from .marks import LONGEST, THOUGHT, TOOL, TURN, Role

#: A comment, except a number like `#2`; quotation marks, except apostrophes.
_COMMENT = re.compile(r"(?:^|\s)#(?!\d)")
_BLANK = re.compile(r"\s*")
#: What follows a mark that prose mentions.
_MENTION = re.compile(r"[ \t]+[a-z]")
_QUOTE = re.compile(r"(?<![a-zA-Z])'|'(?![a-zA-Z])|[\"`]")
#: Characters of a line around a mark in which quotation marks are sought. Limits the time.
_MAX_LINE = 500
#: Characters after a mark in square brackets in which the other one is sought. Limits the time.
_MAX_PAIR = 20_000


class Thought(NamedTuple):
    """Where a thought is in the text of its turn: with its marks, and without them."""

    start: int
    begin: int  #: where its text begins; `start` if the prompt has its mark
    close: int  #: where its text ends; `end` if it has no mark
    end: int


class Turn(NamedTuple):
    """What one speaker wrote, without marks of turns and ends."""

    role: Role  #: who wrote it; a `thought` is one as a whole, a `call` has the mark before it
    text: str  #: all of it, without what tools answered
    thoughts: tuple[Thought, ...] = ()  #: where thoughts are in `text`
    cut: bool = False  #: whether the last thought never ends
    unended: str = ""  #: what follows in an answer of a tool that never ends

    @property
    def answer(self) -> str:
        """The text without thoughts."""
        begins = (0, *(thought.end for thought in self.thoughts))
        ends = (*(thought.start for thought in self.thoughts), len(self.text))
        return "".join(self.text[begin:end] for begin, end in zip(begins, ends, strict=True))


@dataclass(frozen=True)
class Reading:
    """The turns of a text, in order, without empty ones that answer nobody."""

    turns: tuple[Turn, ...]

    @cached_property
    def last(self) -> Turn:
        """The last turn of the policy, with its answer."""
        written = [turn for turn in self.turns if turn.role in {"assistant", "thought"}]
        return written[-1] if written else Turn("assistant", "")


def read(text: str, *, code: bool = False) -> Reading:
    """Read a text of a policy; any text can be read.

    Args:
        code: Whether the text may be source code, of which a thought in the middle begins a line,
            and in whose comments marks are text, too.
    """
    plain = marks.PLAIN.fullmatch(text)
    if plain and not has_hint(text, marks.OTHER_HINTS):
        return Reading((Turn("assistant", text, (Thought(*plain.span(1), *plain.span(2)),)),))
    for opening, closing, _ in marks.THOUGHTS_IN_WORDS:
        start = len(text) - len(text.lstrip())
        is_cut = opening == "analysis" and text[start + len(opening) :][:1].isupper()
        if text.startswith(opening, start) and (closing in text or is_cut):
            text = text.replace(opening, "<think>", 1).replace(closing, "</think>", 1)
    turns: list[Turn] = []
    for role, part in _parts(text, code=code):
        # An empty turn after that of another speaker is an empty answer.
        answers = role == "assistant" and bool(turns) and turns[-1].role in {"user", "tool"}
        if part.strip() or answers:
            turns.append(_turn(role, part, code=code))
    return Reading(tuple(turns))


def without_end_tokens(text: str) -> str:
    """Return a text without the special tokens at its end."""
    end, bare = len(text), len(text.rstrip())
    while text.endswith(marks.LAST, 0, bare):
        token = marks.LAST_TOKEN.search(text, max(0, bare - LONGEST), bare)
        if token is None:
            break
        end = token.start()
        bare = len(text[max(0, end - LONGEST) : end].rstrip()) + max(0, end - LONGEST)
    return text[:end]


def _parts(text: str, *, code: bool) -> Iterator[tuple[Role, str]]:
    """Yield the role and the text of each turn; `end` for what follows the end of one."""
    role: Role = "assistant"
    position = 0
    pattern = marks.BARE_OR_MARKED_TURN if "\nassistant\n" in text else TURN
    if pattern is not TURN or has_hint(text, marks.TURN_HINTS):
        source = _Source(text, has_comments=code)
        for mark in pattern.finditer(text):
            if source.has(mark) or _is_unpaired(mark, role):
                continue
            yield role, text[position : mark.start()]
            is_end = mark.lastindex == TURN.groups
            role = "end" if is_end else marks.ROLES.get(mark[mark.lastindex or 0].lower(), "tool")
            position = mark.end()
            if role == "thought" and "to=" in mark[0]:
                role, position = "call", mark.start()
    yield role, text[position:]


def _is_unpaired(mark: re.Match[str], role: Role) -> bool:
    """Return whether a mark in square brackets has no other one, so that it is text."""
    name = mark[0].strip("[]")
    if name in {"/INST", "/TOOL_RESULTS"}:
        return role not in {"user", "tool"}
    if name in {"INST", "TOOL_RESULTS"}:
        return mark.string.find(f"[/{name}]", mark.end(), mark.end() + _MAX_PAIR) < 0
    return False


def _turn(role: Role, text: str, *, code: bool) -> Turn:
    text = without_end_tokens(text)
    if role == "thought":
        return Turn(role, text, (Thought(0, 0, len(text), len(text)),), cut=True)
    if role != "assistant":
        return Turn(role, text)
    parts, unended = (
        _without_tools(text, code=code) if has_hint(text, marks.TOOL_HINTS) else ([text], "")
    )
    thoughts: list[Thought] = []
    length = 0
    for part in parts if any(map(text.lower().__contains__, marks.THOUGHT_HINTS)) else ():
        thoughts += (
            Thought(*(each + length for each in found)) for found in _thoughts(part, code=code)
        )
        length += len(part) + 1
    text = "\n".join(parts)
    cut = bool(thoughts) and thoughts[-1].close == len(text)
    return Turn(role, text, tuple(thoughts), cut, unended)


def _without_tools(text: str, *, code: bool) -> tuple[list[str], str]:
    """Return the parts of a text around answers of tools, and what is in one without an end."""
    source = _Source(text, has_comments=code)
    parts: list[str] = []
    position = 0
    opened: re.Match[str] | None = None
    for mark in TOOL.finditer(text):
        if opened is None and mark.lastgroup == "opening" and not source.has(mark):
            opened = mark
        elif opened and mark.lastgroup == "closing":
            parts.append(text[position : opened.start()])
            position, opened = mark.end(), None
    end = len(text)
    if opened and not text[: opened.start()].endswith((" ", "\t")):  # else it is prose about it
        end = opened.start()
    return [*parts, text[position:end]], text[end:]


def _thoughts(text: str, *, code: bool) -> list[Thought]:
    """Return where thoughts are; one that never ends ends with the text."""
    source = _Source(text, has_comments=code)
    found: list[Thought] = []
    opened: re.Match[str] | None = None
    is_first = False
    for mark in sorted([m for each in THOUGHT for m in each.finditer(text)], key=re.Match.start):
        if mark.lastgroup in {"closing", "end"}:
            first = found[0].begin if found and not found[0].start else 0
            start, begin = opened.span() if opened else (0, first)
            # Thoughts that began in the prompt end only with one kind of mark.
            last = text[found[-1].close : found[-1].end] if found else mark[0]
            may_end = mark.lastgroup == "closing" and last.lower() == mark[0].lower()
            if not opened and (not may_end or source.is_text(mark)):
                continue
            # Without an opening mark, the prompt has it.
            found = [*(found if opened else ()), Thought(start, begin, *mark.span())]
            opened = None
        elif opened is None:
            is_first = (
                _BLANK.fullmatch(text, found[-1].end if found else 0, mark.start()) is not None
            )
            if is_first or _may_open(mark, source):
                opened = mark
    if opened and (is_first or opened.lastgroup == "opening"):
        found.append(Thought(*opened.span(), len(text), len(text)))
    return found


def _may_open(mark: re.Match[str], source: "_Source") -> bool:
    """Return whether thoughts may begin with a mark in the middle: `List<Thought>` is none."""
    before = mark.string[max(0, mark.start() - 1) : mark.start()]
    if source.has_comments:
        may_open = mark.lastgroup == "opening" and before in {"\n", ">"}
    else:
        may_open = not before.isalpha()
    return may_open and not source.is_text(mark)


def has_hint(text: str, hints: Iterable[tuple[str, re.Pattern[str]]]) -> bool:
    """Return whether a text may have marks, by one of the tables of hints in `marks`."""
    for first, hint in hints:  # noqa: SIM110 - a generator takes as long as the rest
        if first in text and hint.search(text):
            return True
    return False


@dataclass
class _Source:
    """Tells which marks are in a block, a string or a comment of a text."""

    _text: str
    has_comments: bool  #: whether comments are sought

    @cached_property
    def _places(self) -> list[list[int]]:
        quotes = ("```", "~~~", '"""', "'''")
        return [[each.start() for each in re.finditer(quote, self._text)] for quote in quotes]

    def is_text(self, mark: re.Match[str]) -> bool:
        """Return whether a mark is in source code, or a word of a sentence."""
        is_apart = self._text[max(0, mark.start() - 1) : mark.start()] in {" ", "\t"}
        return (is_apart and _MENTION.match(self._text, mark.end()) is not None) or self.has(mark)

    def has(self, mark: re.Match[str]) -> bool:
        """Return whether a mark is in source code."""
        start, end = mark.span()
        before = self._text[max(0, start - _MAX_LINE) : start].rpartition("\n")[2]
        before = before.replace("```", "")
        after = self._text[end : end + _MAX_LINE].partition("\n")[0] if "\n" not in mark[0] else ""
        if any(quote in before and quote in after for quote in "'\"`"):
            quotes, rest = _QUOTE.findall(before), _QUOTE.findall(after)
            if any(quotes.count(quote) % 2 and quote in rest for quote in "'\"`"):
                return True
        fences = self._places[0]
        is_comment = self.has_comments and _COMMENT.search(before) is not None
        if is_comment and not (fences and fences[-1] >= end):
            return True
        for places in self._places:  # what follows closes what was opened before
            count = bisect_left(places, start)
            if count % 2 and (len(places) - count) % 2:
                return True
        return False
