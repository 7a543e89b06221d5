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
_BODY = re.compile(r"^(?:return|yield)\b", re.MULTILINE)
_NO_CODE = re.compile(r"\s*(?:#|$)")
#: A statement that has an effect, unlike a definition.
_ACTS = re.compile(
    r"^(?!(?:async|def|class|import|from)\b|[\w, ]+(?::[^=\n]+)?=)[^\s@#)\]}\"']", re.MULTILINE
)
#: A heading or a remark such as `Solution` and `Complexity: O(n)`: valid Python that fails.
_WORD = re.compile(r"\A\s*[A-Za-z]+[ \t]*\n|\n(?:[A-Za-z]+[ \t]*|[A-Z][A-Za-z]*:.*)(?=\s*\Z)")
_QUOTES = ("```", '"""', "'''")
_BUILTINS = frozenset(dir(builtins))
#: Characters that are parsed, and in which valid Python is sought. Limits the time.
_MAX_PARSED, _MAX_SOUGHT = 50_000, 200_000
#: Blocks of which a program may need some.
_MAX_BLOCKS = 20


def extract_program(text: str, called: AbstractSet[str] = frozenset()) -> str:
    """Return the program in a model's text, in time linear in the text.

    Args:
        called: Functions and classes that tests use; empty for programs that read their input.
    """
    answer = answer_of(text)
    marked = _marked(answer)
    answer = answer if marked is None else marked
    if not has_fence(answer):
        return _unfenced(answer, called)
    if looks_like_code(answer) and _parsed(answer) is not None:
        return answer  # the fences are in its strings
    blocks = [each for each in blocks_of(answer) if each.source.strip()]
    if not blocks:
        return _unfenced(answer, called)
    best = max(range(len(blocks)), key=lambda number: _rank(blocks[number], number, called))
    return _with_needed(best, blocks, called)


def answer_of(text: str) -> str:
    """Return the part of a text in which the program is, with plain line ends."""
    text = text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n").replace("\r", "\n")
    return read(text, code=True).last.answer.removeprefix(_BYTE_ORDER_MARK)


def defined_names(text: str) -> Iterator[str]:
    """Yield the functions, classes and global variables that source code defines."""
    return (name[1] or name[2] for name in _DEFINED.finditer(text))


def _marked(answer: str) -> str | None:
    """Return what is between the last marks of an answer; None if there are none outside code."""
    if looks_like_code(answer):
        return None
    for opening, closing in ANSWERS:
        begin = max((mark.end() for mark in opening.finditer(answer)), default=0)
        if begin and not any(answer.count(each, 0, begin) % 2 for each in _QUOTES):
            end = closing.search(answer, begin)
            part = answer[begin : end.start() if end else len(answer)]
            if part.strip() and (has_fence(part) or not has_fence(answer)):
                return html.unescape(part) if "</code" in closing.pattern else part
    return None


# Blocks


def _with_needed(number: int, blocks: Sequence[Block], called: AbstractSet[str]) -> str:
    """Return the program in a block, with what it needs of the others."""
    chosen = blocks[number]
    source = _marked(chosen.source) or chosen.source.removeprefix(_BYTE_ORDER_MARK)
    source = _at_margin(source, called) if chosen.continues else source
    others = [each for each in blocks[-_MAX_BLOCKS:] if each is not chosen]
    missing, defined = _names(source) if others else (set(), set())
    parts = [source]
    for each in reversed(others):
        further, found = _names(each.source) if missing & {*_words(each.source)} else (set(), set())
        if found & missing:
            parts.insert(0, each.source)
            missing = (missing | further) - found
    if not called and not _ACTS.search(source):
        # It prints nothing, so a block that uses it is part of it.
        uses = (each.source for each in others if _ACTS.search(each.source))
        parts += [next((each for each in uses if defined & {*_words(each)}), "")]
    return "\n".join(filter(None, parts))


