"""vLLM in this process, through its asynchronous engine: all callers share one running batch."""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

# vLLM is imported by name where the judge is built, never with the server.
import vllm
from pydantic import JsonValue
from vllm import AsyncEngineArgs, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.video.settings import VideoSettings, prepare_engine_environment

from . import Answer, Ask, Conversation, Picture, Video
from .checkpoint import Checkpoint

_NUMBER = StructuredOutputsParams(regex=r"100|[1-9]?[0-9]")
#: Pictures and videos of one conversation: a curve shows its frames as pairs.
_MOST_MEDIA = 64
_SHUTDOWN_SECONDS = 10.0
#: Characters of its reasons, some of which list all that it knows.
_MAX_REASON = 300


class VllmEngine:
    """An engine process (several where the model is spread over GPUs) and its front in this one.

    Args:
        checkpoint: What to load.
        settings: How.
        tensor_parallel_size: GPUs that one replica of the model is spread over.
        gpu_memory_utilization: Share of each GPU's memory for it.

    Raises:
        ValueError: vLLM cannot load the model.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: VideoSettings,
        *,
        tensor_parallel_size: int,
        gpu_memory_utilization: float,
    ) -> None:
        prepare_engine_environment()
        if current_platform.is_cpu():
            tensor_parallel_size = 1
        arguments = AsyncEngineArgs(
            model=checkpoint.path,
            max_model_len=checkpoint.context,
            tensor_parallel_size=tensor_parallel_size,
            data_parallel_size=settings.data_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
            enforce_eager=settings.enforce_eager,
            limit_mm_per_prompt={"image": 2, "video": _MOST_MEDIA},
            # Rollouts never repeat: what the processor made of one is of no use for the next.
            mm_processor_cache_gb=settings.mm_processor_cache_gb,
            # The frames have the model's size already, and are those that shall be seen.
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

    async def answer(self, conversation: Conversation, prompt: str, ask: Ask) -> list[Answer]:
        try:
            (engine_input,) = await self._engine.renderer.render_cmpl_async(
                [parse_model_prompt(self._engine.model_config, _model_input(prompt, conversation))]
            )
            # Closing the generator, which cancelling this does, takes the request out of the batch.
            generating = self._engine.generate(engine_input, _parameters(ask), uuid.uuid4().hex)
            async with contextlib.aclosing(generating) as outputs:
                async for output in outputs:
                    finished = output
        except EngineDeadError:
            raise Unavailable("the vLLM engine died; the service ends", retry_after=5) from None
        except VLLMClientError as error:
            raise InvalidRequest(f"vLLM refuses this: {error}") from None
        return [_answer(completion) for completion in finished.outputs]

    async def aclose(self) -> None:
        self._engine.shutdown(timeout=_SHUTDOWN_SECONDS)


def _model_input(prompt: str, conversation: Conversation) -> dict[str, Any]:
    pictures = [part for part in conversation.parts if isinstance(part, Picture)]
    videos = [part for part in conversation.parts if isinstance(part, Video)]
    data: dict[str, Any] = {}
    ids: dict[str, list[str]] = {}
    if pictures:
        data["image"] = [picture.frame for picture in pictures]
        ids["image"] = [picture.id for picture in pictures]
    if videos:
        data["video"] = [(video.frames, _metadata(video)) for video in videos]
        ids["video"] = [video.id for video in videos]
    return {"prompt": prompt, "multi_modal_data": data, "multi_modal_uuids": ids}


def _metadata(video: Video) -> dict[str, Any]:
    """Say when the frames were taken: vLLM refuses frames without it."""
    return {
        "fps": video.fps,
        "total_num_frames": video.total,
        "duration": video.total / video.fps,
        "frames_indices": list(video.indices),
        "video_backend": "opencv",
        "do_sample_frames": False,
    }


def _parameters(ask: Ask) -> SamplingParams:
    return SamplingParams(
        n=ask.n,
        temperature=ask.temperature,
        top_p=ask.top_p,
        max_tokens=ask.max_tokens,
        logprob_token_ids=list(ask.labels) or None,
        structured_outputs=_NUMBER if ask.numbers_only else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _answer(completion: Any) -> Answer:
    logprobs = completion.logprobs[0] if completion.logprobs else {}
    return Answer(
        completion.text,
        truncated=completion.finish_reason == "length",
        logprobs={token: found.logprob for token, found in logprobs.items()},
    )
