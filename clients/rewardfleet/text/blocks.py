"""The code blocks of an answer: in fences, wherever a model puts them.

A fence may be in the middle of a line, indented, quoted or in a list; tildes and longer fences end
with a fence of their kind, at least as long. A block that is not closed ends with the text, or
where a fence names a language. A bare fence after code ends a block that the prompt began. A fence
in a string of a program is part of it.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A line of code that few lines of prose look like.
_TARGET = r"[*(]*[^\W\d][\w.]*(?:\[[^\]]*\])*\)*"
CODE = re.compile(
    r"[ \t]*(?:@\w|[rRfF]?(?:\"\"\"|''')|(?:i?python|py)[\d.]*[ \t]*$"
    r"|(?:async[ \t]+)?(?:def|class|for|while|with|if|match|try)\b.*:"
    r"|(?:return|yield|raise|assert|del|global|nonlocal|pass)\b"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*(?:[,;#]|$)|from[ \t]+[\w.]+[ \t]+import\b"
    rf"|{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t,]*(?:[-+*/%&|^@]|//|\*\*|<<|>>|:[^=\n]*)?=(?!=)"
    r"|[^\W\d][\w.]*\(.*[()\[{,\\\"'][ \t]*(?:#.*)?$)"
)
PYTHON = re.compile(r"[{.\s]*(?:i?python|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
#: What may follow a fence that opens a block in the middle of a line.
_LANGUAGE = re.compile(r"[\w+#.-]{0,20}")
_QUOTES = re.compile(r"\\.|#|\"\"\"|'''|\"[^\"\\]*\"|'[^'\\]*'")
#: What may follow a language, besides code: `title="a.py"`.
_ATTRIBUTE = re.compile(r"[\w.-]+=\S")
#: Blocks with an open string before strings are ignored altogether. Limits the time.
_MAX_BROKEN = 4


@dataclass
class Block:
    """A code block.

    Attributes:
        language: What follows the fence: the language, or "".
        source: Its text, without the indentation of the fence and of its first line.
        is_closed: Whether a fence ends it.
        continues: Whether the prompt began it. Then it keeps its indentation, as it may be the body
            of a function.
    """

    language: str
    source: str
    is_closed: bool = True
    continues: bool = False

    @property
    def is_python(self) -> bool:
        """Whether it says that it is Python."""
        return PYTHON.match(self.language) is not None


def has_fence(text: str) -> bool:
    """Return whether a text may have a block."""
    # One character is sought much faster than three, and most texts without a fence have none.
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a text, in order."""
    lines = text.replace("``````", "```\n```").split("\n")
    blocks: list[Block] = []
    begins_with_code = looks_like_code(lines)
    number, broken = _first_fence(lines) if begins_with_code else 0, 0
    while number < len(lines):
        fence = _fence_of(lines[number])
        if fence is None:
            number += 1
            continue
        inline = _inline_block(fence)
        if inline:
            blocks.append(inline)
        elif begins_with_code and not blocks and _ends_code_of_prompt(lines, number, fence):
            body = [*lines[:number], *([] if fence.begins_line else [fence.before])]
            blocks.append(_block(_Fence("", fence.marks, "python"), body, continues=True))
        elif fence.begins_line or _opens_in_line(fence):
            end, is_closed, is_broken = _end_of(lines, number, fence, broken < _MAX_BROKEN)
            broken += is_broken
            body = lines[number + 1 : end]
            if is_closed and not (last := _fence_of(lines[end])).begins_line:  # type: ignore[union-attr]
                body.append(last.before)  # type: ignore[union-attr] # it ends with a fence
            blocks.append(_block(fence, body, is_closed=is_closed))
            number = end + is_closed
            continue
        number += 1
    return blocks


def looks_like_code(lines: Iterable[str]) -> bool:
    """Return whether the first of some lines, except comments, looks like code."""
    first = next((line for line in lines if line.strip() and line.lstrip()[0] != "#"), "")
    return CODE.match(first) is not None


@dataclass(frozen=True)
class _Fence:
    """The last run of three or more back-ticks in a line, or the tildes at its beginning."""

    before: str  #: the line before the fence
    marks: str  #: the back-ticks or tildes
    after: str  #: the line after the fence, stripped

    @property
    def begins_line(self) -> bool:
        """Whether only white space and quotation marks come before it in its line."""
        return not self.before.strip(" \t>")


