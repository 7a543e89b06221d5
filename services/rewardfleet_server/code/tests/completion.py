"""From what a policy wrote to the program that runs, if tests have a prompt.

Nothing of this parses what a policy wrote, so it takes time linear in the text.
"""

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests, PlainTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.datasets.cruxeval import PredictionTests

#: A definition of a function or class, with its indentation.
_HEADER = re.compile(r"^([ \t]*)(?:async[ \t]+def|def|class)\b", re.MULTILINE)
_NO_CODE = re.compile(r"[ \t]*(?:#|$)")
_RETURNS = re.compile(r"[ \t]*(?:return|yield)\b")  #: what is not valid outside of functions
#: A function without a body, before the next one, as in LeetCode's classes.
_EMPTY = re.compile(
    r"^([ \t]*)((?:async[ \t]+)?def\b[^\n]*:)[ \t]*$(?=\s*^\1(?:@|(?:async|def|class)\b))",
    re.MULTILINE,
)
_DEFINES = re.compile(r"^(?:async[ \t]+def|def|class)\b", re.MULTILINE)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class CodePrompt:
    """A prompt, taken apart."""

    setup: str  #: the prompt without the definition of what the tests call
    #: The unfinished function at its end, or the class around it; "" if there is none.
    stub: str = ""
    indent: str = ""  #: the indentation of the function's body
    names: frozenset[str] = frozenset()  #: what a complete program defines at least one of
    #: A program that has the text as its variable `ANSWER`, if that is no program.
    program: str = ""


def take_prompt(tests: PlainTests) -> tuple[CodePrompt, PlainTests]:
    """Return the prompt of tests, and the tests with it in their setup, or raise InvalidRequest.

    The setup has nothing of it that the program itself has to define.
    """
    if isinstance(tests, PredictionTests):
        return CodePrompt("", program=tests.program), tests
    if isinstance(tests, StdioTests) or not tests.prompt:
        return CodePrompt(""), tests
    called = tests.entry_point if isinstance(tests, AssertTests) else tests.fn_name
    prompt = read_prompt(tests.prompt, called)
    if prompt is None:
        raise InvalidRequest("tests.prompt: not valid Python")
    setup = "\n".join(part for part in (tests.setup, prompt.setup) if part.strip())
    return prompt, tests.model_copy(update={"setup": setup, "prompt": ""})


def complete(program: str, prompt: CodePrompt) -> str:
    """Return the program that runs: a body continues the function that the prompt began."""
    if prompt.program:
        return f"ANSWER = {program!r}\n{prompt.program}"
    if not prompt.stub or not _is_body(program, prompt.names):
        return program
    return f"{prompt.stub}\n{_indented(program, prompt.indent)}"


# The prompt


def read_prompt(prompt: str, entry_point: str) -> CodePrompt | None:
    """Take a prompt apart, which may lack its last body; return None if it is not valid Python.

    Args:
        entry_point: What the tests call, which the setup must not define.
    """
    if not prompt.strip():
        return CodePrompt("")
    prompt = prompt.replace("\r\n", "\n").replace("\r", "\n")
    # Methods may be called through `Solution()`, or by their own name.
    called = re.findall(r"\w+", entry_point)
    source, body = parsed_prompt(prompt)
    if body is None:
        return None
    lines = source.split("\n")
    unfinished = _unfinished(body[-1]) if body else []
    if unfinished:
        stub, indent = _stub(lines, unfinished)
        names = {*called[:1], *called[-1:], *(each.name for each in unfinished)}
        setup = _without(lines, body, {*called[:1], unfinished[0].name})
        return CodePrompt(setup, stub, indent, frozenset(names))
    return CodePrompt(_without(lines, body, set(called[:1])))


def parsed_prompt(prompt: str) -> tuple[str, list[ast.stmt] | None]:
    """Return a prompt as a valid program, and its statements; None if it cannot be made one."""
    prompt = _EMPTY.sub(r"\1\2 pass", prompt)
    sources = [prompt]
    if headers := _HEADER.findall(prompt):  # the last function has no body
        sources.append(f"{prompt.rstrip()}\n{headers[-1]}    pass\n")
    for source in sources:
        with suppress(SyntaxError):
            return source, parse_source(source).body
    return prompt, None


