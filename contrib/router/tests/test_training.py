"""The training loop: real processes, a real tools service over HTTP, checkpoints on disk."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_router.checkpoint import checkpoints, read_manifest
from rewardfleet_router.config import RouterConfig, parse_arguments
from rewardfleet_router.inference import load_actor, route_prompt
from rewardfleet_router.metrics import read_metrics
from rewardfleet_router.routes import ROUTES
from rewardfleet_router.train import RouterTrainer
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from .conftest import EXAMPLES, tiny_llama

#: The script of the router's authors, where it is fetched; see tests/third_party/sources.toml.
AUTHORS_SCRIPT = EXAMPLES.parent / ".peers" / "toolrl_router" / "run_router_training.sh"

Configure = Callable[..., list[str]]

#: A responder that kills its process at the 14th step, between two checkpoints.
KILLING = """
import os, signal, router_budget
calls = 0
def respond(rollouts, *, generator):
    global calls
    calls += 1
    if calls == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    return router_budget.respond(rollouts, generator=generator)
"""


@pytest.fixture(scope="session")
def data(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred rows, and a language model with random weights."""
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("train", 0), ("held_out", 1)):
        questions = example.questions(2_000, seed)[:400]
        rows = [example.row_of(question, index) for index, question in enumerate(questions)]
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    example.write_model(folder / "model", 0)
    return folder


@pytest.fixture
def url() -> Iterator[str]:
    with serving(create_app(ToolsSettings())) as url:
        yield url


@pytest.fixture
def arguments(data: Path, tmp_path: Path, url: str) -> Configure:
    """Return the arguments of a small training run, with more of them."""
    torch.set_num_threads(1)

    def configure(*more: str) -> list[str]:
        return [
            f"data.train_files={data / 'train.parquet'}",
            f"data.val_files={data / 'held_out.parquet'}",
            "data.train_batch_size=8",
            "data.max_prompt_length=160",
            f"actor_rollout_ref.model.path={data / 'model'}",
            "actor_rollout_ref.actor.optim.lr=0.002",
            "router.responder=router_budget:respond",
            "router.optim.lr=0.002",
            f"router.url={url}",
            f"trainer.default_local_dir={tmp_path / 'run'}",
            "trainer.device=cpu",
            "trainer.logger=[]",
            "trainer.total_training_steps=12",
            "trainer.save_freq=5",
            *more,
        ]

    return configure


@pytest.fixture
def train(example: ModuleType) -> Iterator[Callable[[list[str]], RouterTrainer]]:
    """Train in this process; trainers are closed after the test, which may evaluate with them."""
    with ExitStack() as stack:

        def run(arguments: list[str]) -> RouterTrainer:
            trainer = RouterTrainer(parse_arguments(arguments))
            stack.callback(trainer.close)
            trainer.fit()
            return trainer

        yield run


