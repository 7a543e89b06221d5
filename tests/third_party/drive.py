"""Run a trainer's own code: python -m third_party.drive NAME URL DIRECT_URL DOWN_URL.

Its source is on the path. Requests to URL are recorded, those to DIRECT_URL are not; DOWN_URL
refuses connections. The last line of the output is a JSON object: what the trainer took from the
answers, and the calls of adapters.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import json
import math
import re
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np

from rewardfleet import RewardFleet, RewardFleetError
from rewardfleet.adapters import verl_advantages
from rewardfleet.adapters.ctrl import RewardModelForCritic
from rewardfleet.adapters.nemo_rl import ScoringEnvironment
from rewardfleet.adapters.simplevla import (
    RobRewardManager,
    forward_test_time_rl,
    keep_selected,
    sample_temperatures,
)
from rewardfleet.adapters.verl_agent import EpisodeRewardManager, filter_group_data

from .exchange import Recorder, Wire

ROOT = Path(__file__).parent.parent.parent
LIBERO = ROOT / "tests/data/libero"

SUM = "So:\n```python\nprint(sum(map(int, input().split())))\n```\n"
ECHO = "print(input())"
#: SUM passes both, ECHO the second one.
TESTS = {"inputs": ["1 2", "7"], "outputs": ["3", "7"]}

#: Of calls to a service that is down, which are repeated until then.
TIMEOUT = {"timeout_s": 3}


def ctrl_reward_fn(url: str, on_failure: Any = "raise") -> Any:
    """Return the `reward_fn` of CTRL's page, and the advantages of its page, of one problem."""
    cases = zip(TESTS["inputs"], TESTS["outputs"], strict=True)
    tests = [{"input": {"stdin": each}, "output": {"stdout": out}} for each, out in cases]
    row = {"id": "7", "problem": "Add.", "solution": ECHO, "prompter_type": "code_contests"}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps({**row, "selected_uts": tests}))
        file.flush()
        fleet = RewardFleet(code=url, on_failure=on_failure, **TIMEOUT)
        fn = RewardModelForCritic(file.name, byte_tokenizer(), fleet=fleet)
    fn.grpo = verl_advantages.grpo
    return fn


def verl_agent_adapter() -> Any:
    from omegaconf import OmegaConf

    def filtered(*, config: Any, **given: Any) -> Any:
        return filter_group_data(**given, config=OmegaConf.create(config))  # it is recorded as JSON

    grouped = EpisodeRewardManager(None, 0, normalization_type="group_mean")
    plain = EpisodeRewardManager(None, 0)
    return SimpleNamespace(filter_group_data=filtered, plain=plain, grouped=grouped)


#: Settings of SimpleVLA-RL, with rewards times 5.
SIMPLEVLA = """
test_time_rl: true
data: {task_suite_name: libero_spatial, train_batch_size: 1, n_samples: 4, filter_accuracy: true}
actor_rollout_ref: {model: {max_steps: 8, action_token_len: 7}}
algorithm: {adv_estimator: grpo}
verifier: {reward_coef: 5}
trainer: {total_epochs: 1}
"""


def simplevla_adapter() -> Any:
    from omegaconf import OmegaConf

    manager = RobRewardManager(0, OmegaConf.create(SIMPLEVLA))
    manager.keep_selected = keep_selected
    return manager


#: Adapters, made from the address of a service and one that refuses connections.
ADAPTERS: dict[str, Callable[[str, str], Any]] = {
    "wire": lambda url, _: Wire(url),
    "nemo_rl": lambda url, _: ScoringEnvironment({"service": "code", "url": url, **TIMEOUT}),
    "nemo_rl, down": lambda _, url: ScoringEnvironment({"service": "code", "url": url, **TIMEOUT}),
    "ctrl": lambda url, _: ctrl_reward_fn(url),
    "ctrl, down": lambda _, down: ctrl_reward_fn(down),
    "ctrl, down, NaN": lambda _, down: ctrl_reward_fn(down, math.nan),
    "verl_agent": lambda *_: verl_agent_adapter(),
    "simplevla": lambda *_: simplevla_adapter(),
}


