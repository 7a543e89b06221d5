"""`--calibration`: the scores of a judge as calibrated probabilities."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue, ValidationError

from rewardfleet.wire.calibration import Calibration, bound_fields, bound_provenance
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet.wire.validation import format_validation_error
from rewardfleet.wire.video import VideoRequest
from rewardfleet_server.settings import shown_value
from rewardfleet_server.video.clip.frames import Clip

from . import Judgment
from .drift import DriftWatch

_MAX_BYTES = 16 * 2**20


class JudgeCalibration:
    """A calibration file, applied to the judge that it is of; any other file is a ValueError."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"--calibration {path}: it has more than {_MAX_BYTES} bytes")
        try:
            self._calibration = Calibration.model_validate_json(content)
        except ValidationError as error:
            reason = format_validation_error(error, Calibration)
            raise ValueError(f"--calibration {path}: {reason}") from None
        self._binding = self._calibration.binding
        self.backend = self._binding.backend  #: the name of the judge that it is of
        self._digest = hashlib.sha256(content).hexdigest()
        distribution, threshold = self._calibration.distribution, self._calibration.threshold
        #: Compares scores with those of the labels; None if the file does not have these.
        self.drift = DriftWatch(distribution, threshold.confidence) if distribution else None

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What scores say about it. As part of a judge's provenance, it is in the cache keys."""
        threshold = self._calibration.threshold
        return {
            "sha256": self._digest,
            "map": self._calibration.map.kind,
            "threshold": threshold.value,
            "false_positive_rate": threshold.false_positive_rate,
            "confidence": threshold.confidence,
            "camera": self._binding.camera,
        }

    def check_judge(self, provenance: Mapping[str, JsonValue]) -> None:
        """Raise ValueError if it is of another judge, checkpoint, prompt or readout."""
        wanted = self._binding.provenance
        found = json.loads(json.dumps(bound_provenance(provenance)))  # as the file has it
        for name in sorted({*wanted, *found}):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"--calibration is of another judge: its {name} is "
                    f"{shown_value(wanted.get(name))}, that of {self.backend} is "
                    f"{shown_value(found.get(name))}; calibrate this one, or serve that one"
                )

    def check_request(self, request: VideoRequest) -> None:
        """Raise InvalidRequest for other options, with which scores have another meaning."""
        for name, value in bound_fields(vars(request)).items():
            wanted = getattr(self._binding, name)
            if value != wanted:
                raise InvalidRequest(
                    f"{name}: the calibration of this service is for {shown_value(wanted)}, not "
                    f"for {shown_value(value)}"
                )

    def check_camera(self, clip: Clip) -> None:
        """Raise InvalidRequest for frames of another size: the clip is of another camera."""
        size = clip.frames[0].shape[:2]
        sizes = self._binding.frame_sizes
        if sizes and size not in sizes:
            wanted = " or ".join(f"{width}x{height}" for height, width in sizes)
            raise InvalidRequest(
                f"the calibration of this service is for frames of {wanted} pixels; this clip has "
                f"{size[1]}x{size[0]}, so it is of another camera"
            )

    def calibrated(self, judgment: Judgment, task_text: str) -> Judgment:
        """Return a judgment with the calibrated score, and count it in the test for drift."""
        raw = None if judgment.score is None else float(judgment.score)
        if self.drift is not None:
            self.drift.add(raw, task_text)
        if raw is None:  # an abstention stays one
            return judgment
        score = self._calibration.map.value(raw, task_text)
        return replace(judgment, score=score, details={**judgment.details, "raw_score": raw})
