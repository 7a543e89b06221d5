"""Invalid input gets a clear problem, and the service keeps working. Over real HTTP."""

import pytest

from ...conftest import JSON
from ..video.test_bad_input import check_problem
from .conftest import Service, rows, sample, stdio


@pytest.fixture
def service(service: Service):
    yield service
    assert service.verdict("print(input())", stdio(("x", "x"))) == "accepted"


VALID_TESTS = stdio(("", "1"))


INVALID = rows("bad_input") | {
    "1001 tests": {
        "fields": {"tests": stdio(*[("", "1")] * 1001)},
        "detail": "at most 1000 items",
    }
}


@pytest.mark.parametrize("row", sample(INVALID))
def test_an_invalid_field_is_named(service: Service, row):
    body = {"revision": "print(1)", "tests": VALID_TESTS, **row["fields"]}
    check_problem(service.client.post("/score", json=body), "invalid", row["detail"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b'{"revision": "1", "tests": {"kind": "stdio", "cases": [{"stdout": "\\udfff"}]}}',
        (
            b'{"revision": "1", "tests": {"kind": "functional", "fn_name": "f", "cases": '
            b'[{"args": [NaN], "expected": 1}]}}'
        ),
        b'{"revision": "1", "tests": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["surrogate", "nan", "deep"],
)
def test_json_with_invalid_values_is_rejected(service: Service, content: bytes):
    check_problem(service.client.post("/score", content=content, headers=JSON), "invalid")


def test_standard_input_and_output_may_contain_any_characters(service: Service):
    """NUL characters are rejected in Python source only."""
    text = "\0 \x7f ü 漢 🙂 \u2028"
    assert service.verdict("print(input())", stdio((text, text), checker="exact")) == "accepted"