class Peer:
    """What the functions below get."""

    def __init__(self, url: str, direct_url: str, down_url: str) -> None:
        self.url, self.direct_url, self.down_url = url, direct_url, down_url
        self.calls: list[dict[str, Any]] = []

    def adapter(self, name: str) -> Recorder:
        return Recorder(ADAPTERS[name](self.direct_url, self.down_url), name, self.calls)


def slime(peer: Peer) -> dict[str, Any]:
    """`batched_async_rm` of samples with `rm-type: remote_rm`."""
    from slime.rollout import rm_hub
    from slime.utils.types import Sample

    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    # Its ten attempts would take 151 s or more.
    rm_hub.asyncio = SimpleNamespace(sleep=wait, gather=asyncio.gather)

    async def rewards(url: str, responses: list[str], label: object) -> list[float]:
        args = SimpleNamespace(custom_rm_path=None, rm_type="remote_rm", rm_url=f"{url}/slime")
        samples = [Sample(prompt="Add.", response=each, label=label) for each in responses]
        return await rm_hub.batched_async_rm(args, samples)

    async def failure(url: str, label: object) -> list[object]:
        waits.clear()
        try:
            return [await rewards(url, [SUM], label)]
        except Exception as error:
            return [type(error).__name__, len(waits) + 1]

    async def run() -> dict[str, Any]:
        tests = json.dumps(TESTS)
        found = {
            "rewards": await rewards(peer.url, [SUM, ECHO, "", f"{ECHO}<|im_end|>"], tests),
            "label that is no test": await failure(peer.url, "three"),
            "down": await failure(peer.down_url, tests),
        }
        await rm_hub._get_shared_session().close()
        return found

    return asyncio.run(run())


def rlinf(peer: Peer) -> dict[str, Any]:
    """`EmbodiedAPIRewardWorker.compute_reward`, of two windows of a real LIBERO rollout.

    The second window is the first one backwards. Its second camera, which LIBERO's rollouts here
    lack, is black, and frames are small, so that the recording is.
    """
    bare("rlinf.models.embodiment.reward")  # it imports torchvision, for a reward model
    import torch
    from omegaconf import OmegaConf
    from rlinf.workers.reward import api_reward_worker as worker_module

    # RLinf loads its processor from a checkpoint and does not use it.
    worker_module.load_vlm_processor = lambda *_: None
    rollout = next(each for each in rollouts() if each["success"] and "plate" in each["file"])
    frames = small_frames(rollout["file"], [0, 30, 60, 90, 120])
    main = [torch.tensor(each) for each in frames]
    black = [torch.zeros(48, 48, 3, dtype=torch.uint8)] * 5
    page = (ROOT / "docs/trainers/rlinf.md").read_text()
    (settings,) = re.findall(r"```yaml\n(reward:.*?)```", page, re.DOTALL)

    def rewards(url: str, task: str, windows: list[Any]) -> list[float]:
        config = OmegaConf.create(settings)
        config.reward.api.api_base = url
        # Without the base class's constructor, which needs a cluster of Ray, and a GPU.
        worker = object.__new__(worker_module.EmbodiedAPIRewardWorker)
        worker.cfg, worker._standalone_realworld = config, False
        worker.train_batch_size, worker._world_size = 2, 1
        worker.init_worker()
        number = len(windows)
        cameras = {"main_images": windows, "extra_view_images": [black] * number}
        history = {"history_window": cameras}
        given = {"history_input": history, "task_descriptions": [task] * number}
        return worker.compute_reward(given).flatten().tolist()

    def failure(url: str, task: str) -> str:
        try:
            return str(rewards(url, task, [black]))
        except RuntimeError as error:
            return str(error).replace(url, "URL").partition(" attempt")[0].partition(", body")[0]

    task = rollout["task_text"]
    return {
        "rewards": rewards(peer.url, task, [main, main[::-1]]),
        "no task": failure(peer.url, ""),
        "down": failure(peer.down_url, task),
    }


