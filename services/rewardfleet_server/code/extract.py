"""Extraction of the program from a model's text.

The text is read line by line:

    no fence                    all of the text is the program, also if it has fences in strings
    <think> ... </think>        is ignored, with its fences; if it never ends, there is no program,
                                and the text will not compile. So are other marks of thoughts, and
                                the marks around an answer
    several fences              those that define what the tests call come first; then `python`,
                                `py`, `python3`, ...; then those without a language; then other
                                languages. Among equals, the last one that defines something
                                (except tests) or reads its input, because an example of use does
                                neither
    code, then a bare fence     the fence ends a block that the prompt began, unless code follows it
    a fence in a string         is part of the program around it
    an unclosed fence           extends to the end, or to the next fence that names a language
    fences within prose         need not begin a line, and may be indented, quoted or in a list
    ~~~, and longer fences      end with a fence of the same kind, at least as long

Extraction never fails: any text of a model gets a score.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_THOUGHTS = "(?:think(?:ing)?|thought|reasoning)"
#: The marks of thoughts in tags, of Magistral and of OpenThinker, and the channels of GPT-OSS.
_THINKING_START = re.compile(
    rf"<{_THOUGHTS}>|\[THINK\]|<\|begin_of_thought\|>|(?:<\|start\|>assistant)?(?=<\|channel\|>)",
    re.IGNORECASE,
)
_THINKING_END = re.compile(
    rf"</{_THOUGHTS}>|\[/THINK\]|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
_THINKING_END_OF_LINE = re.compile(
    rf"(?:{_THINKING_END.pattern})[ \t]*(?:$|(?=<answer>))", re.IGNORECASE | re.MULTILINE
)
_COMMENT = re.compile(r"(?:^|\s)#(?!\d)")
#: The marks around an answer, and tokens that end a text. No program begins or ends with them.
_ANSWER_START = re.compile(
    r"\s*(?:<(?:answer|solution|response)>|<\|begin_of_solution\|>)", re.IGNORECASE
)
_ANSWER_END = re.compile(
    r"(?:\s*(?:</(?:answer|solution|response|s)>|<end_of_turn>|<([|\uff5c])[^|\uff5c<>\n]{1,40}\1>))+\s*\Z",
    re.IGNORECASE,
)
#: Characters at the end of a text in which they are sought. Limits the time.
_MAX_ANSWER_END = 200
_LAST_MARK = re.compile(rf"(?:{_THINKING_END.pattern}|{_ANSWER_START.pattern})\s*\Z", re.IGNORECASE)
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
_DEFINED = re.compile(
    r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*=(?!=)", re.MULTILINE
)
#: The body of a function, which a prompt began.
_BODY = re.compile(r"\A\n*[ \t]+\S|^(?:return|yield)\b", re.MULTILINE)
_TARGET = r"[*(]*[^\W\d][\w.]*(?:\[[^\]]*\])*\)*"
#: A line of code that few lines of prose look like.
_CODE = re.compile(
    r"[ \t]*(?:@\w|[rR]?(?:\"\"\"|''')|(?:i?python|py)[\d.]*[ \t]*$"
    r"|(?:async[ \t]+)?(?:def|class|for|while|with|if|match|try)\b.*:"
    r"|(?:import|return|yield|raise|assert|del|global|nonlocal|pass)\b"
    r"|from[ \t]+[\w.]+[ \t]+import\b"
    rf"|{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t,]*(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)"
    r"|[^\W\d][\w.]*\(.*[()\[{,\\\"'][ \t]*(?:#.*)?$)"
)
_STRING_OR_COMMENT = re.compile(r"#.*|\"\"\"|'''|\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?")
_STRING_ENDS = {quote: re.compile(rf"\\.|{quote}") for quote in ('"""', "'''")}
#: Blocks that may end inside a string before strings are ignored altogether. Limits the time.
_MAX_BROKEN = 4


def extract_program(text: str, called: Collection[str] = ()) -> str:
    """Return the program in a model's text, in time linear in the text.

    Args:
        text: The text.
        called: Names of functions and classes that the tests use.
    """
    return _extract(_without_answer_end(text), called).removeprefix(_BYTE_ORDER_MARK)


def is_whole_answer(program: str, text: str) -> bool:
    """Return whether an extracted program is all of a text, or all after its thinking.

    That is, whether no code block was found in it.
    """
    text = _without_answer_end(text)
    before = text.removesuffix(program)
    is_end = len(before) == len(text) - len(program)
    return is_end and (not before or _LAST_MARK.search(before[-40:]) is not None)


def has_several_blocks(text: str) -> bool:
    """Return whether a text may have more than one block."""
    return text.count("```") + text.count("~~~") > 2


def defined_names(text: str) -> Iterator[str]:
    """Yield the functions, classes and global variables that source code defines."""
    return (name[1] or name[2] for name in _DEFINED.finditer(text))


def is_unmarked(text: str) -> bool:
    """Return whether a text has neither fences nor thoughts: it is a program as a whole."""
    return not (_has_fence(text) or _has_mark(text))


def _has_mark(text: str) -> bool:
    return "</" in text or "<|" in text or "[/" in text


def _has_fence(text: str) -> bool:
    # One character is sought much faster than three, and most texts without a fence have none.
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def _without_answer_end(text: str) -> str:
    """Return a text without a byte order mark and the tokens at its end, with plain line ends."""
    text = text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n").replace("\r", "\n")
    end = _ANSWER_END.search(text, max(0, len(text) - _MAX_ANSWER_END))
    return text[: end.start()] if end else text


