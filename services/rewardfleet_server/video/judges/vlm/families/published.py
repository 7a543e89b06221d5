"""What the builders of published reward models share."""

from collections.abc import Callable

from rewardfleet_server.video.judges import DeferredJudge
from rewardfleet_server.video.judges.vlm import InferenceEngine, factory
from rewardfleet_server.video.judges.vlm.checkpoint import Checkpoint, read_config
from rewardfleet_server.video.judges.vlm.judge import JudgeSpec, VlmJudge
from rewardfleet_server.video.settings import VideoSettings

from .qwen import load_checkpoint

#: The `model_type` of checkpoints that the published models were trained from.
QWEN3_VL = "qwen3_vl"


def build(
    judge: str,
    settings: VideoSettings,
    *,
    default_model: str,
    model_type: str | None,
    max_tokens: int,
    judge_spec: Callable[[Checkpoint], JudgeSpec],
    judge_type: Callable[[JudgeSpec, Checkpoint, InferenceEngine], VlmJudge] = VlmJudge,
) -> DeferredJudge:
    """Build the judge of a published model, on one GPU if the settings do not say more.

    Args:
        judge: Its name.
        settings: `--model-path`, `--engine` and the flags of the engine are read.
        default_model: The authors' name of the model on a hub.
        model_type: That of its checkpoints; None for any of the Qwen-VL family.
        max_tokens: The most tokens of an answer.
        judge_spec: Returns how the model is used.
        judge_type: The class of the judge.

    Raises:
        ValueError: The checkpoint is of another family, or see `factory.build`.
    """

    def load(path: str, max_model_len: int, flag: str) -> Checkpoint:
        found = read_config(path).get("model_type")
        if model_type is not None and found not in {model_type, None}:
            raise ValueError(
                f"--model-path {path}: {found!r} is not {judge}, which is a {model_type!r}"
            )
        return load_checkpoint(settings, path, max_model_len, flag)

    is_given = "tensor_parallel_size" in settings.model_fields_set
    model = factory.ModelSpec(
        judge=judge,
        path=settings.model_path or default_model,
        flag_prefix="--",
        max_model_len=settings.max_model_len,
        max_tokens=max_tokens,
        tensor_parallel_size=settings.tensor_parallel_size if is_given else 1,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        load_checkpoint=load,
        judge_spec=judge_spec,
        judge_type=judge_type,
        max_tokens_name=f"{judge}'s answer of",
    )
    return factory.build(model, settings)
