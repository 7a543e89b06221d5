"""Metrics of a training run: a file with one line per step, TensorBoard, W&B."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: One JSON object per step: `step`, and metrics by name.
METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Writes the metrics of each step.

    Args:
        folder: Where `metrics.jsonl` and the folder `tensorboard` are.
        loggers: `tensorboard`, `wandb`; others are ignored.
        step: The last step that counts: later ones are of a run that was killed, and are removed.
        project: For W&B.
        name: Name of the run, for W&B.
        run: Its identity, so that W&B continues it.
        config: Shown by W&B.
    """

    def __init__(
        self,
        folder: Path,
        loggers: Sequence[str],
        *,
        step: int,
        project: str,
        name: str,
        run: str,
        config: Mapping[str, Any],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / METRICS_FILE
        stays = [line for line in _lines(path) if json.loads(line)["step"] <= step]
        draft = folder / f".{METRICS_FILE}.incomplete"
        draft.write_text("".join(f"{line}\n" for line in stays), encoding="utf-8")
        draft.replace(path)  # a process that is killed here loses no lines
        self._file = path.open("a", encoding="utf-8")
        self._writer: Any = None
        self._wandb: Any = None
        if "tensorboard" in loggers:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - it is optional

            self._writer = SummaryWriter(
                str(folder / "tensorboard"), purge_step=step + 1 if step else None
            )
        if "wandb" in loggers:
            import wandb  # noqa: PLC0415 - it is optional

            self._wandb = wandb.init(
                project=project,
                name=name,
                id=run,
                resume="allow",
                dir=str(folder),
                config=dict(config),
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
