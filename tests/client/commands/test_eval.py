"""`rewardfleet eval video`: from labeled clips to a report, over real HTTP."""

import json
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.commands import demo
from rewardfleet_server.testing import FakeJudge

from ...conftest import served
from .test_score import write_rows
from .test_score_lerobot import LENGTHS, BrightnessJudge, data_set

pytestmark = pytest.mark.slow


class LengthJudge(FakeJudge):
    """Scores a clip by its number of frames, in percent; above 90 it abstains."""

    words = "fine"

    async def judge(self, task, clip, options):
        judgment = await super().judge(task, clip, options)
        score = None if clip.total > 90 else clip.total / 100
        return type(judgment)(score, self.words, {"value_order_correlation": 0.5})


@pytest.fixture
def judge() -> LengthJudge:
    return LengthJudge()


@pytest.fixture
def evaluate(judge: LengthJudge, tmp_path) -> Iterator[Callable[..., tuple[int, dict[str, Any]]]]:
    """Return the function that evaluates a manifest of lines, and returns status and report."""
    with served(judge, video_root=[tmp_path]) as client:

        def run(lines: list[Any], *options: str, out: str = "out") -> tuple[int, dict[str, Any]]:
            new = write_rows(tmp_path / "new.jsonl", lines)
            manifest = tmp_path / "manifest.jsonl"
            if not manifest.exists() or manifest.read_text() != new.read_text():
                new.rename(manifest)
            given = ["--url", str(client.base_url), "-o", str(tmp_path / out), *options]
            status = main(["eval", "video", str(manifest), *given])
            report = tmp_path / out / "report.json"
            return status, json.loads(report.read_text()) if report.exists() else {}

        yield run


@pytest.fixture
def clips(make_video) -> list[dict[str, Any]]:
    """Two tasks with a success and two failures each, one of which is a near miss."""

    def clip(frames: int, task: str, **label: Any) -> dict[str, Any]:
        name = make_video(frames, name=f"{task}{frames}.mp4").name
        return {"file": name, "task_text": task, **label}

    return [
        clip(80, "a", success=True),
        clip(60, "a", success=False, near_miss=True, failure_kind="hover"),
        clip(10, "a", success=False, failure_kind="drop"),
        clip(40, "b", success=True),
        clip(30, "b", success=False, failure_kind="near_miss_offset"),
        clip(5, "b", success=False, failure_kind="drop"),
    ]


def test_the_figures_are_those_of_the_clips(evaluate, clips):
    status, report = evaluate(clips)
    assert status == 0
    assert report["counts"] == {"labels": 6, "unclear": 0, "ok": 6}
    by_task = {each["task"]: each for each in report["tasks"]}
    assert by_task["a"]["auroc"] == by_task["b"]["auroc"] == {"value": 1.0, "interval": None}
    assert by_task["a"]["near_miss_false_positives"]["count"] == 1
    assert by_task["b"]["recall"] == {**by_task["b"]["recall"], "count": 0, "of": 1}
    over, pooled = report["over_tasks"], report["pooled"]
    assert over["tasks_with_both_labels"] == 2 and over["auroc_within_tasks"]["value"] == 1.0
    assert pooled["auroc"]["value"] == 7 / 8  # the near miss of a is above the success of b
    assert pooled["false_positives"]["count"] == 1 and pooled["other_false_positives"]["count"] == 0
    # Left out: a gets the threshold of b, 0.4, and b that of a, 0.8.
    left_out = over["leaving_one_task_out"]
    assert (left_out["false_positives"]["count"], left_out["recall"]["count"]) == (1, 1)
    kinds = {each["kind"]: each for each in report["kinds"]}
    assert list(kinds) == ["success", "drop", "hover", "near_miss_offset"]
    assert kinds["near_miss_offset"]["near_miss"] and kinds["drop"]["histogram"][1:3] == [1, 1]
    assert [each["score"] for each in report["mistakes"]] == [0.6, 0.4]
    assert report["value_order"]["failures"] == {"clips": 4, "mean": 0.5}
    assert report["time"]["computed"] == 6 and report["time"]["seconds_per_clip"] > 0
    said = report["cannot_conclude"]
    assert "6 labeled clips" in said and "camera" in said and "tells" not in said


