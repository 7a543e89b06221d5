"""The program in a model's text.

The text is read line by line. What is decided:

    no fence                    the whole text is the program, as is one whose strings hold fences
    <think> ... </think>        is passed over, fences and all; where it never ends, there is no
                                program, and the text will not compile
    several fences              `python`, `py`, `python3`, ... before one without a language, before
                                any other. Of equals the last that defines something (but tests)
                                or reads its input: an example of use does neither
    a fence in a string         is part of the program around it
    an unclosed fence           runs to the end, or to the next one that names a language
    fences among words          need no line of their own, and may be indented, or in a list
    ~~~, and longer fences      end with their like

It never fails: what a model wrote is the model's affair.
"""

import re
from dataclasses import dataclass, field

_THINKING = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT_AT_END_OF_LINE = re.compile(r"</think(?:ing)?>[ \t]*$", re.IGNORECASE | re.MULTILINE)
_PYTHON = re.compile(r"[{.\s]*(?:i?python|py)[\d.]*(?![\w+#-])", re.IGNORECASE)
#: What may follow a fence among words, if it opens one.
_LANGUAGE = re.compile(r"[\w+#.-]{0,20}")
#: What a whole program has, and an example of its use has not.
_STANDS = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(?![tT]est)|\binput[ \t]*\(|\bstdin\b|\bopen\(0",
    re.MULTILINE,
)
_STRING_OR_COMMENT = re.compile(r"#.*|\"\"\"|'''|\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?")
_STRING_ENDS = {quote: re.compile(rf"\\.|{quote}") for quote in ('"""', "'''")}
#: Blocks that may end inside a string, before strings are not heeded at all: bounds the time.
_MOST_BROKEN = 4


def extract_program(text: str) -> str:
    """Return the program in a model's text, in time linear in the text."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    answer = _after_thinking(text)
    if answer is None or ("```" not in answer and "~~~" not in answer):
        return text if answer is None else answer
    lines = answer.split("\n")
    if _is_program(lines):
        return answer
    broken: set[int] = set()
    while True:
        blocks, line = _blocks(lines, broken, heeds_strings=len(broken) < _MOST_BROKEN)
        if line is None:
            break
        broken.add(line)
    if not blocks:
        return answer
    return max(enumerate(blocks), key=lambda numbered: numbered[1].rank(numbered[0]))[1].program()


def _after_thinking(text: str) -> str | None:
    """Return what follows the thinking; None where that never ends."""
    begun = _THINKING.search(text)
    if begun is None:  # or the prompt began it
        ended = _THOUGHT_AT_END_OF_LINE.search(text)
    elif text[: begun.start()].strip():  # a text about thinking
        return text
    else:
        ended = _THOUGHT.search(text)
        if ended is None:
            return None
    return text[ended.end() :] if ended else text


@dataclass(frozen=True)
class _Fence:
    """The last run of three or more back-ticks in a line, or the tildes that it begins with."""

    before: str  #: what comes before it in its line
    marks: str
    after: str  #: what follows it, without space around

    @property
    def leads(self) -> bool:
        """Whether its line begins with it, but for space and marks of quotation."""
        return not self.before.strip(" \t>")


@dataclass
class _Block:
    """What stands in a fence that was opened in a line."""

    fence: _Fence
    line: int
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def is_python(self) -> bool:
        return bool(_PYTHON.match(self.fence.after))

    @property
    def may_be_python(self) -> bool:
        return self.is_python or not self.fence.after

    def rank(self, number: int) -> tuple[int, bool, int]:
        """Say how likely the block, the `number`th, is the program: the more, the likelier."""
        text = "\n".join(self.lines)
        named = 3 if self.is_python else 0 if self.fence.after else 2 if self.closed else 1
        stands = bool(_STANDS.search(text))
        # Without a language, what comes after a short program may be its output.
        late = number if stands or self.is_python else -number
        return named if text.strip() else -1, stands, late

    def program(self) -> str:
        """Return its text, without what its fence is indented by."""
        before = self.fence.before if self.fence.leads else ""
        lines = [line.removeprefix(before) for line in self.lines]
        first = next((line for line in lines if line.strip()), "")
        if not self.fence.after and _PYTHON.fullmatch(first.strip()):
            lines = lines[lines.index(first) + 1 :]  # the language, a line too late
            first = next((line for line in lines if line.strip()), "")
        indent = first[: len(first) - len(first.lstrip(" \t"))]
        return "\n".join(line.removeprefix(indent) for line in lines) + "\n"


def _blocks(
    lines: list[str], broken: set[int], *, heeds_strings: bool
) -> tuple[list[_Block], int | None]:
    """Return the blocks; or where one begins that ends inside a string, and so is no Python.

    Args:
        broken: Where such ones begin: what they hold is read without heed of strings.
    """
    blocks: list[_Block] = []
    block: _Block | None = None  # the one that is open
    quote = ""
    for number, line in enumerate(lines):
        fence = None if quote else _fence_of(line)
        if block is None or (fence and _interrupts(fence, block)):
            opened = _opened(fence, number) if fence else None
            if opened:
                blocks.append(opened)
                block = None if opened.closed else opened
        elif fence and _closes(fence, block.fence):
            if not fence.leads:
                block.lines.append(fence.before)
            block.closed, block = True, None
        else:
            block.lines.append(line)
            if heeds_strings and block.may_be_python and block.line not in broken:
                quote = _quote_after(line, quote)
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
    """Return the block that a fence outside of all others opens, if it does."""
    if fence.leads:
        return _Block(fence, number)
    before, opening, inline = fence.before.partition("```")
    if not opening:
        return _Block(fence, number) if _LANGUAGE.fullmatch(fence.after) else None
    if fence.after or before.strip(" \t>"):  # words in back-ticks
        return None
    language = _PYTHON.match(inline)  # ```python print(1)```
    inline = inline[language.end() :] if language else inline
    fence = _Fence("", opening, language[0] if language else "")
    return _Block(fence, number, [inline.strip()], closed=True)


def _closes(fence: _Fence, opening: _Fence) -> bool:
    is_in_code = "#" in fence.before or _quote_after(fence.before, "")
    return fence.marks.startswith(opening.marks) and not fence.after and not is_in_code


def _interrupts(fence: _Fence, block: _Block) -> bool:
    """Whether a fence opens a block inside another, which was never closed, or is no program."""
    is_its_own = block.is_python and len(fence.marks) < len(block.fence.marks)
    return fence.leads and bool(fence.after) and not is_its_own


def _is_program(lines: list[str]) -> bool:
    """Whether there are fences in strings only."""
    quote = ""
    for line in lines:
        fence = None if quote else _fence_of(line)
        if fence and _opened(fence, 0):
            return False
        quote = _quote_after(line, quote)
    return not quote


def _quote_after(line: str, quote: str) -> str:
    """Return the mark of the string of several lines that a line leaves open, if it does.

    Args:
        line: Of Python.
        quote: What the line before left open.
    """
    place = 0
    while True:
        if quote:
            ends = _STRING_ENDS[quote].finditer(line, place)
            end = next((end for end in ends if end[0] == quote), None)
            if end is None:
                return quote
            place = end.end()
        token = _STRING_OR_COMMENT.search(line, place)
        if token is None:
            return ""
        place = token.end()
        quote = token[0] if token[0] in _STRING_ENDS else ""
