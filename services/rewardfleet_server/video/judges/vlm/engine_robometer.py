"""Robometer on transformers: a Qwen3-VL whose heads are read at a token after each frame."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

# This module is imported when the judge is loaded, never with the server.
import torch
from pydantic import JsonValue
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLModel, Qwen3VLPreTrainedModel

from .engine_transformers import BatchingEngine, QueuedPrompt
from .families.robometer import FrameScores
from .families.robometer_checkpoint import UNUSED_WEIGHTS, RobometerCheckpoint


class RobometerModel(Qwen3VLPreTrainedModel):  # type: ignore[misc] # no types in transformers
    """A Qwen3-VL without its language head, and the two heads that a judgment needs.

    The names of its weights are those of the published checkpoint. Progress has that many bins.
    """

    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [
        f"^{re.escape(name)}" for name in UNUSED_WEIGHTS
    ]

    def __init__(self, config: Qwen3VLConfig, bins: int) -> None:
        super().__init__(config)
        self.model = Qwen3VLModel(config)
        self.progress_head = _head(config.text_config.hidden_size, bins)
        self.success_head = _head(config.text_config.hidden_size, 1)
        self.post_init()

    def forward(self, progress_token: int, **inputs: Any) -> list[tuple[Any, Any]]:
        """Return progress and success probability at each progress token of each row.

        Progress is the expectation over bins that are spread evenly over [0, 1]. Both are float32.
        """
        hidden = self.model(**inputs, use_cache=False).last_hidden_state
        at_token = inputs["input_ids"] == progress_token
        frames = hidden[at_token]
        bins = self.progress_head(frames).float().softmax(-1)
        values = torch.linspace(0, 1, bins.shape[-1], device=bins.device)
        progress = (bins @ values).clamp(0, 1)  # rounding may exceed 1
        success = self.success_head(frames).float().sigmoid()[:, 0]
        counts = at_token.sum(1).tolist()
        return list(zip(progress.split(counts), success.split(counts), strict=True))


class RobometerEngine(BatchingEngine[FrameScores]):
    """A Robometer in this process, which scores all frames. Otherwise see `BatchingEngine`."""

    _checkpoint: RobometerCheckpoint

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        return {**super().provenance, "bins": self._checkpoint.layout.bins}

    def _load(self) -> Any:
        layout = self._checkpoint.layout
        model, report = RobometerModel.from_pretrained(
            layout.folder,
            bins=layout.bins,
            dtype="auto",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are reported
            output_loading_info=True,
        )
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[problem]:
                raise ValueError(f"{problem.replace('_', ' ')}: {sorted(report[problem])[:3]}")
        return model

    def _run_batch(
        self,
        inputs: Any,
        batch: list[QueuedPrompt[FrameScores]],  # noqa: ARG002 - all are alike
    ) -> list[FrameScores]:
        return [
            FrameScores(tuple(progress.tolist()), tuple(success.tolist()))
            for progress, success in self._model(self._checkpoint.progress_token, **inputs)
        ]


def _head(hidden: int, outputs: int) -> nn.Sequential:
    """Return a head. Its fourth layer was a dropout, which has no effect after training."""
    half = hidden // 2
    return nn.Sequential(
        nn.Linear(hidden, half),
        nn.LayerNorm(half),
        nn.GELU(),
        nn.Identity(),
        nn.Linear(half, outputs),
    )
