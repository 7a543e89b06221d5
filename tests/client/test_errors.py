"""The tables of errors."""

from rewardfleet import Unavailable
from rewardfleet.wire.errors import ERRORS, STATUS


def test_a_subclass_without_a_kind_is_not_in_the_tables():
    class Special(Unavailable):
        """An error of a program that uses the client."""

    assert Special not in ERRORS.values()
    assert STATUS[Special.kind] == Special.status == 503
