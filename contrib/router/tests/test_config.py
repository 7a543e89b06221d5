"""The configuration: verl's keys as `key=value` arguments."""

from pathlib import Path

import pytest

from rewardfleet.wire.errors import InvalidRequest
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
    ("argument", "message"),
    [
        ("router.enable=false", "router.enable"),
        ("trainer.nnodes=2", "trainer.nnodes"),
        ("actor_rollout_ref.rollout.n=1", "greater than or equal to 2"),
        ("router.budget_B=-1", "router.budget_B"),
        ("router", "key=value"),
        ("router=1", "unknown key"),
        ("algorithm.adv_estimator=gae", "'grpo'"),
    ],
)
def test_invalid_arguments_are_named(argument: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        parse_arguments([*REQUIRED, argument])


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
