"""A router learns when tools are worth their cost: 20,000 prompts, a budget, the exact optimum.

    python examples/router_budget.py runs/router docs/router.png

Trains a small language model with random weights over HTTP against the tools service: one that runs
at `--url`, or one that it starts. Needs torch, transformers, pyarrow and matplotlib; takes minutes
on a CPU. After an interruption, the same command continues.

The prompts show a kind and a level. An answer needs a tool with the probability of its level, which
the prompt does not show. A scripted responder calls the tools that its prompt lists. So the
expected reward of each route is known, and with it the best that any policy can reach within the
budget.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import torch
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import logging as transformers_logging

from rewardfleet import blocking
from rewardfleet.tools import tools_request
from rewardfleet_router.config import RouterConfig, parse_arguments
from rewardfleet_router.metrics import read_metrics
from rewardfleet_router.responders import Rollout
from rewardfleet_router.routes import ROUTES, load_route_texts, rewrite_prompt
from rewardfleet_router.train import RouterTrainer

Floats = NDArray[np.float64]

#: The mix: percent of the prompts by kind.
KINDS = {"answerable": 20, "search": 30, "calculate": 30, "either": 20}


class Level(NamedTuple):
    """A level of difficulty, as the prompt shows it.

    Attributes:
        percent: Of the prompts of a kind.
        accuracy: How often a needed tool is called with the right parameters.
        search: Share of the search prompts of this level whose answer needs a tool.
        calculate: Likewise, of the calculate prompts.
        either: Likewise. Answerable prompts need none.
    """

    percent: int
    accuracy: float
    search: float
    calculate: float
    either: float

    def needs(self, kind: str) -> float:
        """Return the share of the prompts of a kind whose answer needs a tool."""
        return 0.0 if kind == "answerable" else float(getattr(self, kind))


LEVELS = (
    Level(9, 1.0, 0.0, 0.0, 0.0),
    Level(8, 1.0, 0.05, 0.05, 0.05),
    Level(8, 1.0, 0.125, 0.125, 0.125),  # a tool neither helps nor hurts on average
    Level(10, 0.95, 0.22, 0.26, 0.19),
    Level(10, 0.95, 0.26, 0.28, 0.22),
    Level(20, 0.95, 0.28, 0.31, 0.25),
    Level(8, 0.95, 0.90, 0.90, 0.90),
    Level(8, 0.95, 0.95, 0.95, 0.95),
    Level(9, 0.95, 1.00, 1.00, 1.00),
    Level(10, 0.95, 1.00, 1.00, 1.00),
)
TRAIN_ROWS, HELD_OUT_ROWS = 20_000, 5_000
#: Sampled routes per held-out prompt, so that the figures depend little on chance.
COPIES = 8

#: The reward is that of ToolRL as published.
VARIANT = "toolrl"

#: The tool that helps with a kind. `exchange_rate` searches and calculates, so it has no family
#: and is listed on both routes.
TOOLS = {"search": "web_search", "calculate": "calculator", "either": "exchange_rate"}
FAMILIES = {"web_search": "search", "calculator": "calculate"}
SYSTEM = """You may call tools.

**Available Tools**
1. Name: web_search
Description: Search the web
2. Name: calculator
Description: Compute a value
3. Name: exchange_rate
Description: Convert an amount

