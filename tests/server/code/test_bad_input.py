"""Invalid input gets a clear problem, and the service keeps working. Over real HTTP."""

import json

import pytest

from ..video.test_bad_input import check_problem
from .conftest import Service, asserts, functional, served_code, stdio


@pytest.fixture(scope="module")
def one_service():
    with served_code(workers=1) as service:
        yield service


@pytest.fixture
def service(one_service: Service):
    yield one_service
    assert one_service.verdict("print(input())", stdio(("x", "x"))) == "accepted"


VALID_TESTS = stdio(("", "1"))


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"language": "c++"}, "'python' (got 'c++')"),
        ({"language": None}, "language"),
        ({"mode": "some"}, "mode"),
        ({"revision": 7}, "revision"),
        ({"critique": 7}, "critique"),
        ({"tests": None}, "tests"),
        ({"tests": {}}, "tests"),
        ({"tests": {"kind": "unit"}}, "stdio"),
        ({"tests": stdio()}, "tests.stdio.cases"),
        ({"tests": functional("f")}, "tests.functional.cases"),
        ({"tests": asserts()}, "tests.asserts.cases"),
        ({"tests": stdio(*[("", "1")] * 1001)}, "at most 1000 items"),
        ({"tests": {"kind": "stdio", "cases": [{"input": "x", "stdout": ""}]}}, "'tests.stdio"),
        ({"tests": stdio(("", "1"), checker="fuzzy")}, "checker"),
        ({"tests": stdio(("", "1"), tolerance=-1)}, "tolerance"),
        ({"tests": functional("f; import os", ([], 1))}, "fn_name"),
        ({"tests": functional("f", ("x", 1))}, "args"),
        ({"tests": asserts("f(1) == 2")}, "one assert"),
        ({"tests": asserts("assert f(1) ==")}, "not valid Python"),
        ({"tests": asserts("assert f('\0')")}, "NUL"),
        ({"tests": asserts("assert 1", setup="\0")}, "NUL"),
        ({"tests": asserts("assert 1", setup="def (")}, "tests.setup: not valid Python"),
        ({"tests": stdio(("", "1"), setup="def (")}, "tests.setup: not valid Python"),
        (
            {"tests": {**functional("f", ([], 1)), "setup": "def ("}},
            "tests.setup: not valid Python",
        ),
        ({"tests": functional("def", ([], 1))}, "'def' is a keyword"),
        ({"limits": {"cpu_s": 1000}}, "limits.cpu_s: this service allows at most 60 (got 1000)"),
        ({"limits": {"wall_s": 1000}}, "limits.wall_s"),
        ({"limits": {"memory_mb": 10**6}}, "limits.memory_mb"),
        ({"limits": {"output_kb": 10**6}}, "limits.output_kb"),
        ({"limits": {"memory_mb": 10**400}}, "limits.memory_mb: this service allows at most"),
        ({"limits": {"cpu_s": 0}}, "cpu_s"),
        ({"limits": {"cpu_s": -1}}, "cpu_s"),
        ({"limits": {"seconds": 1}}, "seconds"),
        ({"color": 1}, "accepted: revision, tests"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
def test_an_invalid_field_is_named(service: Service, fields: dict[str, object], detail: str):
    body = {"revision": "print(1)", "tests": VALID_TESTS, **fields}
    check_problem(service.client.post("/score", json=body), "invalid", detail)


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
    headers = {"content-type": "application/json"}
    check_problem(service.client.post("/score", content=content, headers=headers), "invalid")


def test_a_batch_with_too_many_items_is_rejected(service: Service):
    items = [{"revision": "print(1)", "tests": VALID_TESTS}] * 10_000
    response = service.client.post("/score/batch", json={"items": items})
    check_problem(response, "invalid")


def test_an_invalid_item_of_a_batch_fails_individually(service: Service):
    items = [
        {"revision": "print(1)", "tests": VALID_TESTS},
        {"revision": "print(1)", "tests": stdio()},
        {"revision": "print(2)", "tests": VALID_TESTS},
    ]
    results = service.client.post("/score/batch", json={"items": items}).json()["results"]
    assert [each["score"] for each in results] == [1.0, None, 0.0]
    assert results[1]["error"]["kind"] == "invalid"


def test_standard_input_and_output_may_contain_any_characters(service: Service):
    """NUL characters are rejected in Python source only."""
    text = "\0 \x7f ü 漢 🙂 \u2028"
    assert service.verdict("print(input())", stdio((text, text), checker="exact")) == "accepted"