def _extract(text: str, called: Collection[str]) -> str:
    answer = _answer_of(text)
    if answer is None or not _has_fence(answer):
        return text if answer is None else answer
    lines = answer.split("\n")
    number, quote = _first_fence(lines)
    if number is None and not quote:
        return answer
    marks = None if number is None else _continued_marks(lines, number)
    if marks:
        has_language = _PYTHON.fullmatch(lines[0].strip())
        lines = [marks + lines[0], *lines[1:]] if has_language else [f"{marks}python", *lines]
    blocks = _blocks(lines)
    if not blocks:
        return answer
    blocks[0].continues = bool(marks)
    ranked = enumerate(blocks)
    return max(ranked, key=lambda numbered: numbered[1].rank(numbered[0], called))[1].program()


def _answer_of(text: str) -> str | None:
    """Return what follows thoughts and the mark of an answer; None if the thoughts never end."""
    begin = 0
    if start := _THINKING_START.match(text, len(text) - len(text.lstrip())):
        end = _THINKING_END.search(text, start.end())
        if end is None:
            return None
        begin = end.end()
    elif _has_mark(text):  # there is no thinking, or it began in the prompt
        end = _THINKING_END_OF_LINE.search(text)
        if end and not _is_in_code(text, end):
            begin = end.end()
    mark = _ANSWER_START.match(text, begin)
    return text[mark.end() if mark else begin :]


def _is_in_code(text: str, end: re.Match[str]) -> bool:
    """Return whether the end of a thinking is in a program, or in a text about thinking."""
    if _THINKING_START.search(text, 0, end.start()):
        return True
    rest = text[end.end() :]
    line = text[text.rfind("\n", 0, end.start()) + 1 : end.start()]
    if _COMMENT.search(line) and not _has_fence(rest):
        return True
    # In a string or a block, what follows closes what it has not opened.
    return _is_open(rest) and not _is_open(text)


def _is_open(text: str) -> bool:
    """Return whether a text ends within a string, or leaves a block open."""
    lines = text.split("\n")
    number, quote = _first_fence(lines)
    return bool(quote) if number is None else not all(each.closed for each in _blocks(lines))


def _continued_marks(lines: Sequence[str], number: int) -> str | None:
    """Return the marks of the first fence if it ends a block that the prompt began."""
    fence = _fence_of(lines[number])
    if fence is None or fence.after or "```" in fence.before:
        return None
    before = [*lines[:number], fence.before]
    return fence.marks if _is_code(before) and not _is_code(lines[number + 1 :]) else None


def _is_code(lines: Sequence[str]) -> bool:
    """Return whether the first of some lines, except comments, looks like code."""
    first = next((line for line in lines if line.strip() and line.lstrip()[0] != "#"), "")
    return _CODE.match(first) is not None


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
    continues: bool = False  #: whether the prompt began it

    @cached_property
    def is_python(self) -> bool:
        return bool(_PYTHON.match(self.fence.after))  # of a line that may be long

    @property
    def may_be_python(self) -> bool:
        return self.is_python or not self.fence.after

    def rank(self, number: int, called: Collection[str]) -> tuple[bool, int, int, bool, int]:
        """Return a sort key: the more likely the `number`th block is the program, the larger."""
        text = "\n".join(self.lines)
        language = 3 if self.is_python else 0 if self.fence.after else 2 if self.closed else 1
        is_complete = self.continues or bool(_COMPLETE.search(text))
        fits = 0
        if called:
            defines = any(name in called for name in defined_names(text))
            # A body is of use only if no block defines the function.
            fits = 2 if self.continues or defines else int(bool(_BODY.search(text)))
        # Without a language, what comes after a short program may be its output.
        order = number if is_complete or self.is_python else -number
        return bool(text.strip()), fits, language, is_complete, order

    def program(self) -> str:
        """Return its text, without the indentation of the fence and of the first line.

        What continues a prompt keeps it, as it may be the body of a function.
        """
        before = self.fence.before if self.fence.begins_line else ""
        lines = [line.removeprefix(before) for line in self.lines]
        first = next((line for line in lines if line.strip()), "")
        if not self.fence.after and _PYTHON.fullmatch(first.strip()):
            lines = lines[lines.index(first) + 1 :]  # the language is on the line after the fence
            first = next((line for line in lines if line.strip()), "")
        indent = "" if self.continues else first[: len(first) - len(first.lstrip(" \t"))]
        return "\n".join(line.removeprefix(indent) for line in lines) + "\n"


def _blocks(lines: Sequence[str]) -> list[_Block]:
    broken: set[int] = set()
    while True:
        blocks, line = _parsed_blocks(lines, broken, track_strings=len(broken) < _MAX_BROKEN)
        if line is None:
            return blocks
        broken.add(line)


def _parsed_blocks(
    lines: Sequence[str], broken: set[int], *, track_strings: bool
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


def _first_fence(lines: Sequence[str]) -> tuple[int | None, str]:
    """Return the line of the first fence that is not in a string, and the string that is open."""
    quote = ""
    for number, line in enumerate(lines):
        fence = None if quote else _fence_of(line)
        if fence and _opened(fence, 0):
            return number, ""
        quote = _open_quote(line, quote)
    return None, quote


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
