"""NeMo-RL: an environment that scores the last response of each conversation."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.truth import given

from ._rows import RowReward, module_of_trainer

_INSTALL = "see https://github.com/NVIDIA-NeMo/RL"


class EnvironmentReturn(NamedTuple):
    """What NeMo-RL unpacks: the fields of its own `EnvironmentReturn`, in the same order."""

    observations: list[dict[str, str]]  #: an empty message of the environment per sample
    metadata: list[Any]
    next_stop_strings: list[None]  #: None per sample
    rewards: Any  #: tensor [B], float32
    terminateds: Any  #: tensor [B], all 1: the episode ends with the response
    answers: None


class ScoringEnvironment:
    """The environment, without Ray: `Environment` is the actor class for it.

    Args:
        cfg: The arguments of `rewardfleet.adapters`. Columns are keys of a sample's
            `extra_env_info`; by default, `column` is `ground_truth`. `on_failure` must not be NaN,
            which would spread over the group.

    Raises:
        InvalidRequest: `service` or `url` is missing.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        if missing := {"service", "url"} - cfg.keys():
            raise InvalidRequest(f"env.rewardfleet: give {' and '.join(sorted(missing))}")
        self._rewards = RowReward(**{"column": "ground_truth", "trainer": "NeMo-RL", **cfg})

    async def step(
        self, message_log_batch: Sequence[Any], metadata: Sequence[Mapping[str, Any]]
    ) -> EnvironmentReturn:
        """Score the last message of the assistant in each conversation, and end the episodes.

        Raises:
            InvalidRequest: A sample has no such metadata, or it is invalid.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        import torch  # noqa: PLC0415 - the trainer has it

        names = {name for row in metadata for name in given(row or {})}
        columns = {
            name: [(row or {}).get(name) for row in metadata]
            for name in self._rewards.columns
            if name in names
        }
        values = await self._rewards.rewards(message_log_batch, columns)
        rewards = torch.tensor(values, dtype=torch.float32)
        observations = [{"role": "environment", "content": ""} for _ in metadata]
        stops, terminateds = [None] * len(metadata), torch.ones_like(rewards)
        return EnvironmentReturn(observations, [*metadata], stops, rewards, terminateds, None)

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
        """Return the batch as it is, and no metrics: NeMo-RL logs the rewards itself."""
        return batch, {}

    def shutdown(self) -> None:
        """Do nothing: the connections end with the process."""


def register() -> None:
    """Register the environment as `rewardfleet`, with the Python of the training script.

    Raises:
        ImportError: NeMo-RL is not installed.
        ValueError: There is an environment of that name.
    """
    registry = module_of_trainer("nemo_rl.distributed.ray_actor_environment_registry", _INSTALL)
    utils = module_of_trainer("nemo_rl.environments.utils", _INSTALL)
    actor = f"{__name__}.Environment"
    utils.register_env("rewardfleet", actor)
    registry.ACTOR_ENVIRONMENT_REGISTRY[actor] = registry.PY_EXECUTABLES.SYSTEM


@functools.cache
def _actor() -> Any:
    ray = module_of_trainer("ray", _INSTALL)
    # A task that is lost with its process is computed again; one that raises is not.
    return ray.remote(max_restarts=-1, max_task_retries=-1)(ScoringEnvironment)


def __getattr__(name: str) -> Any:
    if name != "Environment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _actor()