**Output Format**
think, tool_call, response"""
QUESTIONS = {
    "answerable": ("Say hello to {place}.", "Write a poem on {place}.", "Thank {place} politely."),
    "search": (
        "Who is mayor of {place}?",
        "When was {place} founded?",
        "Which river is in {place}?",
    ),
    "calculate": ("What is {a} times {b}?", "Divide {a} by {b}.", "Is {a} above the root of {b}?"),
    "either": ("How many {place} crowns are {a} dollars?", "Convert {a} dollars for {place}."),
}
PLACES = ("Arlen", "Brundo", "Celmar", "Dorvik", "Estrel", "Falmo", "Grenda", "Hosten")


class Run(NamedTuple):
    """What differs between the runs of a seed: the budget, and how advantages are computed."""

    budget: float
    advantage: str = "mean"


def main() -> None:
    """Train all runs, print a table, draw a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of data, checkpoints and results.json")
    parser.add_argument("figure", type=Path, help="e.g. router.png")
    parser.add_argument("--url", help="of a tools service; default: start one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[9, 10, 11])
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    parser.add_argument("overrides", nargs="*", help="key=value, e.g. trainer.total_epochs=1")
    arguments = parser.parse_intermixed_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    with tools_service(arguments.url) as url:
        table = expected_rewards(url)
        tasks = [
            SeedTask(folder / f"seed_{seed}", url, seed, table, tuple(arguments.overrides))
            for seed in arguments.seeds
        ]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
            free = list(pool.map(train_unconstrained, tasks))
            rest = [
                (task, name, run)
                for task, first in zip(tasks, free, strict=True)
                for name, run in constrained_runs(first["cost"], table).items()
            ]
            results = free + list(pool.map(train_run, *zip(*rest, strict=True)))
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    report(results)
    draw([run for run in results if run["seed"] == arguments.seeds[0]], arguments.figure)


# The world.


class Question(NamedTuple):
    """What a prompt shows, and what it needs."""

    kind: str
    level: int
    needs_tool: bool
    place: str
    first: int
    second: int


def questions(count: int, seed: int) -> list[Question]:
    """Return questions in the published mix: the shares of kind, level and need are exact."""
    random = np.random.default_rng(seed)
    chosen = []
    for kind, percent in KINDS.items():
        for number, level in enumerate(LEVELS):
            size = count * percent * level.percent // 10_000
            needs = round(size * level.needs(kind))
            for each in range(size):
                place = PLACES[random.integers(len(PLACES))]
                first, second = (int(value) for value in random.integers(10, 100, 2))
                chosen.append(Question(kind, number, each < needs, place, first, second))
    random.shuffle(chosen)
    return [Question(*each) for each in chosen]


def row_of(question: Question, index: int) -> dict[str, Any]:
    """Return a row as ToolRL's datasets have them, with the families of the tools."""
    templates = QUESTIONS[question.kind]
    text = templates[index % len(templates)].format(
        place=question.place, a=question.first, b=question.second
    )
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{text} Level {question.level}."},
        ],
        "reward_model": {"ground_truth": ground_truth(question), "style": "rule"},
        "extra_info": {
            "index": index,
            "kind": question.kind,
            "level": question.level,
            "question": json.dumps(question._asdict()),
        },
        "tool_families": json.dumps(FAMILIES),
    }


def ground_truth(question: Question) -> str:
    """Return the right answer."""
    if question.needs_tool:
        return call(TOOLS[question.kind], question)
    return "<think>I know this.</think>\n<response>Here it is.</response>"


def call(tool: str, question: Question, *, is_right: bool = True) -> str:
    """Return an answer that calls a tool, with one wrong parameter of two if it is not right."""
    first = question.first if is_right else question.first + 1
    parameters = {
        "web_search": {"query": f"fact {first}", "place": question.place},
        "calculator": {"first": first, "second": question.second},
        "exchange_rate": {"amount": first, "currency": question.place},
    }[tool]
    content = json.dumps({"name": tool, "parameters": parameters})
    return f"<think>A tool helps.</think>\n<tool_call>\n{content}\n</tool_call>"


def outcomes(messages: Sequence[Mapping[str, Any]], question: Question) -> list[tuple[float, str]]:
    """Return the possible answers of the responder to a prompt, with their probabilities.

    If the prompt lists tools, the responder calls one: the one that helps if it is there. Otherwise
    it answers without.
    """
    listed = [tool for tool in TOOLS.values() if f"Name: {tool}" in messages[0]["content"]]
    if not listed:
        return [(1.0, ground_truth(question._replace(needs_tool=False)))]
    wanted = TOOLS.get(question.kind)
    if wanted not in listed:
        return [(1.0, call(listed[0], question))]
    accuracy = LEVELS[question.level].accuracy
    right, wrong = call(wanted, question), call(wanted, question, is_right=False)
    return [(accuracy, right), (1 - accuracy, wrong)]