def nemo_rl(peer: Peer) -> dict[str, Any]:
    """`create_env` and `calculate_rewards`, with the registered environment as an actor of Ray."""
    bare("pynvml")  # for GPUs
    bare("nemo_rl.utils.logger", Logger=object)  # it imports mlflow
    import ray
    from nemo_rl.environments.utils import create_env
    from nemo_rl.experience.rollouts import calculate_rewards

    from rewardfleet.adapters import nemo_rl as adapter

    adapter.register()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)

    def rewards(name: str, url: str, responses: list[str]) -> list[float]:
        actor = create_env("rewardfleet", {"service": "code", "url": url, **TIMEOUT})

        def step(*given: Any) -> Any:
            reference = actor.step.remote(*given)
            recorder = Recorder(None, name, peer.calls)
            with contextlib.suppress(Exception):  # `calculate_rewards` raises it
                recorder.recorded(lambda *_: ray.get(reference), "step")(*given)
            return reference

        user = {"role": "user", "content": "Add."}
        texts = [{"role": "assistant", "content": each} for each in responses]
        batch = {
            "message_log": [[user, each] for each in texts],
            "task_name": ["rewardfleet"] * len(texts),
            "extra_env_info": [{"ground_truth": json.dumps(TESTS)}] * len(texts),
        }
        env = SimpleNamespace(step=SimpleNamespace(remote=step))
        return calculate_rewards(batch, {"rewardfleet": env}).rewards.tolist()

    found: dict[str, Any] = {}
    found["rewards"] = rewards("nemo_rl", peer.direct_url, [SUM, ECHO, "", f"{ECHO}<|im_end|>"])
    try:
        found["down"] = rewards("nemo_rl, down", peer.down_url, [SUM])
    except ray.exceptions.RayTaskError as error:
        found["down is one of ours"] = isinstance(error, RewardFleetError)
    ray.shutdown()
    return found


def ctrl(peer: Peer) -> dict[str, Any]:
    """A step of `RayPPOTrainer.fit`, with GRPO's advantages of the page; workers are a stand-in."""
    import torch
    from ctrl.rl import critic_ray_trainer
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils import tracking

    tracking.Tracking = Mock()
    tokenizer = byte_tokenizer()
    incorrect = "Overall judgment: Incorrect"
    critiques = [f"right. {incorrect}", f"half. {incorrect}", "right, no judgment", ""]

    class Workers:
        world_size = 1

        def generate_sequences(self, prompts: Any) -> Any:
            responses = padded(tokenizer, critiques)
            mask = (responses != tokenizer.pad_token_id).long()
            first = prompts.batch["input_ids"].repeat_interleave(len(critiques), dim=0)
            batch = {"prompts": first, "responses": responses}
            batch["attention_mask"] = torch.cat([torch.ones_like(first), mask], dim=1)
            return DataProto.from_single_dict(batch)

        def generate_sequences_ref(self, prompts: Any) -> Any:
            texts = tokenizer.batch_decode(prompts.batch["input_ids"], skip_special_tokens=True)
            answers = [SUM if "right" in each else ECHO for each in texts]
            return DataProto.from_single_dict({"responses": padded(tokenizer, answers)})

        def compute_log_prob(self, batch: Any) -> Any:
            zeros = torch.zeros(batch.batch["responses"].shape)
            return DataProto.from_single_dict({"old_log_probs": zeros})

        def compute_ref_log_prob(self, batch: Any) -> Any:
            zeros = torch.zeros(batch.batch["responses"].shape)
            return DataProto.from_single_dict({"ref_log_prob": zeros})

        def update_actor(self, batch: Any) -> Any:
            self.batch = batch.batch
            return DataProto(meta_info={"metrics": {}})

    def step(name: str) -> dict[str, Any]:
        fn = peer.adapter(name)

        # As the page says; the estimator gets its arguments by these names.
        def advantages(token_level_rewards: Any, eos_mask: Any, index: Any) -> Any:
            return fn.grpo(token_level_rewards, eos_mask, index)

        critic_ray_trainer.core_algos.compute_grpo_outcome_advantage = advantages
        critic_ray_trainer.uuid = counted()
        trainer = object.__new__(critic_ray_trainer.RayPPOTrainer)
        trainer.tokenizer, trainer.reward_fn, trainer.val_reward_fn = tokenizer, fn, None
        trainer.actor_rollout_wg, trainer.total_training_steps = Workers(), 2
        trainer.use_critic = trainer.use_rm = False
        trainer.config = OmegaConf.create(
            """
            trainer: {total_epochs: 1, critic_warmup: 0, save_freq: -1, test_freq: -1,
                      project_name: p, experiment_name: e, logger: null}
            data: {}
            algorithm: {adv_estimator: grpo, gamma: 1.0, lam: 1.0}
            actor_rollout_ref: {actor: {use_kl_loss: true}, rollout: {n: 4}}
            """
        )
        prompt = torch.ones(1, 2, dtype=torch.long)
        ids = np.array(["7"], dtype=object)
        names = ("input_ids", "attention_mask", "position_ids")
        trainer.train_dataloader = [{**dict.fromkeys(names, prompt), "problem_id": ids}]
        trainer.fit()
        found = trainer.actor_rollout_wg.batch
        return {
            "rewards": found["token_level_scores"].sum(-1).tolist(),
            "advantages": found["advantages"][:, 0].tolist(),
        }

    found = {"up": step("ctrl"), "down, NaN": step("ctrl, down, NaN")["advantages"]}
    try:
        found["down"] = step("ctrl, down")
    except RewardFleetError:
        found["down"] = "raised"
    return found


