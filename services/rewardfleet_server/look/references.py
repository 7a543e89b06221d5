"""The references that the judge `reference` compared a clip with."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

#: In the judge's text: what is near, the file in its library, which frame of it, and how near.
_NEAREST = re.compile(r"Nearest (finished|other) frame: (\S+) \((.{1,400}?)\) at (\d{1,3}\.\d)")


class Reference(NamedTuple):
    """A labeled clip, of which one frame is the nearest to the end of the clip that was judged."""

    kind: str  #: `finished`: the task is done in that frame; or `other`
    file: str  #: its name in the library
    frame: str  #: which frame it is, in words
    distance: str  #: in gray levels


def references_of(record: Mapping[str, Any], model_output: str) -> list[Reference]:
    """Return the references of a record, the finished one first."""
    if record["judge"] != "reference":
        return []
    return [Reference(*found) for found in _NEAREST.findall(model_output)]
