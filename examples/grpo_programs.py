"""A small model learns to write programs from their test results alone.

    python examples/grpo_programs.py runs/grpo docs/learning.png

A byte-level Llama of 0.1 million weights is warmed up on short Python functions, of which few do
what their prompt says. Then TRL's GRPO trains it, and two replicas of the code service run its
programs. Needs torch, TRL and matplotlib; takes minutes on two cores.

Each seed is trained with the real rewards, and with the same rewards in random order, from which
nothing can be learned. The first seed is trained once more while a replica is killed halfway.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from datasets import Dataset
from matplotlib import pyplot as plt
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, PrinterCallback
from transformers import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from rewardfleet.adapters.trl import reward_function

#: What the prompts ask for, the function that does it, and the same in this process.
TASKS: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    "sum": ("a+b", lambda a, b: a + b),
    "difference": ("a-b", lambda a, b: a - b),
    "product": ("a*b", lambda a, b: a * b),
    "quotient": ("a//b", lambda a, b: a // b),
    "remainder": ("a%b", lambda a, b: a % b),
    "power": ("a**b", lambda a, b: a**b),
    "larger": ("max(a,b)", max),
    "smaller": ("min(a,b)", min),
}
#: Share of the warm-up's programs that fit their prompt, besides those that do by chance.
FITTING = 0.15
WARM_UP_STEPS, WARM_UP_BATCH = 300, 64
STEPS = 50
#: Prompts per step, and programs per prompt.
PROMPTS, PROGRAMS = 8, 8


class Run(NamedTuple):
    """A run: with real rewards, with shuffled rewards, or while a replica is killed."""

    name: str
    seed: int
    folder: Path
    steps: int
    score_log: Path | None


def main() -> None:
    """Train all runs, print a table, draw a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of models and results.json")
    parser.add_argument("figure", type=Path, help="e.g. learning.png")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=2, help="runs that are trained at a time")
    parser.add_argument("--score-log", type=Path, help="keeps the programs, for `rewardfleet look`")
    given = parser.parse_args()
    shared = given.folder, given.steps, given.score_log
    runs = [Run("killed", given.seeds[0], *shared)]
    runs += [Run(name, seed, *shared) for seed in given.seeds for name in ("real", "shuffled")]
    given.folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, context) as pool:
        list(pool.map(warm_up, given.seeds, [given.folder] * len(given.seeds)))
        results = list(pool.map(train, runs))
    (given.folder / "results.json").write_text(json.dumps(results, indent=1))
    report(results)
    draw(results, given.figure)


# The model.


