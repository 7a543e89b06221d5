"""The file of `--tool-families`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rewardfleet.wire.tools import Family, ToolName
from rewardfleet.wire.validation import format_validation_error

_LABELS = TypeAdapter(dict[ToolName, Family])


def read_families(path: Path) -> Mapping[str, Family]:
    """Return the families of tools in a JSON file.

    Raises:
        ValueError: It cannot be read, or has another form.
    """
    try:
        labels = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)
        return _LABELS.validate_python(labels)
    except ValidationError as error:
        raise ValueError(f"--tool-families {path}: {format_validation_error(error)}") from None
    except (OSError, ValueError) as error:
        hint = "give a JSON object of tools and their families"
        raise ValueError(f"--tool-families {path}: {hint}: {error}") from None


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for tool, family in pairs:
        if labels.setdefault(tool, family) != family:
            raise ValueError(f"{tool} is in two families: {labels[tool]} and {family}")
    return labels
