"""Tables of samples: which samples they have, of which step, and that training goes on."""

import io
import pickle
import random
import re
from dataclasses import dataclass, field
from html import unescape

import numpy as np
import pytest
from PIL import Image

from rewardfleet import (
    CodeScore,
    RewardFleet,
    SampleTables,
    VideoScore,
    code_request,
    tools_request,
    video_request,
)
from rewardfleet import sample_tables as module
from rewardfleet.arrays import encode_png
from rewardfleet.sample_tables.sample import sample_of
from rewardfleet.score_log import Scored
from rewardfleet.score_log.of_client import ClientLog
from rewardfleet_server.testing import wait_until
from rewardfleet_server.tools.app import create_app as create_tools_app
from rewardfleet_server.tools.settings import ToolsSettings

from ..conftest import client_of

TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
ANSWER = '<think>Look.</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'


@dataclass
class Writer:
    """A writer of TensorBoard, which keeps what it gets."""

    tables: list[tuple[str, int, list[list[str]]]] = field(default_factory=list)

    def add_text(self, tag: str, text: str, step: int) -> None:
        rows = [re.findall("<pre>(.*?)</pre>", row) for row in text.split("</tr>")[1:-1]]
        self.tables.append((tag, step, [[unescape(cell) for cell in row] for row in rows]))

    def flush(self) -> None:
        pass


def score(tables: SampleTables, *scores: float, step: int | None = None) -> None:
    """Score programs, in one call."""
    requests = [code_request(f"print({each})", TESTS, step=step) for each in scores]
    answers = [CodeScore(score=each, status="ok") for each in scores]
    ClientLog([tables], "code", None).add(requests, answers)


async def test_each_batch_is_a_step_and_single_items_join_the_last_one():
    writer = Writer()
    with client_of(create_tools_app(ToolsSettings())) as service:
        tables = SampleTables(tensorboard=writer)
        async with RewardFleet(tools=str(service.base_url), sample_tables=tables) as fleet:
            for text in ("", ANSWER):
                await fleet.tools.score_batch([tools_request(text, ANSWER, uid="a")] * 2)
            await fleet.tools.score("<think>", ANSWER)
    (tag, first, rows), (_, second, later) = writer.tables
    assert (tag, first, second) == ("rewardfleet/tools", 0, 1)
    assert [row[2:4] for row in rows] == [["-3", "ok"]] * 2
    assert [row[2] for row in later] == ["-3", "4", "4"]
    assert later[1][:2] == ["1", "worst, best"] and later[1][6:9] == ["a", ANSWER, ANSWER]


def test_a_table_has_the_best_and_the_worst_of_many_samples():
    writer = Writer()
    tables = SampleTables(3, tensorboard=writer)
    scores = [number / 500 for number in range(500)]
    random.Random(0).shuffle(scores)
    for start in range(0, 500, 50):
        score(tables, *scores[start : start + 50], step=7)
    score(tables, *[1.0] * 5, step=7)
    tables.close()
    rows = writer.tables[-1][2]
    assert [float(row[2]) for row in rows] == [0.0, 0.002, 0.004, 1.0, 1.0, 1.0]


def test_a_table_is_logged_again_when_a_late_sample_changes_it(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0)
    writer = Writer()
    tables = SampleTables(tensorboard=writer)
    score(tables, 0.5, step=3)
    wait_until(lambda: len(writer.tables) == 1)  # before the next step begins
    score(tables, 0.5, step=4)
    score(tables, 0.25, step=3)
    tables.close()
    assert sorted((step, len(rows)) for _, step, rows in writer.tables) == [(3, 1), (3, 2), (4, 1)]


def test_a_tracker_that_fails_is_counted_and_logged_once(caplog):
    tables = SampleTables(tensorboard=object())
    for step in range(3):
        score(tables, 0.5, step=step)
    tables.close()
    assert tables.dropped["failed"] == 3
    assert caplog.text.count("samples are missing in the tables of the run") == 1
    with pytest.raises(ValueError, match=r"rows: give a number in \[1, 100\], not 0"):
        SampleTables(0)


def test_pictures_of_clips_are_small_whatever_they_are_sent_as():
    frames = np.full((40, 200, 100, 3), 90, np.uint8)
    images = [encode_png(each) for each in frames]
    scored = VideoScore(score=0.5, status="ok")
    jpeg = io.BytesIO()
    Image.fromarray(frames[0]).save(jpeg, "JPEG")
    for clip in (frames, frames.transpose(0, 3, 1, 2), images, [jpeg.getvalue()] * 4):
        request = video_request("put it away", clip)
        picture = sample_of(Scored("video", 0.0, request, scored)).picture
        with Image.open(io.BytesIO(picture.jpeg)) as image:
            assert (image.format, image.size) == ("JPEG", picture[1:])
            assert abs(np.asarray(image).astype(int) - 90).max() < 3
        assert picture.width <= 4 * 96 and picture.height <= 96 and picture.width > picture.height
    damaged = video_request("put it away", [images[0][:-40], b"no image"])
    assert sample_of(Scored("video", 0.0, damaged, scored)).picture is None


def test_tables_can_be_pickled_with_their_client():
    fleet = RewardFleet(code="http://127.0.0.1:1", sample_tables=SampleTables(5))
    assert pickle.loads(pickle.dumps(fleet)).code is not None
