"""ROLL: a reward worker, and a rollout loop that drops prompts without a reward."""

import functools
import logging
from collections.abc import Sequence
from typing import Any

from rewardfleet.wire.errors import CALLER_ERRORS, RewardFleetError

from ._rows import RowReward, module_of_trainer

log = logging.getLogger(__name__)

_INSTALL = "see https://github.com/alibaba/ROLL"
#: After so many failed samples in a row, the fleet is gone, and generating more is of no use.
_MAX_FAILURES = 256


def reward_worker(service: str, url: str | Sequence[str], **options: Any) -> type:
    """Return a class for `worker_cls` of a domain in `rewards`.

    Args:
        service, url, options: See `rewardfleet.adapters`. `on_failure` must not be NaN, which would
            spread over the group. With an error, `RolloutLoop` drops the prompt and draws another
            one.

    Raises:
        ImportError: ROLL is not installed.
    """
    return RowReward(service, url, trainer="ROLL", **options).subclass_of(_worker())


@functools.cache
def _worker() -> type:
    base: Any = module_of_trainer("roll.distributed.executor.worker", _INSTALL).Worker
    decorator = module_of_trainer("roll.distributed.scheduler.decorator", _INSTALL)
    protocol = module_of_trainer("roll.distributed.scheduler.protocol", _INSTALL)
    providers = module_of_trainer("roll.models.model_providers", _INSTALL)
    torch = module_of_trainer("torch", _INSTALL)

    class RewardWorker(base):  # type: ignore[misc] # a class of ROLL
        """A worker of ROLL whose class attribute `scorer` computes the rewards."""

        scorer: RowReward

        def __init__(self, worker_config: Any) -> None:
            super().__init__(worker_config=worker_config)
            self.rank_info.dp_rank = self.rank_info.rank
            self.rank_info.dp_size = self.rank_info.world_size
            model_args = worker_config.model_args
            self.tokenizer = providers.default_tokenizer_provider(model_args=model_args)

        @decorator.register(dispatch_mode=decorator.Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator] # of ROLL
        def initialize(self, pipeline_config: Any) -> None:
            """Do nothing: there is no model."""

        # As a coroutine, so that ROLL sends a worker many requests at once.
        @decorator.register(dispatch_mode=decorator.Dispatch.DP_MP_COMPUTE, clear_cache=False)  # type: ignore[untyped-decorator] # of ROLL
        async def compute_rewards(self, data: Any) -> Any:
            """Return the rewards of responses; ROLL places them at their last tokens."""
            responses = data.batch["responses"]
            texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True)
            metrics: dict[str, float] = {}
            columns = dict(data.non_tensor_batch.items())  # ROLL's cannot be iterated over
            step = data.meta_info.get("global_step")
            rewards = await self.scorer.rewards(texts, columns, metrics, step)
            # Not in half precision: equal rewards would differ from their mean.
            values = torch.tensor(rewards, dtype=torch.float32)
            tensors = {"response_level_rewards": values, "scores": values.clone()}
            tensors["token_level_rewards"] = torch.zeros_like(responses, dtype=torch.float32)
            return protocol.DataProto.from_dict(tensors=tensors, meta_info={"metrics": metrics})

    return RewardWorker


@functools.cache
def _rollout_loop() -> type:
    loop = "roll.distributed.scheduler.user_defined_rollout_loop"
    base: Any = module_of_trainer(loop, _INSTALL).UserDefinedRolloutLoop

    class RolloutLoop(base):  # type: ignore[misc] # a class of ROLL
        """ROLL's rollout loop, in which a prompt with a missing reward is replaced by another."""

        def __init__(self) -> None:
            super().__init__()
            self._failures = 0  # in a row

        async def _generate_and_reward(self, context: Any, req: Any, domain: str) -> Any:
            try:
                responses = await super()._generate_and_reward(context, req, domain)
            except RewardFleetError as error:
                self._failures += 1
                is_wrong = isinstance(error, CALLER_ERRORS) or error.blames_url
                if is_wrong or self._failures >= _MAX_FAILURES:
                    raise
                log.warning("prompt %s is dropped, no reward: %s", context.prompt_id, error)
                return None
            self._failures = 0
            return responses

    return RolloutLoop


def __getattr__(name: str) -> Any:
    if name != "RolloutLoop":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _rollout_loop()
