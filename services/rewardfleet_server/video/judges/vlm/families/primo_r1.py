"""The judge PRIMO-R1 (arXiv 2603.15600): a Qwen2.5-VL that reasons before it answers."""

from pathlib import Path

from pydantic import PositiveInt

from rewardfleet_server.video.judges.settings import BuiltInJudge, own
from rewardfleet_server.video.judges.vlm import GenerationParams
from rewardfleet_server.video.judges.vlm.factory import builder
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec
from rewardfleet_server.video.judges.vlm.prompt_layouts import FirstVideoLast
from rewardfleet_server.video.judges.vlm.readouts import TextReadout
from rewardfleet_server.video.judges.vlm.settings import GPU_SHARE, EitherEngineSettings
from rewardfleet_server.video.prompts import Prompt, Template, authors

_SYSTEM, _USER = Prompt.load("primo_system"), Prompt.load("primo_user")


class PrimoSettings(EitherEngineSettings):
    gpu_memory_utilization: float = own(0.9, GPU_SHARE, gt=0, le=1)
    temperature: float = own(
        0.1, "Sampling temperature; its scores are not cached above 0.", ge=0, le=2
    )
    top_p: float = own(0.001, "Nucleus sampling. Larger values garble its answers.", gt=0, le=1)
    max_tokens: PositiveInt = own(4096, "Most tokens of the answer. It thinks before it answers.")
    system_prompt: Template | None = own(None, "System prompt. Default: the shipped one.")
    user_prompt: Template | None = own(
        None, "User prompt; {task} is the task's text. Default: the shipped one."
    )


def judge_spec(settings: PrimoSettings) -> JudgeSpec:
    """Return how PRIMO-R1 is used as a judge; see `prompts_of` for errors."""
    system, user = authors.prompts_of(settings.prompts, authors_prompts, (_SYSTEM, _USER))
    return JudgeSpec(
        name="PRIMO-R1",
        readouts={"text": TextReadout(user, strict_tags=True, detail="progress")},
        sampling=GenerationParams(settings.max_tokens, settings.temperature, settings.top_p),
        layout=FirstVideoLast(),
        prompt=Prompt(settings.user_prompt) if settings.user_prompt else None,
        system=Prompt(settings.system_prompt) if settings.system_prompt else system,
    )


def authors_prompts(file: Path) -> tuple[Prompt, Prompt]:
    """Read PRIMO-R1's system and user prompt from its authors' `src/primo_prompts.py`.

    The file is parsed, not executed. Its user prompt has no question, as each record of the
    authors' data brings its own; it gets the question of the shipped prompt. The prompts of the
    original LIBERO server's `libero_reward_server.py` are complete. See `one_text` for errors.
    """
    try:
        texts = authors.read_texts(file)
        if "PRIMO_R1_USER_PROMPT" in texts:
            return authors.original_primo_prompts(texts)
        system, template, hint = (
            authors.one_text(texts, name)
            for name in ("SYSTEM_PROMPT", "QUESTION_TEMPLATE", "TYPE_TEMPLATE[regression]")
        )
    except ValueError as error:
        raise ValueError(
            "it must assign the texts SYSTEM_PROMPT, QUESTION_TEMPLATE and TYPE_TEMPLATE, as the "
            "authors' src/primo_prompts.py does, or those of RLinf-RLAIF's "
            f"libero_reward_server.py ({error})"
        ) from error
    question = _USER.template.partition("\n\n")[0].removeprefix("QUESTION:\n")
    before, _, after = template.replace("{question_type}", "regression").partition("{Question}")
    user = f"{authors.escaped(before)}{question}{authors.escaped(after + hint)}"
    escaped = authors.escaped(system)
    return Prompt(escaped, "primo_system_authors"), Prompt(user, "primo_user_authors")


JUDGE = BuiltInJudge(
    "PRIMO-R1",
    PrimoSettings,
    builder("PRIMO-R1", lambda own, _: judge_spec(own)),
    "Reasons about the clip, then states the progress (arXiv 2603.15600).",
    {"text": "The number in <answer>, after a closed <think>."},
    ("--model-path", "LeonOverload/PRIMO-R1-7B"),
)
