"""Cached verdicts: which programs and requests share them, and which must not."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from rewardfleet.wire.code import CodeScore
from rewardfleet_server.cache.memory import MemoryCache
from rewardfleet_server.cache.redis import RedisCache
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.datasets.scripts import PRELUDE
from rewardfleet_server.code.judging.cache_key import lookup_keys, store_policy
from rewardfleet_server.code.normal_form import names_of_tests, normal_form
from rewardfleet_server.code.sandboxes import RunResult
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.http import app as http_app
from rewardfleet_server.testing import FakeSandbox, serving, wait_until

from ...conftest import JSON, table
from ..conftest import RedisServer, cached_value
from .conftest import SHORT_LIMITS, Service, asserts, functional, rows, served_code, stdio, verdicts

DOUBLE = "def double(number):\n    result = number * 2\n    return result\n"
RENAMED = '"""Doubles."""\ndef double(number):\n    r = number*2  # twice\n    return r\n'
OTHER = "def double(number):\n    result = number * 3\n    return result\n"
TESTS = functional("double", ([1], 2), ([2], 4), ([3], 5))


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    file = tmp_path_factory.mktemp("cache") / "code.sqlite"
    with served_code(cache_mb=16, cache=file) as service:
        yield service


def test_equivalent_programs_share_their_verdicts(cached: Service):
    """Each score has its own program."""
    first = cached.score(DOUBLE, TESTS)
    again = cached.score(RENAMED, TESTS)
    other = cached.score(OTHER, TESTS)
    assert not first["cached"] and again["cached"] and not other["cached"]
    assert first["score"] == again["score"] == pytest.approx(2 / 3)
    assert (first["code"], again["code"]) == (DOUBLE, RENAMED)
    assert other["score"] == 0.0


def test_a_long_program_takes_no_space_in_the_cache(tmp_path: Path):
    file = tmp_path / "code.sqlite"
    program = DOUBLE + f"# {'x' * 900_000}"
    with served_code(cache_mb=16, cache=file) as service:
        service.score(program, TESTS)
        again = service.score(program, TESTS)
    assert again["cached"] and again["code"] == program
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT max(length(value)) FROM entries").fetchone()[0] < 4000


@pytest.mark.parametrize("change", table("changes_of_keys"))
def test_other_tests_or_limits_have_another_key(cached: Service, change: dict):
    body = {"revision": DOUBLE, "tests": TESTS, "limits": {"cpu_s": 0.5}}
    cached.client.post("/score", json=body)
    assert not cached.client.post("/score", json={**body, **change}).json()["cached"]


def test_a_prompt_is_part_of_the_key_as_the_program_uses_it(cached: Service):
    """Equal bodies share their verdicts, and not with a program that hides a helper."""
    prompt = 'def twice(x):\n    return x * 2\n\ndef double(number):\n    """Double."""\n'
    tests = {**TESTS, "prompt": prompt}
    for program, is_cached, passed in table("programs_with_a_prompt"):
        found = cached.score(program, tests)
        assert (found["cached"], found["score"]) == (is_cached, pytest.approx(passed / 3)), program
    other = {**tests, "prompt": prompt.replace("* 2", "* 3")}
    assert cached.score("    return twice(number)", other)["score"] == 0.0


def test_verdicts_up_to_the_first_failure_are_not_used_for_a_pass_rate(cached: Service):
    """Verdicts on all tests serve both modes."""
    program = DOUBLE + "early = 1\n"
    tests = functional("double", ([1], 3), ([2], 4), ([3], 6))
    stopped = cached.score(program, tests, mode="all_pass")
    assert verdicts(stopped)[1:] == ["skipped", "skipped"]
    assert cached.score(program, tests, mode="all_pass")["cached"]
    complete = cached.score(program, tests)
    assert not complete["cached"] and complete["score"] == pytest.approx(2 / 3)
    more_tests = {**tests, "cases": [*tests["cases"], {"args": [5], "expected": 10}]}
    assert not cached.score(program + "#\n", more_tests)["cached"]
    from_complete = cached.score(program + "#\n", more_tests, mode="all_pass")
    assert from_complete["cached"] and from_complete["score"] == 0.0


def test_critique_fields_are_recomputed_for_cached_verdicts(cached: Service):
    program = DOUBLE + "critic = 1\n"
    plain = cached.score(program, TESTS)
    right, wrong = (
        cached.score(program, TESTS, critique=f"Overall judgment: {each}", original_passed=False)
        for each in ("Incorrect", "Correct")
    )
    invalid = cached.score(program, TESTS, critique="fine")
    assert plain["critique_valid"] is None and plain["judgment"] is None
    assert right["cached"] and wrong["cached"]
    assert (right["judgment"], wrong["judgment"]) == ("incorrect", "correct")
    assert right["details"]["judgment_correct"] == 1.0
    assert wrong["details"]["judgment_correct"] == 0.0
    assert invalid["score"] == 0.0 and invalid["critique_valid"] is False


def test_the_original_program_is_part_of_the_key(cached: Service):
    fields = {"critique": "Overall judgment: Correct"}
    tests = functional("double", ([1], 2))
    right, wrong, again = (
        cached.score(DOUBLE, tests, original_program=original, **fields)
        for original in (DOUBLE, OTHER, OTHER)
    )
    assert [each["details"]["judgment_correct"] for each in (right, wrong, again)] == [1, 0, 0]
    assert again["cached"]


@pytest.mark.parametrize("case", table("reflecting_tests"))
def test_tests_with_reflection_share_no_verdicts(cached: Service, case: str):
    tests = asserts(case)
    assert not cached.score(DOUBLE, tests)["cached"]
    assert not cached.score(DOUBLE.replace("result", "r"), tests)["cached"]


@pytest.mark.parametrize("program", table("observed_names"))
def test_programs_that_observe_their_names_share_no_verdicts(cached: Service, program: str):
    first, second = (program.replace("NAME", name) for name in ("alpha", "beta"))
    tests = stdio(("", "alpha"))
    assert cached.score(first, tests)["score"] == 1.0
    other = cached.score(second, tests)
    assert (other["score"], other["cached"]) == (0.0, False)


def policy_for(score: dict, mode: str = "pass_rate", **options: bool) -> tuple[str, float | None]:
    return store_policy("k", mode, CodeScore.model_validate(score), **options)


@pytest.mark.slow
def test_verdicts_that_depend_on_time_are_stored_briefly(cached: Service):
    timed = cached.score("while True: pass", stdio(("", "1")), limits=SHORT_LIMITS)
    assert timed["verdicts"][0]["verdict"] == "time_limit"
    assert policy_for(timed) == ("k:all", 600.0)
    wrong = cached.score("print(2)", stdio(("", "1")))
    assert policy_for(wrong) == ("k:all", None)
    assert lookup_keys("k", "pass_rate") == ("k:all",)
    assert lookup_keys("k", "all_pass") == ("k:first", "k:all")


DRAWS: list[tuple[str, str, str]] = table("drawn_by_chance")


@pytest.mark.slow
@pytest.mark.parametrize(("program", "case", "reason"), DRAWS)
def test_what_is_drawn_by_chance_is_not_cached(
    cached: Service, program: str, case: str, reason: str
):
    tests = asserts(case) if case else stdio(("", "True"))
    scores = [cached.score(program, tests) for _ in range(2)]
    assert [each["score"] for each in scores] == [1, 1]
    assert scores[1]["cached"] == (not reason)
    assert all(each["provenance"].get("not_cached", "").endswith(reason) for each in scores)


@pytest.mark.slow
def test_verdicts_of_a_submission_out_of_time_are_stored_briefly_in_both_modes():
    """Its skipped tests are not failures, as the program is right."""
    busy = "import time\nused = getattr(time, 'process_time')\nwhile used() < 0.4: pass\nprint(1)"
    with served_code(max_submission_s=0.7, cache_mb=16) as service:
        for mode, key in (("all_pass", "k:first"), ("pass_rate", "k:all")):
            score = service.score(busy, stdio(*[("", "1")] * 4), mode=mode)
            assert score["verdicts"][-1]["verdict"] == "skipped"
            assert policy_for(score, mode) == (key, 600.0)


@pytest.mark.slow
def test_a_judgment_on_an_original_program_out_of_time_is_stored_briefly(cached: Service):
    fields = {"critique": "Overall judgment: Incorrect", "original_program": "while True: pass"}
    limits = {"cpu_s": 1.5, "wall_s": 10}
    score = cached.score("print(3)", stdio(("", "3")), limits=limits, **fields)
    assert score["details"]["judgment_correct"] == 1.0
    assert policy_for(score, with_original=True) == ("k:all", 600.0)
    right = {**score, "judgment": "correct"}  # the original passed, whatever the machine's load
    assert policy_for(right, with_original=True) == ("k:all", None)


def test_the_verdict_on_a_jail_that_died_is_stored_briefly():
    with served_code(sandbox=FakeSandbox(RunResult(exit_code=-9, stopped="died"))) as service:
        assert policy_for(service.score("print(1)", stdio(("", "1")))) == ("k:all", 600.0)


def test_an_invalid_row_shares_no_key_with_a_valid_one(cached: Service):
    """NaN and infinities are not null."""
    row = '{"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [[%s]]}}'
    tests = '{"kind": "dataset", "dataset": "apps", "row": ' + row + "}"
    statuses = []
    for value in ("Infinity", "null", "Infinity", "NaN"):
        body = '{"revision": "def f(x): return None", "tests": ' + tests % value + "}"
        response = cached.client.post("/score", content=body, headers=JSON)
        statuses.append(response.status_code)
        assert not (response.status_code == 200 and response.json()["cached"])
    assert statuses == [422, 200, 422, 422]


@pytest.mark.slow
def test_other_packages_and_another_isolation_have_another_key(tmp_path):
    cache = {"cache": f"{tmp_path}/cache.sqlite", "cache_mb": 16, "workers": 1}
    for level, preload, is_cached in table("jails_and_keys"):
        with served_code(level, preload=preload, **cache) as service:
            score = service.score("print(1)", stdio(("", "1")))
        assert (score["cached"], score["isolation"]) == (is_cached, level)


def test_an_audit_compares_the_tests_up_to_the_first_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_app, "_AUDIT_RATE", 1)
    sandbox = FakeSandbox()
    with served_code(sandbox=sandbox, cache_mb=16) as service:
        tests = stdio(("1", "2"), ("3", "3"))
        service.score("print(input())", tests)
        service.score("print(input())", tests, mode="all_pass")
        audits = 'rewardfleet_cache_audits_total{{result="{}",service="code"}} {}'
        one = audits.format("agree", "1.0")
        wait_until(lambda: one in service.client.get("/metrics").text)
        metrics = service.client.get("/metrics").text
    assert audits.format("disagree", "0.0") in metrics


# Redis


@pytest.fixture
def redis_url(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """That of a server which is not given up while this machine is busy."""
    for limit in ("_SILENCE_SECONDS", "_WAIT_SECONDS"):
        monkeypatch.setattr(f"rewardfleet_server.cache.redis.{limit}", 20)
    return redis_server.url


@pytest.mark.slow
async def test_redis_deletes_expired_entries(redis_url: str):
    cache = RedisCache(redis_url, memory=MemoryCache(0))
    other = RedisCache(redis_url, memory=MemoryCache(1000))
    await cache.put("brief", b"value", 1)
    await cache.put("long", b"\x00value")
    async with asyncio.timeout(30):
        # It may expire before a busy machine reads it.
        while await cached_value(other, "brief") != b"value":
            await cache.put("brief", b"value", 1)
    assert await cached_value(other, "long") == b"\x00value"
    await cache.put("wrong", b"value")
    await cache.delete("wrong")
    assert await cached_value(cache, "wrong") is None and await cached_value(other, "wrong") is None
    async with asyncio.timeout(30):
        while await cached_value(other, "brief") is not None:
            await asyncio.sleep(0.02)
    await cache.aclose()
    await other.aclose()


def test_an_invalid_cache_url_prevents_the_start(tmp_path: Path):
    with pytest.raises(ValueError, match="--cache"):
        served_code(sandbox=FakeSandbox(), cache="http://127.0.0.1").__enter__()


def test_by_default_verdicts_are_stored_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = CodeSettings(workers=1)
    for cached in (False, True):
        with serving(create_app(settings, FakeSandbox())) as url:
            body = {"revision": "print(1)", "tests": stdio(("1", "1"))}
            score = httpx.post(f"{url}/score", json=body, timeout=60, trust_env=False).json()
        assert score["cached"] is cached
    assert (tmp_path / "cache" / "rewardfleet" / "code.sqlite").exists()
    assert CodeSettings(cache="").cache is None


#: Tests as they are published; and those that may observe more of a program than its names.
USUAL_TESTS, TESTS_THAT_OBSERVE = (
    [row["sources"] for row in rows("names_of_tests", table).values()]
    for table in ("usual", "observing")
)
TOGETHER = [tuple(row.values()) for row in rows("names_of_tests", "together").values()]


@pytest.mark.parametrize("sources", [*USUAL_TESTS, [PRELUDE]])
def test_usual_tests_observe_no_local_names(sources: list[str]):
    assert names_of_tests(sources[0], sources[1:]) is not None


@pytest.mark.parametrize("sources", TESTS_THAT_OBSERVE)
def test_tests_that_may_observe_more_make_the_key_the_text(sources: list[str]):
    assert names_of_tests(sources[0], sources[1:]) is None


@pytest.mark.parametrize(
    ("sources", "program"),
    [
        *TOGETHER,
        ([PRELUDE], "def f(x):\n    y = get_type_hints(f)\n    return y"),
        ([PRELUDE], "def f(x):\n    y = attrgetter('y')\n    return y"),
    ],
)
def test_a_program_and_its_tests_are_checked_together(sources: list[str], program: str):
    names = names_of_tests(sources[0], sources[1:])
    assert names is not None
    renamed = re.sub(r"\by\b", "z", program)
    keys = {normal_form(each, tests=names) for each in (program, renamed)}
    assert len(keys) == 2
