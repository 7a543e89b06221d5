"""Programs that may behave differently never share a key; programs equal up to names often do."""

import ast
import builtins
import json
import random
import re
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardfleet_server.code.normal_form import LARGEST, allowed, normal_form

from ...conftest import table, text_of
from ...measure import CpuStopwatch
from .fuzz_normal_form import CHANGES, Runner, hits, programs, search

DATA = Path(__file__).parents[2] / "data" / "normal_form"


def kind(source: str) -> str:
    return normal_form(source).split()[0]


# Cases written by hand

CASES = json.loads((DATA / "cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_cases_share_a_key_as_expected(case: dict[str, Any]):
    """Programs that are `missed` are equal and have two: only renamed locals are found."""
    a = normal_form(case["a"])
    if case["expect"] != "no_crash":
        assert (a == normal_form(case["b"])) is (case["expect"] == "equal")


def read_pairs() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield pairs: a name, what is expected, the expression that a test evaluates, the programs."""
    text = (DATA / "pairs.txt").read_text()
    for block in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, body = block.split("\n", 1)
        name, expect, *expression = head.split(" | ", 2)
        sources = [f"{source}\n" for source in body.strip("\n").split("\n---\n")]
        yield name.replace(" ", "-"), expect, "".join(expression), sources


PAIRS = {name: rest for name, *rest in read_pairs()}


@pytest.mark.parametrize(("expect", "expression", "sources"), PAIRS.values(), ids=PAIRS)
def test_pairs_share_a_key_if_they_behave_alike(
    runner: Runner, expect: str, expression: str, sources: list[str]
):
    """Running the programs confirms that they behave alike, or differently.

    A pair that is `missed` behaves alike and has two keys.
    """
    keys = {*map(normal_form, sources)}
    assert len(keys) == (1 if expect == "equal" else 2)
    shown = f"\nprint(repr({expression}))\n" if expression else ""
    behaviors = {runner.behavior(source + shown) for source in sources}
    assert len(behaviors) == (2 if expect == "different" else 1)


# Unusual input

UNUSUAL = {
    **{name: text_of(pieces) for name, pieces in table("unusual_programs")},
    "many names": "".join(f"def f{n}(): f{n}()\n" for n in range(5_000)),
    "many functions passed on": "".join(f"def f{n}(g): f{n + 1}(g)\n" for n in range(4_000)),
    "many classes' names": "class A:\n" + "".join(f" a{n} = b{n}\n" for n in range(6_000)),
}


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_input_has_a_key_in_limited_time(name: str):
    watch = CpuStopwatch()
    key = normal_form(UNUSUAL[name])
    assert watch.seconds < 5  # about a second, on a busy machine
    key.encode()  # keys are hashed, so they must not contain lone surrogates


def test_a_key_does_not_depend_on_warnings_that_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kind(r"x = '\d'") == "form"


@pytest.mark.slow
def test_the_key_of_a_very_large_program_is_its_text():
    source = "x = 1\n" * (LARGEST // 6)
    assert (kind(source), kind(source + "y = 2\n")) == ("form", "text")


@pytest.mark.parametrize(("source", "expected"), table("kinds_of_keys"))
def test_reflection_determines_the_kind_of_key(source: str, expected: str):
    assert kind(source) == expected


def test_the_lists_of_what_is_allowed_are_valid():
    for words in (allowed.BUILTINS, allowed.BASES, *allowed.MODULES.values()):
        assert all(word.partition("(")[0].isidentifier() for word in words)
    for error in allowed.NAMELESS_ERRORS:
        assert issubclass(getattr(builtins, error), BaseException)
    assert allowed.ALL_BUILTINS | {"__name__"} >= allowed.BUILTINS
    assert allowed.MODULES.keys() | {"builtins"} >= allowed.STAR_MODULES


@pytest.mark.parametrize("path", sorted(allowed.MODULES))
def test_the_modules_have_the_attributes_that_are_allowed(path: str):
    """Or a word is misspelled. Some are in newer versions of Python only."""
    module = pytest.importorskip(path)
    missing = {
        name for name in allowed.MODULES[path] if not hasattr(module, name.partition("(")[0])
    }
    assert not missing - {"UTC"}


@pytest.mark.serial
@pytest.mark.slow
def test_a_key_costs_less_than_twice_a_parse_and_unparse():
    """As a ratio of medians, measured in turns."""
    chance = random.Random(4)
    key_seconds, parse_seconds = [], []
    for source in chance.sample(programs(), 40):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(3):
            started = time.thread_time()
            normal_form(source)
            between = time.thread_time()
            ast.unparse(ast.parse(source))
            times[0].append(between - started)
            times[1].append(time.thread_time() - between)
        key_seconds.append(min(times[0]))
        parse_seconds.append(min(times[1]))
    assert statistics.median(key_seconds) < 2 * statistics.median(parse_seconds)


# A short search for programs that share a key wrongly; `make fuzz-normal-form` is longer.


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [0, 25])
def test_a_search_finds_no_pair_with_one_key_that_behaves_differently(seconds: float):
    """Each of over 300 real programs is changed once at least. Pairs with one key are executed."""
    found = search(seconds=seconds, seed=22, everything=False)
    assert found.pairs.total() >= 300
    assert found.shared.total() >= 60, "the search executes too little"
    assert set(found.pairs) == {*CHANGES, "look"}
    assert not found.wrong, found.wrong[0]


@pytest.mark.slow
def test_pure_renames_of_real_programs_share_a_key():
    """At least 95%. Names that text can show do not: of classes, of functions that are values."""
    assert len(programs()) >= 300
    counts = hits()
    assert counts["rename all: shared"] >= 0.95 * counts["rename all"]
    assert counts["rename one: shared"] >= 0.95 * counts["rename one"]
