"""The files of a score log: what is written, read and deleted, also by several processes."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rewardfleet import CodeScore, code_request
from rewardfleet.score_log import Scored, ScoreLog, queue
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.score_log.segments import delete_run, enforce_limits, locked, segments
from rewardfleet.wire.digest import request_id
from rewardfleet_server.testing import wait_until

from ..conftest import DATA

TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
SCORE = CodeScore(score=1.0, status="ok", backend="jail", components={"pass_rate": 1.0})
#: A segment of an earlier version, before and after it was rewritten.
OLD = DATA / "score_log" / "20231114T221320000000-1-0000000a"
#: Writes records until it is killed, and prints how many are in files.
WRITER = """
import sys, time
from rewardfleet import CodeScore, code_request
from rewardfleet.score_log import ScoreLog, Scored, writer
writer._SEGMENT_BYTES = 60_000
log = ScoreLog(sys.argv[1])
score = CodeScore(score=1.0, status="ok", backend="jail")
tests = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
for number in range(10**6):
    request = code_request(f"print({number})", tests, run=sys.argv[2], uid=str(number))
    log.add(lambda request=request: [Scored("code", time.time(), request, score)])
    time.sleep(0.001)
    if number % 50 == 0:
        print(log.written, flush=True)
"""


def scored(revision: str = "print(1)", score: CodeScore = SCORE, **labels: object) -> Scored:
    return Scored("code", time.time(), code_request(revision, TESTS, **labels), score, "call-1")


def written(folder: Path, *items: Scored) -> ScoreLog:
    """Return a closed log with items."""
    log = ScoreLog(folder)
    for each in items:
        log.add(lambda each=each: [each])
    log.close()
    assert log.written == len(items), log.dropped
    return log


def read(*folders: Path, **filters: object) -> list[dict[str, object]]:
    with open_log(folders) as connection:
        return select(connection, Filters(**filters), order="uid")


def test_logs_of_earlier_versions_are_read(tmp_path):
    """Whose segments are JSON lines, Parquet files, or both if a process was killed."""
    found = []
    for number, suffixes in enumerate(([".jsonl"], [".parquet"], [".jsonl", ".parquet"])):
        (folder := tmp_path / str(number)).mkdir()
        for suffix in suffixes:
            shutil.copy(OLD.with_suffix(suffix), folder)
        found.append(read(folder))
        sources = {each.pop("source") for each in found[-1]}
        assert sources == {f"{folder / OLD.name}{suffixes[-1]}"} and found[-1] == found[0]
    nasty, clip = found[0]
    assert (nasty["run"], nasty["step"], nasty["uid"]) == ("a\x00b", 3, "\x07")
    revision = "print('\x1b[31m \u202e 中')\n"
    assert json.loads(nasty["request"])["revision"] == revision
    assert nasty["id"] == request_id(code_request(revision, TESTS))
    assert (nasty["call"], nasty["components"]) == ("call-1", {"pass_rate": 1.0})
    assert clip["frames"].startswith(b"\xff\xd8")  # type: ignore[attr-defined] # bytes


def test_only_the_owner_can_read_a_log_and_nobody_else_may_write_to_its_folder(tmp_path):
    written(tmp_path / "log", scored())
    delete_run(tmp_path / "log", "none")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "log").iterdir()}
    assert modes == {0o600} and stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(ValueError, match="other users may write to this folder"):
        ScoreLog(tmp_path / "shared")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="no folder for a score log"):
        ScoreLog(tmp_path / "file")


@pytest.mark.slow
def test_killed_writers_lose_a_second_at_most_and_no_file_is_unreadable(tmp_path):
    """Two processes write to one folder, and begin new segments all the time."""
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, run], stdout=subprocess.PIPE)
        for run in ("a", "b")
    ]
    least = {}
    for process, run in zip(processes, "ab", strict=True):
        while (count := int(process.stdout.readline())) < 150 or len(segments(tmp_path)) < 3:
            pass
        least[run] = count
    for process in processes:
        process.kill()
        process.communicate()
    for run in "ab":
        records = read(tmp_path, run=run)
        uids = {int(str(each["uid"])) for each in records}
        assert len(records) >= least[run] and uids == set(range(len(uids)))
    assert len(segments(tmp_path)) > 2  # which were begun one after another
    assert delete_run(tmp_path, "a") >= least["a"]
    assert {"b"} == {each["run"] for each in read(tmp_path)}


def test_an_incomplete_line_is_left_out_and_a_damaged_strip_costs_its_pictures_only(tmp_path):
    written(tmp_path, scored(uid="1"), scored(uid="2"))
    [path] = segments(tmp_path)
    path.write_text(path.read_text().replace('"frames":null', '"frames":"***"', 1))
    assert [(each["uid"], each["frames"]) for each in read(tmp_path)] == [("1", None), ("2", None)]
    os.truncate(path, path.stat().st_size - 20)
    assert [each["uid"] for each in read(tmp_path)] == ["1"]


def test_the_oldest_segments_are_deleted_by_bytes_and_by_age(tmp_path):
    for run in ("old", "new"):
        written(tmp_path, scored(run=run))
    _, newest = segments(tmp_path)
    enforce_limits(tmp_path, newest.stat().st_size, 3600)
    assert segments(tmp_path) == [newest]
    os.utime(newest, (time.time() + 1e6,) * 2)  # a clock that went back
    (tmp_path / "labels.jsonl").touch()  # no segment
    enforce_limits(tmp_path, 10**9, 3600)
    assert segments(tmp_path) == [newest]
    os.utime(newest, (time.time() - 7200,) * 2)
    with locked(newest):  # a process writes to it now
        enforce_limits(tmp_path, 10**9, 3600)
    assert segments(tmp_path) == [newest]
    enforce_limits(tmp_path, 10**9, 3600)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.jsonl"]


def test_a_run_is_deleted_while_a_process_writes_the_log(tmp_path):
    shutil.copy(OLD.with_suffix(".parquet"), tmp_path)
    written(tmp_path, scored(run="old"), scored(run="b"))
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored(run="old"), scored(run="c")], items=2)
    wait_until(lambda: log.written == 2)
    before = {*segments(tmp_path)}
    (tmp_path / ".20231114T221320000000-1-0000000a.jsonl.new").touch()  # of a killed command
    assert delete_run(tmp_path, "none") == 0 and {*segments(tmp_path)} == before
    assert delete_run(tmp_path, "old") == 3
    assert sorted(str(each["run"]) for each in read(tmp_path)) == ["a\x00b", "b", "c"]
    assert {*tmp_path.iterdir()} == {*segments(tmp_path)}
    assert not before & {*segments(tmp_path)}  # a name stands for content that only grows
    log.add(lambda: [scored(run="d")])
    log.close()
    assert {each["run"] for each in read(tmp_path)} == {"a\x00b", "b", "c", "d"}


def test_deleting_says_that_a_process_holds_a_segment(tmp_path, monkeypatch):
    monkeypatch.setattr("rewardfleet.score_log.segments._WAIT_SECONDS", 0.0)
    for run in "aba":
        written(tmp_path, scored(run=run))
    first, *_ = segments(tmp_path)
    for path, count in ((tmp_path, 0), (first, 1)):
        with locked(path), pytest.raises(ValueError, match=rf"hold {path.name}: {count} records"):
            delete_run(tmp_path, "a")
    assert delete_run(tmp_path, "a") == 1


def test_a_segment_that_another_process_holds_delays_no_record(tmp_path):
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored(uid="1")])
    wait_until(lambda: log.written == 1)
    with locked(*segments(tmp_path)):
        log.add(lambda: [scored(uid="2")])
        wait_until(lambda: log.written == 2)
    log.close()
    assert len(segments(tmp_path)) == 2
    assert [each["uid"] for each in read(tmp_path)] == ["1", "2"]


def test_a_log_stays_where_it_is_if_its_process_changes_the_folder(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    log = ScoreLog("log", max_mb=0)  # each segment is full at once
    log.add(lambda: [scored(uid="1")])
    wait_until(lambda: log.written == 1)
    monkeypatch.chdir("other")
    log.add(lambda: [scored(uid="2")])
    log.close()
    assert (log.written, log.dropped["disk"]) == (2, 0)
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} <= {tmp_path / "log"}


def test_a_full_queue_and_a_full_disk_drop_records_and_count_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(queue, "_MAX_ITEMS", 1)
    log = ScoreLog(tmp_path)
    busy = threading.Event()
    log.add(lambda: [scored(uid=str(busy.wait(60))), scored()], items=2)  # a call alone is taken
    log.add(lambda: [scored()])
    assert log.dropped["queue_full"] == 1
    monkeypatch.setattr("os.write", _disk_that_is_full)
    busy.set()
    wait_until(lambda: log.dropped["disk"] == 2)
    wait_until(lambda: "records are not in the score log" in caplog.text)
    monkeypatch.undo()
    log.add(lambda: [scored(uid="later")])
    log.close()
    assert [each["uid"] for each in read(tmp_path)] == ["later"]


def _disk_that_is_full(fd: int, content: bytes) -> int:
    """Take a part, and then nothing."""
    if len(content) > 100:
        return os.pwrite(fd, content[:-100], os.fstat(fd).st_size)
    raise OSError(28, "No space left on device")


def test_an_item_that_cannot_be_recorded_is_counted_and_the_log_goes_on(tmp_path):
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored("x" * 900_000, CodeScore(score=1, status="ok", code="y" * 2**24))])
    log.add(lambda: 1 / 0)
    log.add(lambda: [scored(uid="good", score={**SCORE.model_dump(), "backend": "\ud800"})])
    log.close()
    assert (log.dropped["too_large"], log.dropped["failed"]) == (1, 1)
    assert [(each["uid"], each["backend"]) for each in read(tmp_path)] == [("good", "?")]


def test_a_forked_process_writes_a_segment_of_its_own(tmp_path):
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored(uid="parent")])
    wait_until(lambda: log.written == 1)
    if not (child := os.fork()):
        log.add(lambda: [scored(uid="child")])
        log.close()
        os.kill(os.getpid(), signal.SIGKILL)  # without the end of pytest
    os.waitpid(child, 0)
    log.add(lambda: [scored(uid="parent again")])
    log.close()
    assert [each["uid"] for each in read(tmp_path)] == ["child", "parent", "parent again"]
    assert len(segments(tmp_path)) == 2
