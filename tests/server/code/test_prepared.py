"""What the samples of a problem share, and what they must not; what it takes in memory."""

import asyncio
import gc
import tracemalloc

import pytest

from rewardfleet.wire.code import CodeRequest
from rewardfleet_server.code.sandboxes import RunResult
from rewardfleet_server.code.scorer import CodeScorer
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.code.tests.prepared import PreparedTests, prepare
from rewardfleet_server.testing import FakeSandbox

from .conftest import asserts, functional, stdio

SCRIPT = "".join(f"assert f({n}) == {[n, str(n), {n: n / 2}]}\n" for n in range(100))
TESTS = {
    "asserts": asserts("import math\nassert f(1) == math.pi", "assert g(2)", setup="x = 1"),
    "functional": functional("f", *[([[n, str(n)]], {"a": n / 2}) for n in range(100)]),
    "stdio": stdio(*[(f"{n}\n" * 50, f"{n}\n") for n in range(100)], setup="x = 1"),
    "row": {"kind": "dataset", "dataset": "auto", "row": {"prompt": "def f(x):", "test": SCRIPT}},
}


@pytest.mark.parametrize("tests", [TESTS["asserts"], TESTS["row"]], ids=["asserts", "row"])
async def test_a_group_shares_its_tests_and_their_trial_but_no_secret(tests: dict):
    sandbox = FakeSandbox(RunResult(test_report=b'{"held": true}'))
    scorer = CodeScorer("fake", sandbox, CodeSettings())

    async def score(number: int) -> None:
        plan = await scorer.plan(CodeRequest(revision=f"def f(x): return {number}", tests=tests))
        await plan.compute(60)

    await asyncio.gather(*map(score, range(8)))
    scorer.close()
    groups = [[each for run in job.runs for each in run.checks] for job in sandbox.jobs]
    trials = [job for job in sandbox.jobs if not job.program]
    assert len(sandbox.jobs) == 8 + len(trials) and len(trials) <= 3
    secrets = [check.nonce for group in groups for check in group]
    assert len({*secrets}) == len(secrets)
    of_programs = groups[len(trials) :]
    assert len({id(each[-1].source) for each in of_programs}) == 1, "parsed once"


@pytest.mark.serial
@pytest.mark.parametrize("tests", TESTS.values(), ids=TESTS)
def test_the_bytes_of_prepared_tests_are_those_that_they_take(tests: dict):
    def prepared(number: int) -> PreparedTests:
        changed = (
            {**tests, "first": number} if "row" in tests else {**tests, "setup": f"x={number}"}
        )
        read = CodeRequest.model_validate_json(
            CodeRequest(revision="", tests=changed).model_dump_json()
        )
        return prepare(read.tests, "")

    kept = [prepared(1000)]
    tracemalloc.start()
    try:
        kept = [prepared(number) for number in range(1000, 1020)]
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken < sum(each.bytes for each in kept) < 1.5 * taken
