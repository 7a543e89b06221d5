"""The file with what people say of scores, which `rewardfleet look` writes: a label per line."""

from typing import Literal

from pydantic import BaseModel, StrictBool

Label = Literal["right", "wrong", "unclear"]


class LabelLine(BaseModel):
    """What is read of a line. Of the lines of a request, the last one counts."""

    id: str  #: of the request
    label: Label  #: whether the score is right
    success: StrictBool | None  #: whether the person saw a success; None if it is unclear
