"""A short search for programs that share a key wrongly; `make fuzz-normal-form` is longer."""

import pytest

from .fuzz_normal_form import CHANGES, hits, programs, search


def check_search(seconds: float) -> None:
    found = search(seconds=seconds, seed=22, everything=False)
    assert found.pairs.total() >= 300
    assert found.shared.total() >= 60, "the search executes too little"
    assert set(found.pairs) == {*CHANGES, "look"}
    assert not found.wrong, found.wrong[0]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_change_of_each_program_finds_no_pair_with_one_key_that_behaves_differently():
    """Each of over 300 real programs is changed once. Pairs with one key are executed."""
    check_search(seconds=0)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_search_finds_no_pair_with_one_key_that_behaves_differently():
    check_search(seconds=25)


@pytest.mark.slow
def test_pure_renames_of_real_programs_share_a_key():
    """At least 95%. Names that text can show do not: of classes, of functions that are values."""
    assert len(programs()) >= 300
    counts = hits()
    assert counts["rename all: shared"] >= 0.95 * counts["rename all"]
    assert counts["rename one: shared"] >= 0.95 * counts["rename one"]