def respond(rollouts: Sequence[Rollout], *, generator: np.random.Generator) -> list[str]:
    """Answer as `outcomes` says. It reads the rewritten prompt, not the route."""
    texts = []
    for rollout in rollouts:
        question = Question(**json.loads(rollout.row.extra_info["question"]))
        possible = outcomes(rollout.messages, question)
        chosen = int(generator.random() >= possible[0][0])
        texts.append(possible[chosen][1])
    return texts


# The optimum.


@dataclass
class Table:
    """What is known of each (kind, level), in this order; K is their number.

    Attributes:
        share: [K], of the prompts.
        task: [K, 3], expected task rewards by route.
        cost: [K, 3], expected costs.
    """

    share: Floats
    task: Floats
    cost: Floats

    def row(self, kind: str, level: int) -> int:
        """Return the position of a kind and level."""
        return list(KINDS).index(kind) * len(LEVELS) + level


def expected_rewards(url: str) -> Table:
    """Return the exact expectations: all outcomes, scored by the service."""
    cells = list(itertools.product(KINDS, range(len(LEVELS))))
    weights, requests = [], []
    for (kind, level), needs_tool, route in itertools.product(cells, (True, False), ROUTES):
        needs = LEVELS[level].needs(kind)
        weight = needs if needs_tool else 1 - needs
        if not weight:
            continue
        question = Question(kind, level, needs_tool, PLACES[0], 12, 34)
        messages = rewrite_prompt([{"role": "system", "content": SYSTEM}], route, FAMILIES)
        for probability, answer in outcomes(messages, question):
            cell = cells.index((kind, level)), ROUTES.index(route)
            weights.append((*cell, probability * weight))
            requests.append(
                tools_request(answer, ground_truth(question), options={"variant": VARIANT})
            )
    with blocking.RewardFleet(tools=url) as fleet:
        scores = fleet.tools.score_batch(requests)
    task, cost = np.zeros((2, len(cells), len(ROUTES)))
    for (cell, action, weight), score in zip(weights, scores, strict=True):
        task[cell, action] += weight * float(score.details["task"])
        cost[cell, action] += weight * float(score.details["cost"])
    share = np.array([KINDS[kind] * LEVELS[level].percent / 10_000 for kind, level in cells])
    return Table(share, task, cost)


class Optimum(NamedTuple):
    """The best policy within a budget.

    Attributes:
        task: Its expected task reward.
        cost: Its expected cost.
        multiplier: λ: the reward that one more unit of cost would bring.
    """

    task: float
    cost: float
    multiplier: float


def optimum(table: Table, budget: float) -> Optimum:
    """Return the best that any policy can reach that sees kind and level.

    This is the fractional multiple-choice knapsack. For each cell, the routes on the upper concave
    hull of (cost, task) are steps that buy reward for cost; the steps are taken by reward per cost
    until the budget is spent, the last one in part.
    """
    task = cost = 0.0
    steps: list[tuple[float, float, float]] = []  # reward per cost, cost, reward
    for share, rewards, costs in zip(table.share, table.task, table.cost, strict=True):
        spent = costs.min()
        reward = rewards[costs == spent].max()
        task, cost = task + share * reward, cost + share * spent
        while True:
            better = [
                ((r - reward) / (c - spent), c, r)
                for r, c in zip(rewards, costs, strict=True)
                if c > spent and r > reward
            ]
            if not better:
                break
            slope, to_cost, to_reward = max(better)
            steps.append((slope, share * (to_cost - spent), share * (to_reward - reward)))
            reward, spent = to_reward, to_cost
    if cost > budget:
        raise ValueError(f"no policy costs {budget} or less")
    for slope, price, gain in sorted(steps, reverse=True):
        part = min(1.0, (budget - cost) / price)
        task, cost = task + part * gain, cost + part * price
        if part < 1:
            return Optimum(task, cost, slope)
    return Optimum(task, cost, 0.0)


