"""Where tables are logged: trackers that have a run in this process. None of them is imported."""

import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape
from io import StringIO
from typing import Any

from .sample import Picture, Sample

#: A sample, and why it is in the table, e.g. `worst`.
Row = tuple[str, Sample]

_COLUMNS = (
    "step", "kind", "score", "status", "cause", "suspicions", "uid", "task", "output",
    "explanation", "picture",
)  # fmt: skip
#: Of pages, in which lines are broken.
_STYLE = (
    '<meta charset="utf-8"><style>td, th { border: 1px solid #ccc; padding: 4px; '
    "vertical-align: top; text-align: left } pre { white-space: pre-wrap; margin: 0 }</style>"
)
#: The most steps whose tables wait in W&B for the trainer to log something.
_MAX_PENDING = 8


class Trackers:
    """Logs tables to the trackers of a process.

    Args:
        tensorboard: A `SummaryWriter`, or None.
    """

    def __init__(self, tensorboard: Any) -> None:
        self._tensorboard = tensorboard
        #: Of W&B: its step, and the tables that become part of it.
        self._wandb_step = -1
        self._pending: dict[tuple[str, int], list[list[Any]]] = {}

    def log(self, service: str, step: int, rows: Sequence[Row]) -> Iterator[Exception]:
        """Log the table of a service and step wherever there is a run; yield what failed."""
        for log_table in (self._to_wandb, _to_mlflow, _to_trackio, self._to_tensorboard):
            try:
                log_table(f"rewardfleet/{service}", step, rows)
            except Exception as error:  # noqa: BLE001 - of a tracker; training goes on
                yield error

    def _to_wandb(self, name: str, step: int, rows: Sequence[Row]) -> None:
        wandb: Any = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        if run is None:
            return
        # Not as a step of its own: W&B would refuse the trainer's next steps as old. It becomes
        # part of what the trainer logs next, in which a key has one value.
        if (wandb_step := run.step) != self._wandb_step:
            self._wandb_step = wandb_step
            self._pending.clear()
        self._pending.pop((name, step), None)
        self._pending[name, step] = _cells(step, rows, _img)
        while len(self._pending) > _MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        data = [row for (each, _), table in self._pending.items() if each == name for row in table]
        run.log(_logged(name, data, wandb), commit=False)

    def _to_tensorboard(self, name: str, step: int, rows: Sequence[Row]) -> None:
        if self._tensorboard is None:
            return
        pictures: list[Picture] = []

        def numbered(picture: Picture) -> str:
            pictures.append(picture)
            return f"picture {len(pictures)}"

        self._tensorboard.add_text(name, _html(_cells(step, rows, numbered)), step)
        if pictures:  # `add_image` would encode each as PNG, which takes 6 ms
            file = self._tensorboard.file_writer
            event = sys.modules[type(file).__module__].event_pb2.Event()
            for number, (jpeg, width, height) in enumerate(pictures, 1):
                image = {"encoded_image_string": jpeg, "width": width, "height": height}
                event.summary.value.add(tag=f"{name}/picture_{number}", image=image)
            file.add_event(event, step)
        self._tensorboard.flush()


def _to_mlflow(name: str, step: int, rows: Sequence[Row]) -> None:
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is None:
        return
    # The public function knows the runs of this thread only.
    of_all_threads = getattr(mlflow.tracking.fluent, "_get_latest_active_run", mlflow.active_run)
    if (run := of_all_threads()) is not None:
        page = _STYLE + _html(_cells(step, rows, _img))
        mlflow.MlflowClient().log_text(run.info.run_id, page, f"{name}/step-{step:06}.html")


def _to_trackio(name: str, step: int, rows: Sequence[Row]) -> None:
    trackio: Any = sys.modules.get("trackio")
    run = None if trackio is None else trackio.context_vars.current_run.get()
    if run is not None:
        run.log(_logged(name, _cells(step, rows, _img), trackio), step=step)


def _logged(name: str, cells: Sequence[list[Any]], tracker: Any) -> dict[str, Any]:
    """Return what W&B or trackio logs: a table or, with pictures, a page.

    In a table, each picture would be a file of its own, which takes up to a millisecond.
    """
    if any(row[-1] for row in cells):
        page = StringIO(_STYLE + _html(cells))
        return {f"{name}_page": tracker.Html(page, inject=False)}
    texts = [row[:-1] for row in cells]
    return {name: tracker.Table(columns=[*_COLUMNS[:-1]], data=texts)}


def _cells(step: int, rows: Sequence[Row], picture: Callable[[Picture], str]) -> list[list[Any]]:
    """Return rows in the order of `_COLUMNS`, with pictures as a tracker takes them."""
    cells = []
    for kind, sample in rows:
        texts = (getattr(sample, name) for name in _COLUMNS[2:-1])
        shown = None if sample.picture is None else picture(sample.picture)
        cells.append([step, kind, *texts, shown])
    return cells


def _img(picture: Picture) -> str:
    return f'<img src="data:image/jpeg;base64,{b64encode(picture.jpeg).decode()}">'


def _html(cells: Sequence[Sequence[Any]]) -> str:
    """Return a table in which nothing that a policy or a judge wrote is HTML or Markdown.

    Args:
        cells: What `_cells` returns, with pictures as HTML.
    """
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr>"]
    for *texts, picture in cells:
        shown = [*map(_cell, texts), picture or ""]
        lines.append("<tr>" + "".join(f"<td>{each}</td>" for each in shown) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "missing"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # Without line breaks, the table is one block of HTML in Markdown.
    return f"<pre>{escape(text)}</pre>".replace("\r", "").replace("\n", "&#10;")
