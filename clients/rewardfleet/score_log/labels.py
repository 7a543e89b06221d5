"""The file with what people say of scores, which `rewardfleet look` writes: a label per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, StrictBool, ValidationError

Label = Literal["right", "wrong", "unclear"]


class LabelLine(BaseModel):
    """What is read of a line. Of the lines of a request, the last one counts."""

    id: str  #: of the request
    label: Label  #: whether the score is right
    success: StrictBool | None  #: whether the person saw a success; None if it is unclear


def read_labels(path: Path) -> Iterator[tuple[int, LabelLine | ValidationError]]:
    """Yield the number of each line, and what it says or why it is no label.

    Raises:
        OSError: The file cannot be read.
    """
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            yield number, LabelLine.model_validate_json(line)
        except ValidationError as error:
            yield number, error