# The runs.

#: Settings of all runs.
SETTINGS = (
    "data.train_batch_size=128",
    "data.val_batch_size=250",
    "data.max_prompt_length=160",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.optim.lr=0.002",
    "actor_rollout_ref.actor.optim.schedule=linear",
    "actor_rollout_ref.actor.optim.eps=0.0003",
    "actor_rollout_ref.actor.optim.grad_clip=0.3",
    "router.optim.lr=0.004",
    "router.optim.schedule=linear",
    "router.optim.eps=0.0003",
    "router.optim.grad_clip=0.3",
    f"router.variant={VARIANT}",
    "router.controller=pid",
    "router.eta=0.08",
    "router.pid.kp=4",
    "router.entropy_coeff=0.5",
    "router.final_entropy_coeff=0.2",
    "router.exploration_coeff=0.2",
    "router.final_exploration_coeff=0.003",
    "trainer.total_epochs=5",
    "trainer.logger=[tensorboard]",
    "trainer.save_freq=200",
    "trainer.max_actor_ckpt_to_keep=1",
    "trainer.project_name=router_budget",
    "trainer.device=cpu",
)


class SeedTask(NamedTuple):
    """The runs of a seed.

    Attributes:
        folder: Where they are.
        url: The tools service.
        seed: Of data, model, and training.
        table: The expected rewards.
        overrides: Changes to `SETTINGS`.
    """

    folder: Path
    url: str
    seed: int
    table: Table
    overrides: tuple[str, ...] = ()


def train_unconstrained(task: SeedTask) -> dict[str, Any]:
    """Write the data of a seed, and train and evaluate the run without a budget."""
    if not (task.folder / "model" / "config.json").exists():
        write_data(task.folder, task.seed)
    return train_run(task, "unconstrained", Run(1.0))


def constrained_runs(unconstrained_cost: float, table: Table) -> dict[str, Run]:
    """Return the other runs of a seed, by name."""
    half = round(unconstrained_cost / 2, 3)
    return {
        "half": Run(half),
        "plain half": Run(half, "std"),
        "above need": Run(round(needed_budget(table), 3)),
    }


def needed_budget(table: Table) -> float:
    """Return the smallest budget with which the optimum is within 0.3% of that without one."""
    enough = 0.997 * optimum(table, 1.0).task
    budgets = np.arange(0.0, 1.0, 0.001)
    return float(next(each for each in budgets if optimum(table, each).task >= enough))


