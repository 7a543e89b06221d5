"""Verdicts from tests and the results of runs: tables, and forged results."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardfleet.wire.code import AssertTests, StdioTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.judging.values import Equality, Tolerance
from rewardfleet_server.code.judging.verdict import CallRun, failure
from rewardfleet_server.code.sandboxes import Check, ProgramRun, RunLimits, RunResult
from rewardfleet_server.code.sandboxes.jail.guest.answers import plain
from rewardfleet_server.code.tests.prepared import prepare

from ...conftest import table, text_of
from ...measure import CpuStopwatch
from .conftest import rows, sample

LIMITS = RunLimits(cpu_s=1, wall_s=3, memory_bytes=1 << 28, output_bytes=1000)


@pytest.mark.parametrize("row", sample(rows("outputs", "compared")))
def test_an_output_is_compared_by_the_checker_of_the_tests(row):
    rule = dict(row)
    printed, expected, passes = map(rule.pop, ("printed", "expected", "passes"))
    tests = StdioTests(kind="stdio", cases=[{"stdin": "", "stdout": expected}], **rule)
    judged = prepare(tests, "").runs()[0].judge(RunResult(stdout=printed.encode()), LIMITS)
    assert judged.verdicts[0].verdict == ("accepted" if passes else "wrong_answer")


@pytest.mark.parametrize(("fields", "outcome"), table("failed_runs"))
def test_why_a_run_failed(fields: dict, outcome: str | None):
    for name in {"stdout", "stderr", "report"} & fields.keys():
        fields = {**fields, name: text_of(fields[name]).encode()}
    assert failure(RunResult(**fields), LIMITS) == outcome


@pytest.mark.parametrize(
    "case", [*table("expressions_of_asserts"), "assert f(1)" + " + f(1)" * 2500 + " == 2"]
)
def test_an_expression_is_evaluated_as_it_was_written(case: str):
    (test_run,) = prepare(AssertTests(kind="asserts", cases=[case]), "").runs()
    (check,) = test_run.run.checks
    assert check.kind in {"eval", "value"}
    assert check.source.strip("()\n") == case[len("assert ") : -len(" == 2")].strip("()\n")
    compile(check.source, "test.py", "eval")


@pytest.mark.parametrize(("case", "kind"), table("compared_asserts"))
def test_which_asserts_are_compared_outside_the_sandbox(case: str, kind: str):
    (test_run,) = prepare(AssertTests(kind="asserts", cases=[case]), "").runs()
    assert [check.kind for check in test_run.run.checks] == [kind]
    sent = json.dumps([check.source for check in test_run.run.checks])
    assert kind == "assert" or "2" not in sent.replace("f(1)", "")


@pytest.mark.parametrize(
    ("case", "detail"),
    [*table("cases_without_asserts"), ("assert " + "(" * 5000, "not valid Python")],
)
def test_a_case_without_an_assert_is_an_error(case: str, detail: str):
    with pytest.raises(InvalidRequest, match=f"tests.cases.0: {detail}"):
        prepare(AssertTests(kind="asserts", cases=[case]), "").runs()
    with pytest.raises(InvalidRequest, match="tests.setup: not valid Python"):
        prepare(AssertTests(kind="asserts", cases=["assert f(1) == 2"], setup="def ("), "")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**80)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.tuples(st.integers(), st.text(max_size=2)), max_size=4)
        | st.frozensets(st.booleans() | st.text(max_size=2), max_size=4)
    ),
    max_leaves=12,
)


def sent(value: object) -> object:
    return json.loads(json.dumps(plain(value)))


@pytest.mark.slow
@given(values)
def test_a_value_equals_itself_after_it_was_sent_from_the_jail(value: object):
    assert Equality(as_json=False).equal(sent(value), value)


@given(values, values)
def test_values_are_equal_as_in_python(one: object, other: object):
    """Except for booleans, which never equal numbers."""
    if Equality(as_json=False).equal(sent(one), other):
        assert one == other
    elif one == other:
        assert any(isinstance(leaf, bool) for leaf in leaves([one, other]))


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for item in value.items() for leaf in leaves(list(item))]
    if isinstance(value, list | tuple | set | frozenset):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(json_values, values)
def test_any_forged_value_can_be_compared(written: object, expected: object):
    assert Equality(as_json=True).equal(written, expected) in {True, False}


lines = st.fixed_dictionaries(
    {},
    optional={
        "nonce": st.just("n") | json_values,
        "value": json_values
        | st.dictionaries(st.sampled_from(["other", "set", "int"]), json_values),
        "raised": json_values,
        "held": json_values,
        "failed": json_values,
    },
)


@pytest.mark.slow
@given(st.lists(lines | json_values, max_size=4), st.booleans(), st.integers(0, 1))
def test_any_forged_report_can_be_read(written: list[object], compared: bool, exit_code: int):
    run = ProgramRun(checks=(Check("eval", "f()", "n"),))
    test_run = CallRun(run, (([1, {2}],) if compared else None,), Equality())
    report = b"\n".join(json.dumps(line).encode() for line in written)
    judged = test_run.judge(RunResult(exit_code=exit_code, report=report), LIMITS)
    assert len(judged.verdicts) == 1
    held = any(isinstance(line, dict) and line.get("held") is True for line in written)
    assert judged.verdicts[0].verdict != "accepted" or (held and not compared)


#: It contains itself.
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "expected", "as_json", "passes"),
    [
        (2, 2.0, True, True),
        (True, 1, True, False),
        (1, True, True, False),
        ((1, 2), [1, 2], True, True),
        ((1, 2), [1, 2], False, False),
        ([1, 2], (1, 2), False, False),
        ({1: 2}, {"1": 2}, True, False),
        ({1}, frozenset({1}), False, True),
        ("1", 1, True, False),
        (None, 0, True, False),
        (float("nan"), 0.0, True, False),
        (10**30, 10**30, True, True),
        (10**30, 1e30, True, False),
        (object(), None, True, False),
        (range(3), [0, 1, 2], False, False),
        (ENDLESS, [[]], False, False),
    ],
)
def test_values_equal(value: object, expected: object, as_json: bool, passes: bool):
    assert Equality(as_json=as_json).equal(sent(value), expected) is passes


#: Numbers with the same hash. Building a set of them takes an hour.
SAME_HASH = range(2**61 - 1, 150_000 * (2**61 - 1), 2**61 - 1)


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: {"dict": [[{"set": [*SAME_HASH]}, 1]]}, {"a": 1}),
        (lambda: {"dict": [[{"tuple": [{"set": [*SAME_HASH]}]}, 1]]}, {"a": 1}),
        (lambda: {"dict": [[n, 1] for n in SAME_HASH]}, dict.fromkeys(range(1, 150_000), 1)),
        (lambda: {"set": [*SAME_HASH]}, set(range(1, 150_000))),
    ],
    ids=["a set as a key", "a set in a key", "keys", "a set"],
)
def test_values_with_the_same_hash_take_little_time(make: Callable[[], object], expected: object):
    given, watch = make(), CpuStopwatch()
    assert not Equality(as_json=True).equal(given, expected)
    assert watch.seconds < 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tuple", "set"])
def test_forged_values_that_are_deeply_nested(kind: str):
    test_run = CallRun(
        ProgramRun(checks=(Check("call", "f", "n"),)), (({"a": 1},),), Equality(as_json=True)
    )
    for depth in range(100, 600):
        value = f'{{"{kind}":[' * depth + "1" + "]}" * depth
        report = f'{{"nonce": "n", "value": {{"dict": [[{value}, 1]]}}}}'
        judged = test_run.judge(RunResult(report=report.encode()), LIMITS)
        assert judged.verdicts[0].verdict != "accepted"


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "accepted"),
        ({"cpu_ms": 1001}, "time_limit"),
        ({"stopped": "cpu"}, "time_limit"),
        ({"stderr": b"x" * 1001}, "output_limit"),
    ],
)
def test_the_answer_of_a_run_that_exceeded_a_limit_is_ignored(fields: dict, verdict: str):
    """The supervisor of a busy machine may notice late that a limit is exceeded."""
    report = b'{"nonce": "n", "value": 1}\n'
    one, other = Check("call", "f", "n"), Check("call", "f", "m")
    value, rule = (1,), Equality(as_json=True)
    judged = CallRun(ProgramRun(checks=(one,)), (value,), rule).judge(
        RunResult(report=report, **fields), LIMITS
    )
    assert [each.verdict for each in judged.verdicts] == [verdict]
    single_run = CallRun(ProgramRun(checks=(one, other)), (value, value), rule)
    judged = single_run.judge(RunResult(report=report, **fields), LIMITS)
    assert judged.verdicts[0].verdict == "accepted"  # answered before the limit was exceeded
    assert judged.verdicts[1].verdict == (verdict if fields else "exited_early")


def test_a_subclass_is_sent_as_its_built_in_base():
    class Liar(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            return True

    assert plain(Liar(5)) == 5 and type(plain(Liar(5))) is int
    assert Equality(as_json=False).equal(sent(Liar(5)), 5)
    assert not Equality(as_json=False).equal(sent(Liar(5)), 6)


@pytest.mark.parametrize(
    ("value", "expected", "passes"),
    [
        *table("numbers_within_tolerance"),
        ([0.1 + 0.2, 1], (0.3, 1), False),
        ({"x": (0.1 + 0.2,)}, {"x": (0.3,)}, True),
    ],
)
def test_a_tolerance_applies_to_floating_point_numbers_only(
    value: object, expected: object, passes: bool
):
    assert Equality(Tolerance(1e-6)).equal(sent(value), expected) is passes
