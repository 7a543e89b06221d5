"""Tables of samples: which samples they have, of which step, and that training goes on."""

import io
import pickle
import random
import sys

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

from ..score_log.conftest import service_at

TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
ANSWER = '<think>Look.</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'


class Wandb:
    """W&B with a run, in which the trainer logs something after each table; it keeps the tables."""

    Table = staticmethod(lambda columns, data: data)

    def __init__(self) -> None:
        self.run = self
        self.tables: list[tuple[str, int, list[list]]] = []
        self.logs_meanwhile = False  #: while a table is encoded, instead of after it
        self._reads = -1

    @property
    def step(self) -> int:
        """The trainer's step, which is read before and after a table."""
        self._reads += 1
        return (self._reads + self.logs_meanwhile) // 2

    def log(self, logged: dict[str, list[list]], *, commit: bool) -> None:
        ((tag, rows),) = logged.items()
        self.tables.append((tag, rows[0][0], rows))


@pytest.fixture
def wandb(monkeypatch) -> Wandb:
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    return wandb


def score(tables: SampleTables, *scores: float, step: int | None = None) -> None:
    """Score programs, in one call."""
    requests = [code_request(f"print({each})", TESTS, step=step) for each in scores]
    answers = [CodeScore(score=each, status="ok") for each in scores]
    ClientLog([tables], "code", None).add(requests, answers)


async def test_each_batch_is_a_step_and_single_items_join_the_last_one(wandb):
    with service_at("tools") as url:
        async with RewardFleet(tools=url, sample_tables=SampleTables()) as fleet:
            for text in ("", ANSWER):
                await fleet.tools.score_batch([tools_request(text, ANSWER, uid="a")] * 2)
            await fleet.tools.score("<think>", ANSWER)
    (tag, first, rows), (_, second, later) = wandb.tables
    assert (tag, first, second) == ("rewardfleet/tools", 0, 1)
    assert [row[2:4] for row in rows] == [[-3, "ok"]] * 2
    assert [row[2] for row in later] == [-3, 4, 4]
    assert later[1][:2] == [1, "worst, best"] and later[1][6:9] == ["a", ANSWER, ANSWER]


def test_a_table_has_the_best_and_the_worst_of_many_samples(wandb):
    tables = SampleTables(3)
    scores = [number / 500 for number in range(500)]
    random.Random(0).shuffle(scores)
    for start in range(0, 500, 50):
        score(tables, *scores[start : start + 50], step=7)
    score(tables, *[1.0] * 5, step=7)
    tables.close()
    rows = wandb.tables[-1][2]
    assert [row[2] for row in rows] == [0.0, 0.002, 0.004, 1.0, 1.0, 1.0]


def test_a_table_is_logged_again_when_a_late_sample_changes_it(wandb, monkeypatch):
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0)
    tables = SampleTables()
    score(tables, 0.5, step=3)
    wait_until(lambda: len(wandb.tables) == 1)  # before the next step begins
    score(tables, 0.5, step=4)
    score(tables, 0.25, step=3)
    tables.close()
    assert sorted((step, len(rows)) for _, step, rows in wandb.tables) == [(3, 1), (3, 2), (4, 1)]


def three_steps() -> SampleTables:
    tables = SampleTables()
    for step in range(3):
        score(tables, 0.5, step=step)
    tables.close()
    return tables


def test_a_table_is_logged_with_the_next_one_if_the_trainer_logged_meanwhile(wandb):
    wandb.logs_meanwhile = True
    three_steps()
    assert [[row[0] for row in rows] for _, _, rows in wandb.tables] == [[0], [0, 1], [0, 1, 2]]


def test_a_tracker_that_fails_is_counted_and_logged_once(wandb, caplog):
    wandb.run = object()
    assert three_steps().dropped["failed"] == 3
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
        with Image.open(io.BytesIO(picture)) as image:
            assert image.format == "JPEG" and abs(np.asarray(image).astype(int) - 90).max() < 3
            assert image.width <= 4 * 96 and image.height <= 96 and image.width > image.height
    damaged = video_request("put it away", [images[0][:-40], b"no image"])
    assert sample_of(Scored("video", 0.0, damaged, scored)).picture is None


def test_tables_can_be_pickled_with_their_client():
    fleet = RewardFleet(code="http://127.0.0.1:1", sample_tables=SampleTables(5))
    assert pickle.loads(pickle.dumps(fleet)).code is not None