def _rank(block: Block, number: int, called: AbstractSet[str]) -> tuple[int, bool, bool, int]:
    """Return a sort key: the more likely the `number`th block is the program, the larger."""
    text = block.source
    is_complete = block.continues or bool(_COMPLETE.search(text))
    fits = 0
    if called:
        defines = not called.isdisjoint(defined_names(text))
        # A body is of use only if no block defines the function.
        fits = 2 if block.continues or defines else int(bool(_BODY.search(text)))
    # Without a language, what comes after a short program may be its output.
    order = number if is_complete or block.is_python else -number
    return fits, block.is_python, is_complete, order


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
    answer = _at_margin(answer, called)
    if len(answer) > _MAX_PARSED:
        return answer
    if _parsed(answer):
        return _WORD.sub("", answer)
    regions = _regions(answer.split("\n"), called)
    defining = (
        number
        for number, each in enumerate(regions)
        if not called.isdisjoint(defined_names(each.source))
    )
    return _with_needed(next(defining, 0), regions, called) if regions else answer


def _at_margin(source: str, called: AbstractSet[str]) -> str:
    """Return a program without the space that SentencePiece writes before the first word.

    The body of a function, which does not define what the tests call, keeps it.
    """
    bare = source.lstrip()
    is_indented = source.removesuffix(bare).endswith((" ", "\t"))
    is_program = not called or not called.isdisjoint(defined_names(bare))
    return bare if is_indented and is_program and _parsed(bare) else source


def _regions(lines: Sequence[str], called: AbstractSet[str]) -> list[Block]:
    """Return the runs of lines that are valid Python, each from a line that looks like code.

    A run ends at the left margin: a program with an error in a function is none. An indented one,
    which Markdown shows as a block, begins after a blank line. If nothing is `called`, they are
    whole programs, which no other code follows.
    """
    lines = _restored(lines)
    is_body = _begins_with_body(lines, called)
    found: list[Block] = []
    number, budget = 0, _MAX_SOUGHT
    while number < len(lines) and budget > 0:
        indent = _indentation(lines[number])
        is_apart = not (indent and number and lines[number - 1].strip())
        begins = CODE.match(lines[number]) or (indent and lines[number].startswith(f"{indent}#"))
        is_body = is_body and number == 0
        if not is_body and not (is_apart and begins):
            number += 1
            continue
        run, prefix = lines[number:], ""
        if is_body:
            prefix = "if 1:\n"  # the body of a function
        elif indent:
            block = takewhile(re.compile(rf"\s*$|{indent}").match, run)
            run = [line.removeprefix(indent) for line in block]
        size = len(run)
        while size > 0 and budget > 0:
            source = "\n".join(run[:size])
            budget -= len(source)
            valid = _valid_lines(prefix + source)
            if valid is None:
                break
            size = min(size - 1, valid - bool(prefix))
        rest = next((line for line in run[size:] if line.strip()), "")
        if size > 0 and (rest[:1].isspace() or (not called and CODE.match(rest))):
            break
        if not all(map(_NO_CODE.match, run[:size])):
            found.append(Block("python", f"{source}\n"))
        number += max(size, 1)
    return found


def _restored(lines: Sequence[str]) -> Sequence[str]:
    """Return an answer from its first line on, with the indentation of a function's body.

    That line may have lost it, or some of it, or have a space that SentencePiece writes.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    rest = [*takewhile(re.compile(r"\s|$").match, lines[first + 1 :])]
    deeper = [_indentation(line) for line in rest if not _NO_CODE.match(line)]
    indent = min(deeper, key=len, default="")
    body = [indent + lines[first].lstrip(), *rest]
    is_body = indent and _valid_lines("\n".join(["if 1:", *body])) is None
    return [*body, *lines[first + len(body) :]] if is_body else lines[first:]


def _begins_with_body(lines: Sequence[str], called: AbstractSet[str]) -> bool:
    """Return whether an indented answer is the body of a function, and no program."""
    indent, answer = _indentation(lines[0]), "\n".join(lines)
    returns = re.search(rf"^{indent}(?:return|yield)\b", answer, re.MULTILINE) is not None
    defines = not called or not called.isdisjoint(defined_names(answer))
    return bool(indent) and (returns or not defines)


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _valid_lines(source: str) -> int | None:
    """Return how many lines come before an error; None if there is none."""
    try:
        parse_source(source)
    except SyntaxError as error:
        return (error.lineno or 1) - 1
    return None
