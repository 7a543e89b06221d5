"""SandboxFusion's wire format, as its published client and verl use it, over real HTTP."""

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sandbox_fusion as sf

from rewardfleet.wire.errors import Unavailable
from rewardfleet_server import admission
from rewardfleet_server.testing import FakeSandbox, wait_until

from ...conftest import table
from ...measure import Stopwatch
from ..http.test_requests import metric
from ..test_engine import item_metrics
from ..video.test_bad_input import check_problem
from .conftest import HeldSandbox, Service, served_code
from .test_datasets import encoded

pytestmark = pytest.mark.slow

ADD = "print(sum(map(int, input().split())))"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "*")


def run(service: Service, code: str, **fields: object) -> sf.RunCodeResponse:
    request = sf.RunCodeRequest(code=code, language="python", **fields)
    return sf.run_code(request, endpoint=str(service.client.base_url), max_attempts=1)


def submit(
    service: Service, completion: str, test: object, dataset_type: str, **config: Any
) -> sf.EvalResult:
    fields = {"language": "python", "run_timeout": 5, **config}
    test_config = sf.TestConfig(dataset_type=dataset_type, provided_data={"test": test}, **fields)
    request = sf.SubmitRequest(dataset="any", id=7, completion=completion, config=test_config)
    return sf.submit(request, endpoint=str(service.client.base_url), max_attempts=1)


def oj(*cases: tuple[str, str]) -> list[dict]:
    return [{"input": {"stdin": stdin}, "output": {"stdout": stdout}} for stdin, stdout in cases]


def lcb(inputs: list, outputs: list, fn_name: str | None = None) -> dict[str, str]:
    fields = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
    return {"input_output": json.dumps(fields)}


def passed(result: sf.EvalResult) -> list[bool]:
    return [each.passed for each in result.tests]


def test_a_submission_is_counted_once_and_cached_like_an_item_of_any_route():
    """Also one that cannot be read."""
    with served_code(sandbox=FakeSandbox(), cache_mb=1) as service:
        config = {"dataset_type": "CommonOJDataset", "language": "python"}
        for test in ([], "no JSON", [{"input": 1}], *[oj(("1", "1"))] * 2):
            fields = {**config, "provided_data": {"test": test}}
            body = {"dataset": "any", "id": 7, "completion": "pass", "config": fields}
            answered = service.client.post("/submit", json=body).json()
            assert answered.get("accepted", answered.get("kind")) in (True, "invalid")
        metrics = item_metrics(service.client)
    for status, count in (("error", 3), ("ok", 2)):
        assert sum(n for name, n in metrics.items() if f'status="{status}"' in name) == count
    assert metrics['rewardfleet_cache_lookups_total{result="hit",service="code"}'] == 1


# POST /run_code


def test_a_program_that_succeeds(service: Service):
    response = run(service, "import sys\nprint(input())\nprint('e', file=sys.stderr)", stdin="hä\n")
    assert (response.status, response.message, response.compile_result) == ("Success", "", None)
    result = response.run_result
    assert (result.status, result.return_code) == ("Finished", 0)
    assert (result.stdout, result.stderr) == ("hä\n", "e\n")
    assert 0 < result.execution_time < 5 and result.cpu_time > 0


@pytest.mark.parametrize(("code", "return_code", "stderr"), table("failing_programs"))
def test_a_program_that_fails(service: Service, code: str, return_code: int, stderr: str):
    response = run(service, code)
    assert (response.status, response.run_result.status) == ("Failed", "Finished")
    assert response.run_result.return_code == return_code
    assert stderr in response.run_result.stderr


