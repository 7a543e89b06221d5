"""Programs that observe their names or lines share no key with others, each way executed.

The programs are in `tests/data/normal_form`: a file per class in `differ`, with a line `####`
between entries. `NAME` is one of two names, and `LINE` may be two empty lines. Other pairs have
`---` between their programs. In `differ_by_tests.txt`, tests that look at names follow `>>>`.
"""

from collections.abc import Iterator

import pytest

from rewardfleet_server.code.normal_form import names_of_tests, normal_form

from ...conftest import DATA
from .fuzz_normal_form import Runner

FOLDER = DATA / "normal_form"
CLASSES = sorted(each.stem for each in (FOLDER / "differ").glob("*.txt"))

#: How many of a class are executed: every twentieth in `make test`, all in `make check-all`.
EACH_OF = [
    pytest.param(20, id="every twentieth", marks=pytest.mark.slow),
    pytest.param(1, id="all", marks=pytest.mark.full),
]


def pairs(kind: str) -> Iterator[tuple[str, str]]:
    """Yield two programs each."""
    for block in entries(f"differ/{kind}.txt"):
        first, separator, second = block.partition("\n---\n")
        if separator:
            first, second = first.replace("NAME", "alpha"), second.replace("NAME", "beta")
        else:
            first = block.replace("NAME", "alpha").replace("LINE", "")
            second = block.replace("NAME", "beta").replace("LINE", "\n\n")
        assert first != second, block
        yield first.strip("\n") + "\n", second.rstrip("\n") + "\n"


def pairs_with_tests() -> Iterator[tuple[str, str, str]]:
    """Yield two programs each, with their tests."""
    for block in entries("differ_by_tests.txt"):
        program, tests = block.split("\n>>>\n")
        first = program.replace("NAME", "alpha").replace("LINE", "pass")
        second = program.replace("NAME", "beta").replace("LINE", "pass\n\n\n")
        assert first != second, block
        yield first + "\n", second + "\n", tests + "\n"


def entries(name: str) -> list[str]:
    return (FOLDER / name).read_text().strip("\n").split("\n####\n")


@pytest.mark.parametrize("kind", CLASSES)
def test_programs_that_behave_differently_have_different_keys(kind: str):
    shared = [each for each in pairs(kind) if len({*map(normal_form, each)}) == 1]
    assert not shared, report(shared)


@pytest.mark.parametrize("step", EACH_OF)
@pytest.mark.parametrize("kind", CLASSES)
def test_these_programs_behave_differently(kind: str, step: int, runner: Runner):
    executed = list(pairs(kind))[::step]
    same = [pair for pair in executed if runner.behavior(pair[0]) == runner.behavior(pair[1])]
    assert not same, f"these prove nothing:\n{report(same)}"


def test_programs_that_tests_distinguish_have_different_keys():
    shared = []
    for first, second, tests in pairs_with_tests():
        names = names_of_tests("", [tests])
        if names is not None:
            keys = {normal_form(each, tests=names) for each in (first, second)}
            if len(keys) == 1:
                shared.append((first, second, tests))
    assert not shared, report(shared)


@pytest.mark.parametrize("step", EACH_OF)
def test_tests_distinguish_these_programs(step: int, runner: Runner):
    same = [
        (first, second, tests)
        for first, second, tests in list(pairs_with_tests())[::step]
        if runner.behavior(first + tests) == runner.behavior(second + tests)
    ]
    assert not same, f"these prove nothing:\n{report(same)}"


def report(found: list[tuple[str, ...]]) -> str:
    return "\n####\n".join("---\n".join(programs) for programs in found)
