"""Ground truths of trainers, in all their forms, as tests."""

import base64
import json
import math
import zlib

import numpy as np
import pytest

from rewardfleet import code_request
from rewardfleet.rows import code_fields
from rewardfleet.wire.code import CodeRequest, DatasetTests, as_tests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import BatchRequest
from rewardfleet.wire.validation import encode_json, validate, validate_json
from rewardfleet_server.code.datasets.ground_truth import request_of
from rewardfleet_server.code.datasets.rows import read_row

from .test_datasets import encoded

STDIO = {"kind": "stdio", "cases": [{"stdin": "1 2", "stdout": "3"}]}
IO = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
CALLS = {"inputs": [[[1, 2], 3]], "outputs": [[4]]}
PAIRS = [{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}]


def packed(tests: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(tests).encode())).decode()


def read(ground_truth: object):
    """Return the tests that a request with a ground truth is scored on."""
    request = validate(CodeRequest, {"revision": "", "tests": as_tests(ground_truth)})
    if not isinstance(request.tests, DatasetTests):
        return request.tests
    return read_row(request.tests)[0]


ASSERTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]


@pytest.mark.parametrize(
    "tests",
    [
        ASSERTS,
        tuple(ASSERTS),
        np.array(ASSERTS),
        "\n".join(ASSERTS),
        json.dumps(ASSERTS),
        {"test_list": ASSERTS},
        json.dumps({"test_list": ASSERTS}),
        {"kind": "asserts", "cases": ASSERTS},
        json.dumps({"kind": "asserts", "cases": ASSERTS}),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}",
)
def test_the_client_takes_what_adapters_take(tests: object):
    request = code_request("", tests).tests
    found = read_row(request)[0] if isinstance(request, DatasetTests) else request
    assert "\n".join(found.cases) == "\n".join(ASSERTS)


@pytest.mark.parametrize(
    "tests", [None, 3, True, [], {}, "", {"cases": ASSERTS}, {"kind": "assert", "cases": ASSERTS}]
)
def test_a_wrong_value_of_tests_names_the_accepted_ones_and_the_page(tests: object):
    with pytest.raises(InvalidRequest, match=r"'stdio', 'functional' or 'asserts'.*code-service"):
        code_request("", tests)


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(
    "ground_truth",
    [
        IO,
        {**IO, "fn_name": None},
        {"input_output": json.dumps(IO)},
        {"language": "python", "test_cases": PAIRS},
        {"test_cases": json.dumps(PAIRS)},
        PAIRS,
        [{"input": {"stdin": "1 2\n"}, "output": {"stdout": "3\n"}}],
        [{"stdin": "1 2\n", "expected_stdout": "3\n"}],
        {"packed": packed(IO)},
        {"public_tests": {"input": ["1 2\n"], "output": ["3\n"]}},
        {"private_test_cases": encoded(json.dumps(PAIRS)), "public_test_cases": []},
        {"test": encoded(json.dumps({"input_output": json.dumps(IO)}))},
        {"selected_uts": [{"input": {"stdin": "1 2\n"}, "output": {"stdout": "3\n"}}]},
        {"reward_spec": {"ground_truth": IO}, "metadata": {"answer": "3"}},
    ],
)
def test_programs_that_read_and_print(ground_truth: object, as_text: bool):
    tests = read(json.dumps(ground_truth) if as_text else ground_truth)
    assert [(case.stdin, case.stdout) for case in tests.cases] == [("1 2\n", "3\n")]


def test_compressed_tests_of_livecodebench_as_a_text():
    tests = read(encoded(json.dumps({"input_output": json.dumps(IO)})))
    assert (tests.checker, len(tests.cases)) == ("decimal_lines", 1)


@pytest.mark.parametrize(
    "ground_truth",
    [
        # PRIME and verl: one JSON value per line, and JSON as the output.
        {"inputs": ["[1, 2]\n3"], "outputs": ["[4]"], "fn_name": "f"},
        {"input_output": {"inputs": ["[1, 2]\n3"], "outputs": ["[4]"], "fn_name": "f"}},
        # APPS: lists of arguments, and values as outputs.
        {**CALLS, "fn_name": "f"},
        [{"input": [[1, 2], 3], "output": [4], "type": "function_call", "fn_name": "f"}],
        {"packed": packed({**CALLS, "fn_name": "f"})},
        {"packed": packed(CALLS), "fn_name": "f"},
    ],
)
def test_functions(ground_truth: object):
    tests = read(ground_truth)
    assert (tests.fn_name, tests.cases[0].args) == ("f", [[1, 2], 3])
    assert tests.cases[0].expected == [4]


@pytest.mark.parametrize(
    "ground_truth",
    [
        {"assert_case": ["assert f(1) == 2"], "inputs": [""], "outputs": [None]},
        [{"assert_code": "assert f(1) == 2"}],
        {"test_list": ["assert f(1) == 2"], "test_imports": []},
        ["assert f(1) == 2"],
        "assert f(1) == 2\n",
    ],
)
def test_asserts(ground_truth: object):
    assert read(ground_truth).cases == ["assert f(1) == 2"]


def test_arrays_of_a_parquet_file_are_lists():
    pairs = np.array([{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}], dtype=object)
    listed = {name: np.array(values, dtype=object) for name, values in IO.items()}
    for ground_truth in (listed, pairs, {"kind": "stdio", "cases": np.array(STDIO["cases"])}):
        assert read(ground_truth).cases[0].stdout.strip() == "3"