@pytest.mark.parametrize("code", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_that_takes_too_long(service: Service, code: str):
    watch = Stopwatch()
    response = run(service, f"print('so far', flush=True)\n{code}", run_timeout=0.5)
    assert (response.status, response.run_result.status) == ("Failed", "TimeLimitExceeded")
    assert (response.run_result.return_code, response.run_result.stdout) == (None, "so far\n")
    assert watch.seconds < 40


def test_large_outputs_are_complete(service: Service):
    """SandboxFusion silently truncates 300 kB, and times out on a megabyte."""
    response = run(service, "print('x' * 1_000_000)\nprint('end')")
    assert response.status == "Success"
    assert response.run_result.stdout == "x" * 1_000_000 + "\nend\n"


def test_an_endless_output_fails(service: Service):
    response = run(service, "while True: print('x' * 100_000)")
    assert (response.status, response.run_result.return_code) == ("Failed", -25)


def test_a_memory_limit_can_be_requested(service: Service):
    """verl sends it, in a field that the published client does not have yet."""
    body = {"code": "x = bytearray(300 << 20)", "language": "python"}
    for memory_mb, status in ((-1, "Success"), (512, "Success"), (128, "Failed")):
        response = service.client.post("/run_code", json={**body, "memory_limit_MB": memory_mb})
        assert response.json()["status"] == status


async def test_concurrent_requests_of_the_async_client(service: Service):
    url = str(service.client.base_url)
    requests = [sf.RunCodeRequest(code=f"print({n})", language="python") for n in range(40)]
    responses = await asyncio.gather(*(sf.run_code_async(each, endpoint=url) for each in requests))
    assert [response.run_result.stdout for response in responses] == [f"{n}\n" for n in range(40)]
    config = sf.TestConfig(
        language="python", dataset_type="CommonOJ", provided_data={"test": oj(("1 2", "3"))}
    )
    request = sf.SubmitRequest(dataset="any", id="a", completion=ADD, config=config)
    results = await asyncio.gather(*(sf.submit_async(request, endpoint=url) for _ in range(10)))
    assert all(result.accepted and result.id == "a" for result in results)


def verl_result(
    service: Service, code: str, stdin: str, expected: str, seconds: float = 10
) -> bool | int:
    """Send verl's request, and convert the response to verl's codes as verl does.

    -1: the sandbox failed; -2: the program failed; -3: time limit; -4: compile error.
    """
    body = {"compile_timeout": 1, "run_timeout": seconds, "code": code, "stdin": stdin}
    body |= {"memory_limit_MB": 1024, "language": "python", "files": {}, "fetch_files": []}
    response = service.client.post("/run_code", json=body)
    if response.status_code != 200:
        return -1
    fields = response.json()
    result = fields["run_result"]
    if fields["status"] == "Success" and result["status"] == "Finished":
        return result["stdout"].rstrip("\n") == expected.rstrip("\n")
    if fields["status"] != "Failed":
        return -1
    if fields["compile_result"]:
        return -4
    return -3 if result["status"] == "TimeLimitExceeded" else -2


def test_verl_interprets_responses_correctly(service: Service):
    assert verl_result(service, ADD, "1 2\n", "3\n") is True
    assert verl_result(service, ADD, "1 2\n", "4") is False
    assert verl_result(service, ADD, "x", "4") == -2
    assert verl_result(service, "import os\nos._exit(3)", "", "") == -2
    assert verl_result(service, "while True: pass", "", "", 1) == -3
    with served_code(sandbox=FakeSandbox(error=Unavailable("gone"))) as broken:
        assert verl_result(broken, ADD, "1 2\n", "3\n") == -1


# POST /submit


def test_an_accepted_submission(service: Service):
    completion = f"The sum:\n```python\n{ADD}\n```\n"
    result = submit(service, completion, oj(("1 2", "3"), ("4 5", "9\n")), "CommonOJDataset")
    assert (result.id, result.accepted, passed(result)) == (7, True, [True, True])
    assert result.extracted_code == f"{ADD}\n"
    assert result.tests[0].test_info == oj(("1 2", "3"))[0]
    assert result.tests[0].exec_info.run_result.stdout == "3\n"
    assert result.extra == {"isolation": "bubblewrap", "suspicions": [], "cause": None}


def test_a_submission_stops_at_the_first_failure_unless_all_cases_are_requested(service: Service):
    test = oj(("1 2", "3"), ("4 5", "x"), ("x", "1"), ("6 7", "13"))
    first = submit(service, ADD, test, "CommonOJ")
    assert (first.accepted, passed(first)) == (False, [True, False])
    # CTRL sends the tests as JSON text.
    extra = {"run_all_cases": True}
    every = submit(service, ADD, json.dumps(test), "CommonOJDataset", extra=extra)
    assert (every.accepted, passed(every)) == (False, [True, False, False, True])
    statuses = [each.exec_info.status for each in every.tests]
    assert statuses == ["Success", "Success", "Failed", "Success"]
    assert "ValueError" in every.tests[2].exec_info.run_result.stderr


def test_a_test_that_was_skipped_for_lack_of_time_has_not_passed():
    with served_code(workers=1, max_submission_s=0.5) as service:
        test, extra = oj(*[("", "")] * 5), {"run_all_cases": True}
        result = submit(service, "while True: pass", test, "CommonOJ", extra=extra, run_timeout=0.5)
    assert passed(result) == [False] * 5
    statuses = {each.exec_info.run_result.status for each in result.tests}
    assert statuses == {"TimeLimitExceeded"}


@pytest.mark.parametrize(
    "completion", ["", "I cannot.", "```python\n```", "import os\nos._exit(0)"]
)
def test_a_completion_without_a_solution_is_rejected(service: Service, completion: str):
    assert submit(service, completion, oj(("", "1")), "CommonOJ").accepted is False
    for fn_name in ("f", "add", "max"):  # `add` and `max` exist without the program
        test = lcb(["1\n0"], ["1"], fn_name)
        assert submit(service, completion, test, "LiveCodeBench").accepted is False


SOLUTION = """
class Solution:
    def add(self, numbers: List[int], more: int) -> int:
        return sum(numbers) + more
"""
CALLS = lcb(["[1, 2]\n3", "[]\n0"], ["6", "0"], "add")


def test_the_encodings_of_livecodebench(service: Service):
    text = json.dumps(CALLS)
    for test in (CALLS, text, encoded(CALLS), encoded(CALLS, 2), encoded(text)):
        result = submit(service, SOLUTION, test, "LiveCodeBenchDataset", language=None)
        assert (result.accepted, passed(result)) == (True, [True]), test
        assert result.extracted_code == SOLUTION


def test_livecodebench_has_one_entry_for_all_tests(service: Service):
    """CTRL averages over the entries, and SandboxFusion has one as well."""
    wrong = SOLUTION.replace("+ more", "+ 3")
    result = submit(service, wrong, CALLS, "LiveCodeBench")
    assert (result.accepted, passed(result)) == (False, [False])
    stdin = lcb(["1 2", ["3", "4"]], ["3", "7"])
    program = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
    assert submit(service, program, stdin, "LiveCodeBench").accepted is True
    raising = submit(service, "x = 1 / 0", stdin, "LiveCodeBench")
    assert raising.tests[0].exec_info.status == "Failed"
    assert "ZeroDivisionError" in raising.tests[0].exec_info.run_result.stderr


# Requests that are rejected

RUN: dict[str, Any] = {"code": "print(1)", "language": "python"}


@pytest.mark.parametrize(("fields", "detail"), table("invalid_runs"), ids=str)
def test_invalid_runs_are_rejected(service: Service, fields: dict[str, Any], detail: str):
    check_problem(service.client.post("/run_code", json={**RUN, **fields}), "invalid", detail)


CONFIG: dict[str, Any] = {
    "language": "python",
    "dataset_type": "CommonOJDataset",
    "provided_data": {"test": oj(("1 2", "3"))},
}


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        *table("invalid_submissions"),
        ({"provided_data": {"test": oj(*[("", "1")] * 1001)}}, "at most 1000 items"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_submissions_are_rejected(service: Service, fields: dict[str, Any], detail: str):
    body = {"dataset": "any", "id": 1, "completion": ADD, "config": {**CONFIG, **fields}}
    check_problem(service.client.post("/submit", json=body), "invalid", detail)
    assert not os.path.exists("/tmp/rewardfleet-was-here")


# Request handling

SUBMIT = {"dataset": "any", "id": 1, "completion": ADD, "config": CONFIG}
BOTH = pytest.mark.parametrize(("path", "body"), [("/run_code", RUN), ("/submit", SUBMIT)])


@BOTH
def test_an_internal_failure_is_the_error_on_which_its_client_repeats(path: str, body: dict):
    """verl's and SkyRL-Agent's repeat a 504 only. Proxies get the failure itself."""
    with served_code(sandbox=FakeSandbox(error=Unavailable("gone"))) as service:
        response = service.client.post(path, json=body)
        kind = "deadline_exceeded" if path == "/run_code" else "unavailable"
        check_problem(response, kind, "gone")
        headers = {"x-forwarded-prefix": "/code"}
        check_problem(service.client.post(path, json=body, headers=headers), "unavailable", "gone")
        with pytest.raises(Exception, match="code 504"):
            run(service, "print(1)")


@BOTH
def test_the_deadline_applies(path: str, body: dict):
    with served_code(sandbox=FakeSandbox(wait_s=5)) as service:
        headers = {"x-request-timeout": "0.2"}
        kind = "deadline_exceeded" if path == "/run_code" else "unavailable"
        for _ in range(5):  # on a busy machine, it passes before the program is given to a jail
            answer = service.client.post(path, json=body, headers=headers)
            if answer.json()["kind"] != "deadline_exceeded":
                break
        check_problem(answer, kind)


def test_the_time_for_which_a_gateway_has_held_a_request_counts():
    """After 29 s, the 28 s of the route are over."""
    held = {"x-request-held": "29"}
    through_gateway = {**held, "x-forwarded-prefix": "/code"}
    with served_code(sandbox=FakeSandbox()) as service:
        answer = service.client.post("/run_code", json=RUN, headers=through_gateway)
        check_problem(answer, "deadline_exceeded")
        answer = service.client.post("/run_code", json=RUN, headers=held)  # of a caller: ignored
        assert answer.status_code == 200


@BOTH
def test_at_capacity_requests_wait_in_line(path: str, body: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "MAX_WAITING", 3)
    sandbox = HeldSandbox()
    limits = {"max_in_flight": 1, "max_queue_depth": 1}
    with served_code(sandbox=sandbox, **limits) as service, ThreadPoolExecutor(5) as callers:
        early = [callers.submit(service.client.post, path, json=body) for _ in range(5)]
        try:
            wait_until(lambda: metric(service.client, "rewardfleet_waiting_requests") == 3)
            kind = "deadline_exceeded" if path == "/run_code" else "overloaded"
            refused = service.client.post(path, json=body)
            check_problem(refused, kind, "3 requests wait in line already")
            assert "retry-after" in refused.headers
            late = service.client.post(path, json=body, headers={"x-request-timeout": "0.01"})
            check_problem(late, kind)
            assert not any(each.done() for each in early)
        finally:
            sandbox.released.set()
        assert [each.result().status_code for each in early] == [200] * 5
        assert metric(service.client, "rewardfleet_waiting_requests") == 0
