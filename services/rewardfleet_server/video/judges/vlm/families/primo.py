"""The judge PRIMO-R1 (arXiv 2603.15600): a Qwen2.5-VL that reasons before it answers."""

from functools import partial
from pathlib import Path

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.vlm import factory
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import FirstVideoLast
from rewardfleet_server.video.judges.vlm.readouts import TextReadout, TextSampling
from rewardfleet_server.video.prompts import PRIMO_SYSTEM, PRIMO_USER, Prompt
from rewardfleet_server.video.prompts.authors import one_text, read_texts
from rewardfleet_server.video.settings import VideoSettings

from .qwen import load_checkpoint


def build(settings: VideoSettings) -> DeferredJudge:
    """Build the judge `PRIMO-R1`; see `factory.build` for errors."""
    model = factory.ModelSpec(
        judge="PRIMO-R1",
        path=settings.primo_model_path or settings.model_path,
        flag_prefix="--primo-",
        max_model_len=settings.primo_max_model_len,
        max_tokens=settings.primo_max_tokens,
        tensor_parallel_size=settings.primo_tensor_parallel_size,
        gpu_memory_utilization=settings.primo_gpu_memory_utilization,
        load_checkpoint=partial(load_checkpoint, settings),
        judge_spec=lambda _: judge_spec(settings),
    )
    return factory.build(model, settings)


def judge_spec(settings: VideoSettings) -> JudgeSpec:
    """Return how PRIMO-R1 is used as a judge: its layout, prompts and sampling.

    Raises:
        ValueError: A prompt is not accepted.
    """
    system, user = PRIMO_SYSTEM, PRIMO_USER
    if settings.primo_prompts is not None:
        system, user = authors_prompts(settings.primo_prompts)
    return JudgeSpec(
        name="PRIMO-R1",
        readouts={"text": TextReadout(user, strict_tags=True, component="progress")},
        sampling=TextSampling(
            settings.primo_temperature, settings.primo_top_p, settings.primo_max_tokens
        ),
        layout=FirstVideoLast(),
        prompt=factory.optional_prompt(settings.primo_user_prompt),
        system=factory.optional_prompt(settings.primo_system_prompt) or system,
    )


def authors_prompts(file: Path) -> tuple[Prompt, Prompt]:
    """Read PRIMO-R1's system and user prompt from its authors' `src/primo_prompts.py`.

    The file is parsed, not executed. Its user prompt has no question, as each record of the
    authors' data brings its own; it gets the question of the shipped prompt.

    Raises:
        ValueError: The file does not assign these texts.
    """
    try:
        texts = read_texts(file)
        system, template, hint = (
            one_text(texts, name)
            for name in ("SYSTEM_PROMPT", "QUESTION_TEMPLATE", "TYPE_TEMPLATE[regression]")
        )
    except ValueError as error:
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
