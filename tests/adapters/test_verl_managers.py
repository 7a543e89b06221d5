"""The reward managers of verl 0.9.1, with the functions that docs/trainers/verl.md gives them."""

import asyncio
import gc
import importlib
import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rewardfleet.adapters import verl as adapter
from rewardfleet.adapters._rows import MissingReward
from rewardfleet_server.testing import FakeJudge

from ..third_party.trainers import byte_tokenizer, rollouts_of
from .conftest import SUM, TESTS, UNREACHABLE

verl = pytest.importorskip("verl")
torch = pytest.importorskip("torch")
omegaconf = pytest.importorskip("omegaconf")
pytest.importorskip("transformers")

# Importing verl warns, and its managers leave event loops and connections behind.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PRIME_TESTS = {"inputs": ["1 2\n", "7\n"], "outputs": ["3\n", "7\n"]}
TEXTS = [SUM, "print(input())", "", "I do not know.", "\0"]
SCORES = [1.0, 0.5, 0.0, 0.0, 0.0]


def config_of(manager: str, name: str, **reward_kwargs: object):
    """Return verl's own defaults of `reward`, with our function."""
    path = f"{verl.__path__[0]}/trainer/config/reward/reward.yaml"
    config = omegaconf.OmegaConf.load(path)
    config.reward_manager.name = manager
    function = {"path": "pkg://rewardfleet.adapters.verl", "name": name}
    config.custom_reward_function = {**function, "reward_kwargs": reward_kwargs}
    return omegaconf.OmegaConf.create({"reward": config, "trainer": {"experiment_name": "x"}})


def data_of(texts: list[str]):
    """Return a batch whose ground truths are JSON, ours or PRIME's."""
    truths = [json.dumps(PRIME_TESTS if at % 2 else TESTS) for at in range(len(texts))]
    return rollouts_of(texts, truths)


@pytest.fixture(autouse=True)
def _own_scorers(monkeypatch: pytest.MonkeyPatch):
    limited = "verl.experimental.reward_loop.reward_manager.limited"
    monkeypatch.setattr(f"{limited}.RateLimitedRewardManager._class_initialized", None)
    adapter._scorers.clear()
    yield
    for scorer in adapter._scorers.values():
        adapter._loop.run(scorer.fleet.aclose())
    adapter._scorers.clear()
    asyncio.set_event_loop(None)
    gc.collect()  # here, where warnings are ignored


def loaded_of(manager: str, name: str, **reward_kwargs: object):
    """Return a manager of the reward loop, and what it makes of a batch of one sample."""
    reward = importlib.import_module("verl.trainer.ppo.reward")
    loaded = reward.load_reward_manager(config_of(manager, name, **reward_kwargs), byte_tokenizer())
    return loaded, lambda data: loaded.loop.run_until_complete(loaded.run_single(data))


@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
@pytest.mark.parametrize("manager", ["naive", "dapo", "gdpo"])
def test_managers_of_the_reward_loop(manager: str, name: str, code_url: str):
    _, score_of = loaded_of(manager, name, url=code_url)
    data = data_of(TEXTS)
    for at, score in enumerate(SCORES):
        result = score_of(data[at : at + 1])
        assert result["reward_score"] == score
        assert result["reward_extra_info"]["reward/failed"] == 0.0


@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
def test_the_reward_loop_scores_clips(name: str, serve, tmp_path: Path):
    given = {"url": str(serve(FakeJudge(0.7)).base_url), "service": "video", "binary_reward": False}
    given["score_log"] = str(tmp_path / "log")
    _, score_of = loaded_of("naive", name, **given)
    data = data_of([""])
    data.non_tensor_batch["reward_model"][0]["ground_truth"] = "put the bowl on the plate"
    # As an agent loop hands it on: in its extra fields.
    fields = {"clip": np.zeros((20, 32, 32, 3), np.uint8), "nframes": 4}
    fields |= {"global_steps": 7, "min_global_steps": 6, "max_global_steps": 7, "turn_scores": []}
    data.non_tensor_batch["tool_extra_fields"] = np.array([fields], dtype=object)
    assert score_of(data)["reward_score"] == pytest.approx(0.7)
    (scorer,) = adapter._scorers.values()
    adapter._loop.run(scorer.fleet.aclose())
    (segment,) = (tmp_path / "log").glob("*.jsonl")
    assert json.loads(segment.read_text())["step"] == 8  # the weights are those of step 7


def legacy(manager: str, name: str, **reward_kwargs: object):
    """Return a manager as versions before 0.7 load it."""
    reward = importlib.import_module("verl.trainer.ppo.reward")
    managers = importlib.import_module("verl.workers.reward_manager")
    function = reward.get_custom_reward_fn(config_of(manager, name, **reward_kwargs))
    return managers.get_reward_manager_cls(manager)(byte_tokenizer(), 0, function)


def scores_of(tensor) -> list[float]:
    return tensor.sum(-1).tolist()


NAMES = dict.fromkeys(("naive", "dapo"), "compute_score")
NAMES |= {"batch": "compute_scores", "prime": "compute_score_prime"}


@pytest.mark.parametrize(("manager", "name"), NAMES.items())
def test_managers_of_older_versions(manager: str, name: str, code_url: str):
    loaded = legacy(manager, name, url=code_url)
    result = loaded(data_of(TEXTS), return_dict=True)
    assert scores_of(result["reward_tensor"]) == SCORES
    if manager != "prime":
        assert result["reward_extra_info"]["reward/failed"] == [0.0] * 5


