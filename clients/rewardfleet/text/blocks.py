"""The code blocks of an answer: in fences, wherever a model puts them.

A fence may be in the middle of a line, indented, quoted or in a list; tildes and longer fences end
with a fence of their kind, at least as long. A block that is not closed ends with the text, or
where a fence names a language. A bare fence after code ends a block that the prompt began. A fence
in a string of a program is part of it.
"""

import re
from dataclasses import dataclass

#: A line of code that few lines of prose look like.
_TARGET = r"[*(]*[^\W\d][\w.]*(?:\[[^\]\n]*\])*\)*"
CODE = re.compile(
    r"[ \t]*(?:@\w|[rRfF]?(?:\"\"\"|''')|(?:i?python|py)[\d.]*[ \t]*$"
    r"|(?:async[ \t]+)?(?:def|class|for|while|with|if|match|try)\b.*:"
    r"|(?:return|yield|raise|assert|del|global|nonlocal|pass)\b"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*(?:[,;#]|$)|from[ \t]+[\w.]+[ \t]+import\b"
    rf"|{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t,]*(?:[-+*/%&|^@]|//|\*\*|<<|>>|:[^=\n]*)?=(?!=)"
    r"|[^\W\d][\w.]*\(.*[()\[{,\\\"'][ \t]*(?:#.*)?$)",
    re.MULTILINE,
)
#: Comments and blank lines before the first line of code.
_LEAD = re.compile(r"(?:[ \t]*+(?:#.*+)?\n)*+")
PYTHON = re.compile(r"[{.\s]*(?:i?python|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
#: A fence that may open a block in the middle of a line, with the language.
_IN_LINE = re.compile(r"`+[ \t]*[\w+#.-]{0,20}[ \t]*")
#: What may follow a language, besides code: `title="a.py"`.
_ATTRIBUTE = re.compile(r"[\w.-]+=\S")
#: The last back-ticks of a line, or tildes, and what follows them.
_FENCE = r"(?P<marks>```(?<!````)`*+|~~~(?<!~~~~)~*+)(?P<info>[^`~\n]*+)$"
_OUTSIDE = re.compile(_FENCE, re.MULTILINE)
#: The same in source code, where strings and comments are skipped.
_INSIDE = re.compile(
    r"\\.|#.*|\"\"\"[\s\S]*?(?<!\\)\"\"\"|'''[\s\S]*?(?<!\\)'''|\"[^\"\\\n]*+\"|'[^'\\\n]*+'|"
    + _FENCE,
    re.MULTILINE,
)


@dataclass
class Block:
    """A code block."""

    language: str  #: what follows the fence: the language, or ""
    source: str  #: its text, without the indentation of the fence and of its first line
    is_closed: bool = True  #: whether a fence ends it
    #: Whether the prompt began it: it keeps its indentation, as it may be a function's body.
    continues: bool = False

    @property
    def is_python(self) -> bool:
        """Whether it says that it is Python."""
        return PYTHON.match(self.language) is not None


def has_fence(text: str) -> bool:
    """Return whether a text may have a block."""
    # One character is sought much faster than three, and most texts without a fence have none.
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def looks_like_code(text: str) -> bool:
    """Return whether the first line of a text, except comments, looks like code."""
    lead = _LEAD.match(text)
    return CODE.match(text, lead.end() if lead else 0) is not None


@dataclass(frozen=True)
class _Fence:
    """The last back-ticks of a line, or tildes; by default what a prompt began a block with."""

    before: str = ""  #: the line before the fence
    marks: str = ""
    info: str = "python"  #: the line after the fence, stripped
    start: int = 0  #: where what comes before it ends: a line, unless something is in its line
    end: int = 0

    @classmethod
    def of(cls, found: re.Match[str]) -> "_Fence":
        line = found.string.rfind("\n", 0, found.start()) + 1
        before = found.string[line : found.start()]
        start = found.start() if before.strip(" \t>") else line
        return cls(before, found["marks"], found["info"].strip(), start, found.end())

    @property
    def begins_line(self) -> bool:
        """Whether only white space and quotation marks come before it in its line."""
        return not self.before.strip(" \t>")


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a text, in order."""
    text = text.replace("``````", "```\n```")
    blocks: list[Block] = []
    position, tokens = 0, _INSIDE
    if looks_like_code(text):
        end, rest = _end_of(text, _Fence(), tokens) or (0, 0)
        if end < rest and not looks_like_code(text[rest:]):
            blocks.append(_block("", text[:end], continues=True))
            position = rest
    while found := _OUTSIDE.search(text, position):
        fence = _Fence.of(found)
        position = fence.end
        before, opening, inside = fence.before.partition("```")
        if opening and not fence.info and not before.strip(" \t>"):  # ```python print(1)```
            language = PYTHON.match(inside)
            inside = inside[language.end() :] if language else inside
            blocks.append(Block(language[0] if language else "", f"{inside.strip()}\n"))
        elif fence.begins_line or (not opening and _IN_LINE.fullmatch(found[0])):
            begin = fence.end + 1
            # From a string on that never ends, strings are ignored. This limits the time.
            end, position = (
                _end_of(text, fence, tokens)
                or _end_of(text, fence, tokens := _OUTSIDE)
                or (len(text), len(text))
            )
            indent = fence.before if fence.begins_line else ""
            is_closed = end < position
            blocks.append(_block(fence.info, text[begin:end], indent, is_closed=is_closed))
    return blocks


def _end_of(text: str, opening: _Fence, tokens: re.Pattern[str]) -> tuple[int, int] | None:
    """Return where a block ends, and where what follows it begins; None if nothing ends it."""
    position = opening.end
    is_python = PYTHON.match(opening.info) is not None
    while token := tokens.search(text, position):
        position = token.end()
        if token["marks"] is None:
            if f"\n{opening.before}```py" in token[0]:  # the string never ends
                position = token.start() + 3
            continue
        fence = _Fence.of(token)
        is_nested = is_python and len(fence.marks) < len(opening.marks)
        if fence.info and fence.begins_line and not is_nested:
            return fence.start, fence.start
        if fence.marks.startswith(opening.marks) and not fence.info:
            return fence.start, fence.end
    return None


def _block(
    language: str, source: str, indent: str = "", *, is_closed: bool = True, continues: bool = False
) -> Block:
    lines = [line.removeprefix(indent) for line in source.removesuffix("\n").split("\n")]
    if named := PYTHON.match(language):
        code = language[named.end() :].strip()
        if CODE.match(code) and not _ATTRIBUTE.match(code):  # it begins on that line
            lines = [code, *lines]
    first = next((line for line in lines if line.strip()), "")
    if not language and PYTHON.fullmatch(first.strip()):
        lines = lines[lines.index(first) + 1 :]  # the language is on the line after the fence
        language = first.strip()
        first = next((line for line in lines if line.strip()), "")
    indent = "" if continues else first[: len(first) - len(first.lstrip(" \t"))]
    source = "\n".join(line.removeprefix(indent) for line in lines) + "\n"
    return Block(language or "python" if continues else language, source, is_closed, continues)