def write_data(folder: Path, seed: int) -> None:
    """Write the rows and the language model of a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, part in (("train", TRAIN_ROWS, 0), ("held_out", HELD_OUT_ROWS, 1)):
        rows = [
            row_of(question, index)
            for index, question in enumerate(questions(count, 2 * seed + part))
        ]
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    write_model(folder / "model", seed)


def write_model(folder: Path, seed: int) -> None:
    """Write a causal language model with random weights, and its tokenizer of whole words."""
    splitter = pre_tokenizers.Whitespace()
    texts = [SYSTEM, *itertools.chain(*QUESTIONS.values()), *load_route_texts().texts.values()]
    texts += [*PLACES, *map(str, range(100)), "Level", "system", "user", "assistant"]
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(text)}
    vocabulary = {
        word: number for number, word in enumerate(["<pad>", "<unk>", "<eos>", *sorted(words)])
    }
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - no secret
    core.pre_tokenizer = splitter
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",  # noqa: S106 - no secret
        unk_token="<unk>",  # noqa: S106 - no secret
        eos_token="<eos>",  # noqa: S106 - no secret
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} "
        "{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=2,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def configuration(task: SeedTask, name: str, run: Run) -> RouterConfig:
    """Return the configuration of a run."""
    return parse_arguments(
        [
            *SETTINGS,
            f"data.train_files={task.folder / 'train.parquet'}",
            f"data.val_files={task.folder / 'held_out.parquet'}",
            f"data.seed={task.seed}",
            f"actor_rollout_ref.model.path={task.folder / 'model'}",
            f"router.url={task.url}",
            f"router.budget_B={run.budget}",
            f"router.advantage={run.advantage}",
            f"trainer.experiment_name={name}-{task.seed}",
            f"trainer.default_local_dir={task.folder / name.replace(' ', '_')}",
            *task.overrides,
        ]
    )


def train_run(task: SeedTask, name: str, run: Run) -> dict[str, Any]:
    """Train and evaluate a run; return its figures."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    config, table = configuration(task, name, run), task.table
    trainer = RouterTrainer(config, respond)
    try:
        trainer.fit()
        if trainer.step < trainer.total_steps:
            raise SystemExit("stopped; start again to continue")
        scored = trainer.evaluate(copies=COPIES)
    finally:
        trainer.close()
    cells = [
        table.row(row.extra_info["kind"], row.extra_info["level"])
        for row in trainer.val_rows
        for _ in range(COPIES)
    ]
    best = optimum(table, run.budget)
    steps = [each for each in read_metrics(config.folder) if "router/lambda" in each]
    multipliers = np.array([each["router/lambda"] for each in steps])
    tenth = len(multipliers) // 10
    expected = table.task[cells]
    probabilities = scored.probabilities.astype(float)
    return {
        "name": name,
        "seed": task.seed,
        "folder": str(config.folder),
        "budget": run.budget,
        "cost": float(scored.cost.mean()),
        "cost of the policy": float((probabilities * table.cost[cells]).sum(1).mean()),
        "task": float(scored.task.mean()),
        "task of the routes": float(expected[np.arange(len(cells)), scored.action].mean()),
        "task of the policy": float((probabilities * expected).sum(1).mean()),
        "optimum": best._asdict(),
        "optimum at its cost": optimum(table, float(scored.cost.mean())).task,
        "task without tools": float(expected[:, 0].mean()),
        "lambda": float(multipliers[-tenth:].mean()),
        "lambda before": float(multipliers[-2 * tenth : -tenth].mean()),
        "lambda deviation": float(multipliers[-2 * tenth :].std()),
        "seconds": float(sum(each["perf/seconds"] for each in steps)),
        "tool share by cell": [
            float(1 - probabilities[np.array(cells) == cell, 0].mean())
            for cell in range(len(table.share))
        ],
    }


@contextmanager
def tools_service(url: str | None) -> Iterator[str]:
    """Yield the URL of a tools service, which is started if there is none."""
    if url is not None:
        yield url
        return
    command = [sys.executable, "-m", "rewardfleet_server", "serve", "tools", "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REWARDFLEET_")}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            line = next((each for each in process.stderr if "http://" in each), None)
            if line is None:
                raise SystemExit("the tools service did not start: see rewardfleet doctor")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield json.loads(line)["message"].partition(" on ")[2]
        finally:
            process.terminate()


# The report.


