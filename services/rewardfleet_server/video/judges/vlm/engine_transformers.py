"""transformers on any device that it supports: one model, and a batch of those who wait."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Imported by name where the judge is built, never with the server.
import numpy as np
import torch
import transformers
from pydantic import JsonValue
from transformers import AutoModelForImageTextToText, GenerationConfig, StoppingCriteria
from transformers.video_utils import VideoMetadata

from rewardfleet.wire.errors import BackendFailed

from . import Answer, Ask, Conversation, Picture, Video
from .checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: So long the next caller may let a batch wait that is not full: less than any real pass takes.
_QUIET_SECONDS = 0.05
#: Characters of a failure that callers are told.
_MAX_SAID = 500
#: Failures of a device after which it answers nothing any more.
_STICKY = getattr(torch, "AcceleratorError", ())


@dataclass(eq=False)
class _Job:
    """One caller's conversation, and where its answer goes."""

    conversation: Conversation
    prompt: str
    ask: Ask
    result: asyncio.Future[list[Answer]]


class TransformersEngine:
    """A model in this process.

    While one batch runs, callers gather for the next, and for a moment longer where more keep
    coming; who leaves before it starts is not in it.

    Args:
        device: As torch names it, or `auto`: the first GPU where there is one.
        batch_size: The most conversations of one batch.

    Raises:
        ValueError: The model cannot be loaded there.
    """

    def __init__(self, checkpoint: Checkpoint, *, device: str, batch_size: int) -> None:
        self._checkpoint = checkpoint
        self._batch_size = batch_size
        self._waiting: deque[_Job] = deque()
        self._came = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.passes = 0  #: forward passes of the model so far
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            model = AutoModelForImageTextToText.from_pretrained(checkpoint.path, dtype="auto")
            self._model = model.to(device).eval()
        except Exception as error:
            raise ValueError(
                f"--model-path {checkpoint.path} on --device {device}: {error}"
            ) from error
        self._model.register_forward_pre_hook(self._count)
        tokenizer = checkpoint.processor.tokenizer
        of_model = self._model.generation_config.eos_token_id
        ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        ends |= set(of_model) if isinstance(of_model, list) else {of_model}
        self._ends = {end for end in ends if end is not None}
        self._failure: str | None = None
        self._numbers = _continuations(
            [tokenizer.encode(str(number), add_special_tokens=False) for number in range(101)],
            tokenizer.eos_token_id,
        )

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "engine": f"transformers {transformers.__version__}",
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": self._model.device.type,
        }

    @property
    def failure(self) -> str | None:
        return self._failure

    async def answer(self, conversation: Conversation, prompt: str, ask: Ask) -> list[Answer]:
        job = _Job(conversation, prompt, ask, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._came.set()
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._run())
        return await job.result

    async def aclose(self) -> None:
        for job in self._waiting:
            job.result.cancel()
        if self._running is not None:
            # The thread cannot be stopped, but `_AllGone` ends its generation at the next token.
            self._running.cancel()

    async def _run(self) -> None:
        """Answer batch after batch until nobody waits."""
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
        """Wait until a batch is full, or nobody has come for a moment."""
        while len(self._waiting) < self._batch_size:
            self._came.clear()
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await self._came.wait()
            except TimeoutError:
                return

    def _outcomes(self, batch: list[_Job]) -> list[list[Answer] | BackendFailed]:
        """Answer a batch. What fails is returned: some exceptions cannot leave a thread."""
        if not batch:
            return []
        try:
            return list(self._answer_batch(batch))
        except Exception as error:
            log.exception("a batch of %d failed", len(batch))
            if isinstance(error, _STICKY) and not isinstance(error, torch.OutOfMemoryError):
                self._failure = f"the device failed: {type(error).__name__}"
            elif len(batch) > 1:  # one of them may have failed the others
                return [outcome for job in batch for outcome in self._outcomes([job])]
            failed = f"the model failed: {type(error).__name__}: {error}"[:_MAX_SAID]
            return [BackendFailed(failed) for _ in batch]

    def _next_batch(self) -> list[_Job]:
        """Take those who want the same of the model, oldest first, without those who left."""
        batch: list[_Job] = []
        others: deque[_Job] = deque()
        while self._waiting:
            job = self._waiting.popleft()
            if job.result.done():
                continue
            fits = not batch or job.ask == batch[0].ask
            most = max(1, self._batch_size // job.ask.n)
            (batch if fits and len(batch) < most else others).append(job)
        self._waiting = others
        return batch

    def _count(self, *_: object) -> None:
        self.passes += 1

    def _answer_batch(self, batch: list[_Job]) -> list[list[Answer]]:
        inputs = self._inputs(batch)
        with torch.inference_mode():
            if batch[0].ask.labels:
                return [[answer] for answer in self._first_tokens(inputs, batch[0].ask)]
            return self._texts(inputs, batch)

    def _inputs(self, batch: list[_Job]) -> Any:
        parts = [part for job in batch for part in job.conversation.parts]
        pictures = [part.frame for part in parts if isinstance(part, Picture)]
        videos = [part for part in parts if isinstance(part, Video)]
        inputs = self._checkpoint.processor(
            text=[job.prompt for job in batch],
            images=pictures or None,
            videos=[np.asarray(video.frames) for video in videos] or None,
            # Without it the processor would take them for 24 frames a second, and say otherwise.
            video_metadata=[_metadata(video) for video in videos] or None,
            do_sample_frames=False,
            do_resize=False,
            padding=True,
            return_tensors="pt",
        )
        return inputs.to(self._model.device)

    def _first_tokens(self, inputs: Any, ask: Ask) -> list[Answer]:
        logits = self._model(**inputs, logits_to_keep=1).logits[:, -1].float()
        logprobs = logits.log_softmax(-1)
        said = self._checkpoint.processor.tokenizer.batch_decode(logits.argmax(-1)[:, None])
        of_labels = logprobs[:, list(ask.labels)].tolist()
        return [
            Answer(text, truncated=True, logprobs=dict(zip(ask.labels, row, strict=True)))
            for text, row in zip(said, of_labels, strict=True)
        ]

    def _texts(self, inputs: Any, batch: list[_Job]) -> list[list[Answer]]:
        ask = batch[0].ask
        start = inputs["input_ids"].shape[1]
        sampling = (
            {"do_sample": True, "temperature": ask.temperature, "top_p": ask.top_p, "top_k": 0}
            if ask.temperature > 0
            else {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        )
        tokens = self._model.generate(
            **inputs,
            **sampling,
            # Not the checkpoint's own, whose penalties other engines do not know either.
            generation_config=GenerationConfig(
                eos_token_id=sorted(self._ends), pad_token_id=min(self._ends)
            ),
            max_new_tokens=ask.max_tokens,
            num_return_sequences=ask.n,
            stopping_criteria=[_AllGone(batch)],
            prefix_allowed_tokens_fn=self._allowed(start) if ask.numbers_only else None,
        )[:, start:]
        texts = self._checkpoint.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        answers = [
            Answer(text, truncated=self._ends.isdisjoint(row))
            for text, row in zip(texts, tokens.tolist(), strict=True)
        ]
        return [answers[first : first + ask.n] for first in range(0, len(answers), ask.n)]

    def _allowed(self, start: int) -> Any:
        def allowed(_: int, tokens: torch.Tensor) -> list[int]:
            return self._numbers.get(tuple(tokens[start:].tolist()), list(self._ends))

        return allowed


class _AllGone(StoppingCriteria):  # type: ignore[misc] # no types come with transformers here
    """Ends a generation that nobody waits for any more."""

    def __init__(self, batch: list[_Job]) -> None:
        self._batch = batch

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        gone = all(job.result.done() for job in self._batch)
        return torch.full((input_ids.shape[0],), gone, device=input_ids.device)


def _metadata(video: Video) -> VideoMetadata:
    return VideoMetadata(
        total_num_frames=video.total, fps=video.fps, frames_indices=list(video.indices)
    )


def _continuations(texts: list[list[int]], end: int) -> dict[tuple[int, ...], list[int]]:
    """Return which tokens may follow each beginning of the given token sequences."""
    following: dict[tuple[int, ...], set[int]] = {}
    for tokens in texts:
        for place, token in enumerate([*tokens, end]):
            following.setdefault(tuple(tokens[:place]), set()).add(token)
    return {beginning: sorted(tokens) for beginning, tokens in following.items()}
