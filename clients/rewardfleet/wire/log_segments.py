"""The files of a score log, as `GET /score-log` of a service lists them."""

import re
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

#: Path of the list, and below it, of the content of the segments.
PATH = "/score-log"
MAX_SEGMENTS = 1000
#: The most bytes of one answer with content.
MAX_CHUNK_BYTES = 4 * 2**20

#: The names of segments; nothing else is read, or written by who copies it.
NAME = re.compile(r"[0-9T]{8,40}-[0-9]{1,10}-[0-9a-f]{8}\.(jsonl|parquet)")


class LogSegment(BaseModel):
    """A file of a score log."""

    name: Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")] = Field(
        description="Its name, by which segments sort by time. What replaces it has another one."
    )
    size: int = Field(ge=0, description="Bytes now; more may follow.")


class LogSegments(BaseModel):
    """The files of the score log of a service."""

    log: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")] = Field(
        description="Names the folder: services that share it list the same segments."
    )
    segments: list[LogSegment] = Field(
        max_length=MAX_SEGMENTS, description=f"The newest {MAX_SEGMENTS}, the oldest first."
    )
