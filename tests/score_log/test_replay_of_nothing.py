"""The id of a record has all that its score depends on, so a replay by the same service changes
nothing: for random records of every service, option and rule."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from pydantic import BaseModel, JsonValue

from rewardfleet import (
    RewardFleet,
    answers_request,
    code_request,
    episode_request,
    tools_request,
    video_request,
)
from rewardfleet.commands.main import main
from rewardfleet.score_log.reading import Filters, open_log
from rewardfleet.score_log.record import COLUMNS
from rewardfleet.score_log.replaying import compare, replay_episodes, select_records
from rewardfleet.services import SERVICES
from rewardfleet.wire.digest import request_id
from rewardfleet.wire.episode import EpisodeOptions
from rewardfleet.wire.frames import Frames
from rewardfleet.wire.score import Request
from rewardfleet.wire.tools import ToolsOptions
from rewardfleet_server.testing import FakeJudge, FakeSandbox
from rewardfleet_server.video.clip.frames import Clip
from rewardfleet_server.video.judges import Judgment

from ..client.test_order_of_outcomes import BROUGHT, WEIGHTS, episodes
from ..conftest import LONG_CLIP
from .conftest import service_at

FIXED = {"language"}  #: has one value only
FRAMES = Frames(shape=(2, 1, 1, 3))
FRAMES.set_pixels(bytes(6))
#: Values of fields whose content is read.
CONTENT = {"video_base64": b"x", "frames_base64": [b"x"], "frames": FRAMES, "sha256": "f" * 64}
TESTS = {"kind": "stdio", "cases": [{"stdin": "a", "stdout": "a"}, {"stdin": "b", "stdout": "B"}]}
TRUTH = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {"q": 1}}\n</tool_call>'
SCHEDULED = {"with_length": True, "schedule_length": True}
REQUESTS: dict[str, Sequence[Request]] = {
    "video": [video_request("a task", "clip.mp4")],
    "code": [code_request("print()", TESTS), code_request("", TESTS, limits={"cpu_s": 10.0})],
    "episode": [episode_request("a", success=True)],
    "tools": [tools_request(TRUTH, TRUTH), tools_request(TRUTH, TRUTH, step=1, options=SCHEDULED)],
    "answers": [answers_request("1", 1), answers_request("1", schema={"type": "integer"})],
}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of what is no valid value
@pytest.mark.parametrize("service", SERVICES)
def test_the_id_changes_with_each_field_but_labels(service: str):
    for request in REQUESTS[service]:
        for name in type(request).model_fields.keys() - FIXED:
            other = request.model_copy(update={name: CONTENT.get(name, "another")})
            assert (request_id(other) == request_id(request)) == (name in request.labels), name
            inner = getattr(request, name)
            for field in type(inner).model_fields if isinstance(inner, BaseModel) else ():
                changed = inner.model_copy(update={field: "another"})
                assert request_id(request.model_copy(update={name: changed})) != request_id(request)
    assert len({request_id(each) for each in REQUESTS[service]}) == len(REQUESTS[service])
    for field in EpisodeOptions.model_fields:
        options = EpisodeOptions().model_copy(update={field: "another"})
        assert request_id(request, options) != request_id(request, EpisodeOptions())


def test_the_id_changes_with_the_order_of_keys_that_a_program_or_a_rule_sees():
    def id_of(value: Mapping[str, Any]) -> str:
        cases = [{"args": [value], "expected": 1}]
        return request_id(code_request("", {"kind": "functional", "fn_name": "f", "cases": cases}))

    assert id_of({"a": 1, "b": 2}) != id_of({"b": 2, "a": 1})
    assert id_of({"a": 1, "b": 2}) == id_of(json.loads('{"a":1,"b":2}'))


class Judge(FakeJudge):
    """A judge whose score depends on all that it is given."""

    async def judge(
        self, task_text: str, clip: Clip, backend_kwargs: Mapping[str, JsonValue]
    ) -> Judgment:
        seen = hashlib.sha256(f"{task_text} {clip.indices}".encode())
        for frame in clip.frames:
            seen.update(np.asarray(frame).tobytes())
        return Judgment(seen.digest()[0] / 255, "")


Rng = np.random.Generator


def drawn(model: type[BaseModel], rng: Rng, **others: Sequence[Any]) -> dict[str, Any]:
    """Return random values of all fields of a model, those that are not listed by their types."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        listed = [False, True] if kind is bool else get_args(kind)
        choices = others.get(name, listed if kind is bool or get_origin(kind) is Literal else None)
        assert choices is not None, name
        values[name] = choices[rng.integers(len(choices))]
    return values


async def score_clips(fleet: RewardFleet, rng: Rng) -> None:
    for step in range(20):
        given = drawn_of(
            rng, start_s=[0.0, 1.0], end_s=[None, 2.0], nframes=[2, 16], max_pixels=[4096, 200_704]
        )
        clip, task = LONG_CLIP.name, str(rng.choice(["a", "b"]))
        await fleet.video.score(task, clip, step=step, **given)


def drawn_of(rng: Rng, **choices: Sequence[Any]) -> dict[str, Any]:
    return {name: each[rng.integers(len(each))] for name, each in choices.items()}


async def score_programs(fleet: RewardFleet, rng: Rng) -> None:
    row = {"input_output": json.dumps({"inputs": ["a"], "outputs": ["A"]}), "time_limit": 1}
    for step in range(40):
        checker = {"checker": rng.choice(["exact", "tokens"]).item(), "ignore_case": bool(step % 2)}
        of_row = {"kind": "dataset", "dataset": "apps", "row": row, **checker}
        given = drawn_of(
            rng, mode=["pass_rate", "all_pass"], limits=[{}, {"cpu_s": 10.0}, {"wall_s": 9.0}],
            critique=[None, "Overall judgment: Correct"], original_passed=[None, True, False],
        )  # fmt: skip
        tests = {**TESTS, **checker} if rng.integers(2) else of_row
        await fleet.code.score("print(input())", tests, step=step, **given)


