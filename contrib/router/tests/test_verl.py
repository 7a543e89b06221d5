"""The router in verl's own trainer and workers, on CPUs."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_router.checkpoint import load_head
from rewardfleet_router.config import RouterConfig, keys
from rewardfleet_router.head import RouterActor, choose_routes
from rewardfleet_router.objective import router_loss
from rewardfleet_router.routes import Route
from rewardfleet_router.verl_keys import OWN_LOOP, without_effect
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from .conftest import EXAMPLES, PUBLISHED, tiny_llama

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900), pytest.mark.slow]

HERE = Path(__file__).parent
STEPS = 12

#: The ground truth names the route that is right. Both families cost.
REWARD = """
async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    route = extra_info["router_route"]
    assert extra_info["tool_families"] == {"find": "search"}, extra_info
    task = float(route == ground_truth)
    return {"score": task, "task": task, "cost": float(route != "ANSWER")}
"""


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory) -> Path:
    """A checkpoint of a Llama of two layers with random weights."""
    folder = tmp_path_factory.mktemp("model")
    llama = tiny_llama(
        vocab_size=16,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    llama.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    ignored = ("REWARDFLEET_", "RAY_", "VERL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    from pyarrow import Table, parquet

    folder = tmp_path_factory.mktemp("data")
    rows = [
        {
            "prompt": [
                {"role": "system", "content": "tools"},
                {
                    "role": "user",
                    "content": ("city " if index % 2 else "sum ") * (6 + index % 5),
                },
            ],
            "reward_model": {"ground_truth": ("ANSWER", "SEARCH-FAMILY")[index % 2]},
            "extra_info": {"index": index},
            "tool_families": json.dumps({"find": "search"}),
            "router_target_action": "MIXED",
        }
        for index in range(64)
    ]
    parquet.write_table(Table.from_pylist(rows), folder / "train.parquet")
    parquet.write_table(Table.from_pylist(rows[:4]), folder / "test.parquet")
    return folder


def command(url: str, model: Path, dataset: Path, folder: Path) -> list[str]:
    reward = folder / "reward.py"
    reward.write_text(REWARD)
    return [
        *(sys.executable, "-m", "rewardfleet_router.verl", "trainer.device=cpu"),
        "algorithm.adv_estimator=grpo",
        f"data.train_files={dataset / 'train.parquet'}",
        f"data.val_files={dataset / 'test.parquet'}",
        "data.train_batch_size=8",
        "data.max_prompt_length=128",
        "data.max_response_length=4",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=hf",
        "router.enable=true",
        "data.seed=1",
        "router.budget_B=0.55",
        "router.cost_weights.any_tool=1.0",
        "router.optim.lr=0.05",
        "router.pooling=mean",
        f"router.url={url}",
        "reward.custom_reward_function.path=" + str(reward),
        "trainer.save_freq=100",
        "trainer.save_on_exit=true",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        f"trainer.total_training_steps={STEPS}",
        "trainer.total_epochs=100",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "ray_kwargs.ray_init.num_cpus=8",
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init.include_dashboard=false",
    ]


def authors_arguments() -> list[str]:
    recorded = EXAMPLES.parent / "tests" / "third_party" / "recorded" / "toolrl_router.json"
    arguments: list[str] = json.loads(recorded.read_text())["took"]["arguments"]
    return arguments


def complete(arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    """Run a command in a folder until it ends without an error."""
    done = subprocess.run(
        arguments,
        env=environment,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


def logged(path: Path) -> dict[int, dict[str, float]]:
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines]
    return {entry["step"]: entry["data"] for entry in entries if "router/lambda" in entry["data"]}


def test_verl_trains_the_router_and_a_run_that_was_stopped_continues(
    model, dataset, environment, tmp_path
):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with serving(create_app(ToolsSettings())) as url:
        arguments = command(url, model, dataset, tmp_path)
        output = (tmp_path / "output.txt").open("w+")
        run = subprocess.Popen(
            arguments,
            env={**environment, "VERL_FILE_LOGGER_PATH": str(first)},
            stdout=output,
            stderr=output,
            cwd=tmp_path,
        )
        try:
            wait_until(lambda: len(logged(first)) >= 3 or run.poll() is not None, 600)
            run.send_signal(signal.SIGTERM)
            assert run.wait(120) == 0, (tmp_path / "output.txt").read_text()[-5000:]
        finally:
            run.kill()
            run.wait()
            output.close()
        stopped = re.search(r"stopped after step (\d+)", (tmp_path / "output.txt").read_text())
        assert stopped is not None
        done = int(stopped[1])
        assert 3 <= done < STEPS

        complete(arguments, {**environment, "VERL_FILE_LOGGER_PATH": str(second)}, tmp_path)
        last = tmp_path / "checkpoints" / f"global_step_{STEPS}"
        state = json.loads((last / "router.json").read_text())
        budget = httpx.get(f"{url}/budgets/{state['run'].replace('/', '%2F')}").json()

    before, after = logged(first), logged(second)
    assert sorted(after) == list(range(done + 1, STEPS + 1))
    assert before[1]["router/lambda"] == 0
    assert before[1]["router/mean_task_reward"] < 0.6
    assert before[1]["router/mean_cost"] > 0.55
    assert before[2]["router/lambda"] > 0, "tools cost more than the budget"
    assert after[STEPS]["router/mean_task_reward"] > 0.85
    assert after[STEPS][f"router/share/{Route.CALCULATE}"] < 0.2
    assert state["step"] == budget["step"] == STEPS
    assert state["multiplier"] == budget["lambda"]
    assert budget["checkpoint"]["updates"] == STEPS, "no step is counted twice"

    assert load_head(last).linear.weight.shape == (3, 16)


def test_verl_trains_with_the_authors_script(model, dataset, environment, tmp_path):
    """With one answer per prompt, which is compared with the others of its step."""
    log = tmp_path / "log.jsonl"
    with serving(create_app(ToolsSettings())) as url:
        arguments = [
            *(sys.executable, "-m", "rewardfleet_router.verl", *authors_arguments()),
            # What a small model on a CPU needs.
            *command(url, model, dataset, tmp_path)[3:],
            "data.train_batch_size=16",
            "actor_rollout_ref.model.use_remove_padding=false",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "trainer.total_training_steps=2",
        ]
        complete(arguments, {**environment, "VERL_FILE_LOGGER_PATH": str(log)}, tmp_path)
    steps = logged(log)
    assert sorted(steps) == [1, 2]
    assert all(abs(each["router/policy_loss"]) < 10 for each in steps.values())
    assert steps[2]["router/grad_norm"] > 0
    assert load_head(tmp_path / "checkpoints" / "global_step_2").linear.weight.any()


def test_two_ranks_compute_and_learn_what_one_process_does(model, environment, tmp_path):
    command = [sys.executable, str(HERE / "verl_ranks.py"), str(model), str(tmp_path)]
    complete(command, environment, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["plain"] == []
    assert result["log_probs_shape"] == 4

    from transformers import LlamaForCausalLM

    from rewardfleet_router.head import RouterHead

    from .verl_ranks import UPDATES, prompts

    head = RouterHead(16)
    actor = RouterActor(LlamaForCausalLM.from_pretrained(model).eval(), head)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, betas=(0.5, 0.9), weight_decay=0.0)
    logits = actor(*prompts())
    assert result["logits"] == logits.tolist() == [[0.0] * 3] * 4
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0])
    # Each rank has two of the rows.
    for _ in range(UPDATES):
        logits = actor(*prompts())
        loss, _ = router_loss(logits, torch.tensor([0, 1, 2, 1]), advantages, entropy_weight=0.01)
        exploration = -0.2 * torch.log_softmax(logits, dim=-1).mean()
        optimizer.zero_grad()
        (loss + exploration).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    expected = head.state_dict()
    for name, value in load_head(tmp_path).state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-4)

    with torch.no_grad():
        chosen = choose_routes(actor(*prompts()), sample=False)
    torch.testing.assert_close(
        torch.tensor(result["router_logits"]), chosen.logits, atol=1e-4, rtol=1e-4
    )
    assert result["router_action"] == [0, 1, 2, 1]
    log_probs = torch.log_softmax(chosen.logits, dim=-1)[range(4), [0, 1, 2, 1]]
    torch.testing.assert_close(
        torch.tensor(result["router_log_prob"]), log_probs, atol=1e-4, rtol=1e-4
    )


@pytest.mark.slice
def test_the_published_command_is_understood():
    from rewardfleet_router.verl.__main__ import compose

    config = compose([*PUBLISHED, "+router.budget_B=0.25"])
    assert config.router.budget_B == 0.25
    assert config.actor_rollout_ref.router == config.router
    assert config.trainer.save_on_exit is True
    assert config.trainer.total_epochs == 15
    assert config.trainer.use_v1 is False
    assert config.actor_rollout_ref.rollout.n == 4
    function = config.reward.custom_reward_function
    assert function.path == "pkg://rewardfleet_router.verl.reward"
    assert function.reward_kwargs.options.cost == "any_tool"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("router.budget=0.3", "unknown key 'router.budget'; the nearest is 'router.budget_B'"),
        ("router.budget_B=-1", "router.budget_B"),
        ("router.responder=module:name", "router.responder: in verl, the actor answers"),
        ("trainer.use_reference_policy=true", "set actor_rollout_ref.actor.use_kl_loss=true"),
        ("ray_init.num_cpus=8", "set ray_kwargs.ray_init.num_cpus"),
    ],
)
def test_an_argument_of_the_router_that_is_not_valid_is_reported(argument: str, message: str):
    from rewardfleet_router.verl.__main__ import compose

    with pytest.raises(InvalidRequest, match=re.escape(message)):
        compose([argument])


def test_the_authors_script_is_understood_with_one_line_changed():
    from verl.utils.config import validate_config

    from rewardfleet_router.verl.__main__ import compose

    config = compose(authors_arguments())
    validate_config(config, use_reference_policy=False, use_critic=False)
    assert config.actor_rollout_ref.rollout.n == 1
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 8
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload is True


def test_the_loop_of_its_own_knows_each_key_of_verl():
    from omegaconf import OmegaConf

    from rewardfleet_router.verl.__main__ import compose

    def names(tree: dict, prefix: str = ""):
        for name, value in tree.items():
            if isinstance(value, dict) and value:
                yield from names(value, f"{prefix}{name}.")
            elif not name.startswith("_"):
                yield f"{prefix}{name}"

    found = set(names(OmegaConf.to_container(compose(PUBLISHED), resolve=False)))
    others = found - set(keys(RouterConfig))
    others = {name for name in others if not name.startswith("actor_rollout_ref.router.")}
    assert len(others) > 500
    assert without_effect(dict.fromkeys(others), OWN_LOOP, list(keys(RouterConfig))) == others


def test_keys_of_older_releases_have_their_effect_or_are_ignored(caplog: pytest.LogCaptureFixture):
    from rewardfleet_router.verl.__main__ import compose

    config = compose(
        [
            *PUBLISHED,
            "trainer.n_gpus_per_node=2",
            "actor_rollout_ref.actor.fsdp_config.grad_offload=True",
            "actor_rollout_ref.actor.ppo_micro_batch_size=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size=1",
            "critic.model.fsdp_config.param_offload=True",
            "custom_reward_function.path=reward.py",
            "router.lagrange_lr=0.01",
            "trainer.use_reference_policy=false",
        ]
    )
    [message] = caplog.messages
    names = (
        "actor_rollout_ref.actor.fsdp_config.grad_offload, critic.model.fsdp_config.param_offload"
    )
    assert message.endswith(f"{names}, trainer.use_reference_policy")
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size is None
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == 1
    assert config.reward.custom_reward_function.path == "reward.py"
    assert config.router.eta == 0.01


class Worker:
    """Generates as `RouterWorker.generate_tokens` does: the prompts, reversed."""

    def __init__(self) -> None:
        self.generate_tokens = self
        self.batches: list[tuple[list[list[int]], dict[str, object]]] = []

    async def remote(self, prompts, sampling):
        self.batches.append((prompts, sampling))
        await asyncio.sleep(0)
        return [prompt[::-1] for prompt in prompts]


async def test_requests_that_arrive_together_are_batched_by_their_sampling():
    from rewardfleet_router.verl.hf_rollout import HFServer

    worker = Worker()
    server = HFServer(worker, response_length=2, batch_size=2)
    requests = [([1, 2], 1.0), ([3], 0.5), ([4], 1.0), ([5], 1.0)]
    outputs = await asyncio.gather(
        *(
            server.generate("id", ids, {"temperature": each, "stop": ["x"]})
            for ids, each in requests
        )
    )
    assert [output.token_ids for output in outputs] == [[2, 1], [3], [4], [5]]
    assert [output.stop_reason for output in outputs] == ["length", *["completed"] * 3]
    assert [(prompts, one["temperature"]) for prompts, one in worker.batches] == [
        ([[1, 2], [4]], 1.0),
        ([[5]], 1.0),
        ([[3]], 0.5),
    ]


async def test_a_canceled_request_leaves_the_others_of_its_batch():
    from rewardfleet_router.verl.hf_rollout import HFServer

    server = HFServer(Worker(), response_length=2, batch_size=8)
    canceled, other = (asyncio.create_task(server.generate("id", [ids], {})) for ids in (1, 2))
    await asyncio.sleep(0)  # both wait
    canceled.cancel()
    assert (await asyncio.wait_for(other, 30)).token_ids == [2]
    assert canceled.cancelled()
