"""`rewardfleet score replay` with another judge, and with the same one, over HTTP."""

import json
import shutil

import pytest

from rewardfleet import blocking, video_request
from rewardfleet.commands.main import main
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.wire.video import VideoRequest
from rewardfleet_server.testing import serving
from rewardfleet_server.video.app import create_app
from rewardfleet_server.video.references.library import add_reference
from rewardfleet_server.video.settings import VideoSettings

from ..conftest import DATA, LONG_CLIP

#: A user's judge in two versions, of which the second one thinks otherwise of one clip.
MODULE = """
from pathlib import Path

class Judge:
    def __init__(self, scores):
        self.scores = scores

    def score_video(self, task_text, video_path, nframes, max_pixels, backend_kwargs):
        score = self.scores[Path(video_path).stem]
        return (None, "too dark") if score is None else (score, "looked")

def build_first(args):
    return Judge({"a": 0.9, "b": 0.5, "c": 0.1, "d": 0.25, "e": None})

def build_second(args):
    return Judge({"a": 0.9, "b": 0.8, "c": 0.1, "d": 0.25, "e": None})

def build_blind(args):
    return Judge(dict.fromkeys("abcde"))
"""
TASKS = {"a": "stack", "b": "stack", "c": "stack", "d": "pour", "e": "pour"}


def score(app, clips: list[VideoRequest]) -> None:
    with serving(app) as url, blocking.RewardFleet(video=url) as fleet:
        fleet.video.score_batch(clips)


@pytest.mark.slow
def test_another_judge_changes_the_advantages_of_a_group(tmp_path, monkeypatch, capsys):
    module = f"judges_of_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in TASKS:
        shutil.copy(LONG_CLIP, tmp_path / f"{name}.mp4")
    log = tmp_path / "log"

    def app(factory: str, judge: str, **more: object):
        own = {"backend": [judge], "custom_backend_factory": f"{module}:{factory}"}
        return create_app(VideoSettings(video_root=[tmp_path], **own, **more))

    clips = [
        video_request(task, f"{name}.mp4", run="grpo", step=3, uid=name)
        for name, task in TASKS.items()
    ]
    score(app("build_first", "mine", score_log=log), clips)

    def replay(url: str, output: str, *more: str) -> int:
        given = ["score", "replay", str(log), "-o", str(tmp_path / output), "--url", url]
        return main([*given, *more])

    with serving(app("build_second", "other")) as url:
        assert replay(url, "new", "--judge", "other", "--fail-if-changed", "19%") == 1
        shown = capsys.readouterr().out
        assert replay(url, "new", "--judge", "other", "--fail-if-changed", "20%") == 0
        assert replay(url, "unknown", "--judge", "mine") == 2  # it is not loaded there
    assert "1 rewards changed (20.00%), 0 have no score now; 1 of 2 groups changed" in shown
    row = next(line.split() for line in shown.splitlines() if "grpo" in line)
    assert row[1:] == ["grpo", "3", "b", "0.5", "0.8", "0", "0.4588"]
    changes = (tmp_path / "new" / "changes.jsonl").read_text().splitlines()
    lines = sorted(map(json.loads, changes), key=lambda each: each["uid"])
    assert [(e["uid"], e["changed"]) for e in lines] == [("a", False), ("b", True), ("c", False)]
    # (reward - mean) / deviation: of 0.9, 0.5, 0.1, then of 0.9, 0.8, 0.1.
    for when, expected in (("before", [1, 0, -1]), ("after", [0.6882, 0.4588, -1.1471])):
        advantages = [each[f"advantage_{when}"] for each in lines]
        assert advantages == pytest.approx(expected, abs=1e-4)
    for each in lines:
        assert each["group_reward_before"] == pytest.approx(0.5)
        assert each["group_reward_after"] == pytest.approx(0.6)
    # No reward is better than a wrong one, and it is not 0: four scores are missing now.
    with serving(app("build_blind", "other")) as url:
        assert replay(url, "blind", "--judge", "other") == 2
    assert "4 have no score now" in capsys.readouterr().out


@pytest.mark.slow
def test_a_score_is_computed_again_only_if_what_it_depends_on_has_changed(tmp_path):
    manifest = (DATA / "libero" / "manifest.jsonl").read_text()
    entries = [*map(json.loads, manifest.splitlines())]
    rollouts = [each for each in entries if each["task_text"] == entries[0]["task_text"]][:3]
    log, library = tmp_path / "log", tmp_path / "library"
    for each in rollouts:
        clip = DATA / "libero" / each["file"]
        add_reference(library, clip, each["task_text"], success=each["success"])
    settings = {"video_root": [DATA / "libero"], "cache": tmp_path / "scores.db"}
    settings["set"] = [f"library={library}"]
    clips = [video_request(each["task_text"], each["file"], run="r") for each in rollouts]
    score(create_app(VideoSettings(**settings, score_log=log)), clips)

    def cached(output: str, *more: str) -> set[object]:
        """Score the log again in another service; return which values `cached` has."""
        folder = tmp_path / output
        with serving(create_app(VideoSettings(**settings))) as url:
            assert main(["score", "replay", str(log), "-o", str(folder), "--url", url, *more]) == 0
        with open_log([folder]) as connection:
            return {each["cached"] for each in select(connection, Filters())}

    assert cached("same") == {True}
    assert cached("fewer frames", "--set", "nframes=8") == {False}
    more = next(each for each in entries if each not in rollouts and each["success"])
    add_reference(library, DATA / "libero" / more["file"], more["task_text"], success=True)
    assert cached("larger library") == {False}
    assert cached("again") == {True}
