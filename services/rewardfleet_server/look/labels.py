"""Labels of people: one JSON object per line; the last one of a request counts."""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rewardfleet.score_log.record import Label, LabelLine
from rewardfleet.wire.causes import success_threshold
from rewardfleet.wire.validation import read_lines

LABELS: tuple[Label, ...] = get_args(Label)


class Labels:
    """The file with the labels, created with the first one, and readable by its owner only.

    Raises ValueError if a line of it is not a label, OSError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.by_id: dict[str, Label] = {}
        for number, line in read_lines(path, LabelLine) if path.exists() else ():
            if isinstance(line, str):
                raise ValueError(f"{path}:{number}: no label: {line}")  # noqa: TRY004 - of a value
            self.by_id[line.id] = line.label

    def add(self, record: Mapping[str, Any], label: Label) -> None:
        """Write what a person says of a score; OSError if the file cannot be written."""
        request = json.loads(record["request"] or "{}")
        provenance = json.loads(record["provenance"] or "{}")
        success = None
        if label != "unclear" and record["score"] is not None:
            success = _verdict(record) == (label == "right")
        is_whole = not {"start_s", "end_s"} & request.keys()
        line = {
            "id": record["id"],
            "service": record["service"],
            "label": label,
            "success": success,
            "score": record["score"],
            "judge": record["judge"],
            "prompt": provenance.get("prompt"),
            "task_text": record["task"],
            "video_path": request.get("video_path"),
            "clip": record["path"] if is_whole else None,
            "time": round(time.time(), 3),
        }
        with self._lock:
            if not self._path.exists():
                self._path.touch(mode=0o600)
            with self._path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
            self.by_id[record["id"]] = label


def label_of(record: Mapping[str, Any], success: bool | None) -> Label:
    """Return the label of a score by what a person saw in the clip; None if it is unclear."""
    if success is None:
        return "unclear"
    return "right" if success == _verdict(record) else "wrong"


def _verdict(record: Mapping[str, Any]) -> bool:
    """Return whether the score says success."""
    return bool(record["score"] >= success_threshold(json.loads(record["provenance"] or "{}")))
