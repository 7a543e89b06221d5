"""Metrics of a training run: a file with one line per step, TensorBoard, W&B."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .config import RouterConfig, flatten

#: One JSON object per step: `step`, and metrics by name.
METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Writes the metrics of each step.

    Args:
        config: Says where `metrics.jsonl` and the folder `tensorboard` are, and who else gets them.
        step: The last step that counts: later ones are of a run that was killed, and are removed.
        run: Identity of the run, so that W&B continues it.
    """

    def __init__(self, config: RouterConfig, *, step: int, run: str) -> None:
        folder, trainer = config.folder, config.trainer
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        stays = [line for line in _lines(path) if json.loads(line)["step"] <= step]
        draft = folder / f".{METRICS_FILE}.incomplete"
        draft.write_text("".join(f"{line}\n" for line in stays), encoding="utf-8")
        draft.replace(path)  # a process that is killed here loses no lines
        self._file = path.open("a", encoding="utf-8")
        self._writer: Any = None
        self._wandb: Any = None
        if "tensorboard" in trainer.logger:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - it is optional

            self._writer = SummaryWriter(
                str(folder / "tensorboard"), purge_step=step + 1 if step else None
            )
        if "wandb" in trainer.logger:
            import wandb  # noqa: PLC0415 - it is optional

            self._wandb = wandb.init(
                project=trainer.project_name,
                name=trainer.experiment_name,
                id=run,
                resume="allow",
                dir=str(folder),
                config=flatten(config),
            )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step. A step may have several lines."""
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=step)

    def flush(self) -> None:
        """Make TensorBoard's file complete up to here."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close all files."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of a run, one mapping per line of `metrics.jsonl`."""
    return [json.loads(line) for line in _lines(folder / METRICS_FILE)]


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file; none if there is no file."""
    if not path.exists():
        return []
    # A process that was killed may leave a part of a line.
    return path.read_text(encoding="utf-8").split("\n")[:-1]
