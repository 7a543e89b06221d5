"""The cause of each score, by requests over real HTTP."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardfleet.services import SERVICES
from rewardfleet.wire.causes import VideoCause
from rewardfleet.wire.errors import ErrorKind
from rewardfleet.wire.score import reward_of
from rewardfleet_server.code.sandboxes import RunResult
from rewardfleet_server.testing import FakeJudge, FakeSandbox
from rewardfleet_server.video.judges import Judgment
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import image_base64, served, served_with, table
from ..observability.conftest import ALERTS
from .answers.conftest import served_answers
from .code.conftest import Service, served_code, stdio
from .episode.conftest import post_batch, served_episodes
from .tools.conftest import TRUTH, answer, call, served_tools
from .video.test_openai import Endpoint, serving_judge

ONE = stdio(("", "1"))


def cause_of(response: httpx.Response) -> str | None:
    assert response.status_code == 200, response.text
    found = response.json()
    is_paid = found["score"] is not None and found["score"] >= 1
    assert not is_paid or found["cause"] in {None, "decided_by_program", "alike_outputs"}
    return found["cause"]


# Code

CODE = [*table("causes_of_programs"), ("x" * 1_000_001, ONE, {}, "unusable_text")]


@pytest.fixture(scope="module")
def code() -> Iterator[Service]:
    with served_code(cache_mb=16) as service:
        yield service


@pytest.mark.parametrize("mode", ["pass_rate", "all_pass"])
@pytest.mark.parametrize(("revision", "tests", "fields", "cause"), CODE)
def test_causes_of_programs(
    code: Service, revision: str, tests: dict, fields: dict, cause: str | None, *, mode: str
):
    """Also of scores from the cache, e.g. those of the other mode."""
    assert cause_of(code.post(revision, tests, mode=mode, **fields)) == cause


def test_a_program_that_ends_its_sandbox():
    with served_code(sandbox=FakeSandbox(RunResult(stopped="died"))) as service:
        assert cause_of(service.post("print(1)", ONE)) == "sandbox_died"


def test_tests_for_which_no_time_was_left():
    with served_code(max_submission_s=0.2) as service:
        sleeper = "import time\ntime.sleep(0.4)\nprint(1)"
        found = service.post(sleeper, stdio(("", "1"), ("", "1")))
        assert cause_of(found) == "time_limit"


def test_equal_programs_have_the_causes_of_their_own_texts(code: Service):
    """The cache has the score of the program, which was in a block or not."""
    program = "equal programs :"
    for text, cause in [
        (f"```python\n{program}\n```", "compile_error"),
        (program, "no_code_block"),
        (f"```python\n{program}\n```", "compile_error"),
    ]:
        assert cause_of(code.post(text, ONE)) == cause
    assert code.score(program, ONE)["cached"]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
@given(
    text=st.text(max_size=60) | st.sampled_from(["print(1)", "```\nprint(1)\n```", "1"]),
    mode=st.sampled_from(["pass_rate", "all_pass"]),
)
def test_any_text_has_a_cause_unless_it_scores_1(code: Service, text: str, mode: str):
    found = code.score(text, stdio(("", "1"), ("", "")), mode=mode)
    assert (found["score"] == 1) == (found["cause"] is None)


# Video


class Abstaining(FakeJudge):
    """A judge that abstains for the reason of `sole-r1`, which needs a model."""

    async def judge(self, *given: object) -> Judgment:
        judgment = await super().judge(*given)
        return Judgment(None, judgment.text, cause=VideoCause.TOO_FEW_FRAMES)


@pytest.mark.parametrize(
    ("judge", "cause"),
    [
        (FakeJudge(1.0), None),
        (FakeJudge(0.999), None),
        (FakeJudge(0.5), None),
        (FakeJudge(0.49), "judge_says_no"),
        (FakeJudge(0.0), "judge_says_no"),
        (FakeJudge(None), "no_verdict"),
        (Abstaining(None), "too_few_frames"),
    ],
)
def test_causes_of_judgments(judge: FakeJudge, cause: str | None, frames_request: dict):
    with served(judge) as client:
        for _ in range(2):  # the second one may be from the cache
            assert cause_of(client.post("/score", json=frames_request)) == cause
        body = {"items": [frames_request, {**frames_request, "backend": "none"}]}
        first, second = client.post("/score/batch", json=body).json()["results"]
        assert (first["cause"], second["cause"]) == (cause, "invalid")
        assert f'cause="{cause}"' in client.get("/metrics").text or cause is None
    with served(judge, abstention="error") as client:
        (item,) = client.post("/score/batch", json={"items": [frames_request]}).json()["results"]
        assert item["cause"] == cause


def test_the_judge_reference_has_no_reference(frames_request: dict):
    with served_with(VideoSettings()) as client:
        body = {**frames_request, "task_text": "juggle five balls"}
        assert cause_of(client.post("/score", json=body)) == "no_reference"
        frames = frames_request["frames_base64"] * 2
        body = {"task_text": "put the bowl on the stove", "frames_base64": frames}
        assert cause_of(client.post("/score", json=body)) == "unknown_scene"


@pytest.mark.slow
def test_an_answer_that_was_cut_or_refused():
    endpoint = Endpoint()
    endpoint.answers = ["<think>The robot"]
    with serving_judge(endpoint) as post_score:
        assert cause_of(post_score()) == "no_verdict"
        endpoint.finish_reason = "length"
        assert cause_of(post_score()) == "answer_cut"
        endpoint.finish_reason = "content_filter"
        assert cause_of(post_score()) == "refused"


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(score=st.floats(0, 1) | st.none())
def test_any_judgment_has_a_cause_unless_it_is_a_success(video: tuple, score: float | None):
    judge, client = video
    judge.score = score
    body = {"task_text": "x", "frames_base64": [image_base64()]}
    found = client.post("/score", json=body).json()
    is_success = score is not None and score >= 0.5
    assert is_success == (found["cause"] is None)


@pytest.fixture(scope="module")
def video() -> Iterator[tuple[FakeJudge, httpx.Client]]:
    judge = FakeJudge(deterministic=False)
    with served(judge) as client:
        yield judge, client


# Tools

SEARCH = call(query="x", limit=3)
PLAIN = "<think>plan</think>\n<response>4</response>"
LONG = {"options": {"with_length": True}}
TOOLS = [*table("causes_of_answers"), (answer(SEARCH, think="plan " * 600), LONG, None)]


@pytest.fixture(scope="module")
def tools() -> Iterator[httpx.Client]:
    with served_tools() as client:
        client.put("/budgets/expensive", json={"initial_lambda": 1.0}).raise_for_status()
        yield client


@pytest.mark.parametrize(("response", "fields", "cause"), TOOLS)
def test_causes_of_answers(tools: httpx.Client, response: str, fields: dict, cause: str | None):
    body = {"response": response, "ground_truth": TRUTH, **fields}
    single = tools.post("/score", json=body).json()
    (item,) = tools.post("/score/batch", json={"items": [body]}).json()["results"]
    assert (single["cause"], item.get("cause")) == (cause, cause)


CALLS = st.lists(st.sampled_from([SEARCH, call(query="x", limit="3"), call("calc"), "{"]))
OPTIONS = st.fixed_dictionaries(
    {"variant": st.just("toolrl")},
    optional={
        name: st.booleans()
        for name in ("with_length", "refined_reward", "coarse_reward", "intermediate_reward",
                     "correct_max1", "max1_step30_max3", "schedule_reward")
    },
) | st.fixed_dictionaries({}, optional={"with_length": st.booleans()})  # fmt: skip


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)
@given(given=CALLS, wanted=CALLS, options=OPTIONS, step=st.integers(0, 200))
def test_any_answer_has_a_cause_unless_its_score_is_that_of_the_truth(
    tools: httpx.Client, given: list[str], wanted: list[str], options: dict, step: int
):
    truth = answer(*[each for each in wanted if each != "{"]) if wanted else PLAIN
    if truth == answer():
        truth = PLAIN
    body = {"ground_truth": truth, "options": options, "step": step}
    responses = [answer(*given) if given else PLAIN, truth]
    items = [{"response": each, **body} for each in responses]
    found, best = tools.post("/score/batch", json={"items": items}).json()["results"]
    if found["score"] < best["score"] - 1e-9:
        assert found.get("cause") is not None, (found, best)
    assert best.get("cause") in {None, "short_thinking"}


# Final answers


ANSWERS = table("causes_of_final_answers")


@pytest.fixture(scope="module")
def answers() -> Iterator[httpx.Client]:
    with served_answers(accept="both") as client:
        yield client


@pytest.mark.parametrize(("response", "fields", "cause"), ANSWERS)
def test_causes_of_final_answers(answers: httpx.Client, response: str, fields: dict, cause: str):
    body = {"response": response, **fields}
    assert cause_of(answers.post("/score", json=body)) == cause
    (item,) = answers.post("/score/batch", json={"items": [body]}).json()["results"]
    assert item.get("cause") == cause


FORMS = st.sampled_from(["auto", "number", "expression", "choice", "text", "exact", "yes_no"])


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
@given(text=st.text(max_size=60) | st.sampled_from(["5", "yes", "A", "\\boxed{5}"]), form=FORMS)
def test_any_final_answer_has_a_cause_unless_it_is_right(
    answers: httpx.Client, text: str, form: str
):
    reference = {"choice": "A", "yes_no": "yes"}.get(form, "5")
    body = {"response": text, "reference": reference, "form": form}
    found = answers.post("/score", json=body).json()
    assert (found["score"] == 1) == (found["cause"] is None)


# Episodes

WON = {"success": True, "steps": 100, "max_steps": 500}
LOST = {**WON, "success": False}


EPISODES = table("causes_of_episodes")


@pytest.fixture(scope="module")
def episodes() -> Iterator[httpx.Client]:
    with served_episodes() as client:
        yield client


@pytest.mark.parametrize(("fields", "cause"), EPISODES)
def test_causes_of_episodes(episodes: httpx.Client, fields: dict, cause: str | None):
    item = {"uid": "a", **fields}
    (found,) = post_batch(episodes, [item])["results"]
    assert found.get("cause") == cause
    single = episodes.post("/score", json=item).json()
    assert single.get("cause", single.get("kind")) == cause


@pytest.mark.parametrize(("options", "items", "causes"), table("causes_in_groups"))
def test_causes_in_groups(episodes: httpx.Client, options: dict, items: list, causes: list):
    kind = "objectives" if "weights" in options else "success"
    sent = [{"uid": str(n), "group": "g", "kind": kind, **each} for n, each in enumerate(items)]
    batch = post_batch(episodes, sent, options=options)
    assert [each.get("cause") for each in batch["results"]] == causes


NUMBERS = st.floats(-2, 2)
ANY_EPISODE = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["success", "return", "reward_model", "efficiency", "hybrid",
                                 "visual", "objectives", "shaped", "discounted"]),
        "group": st.sampled_from(["a", "b"]),
        "success": st.booleans(), "steps": st.integers(1, 9), "max_steps": st.just(5),
        "episode_reward": NUMBERS, "reward_model_score": NUMBERS,
        "step_rewards": st.just([0.5]), "step_token_ends": st.just([1]),
        "progress": st.just([0.5]), "visual_success": st.floats(0, 1),
    },
    optional={"masked": st.booleans()},
)  # fmt: skip
NORMALIZED = st.sampled_from(["none", "length", "group_mean", "group_std", "leave_one_out"])


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)
@given(items=st.lists(ANY_EPISODE, min_size=1, max_size=6), normalize=NORMALIZED)
def test_any_episode_has_a_cause_unless_its_reward_is_1_or_more(
    episodes: httpx.Client, items: list[dict], normalize: str
):
    sent = [{"uid": str(number), **each} for number, each in enumerate(items)]
    batch = post_batch(episodes, sent, options={"normalize": normalize})
    for each in batch["results"]:
        reward = reward_of("episode", each)
        is_full = reward is not None and reward >= 1
        cause = each.get("cause")
        assert cause == "no_variance" or is_full == (cause is None), each


# All


def test_the_tables_have_every_cause():
    """Those that have a test of their own are named here."""
    own = {"sandbox_died", "no_reference", "unknown_scene", "answer_cut", "refused", "no_answer"}
    own |= {"recording_fault"}  # in test_recording.py
    groups = {"low_objectives", "no_variance", "alone"}
    text = json.dumps([row[-1] for table in (CODE, TOOLS, ANSWERS, EPISODES) for row in table])
    judgments = {"judge_says_no", "no_verdict", "too_few_frames"}
    tested = {*re.findall(r"\w+", text)} | own | groups | judgments
    for causes in (each.causes for each in SERVICES.values()):
        assert set(causes) <= tested, set(causes) - tested
        assert not set(map(str, causes)) & set(map(str, ErrorKind))


def test_the_alert_leaves_out_causes_that_there_are():
    left_out = re.findall(r'cause!~"([\w|]+)"', ALERTS.read_text())
    known = {str(each) for service in SERVICES.values() for each in service.causes}
    assert len(left_out) == 2 and set("|".join(left_out).split("|")) < known


def test_causes_are_counted_for_each_item(tools: httpx.Client, episodes: httpx.Client):
    def count(client: httpx.Client, cause: str) -> float:
        line = rf'(?m)^rewardfleet_causes_total\{{.*cause="{cause}".*\}} (\S+)$'
        return sum(map(float, re.findall(line, client.get("/metrics").text)))

    before = count(tools, "format"), count(tools, "invalid"), count(episodes, "failed")
    items = [{"response": "no", "ground_truth": TRUTH}] * 3 + [{"response": 1}]
    tools.post("/score/batch", json={"items": items}).raise_for_status()
    assert tools.post("/score", json={}).status_code == 422
    post_batch(episodes, [{"uid": str(n), **LOST} for n in range(5)])
    after = count(tools, "format"), count(tools, "invalid"), count(episodes, "failed")
    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 2, 5]
