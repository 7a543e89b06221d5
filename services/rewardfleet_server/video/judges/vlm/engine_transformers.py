"""transformers on any device that it supports: one model, and batches of waiting conversations.

`BatchingEngine` collects conversations and runs batches. `TransformersEngine` generates text with
it, `engine_robometer.py` reads numbers from a model's heads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

# This module is imported when the judge is loaded, never with the server.
import numpy as np
import torch
import transformers
from pydantic import JsonValue
from transformers import AutoModelForImageTextToText, GenerationConfig
from transformers.video_utils import VideoMetadata

from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.video.judges.labels import Position, Token

from . import Completion, Conversation, GenerationParams, ImagePart, VideoPart
from .checkpoint import Checkpoint

T = TypeVar("T")

log = logging.getLogger(__name__)

#: A batch that is not full starts when no conversation arrived for this long. It is less than a
#: forward pass of a real model takes.
_GATHER_SECONDS = 0.05
_MAX_REASON = 500  #: characters of a failure that are reported to the caller
#: Errors after which the device cannot be used any more.
_FATAL_ERRORS = getattr(torch, "AcceleratorError", ())


@dataclass(eq=False)
class QueuedPrompt(Generic[T]):
    """A waiting conversation and the future of its result."""

    conversation: Conversation  #: its frames have the size that the model takes
    prompt: str  #: the conversation in the model's chat template
    params: GenerationParams  #: jobs with equal parameters may share a batch
    #: Done as soon as the caller has its result, or does not wait any more.
    result: asyncio.Future[T]


class BatchingEngine(Generic[T]):
    """A model in this process that computes a result of type `T` for each conversation.

    While one batch runs, conversations are collected for the next, and 50 ms longer as long as
    more arrive. A conversation that is cancelled before its batch starts is not in it.

    If the model cannot be loaded, or not on this device, ValueError.

    Args:
        device: As torch names it, or `auto`: the first GPU if there is one, else the CPU.
        batch_size: The most completions of one batch.
    """

    def __init__(self, checkpoint: Checkpoint, *, device: str, batch_size: int) -> None:
        self._checkpoint = checkpoint
        self._batch_size = batch_size
        self._waiting: deque[QueuedPrompt[T]] = deque()
        self._arrived = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._model = self._load().to(device).eval()
        except Exception as error:
            raise ValueError(
                f"--model-path {checkpoint.path} on the device {device}: {error}"
            ) from error
        self.failure: str | None = None

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "engine": f"transformers {transformers.__version__}",
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": self._model.device.type,
        }

    def _load(self) -> Any:
        """Load the model, on the CPU."""
        raise NotImplementedError

    def _run_batch(self, inputs: Any, batch: list[QueuedPrompt[T]]) -> list[T]:
        """Return the result of each conversation. Runs in a thread."""
        raise NotImplementedError

    def tokens(self, conversation: Conversation, prompt: str) -> list[int]:
        ids: list[int] = self._inputs([(conversation, prompt)])["input_ids"][0].tolist()
        return ids

    async def generate(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> T:
        """Put a conversation into a batch and wait for its result."""
        result = asyncio.get_running_loop().create_future()
        job = QueuedPrompt[T](conversation, prompt, params, result)
        self._waiting.append(job)
        self._arrived.set()
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run())
        return await job.result

    async def aclose(self) -> None:
        for job in self._waiting:
            job.result.cancel()
        if self._running is not None:
            # A thread cannot be stopped, but `ended` ends generation at the next token.
            self._running.cancel()

    async def _run(self) -> None:
        """Run batch after batch until no conversation waits."""
        while self._waiting:
            await self._gather()
            batch = self._next_batch()
            try:
                outcomes = await asyncio.to_thread(self._outcomes, batch)
            except asyncio.CancelledError:
                for job in batch:
                    job.result.cancel()
                raise
            for job, outcome in zip(batch, outcomes, strict=True):
                if job.result.done():
                    continue
                if isinstance(outcome, BackendFailed):
                    job.result.set_exception(outcome)
                else:
                    job.result.set_result(outcome)

    async def _gather(self) -> None:
        """Wait until a batch is full, or no conversation arrived for `_GATHER_SECONDS`."""
        while len(self._waiting) < self._batch_size:
            self._arrived.clear()
            try:
                async with asyncio.timeout(_GATHER_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _outcomes(self, batch: list[QueuedPrompt[T]]) -> list[T | BackendFailed]:
        """Run a batch. Failures are returned: StopIteration cannot be raised out of a thread."""
        if not batch:
            return []
        try:
            inputs = self._inputs([(job.conversation, job.prompt) for job in batch])
            with torch.inference_mode():
                return [*self._run_batch(inputs, batch)]
        except Exception as error:
            log.exception("a batch of %d failed", len(batch))
            if isinstance(error, _FATAL_ERRORS) and not isinstance(error, torch.OutOfMemoryError):
                self.failure = f"the device failed: {type(error).__name__}"
            elif len(batch) > 1:  # one conversation may have failed all
                return [outcome for job in batch for outcome in self._outcomes([job])]
            failed = f"the model failed: {type(error).__name__}: {error}"[:_MAX_REASON]
            return [BackendFailed(failed) for _ in batch]

    def _next_batch(self) -> list[QueuedPrompt[T]]:
        """Take the conversations with the oldest one's parameters, without cancelled ones."""
        batch: list[QueuedPrompt[T]] = []
        others: deque[QueuedPrompt[T]] = deque()
        while self._waiting:
            job = self._waiting.popleft()
            if job.result.done():
                continue
            fits = not batch or job.params == batch[0].params
            most = max(1, self._batch_size // job.params.n)
            (batch if fits and len(batch) < most else others).append(job)
        self._waiting = others
        return batch

    def _inputs(self, batch: Sequence[tuple[Conversation, str]]) -> Any:
        parts = [part for conversation, _ in batch for part in conversation.parts]
        images = [part.frame for part in parts if isinstance(part, ImagePart)]
        videos = [part for part in parts if isinstance(part, VideoPart)]
        inputs = self._checkpoint.processor(
            text=[prompt for _, prompt in batch],
            images=images or None,
            videos=[np.asarray(video.frames) for video in videos] or None,
            video_metadata=[VideoMetadata(**video.metadata) for video in videos] or None,
            do_sample_frames=False,
            do_resize=False,
            padding=True,
            return_tensors="pt",
        )
        return inputs.to(self._model.device)


class TransformersEngine(BatchingEngine[list[Completion]]):
    """A model that generates completions. Parameters and errors: see `BatchingEngine`."""

    def __init__(self, checkpoint: Checkpoint, *, device: str, batch_size: int) -> None:
        super().__init__(checkpoint, device=device, batch_size=batch_size)
        tokenizer = checkpoint.processor.tokenizer
        eos = self._model.generation_config.eos_token_id
        ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        self._end_tokens = (ends | set(eos if isinstance(eos, list) else [eos])) - {None}
        self._numbers = _continuations(
            [tokenizer.encode(str(number), add_special_tokens=False) for number in range(101)],
            tokenizer.eos_token_id,
        )

    def _load(self) -> Any:
        return AutoModelForImageTextToText.from_pretrained(self._checkpoint.path, dtype="auto")

    def _run_batch(
        self, inputs: Any, batch: list[QueuedPrompt[list[Completion]]]
    ) -> list[list[Completion]]:
        params = batch[0].params
        start = inputs["input_ids"].shape[1]
        is_sampled = params.temperature > 0
        steps: list[list[list[float]]] = []

        def ended(tokens: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            """End the generation when every conversation of the batch is cancelled."""
            cancelled = all(job.result.done() for job in batch)
            return torch.full((tokens.shape[0],), cancelled, device=tokens.device)

        def note(_: object, scores: torch.Tensor) -> torch.Tensor:
            """Note the log-probabilities of the likeliest token, which is generated, and labels."""
            logprobs = scores.log_softmax(-1)
            noted = logprobs.amax(-1, keepdim=True), logprobs[:, [*params.labels.values()]]
            steps.append(torch.cat(noted, -1).tolist())
            return scores

        def allowed(_: int, tokens: torch.Tensor) -> list[int]:
            return self._numbers.get(tuple(tokens[start:].tolist()), [*self._end_tokens])

        tokens = self._model.generate(
            **inputs,
            do_sample=is_sampled,
            temperature=params.temperature if is_sampled else None,
            top_p=params.top_p if is_sampled else None,
            top_k=params.top_k if is_sampled else None,
            # Not the checkpoint's own: its penalties do not apply to the other engines either.
            generation_config=GenerationConfig(
                eos_token_id=sorted(self._end_tokens), pad_token_id=min(self._end_tokens)
            ),
            max_new_tokens=params.max_tokens,
            num_return_sequences=params.n,
            stopping_criteria=[ended],
            logits_processor=[note] if params.labels else [],
            prefix_allowed_tokens_fn=allowed if params.numbers_only else None,
        )[:, start:]
        tokenizer = self._checkpoint.processor.tokenizer
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        completions = []
        for index, (text, row) in enumerate(zip(texts, tokens.tolist(), strict=True)):
            positions = [
                Position(tokenizer.decode(token), own, [*map(Token, params.labels, values)])
                for token, (own, *values) in zip(row, (each[index] for each in steps), strict=False)
            ]
            is_cut = self._end_tokens.isdisjoint(row)
            completions.append(Completion(text, truncated=is_cut, positions=positions))
        starts = range(0, len(completions), params.n)
        return [completions[first : first + params.n] for first in starts]


def _continuations(texts: list[list[int]], end: int) -> dict[tuple[int, ...], list[int]]:
    """Return which tokens may follow each prefix of the given token sequences."""
    following: dict[tuple[int, ...], set[int]] = {}
    for tokens in texts:
        for position, token in enumerate([*tokens, end]):
            following.setdefault(tuple(tokens[:position]), set()).add(token)
    return {prefix: sorted(tokens) for prefix, tokens in following.items()}
