"""The story of a clip's score."""

from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.wire.causes import success_threshold
from rewardfleet.wire.score import figures_of

from .texts import Part, Text, number, quoted

#: Frames whose numbers are shown.
_MAX_INDICES = 16


def story_of_clip(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield what the judge saw, what it said, and which threshold decided."""
    provenance = score.get("provenance") or {}
    model = provenance.get("model")
    of_model = "" if model is None else f", the model {quoted(str(model))}"
    yield f"Judge: {quoted(str(score.get('backend') or ''))}{of_model}"
    yield f"Task: {quoted(request.get('task_text') or '')}"
    if request.get("video_path"):
        yield f"Clip: {quoted(request['video_path'])}"
    frames = provenance.get("frames")
    if frames:
        indices = frames["indices"]
        shown = ", ".join(map(str, indices[:_MAX_INDICES]))
        more = ", …" if len(indices) > _MAX_INDICES else ""
        yield (
            f"It saw {len(indices)} of {frames['total']} frames, of {frames['width']} x "
            f"{frames['height']} pixels: {shown}{more}"
        )
    else:
        yield "It reads the file itself: the service does not know what it saw."
    if options := request.get("backend_kwargs"):
        yield f"Options: {quoted(str(options))}"
    yield Text("What the judge said", score.get("model_output") or "")
    figures = figures_of(score)
    figures.pop("score", None)
    if figures:
        parts = (f"{name} {number(value)}" for name, value in sorted(figures.items()))
        yield f"Details: {quoted(', '.join(parts))}"
    value = score.get("score")
    if value is not None:
        threshold = success_threshold(provenance)
        is_done = value >= threshold
        yield (
            f"Decided by: {number(value)} is {'at least' if is_done else 'below'} "
            f"{number(threshold)}: the judge finds the task {'' if is_done else 'not '}done. "
            "Adapters may compare with another threshold."
        )
