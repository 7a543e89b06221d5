"""The random sample for people to label: what is drawn, and the false positives that it gives."""

import json
from pathlib import Path

import pytest
import scipy

from rewardfleet.commands.main import main
from rewardfleet.score_log import Scored, ScoreLog
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.wire.digest import request_id
from rewardfleet.wire.score import Status
from rewardfleet.wire.video import VideoRequest, VideoScore
from rewardfleet_server.testing import FakeJudge

from ..conftest import served

DAY = 86_400


def test_computed_scores_are_drawn_whatever_they_are_of(tmp_path, frames_request):
    judge, count, share = FakeJudge(0.5, deterministic=False), 300, 0.3
    log = {"score_log": tmp_path / "log", "label_fraction": share, "score_log_sample": 1}
    with served(judge, **log) as client:
        for _ in range(count // 50):
            client.post("/score/batch", json={"items": [frames_request] * 50})
        judge.score = None
        client.post("/score/batch", json={"items": [frames_request] * 50})
    with served(FakeJudge(1.0), **log | {"label_fraction": 1}) as client:
        for _ in range(3):
            client.post("/score", json={**frames_request, "run": "cached"})
    with open_log([tmp_path / "log"]) as connection:
        records = select(connection, Filters())
    assert len(records) == count + 50 + 3
    drawn = [each for each in records if each["label_fraction"] is not None]
    by_fraction = [each["label_fraction"] for each in drawn]
    assert by_fraction.count(1) == 1
    low, high = scipy.stats.binom.ppf([1e-5, 1 - 1e-5], count, share)
    assert low <= by_fraction.count(share) <= high
    assert {each["score"] for each in drawn} == {0.5, 1.0}


def test_a_sample_needs_a_log_to_mark_it_in(capsys):
    assert main(["serve", "video", "--set", "label_fraction=0.02"]) == 2
    assert "give --score-log FOLDER as well" in capsys.readouterr().err


@pytest.fixture
def log(tmp_path) -> Path:
    """Keep 30 failures and 10 successes of a week, others before it, and others not drawn."""

    def scored(number: int, day: float, score: float, fraction: float | None = 0.1) -> Scored:
        calibration = {"calibration": {"threshold": 0.8}}
        request = VideoRequest(task_text="fold \x1b[31m" if number % 4 else "push", video_path="a")
        return Scored(
            "video", day * DAY, request.model_copy(update={"video_path": str(number)}),
            VideoScore(score=score, status=Status.OK, backend="openai"),
            provenance=calibration, label_fraction=fraction,
        )  # fmt: skip

    items = [scored(n, 100 + n / 10, 0.9 if n % 10 == 0 else 0.7) for n in range(40)]
    items += [scored(n, 90, 0.9) for n in range(40, 60)]  # before the week
    items += [scored(n, 103, 0.9, None) for n in range(60, 80)]  # not drawn
    items += [scored(n, 103, 0.9) for n in range(80, 85)]  # without a label
    lines = [{"id": "x" * 64, "label": "right", "success": True}, {"id": 3}, ["no"]]
    lines += [{"id": "y", "label": "right", "success": "yes"}]
    for number, each in enumerate(items[:80]):
        label = {"id": request_id(each.request), "success": None if number == 39 else number < 5}
        lines.append({**label, "label": "right"})
    (tmp_path / "labels.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    kept = ScoreLog(tmp_path / "log")
    kept.add(lambda: items, items=len(items))
    kept.close()
    return tmp_path


def test_the_report_has_the_false_positives_of_the_last_week(log: Path, capsys):
    report = ["report", str(log / "log")]
    assert main([*report, "--labels", str(log / "labels.jsonl")]) == 0
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    # Of 34 failures, those with the numbers 10, 20 and 30 were accepted.
    assert "openai 0.8 all 0.1 45 40 1 34 3 8.8% 1.9% to 23.7%" in lines
    assert r"openai 0.8 fold \x1b[31m 0.1 33 30 1 26 2 7.7% 0.9% to 25.1%" in lines
    assert [line.split(":")[1] for line in shown.err.splitlines()] == ["2", "3", "4"]
    assert main(report) == 0
    assert "45 scores were drawn" in capsys.readouterr().out
    assert main([*report, "--labels", str(log / "none")]) == 2