def _first_fence(lines: Sequence[str]) -> int:
    """Return the first line with a fence that is not in a string, if the text begins with code."""
    quotes = ""
    for number, line in enumerate(lines):
        if not quotes and _fence_of(line):
            return number
        quotes = _open_quotes(line, quotes)
    return 0


def _fence_of(line: str) -> _Fence | None:
    bare = line.lstrip(" \t>")
    if bare.startswith("~~~"):
        after = bare.lstrip("~")
        return _Fence(line[: len(line) - len(bare)], bare[: len(bare) - len(after)], after.strip())
    end = line.rfind("```") + 3
    after = line[end:].strip()
    if end < 3 or "`" in after:
        return None
    before = line[:end].rstrip("`")
    return _Fence(before, line[len(before) : end], after)


def _inline_block(fence: _Fence) -> Block | None:
    """Return a block that begins and ends in one line; None if there is none."""
    before, opening, inside = fence.before.partition("```")
    if not opening or fence.after or before.strip(" \t>"):  # inline code in prose
        return None
    language = PYTHON.match(inside)  # ```python print(1)```
    inside = inside[language.end() :] if language else inside
    return Block(language[0] if language else "", f"{inside.strip()}\n")


def _opens_in_line(fence: _Fence) -> bool:
    return "```" not in fence.before and _LANGUAGE.fullmatch(fence.after) is not None


def _ends_code_of_prompt(lines: Sequence[str], number: int, fence: _Fence) -> bool:
    is_bare = not fence.after and "```" not in fence.before
    return is_bare and not looks_like_code(itertools.islice(lines, number + 1, number + 50))


def _end_of(
    lines: Sequence[str], start: int, opening: _Fence, with_strings: bool
) -> tuple[int, bool, bool]:
    """Return the line that ends a block, whether a fence does, and whether a string is open."""
    is_python = PYTHON.match(opening.after) is not None
    with_strings = with_strings and (is_python or not opening.after)
    first = None  # the first fence that would end it if it were not in a string
    quotes = ""
    for number in range(start + 1, len(lines)):
        line = lines[number]
        fence = _fence_of(line) if "```" in line or "~~~" in line else None
        if fence and not quotes:
            is_nested = is_python and len(fence.marks) < len(opening.marks)
            if fence.begins_line and fence.after and not is_nested:
                return number, False, False
        if fence and _closes(fence, opening):
            if not quotes:
                return number, True, False
            first = number if first is None else first
        if with_strings and ('"""' in line or "'''" in line):
            quotes = _open_quotes(line, quotes)
    if first is not None:
        return first, True, True
    return len(lines), False, bool(quotes)


def _closes(fence: _Fence, opening: _Fence) -> bool:
    is_in_code = "#" in fence.before or _open_quotes(fence.before, "")
    return fence.marks.startswith(opening.marks) and not fence.after and not is_in_code


def _open_quotes(line: str, quotes: str) -> str:
    """Return the triple quotation marks of the string that is open after a line, or ""."""
    for found in _QUOTES.findall(line):
        if found == "#" and not quotes:
            break
        if found in {'"""', "'''"} and quotes in {"", found}:
            quotes = "" if quotes else found
    return quotes


def _block(
    fence: _Fence, lines: list[str], *, is_closed: bool = True, continues: bool = False
) -> Block:
    before = fence.before if fence.begins_line else ""
    lines = [line.removeprefix(before) for line in lines]
    language = fence.after
    if named := PYTHON.match(language):
        code = language[named.end() :].strip()
        if CODE.match(code) and not _ATTRIBUTE.match(code):  # it begins on that line
            lines = [code, *lines]
    first = next((line for line in lines if line.strip()), "")
    if (continues or not language) and PYTHON.fullmatch(first.strip()):
        lines = lines[lines.index(first) + 1 :]  # the language is on the line after the fence
        language = first.strip()
        first = next((line for line in lines if line.strip()), "")
    indent = "" if continues else first[: len(first) - len(first.lstrip(" \t"))]
    source = "\n".join(line.removeprefix(indent) for line in lines) + "\n"
    return Block(language, source, is_closed, continues)
