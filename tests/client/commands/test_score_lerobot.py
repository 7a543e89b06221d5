"""`rewardfleet score video` of LeRobot data sets."""

import json
import math
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.testing import FakeJudge

from ...conftest import served

CAMERA = "observation.images.top"
#: The frames of the episodes, and the rate.
LENGTHS, FPS = (20, 12, 31), 10


def write_video(path: Path, levels: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "2"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in levels:
            image = np.full((48, 64, 3), level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def write_data_set(root: Path, version: str, *, rewards: bool = False) -> Path:
    """Write a data set with the files and fields that LeRobot's writers write."""
    features = {
        CAMERA: {"dtype": "video", "shape": [48, 64, 3]},
        "action": {"dtype": "float32", "shape": [2]},
        **({"next.reward": {"dtype": "float32", "shape": [1]}} if rewards else {}),
    }
    is_v3 = version == "v3.0"
    names = "{chunk_index:03d}/file-{file_index:03d}" if is_v3 else "{episode_chunk:03d}/%s"
    info = {
        "codebase_version": version, "fps": FPS, "features": features, "chunks_size": 1000,
        "video_path": "videos/{video_key}/chunk-" + names + ".mp4" if is_v3 else
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }  # fmt: skip
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info))
    tables, episodes, start = [], [], 0
    for index, length in enumerate(LENGTHS):
        frames = {
            "episode_index": [index] * length,
            "frame_index": list(range(length)),
            "action": [[0.0, 1.0]] * length,
            **({"next.reward": [0.25] * length} if rewards else {}),
        }
        tables.append(pa.table(frames))
        episodes.append({"episode_index": index, "tasks": [f"task {index}"], "length": length})
        if is_v3:
            episodes[-1] |= {
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": 0,
                f"videos/{CAMERA}/from_timestamp": start / FPS,
                f"videos/{CAMERA}/to_timestamp": (start + length) / FPS,
            }
        else:
            name = f"chunk-000/{CAMERA}/episode_{index:06d}.mp4"
            write_video(root / "videos" / name, [50 * index + 20] * length)
        start += length
    if is_v3:
        levels = [50 * index + 20 for index, length in enumerate(LENGTHS) for _ in range(length)]
        write_video(root / "videos" / CAMERA / "chunk-000" / "file-000.mp4", levels)
        folder = root / "meta" / "episodes" / "chunk-000"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(episodes), folder / "file-000.parquet")
        tables = [pa.concat_tables(tables)]
    else:
        lines = "".join(f"{json.dumps(each)}\n" for each in episodes)
        (root / "meta" / "episodes.jsonl").write_text(lines)
    data = root / "data" / "chunk-000"
    data.mkdir(parents=True)
    for index, table in enumerate(tables):
        pq.write_table(table, data / f"file-{index:03d}.parquet")
    return root


class BrightnessJudge(FakeJudge):
    """Scores the brightness of a clip, which tells the episode, and abstains on the last one."""

    async def judge(self, task, clip, options):
        judgment = await super().judge(task, clip, options)
        level = float(np.mean(clip.frames))
        assert clip.total == LENGTHS[int(task[-1])]
        assert np.ptp([frame.mean() for frame in clip.frames]) < 5, "frames of another episode"
        return type(judgment)(None if level > 100 else level / 100, "text")


def tables(root: Path) -> dict[str, Any]:
    found = [pq.read_table(path) for path in sorted((root / "data").rglob("*.parquet"))]
    return pa.concat_tables(found).to_pydict()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("rewards", [False, True])
def test_a_data_set_gets_rewards_beside_the_original(tmp_path: Path, version: str, rewards: bool):
    root, out = write_data_set(tmp_path / "set", version, rewards=rewards), tmp_path / "out"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with served(BrightnessJudge(), video_root=[root]) as client:
        url = ["--url", str(client.base_url)]
        assert main(["score", "video", str(root), *url, "--by-path", "-o", str(out)]) == 1
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    written = tables(out / "lerobot")
    prefix = "judge" if rewards else "next"
    rows = list(
        zip(
            written["episode_index"], written["frame_index"],
            written[f"{prefix}.reward"], written[f"{prefix}.success"], strict=True,
        )
    )  # fmt: skip
    assert [row[:2] for row in rows] == [(e, f) for e, n in enumerate(LENGTHS) for f in range(n)]
    for episode, frame, reward, success in rows:
        is_last = frame == LENGTHS[episode] - 1
        if episode == 2:  # the judge abstained
            assert math.isnan(reward) and success is None
        else:
            assert reward == pytest.approx((0.2 + 0.5 * episode) * is_last, abs=0.03)
            assert success is (is_last and episode == 1)
    if rewards:
        assert written["next.reward"] == [0.25] * sum(LENGTHS)
    info = json.loads((out / "lerobot" / "meta" / "info.json").read_text())
    assert info["features"][f"{prefix}.success"]["dtype"] == "bool"
    assert list((out / "lerobot" / "videos").rglob("*.mp4"))


def test_a_file_with_several_episodes_is_not_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = write_data_set(tmp_path / "set", "v3.0")
    assert main(["score", "video", str(root), "--dry-run"]) == 2
    assert "--by-path" in capsys.readouterr().out


def test_another_version_and_an_unknown_camera_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = write_data_set(tmp_path / "set", "v2.1")
    assert main(["score", "video", str(root), "--camera", "left", "--dry-run"]) == 2
    assert CAMERA in capsys.readouterr().out
    path = root / "meta" / "info.json"
    path.write_text(path.read_text().replace("v2.1", "v1.6"))
    assert main(["score", "video", str(root), "--dry-run"]) == 2
    assert "v2.1 and v3.0" in capsys.readouterr().err
