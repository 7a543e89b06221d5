"""Programs at a SandboxFusion server: judged as in a jail, and its outages are no verdicts.

Over real HTTP on both sides: the code service asks a server on loopback.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse

from rewardfleet_server.cli import main
from rewardfleet_server.code.sandboxes import fusion

from ..video.test_bad_input import check_problem
from .conftest import Service, asserts, functional, served_code, stdio
from .fusion_server import CUT, FusionServer, fusion_server
from .test_facade import ADD, oj, submit

pytestmark = pytest.mark.slow


@contextmanager
def served_fusion(**settings: object) -> Iterator[tuple[Service, FusionServer]]:
    with (
        fusion_server() as server,
        served_code(sandbox_name="fusion", fusion_url=server.url, **settings) as service,
    ):
        yield service, server


@pytest.fixture(scope="module")
def sound():
    with served_fusion() as (service, _):
        yield service


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch):
    """A server that will misbehave, and short waits between tries."""
    monkeypatch.setattr(fusion, "_MAX_WAIT", 0.01)
    with served_fusion(fusion_concurrency=4) as (service, server):
        assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"  # it is probed
        server.seen.clear()
        yield service, server


# Verdicts


@pytest.mark.parametrize(
    ("program", "tests", "verdict"),
    [
        ("print(input())", stdio(("1", "1")), "accepted"),
        ("print(input())", stdio(("ä\0🙂", "ä\0🙂"), checker="exact"), "accepted"),
        ("import os\nprint(os.read(0, 9))", stdio(("1\n2", "b'1\\n2'")), "accepted"),
        ("import sys\nprint(sys.stdin.read() == '')", stdio(("", "True")), "accepted"),
        ("print(__name__)", stdio(("", "__main__")), "accepted"),
        ("print(input())", stdio(("1", "2")), "wrong_answer"),
        ("1 / 0", stdio(("", "")), "runtime_error"),
        ("def f(:", stdio(("", "")), "compile_error"),
        ("while True: pass", stdio(("", "")), "time_limit"),
        ("import time\ntime.sleep(9)", stdio(("", "")), "time_limit"),
        ("x = bytearray(1 << 30)", stdio(("", "")), "memory_limit"),
        ("while True: print('x' * 9999)", stdio(("", "")), "output_limit"),
        ("def f(x): return [x, (x,)]", functional("f", ([1], [1, [1]])), "accepted"),
        ("def f(x): return 2", functional("f", ([1], 1)), "wrong_answer"),
        ("import os\nos._exit(0)", functional("f", ([1], 1)), "exited_early"),
        ("class E(int):\n  __eq__ = lambda *_: True", asserts("assert E() == 1"), "wrong_answer"),
        ("def f(): return 3", asserts("assert f() == 3"), "accepted"),
        ("def f(): return 3", asserts("assert f() > 3"), "wrong_answer"),
        ("def f(): return g", asserts("assert f() == 3", setup="g = 3"), "accepted"),
        ("x = 1", asserts("assert __import__('os')._exit(0)"), "exited_early"),
    ],
    ids=lambda value: value[:30].replace("\n", " ") if isinstance(value, str) else "",
)
def test_verdicts_as_in_a_jail(sound: Service, program: str, tests: dict, verdict: str):
    assert sound.verdict(program, tests) == verdict


def test_answers_say_where_the_program_ran(sound: Service):
    assert sound.client.get("/readyz").json()["isolation"] == "fusion"
    score = sound.score("print(1)", stdio(("", "1")))
    assert (score["backend"], score["isolation"]) == ("fusion", "fusion")
    assert score["provenance"]["sandbox"] == "fusion"
    assert score["provenance"]["python"].startswith("3.")
    assert score["verdicts"][0]["cpu_ms"] > 0 and score["verdicts"][0]["wall_ms"] > 0
    assert score["suspicions"] == []


def test_outputs_that_sandboxfusion_cuts_off_come_whole(sound: Service):
    """300 kB, of which it keeps 219,264 bytes and says Success; 1 MB, on which it hangs."""
    for size in (300_000, 1_000_000):
        assert size > CUT
        assert sound.verdict(f"print('x' * {size})", stdio(("", "x" * size))) == "accepted"


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_large_input(sound: Service):
    tests = stdio(("x" * 10_000_000, "10000000"))
    assert sound.verdict("print(len(input()))", tests) == "accepted"


def test_our_own_facade_in_front_of_it(sound: Service):
    assert submit(sound, ADD, oj(("1 2", "3")), "CommonOJ").accepted is True


def test_a_program_that_removes_its_outputs_has_failed(sound: Service):
    """The server is asked whether it is well; so that nobody can buy another try."""
    program = "import os\nfor each in os.listdir(): os.remove(each)"
    score = sound.score(program, stdio(("", ""), ("", "")))
    assert (score["score"], score["verdicts"][0]["verdict"]) == (0.0, "runtime_error")
    assert score["suspicions"] == ["test 1: broke its jail"]


# Outages


def nothing_but(status: int, body: bytes = b"oops") -> Any:
    return lambda: Response(body, status)


def sandbox_error() -> Response:
    return JSONResponse({"status": "SandboxError", "message": "exception on running code"})


def without_a_result() -> Response:
    return JSONResponse({"status": "Success", "message": "", "run_result": None})


def hangs() -> Any:
    async def hang() -> Response:
        await asyncio.sleep(20)
        return Response()

    return hang()


def html() -> Response:
    return Response("<html>busy</html>", media_type="text/html")


MISBEHAVIOURS = {
    "500": nothing_but(500),
    "502": nothing_but(502),
    "504": nothing_but(504),
    "429": nothing_but(429),
    "SandboxError": sandbox_error,
    "malformed JSON": lambda: Response('{"status": ', media_type="application/json"),
    "another shape": lambda: JSONResponse(["Success"]),
    "no result": without_a_result,
    "HTML": html,
}


@pytest.mark.parametrize("misbehave", MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_an_outage_is_an_error_and_no_verdict(pair: tuple, misbehave: Any):
    service, server = pair
    server.misbehave = misbehave
    answer = service.post("print(1)", stdio(("", "1")))
    check_problem(answer, "unavailable", "failed 4 times")
    assert answer.json()["retryable"] is True
    assert len(server.seen) == fusion._TRIES


@pytest.mark.parametrize("misbehave", MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_what_passes_is_tried_again(pair: tuple, misbehave: Any):
    service, server = pair
    server.misbehave, server.times = misbehave, 2
    assert service.verdict("print(1)", stdio(("", "1"))) == "accepted"


def test_a_refusal_is_not_tried_again(pair: tuple):
    service, server = pair
    server.misbehave = nothing_but(422, b"no such language")
    answer = service.post("print(1)", stdio(("", "1")))
    check_problem(answer, "backend_failed", "no such language")
    assert len(server.seen) == 1


def test_a_server_that_hangs(pair: tuple, monkeypatch: pytest.MonkeyPatch):
    """It is not asked again, as more questions would not help it; and the deadline holds."""
    monkeypatch.setattr(fusion, "_LATE_SECONDS", 0.2)
    service, server = pair
    server.misbehave = hangs
    started = time.monotonic()
    limits = {"cpu_s": 0.3, "wall_s": 0.3}
    check_problem(
        service.post("print(1)", stdio(("", "1")), limits=limits), "unavailable", "no answer"
    )
    body = {"revision": "print(1)", "tests": stdio(("", "1"))}
    headers = {"x-request-timeout": "0.3"}
    check_problem(service.client.post("/score", json=body, headers=headers), "deadline_exceeded")
    assert len(server.seen) == 2
    assert time.monotonic() - started < 5


def test_a_server_that_is_not_there():
    with served_code(sandbox_name="fusion", fusion_url="http://127.0.0.1:9") as service:
        answer = service.post("print(1)", stdio(("", "1")))
        check_problem(answer, "unavailable", "Connect")


def test_a_server_that_returns_no_files():
    """Then nothing can be said of any program."""
    with served_fusion() as (service, server):
        server.keeps_files = False
        answer = service.post("print(1)", stdio(("", "1")))
        check_problem(answer, "unavailable", "known-good program: returns no files")


def test_an_outage_fails_one_item_of_a_batch(pair: tuple):
    service, server = pair
    server.misbehave, server.times = nothing_but(503), fusion._TRIES
    server_first = {"revision": "print(1)", "tests": stdio(("", "1"))}
    first = service.client.post("/score/batch", json={"items": [server_first]}).json()
    second = service.client.post("/score/batch", json={"items": [server_first]}).json()
    assert [first["results"][0]["score"], second["results"][0]["score"]] == [None, 1.0]
    assert first["results"][0]["error"]["kind"] == "unavailable"


def test_not_more_runs_at_once_than_it_may_have(pair: tuple):
    service, server = pair
    program = "import time\ntime.sleep(0.1)\nprint(1)\n"  # and sixteen that differ
    items = [{"revision": f"{program}y = {n}\n", "tests": stdio(("", "1"))} for n in range(16)]
    results = service.client.post("/score/batch", json={"items": items}).json()["results"]
    assert [each["score"] for each in results] == [1.0] * 16
    assert server.most_at_once == 4
    assert max(each["timing_ms"]["queue"] for each in results) > 50


def test_without_its_url_it_does_not_start(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "code", "--sandbox", "fusion"]) == 2
    assert "--fusion-url" in capsys.readouterr().err


def test_without_its_package_it_does_not_start(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setitem(sys.modules, "sandbox_fusion", None)
    flags = ["--sandbox", "fusion", "--fusion-url", "http://127.0.0.1:9"]
    assert main(["serve", "code", *flags]) == 2
    assert "rewardfleet[fusion]" in capsys.readouterr().err
