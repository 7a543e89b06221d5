"""Requests and scores of a service of the tests, which counts words."""

from pydantic import Field

from .causes import Cause
from .score import RUN_LABEL, STEP_LABEL, UID_LABEL, Request, Score, Step


class WordsCause(Cause):
    MISSING_WORD = ("missing_word", "A word of the reference is missing.", "All of its words.")


class WordsRequest(Request):
    response: str
    wanted: str = Field(min_length=1)
    run: str | None = RUN_LABEL
    step: Step | None = STEP_LABEL
    uid: str | None = UID_LABEL


class WordsScore(Score):
    missing: list[str] = Field(default_factory=list, description="The words that are missing.")
