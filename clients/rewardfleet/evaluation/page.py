"""The pages of reports: one HTML file each without scripts, which needs no network.

What judges, labels and file names say is data: the template escapes all of it, and a content
security policy lets the page load and run nothing.
"""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardfleet.bulk.requests import clip_name
from rewardfleet.bulk.rows import Row

from .labels import LabeledClip
from .report import Report

_FOLDER = Path(__file__).parent
#: Frames of a strip, their height, and their largest width in pixels.
_FRAMES, _HEIGHT, _MOST_WIDTH = 6, 96, 384
#: Frames that are decoded until one is found, beyond which it is left out.
_MOST_DECODED = 600


def render(report: Report, clips: Sequence[LabeledClip]) -> str:
    """Return the page of a report, with frames of the clips that were judged wrong."""
    by_row = {each.record["row"]: each for each in clips}
    strips = {
        each["row"]: _strip_of(by_row[each["row"]].row, each["camera"])
        for each in report["mistakes"]
    }
    provenance = json.dumps(report["provenance"], indent=1)
    return page(_FOLDER / "page.html", report=report, strips=strips, provenance=provenance)


def page(template: Path, **values: Any) -> str:
    """Return the page of a template, which extends `base.html`."""
    import jinja2  # noqa: PLC0415 - optional

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _FOLDER]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "interval": lambda each: "too few" if each is None else f"{each[0]:.2f} to {each[1]:.2f}",
        "share": lambda each: f"{each['count']} of {each['of']}" if each["of"] else "none",
    }
    return environment.get_template(template.name).render(values)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _strip_of(row: Row, camera: str | None) -> tuple[str | None, str]:
    """Return frames of a row's video side by side as a data URI, or None and why there is none."""
    import av  # noqa: PLC0415 - optional
    from PIL import Image  # noqa: PLC0415 - optional

    try:
        clips, clip = row.fields.get("clips"), {**row.fields, "path": clip_name(row)}
        if isinstance(clips, Mapping) and "episode_index" in row.fields:
            clip = clips.get(camera) or next(iter(clips.values()))
        path = row.folder / clip["path"]
        if not path.is_file():
            return None, "there is no such file on this machine"
        with av.open(str(path)) as container:
            frames = list(_frames(container, clip.get("start_s"), clip.get("end_s")))
    except (OSError, ValueError, LookupError, TypeError, av.error.FFmpegError) as error:
        return None, f"it cannot be read: {error}"
    if not frames:
        return None, "no frame can be decoded"
    content = io.BytesIO()
    Image.fromarray(np.hstack(frames)).save(content, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}", ""


def _frames(container: Any, start: float | None, end: float | None) -> Iterator[Any]:
    """Yield small frames at times spread evenly from start to end."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    begin = float(start or 0.0)
    until = float(end) if end else (container.duration or 0) / 1_000_000
    last = until - (1 / float(stream.average_rate) if stream.average_rate else 0.04)
    for time in np.linspace(begin, max(begin, last), _FRAMES):
        container.seek(int(time * 1_000_000))
        image = None
        for _, frame in zip(range(_MOST_DECODED), container.decode(stream), strict=False):
            image = frame
            if frame.time is None or frame.time >= time - 1e-3:
                break
        if image is not None:
            width = round(image.width * _HEIGHT / image.height)
            size = {"width": min(max(1, width), _MOST_WIDTH), "height": _HEIGHT}
            yield np.asarray(image.to_image(**size))
