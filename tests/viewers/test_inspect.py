"""`rewardfleet log export --inspect`: read by Inspect, and shown by its viewer in Chromium."""

import base64
import dataclasses
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from rewardfleet import Unavailable, VideoScore
from rewardfleet.commands.main import main
from rewardfleet.score_log import Scored
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.wire.score import Score

from ..running import running
from ..server.look.conftest import ATTACKS, scored_items, write_log

inspect = pytest.importorskip("inspect_ai.log")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Inspect

CHROMIUM = shutil.which("chromium")


def with_missing_scores() -> list[Scored]:
    """Return scores of each service, an abstention, an error, and a request scored twice."""
    items, nothing = scored_items("a plum"), {"score": None, "status": "abstained"}
    abstained = VideoScore(**nothing, backend="reference", cause="no_verdict", model_output="Hm.")
    failed = Score(score=None, status="error", error=Unavailable("no GPU is left").problem())
    more = enumerate([items[0].score, abstained, failed], 2000)
    return items + [dataclasses.replace(items[0], time=float(at), score=each) for at, each in more]


def test_inspect_reads_what_the_log_has(tmp_path: Path, capsys):
    folder, out = tmp_path / "log", tmp_path / "out"
    write_log(folder, with_missing_scores())
    for _ in range(2):  # the second time, the same files
        assert main(["log", "export", str(folder), "--inspect", str(out)]) == 0
        assert "9 samples in 6 logs" in capsys.readouterr().out
        assert [path.stat().st_mode & 0o777 for path in out.iterdir()] == [0o600] * 6
    found = inspect.list_eval_logs(str(out))
    logs = [inspect.read_eval_log(each, resolve_attachments=True) for each in found]
    samples = [each for log in logs for each in log.samples]
    with open_log([folder]) as connection:
        records = select(connection, Filters())
    labels = ("id", "run", "step", "uid", "status", "cause")
    shown = [[*map(each.metadata.get, labels), reward(each)] for each in samples]
    kept = [[*map(each.get, labels), each["score"]] for each in records]
    assert sorted(map(str, shown)) == sorted(map(str, kept))
    names = {(log.eval.task_id, each.id, each.epoch) for log in logs for each in log.samples}
    assert len(names) == 9
    (judged,) = (log for log in logs if log.eval.model == "reference")
    scored, again, abstained = judged.samples
    assert (scored.id, scored.epoch, again.epoch) == (again.id, 1, 2)
    task, picture = scored.input[0].content
    assert (task.text, scored.output.completion) == ("put a plum away", "It saw a plum")
    strip = base64.b64decode(picture.image.removeprefix("data:image/jpeg;base64,"))
    assert strip == records[0]["frames"]
    assert abstained.scores["reward"].reason == "no_verdict"
    result = judged.results.scores[0]
    assert (result.metrics["mean"].value, result.unscored_samples) == (0.25, 1)
    (failed,) = (each for each in samples if each.error is not None)
    assert failed.scores is None and "no GPU is left" in failed.error.message
    (ran,) = (each for each in samples if each.scores and each.scores["reward"].answer)
    assert ran.scores["reward"].answer == "```\nprint('a plum')\n```"
    assert "Test 1 failed first: wrong_answer" in ran.scores["reward"].explanation
    assert '"stdin": "a plum"' in ran.input[0].content[0].text


def reward(sample) -> float | None:
    """Return the reward of a sample; None if it is missing, of which Inspect has two kinds."""
    value = math.nan if sample.scores is None else sample.scores["reward"].value
    return None if math.isnan(value) else value


def test_without_records_nothing_is_written(tmp_path: Path, capsys):
    write_log(tmp_path / "log", with_missing_scores())
    given = ["log", "export", str(tmp_path / "log"), "--inspect", str(tmp_path / "out")]
    assert main([*given, "--run", "another"]) == 1
    assert list((tmp_path / "out").iterdir()) == []
    assert main([*given, "--where", "scor < 1"]) == 2
    assert 'column "scor" not found' in capsys.readouterr().err


@contextmanager
def viewer(folder: Path, port: int) -> Iterator[str]:
    """Serve logs by `inspect view`; give its base URL."""
    program, url = Path(sys.executable).with_name("inspect"), f"http://127.0.0.1:{port}"
    with running([program, "view", "start", "--log-dir", folder, "--port", port], url, cwd=folder):
        yield url


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="`make test-viewers` installs Chromium")
def test_the_viewer_shows_samples_and_runs_nothing_of_them(tmp_path: Path, unused_tcp_port: int):
    playwright = pytest.importorskip("playwright.sync_api")
    items = [*with_missing_scores(), *(item for each in ATTACKS for item in scored_items(each))]
    items = [each for each in items if each.service in {"code", "video"}]
    requests = [each.request.model_copy(update={"run": "grpo"}) for each in items]
    pairs = zip(items, requests, strict=True)
    write_log(tmp_path / "log", [dataclasses.replace(each, request=r) for each, r in pairs])
    assert main(["log", "export", str(tmp_path / "log"), "--inspect", str(tmp_path / "out")]) == 0
    samples = []
    for path in (tmp_path / "out").iterdir():
        log = inspect.read_eval_log(str(path))
        samples += [(log.eval.model, each.id, each.epoch, path.name) for each in log.samples]
    foreign, happened = [], []
    with viewer(tmp_path / "out", unused_tcp_port) as url, playwright.sync_playwright() as runtime:
        browser = runtime.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda each: each.url.startswith(url) or foreign.append(each.url))
        page.on("dialog", lambda each: (happened.append(each.message), each.dismiss()))
        page.on("pageerror", lambda each: happened.append(str(each)))
        page.goto(url)
        page.get_by_text("video-grpo").first.wait_for()
        for _, number, epoch, name in samples[::5]:
            page.goto(f"{url}/#/tasks/{quote(name)}/samples/sample/{number}/{epoch}/")
            page.get_by_text(number).first.wait_for()
        (shown,) = (each for each in samples if each[0] == "reference" and each[2] == 2)
        page.goto(f"{url}/#/tasks/{quote(shown[3])}/samples/sample/{shown[1]}/2/")
        page.get_by_text("It saw a plum").first.wait_for()
        page.get_by_text("0.25").first.wait_for()
        picture = page.locator("img[src^='data:image/jpeg']")
        playwright.expect(picture).to_have_js_property("naturalWidth", 320)
        page.screenshot(path=tmp_path / "viewer.png")
        browser.close()
    assert (foreign, happened) == ([], [])
