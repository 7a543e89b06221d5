"""Read the prompts of published models from the files in which their authors publish them.

Python files are parsed and never executed.
"""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from . import Prompt

T = TypeVar("T")

#: The texts of a file, by the name that they are assigned to; several if a name has several.
Texts = dict[str, list[str]]

#: The content ends at the next line of backquotes, so that the search takes linear time.
_FENCE = re.compile(r"^```text\n((?:(?!```).*\n)+)```$", re.MULTILINE)
#: Names of the task and of the previous progress in the authors' templates.
_FIELDS = {
    "{instruction}": "{task}",
    "{task_description}": "{task}",
    "<INSERT TASK HERE>": "{task}",
    "{prev_progress}": "{previous_progress}",
}


def read_texts(file: Path) -> Texts:
    """Return the texts that a Python file assigns to names, in its module, classes and functions.

    A text is a string, a `+` of strings, or an f-string that inserts names or attributes, which
    become fields. What a function assigns is also under `function.name`, and the texts of a
    dictionary are under `NAME[key]`. Anything else is left out. ValueError if it is not Python.
    """
    try:
        return _texts_of(ast.parse(file.read_text(encoding="utf-8")))
    except (SyntaxError, RecursionError, MemoryError) as error:
        reason = str(error) or "nested too deeply"  # a MemoryError of the parser
        raise ValueError(f"not a Python file that can be read: {reason}") from error


def read_fences(file: Path) -> list[str]:
    """Return the blocks of a Markdown file that are fenced as `text`."""
    text = file.read_text(encoding="utf-8")
    return [block.removesuffix("\n") for block in _FENCE.findall(text)]


def one_text(texts: Texts, name: str) -> str:
    """Return the text that the file assigns to a name; raise ValueError for none or several."""
    found = set(texts.get(name, ()))
    if not found:
        raise ValueError(f"it assigns no text to {name}")
    if len(found) > 1:
        raise ValueError(f"{name} has {len(found)} different texts")
    return found.pop()


def prompts_of(file: Path | None, read: Callable[[Path], T], shipped: T) -> T:
    """Return the prompts in a file of the authors, or the shipped ones; errors name the setting."""
    if file is None:
        return shipped
    try:
        return read(file)
    except ValueError as error:
        raise ValueError(f"prompts {file}: {error}") from error


def authors_prompt(text: str, name: str, *, more_fields: tuple[str, ...] = ()) -> Prompt:
    """Return an authors' prompt, whose fields get our names; ValueError if it lacks some."""
    for theirs, ours in _FIELDS.items():
        text = text.replace(theirs, ours)
    for field in ("task", *more_fields):
        if f"{{{field}}}" not in text:
            raise ValueError(f"the text has no field for {{{field}}}")
    return Prompt(text, name, more_fields=more_fields)


def original_prompt(file: Path) -> Prompt:
    """Read the prompt for Qwen2.5-VL from the original LIBERO server's `libero_reward_server.py`.

    If the file does not assign it, or it does not name the task, ValueError.
    """
    text = one_text(read_texts(file), "DEFAULT_QWEN_PROMPT_TEMPLATE")
    return _naming_the_task(Prompt(text, "original"))


def original_primo_prompts(texts: Texts) -> tuple[Prompt, Prompt]:
    """Return the system and user prompt for PRIMO-R1 of that file; see `original_prompt`."""
    system = escaped(one_text(texts, "PRIMO_R1_SYSTEM_PROMPT"))  # the server does not format it
    user = Prompt(one_text(texts, "PRIMO_R1_USER_PROMPT"), "primo_user_original")
    return Prompt(system, "primo_system_original"), _naming_the_task(user)


def escaped(text: str) -> str:
    """Return a text as a template, in which braces are doubled."""
    return text.replace("{", "{{").replace("}", "}}")


def _naming_the_task(prompt: Prompt) -> Prompt:
    if prompt.render("a task") == prompt.render("another task"):
        raise ValueError(f"the text {prompt.name} has no field {{task_instruction}} or {{task}}")
    return prompt


def _texts_of(module: ast.Module) -> Texts:
    texts: Texts = {}
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for prefix, scope in [("", module), *((f"{each.name}.", each) for each in functions)]:
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys) as value):
                    names = [f"{name}[{getattr(key, 'value', None)}]" for key in keys]
                    found = zip(names, value.values, strict=True)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found = zip([name], [value], strict=True)
                case _:
                    continue
            for each, expression in found:
                if (text := _text(expression)) is not None:
                    texts.setdefault(prefix + each, []).append(text)
    return texts


def _text(node: ast.expr) -> str | None:
    """Return the text of an expression, or None if it is not one."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([_text(left), _text(right)])
        case ast.JoinedStr(values=values):
            return _joined([_f_string_part(value) for value in values])
    return None


def _f_string_part(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return escaped(text)
        case ast.FormattedValue(
            value=ast.Name(id=name) | ast.Attribute(attr=name), conversion=-1, format_spec=None
        ):
            return f"{{{name}}}"
    return None


def _joined(parts: list[str | None]) -> str | None:
    texts = [part for part in parts if part is not None]
    return "".join(texts) if len(texts) == len(parts) else None
