"""Ground truths of trainers: which dataset's form they have, by whose rule they are compared.

docs/wire-formats.md lists the forms, and whose they are.
"""

import json
import re
from typing import Any

from pydantic import JsonValue

from rewardfleet.wire.code import PLAIN_KINDS, CodeRequest, check_values
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.policy_text import text_of
from rewardfleet.wire.truth import CONTAINERS, parsed
from rewardfleet.wire.validation import validate

from .columns import Row, decompress, first_of, func_name_of, json_of, read_json, without_nan
from .solutions import SOLUTIONS

_ACCEPTED = (
    "give the `tests` of a request, tests with `stdin` and `stdout`, `inputs` and `outputs`, "
    "`test_cases`, a row of a dataset (with `test`, `test_list`, `input_output`, `public_tests`, "
    "…), a list of tests or asserts, or the JSON of these"
)
#: Columns by which a row of a dataset is recognized.
_COLUMNS = {
    "input_output": "apps",
    "selected_uts": "apps",  # whose reader takes tests of all kinds
    "all_uts": "apps",
    "public_test_cases": "livecodebench",
    "private_test_cases": "livecodebench",
    "public_tests": "code_contests",
    "private_tests": "code_contests",
    "generated_tests": "code_contests",
    "official_tests": "codeforces",
    "test_list": "mbppplus",
    "plus_input": "mbppplus",  # whose reader says why it cannot be used
}
_SCRIPTS = ("functional", "pytest", "test", "test_code")  #: columns with a script of tests
#: Columns that tests need wherever they are in a row: the code around the program, solutions, and
#: the limit.
_AROUND = (
    "prompt", "complete_prompt", "code_prompt", "content", "starter_code", "import_statement",
    "entry_point", "class_name", "test_info", "test_imports", "test_setup_code",
    "extra_info", "time_limit", "in_place", "any_order", *SOLUTIONS,
)  # fmt: skip
#: The names of a test's input and of its expected output.
_INPUTS = ("input", "stdin")
_OUTPUTS = ("output", "stdout", "expected_output", "expected_stdout")
#: Base64 as LiveCodeBench writes it, in the first characters of a text.
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]{40,}")
_TESTS = re.compile(r"\bassert|\bunittest\b|\bdef test")


def recognize(row: Row) -> tuple[str, Row]:
    """Return the dataset whose form a row has, and the row in it; raise InvalidRequest for none.

    Args:
        row: A row; or a single column `ground_truth`, whose value may have any form.
    """
    value = row["ground_truth"] if row.keys() == {"ground_truth"} else row
    try:
        return _recognize(value)
    except RecursionError:
        raise InvalidRequest("ground_truth: nested too deep") from None


def _recognize(value: JsonValue) -> tuple[str, Row]:
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        value = read_json(value, "ground_truth")
    if isinstance(value, dict):
        value = without_nan(value)
        dataset, row = _of_object(value)
        missing = [name for name in _AROUND if row.get(name) is None]
        return dataset, {**row, **{name: value.get(name) for name in missing}}
    if isinstance(value, list):
        return _of_list(value, "ground_truth")
    if isinstance(value, str) and _BASE64.fullmatch(value[:200]):
        return "livecodebench", {"test": value}
    if _is_script(value):
        return "mbppplus", {"test": value}
    raise InvalidRequest(f"ground_truth: {_ACCEPTED}")


def _is_script(value: JsonValue) -> bool:
    if not isinstance(value, str) or value.lstrip()[:1] in {"{", "["}:
        return False
    return bool(_TESTS.search(value)) and not _BASE64.fullmatch(value[:200])


