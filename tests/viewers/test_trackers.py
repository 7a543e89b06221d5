"""Tables of samples in the trackers of training runs, read back with their own libraries."""

import base64
import io
import re
import threading
from pathlib import Path

import pytest
from PIL import Image

from rewardfleet import SampleTables

from .conftest import NASTY, score_step
from .wandb_file import history_of, rows_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trackers

#: With two rows of each kind: the uid of each row, its kinds, and its score.
KINDS = {"3": "suspicious", "0": "worst", "1": "worst", "7": "best", "6": "best"}
ROWS = [(uid, kind, int(uid) / 8) for uid, kind in KINDS.items()] + [("8", "missing", None)]


@pytest.fixture
def tables():
    yield (tables := SampleTables(2))
    tables.close()
    assert not any(tables.dropped.values()), tables.dropped


def shown(rows: list[dict]) -> list[tuple]:
    return [(row["uid"], row["kind"], row["score"]) for row in rows]


def pictures_of(page: str) -> list[tuple[int, int]]:
    """Return the sizes of the pictures in a page."""
    encoded = re.findall('<img src="data:image/jpeg;base64,(.*?)">', page)
    return [Image.open(io.BytesIO(base64.b64decode(each))).size for each in encoded]


def test_wandb_has_a_table_per_step_and_all_steps_of_the_trainer(tables, tmp_path, monkeypatch):
    """The trainer names its steps, and logs every second one."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    run = wandb.init(mode="offline", dir=tmp_path, settings={"console": "off"})
    for step in range(4):
        score_step(tables, step)
        tables.close()
        if step % 2:
            run.log({"loss": step}, step=step)
    run.finish()
    wandb.teardown()  # ends the process that writes the file
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = history_of(file)
    assert [each.get("loss") for each in history] == [None, 1, 3]
    for logged, steps in zip(history[:2], [(0, 1), (2, 3)], strict=True):
        rows = rows_of(file, logged["rewardfleet/code"])
        for step in steps:
            of_step = [row for row in rows if row["step"] == step]
            assert shown(of_step) == ROWS
            assert of_step[0]["suspicions"] == "It reads the tests."
            assert NASTY[:20] in of_step[0]["output"] and '"stdin": "1"' in of_step[0]["task"]
            assert of_step[-1]["explanation"].count("no sandbox") == 1
    for each in history[:2]:
        path = each["rewardfleet/video_page"]["path"]
        text = Path(file.parent, "files", path).read_text()
        assert pictures_of(text) == [(4 * 64, 64)] * 2 and "<script" not in text


def test_mlflow_has_a_page_per_step_though_the_run_began_in_another_thread(
    tables, tmp_path: Path, monkeypatch
):
    mlflow = pytest.importorskip("mlflow")
    for name in ("ALLOW_FILE_STORE", "DISABLE_TELEMETRY"):
        monkeypatch.setenv(f"MLFLOW_{name}", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        thread = threading.Thread(target=lambda: [score_step(tables, step) for step in (0, 12)])
        thread.start()
        thread.join()
        tables.close()
    client = mlflow.MlflowClient()
    paths = [each.path for each in client.list_artifacts(run.info.run_id, "rewardfleet/code")]
    assert [Path(path).name for path in paths] == ["step-000000.html", "step-000012.html"]
    page = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{paths[1]}")
    assert page.count("<tr>") == 1 + len(ROWS) and "<script" not in page
    assert "&lt;script&gt;" in page and "<pre>missing</pre>" in page
    path = f"{run.info.artifact_uri}/rewardfleet/video/step-000012.html"
    video = mlflow.artifacts.load_text(path)
    assert pictures_of(video) == [(4 * 64, 64)]
