"""Copies of the score logs of running services: who may read them, and what they follow."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from rewardfleet import blocking, tools_request
from rewardfleet.score_log.copying import LogCopies
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.score_log.segments import delete_run
from rewardfleet_server.testing import serving, wait_until
from rewardfleet_server.tools.app import create_app
from rewardfleet_server.tools.settings import ToolsSettings

from ..conftest import table
from .test_segments import OLD

TRUTH = "<response>42</response>"
KEY = "the key of the log"


@pytest.fixture
def settings(tmp_path) -> ToolsSettings:
    (tmp_path / "keys").write_text("an-api-key\n")
    (tmp_path / "log-keys").write_text(f"# for people\n{KEY}\n")
    return ToolsSettings(
        api_key_file=tmp_path / "keys",
        score_log=tmp_path / "log",
        score_log_sample=1,
        score_log_key_file=tmp_path / "log-keys",
    )


def score(url: str, *answers: str, run: str | None = None) -> None:
    with blocking.RewardFleet(tools=url, api_key="an-api-key") as fleet:
        if run is not None:
            fleet.tools.put_budget(run)
        fleet.tools.score_batch([tools_request(e, TRUTH, uid=e, run=run) for e in answers])


def uids(folder: Path) -> list[str]:
    with open_log([folder]) as log:
        return sorted(str(each["uid"]) for each in select(log, Filters()))


@pytest.fixture
def copies_of(tmp_path) -> Iterator[Callable[..., LogCopies]]:
    """Return copies of the log of a service."""
    with ExitStack() as stack:

        def copies_of(url: str, key: str = KEY) -> LogCopies:
            copies = LogCopies("the fleet", [url], key, tmp_path / "copies")
            return stack.enter_context(closing(copies))

        yield copies_of


def test_copies_follow_a_log_over_deletion_and_a_restart(settings: ToolsSettings, copies_of):
    log = settings.score_log
    assert log is not None
    with serving(create_app(settings)) as url:
        copies = copies_of(url)

        def has(*expected: str) -> bool:
            copies.update()
            return uids(copies.folder) == sorted(expected)

        copies.update()
        assert (uids(copies.folder), copies.problems()) == ([], [])
        score(url, "a", "b")
        wait_until(lambda: has("a", "b"), 60)
        score(url, "ü" * 5)
        wait_until(lambda: has("a", "b", "ü" * 5), 60)
    copies.update()
    [problem] = copies.problems()
    assert url in problem and "no answer" in problem
    assert uids(copies.folder) == ["a", "b", "ü" * 5]
    shutil.copy(OLD.with_suffix(".parquet"), log)
    with serving(create_app(settings)) as url:
        copies = copies_of(url)
        wait_until(lambda: has("a", "b", "ü" * 5, "\x07", "z"), 60)
        delete_run(log, "old")
        delete_run(log, "a\x00b")
        wait_until(lambda: has("a", "b", "ü" * 5), 60)
        score(url, "c", run="r")
        wait_until(lambda: has("a", "b", "c", "ü" * 5), 60)
        delete_run(log, "r")
        wait_until(lambda: has("a", "b", "ü" * 5), 60)


@pytest.mark.parametrize("key", ["an-api-key", "wrong"])
def test_keys_of_callers_do_not_open_the_log(settings: ToolsSettings, copies_of, key: str):
    with serving(create_app(settings)) as url:
        score(url, "a")
        copies = copies_of(url, key)
        copies.update()
        assert "--score-log-key-file" in copies.failures[url]
        assert uids(copies.folder) == []
        assert httpx.get(f"{url}/score-log", trust_env=False).status_code == 401
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"response": "a", "ground_truth": TRUTH}
        answer = httpx.post(f"{url}/score", json=body, headers=headers, trust_env=False)
        assert answer.status_code == 401  # nor does a key of the log score


def test_a_log_is_not_shown_unless_it_is_asked_for(settings: ToolsSettings, copies_of):
    plain = settings.model_copy(update={"score_log_key_file": None})
    with serving(create_app(plain)) as url:
        copies = copies_of(url)
        copies.update()
    assert "start it with --score-log FOLDER and --set score_log_key_file" in copies.failures[url]


def test_an_api_key_in_the_key_file_of_the_log_stops_the_start(settings: ToolsSettings, tmp_path):
    (tmp_path / "log-keys").write_text(f"{KEY}\nan-api-key\n")
    with pytest.raises(ValueError, match="score_log_key_file .* an API key is in it"):
        create_app(settings)
    with pytest.raises(ValueError, match="give --score-log FOLDER"):
        ToolsSettings(score_log_key_file=tmp_path / "keys")


def test_nothing_but_segments_is_read(settings: ToolsSettings, tmp_path):
    log = settings.score_log
    assert log is not None
    name = "20260101T000000-1-00000000.jsonl"
    with (
        serving(create_app(settings)) as url,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        (log / name).symlink_to(tmp_path / "keys")
        (log / name.replace("-1-", "-2-")).mkdir()
        (log / "notes.jsonl").write_text("{}")
        assert client.get("/score-log").json()["segments"] == []
        wrong = ("notes.jsonl", "..%2Fkeys", ".lock", "x" * 999)
        for path in (name, name.replace("-1-", "-2-"), *wrong):
            answer = client.get(f"/score-log/{path}")
            assert answer.status_code == 404 and "an-api-key" not in answer.text
        (log / name).unlink()
        (log / name).write_text('{"id": 1}\n')
        assert client.get("/score-log").json()["segments"] == [{"name": name, "size": 10}]
        for offset, expected in {"2": 'id": 1}\n', "10": ""}.items():
            assert client.get(f"/score-log/{name}", params={"offset": offset}).text == expected
        assert client.get(f"/score-log/{name}", params={"offset": "11"}).status_code == 404
        for offset in ("-1", "x", "9" * 99, "²"):
            answer = client.get(f"/score-log/{name}", params={"offset": offset})
            assert answer.status_code == 422 and "offset" in answer.json()["detail"]
        assert client.post("/score-log").status_code == 405


@pytest.fixture
def hostile() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server of another's, and what it answers by path."""
    answers: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.get(self.path.partition("?")[0], b"x" * 5_000_000))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", answers
        server.shutdown()


@pytest.mark.parametrize(("segment", "expected"), table("foreign_segments"))
def test_a_server_writes_segments_only(hostile, copies_of, tmp_path, segment, expected):
    url, answers = hostile
    listed = {"name": segment, "size": 9}
    answers["/score-log"] = json.dumps({"log": "0" * 32, "segments": [listed]}).encode()
    copies = copies_of(url)
    copies.update()
    assert expected in copies.failures[url]
    assert {path.name for path in tmp_path.iterdir()} == {"copies"}


def test_the_newest_segments_are_copied_if_all_are_too_large(hostile, copies_of, monkeypatch):
    monkeypatch.setattr("rewardfleet.score_log.copying._MAX_BYTES", 25)
    url, answers = hostile
    names = [f"2026010{day}T000000-1-00000000.jsonl" for day in range(1, 4)]
    segments = [{"name": name, "size": 10} for name in names]
    answers["/score-log"] = json.dumps({"log": "0" * 32, "segments": segments}).encode()
    answers |= {f"/score-log/{name}": b"0123456789" for name in names}
    copies = copies_of(url)
    copies.update()
    assert [path.name for path in sorted(copies.folder.glob("*.jsonl"))] == names[1:]
    assert copies.problems() == ["the fleet: the 1 oldest files of the log are left out"]
