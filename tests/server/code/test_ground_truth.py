"""Ground truths of trainers, in all their forms, as tests."""

import json
import math

import numpy as np
import pytest

from rewardfleet import code_request
from rewardfleet.rows import code_fields
from rewardfleet.wire.code import CodeRequest, DatasetTests, PlainTests, fields_of_tests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.score import BatchRequest
from rewardfleet.wire.validation import encode_json, validate, validate_json
from rewardfleet_server.code.datasets.ground_truth import request_of
from rewardfleet_server.code.datasets.rows import read_row

from .conftest import rows, sample, stdio

IO = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
ASSERTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]


def read(ground_truth: object):
    """Return the tests that a request with a ground truth is scored on."""
    request = validate(CodeRequest, {"revision": "", "tests": ground_truth})
    if not isinstance(request.tests, DatasetTests):
        return request.tests
    return read_row(request.tests)[0]


def cases_of(tests: PlainTests) -> list:
    return tests.model_dump(mode="json", exclude_unset=True)["cases"]


@pytest.mark.parametrize("row", sample(rows("ground_truths", "forms")))
def test_a_ground_truth_becomes_its_tests(row):
    """Also as JSON text, from the client, and beside a time limit in seconds."""
    truth = row["truth"]
    for given in (truth, truth if isinstance(truth, str) else json.dumps(truth)):
        tests = read(given)
        assert cases_of(tests) == row["cases"]
        for name in {"checker", "fn_name"} & row.keys():
            assert getattr(tests, name) == row[name]
    request = code_request("", truth).tests
    found = read_row(request)[0] if isinstance(request, DatasetTests) else request
    assert cases_of(found) == row["cases"]
    if isinstance(truth, dict) and "kind" not in truth:
        limited = {**truth, "time_limit": 0.2}
        for tests in (
            fields_of_tests(limited)["tests"],
            fields_of_tests({"tests": limited})["tests"],
        ):
            assert read_row(validate(DatasetTests, tests)).limits == {"cpu_s": 0.2}
        assert read_row(request_of("", limited).tests).limits == {"cpu_s": 0.2}


@pytest.mark.parametrize("row", sample(rows("ground_truths", "wrong")))
def test_a_wrong_value_of_tests_names_the_accepted_ones_and_the_page(row):
    with pytest.raises(InvalidRequest, match=r"'stdio', 'functional' or 'asserts'.*code-service"):
        code_request("", row["truth"])


def test_arrays_of_a_parquet_file_are_lists():
    pairs = np.array([{"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}], dtype=object)
    listed = {name: np.array(values, dtype=object) for name, values in IO.items()}
    cases = {"kind": "stdio", "cases": np.array([{"stdin": "1 2", "stdout": "3"}])}
    for ground_truth in (listed, pairs, cases):
        assert read(ground_truth).cases[0].stdout.strip() == "3"
    assert read(np.array(ASSERTS)).cases == ASSERTS


def test_tuples_are_lists():
    calls = {
        "kind": "functional",
        "fn_name": "f",
        "cases": ({"args": ((1, 2),), "expected": (3,)},),
    }
    (case,) = code_request("", calls).tests.cases
    assert (case.args, case.expected) == ([[1, 2]], [3])
    assert read_row(code_request("", tuple(ASSERTS)).tests)[0].cases == ASSERTS
    pairs = {"fn_name": "f", "inputs": ([(1, 2)],), "outputs": ((3, 4),)}
    (case,) = read_row(code_request("", pairs).tests)[0].cases
    assert (case.args, case.expected) == ([[1, 2]], [3, 4])


def test_nan_of_pandas_arrives_as_nan():
    """A null would be another expected value."""
    row = {"test_list": ASSERTS, "score": math.nan, "outputs": [math.nan]}
    request = code_request("", row)
    for body in (request, BatchRequest[CodeRequest](items=[request])):
        sent = encode_json(body)
        assert sent.count(b"NaN") == 2
        validate_json(type(body), sent)
    assert read_row(request.tests)[0].cases == ASSERTS


def test_nan_is_a_missing_column_of_a_dataset():
    names = (
        "test_imports test_setup_code selected_uts input_output inputs outputs test_cases packed"
    )
    row = {"test_list": ASSERTS, "labels": {"entry_point": math.nan}}
    row |= dict.fromkeys(names.split(), math.nan)
    assert read_row(DatasetTests(kind="dataset", dataset="mbppplus", row=row))[0].cases == ASSERTS


def test_nan_in_a_list_is_no_missing_output():
    with pytest.raises(InvalidRequest, match="expected"):
        read({"fn_name": "f", "inputs": [[1]], "outputs": [math.nan]})
    assert read({**IO, "fn_name": math.nan}).kind == "stdio"


@pytest.mark.parametrize(
    "tests",
    [
        stdio(("1 2", "3")),
        fields_of_tests(IO)["tests"],
        fields_of_tests({"test_list": ASSERTS})["tests"],
    ],
)
def test_an_object_with_tests_may_have_other_fields(tests: dict):
    truth = {"tests": tests, "mode": "all_pass", "critique": math.nan, "answer": "x"}
    for request in (request_of("", truth), code_request(**code_fields("", json.dumps(truth), {}))):
        assert (request.mode, request.critique) == ("all_pass", None)
        assert request.tests == validate(CodeRequest, {"revision": "", "tests": tests}).tests


@pytest.mark.parametrize("row", sample(rows("ground_truths", "refused")))
def test_other_forms_are_refused_with_what_is_accepted(row):
    with pytest.raises(InvalidRequest) as raised:
        read(row["truth"])
    assert row["reason"] in raised.value.detail