def verl_agent(peer: Peer) -> dict[str, Any]:
    """`multi_turn_loop`, `compute_reward` and GRPO's advantages, of episodes of one step.

    One episode of each of two groups has no reward; the second group's others are equal.
    """
    bare("agent_system.environments", EnvironmentManagerBase=object)  # it imports simulators
    bare("verl.workers.rollout.async_server", AsyncLLMServerManager=object)  # it imports openai
    import torch
    from agent_system.multi_turn_rollout import rollout_loop
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo import ray_trainer

    tokenizer = byte_tokenizer()
    adapter = peer.adapter("verl_agent")
    rollout_loop.filter_group_data = adapter.filter_group_data
    rollout_loop.uuid = counted()
    outcomes = np.array([1.0, 0.0, np.nan, 1.0, 1.0, np.nan])

    class Workers:
        world_size = 1

        def generate_sequences(self, prompts: Any) -> Any:
            batch = dict(prompts.batch.items())
            batch["prompts"] = batch["input_ids"]
            batch["responses"] = torch.full((len(prompts), 3), tokenizer.eos_token_id)
            mask = torch.tensor([[1, 1, 0]] * len(prompts))
            batch["attention_mask"] = torch.cat([batch["attention_mask"], mask], dim=1)
            return DataProto.from_single_dict(batch)

    class Environments:
        def reset(self, kwargs: Any) -> Any:
            return {"text": ["Go."] * 6, "image": None, "anchor": None}, [{}] * 6

        def step(self, actions: list[str]) -> Any:
            return self.reset(None)[0], outcomes, np.ones(6, bool), [{}] * 6

        def success_evaluator(self, episode_rewards: Any, **_: Any) -> Any:
            return {"success_rate": episode_rewards}

    def step(manager: str, is_filtered: bool) -> dict[str, Any]:
        config = OmegaConf.create(
            {
                "data": {"train_batch_size": 2, "max_prompt_length": 10, "truncation": "error"},
                "env": {"rollout": {"n": 3}, "max_steps": 1},
                "algorithm": {"filter_groups": {"enable": is_filtered, "max_num_gen_batches": 1}},
            }
        )
        texts = {"raw_prompt": np.array([None] * 2), "data_source": np.array(["a"] * 2)}
        ids = torch.ones(2, 1, dtype=torch.long)
        prompts = DataProto.from_single_dict({"input_ids": ids, **texts})
        collector = rollout_loop.TrajectoryCollector(config, tokenizer)
        batch = collector.multi_turn_loop(prompts, Workers(), Environments())
        rewards, extra = ray_trainer.compute_reward(batch, getattr(adapter, manager))
        batch.batch["token_level_rewards"] = rewards
        estimator = ray_trainer.AdvantageEstimator.GRPO
        batch = ray_trainer.compute_advantage(batch, estimator, norm_adv_by_std_in_grpo=False)
        advantages = batch.batch["advantages"][:, 0].tolist()
        return {"rewards": rewards.tolist(), "advantages": advantages, **extra}

    return {"filtered": step("plain", True), "within groups": step("grouped", False)}