def test_a_dead_service_ends_the_step_and_is_no_score_of_0(code_url: str, lost_url: str):
    given = {"url": lost_url, "timeout_s": 1}
    for manager, name in [("naive", "compute_score"), ("batch", "compute_scores")]:
        with pytest.raises(UNREACHABLE):
            legacy(manager, name, **given)(data_of([SUM]))
    with pytest.raises(MissingReward, match="cannot be reached"):
        legacy("prime", "compute_score_prime", **given)(data_of([SUM]))
    with pytest.raises(MissingReward, match="compute_score_prime"):  # it names the right function
        legacy("prime", "compute_score", url=code_url)(data_of([SUM]))


#: What a score of NaN, of None, and one that raises become, by the manager.
KEPT = ("naive", "dapo", "gdpo", "naive, legacy", "dapo, legacy", "batch, legacy")
MISSING = {name: ["nan", "TypeError", "ValueError"] for name in KEPT}
MISSING["rate_limited"] = ["nan", "TypeError", "0.0"]


@pytest.mark.parametrize("name", MISSING)
def test_what_managers_make_of_a_missing_score(name: str, monkeypatch: pytest.MonkeyPatch):
    """If a row differs in a new version, docs/trainers/failures.md is out of date."""
    manager, _, is_legacy = name.partition(", ")

    def score(**given: object) -> object:
        if isinstance(missing[-1], Exception):
            raise missing[-1]
        return missing[-1:] if "solution_strs" in given else missing[-1]

    monkeypatch.setattr(adapter, "compute_score", score)
    found = []
    missing = [ValueError(), None, math.nan]
    while missing:
        data = data_of([SUM])
        try:
            if is_legacy:
                values = legacy(manager, "compute_score")(data)
            else:
                loaded, score_of = loaded_of(manager, "compute_score")
                values = loaded.assemble_rm_scores(data, [score_of(data)["reward_score"]])
            found.append(str(*scores_of(values)))
        except (TypeError, ValueError) as error:
            found.append(type(error).__name__)
        missing.pop()
    assert found == MISSING[name]


def test_rate_limited_gets_an_error_that_it_does_not_turn_into_0(code_url: str, lost_url: str):
    for name in ("compute_score", "compute_score_async"):
        for url, timeout_s in ((code_url, 30), (lost_url, 0.3)):
            _, score_of = loaded_of("rate_limited", name, url=url, timeout_s=timeout_s)
            with nullcontext() if url == code_url else pytest.raises(MissingReward):
                score_of(data_of([SUM]))


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
async def test_the_trainer_of_verl_0_9_leaves_out_a_sample_with_an_error_or_its_group(
    mode: str, code_url: str, lost_url: str, monkeypatch: pytest.MonkeyPatch
):
    """`use_v1` rolls out groups of prompts into a queue, from which it draws the step's samples."""
    tq = pytest.importorskip("transfer_queue")
    loops = importlib.import_module("verl.trainer.ppo.v1.agent_loop_tq")
    buffers = importlib.import_module("verl.trainer.ppo.v1.replay_buffer")
    urls = {("a", 1): lost_url}
    group = {"is_prompt": True, "status": "running", "global_steps": 1}
    queue = {"a": dict(group), "b": dict(group)}

    async def put(key, partition_id, tag):
        queue[key].update(tag)

    async def run_agent_loop(params, *, trajectory, trace, session_id, uid):
        url = urls.get((uid, session_id), code_url)
        timeout_s = 30 if url == code_url else 0.3
        await adapter.compute_score_async("code", SUM, TESTS, {}, url=url, timeout_s=timeout_s)
        queue[f"{uid}_{session_id}_0"] = {"status": "success"}

    def clear(partition_id, keys):
        for each in keys:
            del queue[each]

    monkeypatch.setattr(tq, "async_kv_put", put)
    monkeypatch.setattr(tq, "kv_list", lambda: {"train": queue})
    monkeypatch.setattr(tq, "kv_clear", clear)
    rollout = SimpleNamespace(n=3)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    worker = SimpleNamespace(config=config, _run_agent_loop=run_agent_loop)
    run_prompt = loops.AgentLoopWorkerTQ.__ray_metadata__.modified_class._run_prompt
    for uid in ("a", "b"):
        await run_prompt(worker, {"uid": uid}, {}, {"validate": False})
    refilled: list[int] = []
    is_sync = mode == "sync"
    buffer_type = buffers.ReplayBuffer if is_sync else buffers.ReplayBufferAsync
    buffer = buffer_type(mode, None, None, "drop", {}, refill_fn=refilled.append)
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=1 + is_sync)
    others = ["a_0_0", "a_2_0"] if is_sync else []
    assert sorted(batch.keys) == [*others, "b_0_0", "b_1_0", "b_2_0"]
    assert refilled == ([] if is_sync else [1])


def test_a_failure_is_left_out_of_the_metrics_of_validation(code_url: str, lost_url: str):
    utils = importlib.import_module("verl.trainer.ppo.metric_utils")
    lost = {"url": lost_url, "timeout_s": 0.3, "on_failure": 0.0}
    results = [
        adapter.compute_score("code", text, TESTS, None, **given)
        for text, given in (("print(input())", {"url": code_url}), (SUM, lost))
    ]
    infos = {key: np.array([each[key] for each in results]).tolist() for key in results[0]}
    metrics = utils.process_validation_metrics(["code"] * 2, ["a", "b"], infos)["code"]
    assert metrics["reward/pass_rate"] == {"mean@1": 0.5}
    assert metrics["reward/failed"] == {"mean@1": 0.5}
    values = [value for each in metrics.values() for value in each.values()]
    assert not any(math.isnan(value) for value in values)
    assert "reward/critique_valid" not in metrics