async def score_tool_calls(fleet: RewardFleet, rng: Rng) -> None:
    await fleet.tools.put_budget("run", budget=0.3, initial_lambda=1.0)
    answers = [TRUTH, TRUTH.replace("q", "r"), TRUTH.replace("x", "x " * 400), "wrong"]
    patterns = [{"search": ["*"], "calculate": ["s*"]}, {"calculate": ["s*"], "search": ["*"]}]
    requests = []
    for step in range(400):
        options = drawn(
            ToolsOptions, rng, families=[{}, {"search": "other"}],
            family_patterns=[None, *patterns], cost_weights=[{}, {"search": 2.0}],
            dialect=["auto", "hermes"],
        )  # fmt: skip
        if options["variant"] == "strict":
            common = "variant dialect as_executed with_length schedule_length cost cost_weights"
            options = {name: options[name] for name in common.split()}
        given = drawn_of(
            rng, run=[None, "run"], tool_families=[{}, {"search": "calculate"}],
            tools=[[], [{"name": "search", "description": "computes"}]],
        )  # fmt: skip
        answer = answers[rng.integers(len(answers))]
        requests.append(tools_request(answer, TRUTH, step=step % 160, options=options, **given))
    await fleet.tools.score_batch(requests)


async def score_answers(fleet: RewardFleet, rng: Rng) -> None:
    requests = []
    for step in range(60):
        given = drawn_of(
            rng, response=["So \\boxed{0.5}", "1/2 or 0.5", "yes", "2"],
            reference=["\\frac12", 0.5], tolerance=[None, 0.1], form=["auto", "expression"],
            extract=["auto", "last_line"],
        )  # fmt: skip
        requests.append(answers_request(**given, step=step))
    await fleet.answers.score_batch(requests)


async def score_episodes(fleet: RewardFleet, rng: Rng) -> None:
    collected = []
    for step in range(12):
        items = episodes(rng.choice([*BROUGHT]).item(), rng)
        options = drawn(
            EpisodeOptions, rng, gamma=[0.5, 0.99], weights=WEIGHTS, filter=[{}, {"tolerance": 1}],
            clusters=[None, {}],
        )  # fmt: skip
        await fleet.episode.score_batch(items, options, run="run", step=step)
        if options["normalize"] != "running":
            more = {"run": str(step), "step": 0, "group_size": 4, "options": options}
            collected += [fleet.episode.collect(each, **more) for each in items[4:8]]
    await asyncio.gather(*collected)


def aged(line: str) -> str:
    """Return a record as older logs have it: with one id for all steps."""
    record = json.loads(line)
    request = json.loads(record["request"])
    if record["service"] == "tools":
        request.pop("step", None)
    text = json.dumps(request)
    record |= {"id": hashlib.sha256(text.encode()).hexdigest(), "request": text}
    return json.dumps(record) + "\n"


#: What scores with each service, and settings of it.
SCORED: dict[str, tuple[Callable[[RewardFleet, Rng], Awaitable[None]], dict[str, Any]]] = {
    "video": (score_clips, {"judge": Judge(), "video_root": [LONG_CLIP.parent]}),
    "code": (score_programs, {"sandbox": FakeSandbox()}),
    "episode": (score_episodes, {}),
    "tools": (score_tool_calls, {}),
    "answers": (score_answers, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_replay_of_nothing_changes_nothing(service: str, tmp_path, capsys):
    score, given = SCORED[service]

    async def fill(url: str) -> None:
        async with RewardFleet(**{service: url}) as fleet:
            await score(fleet, np.random.default_rng(0))

    log = {"score_log": tmp_path / "log", "score_log_sample": 1}
    with service_at(service, **given, **log) as url:
        asyncio.run(fill(url))
    (tmp_path / "old").mkdir(0o700)
    for segment in (tmp_path / "log").glob("*.jsonl"):
        lines = map(aged, segment.read_text().splitlines())
        (tmp_path / "old" / segment.name).write_text("".join(lines))
    with service_at(service, **given) as url:
        for log in ("log", "old"):
            output = str(tmp_path / f"new {log}")
            assert main(["score", "replay", str(tmp_path / log), "-o", output, "--url", url]) == 0
            shown = capsys.readouterr().out.splitlines()[-1]
            assert " 0 rewards changed (0.00%), 0 have no score now; 0 of" in shown


def test_records_that_arrive_meanwhile_are_not_part_of_a_replay(tmp_path):
    """Segments are written by several processes, so a new record may be an older one."""

    def add(segment: str, **record: JsonValue) -> None:
        request = {"kind": "success", "group": record["call"], "success": record["score"]}
        common = {"id": record["call"], "service": "episode", "status": "ok", "details": "{}"}
        line = {**dict.fromkeys(COLUMNS), **common, "request": json.dumps(request), **record}
        with (tmp_path / f"20261130T080000000000-{segment}-0000000a.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    for number, score in enumerate((1, 0, 1)):
        add("1", time=number, call=f"a{number}", score=score)
    with open_log([tmp_path]) as connection:
        select_records(connection, Filters())
        add("2", time=0.5, call="b", score=1)
        replay_episodes(connection, {})
        _, totals = compare(connection, None, None)
    assert (totals["records"], totals["changed"], totals["missing"]) == (3, 0, 0)
