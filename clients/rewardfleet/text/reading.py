"""Reading of a text: who wrote what, what of it is thoughts, and what is the answer.

A text is the policy's turn until a mark says otherwise. What a tool or a user wrote is never the
policy's, and the last turn of the policy has its answer. A thought that never ends is no answer.

Marks in source code are text: with `code`, thoughts begin at the beginning of a turn or of what
follows a tool's answer, or before it, in the prompt; and marks in strings, comments and blocks do
not count. Time is linear in the text.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from .marks import (
    BARE_OR_MARKED_TURN,
    LAST,
    LAST_TOKEN,
    LONGEST,
    ROLES,
    THOUGHT,
    THOUGHT_HINTS,
    THOUGHTS_IN_WORDS,
    TOOL_ANSWER,
    TOOL_HINTS,
    TURN,
    TURN_HINTS,
    Role,
)

_TOOL: Role = "tool"
_SPACE = re.compile(r"\s*")
#: A comment, except a number like `#2`.
_COMMENT = re.compile(r"(?:^|\s)#(?!\d)")
#: Marks in a text of which it is sought whether they are in source code. Limits the time.
_MAX_MARKS = 50


@dataclass(frozen=True)
class Turn:
    """What one speaker wrote, without marks of turns and ends.

    Attributes:
        role: Who wrote it; `thought` for a turn that is one as a whole.
        text: All of it, without what tools answered.
        thoughts: Where thoughts are in `text`, with their marks: start and end.
        cut: Whether the last thought never ends.
    """

    role: Role
    text: str
    thoughts: tuple[tuple[int, int], ...] = ()
    cut: bool = False

    @cached_property
    def answer(self) -> str:
        """The text without thoughts."""
        parts, position = [], 0
        for start, end in self.thoughts:
            parts.append(self.text[position:start])
            position = end
        return "".join([*parts, self.text[position:]])


@dataclass(frozen=True)
class Reading:
    """The turns of a text, in order. Turns without text are left out."""

    turns: tuple[Turn, ...]

    @property
    def written(self) -> Iterator[Turn]:
        """The turns of the policy."""
        return (turn for turn in self.turns if turn.role in {"assistant", "thought"})

    @cached_property
    def last(self) -> Turn:
        """The last turn of the policy, with its answer."""
        return [Turn("assistant", ""), *self.written][-1]


def read(text: str, *, code: bool = False) -> Reading:
    """Read a text of a policy; any text can be read.

    Args:
        code: Whether the text may be source code, so that marks in it are text.
    """
    for opening, closing, _ in THOUGHTS_IN_WORDS:
        is_closed = closing in text
        if text.lstrip().startswith(opening) and (is_closed or opening.endswith(":")):
            text = text.replace(opening, "<think>", 1).replace(closing, "</think>", 1)
    turns = [_turn(role, part, code=code) for role, part in _parts(text, code=code) if part.strip()]
    return Reading(tuple(turns))


def inside_marks(thought: str) -> tuple[str, str, bool]:
    """Return the opening mark of a thought or "", what is inside, and whether a mark ends it."""
    marks = list(THOUGHT.finditer(thought))
    begin, end = 0, len(thought)
    if marks and marks[0].start() == 0 and marks[0].lastgroup != "closing":
        begin = marks[0].end()
    if marks and marks[-1].end() == end and marks[-1].lastgroup == "closing":
        end = marks[-1].start()
    return thought[:begin], thought[begin:end], end < len(thought)


def without_end_tokens(text: str) -> str:
    """Return a text without the special tokens at its end."""
    end = len(text)
    if not text.rstrip().endswith(LAST):
        return text
    while token := LAST_TOKEN.search(text, max(0, end - LONGEST), end):
        end = token.start()
    return text[:end]


def _parts(text: str, *, code: bool) -> Iterator[tuple[Role | None, str]]:
    """Yield the role and the text of each turn; None for what follows the end of one."""
    role: Role | None = "assistant"
    position = 0
    if "\nassistant\n" in text:
        marks = BARE_OR_MARKED_TURN.finditer(text)
    else:
        marks = TURN.finditer(text) if _has(text, TURN_HINTS) else iter(())
    for number, mark in enumerate(marks):
        if code and number < _MAX_MARKS and _is_in_code(text, mark.span()):
            continue
        yield role, text[position : mark.start()]
        name = mark[mark.lastindex or 0].lower()
        is_end = mark.lastindex == TURN.groups
        role, position = None if is_end else ROLES.get(name, _TOOL), mark.end()
    yield role, text[position:]


def _turn(role: Role | None, text: str, *, code: bool) -> Turn:
    if role is None:  # what follows an end is nobody's
        return Turn("system", text)
    text = without_end_tokens(text)
    if role == "thought":
        return Turn(role, text, ((0, len(text)),), cut=True)
    if role != "assistant":
        return Turn(role, text)
    parts = [text]
    if _has(text, TOOL_HINTS):
        parts, position = [], 0
        for answer in TOOL_ANSWER.finditer(text):
            if not (code and _is_in_code(text, answer.span(answer.lastindex or 0))):
                parts.append(text[position : answer.start()])
                position = answer.end()
        parts.append(text[position:])
    thoughts: list[tuple[int, int]] = []
    cut, length = False, 0
    for part in parts if _has(text.lower(), THOUGHT_HINTS) else ():
        found, cut = _thoughts_of_code(part) if code else _thoughts(part)
        thoughts += [(start + length, end + length) for start, end in found]
        length += len(part) + 1
    return Turn(role, "\n".join(parts), tuple(thoughts), cut)


def _thoughts(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Return where thoughts are in prose, and whether the last one never ends."""
    found: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for mark in THOUGHT.finditer(text):
        if mark.lastgroup != "closing":
            opened = opened or mark
        elif opened:
            found.append((opened.start(), mark.end()))
            opened = None
        else:  # the prompt opened it
            found = [(0, mark.end())]
    is_first = opened and not text[found[-1][1] if found else 0 : opened.start()].strip()
    if opened and (is_first or opened.lastgroup == "opening"):
        return [*found, (opened.start(), len(text))], True
    return found, False


