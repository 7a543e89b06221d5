"""What is computed of a policy's text: by the service for a short one, else by a child process.

It imports little, so that such a process starts within a tenth of a second.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

from rewardfleet.text.judgment import overall_judgment
from rewardfleet.text.program import extract_program

from .normal_form import normal_form
from .normal_form.uses import NamesOfTests

#: How much of a program its tests can see: its output; its public names; what source code of tests
#: uses; or all of its text.
Visibility = Literal["output", "names", "text"] | NamesOfTests


def form_digest(program: str, visibility: Visibility) -> str:
    """Return a digest of what tests can see of a program."""
    if visibility == "text":
        form = f"text {program}"
    elif visibility == "output":
        form = normal_form(program, level="stdin")
    else:
        uses = visibility if isinstance(visibility, NamesOfTests) else None
        form = normal_form(program, level="unit", tests=uses)
    return hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest()


def encode_form(program: str, visibility: Visibility) -> bytes:
    """Return what a task for `form_digest` reads."""
    names: object = visibility
    if isinstance(visibility, NamesOfTests):
        names = {field: sorted(words) for field, words in asdict(visibility).items()}
    return f"{json.dumps(names)}\n{program}".encode(errors="surrogatepass")


def _form_digest(text: str) -> str:
    names, _, program = text.partition("\n")
    visibility = json.loads(names)
    if isinstance(visibility, dict):
        fields = {field: frozenset(words) for field, words in visibility.items()}
        visibility = NamesOfTests(**fields)
    return form_digest(program, visibility)


def _program(text: str) -> str:
    called, _, text = text.partition("\n")
    return extract_program(text, {*called.split()})


#: What is computed of a text, by the name of the task.
TASKS: dict[str, Callable[[str], str]] = {
    "program": _program,
    "judgment": lambda text: overall_judgment(text) or "",
    "form": _form_digest,
}


def run_task(task: Literal["program", "judgment", "form"], source: int, result: int) -> None:
    """Do a task in the child process.

    Args:
        source: The descriptor of the file with the text.
        result: The descriptor of the file for the result.
    """
    with open(source, "rb", closefd=False) as file:
        file.seek(0)
        text = file.read().decode(errors="surrogatepass")
    with open(result, "wb", closefd=False) as file:
        file.write(TASKS[task](text).encode(errors="surrogatepass"))
