"""The judges of the table that run a model here."""

import ast
import logging
from pathlib import Path

import numpy as np

from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.extras import require
from rewardfleet_server.video.frames import Clip
from rewardfleet_server.video.judges import ALIASES, DeferredJudge
from rewardfleet_server.video.prompts import PRIMO_SYSTEM, PRIMO_USER, Prompt
from rewardfleet_server.video.settings import VideoSettings, check_gpu_count, gpu_count

from . import Engine
from .checkpoint import Checkpoint
from .geometry import Prepare, by_qwen_vl_utils
from .judge import Setup, VlmJudge
from .prompt_layouts import AsVideo, FirstVideoLast
from .readouts import Sampling, Text, readouts

log = logging.getLogger(__name__)

#: What a user with a hub and without a GPU gets; 224 pixels a side, as more takes minutes there.
_SMALL_MODEL = "Qwen/Qwen3-VL-2B-Instruct"


def qwen_on_vllm(settings: VideoSettings) -> DeferredJudge:
    """Make the judge `qwen2_5_vl_vllm`.

    Raises:
        ValueError: The checkpoint, the GPUs or the prompt are not what is needed.
    """
    path = _model_path(settings.model_path, "qwen2_5_vl_vllm", "--model-path")
    checkpoint = Checkpoint(path, settings.max_model_len, flag="--max-model-len")
    checkpoint.check_answer(settings.max_tokens, "--max-tokens")
    setup = _qwen_setup("qwen2_5_vl_vllm", settings, checkpoint)
    return _on_vllm(
        setup,
        checkpoint,
        settings,
        tensor_parallel_size=settings.tensor_parallel_size,
        gpu_memory_utilization=settings.gpu_memory_utilization,
    )


def primo_on_vllm(settings: VideoSettings) -> DeferredJudge:
    """Make the judge `PRIMO-R1`.

    Raises:
        ValueError: See `qwen_on_vllm`.
    """
    if settings.readout != "text":
        raise ValueError(f"--readout {settings.readout}: PRIMO-R1 has the readout text alone")
    path = _model_path(
        settings.primo_model_path or settings.model_path, "PRIMO-R1", "--primo-model-path"
    )
    checkpoint = Checkpoint(path, settings.primo_max_model_len, flag="--primo-max-model-len")
    checkpoint.check_answer(settings.primo_max_tokens, "--primo-max-tokens")
    setup = primo_setup(settings)
    _check_fits(setup, checkpoint)
    return _on_vllm(
        setup,
        checkpoint,
        settings,
        tensor_parallel_size=settings.primo_tensor_parallel_size,
        gpu_memory_utilization=settings.primo_gpu_memory_utilization,
    )


def _on_vllm(
    setup: Setup,
    checkpoint: Checkpoint,
    settings: VideoSettings,
    *,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
) -> DeferredJudge:
    _check_gpus(settings, tensor_parallel_size)

    def load() -> VlmJudge:
        from .engine_vllm import VllmEngine  # noqa: PLC0415 - takes seconds

        engine = VllmEngine(
            checkpoint,
            settings,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
        )
        return _judge(setup, checkpoint, engine, settings)

    return DeferredJudge(load)


def qwen_on_transformers(settings: VideoSettings) -> DeferredJudge:
    """Make the judge `transformers`.

    Raises:
        ValueError: See `qwen_on_vllm`.
    """
    checkpoint = Checkpoint(
        settings.model_path or _SMALL_MODEL,
        settings.max_model_len,
        flag="--max-model-len",
        max_pixels=settings.frame_pixels,
    )
    checkpoint.check_answer(settings.max_tokens, "--max-tokens")
    setup = _qwen_setup("transformers", settings, checkpoint)
    require("transformers", "the judge transformers", "torch", "torchvision", "transformers")

    def load() -> VlmJudge:
        from .engine_transformers import TransformersEngine  # noqa: PLC0415 - takes seconds

        engine = TransformersEngine(
            checkpoint, device=settings.device, batch_size=settings.batch_size
        )
        return _judge(setup, checkpoint, engine, settings)

    return DeferredJudge(load)


def primo_setup(settings: VideoSettings) -> Setup:
    """Say how PRIMO-R1 is asked: its view, its template, its decoding.

    Raises:
        ValueError: A prompt is not accepted.
    """
    system, user = PRIMO_SYSTEM, PRIMO_USER
    if settings.primo_prompts is not None:
        system, user = authors_prompts(settings.primo_prompts)
    return Setup(
        name="PRIMO-R1",
        readouts={"text": Text(user, strict_tags=True, component="progress")},
        sampling=Sampling(
            settings.primo_temperature, settings.primo_top_p, settings.primo_max_tokens
        ),
        view=FirstVideoLast(),
        prompt=Prompt.of(settings.primo_user_prompt) if settings.primo_user_prompt else None,
        system=Prompt.of(settings.primo_system_prompt) if settings.primo_system_prompt else system,
    )