def test_nothing_is_scored_without_a_label_or_again(evaluate, clips, judge, capsys):
    assert evaluate([{**each, "success": None} for each in clips]) == (2, {}) and not judge.seen
    assert "no row has a label" in capsys.readouterr().err
    _, first = evaluate(clips)
    calls = len(judge.seen)
    _, second = evaluate(clips, "--threshold", "0.7")
    assert len(judge.seen) == calls
    assert second["time"]["seconds_per_clip"] is None
    assert first["pooled"]["auroc"] == second["pooled"]["auroc"]
    assert second["pooled"]["false_positives"]["count"] == 0


def test_bad_rows_are_named_and_the_others_count(evaluate, clips, tmp_path, make_video, capsys):
    make_video(95, name="long.mp4")
    copy = tmp_path / "copy.mp4"
    copy.write_bytes((tmp_path / clips[5]["file"]).read_bytes())
    lines = [
        *clips,
        "{broken",
        {"file": "gone.mp4", "task_text": "a", "success": True},
        {**clips[0], "success": "maybe"},
        {**clips[0], "success": None},
        {key: value for key, value in clips[0].items() if key != "success"},
        {**clips[5], "file": "copy.mp4", "success": True},  # contradicts the row of the original
        clips[3],
        {"file": "long.mp4", "task_text": "a", "success": True},
        {**clips[0], "backend_kwargs": "x", "clips": {}},
    ]
    status, report = evaluate(lines)
    assert status == 1
    assert report["counts"] == {"labels": 8, "unclear": 1, "ok": 5, "error": 2, "abstained": 1}
    assert "backend_kwargs" in report["missing"][-1]["reason"]
    missing = {each["name"]: each for each in report["missing"]}
    assert missing["gone.mp4"]["error"] == "invalid" and "gone.mp4" in missing["gone.mp4"]["reason"]
    assert missing["long.mp4"]["status"] == "abstained"
    problems = {each["place"].rpartition(":")[2]: each["reason"] for each in report["problems"]}
    said = {"7": "not JSON", "9": "true or false", "11": "no column", "13": "counted once"}
    assert not [line for line, words in said.items() if words not in problems[line]]
    assert "contradictory" in problems["6"] and ":12" in problems["6"] and "12" in problems
    assert "manifest.jsonl:9" in capsys.readouterr().out


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_page_runs_and_loads_nothing_whatever_judge_and_labels_say(
    evaluate, clips, judge, tmp_path
):
    attack = "<script>alert(1)</script><img src=x onerror='x'>\"'&{{7777*7777}} $\\frac \u202e"
    judge.words = attack
    for each in clips:
        each["task_text"] = attack + each["task_text"]
        if not each["success"]:
            each["failure_kind"] = attack
    odd = tmp_path / "<b onclick=x>&quot;.mp4"
    (tmp_path / clips[1]["file"]).rename(odd)
    clips[1]["file"] = odd.name
    clips[5]["success"] = True  # scored 0.05: perhaps the label is wrong
    status, report = evaluate(clips)
    assert status == 0
    text = (tmp_path / "out" / "report.html").read_text()
    page = _Page(text)
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "iframe", "object", "link", "b onclick", "form"} & {*tags}
    assert tags.count("img") == 3  # strips of the mistakes
    assert [each["place"].rpartition(":")[2] for each in report["disagreements"]] == ["6"]
    assert page.text.count("manifest.jsonl:6") == 1
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "data:").startswith(("data:image/jpeg", "data:", "#"))
    assert attack in page.text and odd.name in page.text and "60481729" not in page.text
    [policy] = [a["content"] for tag, a in page.tags if "http-equiv" in a]
    assert "default-src 'none'" in policy and "script" not in policy
    assert text.index("What cannot be concluded") < text.index("<h1>")


