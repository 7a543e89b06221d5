"""Programs on a SandboxFusion server get the same verdicts as in a jail; outages are errors.

Over real HTTP on both sides: the code service sends requests to a server on loopback.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse

from rewardfleet.commands.main import main
from rewardfleet_server.code.sandboxes import fusion

from ...measure import Stopwatch
from ..video.test_bad_input import check_problem
from .conftest import VERDICTS, Service, asserts, check_verdicts, sample, served_code, stdio
from .fusion_server import TRUNCATED_BYTES, FusionServer, fusion_server
from .test_sandbox_fusion_api import ADD, oj, submit

pytestmark = pytest.mark.slow


ONE = stdio(("", "1"))


@contextmanager
def served_fusion() -> Iterator[tuple[Service, FusionServer]]:
    with fusion_server() as server, served_code(fusion_url=server.url, workers=4) as service:
        assert service.verdict("print(1)", ONE) == "accepted"  # after the probe
        server.requests.clear()
        yield service, server


@pytest.fixture(scope="module")
def module_pair():
    with served_fusion() as pair:
        yield pair


@pytest.fixture(scope="module")
def fusion_service(module_pair: tuple[Service, FusionServer]):
    return module_pair[0]


@pytest.fixture
def pair(module_pair: tuple[Service, FusionServer], monkeypatch: pytest.MonkeyPatch):
    """A service and its server, which can misbehave; with short waits between attempts."""
    monkeypatch.setattr(fusion, "_MAX_WAIT_S", 0.01)
    _, server = module_pair
    server.requests.clear()
    yield module_pair
    server.misbehave, server.misbehave_times = None, 10**9


# Verdicts


def test_tests_that_import_a_missing_module_are_invalid(fusion_service):
    tests = asserts("assert f() == 1", setup="import rf_absent")
    for program in ("def f(): return 1", "raise ImportError"):
        response = fusion_service.post(program, tests)
        assert response.status_code == 422, response.text
        assert "No module named 'rf_absent'" in response.json()["detail"]
    tests = asserts("assert f() == math.pi", setup="import math")
    assert fusion_service.verdict("raise ImportError", tests) == "runtime_error"


def test_a_checker_program_decides(fusion_service):
    source = (
        "import sys\ngiven, output, answer = (open(path, 'rb').read() for path in sys.argv[1:])\n"
        "sys.exit(output != given[::-1] or answer != b'any')"
    )
    tests = stdio(("ab", "any"), checker_program={"language": "python", "source": source})
    right = "import sys\nsys.stdout.write(input()[::-1])"
    assert fusion_service.verdict(right, tests) == "accepted"
    wrong = "import sys\nsys.stdout.buffer.write(b'\\xff')"
    assert fusion_service.verdict(wrong, tests) == "wrong_answer"
    tests["checker_program"] = {"language": "cpp", "source": "int main() {}"}
    response = fusion_service.post(right, tests)
    assert response.status_code == 422
    assert "--fusion-url" in response.json()["detail"]


@pytest.mark.parametrize("row", sample(VERDICTS))
def test_verdicts_are_those_of_a_jail(fusion_service: Service, row):
    check_verdicts(fusion_service, row)


def test_what_the_service_does_not_compare_is_not_accepted_if_strict(fusion_service: Service):
    tests = asserts("assert f() == 1", "assert f() in (1,)", strict=True)
    score = fusion_service.score("def f(): return 1", tests)
    assert [each["verdict"] for each in score["verdicts"]] == ["accepted", "wrong_answer"]


def test_scores_report_where_the_program_ran(fusion_service: Service):
    assert fusion_service.client.get("/readyz").json()["isolation"] == "fusion"
    score = fusion_service.score("print(1)", ONE)
    assert (score["backend"], score["isolation"]) == ("fusion", "fusion")
    assert score["provenance"]["sandbox"] == "fusion"
    assert score["provenance"]["python"].startswith("3.")
    assert score["verdicts"][0]["cpu_ms"] > 0 and score["verdicts"][0]["wall_ms"] > 0
    assert score["suspicions"] == []


def test_outputs_that_sandboxfusion_truncates_are_complete(fusion_service: Service):
    """SandboxFusion truncates 300 kB to 219,264 bytes with status Success, and hangs on 1 MB."""
    for size in (300_000, 1_000_000):
        assert size > TRUNCATED_BYTES
        assert fusion_service.verdict(f"print('x' * {size})", stdio(("", "x" * size))) == "accepted"


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_large_input_arrives(fusion_service: Service):
    tests = stdio(("x" * 10_000_000, "10000000"))
    assert fusion_service.verdict("print(len(input()))", tests) == "accepted"


def test_the_sandbox_fusion_api_works_with_it(fusion_service: Service):
    assert submit(fusion_service, ADD, oj(("1 2", "3")), "CommonOJ").accepted is True


def test_a_program_that_removes_its_output_files_fails(fusion_service: Service):
    """The server is probed, so that a program cannot cause a retry."""
    program = "import os\nfor each in os.listdir(): os.remove(each)"
    score = fusion_service.score(program, stdio(("", ""), ("", "1")))
    assert (score["score"], score["verdicts"][0]["verdict"]) == (0.0, "runtime_error")
    assert score["suspicions"] == ["test 1: its sandbox died"]


# Outages


def plain_response(status: int, body: bytes = b"oops") -> Any:
    return lambda: Response(body, status)


def json_response(content: object) -> Any:
    return lambda: JSONResponse(content)


async def hangs() -> Response:
    await asyncio.sleep(20)
    return Response()


MISBEHAVIORS = {
    **{f"{status}": plain_response(status) for status in (500, 502, 504, 429)},
    "SandboxError": json_response({"status": "SandboxError", "message": "exception"}),
    "malformed JSON": lambda: Response('{"status": ', media_type="application/json"),
    "another shape": json_response(["Success"]),
    "no result": json_response({"status": "Success", "message": "", "run_result": None}),
    "HTML": lambda: Response("<html>busy</html>", media_type="text/html"),
}


@pytest.mark.parametrize("misbehave", MISBEHAVIORS.values(), ids=MISBEHAVIORS)
def test_an_outage_is_an_error_not_a_verdict_and_is_retried(pair: tuple, misbehave: Any):
    service, server = pair
    server.misbehave = misbehave
    response = service.post("print(1)", ONE)
    check_problem(response, "unavailable", "failed 4 times")
    assert response.json()["retryable"] is True
    assert len(server.requests) == fusion._MAX_ATTEMPTS
    server.misbehave_times = 2
    assert service.verdict("print(1)", ONE) == "accepted"


def test_a_rejected_request_is_not_retried(pair: tuple):
    service, server = pair
    server.misbehave = plain_response(422, b"no such language")
    response = service.post("print(1)", ONE)
    check_problem(response, "backend_failed", "no such language")
    assert len(server.requests) == 1


def test_a_server_that_hangs_is_not_retried(monkeypatch: pytest.MonkeyPatch):
    """More requests would not help it. The deadline of the request applies as well."""
    monkeypatch.setattr(fusion, "_GRACE_S", 3)  # the request must reach the server before
    with served_fusion() as (service, server):
        server.misbehave = hangs
        watch = Stopwatch()
        limits = {"cpu_s": 0.3, "wall_s": 0.3}
        response = service.post("print(1)", ONE, limits=limits)
        check_problem(response, "unavailable", "did not answer within")
        body = {"revision": "print(1)", "tests": ONE}
        monkeypatch.setattr(fusion, "_GRACE_S", 20)
        headers = {"x-request-timeout": "3"}
        late = service.client.post("/score", json=body, headers=headers)
        check_problem(late, "deadline_exceeded")
        assert len(server.requests) == 2
        assert watch.seconds < 18  # it hangs for 20


def test_a_server_that_is_down_is_unavailable():
    with served_code(fusion_url="http://127.0.0.1:9") as service:
        response = service.post("print(1)", ONE)
        check_problem(response, "unavailable", "Connect")


def test_a_server_that_returns_no_files_is_unavailable():
    """Without files, no program can be judged."""
    with served_fusion() as (service, server):
        server.returns_files = False
        response = service.post("print(1)", ONE)
        check_problem(response, "unavailable", "known-good program: returns no files")


def test_an_outage_fails_one_batch(pair: tuple):
    service, server = pair
    server.misbehave, server.misbehave_times = plain_response(503), fusion._MAX_ATTEMPTS
    body = {"items": [{"revision": "print(1)", "tests": ONE}]}
    check_problem(service.client.post("/score/batch", json=body), "unavailable")
    assert service.client.post("/score/batch", json=body).json()["results"][0]["score"] == 1.0


def test_concurrent_runs_are_limited(pair: tuple):
    service, server = pair
    program = "import time\ntime.sleep(0.1)\nprint(1)\n"  # in sixteen variants
    items = [{"revision": f"{program}y = {n}\n", "tests": ONE} for n in range(16)]
    results = service.client.post("/score/batch", json={"items": items}).json()["results"]
    assert [each["score"] for each in results] == [1.0] * 16
    assert server.max_concurrent == 4
    assert max(each["timing_ms"]["queue"] for each in results) > 50


def test_the_service_does_not_start_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setitem(sys.modules, "sandbox_fusion", None)
    assert main(["serve", "code", "--fusion-url", "http://127.0.0.1:9"]) == 2
    assert "--fusion-url needs sandbox_fusion" in capsys.readouterr().err
