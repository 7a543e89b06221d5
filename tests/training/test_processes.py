"""Adapters in the processes of trainers: workers of a DataLoader, Ray, and TRL's rollout worker."""

import asyncio
import functools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rewardfleet import blocking
from rewardfleet.adapters import areal, ms_swift, openrlhf, ray_data, rllm, trl, verifiers

from ..server.tools.conftest import served_tools
from ..third_party.trainers import byte_tokenizer, close_fleet_of

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")
pytest.importorskip("trl")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(900)]

TRUTH = "<response>42</response>"
ANSWER = f"<think>x</think>\n{TRUTH}"  # scores 1
BATCH = {"completions": [ANSWER], "ground_truth": [TRUTH]}


@pytest.fixture
def url() -> Iterator[str]:
    with served_tools() as service:
        yield str(service.base_url)


def records_of(log: Path) -> list[int]:
    """Return how many records each process has added to a log, which workers did not close."""
    return sorted(len(each.read_text().splitlines()) for each in log.glob("*.jsonl"))


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_of_a_dataloader_score_and_log(url: str, tmp_path: Path, how: str):
    reward = trl.reward_function("tools", url, is_async=False, score_log=tmp_path / "log")
    assert reward(**BATCH) == [1.0]
    given = {"num_workers": 2, "multiprocessing_context": how, "persistent_workers": True}
    collate = functools.partial(reward, ground_truth=[TRUTH])  # rewards of a batch of one answer
    loader = torch.utils.data.DataLoader([ANSWER] * 8, collate_fn=collate, **given)
    for _ in range(2):
        assert [*loader] == [[1.0]] * 8
    del loader
    assert reward(**BATCH) == [1.0]
    close_fleet_of(reward)
    assert records_of(tmp_path / "log") == [2, 8, 8]


def calls(url: str) -> dict[str, tuple]:
    """Return the functions of adapters by trainer, and what calls them for their reward."""
    row = {"ground_truth": TRUTH}
    by_trl = functools.partial(trl.reward_function, "tools", url)
    return {
        "blocking": (
            blocking.RewardFleet(tools=url),
            lambda fleet: fleet.tools.score(ANSWER, TRUTH).score,
        ),
        "trl": (by_trl(is_async=False), lambda reward: reward(**BATCH)[0]),
        "trl, asynchronous": (by_trl(), lambda reward: asyncio.run(reward(**BATCH))[0]),
        "areal": (
            areal.reward_function("tools", url),
            lambda reward: asyncio.run(reward("", ANSWER, [], [], **row)),
        ),
        "ms_swift": (ms_swift.orm("tools", url)(), lambda reward: reward(**BATCH)[0]),
        "openrlhf": (
            openrlhf.reward_function("tools", url),
            lambda reward: float(reward([ANSWER], [""], [TRUTH])["rewards"][0]),
        ),
        "ray_data": (
            ray_data.Scorer("tools", url),
            lambda score: score({"response": [ANSWER], "ground_truth": [TRUTH]})["reward"][0],
        ),
        "rllm": (rllm.evaluator("tools", url), lambda reward: reward._score(ANSWER, row)[0]),
        "verifiers": (
            verifiers.reward_function("tools", url, column="ground_truth"),
            lambda reward: asyncio.run(reward(completion=ANSWER, **row)),
        ),
    }


@pytest.mark.usefixtures("local_ray")
def test_actors_of_ray_get_what_was_used_and_share_it_among_their_threads(url: str):
    @ray.remote(num_cpus=0.1)
    class Actor:
        def __init__(self, functions) -> None:
            self.functions = functions

        def call(self, name: str) -> float:
            function, call = self.functions[name]
            return call(function)

    @ray.remote(num_cpus=0.1)
    class AsyncActor(Actor.__ray_metadata__.modified_class):
        async def call(self, name: str) -> list[float]:
            given = trl.reward_function("tools", url)
            again = self.functions["trl, asynchronous"][0]
            return (await asyncio.gather(given(**BATCH), again(**BATCH)))[1][0]

    functions = calls(url)
    assert {call(function) for function, call in functions.values()} == {1.0}
    classes = (Actor, Actor.options(max_concurrency=4), AsyncActor)
    actors = [each.remote(functions) for each in classes]
    task = ray.remote(num_cpus=0.1)(lambda name: functions[name][1](functions[name][0]))
    assert ray.get([task.remote(name) for name in functions]) == [1.0] * len(functions)
    twice = [*functions] * 2
    for actor in actors:
        assert ray.get([actor.call.remote(name) for name in twice]) == [1.0] * len(twice)
    fleet, _ = functions["blocking"]
    assert fleet.tools.score(ANSWER, TRUTH).score == 1.0
    fleet.close()


#: What TRL reads messages by.
SCHEMA = {"type": "object", "x-regex": r"(?P<content>[\s\S]*)"}
SCHEMA["properties"] = {"role": {"const": "assistant"}, "content": {"type": "string"}}


class Vllm(BaseHTTPRequestHandler):
    """A server of completions that answers each prompt with `ANSWER`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        ids = [*(each + 3 for each in ANSWER.encode()), 1]  # of the tokenizer; 1 ends it
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}}
        content = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("is_async", [True, False])
def test_the_rollout_worker_of_trl_scores_and_logs(
    url: str, tmp_path: Path, monkeypatch, is_async: bool
):
    from accelerate import PartialState
    from datasets import Dataset
    from trl.experimental.async_grpo import async_rollout_worker

    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)  # only served
    PartialState()  # as the trainer does
    options = {"is_async": is_async, "score_log": tmp_path / "log"}
    tokenizer = byte_tokenizer()
    tokenizer.response_schema = SCHEMA
    row = {"prompt": [{"role": "user", "content": "?"}], "ground_truth": TRUTH}
    with ThreadingHTTPServer(("127.0.0.1", 0), Vllm) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"num_generations": 2, "max_inflight_tasks": 4, "queue_maxsize": 16}
        given |= {"processing_class": tokenizer, "eos_token_ids": [tokenizer.eos_token_id]}
        worker = async_rollout_worker.AsyncRolloutWorker(
            model_name="m",
            dataset=Dataset.from_list([row]),
            reward_funcs=[trl.reward_function("tools", url, **options)],
            vllm_server_url=f"http://127.0.0.1:{server.server_address[1]}",
            **given,
        )
        worker.start()
        try:
            samples = [worker.rollout_buffer.get(timeout=300) for _ in range(8)]
            worker.check_health(300)
        finally:
            process = worker._process
            worker.stop()
            server.shutdown()
    assert {each.metrics["reward"] for each in samples} == {1.0}
    assert process.exitcode == 0, "it ends by itself"
    assert sum(records_of(tmp_path / "log")) >= 8
