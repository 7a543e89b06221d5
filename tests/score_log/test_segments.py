"""The files of a score log: what is written, read and deleted, also by several processes."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardfleet import CodeScore, code_request
from rewardfleet.score_log import Scored, ScoreLog, queue, writer
from rewardfleet.score_log.deleting import delete_run
from rewardfleet.score_log.reading import Filters, open_log, select
from rewardfleet.score_log.rewrite import rewrite
from rewardfleet.score_log.segments import enforce_limits, open_segments, reading, segments
from rewardfleet.wire.digest import request_id
from rewardfleet_server.testing import wait_until

TESTS = {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}
SCORE = CodeScore(score=1.0, status="ok", backend="jail", components={"pass_rate": 1.0})
#: Writes records until it is killed, and prints how many are in files.
WRITER = """
import sys, time
from rewardfleet import CodeScore, code_request
from rewardfleet.score_log import ScoreLog, Scored, writer
writer._SEGMENT_BYTES, writer._LOOK_SECONDS = 60_000, 0.0
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


def test_a_record_is_the_same_in_an_open_segment_and_in_a_parquet_file(tmp_path):
    nasty = "print('\x1b[31m \u202e 中')\n"
    written(tmp_path, scored(nasty, run="a\x00b", step=3, uid="\x07"))
    [line] = read(tmp_path)
    rewrite(*open_segments(tmp_path))
    [row] = read(tmp_path)
    assert [path.suffix for path in segments(tmp_path)] == [".parquet"]
    assert row.pop("source") != line.pop("source")
    assert row == line
    assert row["id"] == request_id(code_request(nasty, TESTS))
    assert (row["run"], row["step"], row["uid"], row["call"]) == ("a\x00b", 3, "\x07", "call-1")
    assert json.loads(str(row["request"]))["revision"] == nasty
    assert (row["score"], row["components"]) == (1.0, {"pass_rate": 1.0})


def test_only_the_owner_can_read_a_log_and_nobody_else_may_write_to_its_folder(tmp_path):
    written(tmp_path / "log", scored())
    rewrite(*open_segments(tmp_path / "log"))
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
    """Two processes write to one folder, rotating and rewriting all the time."""
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, run], stdout=subprocess.PIPE)
        for run in ("a", "b")
    ]
    least = {}
    for process, run in zip(processes, "ab", strict=True):
        while (count := int(process.stdout.readline())) < 150:
            pass
        least[run] = count
    for process in processes:
        process.kill()
        process.communicate()
    for run in "ab":
        records = read(tmp_path, run=run)
        uids = {int(str(each["uid"])) for each in records}
        assert len(records) >= least[run] and uids == set(range(len(uids)))
    # The next process rewrites what the killed ones have left.
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored(run="c")])
    wait_until(lambda: len(open_segments(tmp_path)) == 1, 150)
    log.close()
    assert {"a", "b", "c"} == {each["run"] for each in read(tmp_path)}


def test_an_incomplete_line_is_left_out(tmp_path):
    written(tmp_path, scored(uid="1"), scored(uid="2"))
    [path] = segments(tmp_path)
    os.truncate(path, path.stat().st_size - 20)
    assert [each["uid"] for each in read(tmp_path)] == ["1"]
    rewrite(path)
    assert [each["uid"] for each in read(tmp_path)] == ["1"]


def test_a_strip_that_is_damaged_costs_its_pictures_only(tmp_path):
    written(tmp_path, scored(uid="1"), scored(uid="2"))
    [path] = segments(tmp_path)
    first, second = map(json.loads, path.read_text().splitlines())
    first["frames"] = "***"
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    for _ in range(2):
        assert [(each["uid"], each["frames"]) for each in read(tmp_path)] == [
            ("1", None),
            ("2", None),
        ]
        rewrite(path)


def test_a_segment_whose_rewriting_was_killed_counts_once(tmp_path):
    written(tmp_path, scored())
    [path] = segments(tmp_path)
    content = path.read_bytes()
    rewrite(path)
    path.write_bytes(content)
    assert len(read(tmp_path)) == 1
    rewrite(path)
    assert not path.exists() and len(read(tmp_path)) == 1


def test_the_oldest_segments_are_deleted_by_bytes_and_by_age(tmp_path):
    for run in ("old", "new"):
        written(tmp_path, scored(run=run))
    _, newest = segments(tmp_path)
    enforce_limits(tmp_path, newest.stat().st_size, 3600)
    assert segments(tmp_path) == [newest]
    os.utime(newest, (time.time() + 1e6,) * 2)  # a clock that went back
    enforce_limits(tmp_path, 10**9, 3600)
    assert segments(tmp_path) == [newest]
    os.utime(newest, (time.time() - 7200,) * 2)
    enforce_limits(tmp_path, 10**9, 3600)
    assert not segments(tmp_path)


