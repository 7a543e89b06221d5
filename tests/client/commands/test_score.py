"""`rewardfleet score`: whole data sets, from files to scores, over real HTTP."""

import asyncio
import csv
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardfleet.bulk import output as output_module
from rewardfleet.bulk.output import Output
from rewardfleet.commands.main import main
from rewardfleet.score_log.reading import open_log
from rewardfleet.score_log.record import decoded
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.testing import FakeJudge, wait_until

from ...conftest import image_base64, served
from ...running import output_of
from ...score_log.conftest import service_at

TRUTH = '<think>x</think>\n<tool_call>\n{"name": "search", "parameters": {"q": "a"}}\n</tool_call>'
#: The command, in a process of its own.
COMMAND = [sys.executable, "-m", "rewardfleet"]
RUN = "\nimport sys\nfrom rewardfleet.commands.main import main\nsys.exit(main(sys.argv[1:]))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools() -> Iterator[str]:
    with service_at("tools") as url:
        yield url


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"r{i}", "response": f"{TRUTH} {i}", "ground_truth": TRUTH} for i in range(count)
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_without_a_url_it_is_the_service_that_serve_starts(service: str, capsys):
    assert main(["score", service, "--help"]) == 0
    port = SERVICES[service].settings.load().model_fields["port"].default
    assert f"http://127.0.0.1:{port}]" in capsys.readouterr().out.replace("\n", "")


def write_rows(path: Path, lines: list[Any]) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_text(text)
    return path


def records(folder: Path) -> list[dict[str, Any]]:
    """Read the parts of an output."""
    found: list[dict[str, Any]] = []
    for part in sorted(folder.glob("part-*")):
        if part.suffix == ".jsonl":
            found += map(json.loads, part.read_text().splitlines())
        else:
            found += pq.read_table(part).to_pylist()
    return [*map(decoded, found)]


