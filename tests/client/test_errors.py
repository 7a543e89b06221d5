"""The errors of the client: their tables, and the mapping of httpx's errors."""

import httpx
import pytest

from rewardfleet import DeadlineExceeded, RewardFleetError, Unavailable
from rewardfleet.http.responses import map_http_errors
from rewardfleet.wire.errors import ERRORS, STATUS


def test_a_subclass_without_a_kind_is_not_in_the_tables():
    class Special(Unavailable):
        """An error of a program that uses the client."""

    assert Special not in ERRORS.values()
    assert STATUS[Special.kind] == Special.status == 503


def subclasses(base: type[Exception]) -> set[type[Exception]]:
    return {base}.union(*(subclasses(each) for each in base.__subclasses__()))


def expected(error: type[Exception]) -> type[RewardFleetError]:
    is_timeout = issubclass(error, httpx.TimeoutException | TimeoutError)
    return DeadlineExceeded if is_timeout and error is not httpx.ConnectTimeout else Unavailable


@pytest.mark.parametrize(
    "error", sorted({*subclasses(httpx.RequestError), TimeoutError}, key=lambda each: each.__name__)
)
def test_every_request_error_of_httpx_becomes_a_typed_error(error: type[Exception]):
    matches = pytest.raises(expected(error), match=r"http://a\b")
    with matches as failure, map_http_errors("http://a", 5):
        raise error("message with {braces}")
    assert type(failure.value) is expected(error)
    assert isinstance(failure.value.__cause__, error)


def test_other_errors_are_not_mapped():
    with pytest.raises(ZeroDivisionError), map_http_errors("http://a", 5):
        1 / 0  # noqa: B018 - raises