def report(results: Sequence[Mapping[str, Any]]) -> None:
    """Print a table as Markdown, and whether each promise is kept."""
    print(
        "| run | seed | budget | mean cost | task reward | of the optimum | of that at its cost "
        "| λ | optimal λ |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for run in results:
        best = run["optimum"]
        print(
            f"| {run['name']} | {run['seed']} | {run['budget']:.3f} | {run['cost']:.3f} "
            f"| {run['task']:.3f} | {run['task'] / best['task']:.1%} "
            f"| {run['task'] / run['optimum at its cost']:.1%} "
            f"| {run['lambda']:.2f} ± {run['lambda deviation']:.2f} | {best['multiplier']:.2f} |"
        )
    for free in (run for run in results if run["name"] == "unconstrained"):
        half = 0.5 * (free["task"] + free["task without tools"])
        print(f"seed {free['seed']}: tools for a random half of the unconstrained: {half:.3f}")
    print("| promise | mean | range | kept |\n|---|---|---|---|")
    for promise in promises(results):
        print(
            f"| {promise.text} | {np.mean(promise.values):+.4f} | {min(promise.values):+.4f} to "
            f"{max(promise.values):+.4f} | {'yes' if promise.is_kept else 'NO'} |"
        )


class Promise(NamedTuple):
    """What docs/router.md promises of any ten seeds.

    Attributes:
        text: Of what.
        values: Of each seed.
        mean: Limits on the mean of the seeds.
        each: Limits on each seed.
    """

    text: str
    values: Sequence[float]
    mean: tuple[float, float]
    each: tuple[float, float]

    @property
    def is_kept(self) -> bool:
        """Whether all limits hold."""
        low, high = self.each
        mean = float(np.mean(self.values))
        return self.mean[0] <= mean <= self.mean[1] and all(low <= v <= high for v in self.values)


def promises(results: Sequence[Mapping[str, Any]]) -> list[Promise]:
    """Return the promises, with the values of all seeds."""
    seeds = sorted({run["seed"] for run in results})
    runs = {(run["name"], run["seed"]): run for run in results}
    free, half, above = (
        [runs[name, seed] for seed in seeds] for name in ("unconstrained", "half", "above need")
    )
    pairs = list(zip(above, free, strict=True))
    inf = math.inf
    return [
        Promise(
            "half the cost: mean cost - B",
            [run["cost"] - run["budget"] for run in half],
            mean=(-0.01, 0.01),
            each=(-0.03, 0.03),
        ),
        Promise(
            "half the cost: share of the optimum",
            [run["task"] / run["optimum"]["task"] for run in half],
            mean=(0.98, inf),
            each=(0.97, inf),
        ),
        Promise(
            "half the cost: λ of the last tenth of the steps - of the one before",
            [run["lambda"] - run["lambda before"] for run in half],
            mean=(-0.15, 0.15),
            each=(-0.15, 0.15),
        ),
        Promise(
            "above need: task reward relative to that without a budget",
            [run["task"] / other["task"] - 1 for run, other in pairs],
            mean=(-0.01, inf),
            each=(-0.02, inf),
        ),
        Promise(
            "above need: mean cost - that without a budget",
            [run["cost"] - other["cost"] for run, other in pairs],
            mean=(-inf, 0),
            each=(-inf, 0),
        ),
    ]


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw λ, cost and task reward of a seed over the steps, with the optimum."""
    mpl.use("Agg")
    panels = {
        "router/lambda": ("λ (task reward per unit of cost)", "multiplier"),
        "router/mean_cost": ("mean cost (share of answers with a tool)", "cost"),
        "router/mean_task_reward": ("mean task reward", "task"),
    }
    names = {"half": "task - λ · cost (mean)", "plain half": "plain formula (std)"}
    shown = [run for run in runs if run["name"] in names]
    best = shown[0]["optimum"]
    figure, axes = plt.subplots(3, 1, figsize=(8, 9), sharex=True, layout="constrained")
    for axis, (metric, (label, value)) in zip(axes, panels.items(), strict=True):
        for run in shown:
            steps = [each for each in read_metrics(Path(run["folder"])) if metric in each]
            values = np.array([each[metric] for each in steps])
            width = 1 if metric == "router/lambda" else 20  # rewards of a batch are noisy
            smooth = np.convolve(values, np.ones(width) / width, mode="valid")
            axis.plot(np.arange(len(smooth)) + width, smooth, label=names[run["name"]])
        axis.axhline(
            best[value],
            color="black",
            linestyle="--",
            linewidth=1,
            label=f"optimum within the budget: {best[value]:.2f}",
        )
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(loc="best")
    axes[0].set_title(
        f"Seed {shown[0]['seed']}, B = {shown[0]['budget']:.3f}; "
        "cost and reward are means of the last 20 steps"
    )
    axes[-1].set_xlabel("step")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