@pytest.fixture
def score(tools: str, tmp_path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Return the function that scores a table, or rows; it returns the status and the records."""

    def score(
        table: Path | list[Any], *options: str, service: str = "tools", url: str = tools
    ) -> tuple[int, list[dict[str, Any]]]:
        path = table if isinstance(table, Path) else write_rows(tmp_path / "rows.jsonl", table)
        out = tmp_path / "out"
        status = main(["score", service, str(path), "--url", url, "-o", str(out), *options])
        return status, records(out)

    return score


# Inputs


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "saved"])
def test_tables_are_scored_in_order(score, tmp_path, name: str):
    path, table = tmp_path / name, pa.Table.from_pylist(rows(20))
    if name == "saved":  # by `datasets`
        path.mkdir()
        (path / "state.json").write_text("{}")
        with pa.ipc.new_stream(str(path / "data-0.arrow"), table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
    elif name == "rows.parquet":
        pq.write_table(table, path)
    elif name == "rows.csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "response", "ground_truth"])
            writer.writeheader()
            writer.writerows(rows(20))
    else:
        write_rows(path, rows(20))
    status, found = score(path, "--id-column=id")
    assert status == 0 and len({each["id"] for each in found}) == 20
    assert [(each["row"], each["uid"]) for each in found] == [(i, f"r{i}") for i in range(20)]


def test_bad_rows_are_named_and_the_others_are_scored(score, capsys):
    good = rows(1)[0]
    lines = [good, {**good, "id": "b"}, "{broken", "[1]", {"id": "a", "ground_truth": TRUTH},
             {**good, "response": 5, "id": "c"}, good]  # fmt: skip
    status, found = score(lines, "--id-column", "id", "--format", "jsonl")
    assert status == 1
    assert [each["error_kind"] for each in found] == [None] * 2 + ["invalid"] * 5
    details = [each["error_detail"] for each in found]
    reasons = {2: "not JSON", 3: "JSON object", 4: "--completion-column", 6: "twice"}
    assert all(words in details[row] for row, words in reasons.items())
    assert found[2]["place"].endswith("/rows.jsonl:3")
    assert found[2]["place"] in capsys.readouterr().err


def test_what_a_policy_wrote_is_judged_also_if_it_is_nothing_or_native_calls(score):
    lines = [{"response": text, "ground_truth": TRUTH} for text in ("", "\ud800", "[1, 2]")]
    call = {"type": "function", "function": {"name": "search", "arguments": {"q": "a"}}}
    message = {"role": "assistant", "content": "<think>x</think>", "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "search"}}]
    lines += [{"response": [message], "ground_truth": {"ground_truth": TRUTH}, "tools": tools}]
    status, found = score(lines)
    assert (status, [each["score"] for each in found]) == (0, [-3.0, -3.0, -3.0, 4.0])


def test_nothing_that_a_policy_wrote_reaches_a_terminal_as_a_control_character(
    tools: str, tmp_path, capsysbinary
):
    codes = "\x1b[2J \x9b31m \u202e \x07"
    lines = [{"response": codes, "ground_truth": TRUTH, "id": codes}, {"response": codes, codes: 1}]
    path = write_rows(tmp_path / "rows.jsonl", lines)
    for options in ([], ["--dry-run"]):
        main(["score", "tools", str(path), "--url", tools, "--id-column", "id", *options])
        printed = b"".join(capsysbinary.readouterr()).decode()
        assert all(each.isprintable() or each == "\n" for each in printed)


def test_several_completions_of_a_row_are_items_of_their_own(score):
    messages = [{"role": "assistant", "content": TRUTH}]
    lines = [
        {"answers": [TRUTH, "nothing"], "truth": TRUTH},
        {"answers": [messages, messages], "truth": TRUTH},
        {"answers": messages, "truth": TRUTH},
    ]
    _, found = score(lines, "--completion-column", "answers", "--tests-column", "truth")
    assert [each["completion"] for each in found] == [0, 1, 0, 1, None]
    assert [each["score"] == found[0]["score"] for each in found] == [1, 0, 1, 1, 1]


@pytest.fixture(scope="module")
def episodes() -> Iterator[str]:
    with service_at("episode") as url:
        yield url


def episode(group: int | None, member: int) -> dict[str, Any]:
    """An episode with an advantage of its own: in its group, it is a success if `member` is 0."""
    name = None if group is None else f"g{group}"
    return {"uid": f"{group}-{member}", "group": name, "success": member == 0}


ORDERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "in order": lambda rows: rows,
    "one of each group in turn": lambda rows: sorted(rows, key=lambda row: row["uid"][::-1]),
    "shuffled": lambda rows: random.Random(0).sample(rows, len(rows)),
}


@pytest.mark.parametrize("to_folder", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_groups_are_scored_as_a_whole_wherever_their_rows_are(
    episodes, tmp_path, capsysbinary, monkeypatch, *, order: str, to_folder: bool
):
    """Group g has g + 2 members, of which one is a success, so no two groups have equal scores."""
    monkeypatch.setattr(output_module, "_PART_ROWS", 16)
    lines = [episode(group, member) for group in range(20) for member in range(group + 2)]
    lines = [*ORDERS[order](lines), {"broken": 1}, episode(None, 0), episode(None, 1)]
    files = [write_rows(tmp_path / f"{i}.jsonl", lines[i * 90 : i * 90 + 90]) for i in range(3)]
    words = ["score", "episode", *map(str, files), "--url", episodes, "--set"]
    words += ["normalize=group_mean", "--set", 'filter={"accuracy_bounds": [0.1, 0.3]}']
    assert main([*words, "-o", str(tmp_path / "out")] if to_folder else words) == 1
    printed = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    found = records(tmp_path / "out") if to_folder else printed
    assert [each["row"] for each in found] == list(range(len(lines)))
    assert [each["status"] for each in found[-3:]] == ["error"] * 3  # alone, or no episode
    for line, each in zip(lines[:-3], found, strict=False):
        share = 1 / (int(line["group"][1:]) + 2)
        assert each["uid"] == line["uid"]
        assert each["score"] == pytest.approx(line["success"] - share)
        assert each["keep"] == (0.1 <= share <= 0.3)


def test_a_group_is_scored_again_as_a_whole(score, episodes: str, tmp_path, capsys):
    """If a member was not scored, or failed: the scores of the others depend on it."""
    lines = ORDERS["shuffled"]([episode(group, member) for group in range(9) for member in (0, 1)])
    path = write_rows(tmp_path / "rows.jsonl", lines)
    options = {"service": "episode", "url": episodes}
    words = ["--set", "normalize=group_mean", "--format", "jsonl"]
    right = [each["success"] - 0.5 for each in lines]
    assert score(path, *words, "--limit", "12", **options)[0] == 1, "some are alone"
    status, found = score(path, *words, **options)
    assert (status, [each["score"] for each in found]) == (0, right)
    found[3] |= {"score": None, "status": "error", "error_kind": "unavailable"}
    other = next(i for i, each in enumerate(lines) if i != 3 and each["group"] == lines[3]["group"])
    found[other]["score"] = 99.0
    found = [{**each, "details": json.dumps(each["details"])} for each in found]
    write_rows(tmp_path / "out" / "part-00001.jsonl", found[12:])
    write_rows(tmp_path / "out" / "part-00000.jsonl", found[:12])
    status, found = score(path, *words, "--retry-failed", **options)
    assert (status, [each["score"] for each in found]) == (0, right)
    assert "18 items: ok 18" in capsys.readouterr().err.rpartition("scored\n")[2]


def test_a_group_that_no_request_can_have_is_an_error_of_its_rows(score, episodes: str):
    lines = [{"uid": f"{i}", "group": "large", "success": True} for i in range(4097)]
    status, found = score([*lines, episode(1, 0)], service="episode", url=episodes)
    assert (status, found[-1]["score"]) == (1, 1.0)
    reasons = {each["error_detail"] for each in found[:-1]}
    assert reasons == {"the group 'large' has more than 4,096 episodes"}


def test_clips_are_scored_by_content_and_by_path(make_video, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for index in range(3):
        make_video(10 + index, name=f"clips/{index}.mp4")
    (folder / "broken.mp4").write_bytes(b"no video")
    (folder / "missing.mp4").symlink_to("nowhere")
    with served(video_root=[folder]) as client:
        ids = []
        for options in ([], ["--by-path"]):
            out = tmp_path / f"out{len(options)}"
            url = ["--url", str(client.base_url), "-o", str(out), "--task", "stack"]
            assert main(["score", "video", str(folder), *url, *options]) == 1
            found = records(out)
            assert [each["status"] for each in found] == ["ok", "ok", "ok", "error", "error"]
            ids.append([each["id"] for each in found])
        assert ids[0] == ids[1], "an id is that of the content"
        lines = [{"clip": "clips/0.mp4", "task": "stack"}, {"clip": "none", "task": "x"}]
        table, out = write_rows(tmp_path / "rows.jsonl", lines), tmp_path / "table"
        assert main(["score", "video", str(table), *url[:2], "-o", str(out)]) == 1
        found = records(out)
    assert found[0]["id"] == ids[0][0] and found[0]["cached"]
    assert "no file" in found[1]["error_detail"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", gzip.compress(b"{}", mtime=0), "compressed by gzip"),
        ("rows.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("rows.jsonl", b"\n \n", "no rows"),
        ("rows.csv", b"response,ground_truth\n", "no rows"),
        ("fifo.jsonl", None, "give a file"),
        ("bad.parquet", b"not a table", "bad.parquet"),
        ("bad.arrow", b"not a table", "bad.arrow"),
    ],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path, name: str, content: bytes | None, words: str, capsys
):
    path = tmp_path / name
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    assert main(["score", "tools", str(path), "--url", "http://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert words in error and str(path) in error


def test_a_row_of_csv_that_is_not_utf8_does_not_end_the_table(score, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"response,ground_truth\n%b\xe9,b\n%b" % ((b"a,<think>x</think>\n",) * 2))
    status, found = score(path)
    assert (status, [each["error_detail"] for each in found]) == (1, [None, "not UTF-8", None])


# What is already scored


@pytest.mark.parametrize("how", ["killed", "Ctrl-C"])
def test_a_command_that_is_ended_goes_on_and_scores_nothing_twice(tmp_path, how: str):
    """It ends while requests are answered; each item is computed once but those in flight."""
    judged: list[str] = []
    release = threading.Event()

    class Judge(FakeJudge):
        deterministic = False

        async def judge(self, task, clip, options):
            judged.append(task)
            if len(judged) > 30:
                while not release.is_set():
                    await asyncio.sleep(0.01)
            return await super().judge(task, clip, options)

    lines = [{"task_text": f"t{i}", "frames_base64": [image_base64()]} for i in range(60)]
    path, out = write_rows(tmp_path / "rows.jsonl", lines), tmp_path / "out"
    with served(Judge()) as client:
        arguments = ["score", "video", str(path), "--url", str(client.base_url), "-o", str(out)]
        started = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
        journal = out / "journal.jsonl"
        wait_until(lambda: len(judged) > 30 and journal.exists() and journal.stat().st_size)
        started.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
        _, errors = started.communicate()
        if how == "Ctrl-C":
            assert (started.returncode, "Traceback" in errors) == (130, False)
            assert "goes on" in errors
        complete, _, _ = journal.read_text().rpartition("\n")  # its last line may be cut off
        kept = [json.loads(line)["row"] for line in complete.splitlines()]
        with journal.open("a") as file:
            file.write('{"row": 59, "id')  # what a write that was cut off leaves
        release.set()
        assert main(arguments) == 0
    found = records(out)
    assert [each["row"] for each in found] == list(range(60))
    assert kept and all(judged.count(f"t{row}") == 1 for row in kept)
    assert not journal.exists()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_parts_that_could_not_be_written_are_written_by_the_next_command(
    score, tmp_path, monkeypatch, kind: str
):
    monkeypatch.setattr(output_module, "_PART_ROWS", 4)
    path = write_rows(tmp_path / "rows.jsonl", rows(10))
    assert score(path, "--format", kind, "--limit", "9")[0] == 0
    files = iter(["input.json", "journal.jsonl", f"part-00000.{kind}"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: next(files, None) or os.fstat(-1))  # an OSError
        assert score(path, "--format", kind)[0] == 2
    with open_log([tmp_path / "out"]) as log:  # where a row is in both, the journal counts
        assert log.execute("SELECT sum(row), count(*) FROM scores").fetchone() == (45, 10)
    status, found = score(path, "--format", kind)
    assert (status, [each["row"] for each in found]) == (0, [*range(10)])
    assert {each.suffix for each in (tmp_path / "out").glob("[!.i]*")} == {f".{kind}"}


def test_failed_items_are_scored_again_in_their_places(score, tmp_path, monkeypatch):
    monkeypatch.setattr(output_module, "_PART_ROWS", 4)
    judged: list[str] = []

    class Judge(FakeJudge):
        is_broken = True

        async def judge(self, task, clip, options):
            judged.append(task)
            if self.is_broken and int(task) % 3 == 0:
                raise ValueError("broken")
            return await super().judge(task, clip, options)

    lines = [{"task_text": f"{i}", "frames_base64": [image_base64()]} for i in range(10)]
    path, judge = write_rows(tmp_path / "rows.jsonl", lines), Judge()
    with served(judge) as client:
        given = {"service": "video", "url": str(client.base_url)}
        status, found = score(path, **given)
        failed = [each["row"] for each in found if each["status"] == "error"]
        assert (status, failed) == (1, [0, 3, 6, 9])
        before = len(judged)
        assert score(path, **given)[0] == 1, "without the option, nothing is scored again"
        assert len(judged) == before
        judge.is_broken = False
        status, found = score(path, "--retry-failed", **given)
    assert status == 0 and sorted(judged[before:]) == ["0", "3", "6", "9"]
    assert [(each["row"], each["status"]) for each in found] == [(i, "ok") for i in range(10)]


def test_an_output_of_another_input_is_refused(tools: str, tmp_path, capsys):
    out, other = tmp_path / "out", tmp_path / "other"
    first = write_rows(tmp_path / "a.jsonl", rows(2))
    second = write_rows(tmp_path / "b.jsonl", rows(2))
    url = ["--url", tools, "-o", str(out)]
    assert main(["score", "tools", str(first), *url]) == 0
    assert main(["score", "tools", str(second), *url]) == 2
    assert "another input" in capsys.readouterr().err
    assert main(["score", "tools", str(first), *url, "--set", 'run="x"']) == 2
    write_rows(first, rows(3))
    assert main(["score", "tools", str(first), *url]) == 2, "the file changed"
    other.mkdir()
    (other / "mine.txt").write_text("x")
    assert main(["score", "tools", str(second), "--url", tools, "-o", str(other)]) == 2
    assert (other / "mine.txt").exists()
    assert main(["score", "tools", str(tmp_path), "-o", str(tmp_path / "new")]) == 2
    assert "not in the input" in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_a_full_disk_ends_the_command_with_a_message(tools: str, tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", rows(50)), tmp_path / "out"
    arguments = ["score", "tools", str(path), "--url", tools, "-o", str(out)]
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
    shown = output_of(sys.executable, "-c", f"{full}{RUN}", *arguments, status=2)
    assert "File too large" in shown and "Traceback" not in shown
    assert main(arguments) == 0
    assert [each["row"] for each in records(out)] == list(range(50))


def test_a_folder_that_another_command_writes_is_refused(tmp_path):
    arguments: Any = (tmp_path, {}, "jsonl")
    with closing(Output(*arguments)), pytest.raises(ValueError, match="another command"):
        Output(*arguments)
    Output(*arguments).close()


def test_without_pyarrow_a_parquet_output_is_refused_before_anything_is_scored(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", rows(2)), tmp_path / "out"
    without = "import sys; sys.modules['pyarrow'] = None"
    arguments = ["score", "tools", str(path), "--url", "http://127.0.0.1:1", "-o", str(out)]
    shown = output_of(sys.executable, "-c", f"{without}{RUN}", *arguments, status=2)
    assert "pip install" in shown and not out.exists()


# Options


def test_limit_and_sample_and_dry_run(tools: str, tmp_path, capsysbinary):
    path = write_rows(tmp_path / "rows.jsonl", rows(50))

    def printed(*options: str) -> list[dict[str, Any]]:
        assert main(["score", "tools", str(path), "--url", tools, *options]) == 0
        return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    assert [each["place"] for each in printed("--limit", "2")] == [f"{path}:1", f"{path}:2"]
    drawn = [each["place"] for each in printed("--sample", "5")]
    assert len(set(drawn)) == 5 and drawn != [f"{path}:{i}" for i in range(1, 6)]
    assert [each["place"] for each in printed("--sample", "5")] == drawn
    assert main(["score", "tools", str(path), "--url", "http://127.0.0.1:1", "--dry-run"]) == 0
    assert b"50 rows" in capsysbinary.readouterr().out


def test_a_wrong_key_ends_the_command(tmp_path, capsys, monkeypatch):
    (tmp_path / "key").write_text("right\n")
    path = write_rows(tmp_path / "rows.jsonl", rows(3))
    with service_at("tools", api_key_file=tmp_path / "key") as url:
        options = ["--url", url, "-o", str(tmp_path / "out")]
        for key, status in (("wrong", 2), ("right", 0)):
            monkeypatch.setenv("REWARDFLEET_API_KEY", key)
            assert main(["score", "tools", str(path), *options]) == status
        assert "not accepted; commands send REWARDFLEET_API_KEY" in capsys.readouterr().err


def children() -> set[str]:
    """Return the processes that this one has started."""
    lists = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {process for each in lists for process in each.read_text().split()}


def test_the_command_starts_the_service_and_ends_it(tmp_path):
    path, out = write_rows(tmp_path / "rows.jsonl", rows(3)), tmp_path / "out"
    before = children()
    assert main(["score", "tools", str(path), "--start", "", "-o", str(out)]) == 0
    assert children() <= before
    assert main(["score", "tools", str(path), "--start", "--nonsense", "-o", str(out)]) == 2