def simplevla(peer: Peer) -> dict[str, Any]:
    """A step of `RayTrainer.fit`, with the changes of the page; workers are a stand-in.

    Of four rollouts, two succeed, one fails, and the environment of the last one has failed.
    """
    import torch
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.utils import tracking

    tracking.Tracking = Mock()
    adapter = peer.adapter("simplevla")
    forward = "forward_test_time_rl(self.config, gen_batch.meta_info, self.reward_fn);"
    keep = "batch = keep_selected(batch, multiple_of=self.actor_rollout_wg.world_size)"
    ray_trainer = edited(
        "verl.trainer.ppo.ray_trainer",
        {
            "gen_batch_output = self.actor": f"{forward} gen_batch_output = self.actor",
            "batch = valid_batch\n": f"batch = valid_batch; {keep}\n",
        },
        keep_selected=adapter.keep_selected,
        forward_test_time_rl=forward_test_time_rl,
    )
    ray_trainer.uuid = counted()

    class Workers:
        world_size = 2

        def generate_sequences(self, prompts: Any) -> Any:
            self.temperatures = sample_temperatures(prompts.meta_info, 4)
            batch = {
                "responses": torch.zeros(4, 1, 56, dtype=torch.long),
                "complete": torch.tensor([True, True, False, False]),
                "finish_step": torch.tensor([2, 8, 8, 0]),
            }
            return DataProto.from_single_dict(batch)

        def update_actor(self, batch: Any) -> Any:
            self.batch = batch.batch
            return DataProto(meta_info={"metrics": {}})

        def compute_entropy(self, data: Any) -> Any:
            return DataProto(meta_info={"metrics": {}})

    task = {name: torch.tensor([[0]]) for name in ("task_id", "trial_id")}
    task["task_suite_name"] = np.array(["libero_spatial"], dtype=object)
    loader = Mock(get_next_batch=Mock(side_effect=[task, StopIteration]))
    loader.buffer_size.return_value = 0
    trainer = object.__new__(ray_trainer.RayTrainer)
    config = OmegaConf.load(Path(ray_trainer.__file__).parents[1] / "config/ppo_trainer.yaml")
    trainer.config = OmegaConf.merge(config, OmegaConf.create(SIMPLEVLA))
    trainer.tokenizer, trainer.train_dataloader = byte_tokenizer(), loader
    trainer.actor_rollout_wg, trainer.reward_fn, trainer.val_reward_fn = Workers(), adapter, None
    trainer.use_reference_policy = trainer.use_rm = trainer.use_critic = False
    trainer.kl_ctrl = Mock(value=0.0)
    trainer.fit()
    found = trainer.actor_rollout_wg.batch
    return {
        "temperatures": trainer.actor_rollout_wg.temperatures,
        "rewards": found["gt_scores"].sum(-1).tolist(),
        "advantages": found["advantages"][:, 0].tolist(),
    }


def edited(name: str, changes: dict[str, str], **contents: Any) -> Any:
    """Import a module of a trainer with lines changed as a page says."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text()
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(contents)
    exec(compile(source, spec.origin, "exec"), vars(module))
    return module


def counted() -> Any:
    """Return a module of names that are not random, so that a recording does not always change."""
    return SimpleNamespace(uuid4=itertools.count().__next__)


def byte_tokenizer() -> Any:
    from transformers import ByT5Tokenizer

    template = "{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"
    return ByT5Tokenizer(extra_ids=0, chat_template=template)


def padded(tokenizer: Any, texts: list[str]) -> Any:
    given = tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    return given["input_ids"]


def rollouts() -> list[dict[str, Any]]:
    return [json.loads(each) for each in (LIBERO / "manifest.jsonl").read_text().splitlines()]


def small_frames(file: str, indices: list[int]) -> list[Any]:
    import cv2

    video = cv2.VideoCapture(str(LIBERO / file))
    frames = [video.read()[1] for _ in range(max(indices) + 1)]
    video.release()
    return [cv2.resize(frames[each][..., ::-1], (48, 48)) for each in indices]


def bare(name: str, **contents: object) -> None:
    """Register a package without its `__init__`, so that its modules are loaded unchanged."""
    module = types.ModuleType(name)
    module.__path__ = [str(Path(folder) / name.replace(".", "/")) for folder in sys.path]
    vars(module).update(contents)
    sys.modules[name] = module


TRAINERS = {each.__name__: each for each in (slime, rlinf, nemo_rl, ctrl, verl_agent, simplevla)}

if __name__ == "__main__":
    peer = Peer(*sys.argv[2:])
    with contextlib.redirect_stdout(sys.stderr):
        found = TRAINERS[sys.argv[1]](peer)
    print(json.dumps({"took": found, "calls": peer.calls}))