def _thoughts_of_code(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Return the thoughts at the beginning of a text, and whether the last one never ends."""
    found: list[tuple[int, int]] = []
    begin = _begin(text, 0)
    while (mark := THOUGHT.match(text, begin)) and mark.lastgroup != "closing":
        end = next((mark.end() for mark in _closings(text, mark.end())), None)
        if end is None:
            return [*found, (begin, len(text))], True
        found.append((begin, end))
        begin = _begin(text, end)
    if found:
        return found, False
    closings = itertools.islice(_closings(text, 0), _MAX_MARKS)  # if one began in the prompt
    end = next((mark.end() for mark in closings if not _is_in_code(text, mark.span())), 0)
    return [(0, end)] if end else [], False


def _has(text: str, hints: Iterable[str]) -> bool:
    return any(map(text.__contains__, hints))


def _begin(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _closings(text: str, position: int) -> Iterator[re.Match[str]]:
    return (mark for mark in THOUGHT.finditer(text, position) if mark.lastgroup == "closing")


def _is_in_code(text: str, mark: tuple[int, int]) -> bool:
    """Return whether a mark is in a block, a string or a comment."""
    start, end = mark
    begin_of_line = text.rfind("\n", 0, start) + 1
    before = text[begin_of_line:start].replace("```", "")
    after = text[start:].partition("\n")[0][end - start :]
    if _COMMENT.search(before) and "```" not in text[end:]:
        return True
    if any(before.count(quote) % 2 and quote in after for quote in "'\"`"):
        return True
    # What follows closes what was opened before.
    return any(
        text.count(quote, 0, start) % 2 and text.count(quote, end) % 2
        for quote in ("```", "~~~", '"""', "'''")
    )