def _unfinished(statement: ast.stmt) -> list[_Definition]:
    """Return a function without a body, after the classes around it; nothing if it has one."""
    if not isinstance(statement, _Definition):
        return []
    if isinstance(statement, ast.ClassDef):
        inner = _unfinished(statement.body[-1])
        return [statement, *inner] if inner else []
    return [statement] if all(map(_is_placeholder, statement.body)) else []


def _is_placeholder(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False


def _stub(lines: Sequence[str], unfinished: Sequence[_Definition]) -> tuple[str, str]:
    """Return the source of a function up to its docstring, and the indentation of its body."""
    body = unfinished[-1].body
    first = body[0]
    before = lines[first.lineno - 1].encode()[: first.col_offset].decode(errors="replace")
    if before.strip():  # in one line with the header
        return "", ""
    last = first.lineno - 1
    for each in body:
        match each:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
                last = each.end_lineno or 0
            case _:
                break
    return "\n".join(lines[_first_line(unfinished[0]) : last]), before


def _without(lines: Sequence[str], body: Sequence[ast.stmt], names: set[str]) -> str:
    """Return source code without the definitions of some names, on as many lines."""
    kept = list(lines)
    for statement in body:
        if isinstance(statement, _Definition) and statement.name in names:
            last = statement.end_lineno or statement.lineno
            kept[_first_line(statement) : last] = [""] * (last - _first_line(statement))
    return "\n".join(kept).rstrip()


def _first_line(definition: _Definition) -> int:
    return min([definition.lineno, *(each.lineno for each in definition.decorator_list)]) - 1


# The program


def _is_body(program: str, names: frozenset[str]) -> bool:
    """Return whether a program continues a function, rather than define one of these names."""
    lines = program.split("\n")
    if _first_of(lines)[1][:1] in {" ", "\t"}:
        return True
    if _binds(program, names, indented=False):
        return False
    if _returns(lines) or _lost_indentation(lines):
        return True
    return not (_DEFINES.search(program) or _binds(program, names, indented=True))


def _returns(lines: Sequence[str]) -> bool:
    """Return whether something returns outside of the functions and classes of a program."""
    inside = False
    for line in lines:
        if _HEADER.match(line):
            inside = True
        elif line[:1] not in {" ", "\t", "#", ""}:
            inside = line.startswith("@")
        if not inside and _RETURNS.match(line):
            return True
    return False


def _binds(program: str, names: frozenset[str], *, indented: bool) -> bool:
    """Return whether a line of a program defines, assigns or imports one of these names."""
    start = r"^[ \t]*" if indented else "^"
    name = f"(?:{'|'.join(map(re.escape, names))})"
    define = r"(?:(?:async[ \t]+)?def|class)[ \t]+"
    pattern = rf"{start}(?:{define}{name}\b|{name}[ \t]*[=:,]|(?:from|import)[ \t].*\b{name}\b)"
    return re.search(pattern, program, re.MULTILINE) is not None


def _first_of(lines: Sequence[str]) -> tuple[int, str]:
    """Return the number and the text of the first line that has code, or ""."""
    for number, line in enumerate(lines):
        if not _NO_CODE.match(line):
            return number, line
    return len(lines), ""


def _indented(program: str, indent: str) -> str:
    """Return a body with an indentation that continues the function."""
    lines = program.split("\n")
    number, first = _first_of(lines)
    if lost := _lost_indentation(lines):
        lines[number] = first = lost + first.lstrip()
    own = _indentation(first)
    return "\n".join(
        indent + line[len(own) :] if line.strip() and line.startswith(own) else line
        for line in lines
    )


def _lost_indentation(lines: Sequence[str]) -> str:
    """Return the indentation of a body whose first line has lost some of it; "" if it has not."""
    number, first = _first_of(lines)
    rest = [_indentation(line) for line in lines[number + 1 :] if not _NO_CODE.match(line)]
    shallowest = min(rest, key=len, default="")
    if len(shallowest) <= len(_indentation(first)):
        return ""
    # A block that the first line opens may be all there is.
    opens_block = first.partition("#")[0].rstrip().endswith(":")
    return "" if opens_block and len(rest[0]) <= len(shallowest) else shallowest


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
