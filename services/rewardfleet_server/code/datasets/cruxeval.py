"""Rows of CRUXEval, in which an answer is no program: it predicts what a function returns or takes.

As in its own evaluation, an output may be all of the assertion, and an input is a call. An output
must be a literal, as its prompts say: an expression could compute it.
"""

from collections.abc import Mapping
from typing import Any

from rewardfleet.wire.code import AssertTests
from rewardfleet.wire.errors import InvalidRequest

#: The program that an answer becomes.
_PROGRAM = """
import ast
def answer():
    text = ANSWER.rpartition("[ANSWER]")[2].partition("[/ANSWER]")[0]
    text = text.strip().removeprefix("assert").strip()
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
        node = node.comparators[0] if IS_OUTPUT else node.left
    if IS_OUTPUT:
        return ast.literal_eval(node)
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "f"):
        raise ValueError("an input must be a call of f")
    names = {**globals(), "f": lambda *args, **named: (args, named)}
    return eval(compile(ast.Expression(node), "answer", "eval"), names)
"""


class PredictionTests(AssertTests):
    """Tests of what a text predicts: `answer` of the program that it becomes."""

    program: str  #: the program, without the variable `ANSWER`


def read_cruxeval(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `PredictionTests`, and the `solution`; or raise InvalidRequest."""
    code, given, output = (row.get(name) for name in ("code", "input", "output"))
    if not (isinstance(code, str) and isinstance(given, str) and isinstance(output, str)):
        raise InvalidRequest("code, input, output: must be texts of Python, as in CRUXEval")
    predicted = row.get("predict") or "output"
    if predicted not in {"output", "input"}:
        raise InvalidRequest(f"predict: must be 'output' or 'input' (got {str(predicted)[:40]!r})")
    is_output = predicted == "output"
    call = "answer()" if is_output else "f(*(given := answer())[0], **given[1])"
    return {
        "kind": "asserts",
        "model": PredictionTests,
        "setup": "" if is_output else code,  # a program cannot call what it predicts
        "program": f"IS_OUTPUT = {is_output}{_PROGRAM}",
        "cases": [f"assert {call} == {output}"],
        "bool_is_int": True,
        "solution": output if is_output else f"f({given})",
    }