def test_two_judges_are_compared_on_the_clips_of_both(evaluate, clips, judge, tmp_path):
    evaluate(clips, out="first")
    other = [*clips[1:5], {**clips[5], "success": True}]
    status, report = evaluate(other, "--compare", str(tmp_path / "first"))
    assert status == 0
    found = report["comparison"]
    assert (found["clips"], found["only_in_one"], len(found["labels_differ"])) == (4, 1, 1)
    assert found["figures"]["recall"]["values"] == [0.0, 0.0]


def test_an_interrupted_report_is_named_and_the_evaluation_goes_on(
    evaluate, clips, tmp_path, capsys
):
    (tmp_path / "other" / "scores").mkdir(parents=True)
    status, report = evaluate(clips, "--compare", str(tmp_path / "other"))
    assert status == 1 and report["pooled"]["auroc"]["value"] == 7 / 8
    assert "interrupted" in report["comparison"]["error"]
    (tmp_path / "other" / "report.json").write_text('{"format": "rewardfl')
    _, report = evaluate(clips, "--compare", str(tmp_path / "other"))
    assert "damaged" in report["comparison"]["error"]
    assert "damaged" in capsys.readouterr().out
    assert "damaged" in (tmp_path / "out" / "report.html").read_text()


def test_repeated_calls_are_compared_and_cached_ones_counted(evaluate, clips, judge):
    judge.deterministic = False
    _, report = evaluate(clips, "--repeat")
    assert report["repeated"] == {
        "clips": 6, "from_cache": 0, "same_verdict": 1.0, "kappa": 1.0,
        "mean_difference": 0.0, "largest_difference": 0.0,
    }  # fmt: skip
    judge.deterministic = True
    evaluate(clips, out="cached")
    _, report = evaluate(clips, "--repeat", out="cached")
    assert report["repeated"]["from_cache"] == 6


def test_labels_of_people_the_last_of_an_id_counts(evaluate, clips, tmp_path):
    def line(id_: str, number: int, **fields: Any) -> dict[str, Any]:
        path = str(tmp_path / clips[number]["file"])
        given = {"service": "video", "score": 0.3, "judge": "fake", "prompt": None, "time": 1}
        named = {"id": id_, "task_text": "a", "video_path": path, "label": "right"}
        return {**named, **given, **fields}

    lines = [
        line("1", 0, success=False),
        line("2", 1, success=False),
        line("1", 0, success=True),
        line("3", 2, success=None, label="unclear"),
        line("4", 3, success=True, video_path=None, label="wrong"),  # its score is kept
        line("5", 4, success=True, service="code"),
        line("6", 4, success=True, video_path=None, judge="another"),
    ]
    status, report = evaluate(lines)
    assert status == 1
    scores = {each["place"].rpartition(":")[2]: each["score"] for each in report["clips"]}
    assert scores == {"2": 0.6, "3": 0.8, "5": 0.3, "7": None}
    assert report["counts"]["unclear"] == 1
    assert report["missing"][0]["error"] == "another_judge"
    reasons = " ".join(each["reason"] for each in report["problems"])
    assert "labeled again" in reasons and "'code'" in reasons


