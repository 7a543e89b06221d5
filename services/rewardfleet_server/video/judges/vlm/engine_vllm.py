"""vLLM in this process, through its asynchronous engine: all requests share one running batch."""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

# This module is imported when the judge is loaded, never with the server.
import vllm
from pydantic import JsonValue
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import ModelConfig
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.video.judges.labels import Position, Token
from rewardfleet_server.video.settings import prepare_engine_environment

from . import Completion, Conversation, GenerationParams, ImagePart, VideoPart
from .checkpoint import Checkpoint
from .settings import VllmSettings

_NUMBER = StructuredOutputsParams(regex=r"100|[1-9]?[0-9]")
_MAX_VIDEOS = 64  #: the most videos of one conversation: a curve shows its frames in pairs
_SHUTDOWN_SECONDS = 10.0
#: Characters of vLLM's reason for not loading a model; some list everything that it supports.
_MAX_REASON = 300


class VllmEngine:
    """A front in this process, and one engine process (several if the model spans GPUs)."""

    def __init__(self, checkpoint: Checkpoint, own: VllmSettings) -> None:
        prepare_engine_environment()
        arguments = AsyncEngineArgs(
            model=checkpoint.path,
            max_model_len=checkpoint.context,
            tensor_parallel_size=1 if current_platform.is_cpu() else own.tensor_parallel_size,
            data_parallel_size=own.data_parallel_size,
            gpu_memory_utilization=own.gpu_memory_utilization,
            enforce_eager=own.enforce_eager,
            limit_mm_per_prompt={"image": 2, "video": _MAX_VIDEOS},
            # Rollouts do not repeat, and those that do are in the cache of scores: no cache of
            # processed frames.
            mm_processor_cache_gb=0,
            # The frames are sampled and have the model's size already.
            mm_processor_kwargs={"do_resize": False, "do_sample_frames": False},
            disable_log_stats=True,
        )
        try:
            self._engine = AsyncLLM.from_engine_args(arguments)
        except Exception as error:
            reason = " ".join(str(error).split())[:_MAX_REASON]
            raise ValueError(
                f"--model-path {checkpoint.path}: vLLM could not load it: {reason}"
            ) from error

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {
            "engine": f"vllm {vllm.__version__}",
            "dtype": str(self._engine.model_config.dtype).removeprefix("torch."),
        }

    @property
    def failure(self) -> str | None:
        return "the vLLM engine died" if self._engine.errored else None

    def tokens(self, conversation: Conversation, prompt: str) -> list[int]:
        parsed = _parsed(prompt, conversation, self._engine.model_config)
        (engine_input,) = self._engine.renderer.render_cmpl([parsed])
        return [*engine_input["prompt_token_ids"]]

    async def generate(
        self, conversation: Conversation, prompt: str, params: GenerationParams
    ) -> list[Completion]:
        try:
            parsed = _parsed(prompt, conversation, self._engine.model_config)
            (engine_input,) = await self._engine.renderer.render_cmpl_async([parsed])
            sampling = SamplingParams(
                n=params.n,
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                max_tokens=params.max_tokens,
                logprob_token_ids=[*params.labels.values()] or None,
                structured_outputs=_NUMBER if params.numbers_only else None,
                output_kind=RequestOutputKind.FINAL_ONLY,
                # vLLM would decode each token when it comes, on the event loop, for streams.
                detokenize=False,
            )
            # Closing the generator, as cancelling this call does, removes it from the batch.
            generating = self._engine.generate(engine_input, sampling, uuid.uuid4().hex)
            async with contextlib.aclosing(generating) as outputs:
                async for output in outputs:
                    finished = output
        except EngineDeadError:
            raise Unavailable("the vLLM engine died; the service ends", retry_after=5) from None
        except VLLMClientError as error:
            raise InvalidRequest(f"vLLM refuses this: {error}") from None
        for output in finished.outputs:
            if output.finish_reason not in {"stop", "length"}:  # such as `abort`: no answer
                raise Unavailable(f"vLLM ended an answer early: {output.finish_reason}")
        tokenizer = self._engine.get_tokenizer()
        return [_completion(output, tokenizer, params.labels) for output in finished.outputs]

    async def aclose(self) -> None:
        self._engine.shutdown(timeout=_SHUTDOWN_SECONDS)


def _parsed(prompt: str, conversation: Conversation, model: ModelConfig) -> Any:
    images = [part for part in conversation.parts if isinstance(part, ImagePart)]
    videos = [part for part in conversation.parts if isinstance(part, VideoPart)]
    data: dict[str, Any] = {}
    ids: dict[str, list[str]] = {}
    if images:
        data["image"] = [image.frame for image in images]
        ids["image"] = [image.id for image in images]
    if videos:
        metadata = [{**video.metadata, "do_sample_frames": False} for video in videos]
        data["video"] = [*zip((video.frames for video in videos), metadata, strict=True)]
        ids["video"] = [video.id for video in videos]
    inputs = {"prompt": prompt, "multi_modal_data": data, "multi_modal_uuids": ids}
    return parse_model_prompt(model, inputs)


def _completion(output: Any, tokenizer: Any, labels: Mapping[str, int]) -> Completion:
    has_end = output.finish_reason == "stop"  # the token that ends the answer
    tokens = output.token_ids[:-1] if has_end else output.token_ids
    positions = [
        Position(
            tokenizer.decode(token),
            found[token].logprob,
            [Token(text, found[label].logprob) for text, label in labels.items()],
        )
        for token, found in zip(output.token_ids, output.logprobs or (), strict=False)
    ]
    return Completion(
        tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        truncated=output.finish_reason == "length",
        positions=positions,
    )
