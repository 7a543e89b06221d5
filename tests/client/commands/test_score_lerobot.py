"""`rewardfleet score video` of LeRobot data sets."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet.commands.main import main
from rewardfleet.wire.video import Curve
from rewardfleet_server.testing import FakeJudge

from ...conftest import DATA, served

CAMERA = "observation.images.top"
#: The frames of the episodes.
LENGTHS = (20, 12, 31)


def data_set(root: Path, version: str, *, rewards: bool = False) -> Path:
    """Copy a data set that LeRobot has written; see tests/data/lerobot."""
    shutil.copytree(DATA / "lerobot" / version, root)
    if rewards:
        path = root / "meta" / "info.json"
        info = json.loads(path.read_text())
        info["features"]["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
        path.write_text(json.dumps(info))
        for part in (root / "data").rglob("*.parquet"):
            table = pq.read_table(part)
            column = pa.array([0.25] * len(table), pa.float32())
            pq.write_table(table.append_column("next.reward", column), part)
    return root


class BrightnessJudge(FakeJudge):
    """Scores the brightness of a clip, which tells the episode, and abstains on the last one."""

    async def judge(self, task, clip, options):
        judgment = await super().judge(task, clip, options)
        level = float(np.mean(clip.frames))
        assert clip.total == LENGTHS[int(task[-1])]
        assert np.ptp([frame.mean() for frame in clip.frames]) < 5, "frames of another episode"
        points = range(0, clip.total, 5)
        curve = Curve(frames=[*points], values=[each / clip.total for each in points])
        return type(judgment)(None if level > 100 else level / 100, "text", curve=curve)


def tables(root: Path) -> dict[str, Any]:
    found = [pq.read_table(path) for path in sorted((root / "data").rglob("*.parquet"))]
    return pa.concat_tables(found).to_pydict()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("rewards", [False, True])
def test_a_data_set_gets_rewards_beside_the_original(tmp_path, version: str, rewards: bool):
    root, out = data_set(tmp_path / "set", version, rewards=rewards), tmp_path / "out"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with served(BrightnessJudge(), video_root=[root]) as client:
        url = ["--url", str(client.base_url)]
        assert main(["score", "video", str(root), *url, "--by-path", "-o", str(out)]) == 1
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    written = tables(out / "lerobot")
    prefix = "judge" if rewards else "next"
    columns = ("episode_index", "frame_index", f"{prefix}.reward", f"{prefix}.success", "progress")
    rows = [*zip(*map(written.get, columns), strict=True)]
    assert [row[:2] for row in rows] == [(e, f) for e, n in enumerate(LENGTHS) for f in range(n)]
    for episode, frame, reward, success, progress in rows:
        is_last = frame == LENGTHS[episode] - 1
        if episode == 2:  # the judge abstained
            assert math.isnan(reward) and success is None
        else:
            assert reward == pytest.approx((0.2 + 0.5 * episode) * is_last, abs=0.03)
            assert success is (is_last and episode == 1)
        last_point = (LENGTHS[episode] - 1) // 5 * 5
        assert progress == pytest.approx(min(frame, last_point) / LENGTHS[episode], abs=1e-6)
    if rewards:
        assert written["next.reward"] == [0.25] * sum(LENGTHS)
    info = json.loads((out / "lerobot" / "meta" / "info.json").read_text())
    assert info["features"][f"{prefix}.success"]["dtype"] == "bool"
    assert list((out / "lerobot" / "videos").rglob("*.mp4"))
    # Statistics leave out NaN, and readers that filter by them would find no missing reward.
    for path in (out / "lerobot" / "data").rglob("*.parquet"):
        file = pq.ParquetFile(path)
        index = file.schema_arrow.names.index(f"{prefix}.reward")
        assert file.metadata.row_group(0).column(index).statistics is None


def test_what_cannot_be_scored_is_named(tmp_path, capsys):
    def said(root: Path, *options: str) -> str:
        assert main(["score", "video", str(root), "--dry-run", *options]) == 2
        return "".join(capsys.readouterr())

    assert "--by-path" in said(data_set(tmp_path / "v3", "v3.0"))  # several episodes in a file
    root = data_set(tmp_path / "v2", "v2.1")
    assert CAMERA in said(root, "--camera", "left")
    path = root / "meta" / "info.json"
    path.write_text(path.read_text().replace("v2.1", "v1.6"))
    assert "v2.1 and v3.0" in said(root)