def warm_up(seed: int, folder: Path) -> None:
    """Write a model whose programs have the right form, but seldom fit their prompt."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    torch.manual_seed(seed)
    choose = random.Random(seed)  # noqa: S311 - not for secrets
    tokenizer = ByT5Tokenizer(extra_ids=0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(WARM_UP_STEPS):
        names = choose.choices(list(TASKS), k=WARM_UP_BATCH)
        written = [
            name if choose.random() < FITTING else choose.choice(list(TASKS)) for name in names
        ]
        batch = tokenizer(names, [*map(program, written)], padding=True, return_tensors="pt")
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        model(batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / f"model-{seed}")


def program(name: str) -> str:
    """Return the program that does what a prompt says."""
    return f"def f(a,b):return {TASKS[name][0]}"


def tests(name: str) -> dict[str, Any]:
    """Return the tests of a prompt."""
    choose = random.Random(name)  # noqa: S311 - not for secrets
    pairs = [(choose.randint(2, 9), choose.randint(2, 9)) for _ in range(4)]
    cases = [{"args": pair, "expected": TASKS[name][1](*pair)} for pair in pairs]
    return {"kind": "functional", "fn_name": "f", "cases": cases}


# The training.


def train(run: Run) -> dict[str, Any]:
    """Train a model; return the mean reward of each step, and how many rewards were missing."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    with ExitStack() as stack:
        replicas = [stack.enter_context(code_service()) for _ in range(2)]
        reward = Rewards(run, replicas)
        trainer = GRPOTrainer(
            LlamaForCausalLM.from_pretrained(run.folder / f"model-{run.seed}"),
            reward_funcs=reward.code_reward,
            args=GRPOConfig(
                str(run.folder / f"{run.name}-{run.seed}"),
                seed=run.seed,
                max_steps=run.steps,
                per_device_train_batch_size=PROMPTS * PROGRAMS,
                num_generations=PROGRAMS,
                max_completion_length=32,
                learning_rate=4e-4,
                beta=0.05,
                lr_scheduler_type="constant",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(
                [{"prompt": name, "tests": json.dumps(tests(name))} for name in TASKS] * run.steps
            ),
            processing_class=ByT5Tokenizer(extra_ids=0),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        alive = sum(each.process.poll() is None for each in replicas)
    return {
        "name": run.name,
        "seed": run.seed,
        "rewards": [each["reward"] for each in trainer.state.log_history if "reward" in each],
        "missing": reward.missing,
        "replicas at the end": alive,
    }


class Rewards:
    """The rewards of a run.

    Attributes:
        missing: How many completions got no reward.
    """

    def __init__(self, run: Run, replicas: Sequence["Replica"]) -> None:
        self._run = run
        self._replicas = replicas
        self._reward: Any = reward_function(
            "code",
            [each.url for each in replicas],
            run=f"{run.name}-{run.seed}",
            score_log=run.score_log,
        )
        self._shuffle = random.Random(run.seed)  # noqa: S311 - not for secrets
        self._calls = 0
        self.missing = 0

    async def code_reward(self, **given: Any) -> list[float]:
        """Return one reward per completion; TRL awaits it once per step."""
        self._calls += 1
        if self._run.name == "killed" and self._calls == self._run.steps // 2:
            replica = self._replicas[0].process
            replica.send_signal(signal.SIGSTOP)  # so that its requests wait when it is killed
            asyncio.get_running_loop().call_later(0.1, replica.kill)
        rewards: list[float] = await self._reward(**given)
        self.missing += int(np.isnan(rewards).sum())
        if self._run.name == "shuffled":
            self._shuffle.shuffle(rewards)
        return rewards


class Replica(NamedTuple):
    """A code service that runs."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def code_service() -> Iterator[Replica]:
    """Run a code service."""
    # Without the file of cached scores, so that each run computes its own.
    options = ["--port", "0", "--cache", ""]
    command = [sys.executable, "-m", "rewardfleet_server", "serve", "code", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            line = next((each for each in process.stderr if "http://" in each), None)
            if line is None:
                raise SystemExit("the code service did not start: see rewardfleet doctor")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield Replica(json.loads(line)["message"].partition(" on ")[2], process)
        finally:
            process.terminate()


# The report.


def tenths(result: Mapping[str, Any]) -> tuple[float, float]:
    """Return the mean reward of the first and of the last tenth of the steps."""
    tenth = max(1, len(result["rewards"]) // 10)
    return float(np.mean(result["rewards"][:tenth])), float(np.mean(result["rewards"][-tenth:]))


def report(results: Sequence[Mapping[str, Any]]) -> None:
    """Print a table as Markdown."""
    print("| rewards | seed | steps | first tenth | last tenth | missing rewards |")
    print("|---|---|---|---|---|---|")
    for result in results:
        first, last = tenths(result)
        print(
            f"| {result['name']} | {result['seed']} | {len(result['rewards'])} | {first:.2f} "
            f"| {last:.2f} | {result['missing']} |"
        )


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the mean rewards over the steps."""
    mpl.use("Agg")
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    styles = {"real": "C0-", "shuffled": "C7-", "killed": "C1:"}
    for result in sorted(results, key=lambda each: list(styles).index(each["name"])):
        rewards, width = np.array(result["rewards"]), 4
        means = np.convolve(rewards, np.ones(width) / width, mode="valid")
        first = result["seed"] == results[0]["seed"]
        label = {"real": "rewards", "shuffled": "the same, shuffled", "killed": "replica killed"}
        axis.plot(
            np.arange(width, len(rewards) + 1),
            means,
            styles[result["name"]],
            linewidth=3 if result["name"] == "killed" else 1.5,
            label=label[result["name"]] if first else None,
        )
    axis.axvline(len(results[0]["rewards"]) // 2, color="C1", linewidth=1)
    axis.set(xlabel="step", ylabel="mean reward (of 4 steps)", ylim=(0, 1))
    axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
