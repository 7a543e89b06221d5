"""The settings that judges with a model in this process have in common."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import FilePath, PositiveInt

from rewardfleet_server.video.judges.labels import HELP
from rewardfleet_server.video.judges.settings import JudgeSettings, SamplingSettings, own

#: What settings are whose default differs between judges.
CHECKPOINT = "Checkpoint: a folder, or a name on a hub."
GPU_SHARE = "Share of a GPU's memory for the model."
GPUS_PER_REPLICA = "GPUs per replica of the model. If it fits on one GPU, use 1 and more replicas."

# One line per setting.
# fmt: off


class ModelSettings(JudgeSettings):
    """The settings of a judge with a model in this process."""

    model_path: str | None = own(None, CHECKPOINT)
    max_model_len: PositiveInt = own(16384, "Most tokens of prompt, frames and answer.")


class VllmSettings(ModelSettings):
    tensor_parallel_size: PositiveInt = own(1, GPUS_PER_REPLICA)
    data_parallel_size: PositiveInt = own(1, "Replicas of the model, each on its own GPUs.")
    gpu_memory_utilization: float = own(0.8, GPU_SHARE, gt=0, le=1)
    enforce_eager: bool = own(False, "Start faster and run slower: vLLM compiles nothing.")

    @property
    def runs_on(self) -> str:
        return "vllm"

    @property
    def gpus(self) -> int:
        return self.tensor_parallel_size * self.data_parallel_size if self.runs_on == "vllm" else 0


class TransformersSettings(ModelSettings):
    device: str = own("auto", "Device as torch names it: cuda, cuda:1, mps, cpu.")
    batch_size: PositiveInt = own(8, "Most clips in one forward pass.")

    @property
    def runs_on(self) -> str:
        return "transformers"


class EitherEngineSettings(VllmSettings, TransformersSettings):
    """The settings of a judge whose model runs on vLLM or on transformers."""

    read_if: ClassVar[Mapping[str, tuple[str, ...]]] = {
        name: ("engine", engine)
        for engine, settings in (("vllm", VllmSettings), ("transformers", TransformersSettings))
        for name in settings.model_fields.keys() - ModelSettings.model_fields.keys()
    }

    engine: Literal["vllm", "transformers"] = own("vllm", "Library that runs the model: vllm or transformers.")
    prompts: FilePath | None = own(None, "A file of the authors with their prompts, which replace the shipped ones. It is parsed, not executed.")

    @property
    def runs_on(self) -> str:
        return self.engine


class QwenVlSettings(ModelSettings, SamplingSettings):
    """The settings of a judge that prompts any model of the Qwen-VL family."""

    prompts: FilePath | None = own(None, "The original LIBERO server's libero_reward_server.py, whose prompt replaces the shipped one that asks for a percentage. It is parsed, not executed.")
    readout: Literal["constrained", "text", "probability", "rubric"] = own("constrained", "How the answer becomes a score. constrained: it can only be a number. text: parse it. probability: P(yes) against P(no). rubric: the expected grade from 1 to 5.")
    min_label_mass: float = own(0.1, HELP, ge=0, le=1)