def _of_object(value: Row) -> tuple[str, Row]:  # noqa: PLR0911, PLR0912 - one for each form
    if value.get("kind") in PLAIN_KINDS:
        return "tests", {"tests": value}
    if value.get("assert_case"):  # verl: in place of inputs and outputs
        return "mbppplus", {"test_list": value["assert_case"]}
    tests = parsed(value.get("unit_tests"))
    if isinstance(tests, dict) and "outputs" in tests:  # NeMo Gym, with LiveCodeBench's runner
        return "livecodebench", {**value, "unit_tests": tests}
    if value.get("packed") is not None:  # NeMo Gym: base64 of zlib of JSON
        packed = read_json(decompress(value["packed"], "packed").decode(errors="replace"), "packed")
        if not isinstance(packed, dict) or "packed" in packed:
            raise InvalidRequest("packed: must be an object with `inputs` and `outputs`")
        return _of_object({**packed, "fn_name": value.get("fn_name") or packed.get("fn_name")})
    if value.get("inputs") is not None and value.get("outputs") is not None:
        form: Row = {"input_output": value}
        return ("apps", form) if value.get("fn_name") else ("livecodebench", {"test": form})
    for column in _SCRIPTS:
        if _is_script(value.get(column)):
            return "mbppplus", {**value, "test": value[column]}
    if value.get("test_cases") is not None:
        if "checker" in value:
            return "code_contests", value  # CodeContests+
        if (language := value.get("language")) not in {None, "python", "python3"}:
            raise InvalidRequest(f"language: must be 'python' (got {json.dumps(language)[:40]})")
        return _of_list(json_of(value["test_cases"], "test_cases"), "test_cases")
    for column, dataset in _COLUMNS.items():
        if value.get(column) is not None:
            return dataset, value
    if {"code", "input", "output"} <= value.keys():
        return "cruxeval", value
    for column in CONTAINERS:
        if value.get(column) is not None:
            return _recognize(value[column])
    if _as_case(value).keys() >= {"input", "output"}:  # a single test
        return _of_list([value], "ground_truth")
    raise InvalidRequest(f"ground_truth: {_ACCEPTED} (its fields: {', '.join(value)[:100]})")


def _of_list(items: Any, column: str) -> tuple[str, Row]:
    if not isinstance(items, list) or not items:
        raise InvalidRequest(f"{column}: must be a list with at least one test")
    items = [_as_case(each) for each in items]
    if all(isinstance(each, str) for each in items):
        return "mbppplus", {"test_list": items}
    for each in items:
        if not (isinstance(each, dict) and {"input", "output"} <= each.keys()):
            found = f" (one has: {', '.join(each)[:100]})" if isinstance(each, dict) else ""
            raise InvalidRequest(
                f"{column}: each test must be an assert, or have `stdin` and `stdout`, or `input` "
                f"and `output`{found}"
            )
    if all(isinstance(each["input"], dict) for each in items):
        return "code_contests", {"test": items}  # SandboxFusion
    # DeepCoder has the tests of LiveCodeBench.
    names = {str(name) for each in items if (name := each.get("fn_name") or func_name_of(each))}
    if not names:
        return "livecodebench", {"public_test_cases": items}
    if len(names) > 1:
        raise InvalidRequest(f"{column}: all tests must call the same function")
    inputs: Any = [each["input"] for each in items]
    outputs: Any = [each["output"] for each in items]
    tests: Row = {"inputs": inputs, "outputs": outputs, "fn_name": names.pop()}
    if all(isinstance(each, str) for each in inputs):
        return "livecodebench", {"test": {"input_output": tests}}
    return "apps", {"input_output": tests}


def _as_case(test: Any) -> Any:
    """Return a test as an assert, or with its `input` and `output`, whatever they are called."""
    if not isinstance(test, dict):
        return test
    if isinstance(test.get("assert_code"), str):  # ROLL
        return test["assert_code"]
    (_, given), (_, expected) = first_of(test, *_INPUTS), first_of(test, *_OUTPUTS)
    is_case = given is not None and expected is not None
    return {**test, "input": given, "output": expected} if is_case else test


def request_of(response: Any, ground_truth: JsonValue) -> CodeRequest:
    """Return the item of a response and its ground truth; raise InvalidRequest for a bad field.

    Args:
        response: What the policy wrote, as `text_of` takes it.
        ground_truth: The tests, in any form; or an object with `tests`, in any form, and further
            fields of `CodeRequest`, or columns of a row. Other fields are ignored.
    """
    check_values(ground_truth, "ground_truth")
    fields = {"revision": text_of(response), "tests": ground_truth}
    return validate(CodeRequest, fields, prefix="ground_truth: ")
