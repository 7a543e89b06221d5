"""The program in a model's text. Any text has one: what is none is judged as it is.

blocks      those that define what the tests call come first; then `python`, `py`, …; then those
without a language; then other languages. Among equals, the last one that defines
something (except tests) or reads its input, because an example of use does neither.
Imports and helpers that it needs are taken from the other blocks
no block    all of the answer is the program; of an answer that is not valid Python, the lines
that are, from the first one that looks like code
"""

import ast
import builtins
import html
import re
import symtable
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile

from .blocks import CODE, Block, blocks_of, has_fence, looks_like_code
from .marks import ANSWERS
from .python import exclusive_parser, parse_source
from .reading import read

#: Python ignores it at the beginning of a file.
_BYTE_ORDER_MARK = "\ufeff"
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
_DEFINES = re.compile(r"\s*(?:async[ \t]+def|def|class|import|from|@)\b")
#: Prose after a program, which no statement with an error begins like.
_PROSE = re.compile(
    r"[A-Z*#>`<\[=$\\-]"
    r"|(?!(?:if|for|while|elif|else|def|class|return|import|from|with|try|print)\b)[a-z]+ [a-z]+ "
)
#: A program with effects besides definitions; the mark that ends one which the prompt began.
_ACTS = re.compile(r"\b(?:print|input|stdin|stdout)\b|^\w+\(", re.MULTILINE)
_DONE = re.compile(r"\n?\[(?:DONE|/PYTHON)\][ \t]*(?=\n|\Z)")
_BUILTINS = frozenset(dir(builtins))
_LANGUAGE_LINE = re.compile(r"\A\s*(?:i?python|py)[\d.]*[ \t]*\n", re.IGNORECASE)
#: Characters of a program that are parsed, and of an answer in which valid Python is sought. Limits
#: the time.
_MAX_PARSED, _MAX_SOUGHT = 50_000, 200_000
#: Blocks of which a program may need some.
_MAX_BLOCKS = 20
_DEFINITIONS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
    ast.AnnAssign,
)  # fmt: skip


def extract_program(text: str, called: AbstractSet[str] = frozenset()) -> str:
    """Return the program in a model's text, in time linear in the text.

    Args:
        text: The text.
        called: Names of functions and classes that the tests use; empty for programs that read
            their input.
    """
    answer = answer_of(text)
    marked = _marked(answer)
    answer = answer if marked is None else marked
    if not has_fence(answer):
        return _unfenced(answer, called)
    if looks_like_code(answer.split("\n", 20)) and _parsed(answer) is not None:
        return answer  # the fences are in its strings
    blocks = [each for each in blocks_of(answer) if each.source.strip()]
    return (
        _with_needed(_best(blocks, called), blocks, called) if blocks else _unfenced(answer, called)
    )


def answer_of(text: str) -> str:
    """Return the part of a text in which the program is, with plain line ends."""
    text = text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n").replace("\r", "\n")
    return read(text, code=True).last.answer.removeprefix(_BYTE_ORDER_MARK)


def defined_names(text: str) -> Iterator[str]:
    """Yield the functions, classes and global variables that source code defines."""
    return (name[1] or name[2] for name in _DEFINED.finditer(text))


def _marked(answer: str) -> str | None:
    """Return what is between the marks of an answer; None if there are none outside of code."""
    first = re.match(r"\s*(?:<|\[|=)", answer) is not None
    if not first and looks_like_code(answer.split("\n", 20)):
        return None
    for opening, closing in ANSWERS:
        begins = [mark.end() for mark in opening.finditer(answer)]
        for begin in reversed(begins[-3:]):
            if any(answer.count(quote, 0, begin) % 2 for quote in ("```", '"""', "'''")):
                continue
            end = closing.search(answer, begin)
            part = answer[begin : end.start() if end else len(answer)]
            if part.strip() and (has_fence(part) or not has_fence(answer)):
                return html.unescape(part) if "</code" in closing.pattern else part
    return None


# Blocks


def _best(blocks: Sequence[Block], called: AbstractSet[str]) -> int:
    """Return the number of the most likely program among blocks."""
    return max(range(len(blocks)), key=lambda number: _rank(blocks[number], number, called))


def _with_needed(number: int, blocks: Sequence[Block], called: AbstractSet[str]) -> str:
    """Return the program in a block, with what it needs of the others."""
    chosen = blocks[number]
    source = _marked(chosen.source) or chosen.source.removeprefix(_BYTE_ORDER_MARK)
    source = _at_margin(source, called) if chosen.continues else source
    others = [each for each in blocks[-_MAX_BLOCKS:] if each is not chosen]
    missing, defined = _names(source) if others else (set(), set())
    parts = [source]
    for each in reversed(others):
        if not missing & {*_words(each.source)} or (not called and _ACTS.search(each.source)):
            continue
        further, found = _names(each.source)
        if found & missing:
            parts.insert(0, each.source)
            missing = (missing | further) - found
    tree = _parsed(source) if defined and not called else None
    if tree and all(isinstance(each, _DEFINITIONS) for each in tree.body):
        # It prints nothing, so a block that uses it is part of it.
        uses = (each.source for each in others if _ACTS.search(each.source))
        parts += [next((each for each in uses if defined & {*_words(each)}), "")]
    return "\n".join(filter(None, parts))


