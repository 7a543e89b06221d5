"""What services and clients write to score logs, what the commands show, and scoring it again."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from rewardfleet import RewardFleet, blocking, episode_request, tools_request, video_request
from rewardfleet.commands.main import main
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.score_log.strip import frames_of
from rewardfleet.wire.digest import request_id

from ..conftest import LONG_CLIP, served
from .conftest import service_at

FRAMES = np.zeros((8, 120, 200, 3), np.uint8)
TRUTH = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {}}\n</tool_call>'


def read(folder: Path, **filters: object) -> list[dict[str, object]]:
    with open_log([folder]) as connection:
        return select(connection, Filters(**filters))


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "log"


async def test_the_video_service_keeps_small_frames_or_the_path(folder: Path):
    settings = {"score_log": folder, "score_log_sample": 1, "video_root": [LONG_CLIP.parent]}
    sent = video_request("a task", FRAMES, run="r", step=3, uid="u")
    named = video_request("a task", LONG_CLIP)
    with service_at("video", **settings) as url:
        async with RewardFleet(video=url) as fleet:
            await fleet.video.score_batch([sent, named])
            await fleet.video.score_batch([sent])
        form = {"task_text": "a task", "run": "by form", "step": "4"}
        files = {"video": LONG_CLIP.read_bytes()}
        upload = httpx.post(f"{url}/score", data=form, files=files, trust_env=False)
        assert upload.status_code == 200, upload.text
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    records = read(folder)
    assert 'rewardfleet_score_log_records_total{service="video"}' in metrics
    by_id = {str(each["id"]): each for each in records if not each["cached"]}
    of_sent, of_named = by_id[request_id(sent)], by_id[request_id(named)]
    assert (of_sent["run"], of_sent["step"], of_sent["uid"]) == ("r", 3, "u")
    picture = Image.open(io.BytesIO(of_sent["frames"]))  # type: ignore[arg-type] # bytes
    assert picture.format == "JPEG" and picture.size == (4 * 67, 40)
    frames = frames_of(of_sent["frames"], len(FRAMES))  # type: ignore[arg-type] # bytes
    assert [frame.shape for frame in frames] == [(40, 67, 3)] * 4
    assert json.loads(str(of_named["request"]))["video_path"] == str(LONG_CLIP)
    assert of_named["frames"] is None and of_sent["call"] == of_named["call"]
    [of_form] = [each for each in records if each["run"] == "by form"]
    assert of_form["step"] == 4 and json.loads(str(of_form["request"]))["sha256"]
    assert [each["cached"] for each in records if each["id"] == of_sent["id"]] == [False, True]


async def test_no_key_is_in_the_log(folder: Path):
    url = "https://user:secret1@videos.example/a.mp4?signature=secret2"
    body = {"task_text": "t", "video_url": url, "backend_kwargs": {"api_key": "secret3"}}
    with served(score_log=folder) as client:
        client.headers["authorization"] = "Bearer secret4"
        assert client.post("/score", json=body).status_code >= 400
        body.pop("backend_kwargs")
        client.post("/score", json=body)
    records = read(folder)
    assert len(records) == 2 and {each["status"] for each in records} == {"error"}
    content = b"".join(path.read_bytes() for path in folder.glob("*.jsonl"))
    assert b"secret" not in content and b"https://***@videos.example/a.mp4?***" in content


async def test_answers_with_tools_and_episodes_are_kept_by_requests(folder: Path):
    """A sample keeps all items of a request, or none."""
    sample = {"score_log": folder, "score_log_sample": 0.5}
    batch = [episode_request(f"e{i}", group="g", success=i % 2) for i in range(4)]
    answers = [tools_request(f"{TRUTH} {i}", TRUTH) for i in range(4)]
    with service_at("tools", **sample) as tools, service_at("episode", **sample) as episode:
        async with RewardFleet(tools=tools, episode=episode) as fleet:
            options = {"normalize": "group_std"}
            for step in range(20):
                await fleet.tools.score_batch(answers)
                await fleet.episode.score_batch(batch, options, run="r", step=step)
    for service in ("tools", "episode"):
        calls = Counter(each["call"] for each in read(folder, service=service))
        assert 0 < len(calls) < 20 and set(calls.values()) == {4}
    first = read(folder, service="episode")[0]
    assert (first["run"], str(first["uid"])[0], first["sample_rate"]) == ("r", "e", 0.5)
    assert json.loads(str(first["request"]))["options"] == {"normalize": "group_std"}
    assert {each["id"] for each in read(folder, service="tools")} <= {*map(request_id, answers)}


def test_a_folder_that_cannot_be_used_stops_the_service(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["serve", "tools", "--port", "0", "--score-log", str(tmp_path / "file")]) == 2
    assert "--score-log" in capsys.readouterr().err


async def test_a_client_keeps_what_it_scored_and_its_run(folder: Path):
    with service_at("video") as url:
        async with RewardFleet(video=url, score_log=folder, run="mine") as fleet:
            await fleet.video.score("a task", FRAMES, step=2)
            with pytest.raises(Exception, match="video-root"):
                await fleet.video.score("a task", "/none.mp4")
    good, bad = read(folder)
    assert (good["run"], good["step"], good["status"]) == ("mine", 2, "ok")
    assert good["frames"] and good["id"] == request_id(video_request("a task", FRAMES))
    assert (bad["run"], bad["error_kind"], bad["score"]) == ("mine", "forbidden", None)


# Commands


@pytest.fixture(scope="module")
def tools() -> Iterator[str]:
    with service_at("tools") as url:
        yield url


def logged(folder: Path, tools: str) -> None:
    """Keep two groups of two answers."""
    with blocking.RewardFleet(tools=tools, score_log=folder) as fleet:
        for step in range(2):
            texts = [TRUTH, f"\x1b[31m {step}"]
            answers = [tools_request(each, TRUTH, step=step, uid=each[-9:]) for each in texts]
            fleet.tools.score_batch(answers)


def test_the_commands_list_count_and_escape_control_characters(folder: Path, tools: str, capsys):
    logged(folder, tools)
    assert main(["log", "list", str(folder), "--where", "score < 0"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and shown.count("\\x1b[31m") == 2
    assert main(["log", "list", str(folder), "--json", "--where", "step = 1", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["service"] == "tools"
    assert main(["log", "count", str(folder), "--by", "step"]) == 0
    assert capsys.readouterr().out.split()[-8:] == ["0", "2", "0.5", "1", "1", "2", "0.5", "1"]
    assert main(["log", "list", str(folder), "--run", "none"]) == 1
    assert main(["log", "list", str(folder), "--where", "score <"]) == 2
    assert main(["log", "list", str(folder.parent)]) == 2
    assert "no score log" in capsys.readouterr().err


def test_a_log_is_scored_again_and_what_changes_is_shown(
    folder: Path, tools: str, tmp_path, capsys
):
    logged(folder, tools)
    replay = ["score", "replay", str(folder), "--url", tools]

    def run(output: str, *more: str) -> int:
        return main([*replay, "-o", str(tmp_path / output), *more])

    assert run("same", "--fail-if-changed", "0%") == 0
    assert "4 records: 0 rewards changed (0.00%)" in capsys.readouterr().out
    other = "ground_truth=<response>a</response>"
    assert run("other", "--set", other, "--fail-if-changed", "0.5%") == 1
    assert run("bad", "--set", "options.none=1") == 2
    assert "unknown field 'options.none'" in capsys.readouterr().err
    assert run("limit", "--threshold", "-5", "--threshold-before", "0", "--fail-if-changed", "49%")
    lines = [*map(json.loads, (tmp_path / "limit" / "changes.jsonl").read_text().splitlines())]
    assert len(lines) == 4
    changed = next(each for each in lines if each["changed"])
    assert (changed["reward_before"], changed["reward_after"]) == (0, 1)
    assert changed["advantage_before"] == pytest.approx(-0.7071, abs=1e-3)
    assert (changed["advantage_after"], changed["group_reward_before"]) == (0, 0.5)
    assert run("refused", "--fail-if-changed", "2") == 2