YEAR = 365 * 86_400.0


@pytest.fixture
def set_clock(monkeypatch) -> Callable[[float], None]:
    """Set the clock of this process to some seconds after the time that it is."""
    right = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: right() + seconds)


def test_segments_keep_their_order_when_the_clock_is_set(tmp_path, set_clock):
    (tmp_path / "other.jsonl").touch()  # of somebody else; it has no time
    for number, years in enumerate((0, -50, 7, -1, 0)):
        set_clock(years * YEAR)
        written(tmp_path, scored(uid=str(number)))
    *_, newest = found = [path for path in segments(tmp_path) if path.stat().st_size]
    uids = [json.loads(path.read_text())["uid"] for path in found]
    assert uids == [each["uid"] for each in read(tmp_path)] == [*"01234"]
    enforce_limits(tmp_path, newest.stat().st_size, None)
    assert [each["uid"] for each in read(tmp_path)] == ["4"]


def test_what_was_written_while_the_clock_was_wrong_is_not_too_old(tmp_path):
    now = time.time()
    for run, written_at in {"a": now - 3600, "1970": 0.0, "b": now, "2100": now + 1e9}.items():
        written(tmp_path, scored(run=run))
        os.utime(segments(tmp_path)[-1], (written_at,) * 2)
    enforce_limits(tmp_path, 10**9, 86_400)
    assert len(segments(tmp_path)) == 4
    enforce_limits(tmp_path, 10**9, 3000)
    assert {each["run"] for each in read(tmp_path)} == {"b", "2100"}


def test_nothing_is_deleted_by_age_before_the_clock_was_right_for_an_hour(
    tmp_path, monkeypatch, set_clock
):
    monkeypatch.setattr(writer, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(writer, "_CLOCK_RIGHT", 0.0)
    written(tmp_path, scored(uid="1"))
    log = ScoreLog(tmp_path, max_days=1)
    log.add(lambda: [scored(uid="2")])
    wait_until(lambda: log.written == 1 and [*tmp_path.glob("*.parquet")])
    monkeypatch.setattr(writer, "_CLOCK_RIGHT", 3600.0)
    for uid, years in (("3", 10), ("4", -10), ("5", 0)):
        set_clock(years * YEAR)
        log.add(lambda uid=uid: [scored(uid=uid)])
        looks = log._next_look
        wait_until(lambda looks=looks: log._next_look > looks + 0.5)
    assert [each["uid"] for each in read(tmp_path)] == ["1", "2", "3", "4", "5"]
    set_clock(10 * YEAR)
    monkeypatch.setattr(writer, "_CLOCK_RIGHT", 0.0)
    log._clock_is_right_at = 0.0  # an hour later
    wait_until(lambda: not [*tmp_path.glob("*.parquet")])
    log.close()
    assert [each["uid"] for each in read(tmp_path)] == ["2", "3", "4", "5"]


def test_a_run_is_deleted_while_a_process_writes_the_log(tmp_path):
    written(tmp_path, scored(run="a"), scored(run="b"))
    rewrite(*open_segments(tmp_path))
    written(tmp_path, scored(run="a"), scored(run="a"))
    log = ScoreLog(tmp_path)
    log.add(lambda: [scored(run="a"), scored(run="c")], items=2)
    wait_until(lambda: log.written == 2)
    deleted = delete_run(tmp_path, "a")
    assert (deleted.records, deleted.left) == (4, {})
    assert sorted(str(each["run"]) for each in read(tmp_path)) == ["b", "c"]
    log.add(lambda: [scored(run="d")])
    log.close()
    assert {each["run"] for each in read(tmp_path)} == {"b", "c", "d"}


def test_deleting_says_which_segments_may_have_more(tmp_path, monkeypatch):
    monkeypatch.setattr("rewardfleet.score_log.deleting._WAIT_SECONDS", 0.0)
    written(tmp_path, scored(run="a"))
    with reading(tmp_path):
        deleted = delete_run(tmp_path, "a")
    assert (deleted.records, [*deleted.left.values()]) == (0, ["another command reads it"])


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
    log.add(lambda: [scored(uid="good", score={**dict(SCORE), "backend": "\ud800"})])
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