def _rank(block: Block, number: int, called: AbstractSet[str]) -> tuple[bool, int, int, bool, int]:
    """Return a sort key: the more likely the `number`th block is the program, the larger."""
    text = block.source
    language = 3 if block.is_python else 0 if block.language else 2 if block.is_closed else 1
    is_complete = block.continues or bool(_COMPLETE.search(text))
    fits = 0
    if called:
        defines = any(name in called for name in defined_names(text))
        # A body is of use only if no block defines the function.
        fits = 2 if block.continues or defines else int(bool(_BODY.search(text)))
    # Without a language, what comes after a short program may be its output.
    order = number if is_complete or block.is_python else -number
    return bool(text.strip()), fits, language, is_complete, order


def _words(source: str) -> list[str]:
    return re.findall(r"[^\W\d]\w*", source)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the global names that a program uses and lacks, and those that it defines."""
    try:
        with exclusive_parser():
            top = symtable.symtable(source if len(source) <= _MAX_PARSED else "", "", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    symbols = top.get_symbols()
    defined = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_global = table is top
        used |= {
            each.get_name()
            for each in table.get_symbols()
            if each.is_referenced() and (is_global or each.is_global())
        }
    return used - defined - _BUILTINS, defined


def _parsed(source: str) -> ast.Module | None:
    try:
        return parse_source(source) if len(source) <= _MAX_PARSED else None
    except SyntaxError:
        return None


# No blocks


def _unfenced(answer: str, called: AbstractSet[str]) -> str:
    answer = _DONE.split(_LANGUAGE_LINE.sub("", answer, count=1))[0]
    answer = _at_margin(answer, called)
    tree = _parsed(answer)
    if tree:
        return _without_words(answer, tree.body)
    if len(answer) > _MAX_PARSED or _is_body(answer, called):
        return answer
    regions = _regions(answer.split("\n"), is_whole=not called)
    for number, each in enumerate(regions):
        if (
            called.isdisjoint(defined_names(each.source))
            if called
            else not _COMPLETE.search(each.source)
        ):
            continue
        return _with_needed(number, regions, called)
    return regions[0].source if regions else answer


def _without_words(source: str, body: list[ast.stmt]) -> str:
    """Return a program without headings and remarks such as `Solution` and `Complexity: O(n)`.

    They are valid Python, and have no effect or fail.
    """
    lines = source.split("\n")
    while len(body) > 1 and _is_word(body[-1]) and (body[-2].end_lineno or 0) < body[-1].lineno:
        del lines[body.pop().lineno - 1 :]
    while len(body) > 1 and _is_word(body[0]) and (body[0].end_lineno or 0) < body[1].lineno:
        end = body.pop(0).end_lineno or 0
        lines[:end] = [""] * end
    return "\n".join(lines)


def _is_word(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Name()) | ast.AnnAssign(value=None):
            return True
    return False


def _at_margin(source: str, called: AbstractSet[str]) -> str:
    """Return a program without the space that SentencePiece writes before the first word."""
    bare = source.lstrip()
    if bare == source or source[-len(bare) - 1 :][:1] not in {" ", "\t"} or _parsed(bare) is None:
        return source
    return source if _is_body(source, called) else bare


def _is_body(source: str, called: AbstractSet[str]) -> bool:
    """Return whether a text is the body of a function, as a whole."""
    is_indented = bool(called) and source.lstrip("\n")[:1] in {" ", "\t"}
    return is_indented and not _DEFINES.match(source) and _parsed(f"if 1:\n{source}") is not None


def _regions(lines: Sequence[str], *, is_whole: bool) -> list[Block]:
    """Return the runs of lines that are valid Python, each from a line that looks like code.

    A run ends at the left margin: a program with an error in a function is none.

    Args:
        is_whole: Whether the runs are whole programs, which nothing but prose follows.
    """
    found: list[Block] = []
    number, budget = 0, _MAX_SOUGHT
    while number < len(lines) and budget > 0:
        if not _may_begin(lines, number):
            number += 1
            continue
        body, prefix = _body(lines, number)
        size = len(body)
        while size > 0 and budget > 0:
            source = "\n".join(body[:size])
            budget -= len(source)
            valid = _valid_lines(prefix + source)
            if valid is None:
                break
            size = min(size - 1, valid - bool(prefix))
        rest = next((line for line in body[size:] if line.strip()), "A")
        if size > 0 and (rest[0].isspace() or (is_whole and not _PROSE.match(rest))):
            break
        if size > 0:
            found.append(Block("python", f"{source}\n"))
        number += max(size, 1)
    return found


def _may_begin(lines: Sequence[str], number: int) -> bool:
    """Return whether a program may begin in a line: an indented one is after a blank line."""
    line = lines[number]
    is_apart = not line[:1].isspace() or not any(map(str.strip, lines[max(0, number - 1) : number]))
    return is_apart and CODE.match(line) is not None


def _body(lines: Sequence[str], start: int) -> tuple[list[str], str]:
    """Return the lines from one that looks like code, and what makes them a module."""
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    if not indent:
        return list(lines[start:]), ""
    if not any(map(str.strip, lines[:start])):  # the body of a function
        return list(lines[start:]), "if 1:\n"
    block = takewhile(lambda line: not line.strip() or line.startswith(indent), lines[start:])
    return [line.removeprefix(indent) for line in block], ""  # an indented block of Markdown


def _valid_lines(source: str) -> int | None:
    """Return how many lines come before an error; None if there is none."""
    try:
        parse_source(source)
    except SyntaxError as error:
        return (error.lineno or 1) - 1
    return None