def test_tuples_are_lists():
    calls = {
        "kind": "functional",
        "fn_name": "f",
        "cases": ({"args": ((1, 2),), "expected": (3,)},),
    }
    (case,) = code_request("", calls).tests.cases
    assert (case.args, case.expected) == ([[1, 2]], [3])
    pairs = {"fn_name": "f", "inputs": ([(1, 2)],), "outputs": ((3, 4),)}
    (case,) = read_row(code_request("", pairs).tests)[0].cases
    assert (case.args, case.expected) == ([[1, 2]], [3, 4])


def test_nan_of_pandas_arrives_as_nan():
    """A null would be another expected value."""
    row = {"test_list": ASSERTS, "score": math.nan, "outputs": [math.nan]}
    request = code_request("", row)
    for body in (request, BatchRequest[CodeRequest](items=[request])):
        sent = encode_json(body, exclude_unset=True)
        assert sent.count(b"NaN") == 2
        validate_json(type(body), sent)
    assert read_row(request.tests)[0].cases == ASSERTS


@pytest.mark.parametrize(
    "ground_truth",
    [
        IO,
        {"packed": packed(IO)},
        {"tests": IO},
        {"tests": ASSERTS},
        {"tests": json.dumps({**IO, "time_limit": None})},
        {"test_cases": PAIRS},
        {"assert_case": ASSERTS},
        {"test_list": ASSERTS},
        {"verification_info": {"test_cases": PAIRS}},
        {"reward_model": {"ground_truth": json.dumps(IO)}},
        {"public_tests": {"input": ["1 2\n"], "output": ["3\n"]}},
        {"public_test_cases": PAIRS},
        {"input_output": json.dumps(IO)},
    ],
)
def test_every_form_may_have_a_time_limit(ground_truth: dict):
    """In seconds, beside the tests."""
    for row in (
        {**ground_truth, "time_limit": 0.2},
        {"tests": {**ground_truth, "time_limit": 0.2}},
    ):
        tests = validate(DatasetTests, as_tests(row))
        assert read_row(tests).cpu_s == 0.2
    sent_by_trainer = request_of("", {**ground_truth, "time_limit": 0.2})
    assert read_row(sent_by_trainer.tests).cpu_s == 0.2


@pytest.mark.parametrize(
    "row",
    [
        {"test_list": ASSERTS, "test_imports": math.nan, "test_setup_code": math.nan},
        {"test_list": ASSERTS, "selected_uts": math.nan, "input_output": math.nan},
        {"test_list": ASSERTS, "inputs": math.nan, "outputs": math.nan, "packed": math.nan},
        {"test_list": ASSERTS, "test_cases": math.nan, "labels": {"entry_point": math.nan}},
        {"tests": {"test_list": ASSERTS, "test_imports": math.nan}, "prompt": math.nan},
    ],
)
def test_nan_is_a_missing_column(row: dict):
    assert read(row).cases == ASSERTS
    if "test_list" in row:
        assert read_row(DatasetTests(kind="dataset", dataset="mbppplus", row=row))[0].cases


def test_nan_in_a_list_is_no_missing_output():
    with pytest.raises(InvalidRequest, match="expected"):
        read({"fn_name": "f", "inputs": [[1]], "outputs": [math.nan]})
    assert read({**IO, "fn_name": math.nan}).kind == "stdio"


@pytest.mark.parametrize("ground_truth", [STDIO, json.dumps(STDIO)])
def test_the_tests_of_a_request_stay_as_they_are(ground_truth: object):
    assert read(ground_truth).cases[0].stdin == "1 2"


@pytest.mark.parametrize("tests", [STDIO, as_tests(IO), as_tests({"test_list": ASSERTS})])
def test_an_object_with_tests_may_have_other_fields(tests: dict):
    truth = {"tests": tests, "mode": "all_pass", "critique": math.nan, "answer": "x"}
    for request in (request_of("", truth), code_request(**code_fields("", json.dumps(truth), {}))):
        assert (request.mode, request.critique) == ("all_pass", None)
        assert request.tests == validate(CodeRequest, {"revision": "", "tests": tests}).tests


def test_rules_of_a_request_replace_those_of_the_form():
    request = {**as_tests(IO), "checker": "exact", "first": 1}
    assert read_row(validate(DatasetTests, request))[0].checker == "exact"


@pytest.mark.parametrize(
    ("ground_truth", "reason"),
    [
        ("42", "ground_truth: give the `tests`"),
        (42, "ground_truth: give the `tests`"),
        (None, "ground_truth: give the `tests`"),
        ({"answer": "42"}, "its fields: answer"),
        ("{", "not valid JSON"),
        ([], "at least one test"),
        ([1], "each test must be an assert"),
        ({"test_cases": PAIRS, "language": "cpp"}, "language: must be 'python' (got \"cpp\")"),
        ({"test_cases": {}}, "test_cases: must be a list"),
        ({"packed": 1}, "packed: must be text"),
        ({"packed": "AAAA"}, "packed: not compressed"),
        ({"packed": packed([])}, "packed: must be an object"),
        ({"inputs": ["1"], "outputs": []}, "a list of as many outputs"),
        ([{"input": "1", "output": "2", "fn_name": name} for name in "fg"], "the same function"),
    ],
)
def test_other_forms_are_refused_with_what_is_accepted(ground_truth: object, reason: str):
    with pytest.raises(InvalidRequest) as raised:
        read(ground_truth)
    assert reason in raised.value.detail
