"""Readers of rows, one per dataset: as in docs/code-service.md#datasets.

Rows may also come as CTRL (`selected_uts`, `all_uts`) and SandboxFusion (`test`) store them.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from rewardfleet.wire.code import (
    MAX_TESTS,
    AssertTests,
    DatasetTests,
    FunctionalTests,
    PlainTests,
    StdioTests,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import given, parsed
from rewardfleet.wire.validation import validate

from .codeforces import read_codeforces
from .columns import (
    Row,
    decode_column,
    first_of,
    func_name_of,
    json_of,
    labels_of,
    list_of,
    prompt_of,
    read_json,
    without_nan,
)
from .cruxeval import read_cruxeval
from .ground_truth import recognize
from .scripts import PRELUDE, read_tests
from .solutions import first_solution_of, solution_of

#: The fields of `DatasetTests` that do not override the rule of the dataset.
_NOT_RULES = {"kind", "dataset", "row", "first", "check_reference"}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
#: A time with its unit; or a range of times, whose end counts.
_TIME = re.compile(rf"(?:{_NUMBER}\s*[a-z]*\s*[-\u2013]\s*)?({_NUMBER})\s*([a-z]*)(?:\(s\))?\.?")
#: The most characters of such a text.
_MAX_TIME = 100
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
}


class DatasetRow(NamedTuple):
    """What a row becomes."""

    tests: PlainTests
    #: Its own limits, by the fields of `Limits`.
    limits: Mapping[str, float]
    #: Its own solution, which may be a completion of the prompt; None if it has none. Of several,
    #: one is read only for `check_reference`.
    solution: str | None


def read_row(tests: DatasetTests) -> DatasetRow:
    """Read a row; raise InvalidRequest if it has no tests, or no solution where it is checked."""
    try:
        columns = without_nan(tests.row)
        dataset, row = recognize(columns) if tests.dataset == "auto" else (tests.dataset, columns)
        _check_labels(row)
        fields = _READERS[dataset](row)
        fields = {**fields, "cases": _first_cases(fields["cases"], tests.first)}
        fields |= _overrides(tests, fields["kind"])
        is_plus = dataset == "code_contests" and row.get("test_cases") is not None
        limits = {"cpu_s": _time_limit(row.get("time_limit"), unit=1e-3 if is_plus else 1.0)}
        if dataset == "codeforces":
            limits["memory_mb"] = _megabytes(row.get("memory_limit"))
        solution = fields.pop("solution", None)
        if solution is None:
            solution = first_solution_of(row) if tests.check_reference else solution_of(row)
    except InvalidRequest as error:
        raise InvalidRequest(f"tests.row: {error}") from None
    kind = fields["kind"]
    model = fields.pop("model", _KINDS[kind])
    plain = validate(model, fields, prefix=f"tests.row: as {kind} tests, ")
    return DatasetRow(plain, given(limits), solution)


_KINDS: dict[str, type[PlainTests]] = {
    "stdio": StdioTests,
    "functional": FunctionalTests,
    "asserts": AssertTests,
}


def _overrides(tests: DatasetTests, kind: str) -> dict[str, Any]:
    given = tests.model_dump(exclude=_NOT_RULES, exclude_none=True)
    for name in given.keys() - _KINDS[kind].model_fields.keys():
        raise InvalidRequest(f"`{name}` does not apply: the row becomes {kind} tests")
    if kind == "stdio" and {"tolerance", "relative_tolerance"} & given.keys():
        given.setdefault("checker", "float")
    if "checker" in given:  # replaces the row's program
        given["checker_program"] = None
    elif "checker_program" in given:
        given["checker"] = "tokens"
    if "tolerance" in given:  # replaces the dataset's rule as a whole
        given.setdefault("relative_tolerance", None)
    return given


def _first_cases(cases: list[Any], count: int | None) -> list[Any]:
    if not cases:
        raise InvalidRequest("the row has no tests")
    if len(cases[:count]) > MAX_TESTS:
        raise InvalidRequest(f"the row has {len(cases)} tests; use the `first` {MAX_TESTS} of them")
    return cases[:count]


def _check_labels(row: Row) -> None:
    language = labels_of(row).get("programming_language", "python")
    if language != "python":
        raise InvalidRequest(f"labels: the language must be 'python' (got {str(language)[:40]!r})")


def _time_limit(limit: Any, unit: float) -> float | None:
    """Return a limit in seconds. A bare number has the `unit`: CodeContests+ has milliseconds."""
    found = None
    if isinstance(limit, str) and len(limit) <= _MAX_TIME:
        limit = limit.strip().lower()
        if limit in {"", "none", "null", "nan"}:
            return None
        limit = json_of(limit, "time_limit") if limit.startswith("{") else limit
        found = _TIME.fullmatch(limit) if isinstance(limit, str) else None
    if isinstance(limit, dict):  # as in CodeContests, where zeros stand for none
        limit = without_nan(limit)
        seconds, nanos = limit.get("seconds") or 0, limit.get("nanos") or 0
        if all(isinstance(each, int | float) and 0 <= each < 1e10 for each in (seconds, nanos)):
            limit, unit = seconds + nanos / 1e9 or None, 1.0
    elif found:
        number, name = found.groups()
        if not name or name in _SECONDS:
            limit, unit = float(number), _SECONDS.get(name, unit)
    if limit is None:
        return None
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not is_number or not 0 < limit < 1e6:
        raise InvalidRequest(
            "time_limit: must be seconds above 0, or a text with a unit, such as '2 seconds', "
            f"'1.5 s', '1000 ms' or '1 minute' (got {str(limit)[:40]!r})"
        )
    return float(limit * unit)


def _megabytes(limit: Any) -> int | None:
    if limit is not None and not (isinstance(limit, int | float) and 0 < limit < 1e6):
        raise InvalidRequest(f"memory_limit: must be MiB above 0 (got {str(limit)[:40]!r})")
    return None if limit is None else math.ceil(limit)


# Datasets


def _code_contests(row: Row) -> dict[str, Any]:
    column, tests = first_of(row, "test_cases", "selected_uts", "all_uts", "test")
    if tests is not None:
        listed = enumerate(list_of(tests, column))
        pairs = [_pair(test, f"{column}.{index}") for index, test in listed]
    else:
        pairs = []
        for column in ("public_tests", "private_tests", "generated_tests"):
            tests = json_of(row.get(column) or {}, column)
            if not isinstance(tests, dict):
                raise InvalidRequest(f"{column}: must be an object with `input` and `output`")
            pairs += _zip(tests.get("input") or [], tests.get("output") or [], column)
    rule = "code_contests" if column.endswith(("_tests", "_cases")) else "sandbox_fusion"
    fields = {**_stdio(pairs), "checker": rule, "ignore_case": True}
    if column == "test_cases" and (source := row.get("checker")):  # in C++ with testlib
        fields["checker"] = "tokens"
        fields["checker_program"] = {"language": "cpp", "source": source}
    return fields


def _livecodebench(row: Row) -> dict[str, Any]:
    column, encoded = first_of(row, "test", "unit_tests")
    if column == "unit_tests":
        inputs, outputs, fn_name = _input_output(encoded)
    elif column:
        tests = decode_column(encoded, column)
        if not isinstance(tests, dict) or "input_output" not in tests:
            raise InvalidRequest("test: `input_output` is missing")
        inputs, outputs, fn_name = _input_output(tests["input_output"])
    else:
        listed = [
            test
            for name in ("public_test_cases", "private_test_cases")
            for test in list_of(decode_column(row.get(name) or [], name), name)
        ]
        column = "public_test_cases, private_test_cases"
        if not all(isinstance(test, dict) for test in listed):
            raise InvalidRequest(f"{column}: each test must be an object")
        inputs, outputs = ([test.get(key) for test in listed] for key in ("input", "output"))
        fn_name = func_name_of(row)
        is_functional = any(test.get("testtype") == "functional" for test in listed)
        if not fn_name and is_functional and isinstance(inputs[0], str):  # operations on a class
            match parsed(inputs[0].partition("\n")[0]):
                case [str(name), *_] if name in str(row.get("starter_code")):
                    fn_name = name
        if not fn_name and is_functional:
            raise InvalidRequest("metadata: `func_name` is missing, and a test is functional")
    pairs = _zip(inputs, outputs, column)
    if not fn_name:
        rule = "apps_in_order" if column == "test" else "decimal_lines"
        return {**_stdio(pairs), "checker": rule, "setup": PRELUDE}
    results = (read_json(text, f"output {index}") for index, (_, text) in enumerate(pairs))
    # NeMo Gym's runner also compares numbers as `numpy.allclose` does.
    near = {"tolerance": 1e-8, "relative_tolerance": 1e-5} if column == "unit_tests" else {}
    return {**_functional(row, fn_name, inputs, results), **near}


class AppsTests(FunctionalTests):
    """Calls with the values of a row, by the rules of APPS's runner (testing_util.py).

    They are those of TACO, and of verl and PRIME, too. JSON has turned the integer keys of
    dictionaries into texts, so they become integers again where all keys of a dictionary are: of a
    single argument, and of an output or the single item of one.
    """

    #: Whether all outputs are lists of one item, which alone is accepted as well. The runner
    #: accepts the first item of any list, which is unsound.
    is_wrapped: bool

    def accepted(self, expected: Any) -> tuple[Any, ...]:
        """Return the values that a call may return."""
        match expected:
            case [dict(only)]:
                expected = [with_integer_keys(only) or only]
            case dict():
                expected = with_integer_keys(expected) or expected
        return (expected, expected[0]) if self.is_wrapped and expected else (expected,)


def with_integer_keys(value: dict[str, Any]) -> dict[int, Any] | None:
    """Return a dictionary with integers as keys; None if one of them is no integer."""
    try:
        return {int(key): each for key, each in value.items()}
    except ValueError:
        return None


def _apps(row: Row) -> dict[str, Any]:
    column, tests = first_of(row, "selected_uts", "all_uts")
    if tests is not None:
        is_stdio = any(isinstance(test, dict) for test in list_of(tests, column))
        return _code_contests(row) if is_stdio else read_tests(row)
    if not row.get("input_output"):
        raise InvalidRequest("the row has no tests: no `input_output` or `selected_uts`")
    inputs, outputs, fn_name = _input_output(row["input_output"])
    pairs = _zip(inputs, outputs, "input_output")
    if not fn_name:
        rule = "taco" if "skill_types" in row else "apps"
        return {**_stdio(pairs), "checker": rule, "setup": PRELUDE}
    results = [
        json_of(output, f"output {index}") if isinstance(given, str) else output  # as in verl
        for index, (given, output) in enumerate(pairs)
    ]
    is_wrapped = all(isinstance(each, list) and len(each) == 1 for each in results)
    fields = _functional(row, fn_name, inputs, results)
    return {**fields, "model": AppsTests, "is_wrapped": is_wrapped}


_READERS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "code_contests": _code_contests,
    "livecodebench": _livecodebench,
    "mbppplus": read_tests,
    "apps": _apps,
    "codeforces": read_codeforces,
    "cruxeval": read_cruxeval,
    "tests": lambda row: cast("Row", row["tests"]),  # those of a request
}


# Columns


def _zip(inputs: Any, outputs: Any, column: str) -> list[tuple[Any, Any]]:
    if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
        raise InvalidRequest(f"{column}: must be a list of inputs, and a list of as many outputs")
    return list(zip(inputs, outputs, strict=True))


def _pair(test: Any, column: str) -> tuple[Any, Any]:
    """Return the input and the expected output of a test of CodeContests+ or SandboxFusion."""
    is_plain = column.startswith("test_cases.")
    try:
        given, expected = test["input"], test["output"]
        return (given, expected) if is_plain else (given["stdin"], expected["stdout"])
    except (TypeError, KeyError):
        needed = "`input` and `output`" if is_plain else "input.stdin and output.stdout"
        raise InvalidRequest(f"{column}: must have {needed}") from None


def _input_output(value: Any) -> tuple[list[Any], list[Any], str | None]:
    fields = json_of(value, "input_output")
    if not isinstance(fields, dict):
        raise InvalidRequest("input_output: must be an object with `inputs` and `outputs`")
    inputs, outputs = fields.get("inputs") or [], fields.get("outputs") or []
    fn_name: Any = without_nan(fields).get("fn_name")
    return inputs, outputs, fn_name


def _arguments(value: Any, index: int) -> list[Any]:
    """Return the arguments of a call: a list, or text with one JSON value per line."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"input {index}: must be a list of arguments, or lines of JSON")
    return [read_json(line, f"input {index}") for line in value.strip().split("\n") if line.strip()]


def _stdio(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    cases = [{"stdin": _text(stdin), "stdout": _text(stdout)} for stdin, stdout in pairs]
    return {"kind": "stdio", "cases": cases}


def _functional(
    row: Row, fn_name: str, inputs: Iterable[Any], outputs: Iterable[Any]
) -> dict[str, Any]:
    """Return the fields of LiveCodeBench and APPS, which compare values as Python does."""
    pairs = enumerate(zip(inputs, outputs, strict=True))
    cases = [{"args": _arguments(args, index), "expected": value} for index, (args, value) in pairs]
    fields = {"kind": "functional", "setup": PRELUDE, "fn_name": fn_name, "bool_is_int": True}
    fields |= {"prompt": prompt_of(row, fn_name), "cases": cases}
    return {**fields, **given(row, ("in_place", "any_order"))}


def _text(value: Any) -> Any:
    """Join the lines of a text, which is a list of lines in some rows of APPS."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value
