"""Extraction of the program from a model's text.

The text is read line by line:

    no fence                    all of the text is the program, also if it has fences in strings
    <think> ... </think>        is ignored, with its fences; if it never ends, there is no program,
                                and the text will not compile
    several fences              `python`, `py`, `python3`, ... come before one without a language,
                                which comes before any other language. Among equals, the last one
                                that defines something (except tests) or reads its input, because
                                an example of use does neither
    a fence in a string         is part of the program around it
    an unclosed fence           extends to the end, or to the next fence that names a language
    fences within prose         need not begin a line, and may be indented, quoted or in a list
    ~~~, and longer fences      end with a fence of the same kind, at least as long

Extraction never fails: any text of a model gets a score.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

_THINKING_START = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_THINKING_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THINKING_END_OF_LINE = re.compile(r"</think(?:ing)?>[ \t]*$", re.IGNORECASE | re.MULTILINE)
_ENDS_OF_THINKING = ("</think>", "</thinking>")
_PYTHON = re.compile(r"[{.\s]*(?:i?python|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
#: Python ignores it at the beginning of a file.
_BYTE_ORDER_MARK = "\ufeff"
#: What may follow a fence that opens a block in the middle of a line.
_LANGUAGE = re.compile(r"[\w+#.-]{0,20}")
#: What a complete program has, and an example of its use has not.
_COMPLETE = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(?![tT]est)|\binput[ \t]*\(|\bstdin\b|\bopen\(0",
    re.MULTILINE,
)
_STRING_OR_COMMENT = re.compile(r"#.*|\"\"\"|'''|\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?")
_STRING_ENDS = {quote: re.compile(rf"\\.|{quote}") for quote in ('"""', "'''")}
#: Blocks that may end inside a string before strings are ignored altogether. Limits the time.
_MAX_BROKEN = 4


def extract_program(text: str) -> str:
    """Return the program in a model's text, in time linear in the text."""
    return _extract(text.removeprefix(_BYTE_ORDER_MARK)).removeprefix(_BYTE_ORDER_MARK)


def is_whole_answer(program: str, text: str) -> bool:
    """Return whether an extracted program is all of a text, or all after its thinking.

    That is, whether no code block was found in it.
    """
    text = _with_plain_line_ends(text.removeprefix(_BYTE_ORDER_MARK))
    before = text.removesuffix(program)
    is_end = len(before) == len(text) - len(program)
    return is_end and (not before or before[-20:].rstrip().lower().endswith(_ENDS_OF_THINKING))


def has_fence(text: str) -> bool:
    """Return whether a text may have a fence: without one, it is a program as a whole."""
    # One character is sought much faster than three, and most texts without a fence have none.
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def _extract(text: str) -> str:
    text = _with_plain_line_ends(text)
    answer = _after_thinking(text)
    if answer is None or not has_fence(answer):
        return text if answer is None else answer
    lines = answer.split("\n")
    if _is_program(lines):
        return answer
    broken: set[int] = set()
    while True:
        blocks, line = _blocks(lines, broken, track_strings=len(broken) < _MAX_BROKEN)
        if line is None:
            break
        broken.add(line)
    if not blocks:
        return answer
    return max(enumerate(blocks), key=lambda numbered: numbered[1].rank(numbered[0]))[1].program()


def _with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _after_thinking(text: str) -> str | None:
    """Return what follows the thinking; None if the thinking never ends."""
    start = _THINKING_START.search(text)
    if start is None:  # there is no thinking, or it began in the prompt
        end = _THINKING_END_OF_LINE.search(text)
    elif text[: start.start()].strip():  # a text about thinking
        return text
    else:
        end = _THINKING_END.search(text)
        if end is None:
            return None
    return text[end.end() :] if end else text


@dataclass(frozen=True)
class _Fence:
    """The last run of three or more back-ticks in a line, or the tildes at its beginning."""

    before: str  #: the line before the fence
    marks: str  #: the back-ticks or tildes
    after: str  #: the line after the fence, stripped

    @property
    def begins_line(self) -> bool:
        """Return whether only white space and quotation marks come before it in its line."""
        return not self.before.strip(" \t>")


