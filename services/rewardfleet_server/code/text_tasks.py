"""What is computed of a policy's text: by the service for a short one, else by a child process.

It imports little, so that such a process starts within a tenth of a second.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict

from rewardfleet.text.judgment import overall_judgment
from rewardfleet.text.program import extract_program

from .normal_form import normal_form
from .normal_form.introspection import Uses
from .tests.chance import chance_in


def form_digest(program: str, tests: Uses | None) -> str:
    """Return a digest of what tests can see of a program: all of its text if `tests` is None."""
    form = f"text {program}" if tests is None else normal_form(program, tests=tests)
    return hashlib.sha256(form.encode(errors="surrogatepass")).hexdigest()


def encode_form(program: str, tests: Uses) -> str:
    """Return what a task for `form_digest` reads."""
    names = {field: sorted(words) for field, words in asdict(tests).items()}
    return f"{json.dumps(names)}\n{program}"


def _form_digest(text: str) -> str:
    names, _, program = text.partition("\n")
    return form_digest(program, Uses(**{k: {*words} for k, words in json.loads(names).items()}))


def _program(text: str) -> str:
    called, _, text = text.partition("\n")
    return extract_program(text, {*called.split()})


#: What is computed of a text, by the name of the task.
TASKS: dict[str, Callable[[str], str]] = {
    "program": _program,
    "judgment": lambda text: overall_judgment(text) or "",
    "form": _form_digest,
    "chance": chance_in,
}


def run_task(task: str, source: int, result: int) -> None:
    """Do a task in the child process, given the descriptors of the text and of the result."""
    with open(source, "rb", closefd=False) as file:
        file.seek(0)
        text = file.read().decode(errors="surrogatepass")
    with open(result, "wb", closefd=False) as file:
        file.write(TASKS[task](text).encode(errors="surrogatepass"))
