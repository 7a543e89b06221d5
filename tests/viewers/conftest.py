"""Samples of two steps, as a client gives them to tables of samples."""

import numpy as np

from rewardfleet import (
    CodeScore,
    SampleTables,
    Unavailable,
    VideoScore,
    code_request,
    video_request,
)
from rewardfleet.score_log.of_client import ClientLog

TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
#: What would be HTML, Markdown or a second row of a table.
NASTY = (
    "# *a* | `b`\n\n    <script>alert(1)</script> ``` | c\r\n|d| [e](javascript:alert(1)) \0\x1b"
)


def score_step(tables: SampleTables, step: int | None) -> None:
    """Score ten programs, one without a score and one with a suspicion, and a clip."""
    texts = [f"print({number})\n{NASTY}" for number in range(9)]
    programs = [code_request(each, TESTS, step=step, uid=str(n)) for n, each in enumerate(texts)]
    scores = [CodeScore(score=n / 8, status="ok", cause="wrong_answer") for n in range(8)]
    scores[3].suspicions = ["It reads the tests."]
    ClientLog([tables], "code", None).add(programs, [*scores, Unavailable("no sandbox")])
    frames = np.zeros((8, 128, 128, 3), np.uint8)
    frames[..., 0] = 200
    clip = video_request("put the bowl away", frames, step=step, uid="clip")
    judged = VideoScore(score=0.25, status="ok", model_output=NASTY)
    ClientLog([tables], "video", None).add([clip], [judged])
