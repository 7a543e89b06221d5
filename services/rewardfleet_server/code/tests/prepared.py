"""What a task asks: its tests, read and parsed once for all samples of a problem."""

import hashlib
import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rewardfleet.text.program import defined_names
from rewardfleet.wire.code import (
    AssertTests,
    DatasetTests,
    FunctionalTests,
    PlainTests,
    StdioTests,
    Tests,
)
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.cache.single_flight import bytes_of
from rewardfleet_server.code.datasets.rows import DatasetRow, read_row
from rewardfleet_server.code.judging.verdict import ALIKE, TestRun, plan_runs
from rewardfleet_server.code.normal_form import names_of_tests
from rewardfleet_server.code.normal_form.introspection import Uses

from .asserts import ParsedAssert, parse, parsed_asserts
from .calls import CallForm, call_forms
from .chance import chance_in
from .completion import CodePrompt, complete, take_prompt
from .imports import imports_of_solution, trial_script

#: Source code of tests with more characters, of all cases together, is not analyzed.
_LARGEST_TESTS = 1_000_000
_MAX_CASE = 10_000  #: characters of a test in which the names that it calls are sought


@dataclass(frozen=True)
class PreparedTests:
    """The tests of a problem, parsed. No program, no limit and no secret is part of them."""

    digest: str  #: of the tests as they are in a request
    tests: PlainTests  #: with the prompt in their setup
    asserts: Sequence[ParsedAssert]  #: those cases that count, if they are asserts
    forms: Sequence[CallForm]  #: how functions are called; empty if as any function
    numbers: Sequence[int]  #: the numbers of the cases that count, from 1
    prompt: CodePrompt
    called: frozenset[str]  #: functions and classes that the tests use, as far as is known
    uses: Uses | None  #: of the tests' source code; None if it can see all of a program's text
    #: A program that makes the imports of the tests, and compiles them; "" if nothing can fail.
    script: str
    alone: Sequence[int]  #: the indexes of the asserts that may pass without a program
    trial: str  #: a digest of what is run without a program; "" if nothing is
    limits: Mapping[str, float]  #: see `DatasetRow`
    solution: str | None  #: see `DatasetRow`; with the prompt that it completes
    alike: str  #: how all expected outputs are alike; "" if they are not
    chance: str  #: what the tests use that may be different the next time; "" if nothing is
    check_reference: bool  #: whether the solution must pass
    solution_imports: str  #: a program that makes the imports of the solution
    bytes: int = 0  #: what all of this takes in memory

    def runs(self) -> Sequence[TestRun]:
        """Return the runs of one program, with secrets that no other run has."""
        return plan_runs(self.tests, self.asserts, self.forms)

    def without(self, indexes: Collection[int]) -> "PreparedTests":
        """Return these tests without some of their asserts."""
        kept = [index for index in range(len(self.asserts)) if index not in indexes]
        asserts, numbers = [self.asserts[index] for index in kept], [index + 1 for index in kept]
        return replace(self, asserts=asserts, numbers=numbers)


def prepare(tests: Tests, digest: str) -> PreparedTests:
    """Read and parse tests, maybe for a tenth of a second; raise InvalidRequest if that fails."""
    row = read_row(tests) if isinstance(tests, DatasetTests) else DatasetRow(tests, {}, None)
    read, forms = call_forms(row.tests, row.solution)
    prompt, plain = take_prompt(read)
    asserts = _parsed(plain)
    script = trial_script(plain)
    alone = [index for index, each in enumerate(asserts) if not each.fails_alone]
    solution = None if row.solution is None else complete(row.solution, prompt)
    prepared = PreparedTests(
        digest=digest,
        tests=plain,
        asserts=asserts,
        forms=forms,
        numbers=range(1, len(plain.cases) + 1),
        prompt=prompt,
        called=frozenset(_called(plain)),
        uses=None if isinstance(tests, DatasetTests) else _uses(plain),
        script=script,
        alone=alone,
        trial=_trial_digest(plain, script, alone) if script or alone else "",
        limits=row.limits,
        solution=solution,
        alike=_alike(plain, asserts),
        chance=_chance(plain, asserts),
        check_reference=isinstance(tests, DatasetTests) and tests.check_reference,
        solution_imports="" if solution is None else imports_of_solution(solution),
    )
    return replace(prepared, bytes=bytes_of(prepared))


def _parsed(tests: PlainTests) -> Sequence[ParsedAssert]:
    if isinstance(tests, AssertTests):
        return parsed_asserts(tests)
    if tests.setup:
        parse(tests.setup, "tests.setup")
    if isinstance(tests, FunctionalTests) and keyword.iskeyword(tests.fn_name):
        raise InvalidRequest(f"tests.fn_name: {tests.fn_name!r} is a keyword")
    return ()


def _chance(tests: PlainTests, asserts: Sequence[ParsedAssert]) -> str:
    """Return what of the tests may differ the next time; not `random`, which their text seeds."""
    if not isinstance(tests, AssertTests):
        return chance_in(tests.setup)
    is_seeded = not any(each.kind == "inside" or each.may_repeat for each in asserts)
    return chance_in(*["random.seed(0)"] * is_seeded, tests.setup, *tests.cases)


def _alike(tests: PlainTests, asserts: Sequence[ParsedAssert]) -> str:
    """Return how all expected outputs are alike; "" if they are not, or another program decides."""
    outputs: list[str]
    match tests:
        case StdioTests(checker_program=None):
            outputs = [case.stdout.strip() for case in tests.cases]
            if not any(outputs):
                return f"{ALIKE}empty"
        case FunctionalTests():
            outputs = [repr(case.expected) for case in tests.cases]
        case _:
            outputs = [repr(each.expected) for each in asserts if each.expected]
    is_all = len(outputs) == len(tests.cases) > 1
    return f"{ALIKE}the same" if is_all and len({*outputs}) == 1 else ""


def _called(tests: PlainTests) -> set[str]:
    match tests:
        case FunctionalTests(fn_name=name):
            return {name}
        case AssertTests(entry_point=name) if name:
            return {re.findall(r"\w+", name)[-1]}
        case AssertTests(cases=[case, *_]):  # all call the same, and it may be long
            case = case[:_MAX_CASE]
            return {*re.findall(r"[^\W\d]\w*", case)} - {*defined_names(case)}
    return set()


def _uses(tests: PlainTests) -> Uses | None:
    cases = tests.cases if isinstance(tests, AssertTests) else []
    if len(tests.setup) + sum(map(len, cases)) > _LARGEST_TESTS:
        return None
    return names_of_tests(tests.setup, cases)


def _trial_digest(tests: PlainTests, script: str, alone: Sequence[int]) -> str:
    """Return a digest of what is run without a program, which other tests may share."""
    parts: list[object] = [tests.setup, script]
    if isinstance(tests, StdioTests):
        parts.append(tests.cases[0].stdin)
    if isinstance(tests, AssertTests) and alone:
        rule = tests.tolerance, tests.relative_tolerance, tests.bool_is_int, tests.entry_point
        parts += [rule, len(tests.cases), alone, [tests.cases[index] for index in alone]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