def authors_prompts(file: Path) -> tuple[Prompt, Prompt]:
    """Read PRIMO-R1's system and user prompt from its authors' `src/primo_prompts.py`.

    The file is not run: only the texts that it assigns are read. The question put into them is
    ours, as theirs comes with each record of their data.

    Raises:
        ValueError: The file has no such texts.
    """
    texts: dict[str, object] = {}
    try:
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    texts[name] = ast.literal_eval(value)
        system, template = str(texts["SYSTEM_PROMPT"]), str(texts["QUESTION_TEMPLATE"])
        hints = texts["TYPE_TEMPLATE"]
        hint = str(hints["regression"]) if isinstance(hints, dict) else ""
    except (SyntaxError, ValueError, KeyError) as error:
        raise ValueError(
            f"--primo-prompts {file}: it must assign the texts SYSTEM_PROMPT, QUESTION_TEMPLATE "
            f"and TYPE_TEMPLATE, as the authors' src/primo_prompts.py does ({error})"
        ) from error
    question = PRIMO_USER.template.partition("\n\n")[0].removeprefix("QUESTION:\n")
    before, _, after = template.replace("{question_type}", "regression").partition("{Question}")
    user = f"{_escaped(before)}{question}{_escaped(after + hint)}"
    return Prompt.of(_escaped(system), "primo_system_authors"), Prompt.of(
        user, "primo_user_authors"
    )


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _model_path(path: str | None, judge: str, flag: str) -> str:
    if path is None:
        raise ValueError(f"the judge {judge} needs {flag}")
    return path


def _qwen_setup(name: str, settings: VideoSettings, checkpoint: Checkpoint) -> Setup:
    prompt = Prompt.of(settings.prompt_template) if settings.prompt_template else None
    all_readouts = readouts(checkpoint)
    default = all_readouts.pop(settings.readout)
    setup = Setup(
        name=name,
        readouts={settings.readout: default, **all_readouts},
        sampling=Sampling(settings.temperature, settings.top_p, settings.max_tokens),
        view=AsVideo(),
        prompt=prompt,
    )
    _check_fits(setup, checkpoint)
    return setup


def _check_fits(setup: Setup, checkpoint: Checkpoint) -> None:
    """Refuse a context that cannot hold every readout's question with the smallest clip."""
    side = checkpoint.geometry.side
    for frames, pixels in ((2, side**2), (16, 200_704)):
        frame = np.broadcast_to(np.uint8(0), (448, 448, 3))
        clip = Clip((frame,) * frames, tuple(range(frames)), frames, None, pixels)
        for name, readout in setup.readouts.items():
            prompt = readout.prompt if setup.prompt is None else setup.prompt
            system = setup.system.template if setup.system else None
            conversation = setup.view.whole(clip, prompt.render("a task"), system)
            ask = readout.ask(setup.sampling, 1)
            try:
                checkpoint.check_length(conversation, checkpoint.prompt(conversation), ask)
            except InvalidRequest as error:
                if frames == 2:
                    raise ValueError(f"{checkpoint.flag}: readout {name}: {error.detail}") from None
                log.warning("%s cannot take 16 frames of 448x448: %s", setup.name, error.detail)
                return


def _check_gpus(settings: VideoSettings, tensor_parallel_size: int) -> None:
    """Check that vLLM is installed, and that there are enough GPUs for all judges."""
    require("vllm", "this judge", "vllm")
    check_gpu_count(settings, tensor_parallel_size * settings.data_parallel_size)
    of_both = settings.gpu_memory_utilization + settings.primo_gpu_memory_utilization
    judges = {ALIASES.get(name, name) for name in settings.backends}
    if {"qwen2_5_vl_vllm", "PRIMO-R1"} <= judges and of_both > 1 and gpu_count():
        raise ValueError(
            f"two models share the GPUs: --gpu-memory-utilization "
            f"{settings.gpu_memory_utilization:g} and --primo-gpu-memory-utilization "
            f"{settings.primo_gpu_memory_utilization:g} are more than 1 together"
        )


def _judge(
    setup: Setup, checkpoint: Checkpoint, engine: Engine, settings: VideoSettings
) -> VlmJudge:
    prepare: Prepare = checkpoint.geometry.prepare
    if settings.frame_resize == "qwen-vl-utils":
        prepare = by_qwen_vl_utils(checkpoint.geometry)
    return VlmJudge(setup, checkpoint, engine, prepare, settings.frame_resize)
