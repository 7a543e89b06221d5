"""CTRL's `run_rl.py` and `RayPPOTrainer.fit`, at the commit in sources.toml, as its page says."""

import hashlib
import json
import math
import random
import re
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rewardfleet import RewardFleet, RewardFleetError
from rewardfleet.adapters import verl_advantages
from rewardfleet.adapters.ctrl import RewardModelForCritic, first_block

from ..programs import CASES, FENCED, HALF, RIGHT
from .peers import TIMEOUT, Peer, recorded
from .trainers import CONFIGS, HERE, ROOT, bare, byte_tokenizer, counted, edited

pytestmark = pytest.mark.slow

ROW = {"problem": "Add.", "solution": HALF, "prompter_type": "code_contests"}


def reward_fn(url: str, on_failure: Any = "raise") -> Any:
    """Return the `reward_fn` of CTRL's page, and the advantages of its page, of one problem."""
    with files([{"id": "7", **ROW, "selected_uts": CASES}], "jsonl") as paths:
        fleet = RewardFleet(code=url, on_failure=on_failure, **TIMEOUT)
        fn = RewardModelForCritic(paths, byte_tokenizer(), fleet=fleet)
    fn.grpo = verl_advantages.grpo
    return fn


@contextmanager
def files(rows: list[dict[str, Any]], kind: str) -> Any:
    """Write each row into a training file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{number}.{kind}" for number in range(len(rows))]
        for path, row in zip(paths, rows, strict=True):
            if kind == "jsonl":
                Path(path).write_text(json.dumps(row))
            else:
                import pandas as pd

                pd.DataFrame([row]).to_parquet(path)
        yield paths


# The same entry, before and after the edit of the page

#: Tests in the three forms that CTRL runs in different ways, by problem.
SCRIPT = ["assert double(2) == 4", "assert double(3) == 6"]
PROBLEMS = {
    "stdio": {**ROW, "selected_uts": json.dumps(CASES)},
    "text": {**ROW, "prompter_type": "mbppplus", "selected_uts": "\n".join(SCRIPT)},
    "list": {**ROW, "prompter_type": "mbppplus", "selected_uts": SCRIPT},
}
ROWS = [{"id": name, **row, "problem": f"[{name}]"} for name, row in PROBLEMS.items()]
#: Of each form: a program that passes both tests, and one that passes the first or one of them.
_DOUBLE = ("def double(x):\n    return 2 * x", "def double(x):\n    return 4")
PROGRAMS = {"stdio": (RIGHT, HALF), "text": _DOUBLE, "list": _DOUBLE}


def _fenced(program: str) -> str:
    return f"```python\n{program}\n```"


#: Critiques by their mark, and what is revised from them, of the programs RIGHT and HALF.
CRITIQUES: dict[str, list[str]] = json.loads((CONFIGS / "ctrl_critiques.json").read_text())


def revised(kind: str, mark: str) -> str:
    right, half = PROGRAMS[kind]
    return CRITIQUES[mark][1].replace("RIGHT", right).replace("HALF", half)


def page_edit(rules: str, url: str) -> dict[str, str]:
    """Return the edit of the page, with the rules and the address of the test."""
    page = (ROOT / "docs/trainers/ctrl.md").read_text()
    block = re.search(r"## In `run_rl.py`.*?```python\n(.*?)```", page, re.DOTALL)[1]
    given = block.replace("http://127.0.0.1:18081", url)
    edit = given.replace("fleet=fleet)", f"fleet=fleet, rules={rules!r})")
    return {"from ctrl.rl.critic_rm import RewardModelForCritic\n": edit}


ADAPTERS = {
    "ctrl": lambda url, _: reward_fn(url),
    "ctrl, down": lambda _, down_url: reward_fn(down_url),
    "ctrl, down, NaN": lambda _, down_url: reward_fn(down_url, math.nan),
}


class Workers:
    """Stands in for the models: given critiques, and revisions of prompts."""

    world_size = 1

    def __init__(self, critiques: list[str], revise: Callable[[str], str]) -> None:
        self.critiques, self.revise = critiques, revise
        self.tokenizer = byte_tokenizer()

    def padded(self, texts: list[str]) -> Any:
        given = self.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        return given["input_ids"]

    def generate_sequences(self, prompts: Any) -> Any:
        import torch
        from verl import DataProto

        problems = len(prompts.batch["input_ids"])
        responses = self.padded(self.critiques * problems)
        mask = (responses != self.tokenizer.pad_token_id).long()
        first = prompts.batch["input_ids"].repeat_interleave(len(self.critiques), dim=0)
        batch = {"prompts": first, "responses": responses}
        batch["attention_mask"] = torch.cat([torch.ones_like(first), mask], dim=1)
        return DataProto.from_single_dict(batch)

    def generate_sequences_ref(self, prompts: Any) -> Any:
        from verl import DataProto

        ids = prompts.batch["input_ids"]
        self.prompts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        revisions = self.padded([*map(self.revise, self.prompts)])
        return DataProto.from_single_dict({"responses": revisions})

    def compute_log_prob(self, batch: Any, name: str = "old_log_probs") -> Any:
        import torch
        from verl import DataProto

        return DataProto.from_single_dict({name: torch.zeros(batch.batch["responses"].shape)})

    def compute_ref_log_prob(self, batch: Any) -> Any:
        return self.compute_log_prob(batch, "ref_log_prob")

    def update_actor(self, batch: Any) -> Any:
        from verl import DataProto

        self.batch = batch.batch
        return DataProto(meta_info={"metrics": {}})


def fit(trainer: Any, workers: Workers, ids: list[str], reward_fn: Any, config: Any) -> None:
    """Run a step of CTRL's trainer, with GRPO's advantages of the page."""
    import torch
    from ctrl.rl import critic_ray_trainer
    from verl.utils import tracking

    # As the page says; the estimator gets its arguments by these names.
    def advantages(token_level_rewards: Any, eos_mask: Any, index: Any) -> Any:
        grpo = getattr(reward_fn, "grpo", verl_advantages.grpo)
        return grpo(token_level_rewards, eos_mask, index)

    tracking.Tracking = Mock()
    critic_ray_trainer.core_algos.compute_grpo_outcome_advantage = advantages
    critic_ray_trainer.uuid = counted()
    trainer.tokenizer, trainer.config = workers.tokenizer, config
    trainer.reward_fn, trainer.val_reward_fn = reward_fn, None
    trainer.actor_rollout_wg, trainer.total_training_steps = workers, 2
    trainer.use_critic = trainer.use_rm = False
    prompt = torch.ones(len(ids), 2, dtype=torch.long)
    names = ("input_ids", "attention_mask", "position_ids")
    batch = {**dict.fromkeys(names, prompt), "problem_id": np.array(ids, dtype=object)}
    trainer.train_dataloader = [batch]
    critic_ray_trainer.RayPPOTrainer.fit(trainer)


def settings(n: int, **fields: Any) -> Any:
    from omegaconf import OmegaConf

    config = OmegaConf.load(CONFIGS / "ctrl.yaml")
    changes = {"actor_rollout_ref": {"rollout": {"n": n}}, "data": fields}
    return OmegaConf.merge(config, changes)


def entry(peer: Peer, rules: str | None, run_all_cases: bool) -> tuple[dict[str, float], list[str]]:
    """Run `run_rl.py`, edited or (without rules) not; return rewards by mark, and the prompts."""
    import verl.utils

    names = ("ActorRolloutRefWorker", "CriticWorker")
    bare("ctrl.rl.critic_fsdp_workers", **dict.fromkeys(names, type("Worker", (), {})))  # for GPUs
    verl.utils.hf_tokenizer = lambda _: byte_tokenizer()

    def mark_of(prompt: str) -> list[str]:
        names = (PROGRAMS, CRITIQUES)
        return [re.search(rf"\[({'|'.join(each)})\]", prompt)[1] for each in names]

    critiques = [f"[{mark}] {text}" for mark, (text, _) in CRITIQUES.items()]
    workers = Workers(critiques, lambda prompt: revised(*mark_of(prompt)))

    class Trainer:
        def __init__(self, *, config: Any, reward_fn: Any, **_: Any) -> None:
            self.config, self.reward_fn = config, reward_fn

        def init_workers(self) -> None:
            pass

        def _balance_batch(self, batch: Any, metrics: Any) -> None:
            pass

        def fit(self) -> None:
            fit(self, workers, list(PROBLEMS), self.reward_fn, self.config)

    changes = {} if rules is None else page_edit(rules, peer.direct_url)
    if run_all_cases:
        changes["num_examine=0,\n        run_all_cases=False"] = "run_all_cases=True"
    with files(ROWS, "parquet") as paths:
        run_rl = edited("run_rl", changes)
        run_rl.RayPPOTrainer = Trainer
        config = settings(len(CRITIQUES), train_files=paths, val_files=paths)
        run_rl.main_task._function(config)
    rewards = workers.batch["token_level_scores"].sum(-1).tolist()
    marks = [" ".join(mark_of(prompt)) for prompt in workers.prompts]
    return dict(zip(marks, rewards, strict=True)), workers.prompts


def first_blocks() -> dict[str, int]:
    """Compare the first block of random texts with the one that CTRL finds."""
    from ctrl.rl.critic_rm import desanitize, sanitize

    rng, pieces = random.Random(0), ["```", "python", "PYTHON", "py", "\n", " ", "x = 1", "`", "\t"]
    found = {"texts": 0, "other": 0}
    for _ in range(20_000):
        text = "".join(rng.choices(pieces, k=rng.randrange(9)))
        block = first_block(text)
        cut = _fenced(block) if block else text
        of_ctrl = sanitize(text)
        is_same = not block or block.strip() == desanitize(of_ctrl).strip()
        found["texts"] += 1
        found["other"] += cut != of_ctrl or not is_same
    return found


@recorded("ctrl", ADAPTERS)
def ctrl(peer: Peer) -> dict[str, Any]:
    """Steps of `RayPPOTrainer.fit`: by the entry of CTRL, and with failures."""
    import sandbox_fusion
    from ctrl.rl import critic_ray_trainer

    incorrect = "Overall judgment: Incorrect"
    critiques = [f"right. {incorrect}", f"half. {incorrect}", "right, no judgment", ""]

    def step(name: str) -> dict[str, Any]:
        fn = peer.adapter(name)
        # The wording of CTRL is not recorded.
        fn.build_revision_messages = fn._adapter.build_revision_messages
        workers = Workers(critiques, lambda prompt: FENCED if "right" in prompt else HALF)
        trainer = object.__new__(critic_ray_trainer.RayPPOTrainer)
        fit(trainer, workers, ["7"], fn, settings(4))
        return {
            "rewards": workers.batch["token_level_scores"].sum(-1).tolist(),
            "advantages": workers.batch["advantages"][:, 0].tolist(),
        }

    found: dict[str, Any] = {"up": step("ctrl"), "down, NaN": step("ctrl, down, NaN")["advantages"]}
    try:
        found["down"] = step("ctrl, down")
    except RewardFleetError:
        found["down"] = "raised"

    sandbox_fusion.set_endpoint(peer.direct_url)
    prompts = {}
    for every in (False, True):
        for rules in (None, "original", "service"):
            name = f"entry, {rules}, {every}"
            found[name], prompts[name] = entry(peer, rules, every)
    found["prompts"] = {
        name: hashlib.sha256("\n".join(each).encode()).hexdigest() for name, each in prompts.items()
    }
    found["first blocks"] = first_blocks()
    return found


async def test_the_edited_entry_rewards_as_the_original_and_a_missing_reward_has_no_advantage(
    code_url: str, dead_url: str
):
    pytest.importorskip("torch")
    found = await ctrl(code_url, dead_url)
    # The last critique is empty: no token of it has an advantage.
    assert found["up"]["rewards"] == [1.0, 0.5, 0.0, 0.0]
    assert found["up"]["advantages"] == pytest.approx([1.3056, 0.2611, -0.7833, 0.0], abs=1e-3)
    assert found["down, NaN"] == [0.0] * 4
    assert found["down"] == "raised"
    assert len(set(found["prompts"].values())) == 1, "the prompts of the original"
    assert found["first blocks"] == {"texts": 20_000, "other": 0}
    for every in (False, True):
        original = found[f"entry, None, {every}"]
        assert found[f"entry, original, {every}"] == original
        service = found[f"entry, service, {every}"]
        kinds = {mark.split()[1] for mark in original if original[mark] != service[mark]}
        assert kinds == {"first", "last", "markdown", "spelling", "both", "thought"}, "see the page"


@pytest.mark.parametrize("every", [False, True])
async def test_the_recorded_rewards_of_the_original_are_given(code_url: str, every: bool):
    """Without PyTorch, and without CTRL."""
    took = json.loads((HERE / "recorded/ctrl.json").read_text())["took"]
    fleet = RewardFleet(code=code_url)
    with files(ROWS, "jsonl") as paths:
        fn = RewardModelForCritic(paths, None, 0, every, fleet=fleet, rules="original")
    marks = [mark.split() for mark in took[f"entry, None, {every}"]]
    _, samples = fn.parse_query([kind for kind, _ in marks])
    critiques = [CRITIQUES[mark][0] for _, mark in marks]
    revisions = [revised(*each) for each in marks]
    rewards = await fn.get_reward_all(critiques, revisions, samples)
    assert rewards == list(took[f"entry, None, {every}"].values())
    found = {tuple(each): reward for each, reward in zip(marks, rewards, strict=True)}
    half = {kind: found[kind, "half"] for kind in PROBLEMS}
    assert half == {"stdio": every / 2, "list": every / 2, "text": 0}, "one program, as a text"
