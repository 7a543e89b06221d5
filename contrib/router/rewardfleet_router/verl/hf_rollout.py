"""`actor_rollout_ref.rollout.name=hf`: the actor generates by transformers.

For one process with `fsdp2`: CPUs, tests, and models so small that an inference engine does not
pay. verl's own agent loops, reward workers and load balancer use it like any other engine.
"""

import asyncio
import json
from collections.abc import Generator, Sequence
from typing import Any

import ray
import torch
from verl.workers.rollout import base as rollouts
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from rewardfleet_router.batch import pad_prompts

#: Name of the rollout.
HF = "hf"
#: Requests that arrive within this time are generated together.
_COLLECT_SECONDS = 0.02


def register_hf_rollout() -> None:
    """Register `rollout.name=hf` with verl, in this process."""
    RolloutReplicaRegistry.register(HF, lambda: HFReplica)
    # verl has no function for this one.
    rollouts._ROLLOUT_REGISTRY[HF, "async"] = f"{__name__}.{SharedWeights.__name__}"  # noqa: SLF001


class SharedWeights(BaseRollout):  # type: ignore[misc]  # verl is not installed where types are checked
    """A rollout that generates with the actor's own weights: there is nothing to synchronize."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing."""

    async def release(self) -> None:
        """Do nothing."""

    async def update_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], **kwargs: Any
    ) -> None:
        """Do nothing; the weights are not read."""


class HFReplica(RolloutReplica):  # type: ignore[misc]  # likewise
    """The server of one worker."""

    async def launch_servers(self) -> None:
        """Start an actor that passes requests to the worker.

        Raises:
            ValueError: There is more than one process.
        """
        if self.world_size != 1 or self.replica_rank != 0:
            raise ValueError(
                "rollout.name=hf: one process only (n_gpus_per_node=1, nnodes=1, "
                "rollout.tensor_model_parallel_size=1); use vllm or sglang for more"
            )
        server = ray.remote(num_cpus=0, max_concurrency=self.max_concurrency)(HFServer)
        self._server_handle = server.remote(
            self.workers[0], self.config.response_length, self.config.max_num_seqs
        )
        self._server_address = f"{HF}-{self.replica_rank}"

    async def sleep(self) -> None:
        """Do nothing: the weights are the actor's."""

    async def wake_up(self) -> None:
        """Do nothing."""


class HFServer:
    """Collects requests that arrive together, and has the worker generate them as batches.

    Args:
        worker: The worker's handle.
        response_length: The most tokens of a response.
        batch_size: The most requests of a batch.
    """

    def __init__(self, worker: Any, response_length: int, batch_size: int) -> None:
        self._worker = worker
        self._response_length = response_length
        self._batch_size = batch_size
        #: By the sampling parameters as JSON: prompts that are generated together.
        self._waiting: dict[str, list[tuple[list[int], asyncio.Future[list[int]]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def generate(
        self,
        request_id: str,  # noqa: ARG002 - verl's signature
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        **media: Any,
    ) -> TokenOutput:
        """Return the tokens of one response.

        Raises:
            ValueError: The prompt has images or videos.
        """
        if any(value for value in media.values()):
            raise ValueError("rollout.name=hf: text prompts only")
        future = asyncio.get_running_loop().create_future()
        is_first = not self._waiting
        sampling = json.dumps(sampling_params, sort_keys=True)
        self._waiting.setdefault(sampling, []).append((list(prompt_ids), future))
        if is_first:
            task = asyncio.create_task(self._generate_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        tokens = await future
        complete = len(tokens) < self._response_length
        return TokenOutput(token_ids=tokens, stop_reason="completed" if complete else "length")

    async def _generate_waiting(self) -> None:
        await asyncio.sleep(_COLLECT_SECONDS)
        waiting, self._waiting = self._waiting, {}
        for key, requests in waiting.items():
            sampling = {"max_tokens": self._response_length, **json.loads(key)}
            for start in range(0, len(requests), self._batch_size):
                await self._generate_batch(requests[start : start + self._batch_size], sampling)

    async def _generate_batch(
        self,
        batch: list[tuple[list[int], asyncio.Future[list[int]]]],
        sampling: dict[str, Any],
    ) -> None:
        try:
            responses = await self._worker.generate_tokens.remote(
                [tokens for tokens, _ in batch], sampling
            )
        except Exception as error:  # noqa: BLE001 - reported to all that wait for it
            for _, future in batch:
                if not future.done():  # canceled
                    future.set_exception(error)
            return
        for (_, future), tokens in zip(batch, responses, strict=True):
            if not future.done():  # canceled
                future.set_result(tokens)


def generate(
    model: Any, prompts: Sequence[Sequence[int]], sampling: dict[str, Any], tokenizer: Any
) -> list[list[int]]:
    """Return the tokens that a model generates for each prompt, with the end token if it came.

    Args:
        model: A causal language model of transformers.
        prompts: Tokens of the prompts.
        sampling: `max_tokens`, `temperature` (0: the most probable token), `top_p`, `top_k` (-1:
            all).
        tokenizer: Its tokenizer.
    """
    fields = pad_prompts(prompts, tokenizer.pad_token_id, None)
    temperature = float(sampling.get("temperature", 1.0))
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {
            "do_sample": True,
            "temperature": temperature,
            "top_p": float(sampling.get("top_p", 1.0)),
            "top_k": max(0, int(sampling.get("top_k", -1))),
        }
    device = next(model.parameters()).device
    with torch.no_grad():
        sequences = model.generate(
            input_ids=fields["input_ids"].to(device),
            attention_mask=fields["attention_mask"].to(device),
            max_new_tokens=int(sampling["max_tokens"]),
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **how,
        )
    responses = sequences[:, fields["input_ids"].shape[1] :].tolist()
    return [_until(response, tokenizer.eos_token_id) for response in responses]


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