def test_a_lerobot_data_set_has_its_labels_and_a_judge_s_are_refused(tmp_path, capsys):
    root = data_set(tmp_path / "set", "v2.1")
    labels = [True, False, True]
    info = root / "meta" / "info.json"
    given = json.loads(info.read_text())
    given["features"]["next.success"] = {"dtype": "bool", "shape": [1]}
    with served(BrightnessJudge(), video_root=[root]) as client:
        url = ["--url", str(client.base_url)]
        assert main(["score", "video", str(root), *url, "-o", str(tmp_path / "scores")]) == 1
        copy = str(tmp_path / "scores" / "lerobot")
        assert main(["eval", "video", copy, *url, "-o", str(tmp_path / "circular")]) == 2
        assert "a judge's" in capsys.readouterr().err
        info.write_text(json.dumps(given))
        for episode, path in enumerate(sorted((root / "data").rglob("*.parquet"))):
            column = [False] * (LENGTHS[episode] - 1) + [labels[episode]]
            table = pq.read_table(path).append_column("next.success", pa.array(column))
            pq.write_table(table, path)
        assert main(["eval", "video", str(root), *url, "-o", str(tmp_path / "out")]) == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [each["success"] for each in report["clips"]] == labels
    assert report["counts"]["abstained"] == 1
    assert report["cameras"] == ["observation.images.top"]
    assert [each["name"] for each in report["mistakes"]] == ["episode 0", "episode 1"]
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/jpeg") == 2


def test_a_judge_is_calibrated_served_and_evaluated_again(
    evaluate, judge, tmp_path, make_video, capsys
):
    """Half of the failures are longer than half of the successes; labels are a rule of lengths."""
    lines = []
    for frames in range(2, 88, 2):
        name = make_video(frames, name=f"{frames}.mp4").name
        lines += [
            {"file": name, "task_text": task, "success": frames > 60 and frames % 8 > 0}
            for task in "abcd"
        ]
    status, before = evaluate(lines)
    assert status == 0 and "camera" in before["cannot_conclude"]
    folder, file = str(tmp_path / "out"), tmp_path / "calibration.json"
    assert main(["calibrate", folder, "-o", str(file), "--false-positives", "0.01"]) == 2
    assert "more failures" in capsys.readouterr().err and not file.exists()
    assert main(["calibrate", folder, "-o", str(file), "--map", "isotonic"]) == 0
    assert "threshold" in capsys.readouterr().out
    with served(judge, video_root=[tmp_path], calibration=file) as client:
        given = ["--url", str(client.base_url), "-o", str(tmp_path / "after")]
        assert main(["eval", "video", str(tmp_path / "manifest.jsonl"), *given]) == 0
        wrong = [*given[:2], "-o", str(tmp_path / "wrong"), "--set", "nframes=4"]
        assert main(["eval", "video", str(tmp_path / "manifest.jsonl"), *wrong]) == 2
    after = json.loads((tmp_path / "after" / "report.json").read_text())
    assert after["threshold"] == json.loads(file.read_text())["threshold"]["value"]
    assert after["reliability"]["ece"] < before["reliability"]["ece"]
    raw = [each["raw_score"] for each in after["clips"]]
    assert raw == [each["score"] for each in before["clips"]]
    # What is calibrated is calibrated from the judge's own scores.
    again = ["-o", str(tmp_path / "again.json"), "--map", "isotonic"]
    assert main(["calibrate", str(tmp_path / "after"), *again]) == 0
    assert (tmp_path / "again.json").read_text() == file.read_text()
    (tmp_path / "interrupted").mkdir()
    assert main(["calibrate", str(tmp_path / "interrupted"), "-o", str(file)]) == 2
    assert "interrupted" in capsys.readouterr().err


def test_the_embedded_judge_is_evaluated_and_no_label_changed(tmp_path, capsys):
    manifest = demo._ROLLOUTS / "manifest.jsonl"
    before = manifest.read_bytes()
    assert main(["eval", "video", str(manifest), "--start", "", "-o", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["counts"] == {"labels": 11, "unclear": 0, "ok": 11}
    assert report["over_tasks"]["tasks_with_both_labels"] == 4
    assert report["pooled"]["near_miss_false_positives"]["of"] == 5
    assert report["frame_sizes"] == [[256, 256]]
    assert manifest.read_bytes() == before
    lines = (tmp_path / "verdicts.jsonl").read_text().splitlines()
    assert len(lines) == 11 and json.loads(lines[0])["judge_success"] is False