@dataclass
class _Block:
    """The lines in a fence that was opened in line `line` of the text."""

    fence: _Fence
    line: int
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @cached_property
    def is_python(self) -> bool:
        return bool(_PYTHON.match(self.fence.after))  # of a line that may be long

    @property
    def may_be_python(self) -> bool:
        return self.is_python or not self.fence.after

    def rank(self, number: int) -> tuple[int, bool, int]:
        """Return a sort key: the more likely the `number`th block is the program, the larger."""
        text = "\n".join(self.lines)
        language = 3 if self.is_python else 0 if self.fence.after else 2 if self.closed else 1
        is_complete = bool(_COMPLETE.search(text))
        # Without a language, what comes after a short program may be its output.
        order = number if is_complete or self.is_python else -number
        return language if text.strip() else -1, is_complete, order

    def program(self) -> str:
        """Return its text, without the indentation of the fence and of the first line."""
        before = self.fence.before if self.fence.begins_line else ""
        lines = [line.removeprefix(before) for line in self.lines]
        first = next((line for line in lines if line.strip()), "")
        if not self.fence.after and _PYTHON.fullmatch(first.strip()):
            lines = lines[lines.index(first) + 1 :]  # the language is on the line after the fence
            first = next((line for line in lines if line.strip()), "")
        indent = first[: len(first) - len(first.lstrip(" \t"))]
        return "\n".join(line.removeprefix(indent) for line in lines) + "\n"


def _blocks(
    lines: list[str], broken: set[int], *, track_strings: bool
) -> tuple[list[_Block], int | None]:
    """Return the blocks, and the line of one that ends inside a string, so is not valid Python.

    Args:
        lines: The lines of the text.
        broken: The lines of the blocks that are known to end inside a string. Strings in them are
            ignored.
        track_strings: Whether a fence in a string is part of the program.
    """
    blocks: list[_Block] = []
    block: _Block | None = None  # the open one
    quote = ""
    for number, line in enumerate(lines):
        fence = None if quote else _fence_of(line)
        if block is None or (fence and _interrupts(fence, block)):
            opened = _opened(fence, number) if fence else None
            if opened:
                blocks.append(opened)
                block = None if opened.closed else opened
        elif fence and _closes(fence, block.fence):
            if not fence.begins_line:
                block.lines.append(fence.before)
            block.closed, block = True, None
        else:
            block.lines.append(line)
            if track_strings and block.may_be_python and block.line not in broken:
                quote = _open_quote(line, quote)
    return blocks, block.line if block is not None and quote else None


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


def _opened(fence: _Fence, number: int) -> _Block | None:
    """Return the block that a fence outside all other blocks opens, if it opens one."""
    if fence.begins_line:
        return _Block(fence, number)
    before, opening, inline = fence.before.partition("```")
    if not opening:
        return _Block(fence, number) if _LANGUAGE.fullmatch(fence.after) else None
    if fence.after or before.strip(" \t>"):  # inline code in prose
        return None
    language = _PYTHON.match(inline)  # ```python print(1)```
    inline = inline[language.end() :] if language else inline
    fence = _Fence("", opening, language[0] if language else "")
    return _Block(fence, number, [inline.strip()], closed=True)


def _closes(fence: _Fence, opening: _Fence) -> bool:
    is_in_code = "#" in fence.before or _open_quote(fence.before, "")
    return fence.marks.startswith(opening.marks) and not fence.after and not is_in_code


def _interrupts(fence: _Fence, block: _Block) -> bool:
    """Return whether a fence opens a new block in one that was not closed, or is not a program."""
    is_nested = block.is_python and len(fence.marks) < len(block.fence.marks)
    return fence.begins_line and bool(fence.after) and not is_nested


def _is_program(lines: list[str]) -> bool:
    """Return whether all fences are in strings."""
    quote = ""
    for line in lines:
        fence = None if quote else _fence_of(line)
        if fence and _opened(fence, 0):
            return False
        quote = _open_quote(line, quote)
    return not quote


def _open_quote(line: str, quote: str) -> str:
    """Return the quotation mark of the triple-quoted string that is open after a line, or "".

    Args:
        line: A line of Python.
        quote: The mark that is open before the line.
    """
    position = 0
    while True:
        if quote:
            ends = _STRING_ENDS[quote].finditer(line, position)
            end = next((end for end in ends if end[0] == quote), None)
            if end is None:
                return quote
            position = end.end()
        token = _STRING_OR_COMMENT.search(line, position)
        if token is None:
            return ""
        position = token.end()
        quote = token[0] if token[0] in _STRING_ENDS else ""
