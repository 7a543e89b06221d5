"""How outputs are compared: each checker, the rules of the datasets, and what overrides them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.wire.code import DatasetTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.datasets.rows import read_row
from rewardfleet_server.code.judging.output_checkers import output_equals
from rewardfleet_server.code.judging.values import Tolerance

from ...measure import CpuStopwatch
from .conftest import Service, asserts, functional, served_code, stdio


def equals(
    printed: str, expected: str, checker: str, tolerance: Tolerance | None = None, **options: bool
) -> bool:
    options = {"ignore_case": False, **options}
    given = tolerance or Tolerance(1e-6)
    return output_equals(printed.encode(), expected.encode(), checker, given, **options)


#: Numbers that are not equal to the expected integer, but close to it, relatively or absolutely.
NOT_EQUAL = [
    ("1000000000.0", "1000000007"),
    ("1000000000", "1000000007"),
    ("1e18", "999999999999999999"),
    ("1000000000000000000", "1000000000000000001"),
    ("9007199254740993", "9007199254740992"),
    ("0.0000009", "0"),
    ("-0.0000001", "0"),
    ("1e-400", "0"),
    ("4.9999999", "5"),
    ("5.0000000000000000001", "5"),
    ("-5", "5"),
    ("5e1", "5"),
    ("nan", "0"),
    ("inf", "1"),
    ("0x5", "5"),
    ("5L", "5"),
    ("1_000", "1000"),
    ("\u0665", "5"),
    ("5,", "5"),
    ("", "0"),
]
EQUAL = [
    ("9.0", "9"),
    ("9.", "9"),
    ("+9", "9"),
    ("009", "9"),
    ("9e0", "9"),
    ("90e-1", "9"),
    ("1E3", "1000"),
    ("-0.0", "0"),
    ("0e99999", "0"),
    ("1" + "0" * 400 + "." + "0" * 20, "1" + "0" * 400),
    ("123456789012345678901234567890.000", "123456789012345678901234567890"),
]


@pytest.mark.parametrize("checker", ["float", "decimal_lines"])
@pytest.mark.parametrize("tolerance", [Tolerance(1e-6), Tolerance(1.0), Tolerance(1.0, 1.0)])
def test_an_expected_integer_needs_an_equal_number(checker: str, tolerance: Tolerance):
    for printed, expected in NOT_EQUAL:
        assert not equals(printed, expected, checker, tolerance), (printed, expected)
        assert not equals(f"x {printed}", f"x {expected}", checker, tolerance)
    for printed, expected in EQUAL:
        assert equals(printed, expected, checker, tolerance), (printed, expected)
        assert equals(f"1 {printed}", f"1 {expected}", checker, tolerance)


@pytest.mark.parametrize(
    ("tolerance", "printed", "expected", "passes"),
    [
        (Tolerance(1e-6), "0.333333", "0.33333333", True),
        (Tolerance(1e-6), "0.33333", "0.33333333", False),
        (Tolerance(1e-6), "1000000.5", "1000000.9", True),
        (Tolerance(1e-6), "1000001.0", "1000000.0", True),
        (Tolerance(1e-6, 0.0), "1000000.5", "1000000.9", False),
        (Tolerance(1e-5, 0.0), "2.000009", "2.0", True),
        (Tolerance(1e-8, 1e-5), "100000.5", "100000.0", True),
        (Tolerance(1e-8, 1e-5), "0.000001", "0.0", False),
        (Tolerance(1.0, 1.0), "1e308", "1e400", False),
        (Tolerance(1.0, 1.0), "1e400", "1.0", False),
        (Tolerance(1.0), "1e999999999999999999999", "1.0", False),
    ],
)
def test_tolerances(tolerance: Tolerance, printed: str, expected: str, passes: bool):
    assert equals(printed, expected, "float", tolerance) is passes


GRID = "#..\n .#\n\n##"


@pytest.mark.parametrize(
    ("checker", "printed", "expected", "passes"),
    [
        ("lines", GRID, GRID, True),
        ("lines", "#..  \n .#\t\n\n##\n\n \n", GRID, True),
        ("lines", "#..\r\n .#\r\n\r\n##\r\n", GRID, True),
        ("lines", "#..\n.#\n\n##", GRID, False),
        ("lines", "#..\n .#\n##", GRID, False),
        ("lines", "\n" + GRID, GRID, False),
        ("lines", GRID + "\n.", GRID, False),
        ("lines", GRID.replace("\n", " "), GRID, False),
        ("lines", "1 2", "1  2", False),
        ("lines", "", "\n\n", True),
        ("unordered_lines", "b c\na", "a\nb c", True),
        ("unordered_lines", " b  c \na\n", "a\nb c", True),
        ("unordered_lines", "c b\na", "a\nb c", False),
        ("unordered_lines", "a\na\nb", "a\nb\nb", False),
        ("unordered_lines", "a", "a\na", False),
        ("unordered_lines", "a\nb\nb c", "a\nb c", False),
        ("unordered", "3 1\n2", "1 2 3", True),
        ("unordered", "1 2 2", "1 1 2", False),
        ("unordered", "1 2 3 4", "1 2 3", False),
        ("unordered", "1 2", "1 2 3", False),
        ("unordered", "", "", True),
        ("decimal_lines", " 9.0 1 \n yes\n", "9 1.00\nyes", True),
        ("decimal_lines", "9 1\nYES", "9 1\nyes", False),
        ("decimal_lines", "9\n1", "9 1", False),
        ("decimal_lines", "9.0 yes", "9 yes", False),
        ("decimal_lines", "1 9.0", "9 1", False),
        ("decimal_lines", "0.1", "0.10000000000000001", False),
        ("decimal_lines", "\n\n7\n\n", "7", True),
        ("decimal_lines", "7\n\n8", "7\n8", False),
    ],
)
def test_lines_and_orders(checker: str, printed: str, expected: str, passes: bool):
    assert equals(printed, expected, checker) is passes


CHECKERS = StdioTests.model_fields["checker"].annotation.__args__


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_checker_can_ignore_case_and_accepts_the_answer_itself(checker: str):
    text = "Yes 1.5\nNO\n\n 7"
    assert equals(text, text, checker)
    assert not equals(text.lower(), text, checker)
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
@pytest.mark.parametrize("word", [b"9" * 1_000_000, b"1 " * 500_000, b"1\n" * 500_000])
def test_comparing_takes_time_linear_in_the_output(checker: str, word: bytes):
    watch = CpuStopwatch()
    for printed in (word, word[:-2] + b"8"):
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
RULES = {
    "code_contests": (
        [("yes", "YES"), ("Yes no", "YES\nNO"), ("9.0", "9"), ("0.500001", "0.5"), ("1\n2", "1 2")],
        [
            ("0.50002", "0.5"),
            ("1000000.5", "1000000.4"),
            ("1000000007", "1000000000"),
            ("y", "YES"),
        ],
    ),
    "livecodebench": (
        [("9.0", "9"), ("  9 1.50", "9.0 1.5"), ("YES\n", "YES")],
        [("yes", "YES"), ("0.500001", "0.5"), ("1\n2", "1 2"), ("1000000000.0", "1000000007")],
    ),
    "apps": (
        [("0.500001", "0.5"), ("100000.5", "100000.0"), ("9.0", "9"), ("1\n2", "1 2")],
        [("yes", "YES"), ("0.5001", "0.5"), ("1000000007", "1000000000"), ("2 1", "1 2")],
    ),
}


@pytest.fixture(scope="module")
def service():
    with served_code(workers=2) as service:
        yield service


@pytest.mark.slow
@pytest.mark.parametrize("dataset", RULES)
def test_a_row_is_compared_by_the_rule_of_its_dataset(service: Service, dataset: str):
    accepted, refused = RULES[dataset]
    for pairs, score in ((accepted, 1.0), (refused, 0.0)):
        for printed, expected in pairs:
            tests = {"kind": "dataset", "dataset": dataset, "row": stdio_row(dataset, expected)}
            found = service.score(f"print({printed!r})", tests)["score"]
            assert found == score, (printed, expected)


@pytest.mark.slow
def test_score_and_submit_agree(service: Service):
    types = {"code_contests": "CommonOJDataset", "livecodebench": "LiveCodeBenchDataset"}
    pairs = {pair for accepted, refused in RULES.values() for pair in accepted + refused}
    for dataset, dataset_type in types.items():
        for printed, expected in sorted(pairs):
            program = f"print({printed!r})"
            row = stdio_row(dataset, expected)
            score = service.score(program, {"kind": "dataset", "dataset": dataset, "row": row})
            test: object = {"input_output": {"inputs": [""], "outputs": [expected]}}
            if dataset == "code_contests":
                test = [{"input": {"stdin": ""}, "output": {"stdout": expected}}]
            config = {"dataset_type": dataset_type, "language": "python"}
            config["provided_data"] = {"test": test}
            body = {"dataset": "x", "id": 1, "completion": program, "config": config}
            result = service.client.post("/submit", json=body).json()
            assert result["accepted"] is (score["score"] == 1), (dataset, printed, expected)


def read(dataset: str, row: dict, **overrides: object):
    return read_row(DatasetTests(kind="dataset", dataset=dataset, row=row, **overrides))[0]


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


@pytest.mark.slow
def test_a_given_tolerance_always_has_an_effect(service: Service):
    row = stdio_row("livecodebench", "0.5")
    tests = {"kind": "dataset", "dataset": "livecodebench", "row": row}
    assert service.score("print(0.5001)", tests)["score"] == 0.0
    for name in ("tolerance", "relative_tolerance"):
        assert service.score("print(0.5001)", {**tests, name: 0.01})["score"] == 1.0


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
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{1: 2}.keys()", "{1}"),
        ("{1: 2, 'a': 3}.items()", "{(1, 2), ('a', 3)}"),
        ("{}.keys()", "set()"),
        ("Fraction(1, 2)", "0.5"),
        ("Fraction(6, 2)", "3"),
        ("[Fraction(10**40)]", "[10**40]"),
        ("Decimal('0.5')", "0.5"),
        ("Decimal('3.00')", "3"),
        ("{Decimal(1), Fraction(1, 4)}", "{1, 0.25}"),
        ("{Fraction(2): 'x'}", "{2: 'x'}"),
        ("frozenset({1})", "{1}"),
        ("memoryview(b'x')", "b'x'"),
        ("MappingProxyType({1: [2]})", "{1: [2]}"),
        ("UserDict({1: UserList([2])})", "{1: [2]}"),
        ("[UserString('x')]", "['x']"),
        ("ChainMap({1: 2}, {1: 3, 2: 4})", "{1: 2, 2: 4}"),
        ("bytearray(b'x')", "b'x'"),
        ("3.0", "3"),
        ("2 + 0j", "2"),
        ("{Fraction(1, 7**6000), 1}.__len__()", "2"),
    ],
)
def test_values_that_are_equal_in_python_are_accepted(service: Service, value: str, expected: str):
    literal = repr(eval(expected)) if "**" in expected else expected  # written in this test
    for case in (f"assert f() == {literal}", f"assert {literal} == f()"):
        score = service.score(returning(value), asserts(case))
        assert score["score"] == 1.0, score["verdicts"]
        assert not score["suspicions"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{1: 2}.keys()", "{2}"),
        ("{1: 2}.values()", "[2]"),
        ("Fraction(1, 3)", "0.3333333333333333"),
        ("Decimal('0.1')", "0.1"),
        ("Decimal('sNaN')", "1"),
        ("Decimal('1e999999999')", "1"),
        ("{Decimal('1e999999999')}", "{1}"),
        ("Fraction(1, 2)", "1"),
        ("{Fraction(1, 7**6000)}", "{1}"),
        ("{Fraction(7**6000, 3): 1}", "{1: 1}"),
        ("UserDict({1: 2})", "{1: 3}"),
        ("UserList([1])", "(1,)"),
        ("ChainMap({1: 2}, {1: 3})", "{1: 3}"),
        ("big()", "1"),
        ("True", "1"),
        ("1", "True"),
    ],
)
def test_values_that_are_not_equal_are_refused(service: Service, value: str, expected: str):
    tests = asserts(f"assert f() == {expected}")
    assert service.verdict(returning(value), tests) == "wrong_answer"


@pytest.mark.slow
def test_deeply_nested_values(service: Service):
    program = "def f(n):\n    x = 0\n    for _ in range(n):\n        x = [x]\n    return x\n"
    for depth in (99, 101, 150, 180):
        nested = "[" * depth + "0" + "]" * depth
        assert service.verdict(program, asserts(f"assert f({depth}) == {nested}")) == "accepted"
        assert service.verdict(program, asserts(f"assert f({depth + 1}) == {nested}")) != "accepted"


@pytest.mark.slow
def test_booleans_may_be_integers(service: Service):
    for value, expected in ((True, 1), (0, False), (1.0, True), ([1, 0], [True, False])):
        program = f"def f():\n    return {value!r}"
        for option in (False, True):
            tests = {**functional("f", ([], expected)), "bool_is_int": option}
            assert service.score(program, tests)["score"] == float(option)
            tests = asserts(f"assert f() == {expected!r}", bool_is_int=option)
            assert service.score(program, tests)["score"] == float(option)
    program = "def f():\n    return {True: 'a', 0: 'b'}"
    tests = asserts("assert f() == {1: 'a', False: 'b'}", bool_is_int=True)
    assert service.score(program, tests)["score"] == 1.0


@pytest.mark.slow
def test_mbppplus_has_the_tolerance_of_evalplus(service: Service):
    script = (
        "import numpy as np\n"
        "def is_floats(x):\n    return isinstance(x, float)\n"
        "def assertion(out, exp, atol):\n    exact_match = out == exp\n"
        "    if atol == 0 and is_floats(exp):\n        atol = 1e-6\n"
        "    if not exact_match and atol != 0:\n"
        "        assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n"
        "    else:\n        assert exact_match\n"
        "inputs = [[0.0], [1000000.0]]\nresults = [0.0, 1000000.0]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(f(*inp), exp, 0)\n"
    )
    tests = {"kind": "dataset", "dataset": "mbppplus", "row": {"test": script}}
    for error, score in (("1e-7", 1.0), ("9e-7", 1.0), ("2e-6", 0.5), ("0.09", 0.5), ("0.2", 0.0)):
        assert service.score(f"def f(x): return x + {error}", tests)["score"] == score, error


@pytest.mark.slow
def test_stdio_tests_have_every_new_checker_over_http():
    with served_code() as service:
        for checker, printed, expected in (
            ("lines", " x", " x"),
            ("unordered_lines", "b\\na", "a\nb"),
            ("unordered", "2 1", "1 2"),
            ("decimal_lines", "9.0", "9"),
        ):
            program = f"print('{printed}')"
            assert service.verdict(program, stdio(("", expected), checker=checker)) == "accepted"
