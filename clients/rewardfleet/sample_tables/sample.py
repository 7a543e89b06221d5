"""What a table shows of a sample, and the trackers with a run in this process that get it."""

import io
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from rewardfleet.score_log.of_client import frames_of
from rewardfleet.score_log.record import Scored
from rewardfleet.score_log.strip import MAX_FRAMES, MAX_SIDE, QUALITY, Frame, side_by_side
from rewardfleet.services import SERVICES
from rewardfleet.wire.video import sample_indices

#: Characters of a text.
_MAX_TEXT = 2000
#: The fields of a request with the content of a clip.
_CONTENTS = {"frames", "frames_base64", "video_base64"}


class Sample(NamedTuple):
    """A row of a table. Texts are "" where there is none."""

    score: float | None  #: None if it is missing
    status: str
    cause: str
    suspicions: str
    uid: str
    task: str  #: the task of a clip, the tests of a program, the ground truth of an answer
    output: str  #: the program that was extracted, or the answer
    explanation: str  #: the story that `rewardfleet explain` tells
    picture: bytes | None  #: frames of a clip side by side, as JPEG


def sample_of(scored: Scored) -> Sample:
    """Return what a table shows of an item."""
    from rewardfleet.story import story_of  # noqa: PLC0415 - for samples only

    request = scored.request.model_dump(exclude=_CONTENTS, exclude_unset=True)
    answer: Any = scored.score
    score = answer.model_dump()
    fields = {**request, **score}

    def text(*names: str) -> str:
        """Return the first text among fields."""
        return _cut(next(filter(None, map(fields.get, names)), ""))

    return Sample(
        score=score["score"],
        status=text("status"),
        cause=text("cause"),
        suspicions=_cut("; ".join(score.get("suspicions", ()))),
        uid=text("uid"),
        task=text(SERVICES[scored.service].group),
        output=text("code", "revision", "response"),
        explanation=_cut("\n".join(story_of(scored.service, request, score))),
        picture=_picture(scored.request),
    )


def _cut(value: Any) -> str:
    """Return a text that can be encoded, and is not too long; of what is no text its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = text[: _MAX_TEXT + 1].encode(errors="replace").decode()
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"


def _picture(request: Any) -> bytes | None:
    """Return frames of a clip that the request has as an array, or as images."""
    try:
        from PIL import Image  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    images = getattr(request, "frames_base64", None) or ()
    raw = getattr(request, "frames", None)
    frames: list[Frame] = [] if raw is None else frames_of(raw)
    try:
        for index in sample_indices(len(images), MAX_FRAMES):
            with Image.open(io.BytesIO(images[index])) as image:
                image.draft("RGB", (MAX_SIDE, MAX_SIDE))  # JPEG decodes to about this size
                frames.append(np.asarray(image.convert("RGB")))
        if not frames:
            return None
        strip = Image.fromarray(side_by_side(frames))
    except (OSError, SyntaxError, ValueError):  # damaged, or of different sizes
        return None
    jpeg = io.BytesIO()
    strip.save(jpeg, "JPEG", quality=QUALITY)
    return jpeg.getvalue()


#: A sample, and why it is in the table, e.g. `worst`.
Row = tuple[str, Sample]

_COLUMNS = ("step", "kind", *Sample._fields)
#: Of pages, in which lines are broken.
_STYLE = (
    '<meta charset="utf-8"><style>td, th { border: 1px solid #ccc; padding: 4px; '
    "vertical-align: top; text-align: left } pre { white-space: pre-wrap; margin: 0 }</style>"
)
#: The most steps whose tables wait in W&B for the trainer to log something.
_MAX_PENDING = 8


class Trackers:
    """Logs tables to the trackers of a process."""

    def __init__(self) -> None:
        #: Of W&B: its step, and the tables that become part of it.
        self._wandb_step = -1
        self._pending: dict[tuple[str, int], list[list[Any]]] = {}

    def log(self, service: str, step: int, rows: Sequence[Row]) -> Iterator[Exception]:
        """Log the table of a service and step wherever there is a run; yield what failed."""
        cells = [
            [step, kind, *texts, picture and _img(picture)] for kind, (*texts, picture) in rows
        ]
        for log_table in (self._to_wandb, _to_mlflow):
            try:
                log_table(f"rewardfleet/{service}", step, cells)
            except Exception as error:  # noqa: BLE001 - of a tracker; training goes on
                yield error

    def _to_wandb(self, name: str, step: int, cells: list[list[Any]]) -> None:
        wandb: Any = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        if run is None:
            return
        # Not as a step of its own: W&B would refuse the trainer's next steps as old. It becomes
        # part of what the trainer logs next, in which a key has one value.
        if run.step != self._wandb_step:
            self._pending.clear()
        self._pending.pop((name, step), None)
        self._pending[name, step] = cells
        while len(self._pending) > _MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        data = [row for (each, _), table in self._pending.items() if each == name for row in table]
        if any(row[-1] for row in data):
            # In a table, each picture would be a file of its own, which takes up to a millisecond.
            page = io.StringIO(_page(data))
            run.log({f"{name}_page": wandb.Html(page, inject=False)}, commit=False)
        else:
            texts = [row[:-1] for row in data]
            run.log({name: wandb.Table(columns=[*_COLUMNS[:-1]], data=texts)}, commit=False)
        # The trainer may have logged meanwhile: then the table is part of what it logs next.
        self._wandb_step = run.step


def _to_mlflow(name: str, step: int, cells: list[list[Any]]) -> None:
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is None:
        return
    # The public function knows the runs of this thread only.
    of_all_threads = getattr(mlflow.tracking.fluent, "_get_latest_active_run", mlflow.active_run)
    if (run := of_all_threads()) is not None:
        path = f"{name}/step-{step:06}.html"
        mlflow.MlflowClient().log_text(run.info.run_id, _page(cells), path)


def _img(jpeg: bytes) -> str:
    return f'<img src="data:image/jpeg;base64,{b64encode(jpeg).decode()}">'


def _page(cells: Sequence[Sequence[Any]]) -> str:
    """Return a page with a table in which nothing that a policy or a judge wrote is HTML.

    Args:
        cells: In the order of `_COLUMNS`, with pictures as HTML.
    """
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr>"]
    for *texts, picture in cells:
        shown = [*map(_cell, texts), picture or ""]
        lines.append("<tr>" + "".join(f"<td>{each}</td>" for each in shown) + "</tr>")
    return f"{_STYLE}<table>{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "missing"
    return f"<pre>{escape(f'{value:.4g}' if isinstance(value, float) else str(value))}</pre>"
