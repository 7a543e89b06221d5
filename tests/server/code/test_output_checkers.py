"""How outputs are compared: each checker, the rules of the datasets, and what overrides them.

The outputs and values are in `tests/data/code/outputs.jsonl`.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.wire.code import DatasetTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import truth_of_row
from rewardfleet_server.code.datasets.rows import read_row
from rewardfleet_server.code.judging.output_checkers import SOURCE_RULES, output_equals
from rewardfleet_server.code.judging.values import Tolerance

from ...measure import CpuStopwatch
from .conftest import Service, asserts, check_verdicts, rows, sample


def equals(
    printed: str, expected: str, checker: str, tolerance: Tolerance | None = None, **options: bool
) -> bool:
    options = {"ignore_case": False, **options}
    given = tolerance or Tolerance(1e-6)
    return output_equals(printed.encode(), expected.encode(), checker, given, **options)


@pytest.mark.parametrize("tolerance", [Tolerance(1e-6), Tolerance(1.0), Tolerance(1.0, 1.0)])
def test_an_expected_integer_needs_an_equal_number(tolerance: Tolerance):
    for row in rows("outputs", "integers").values():
        printed, expected, equal = row.values()
        assert equals(printed, expected, "float", tolerance) is equal, row
        assert equals(f"1 {printed}", f"1 {expected}", "float", tolerance) is equal, row


def test_each_rule_has_the_verdicts_of_its_source():
    """`accepted` names the sources that accept an output, as their own code decided."""
    for row in rows("compared").values():
        printed, expected, accepted = row.values()
        found = [name for name in sorted(SOURCE_RULES) if equals(printed, expected, name)]
        assert found == accepted, row


CHECKERS = StdioTests.model_fields["checker"].annotation.__args__


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_checker_can_ignore_case_and_accepts_the_answer_itself(checker: str):
    text = "Yes 1.5\nNO\n\n 7"
    assert equals(text, text, checker)
    is_same = checker in {"sandbox_fusion", "code_contests", "codeforces"}
    assert equals(text.lower(), text, checker) is is_same
    assert equals(text.lower(), text, checker, ignore_case=True)
    assert equals("", "", checker)
    assert not equals("", "x", checker) and not equals("x", "", checker)


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
@given(printed=st.binary(max_size=60), expected=st.binary(max_size=60))
def test_any_output_can_be_compared(checker: str, printed: bytes, expected: bytes):
    result = output_equals(printed, expected, checker, Tolerance(1e-6), ignore_case=False)
    assert isinstance(result, bool)
    assert output_equals(expected, expected, checker, Tolerance(), ignore_case=False)


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize(
    "word", [b"9" * 1_000_000, b"1 " * 500_000, b"1\n" * 500_000, b"1.", b"1e", b"-"]
)
def test_comparing_takes_time_linear_in_the_output(checker: str, word: bytes):
    """Also of a long word that is no number."""
    watch = CpuStopwatch()
    for printed in (word, word[:-2] + b"8", word[:2] + b"1" * 1_000_000 + b"x"):
        output_equals(printed, word, checker, Tolerance(1e-6), ignore_case=False)
        output_equals(printed, b"1", checker, Tolerance(1e-6), ignore_case=False)
    assert watch.seconds < 4


# Datasets


def stdio_row(dataset: str, expected: str) -> dict:
    pairs = {"inputs": [""], "outputs": [expected]}
    return {
        "code_contests": {"public_tests": {"input": [""], "output": [expected]}},
        "livecodebench": {
            "public_test_cases": [{"input": "", "output": expected, "testtype": "stdin"}]
        },
        "apps": {"input_output": pairs},
    }[dataset]


#: By dataset: outputs that its own runner accepts for an expected one, and that it does not.
RULES = rows("outputs", "rules").values()


@pytest.mark.slow
def test_a_row_is_compared_by_the_rule_of_its_dataset(service: Service):
    for dataset, printed, expected, accepted in map(dict.values, RULES):
        tests = {"kind": "dataset", "dataset": dataset, "row": stdio_row(dataset, expected)}
        found = service.score(f"print({printed!r})", tests)["score"]
        assert found == float(accepted), (dataset, printed, expected)


@pytest.mark.slow
def test_score_and_submit_agree(service: Service):
    types = {"code_contests": "CommonOJDataset", "livecodebench": "LiveCodeBenchDataset"}
    pairs = {(row["printed"], row["expected"]) for row in RULES}
    for dataset, dataset_type in types.items():
        for printed, expected in sorted(pairs):
            program = f"print({printed!r})"
            test: object = {"input_output": {"inputs": [""], "outputs": [expected]}}
            if dataset == "code_contests":
                test = [{"input": {"stdin": ""}, "output": {"stdout": expected}}]
            tests = {"kind": "dataset", "dataset": dataset, "row": {"test": test}}
            score = service.score(program, tests)
            config = {"dataset_type": dataset_type, "language": "python"}
            config["provided_data"] = {"test": test}
            body = {"dataset": "x", "id": 1, "completion": program, "config": config}
            result = service.client.post("/submit", json=body).json()
            assert result["accepted"] is (score["score"] == 1), (dataset, printed, expected)


def read(dataset: str, row: dict, **overrides: object):
    return read_row(DatasetTests(kind="dataset", dataset=dataset, row=row, **overrides))[0]


PAIR = {"inputs": ["1"], "outputs": ["2"]}


@pytest.mark.parametrize(
    ("row", "checker"),
    [
        ({"public_tests": {"input": ["1"], "output": ["2"]}}, "code_contests"),
        ({"test": [{"input": {"stdin": "1"}, "output": {"stdout": "2"}}]}, "sandbox_fusion"),
        ([{"input": {"stdin": "1"}, "output": {"stdout": "2"}}], "sandbox_fusion"),
        ({"public_test_cases": [{"input": "1", "output": "2"}]}, "decimal_lines"),
        ({"verifier_metadata": {"unit_tests": PAIR}}, "decimal_lines"),
        ({"unit_tests": json.dumps(PAIR)}, "decimal_lines"),
        ({"input_output": PAIR}, "apps"),
        ({"input_output": PAIR, "skill_types": "[]"}, "taco"),
        (PAIR, "apps_in_order"),
    ],
)
def test_the_form_of_a_row_determines_the_rule(row: object, checker: str):
    truth = truth_of_row(row) if isinstance(row, dict) else row
    assert read("auto", {"ground_truth": row}).checker == checker
    assert read("auto", {"ground_truth": truth}).checker == checker


def test_a_request_can_override_the_rule_of_a_dataset():
    row = stdio_row("code_contests", "YES")
    tests = read("code_contests", row, checker="lines", ignore_case=False)
    assert (tests.checker, tests.ignore_case) == ("lines", False)
    tests = read("code_contests", row, tolerance=1e-3)
    assert (tests.checker, tests.tolerance, tests.relative_tolerance) == ("float", 1e-3, None)
    tests = read("livecodebench", stdio_row("livecodebench", "1"), ignore_case=True)
    assert (tests.checker, tests.ignore_case) == ("decimal_lines", True)
    tests = read("mbppplus", {"test_list": ["assert f() == 0.5"]}, tolerance=0.1, bool_is_int=False)
    assert (tests.tolerance, tests.bool_is_int) == (0.1, False)
    with pytest.raises(InvalidRequest, match="`checker` does not apply: the row becomes asserts"):
        read("mbppplus", {"test_list": ["assert f() == 0.5"]}, checker="lines")


# Values


def returning(value: str) -> str:
    """Return a program whose function `f` returns a value; `big` returns an enormous fraction."""
    return (
        "from collections import ChainMap, UserDict, UserList, UserString\n"
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "from types import MappingProxyType\n"
        "def big():\n    x = object.__new__(Fraction)\n    x._numerator = 3 ** 1_000_000\n"
        "    x._denominator = 7 ** 500_000\n    return x\n"
        f"def f():\n    return {value}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", sample(rows("outputs", "values")))
def test_values_are_accepted_if_they_are_equal_in_python(service: Service, row):
    literal = row["expected"]
    for case in (f"assert f() == {literal}", f"assert {literal} == f()"):
        score = service.score(returning(row["value"]), asserts(case))
        assert score["verdicts"][0]["verdict"] == ("accepted" if row["equal"] else "wrong_answer")
        assert not (row["equal"] and score["suspicions"])


@pytest.mark.slow
@pytest.mark.parametrize("row", sample(rows("outputs", "scored")))
def test_rules_and_options_apply_over_http(service: Service, row):
    check_verdicts(service, row)
