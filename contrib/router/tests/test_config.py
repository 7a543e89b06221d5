"""The configuration: verl's keys as `key=value` arguments."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.tools import BudgetOptions
from rewardfleet_router.config import (
    RouterConfig,
    describe_keys,
    flatten,
    keys,
    parse_arguments,
)

from .conftest import PUBLISHED

REQUIRED = ("data.train_files=train.parquet", "actor_rollout_ref.model.path=model")


def test_the_published_command_is_accepted():
    config = parse_arguments(PUBLISHED)
    assert config.data.train_files == (Path("dataset/train_router.parquet"),)
    assert config.router.budget_B == 0.3
    assert config.trainer.save_freq == 200 and config.trainer.save_on_exit is True
    assert config.folder == Path("runs/router_grpo/baseline_router")


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(InvalidRequest, match=r"'router.budgetB'; the nearest is 'router.budget_B'"):
        parse_arguments([*REQUIRED, "router.budgetB=0.3"])


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.rollout.temprature",
        "actor_rollout_ref.actor.optmi.lr",
        "actor_rollout_ref.actor.optim.eeps",
        "data.train_batchsize",
        "trainer.save_frequ",
    ],
)
def test_a_misspelled_key_is_not_taken_as_one_of_verl(key: str):
    with pytest.raises(InvalidRequest, match=f"unknown key '{key}'"):
        parse_arguments([*REQUIRED, f"{key}=1"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("router.enable=false", "router.enable"),
        ("trainer.nnodes=2", "trainer.nnodes"),
        ("actor_rollout_ref.rollout.n=0", "greater than or equal to 1"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=128", "data.train_batch_size, which is 512"),
        ("router.budget_B=-1", "router.budget_B"),
        ("router", "key=value"),
        ("router=1", "unknown key"),
        ("algorithm.adv_estimator=gae", "'grpo'"),
    ],
)
def test_invalid_arguments_are_named(argument: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        parse_arguments([*REQUIRED, argument])


def test_a_single_answer_per_step_is_refused():
    more = ("actor_rollout_ref.rollout.n=1", "data.train_batch_size=1")
    with pytest.raises(InvalidRequest, match="compared with none"):
        parse_arguments([*REQUIRED, *more])
    for enough in ("actor_rollout_ref.rollout.n=2", "data.train_batch_size=2"):
        parse_arguments([*REQUIRED, *more, enough])


@pytest.mark.parametrize(
    "argument",
    [
        "actor_rollout_ref.actor.fsdp_config.grad_offload=True",
        "+actor_rollout_ref.actor.fsdp_config.grad_offload=true",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.use_kl_loss=null",
        "actor_rollout_ref.rollout.top_k=-1",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
        "actor_rollout_ref.ref.log_prob_micro_batch_size=160",
        "algorithm.kl_ctrl.kl_coef=0.001",
        "critic.model.fsdp_config.param_offload=True",
        "trainer.use_reference_policy=false",
        "router.tokenizer_decode_kwargs.skip_special_tokens=false",
    ],
)
def test_a_key_of_verl_without_an_effect_is_named_and_ignored(
    argument: str, caplog: pytest.LogCaptureFixture
):
    assert parse_arguments([*REQUIRED, argument]) == parse_arguments(REQUIRED)
    [message] = caplog.messages
    assert message.endswith(f"no effect here: {argument.lstrip('+').partition('=')[0]}")


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("actor_rollout_ref.actor.use_kl_loss=True", "python -m rewardfleet_router.verl"),
        ("trainer.use_reference_policy=true", "python -m rewardfleet_router.verl"),
        ("actor_rollout_ref.rollout.top_k=50", "python -m rewardfleet_router.verl"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=10", "optim.warmup_steps"),
        ("algorithm.norm_adv_by_std_in_grpo=True", "router.advantage, to std"),
        ("custom_reward_function.path=reward.py", "python -m rewardfleet_router.verl"),
        ("data.prompt_key=messages", "name the column `prompt`"),
        ("trainer.val_before_train=True", "trainer.test_freq"),
    ],
)
def test_a_key_of_verl_with_an_effect_says_what_to_do_instead(argument: str, instead: str):
    with pytest.raises(InvalidRequest, match=re.escape(instead)):
        parse_arguments([*REQUIRED, argument])
    key = argument.partition("=")[0]
    parse_arguments([*REQUIRED, argument, f"{key}=null"])  # the last value counts


def test_keys_of_the_authors_are_those_of_the_router():
    config = parse_arguments([*REQUIRED, "router.lagrange_lr=0.01", "router.init_lambda=0.5"])
    assert (config.router.eta, config.router.initial_lambda) == (0.01, 0.5)


def test_lambda_has_the_services_highest_limit_only():
    options = parse_arguments(REQUIRED).router.budget_options()
    assert BudgetOptions.model_validate(options).max_lambda == 1e6
    with pytest.raises(ValidationError):
        BudgetOptions(max_lambda=1.01e6)


def test_a_missing_key_is_named():
    with pytest.raises(InvalidRequest, match=r"actor_rollout_ref"):
        parse_arguments(["data.train_files=train.parquet"])


def test_values_are_json_or_lists_as_hydra_writes_them_or_text():
    config = parse_arguments(
        [
            *REQUIRED,
            "data.train_files=[a.parquet,'b.parquet']",
            'trainer.logger=["console","wandb"]',
            "+router.optim.lr=null",
            "trainer.experiment_name=7",
            "data.shuffle=False",
        ]
    )
    assert config.data.train_files == (Path("a.parquet"), Path("b.parquet"))
    assert config.trainer.logger == ("console", "wandb")
    assert config.router.optim.lr is None
    assert config.trainer.experiment_name == "7"
    assert config.data.shuffle is False


def test_the_budget_has_the_options_of_the_router():
    config = parse_arguments(
        [*REQUIRED, "router.budget_B=0.2", "router.eta=0.5", "router.pid.kp=3"]
    )
    options = config.router.budget_options()
    assert (options["budget"], options["eta"], options["pid"]["kp"]) == (0.2, 0.5, 3.0)
    assert options["controller"] == "pid"


def test_every_key_is_described_and_part_of_the_flat_configuration():
    known = list(keys(RouterConfig))
    assert len(describe_keys()) == len(known)
    assert all(line.partition("  # ")[2] not in {"", "None"} for line in describe_keys())
    assert sorted(flatten(parse_arguments(REQUIRED))) == sorted(known)
