"""Code that several adapters share: reading a trainer's tensors and rows."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

#: A row of a trainer's dataset.
Row = Mapping[str, Any]

#: Fields of a row, besides the tests, that a request has as well.
_OPTIONS = ("critique", "original_program", "original_passed", "mode", "limits")


def to_array(tensor: Any) -> Any:
    """Return a tensor of any device as a numpy array. An array is returned as it is."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def request_fields(revision: str, tests: Any, options: Row) -> dict[str, Any]:
    """Return the fields of a request, as `rewardfleet.code_request` takes them.

    Args:
        revision: The program, plain or in a fenced block of a text.
        tests: The tests of the request, or their JSON as text (a parquet file keeps text as it
            is, but changes nested columns).
        options: Fields of the request are taken from it where they are not None: `critique`,
            `original_program`, `original_passed`, `mode` and `limits`.
    """
    given = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    return {"revision": revision, "tests": _parse_json(tests), **given}


def _parse_json(tests: Any) -> Any:
    try:
        return json.loads(tests) if isinstance(tests, str) else tests
    except ValueError:
        return tests  # refused where the request is built, as the failure of this one sample
