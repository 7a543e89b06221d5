"""The file of `--tool-families`."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rewardfleet.wire.tools import Family, ToolName
from rewardfleet.wire.validation import format_validation_error

_LABELS = TypeAdapter(dict[ToolName, Family])


def read_families(path: Path) -> Mapping[str, Family]:
    """Return the families of tools in a JSON or CSV file.

    Raises:
        ValueError: It cannot be read, or has another form.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        labels: Any = _of_csv(text) if path.suffix.lower() == ".csv" else json.loads(text)
        return _LABELS.validate_python(labels)
    except ValidationError as error:
        raise ValueError(f"--tool-families {path}: {format_validation_error(error)}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"--tool-families {path}: {error}") from None


def _of_csv(text: str) -> dict[str, str]:
    labels = {}
    for row in csv.DictReader(text.splitlines()):
        if not {"tool", "family"} <= row.keys():
            raise ValueError("the first line names the columns: tool,family")
        labels[row["tool"]] = row["family"]
    return labels