def start(arguments: list[str], *modules: Path) -> subprocess.Popen[str]:
    """Start a training run that can import the examples, and what is in the folders `modules`."""
    path = os.pathsep.join(map(str, (EXAMPLES, *modules)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rewardfleet_router", "train", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def numbers(folder: Path) -> list[dict[str, float]]:
    """What a run computed at each step, without how long it took."""
    return [
        {name: value for name, value in line.items() if not name.startswith("perf/")}
        for line in read_metrics(folder)
    ]


def tensors(checkpoint: Path) -> dict[str, "torch.Tensor"]:
    actor, _ = load_actor(checkpoint)
    return actor.state_dict()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_numbers_of_one_that_is_not(
    arguments: Configure, train, tmp_path: Path
):
    """The service loses its state as well: the budget is restored from the checkpoint."""
    more = (
        "trainer.total_training_steps=40",
        "router.exploration_coeff=0.1",
        "router.final_exploration_coeff=0.01",
    )
    whole = tmp_path / "whole"
    train(arguments(*more, f"trainer.default_local_dir={whole}"))

    killed = tmp_path / "killed"
    (tmp_path / "killing.py").write_text(KILLING)
    once = (f"trainer.default_local_dir={killed}", "router.responder=killing:respond")
    with start(arguments(*more, *once), tmp_path) as process:
        output = process.stdout.read()
    assert process.returncode == -signal.SIGKILL, output
    assert [read_manifest(path).step for path in checkpoints(killed)] == [5, 10]
    assert len(numbers(killed)) == 13
    with serving(create_app(ToolsSettings())) as other_url:
        with start(
            arguments(*more, f"trainer.default_local_dir={killed}", f"router.url={other_url}")
        ) as process:
            output = process.stdout.read()
        assert process.returncode == 0, output

    assert numbers(killed) == numbers(whole)
    assert len(numbers(whole)) == 40
    ours, theirs = tensors(checkpoints(killed)[-1]), tensors(checkpoints(whole)[-1])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    last = [read_manifest(checkpoints(folder)[-1]) for folder in (killed, whole)]
    assert last[0].multiplier == last[1].multiplier > 0
    assert last[0].budget == last[1].budget
    optimizers = [
        torch.load(checkpoints(folder)[-1] / "optimizers.pt", weights_only=True)
        for folder in (killed, whole)
    ]
    moments = [
        [state["exp_avg"] for state in each["actor"]["state"].values()] for each in optimizers
    ]
    assert all(torch.equal(*pair) for pair in zip(*moments, strict=True))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_sigterm_completes_the_step_and_writes_a_checkpoint(arguments: Configure, tmp_path: Path):
    folder = tmp_path / "run"
    more = ("trainer.total_training_steps=100000", "trainer.total_epochs=2000")
    with start(arguments(*more, "trainer.save_freq=-1")) as process:
        wait_until(lambda: len(read_metrics(folder)) >= 3 or process.poll() is not None, 400)
        process.terminate()
        output = process.stdout.read()
    assert process.returncode == 0, output
    (checkpoint,) = checkpoints(folder)
    assert read_manifest(checkpoint).step == len(read_metrics(folder))


def test_checkpoints_have_all_that_the_run_consists_of(arguments: Configure, train, tmp_path: Path):
    trainer = train(arguments("trainer.max_actor_ckpt_to_keep=2"))
    assert [path.name for path in checkpoints(tmp_path / "run")] == [
        "global_step_10",
        "global_step_12",  # of the exit
    ]
    checkpoint = checkpoints(tmp_path / "run")[-1]
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "12\n"
    manifest = read_manifest(checkpoint)
    assert manifest.step == 12 and manifest.budget["step"] == 11
    assert manifest.multiplier == manifest.budget["multiplier"]["multiplier"]
    assert manifest.config["router.budget_B"] == 0.3
    assert manifest.critic is None and manifest.rows == 400
    assert {path.name for path in checkpoint.iterdir()} == {
        "manifest.json",
        "actor",
        "router_head.pt",
        "optimizers.pt",
        "random.json",
        "random.pt",
    }
    loaded, _ = load_actor(checkpoint)
    for ours, theirs in zip(loaded.parameters(), trainer.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_incomplete_checkpoint_does_not_count(arguments: Configure, train, tmp_path: Path):
    draft = tmp_path / "run" / ".global_step_99.incomplete"
    draft.mkdir(parents=True)
    (draft / "manifest.json").write_text("{}")
    (tmp_path / "run" / "global_step_98").mkdir()
    assert train(arguments()).step == 12


def test_a_new_run_in_the_folder_of_a_longer_one_keeps_and_continues_its_own_checkpoints(
    arguments: Configure, train, tmp_path: Path
):
    train(arguments())
    short = ("trainer.total_training_steps=6", "trainer.max_actor_ckpt_to_keep=1")
    train(arguments(*short, "trainer.resume_mode=disable"))
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["global_step_6"]
    train(arguments("trainer.total_training_steps=7"))
    assert [line["step"] for line in numbers(tmp_path / "run")] == list(range(1, 8))


def test_other_rows_do_not_continue_a_run(arguments: Configure, train, data: Path):
    train(arguments("trainer.total_training_steps=2"))
    with pytest.raises(ValueError, match="other rows"):
        train(arguments(f"data.train_files={data / 'held_out.parquet'}"))


def test_a_new_run_begins_with_its_own_multiplier(arguments: Configure, train, tmp_path: Path):
    """A run of the same name does not find the budget of an earlier one."""
    for folder in ("first", "second"):
        train(arguments(f"trainer.default_local_dir={tmp_path / folder}"))
    assert numbers(tmp_path / "first") == numbers(tmp_path / "second")
    assert numbers(tmp_path / "first")[0]["router/lambda"] == 0


def test_metrics_are_written_for_each_step_and_to_tensorboard(
    arguments: Configure, train, tmp_path: Path
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(arguments("trainer.logger=[tensorboard]", "trainer.test_freq=6"))
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert {"router/lambda", "router/mean_cost", "router/mean_task_reward"} <= lines[0].keys()
    shares = [value for name, value in lines[0].items() if name.startswith("router/share/")]
    assert sum(shares) == pytest.approx(1)
    assert [line["step"] for line in lines if "val/router/mean_cost" in line] == [6, 12]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("router/lambda")] == list(range(1, 13))


def test_metrics_are_written_to_wandb(
    arguments: Configure, train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(arguments("trainer.logger=[wandb]"))
    [records] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    for name in (b"router/lambda", b"router/mean_cost", b"router/mean_task_reward"):
        assert records.read_bytes().count(name) >= 12  # one for each step


def test_evaluations_do_not_change_the_run(arguments: Configure, train, tmp_path: Path):
    train(arguments(f"trainer.default_local_dir={tmp_path / 'without'}"))
    train(arguments(f"trainer.default_local_dir={tmp_path / 'with'}", "trainer.test_freq=3"))
    without, evaluated = numbers(tmp_path / "without"), numbers(tmp_path / "with")
    assert [line["router/loss"] for line in without] == [line["router/loss"] for line in evaluated]


def test_a_failing_service_ends_the_run_with_a_checkpoint_to_continue_from(
    arguments: Configure, example: ModuleType, train, tmp_path: Path
):
    calls = 0

    def respond(rollouts, *, generator):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RewardFleetError("the service is gone")
        return example.respond(rollouts, generator=generator)

    trainer = RouterTrainer(parse_arguments(arguments()), respond)
    with pytest.raises(RewardFleetError, match="gone"):
        trainer.fit()
    trainer.close()
    assert [read_manifest(path).step for path in checkpoints(tmp_path / "run")] == [3]
    train(arguments())
    interrupted = numbers(tmp_path / "run")
    train(arguments(f"trainer.default_local_dir={tmp_path / 'whole'}"))
    assert interrupted == numbers(tmp_path / "whole")


def test_a_service_that_restarts_without_its_state_does_not_change_the_numbers(
    arguments: Configure, example: ModuleType, train, losable, tmp_path: Path
):
    url, state = losable
    calls = 0

    def respond(rollouts, *, generator):
        nonlocal calls
        calls += 1
        if calls == 4:
            state.lose()
        return example.respond(rollouts, generator=generator)

    trainer = RouterTrainer(parse_arguments(arguments(f"router.url={url}")), respond)
    trainer.fit()
    trainer.close()
    assert state.losses == 1
    train(arguments(f"trainer.default_local_dir={tmp_path / 'whole'}"))
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_a_run_that_ends_before_its_first_step_writes_no_checkpoint(
    arguments: Configure, tmp_path: Path
):
    def respond(rollouts, *, generator):
        raise RewardFleetError("the service is gone")

    trainer = RouterTrainer(parse_arguments(arguments()), respond)
    with pytest.raises(RewardFleetError, match="gone"):
        trainer.fit()
    trainer.close()
    assert not checkpoints(tmp_path / "run")


@pytest.mark.parametrize(
    "more",
    [
        ("router.optim.lr=null",),
        ("actor_rollout_ref.actor.optim.lr=0",),
        ("router.pooling=mean", "router.advantage=separate"),
        ("router.routes_per_prompt=2",),
        ("router.cost=calls", "router.every=3"),
    ],
)
def test_settings_change_what_is_trained(arguments: Configure, train, more: tuple[str, ...]):
    trainer = train(arguments(*more, "trainer.save_on_exit=false"))
    before, _ = _fresh(arguments(*more))
    moved = {
        name.split(".")[0]
        for (name, old), new in zip(
            before.actor.named_parameters(), trainer.actor.parameters(), strict=True
        )
        if not torch.equal(old, new)
    }
    frozen = "actor_rollout_ref.actor.optim.lr=0" in more
    assert moved == ({"head"} if frozen else {"head", "model"})


def _fresh(arguments: list[str]) -> tuple[RouterTrainer, RouterConfig]:
    config = parse_arguments([*arguments, "trainer.resume_mode=disable"])
    trainer = RouterTrainer(config)
    trainer.close()
    return trainer, config


def test_labels_shape_the_router(arguments: Configure, train, data: Path, tmp_path: Path):
    labels = tmp_path / "labels.jsonl"
    rows = parquet.read_table(data / "train.parquet").to_pylist()
    labels.write_text(
        "".join(
            json.dumps(
                {"index": row["extra_info"]["index"], "router_target_action": "CALCULATE-FAMILY"}
            )
            + "\n"
            for row in rows
        )
    )
    more = (f"router.labels={labels}", "trainer.total_training_steps=30", "trainer.save_freq=-1")
    trainer = train(arguments(*more, "router.label_weight=100"))
    assert np.mean(trainer.evaluate(trainer.train_rows[:50], sample=False).action == 2) > 0.9


def test_the_actor_answers_if_no_responder_is_named(arguments: Configure, train, tmp_path: Path):
    more = (
        "router.responder=actor",
        "data.max_response_length=4",
        "trainer.total_training_steps=2",
        "data.train_batch_size=2",
    )
    train(arguments(*more))
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == 2
    assert all(line["router/mean_cost"] == 0 for line in lines)  # random words are no calls


@pytest.fixture
def toolrl(tokenizer, tmp_path: Path) -> Path:
    """A folder as the authors' script needs it, with a small model and rows with their labels."""
    data, model = tmp_path / "dataset/rlla_4k", tmp_path / "TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    data.mkdir(parents=True)
    rows = [
        {
            "data_source": "rlla",
            "prompt": [{"role": "user", "content": ("city", "sum")[index % 2]}],
            "reward_model": {"ground_truth": "<think> a </think>\n<response> b </response>"},
            "extra_info": {"index": index},
            "router_target_action_gt": ("SEARCH-FAMILY", "OTHER")[index % 2],
            "router_tool_family_gt": json.dumps({"find": "SEARCH"}),
        }
        for index in range(16)
    ]
    for name in ("train", "test"):
        parquet.write_table(pa.Table.from_pylist(rows), data / f"{name}.parquet")
    end = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    tiny_llama(vocab_size=16, max_position_embeddings=2048, **end).save_pretrained(model)
    tokenizer.save_pretrained(model)
    return tmp_path


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.skipif(not AUTHORS_SCRIPT.exists(), reason="needs make install-peers")
def test_the_authors_script_runs_with_one_line_changed(toolrl: Path, url: str):
    """The script itself: all of its 15 epochs, with the model and the data where it has them."""
    old, new = "python -m verl.trainer.main_ppo", "python -m rewardfleet_router train"
    script = AUTHORS_SCRIPT.read_text()
    assert script.count(old) == 1
    (toolrl / "run.sh").write_text(script.replace(old, f"{new} router.url={url}"))
    python = toolrl / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "run.sh"],
        cwd=toolrl,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    [run] = (toolrl / "runs/router_grpo").iterdir()
    assert [line["step"] for line in numbers(run)] == list(range(1, 16))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_authors_arguments_train_resume_and_route(toolrl: Path, url: str):
    root = EXAMPLES.parent
    recorded = json.loads((root / "tests/third_party/recorded/toolrl_router.json").read_text())
    arguments = [
        *recorded["took"]["arguments"],
        "data.max_response_length=4",
        f"router.url={url}",
    ]
    for steps in (2, 3):
        more = f"trainer.total_training_steps={steps}"
        command = [sys.executable, "-m", "rewardfleet_router", "train", *arguments, more]
        done = subprocess.run(
            command, cwd=toolrl, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-5000:]
        assert "no effect here: actor_rollout_ref.model.use_remove_padding, " in done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["step"] == steps
    run = toolrl / "runs/router_grpo/router-grpo"
    lines = numbers(run)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(np.isfinite(line["router/loss"]) for line in lines)
    assert lines[0]["router/labeled"] == 0.5, "`OTHER` is no label"
    assert read_manifest(checkpoints(run)[-1]).config["router.max_lambda"] == 1e6
    actor, loaded = load_actor(run)
    assert route_prompt([{"role": "user", "content": "city"}], actor, loaded).route in ROUTES


def test_the_command_routes_prompts_by_the_newest_checkpoint(
    arguments: Configure, train, data: Path, tmp_path: Path
):
    from click.testing import CliRunner

    from rewardfleet_router.__main__ import main

    train(arguments("trainer.total_training_steps=2"))
    row = parquet.read_table(data / "held_out.parquet").to_pylist()[0]
    line = json.dumps(row["prompt"]) + "\n"
    done = CliRunner().invoke(main, ["route", str(tmp_path / "run"), "-"], input=line)
    assert done.exit_code == 0, done.output
    routed = json.loads(done.stdout.strip().splitlines()[-1])
    assert sum(routed["probabilities"].values()) == pytest.approx(1)
    assert routed["route"] == max(routed["probabilities"], key=routed["probabilities"].get)
    assert f"Route: {routed['route']}" in routed["prompt"][0]["content"]


def test_the_example_of_the_page_loads_a_checkpoint_and_routes_a_prompt(
    arguments: Configure, train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    train(arguments("trainer.total_training_steps=1"))
    page = (EXAMPLES.parent / "docs" / "router.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    run = "runs/router_grpo/baseline_router/global_step_200"
    assert run in example
    exec(example.replace(run, str(tmp_path / "run")), {})
    assert "ANSWER" in capsys.readouterr().out


def test_the_command_names_what_is_wrong_without_a_traceback(tmp_path: Path):
    from click.testing import CliRunner

    from rewardfleet_router.__main__ import main

    unknown = CliRunner().invoke(main, ["train", "router.budget=1"])
    assert unknown.exit_code == 1 and "router.budget_B" in unknown.output
    none = CliRunner().invoke(main, ["route", str(tmp_path), "-"], input="")
    assert none.exit_code == 1 and "no checkpoint" in none.output


@pytest.mark.parametrize("line", ["{", '{"messages": []}'])
def test_a_line_that_is_no_chat_is_reported_with_its_number(
    arguments: Configure, train, tmp_path: Path, line: str
):
    from click.testing import CliRunner

    from rewardfleet_router.__main__ import main

    train(arguments("trainer.total_training_steps=1"))
    done = CliRunner().invoke(main, ["route", str(tmp_path / "run"), "-"], input=f"\n{line}\n")
    assert done.exit_code == 1 and "line 2: no chat as JSON" in done.output
    assert isinstance(done.exception, SystemExit), "no traceback"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.train_files=none.parquet", "none.parquet"),
        ("data.train_files={text}", "text.parquet: "),
        ("data.max_prompt_length=10", "the prompt with the index 0 has"),
        ("router.responder=nowhere:respond", "No module named 'nowhere'"),
        ("trainer.device=nowhere", "trainer.device: "),
    ],
)
def test_errors_in_arguments_are_reported_before_the_first_step(
    arguments: Configure, tmp_path: Path, argument: str, message: str
):
    from click.testing import CliRunner

    from rewardfleet_router.__main__ import main

    text = tmp_path / "text.parquet"
    text.write_text("not Parquet")
    done = CliRunner().invoke(main, ["train", *arguments(argument.format(text=text))])
    assert done.exit_code == 1 and message in done.output
    assert isinstance(done.exception, SystemExit), "no traceback"
    assert not (tmp_path / "run").exists()
