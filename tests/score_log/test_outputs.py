"""Outputs of `rewardfleet score` are score logs: each command shows the same of both."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from rewardfleet.commands.main import main
from rewardfleet_server.commands.look import strips
from rewardfleet_server.http.allowed_hosts import AllowedHosts
from rewardfleet_server.http.auth import ApiKeys
from rewardfleet_server.look.app import LookApp
from rewardfleet_server.look.labels import Labels
from rewardfleet_server.look.records import Filter, Records
from rewardfleet_server.testing import serving

from ..conftest import LONG_CLIP
from ..server.tools.conftest import TRUTH
from .conftest import service_at

TESTS = {"kind": "stdio", "cases": [{"stdin": "2 3", "stdout": "5"}]}
#: Of each service two rows, of which the second one has the lower score and a label that says
#: otherwise, options of the command, and what the story of that row has, which is of its request.
ROWS: dict[str, tuple[list[dict[str, Any]], list[str], str]] = {
    "video": (
        [{"file": "a.mp4", "task": "stack", "success": False},
         {"file": "b.mp4", "task": "stack it", "success": True}],
        [], 'Task: "stack it"',
    ),
    "code": (
        [{"response": "print(5)", "tests": TESTS, "success": True},
         {"response": "print(6)", "tests": TESTS, "success": True}],
        [], '"2 3"',
    ),
    "tools": (
        [{"response": TRUTH, "ground_truth": TRUTH, "success": True},
         {"response": "none", "ground_truth": TRUTH, "success": True}],
        [], "  | none",
    ),
    "episode": (
        [{"uid": "a", "group": "g", "success": 1, "seed": 7},
         {"uid": "b", "group": "g", "success": 0, "seed": 8}],
        ["--set", "normalize=group_std"], "the reward 0 is below 1",
    ),
    "answers": (
        [{"response": r"\boxed{1/2}", "answer": "0.5", "success": True},
         {"response": r"\boxed{3}", "answer": "0.5", "success": True}],
        [], r"  | \boxed{3}",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def serve(folder: Path) -> Iterator[Callable[[str], str]]:
    """Start a service with a log of its own, once; return its URL."""
    with ExitStack() as stack:

        @functools.cache
        def start(name: str) -> str:
            kept = {"score_log": folder / f"log-{name}", "score_log_sample": 1}
            return stack.enter_context(service_at(name, **kept))

        yield start


@contextmanager
def page_of(source: Path, labels: Path) -> Iterator[httpx.Client]:
    hosts = AllowedHosts([], listens_on="127.0.0.1", has_keys=False)
    records = Records([source], decode=strips([]))
    app = LookApp(records, Labels(labels), ApiKeys(None), hosts)
    headers = {"hx-request": "1"}
    with serving(app) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as page:
        yield page


@pytest.mark.parametrize("service", ROWS)
def test_every_command_takes_an_output_and_a_log(
    service: str, folder: Path, serve: Callable[[str], str], capsys, monkeypatch
):
    monkeypatch.chdir(folder)
    rows, options, told = ROWS[service]
    for each in rows:
        if "file" in each:
            shutil.copy(LONG_CLIP, each["file"])
            with Path(each["file"]).open("ab") as file:  # another digest
                file.write(each["file"].encode())
    table = Path(f"{service}.jsonl")
    table.write_text("".join(json.dumps(each) + "\n" for each in rows))
    url, out = ["--url", serve(service)], Path(f"out-{service}")
    assert main(["score", service, str(table), *options, *url, "-o", str(out)]) == 0
    if service == "episode":
        assert "rewards: mean 0.5  p0 0 " in capsys.readouterr().err

    def printed(*words: str) -> str:
        capsys.readouterr()
        assert main([*words]) == 0
        return capsys.readouterr().out

    found = {}
    for source in (out, Path(f"log-{service}")):
        records = [*map(json.loads, printed("log", "list", str(source), "--json").splitlines())]
        found[source] = {each["id"]: each for each in records}
        assert "2  " in printed("log", "count", str(source), "--by", "service")
        report = printed("report", str(source))
        assert "2 records of 0 runs" in report and report.count(records[0]["id"][:12]) == 1
        worst = min(records, key=lambda e: (e["score"], e.get("place") or "", e["time"]))
        if service == "video":  # both clips have the same score
            worst = next(each for each in records if each["request"]["task_text"] == "stack it")
        story = printed("explain", str(source), "--id", worst["id"])
        assert told in story and (source == out) == (f"Input: {table}:2" in story), story
        assert ("Its other columns: " in story) == (source == out)
        has_label = "success" in rows[0] and service != "episode"
        assert ("Its label `success`" in story) == (source == out and has_label)
        [step] = Records([source]).steps(Filter())[service]
        assert sum(step["counts"]) == 2 and step["counts"][0] == step["counts"][-1] == 0
        check_page(source, worst, has_label=source == out and has_label)
    metrics = httpx.get(f"{url[1]}/metrics", trust_env=False).text
    if service == "episode":  # not its advantages
        assert 'rewardfleet_score_sum{backend="episode",service="episode"} 1.0' in metrics
    if service == "tools":
        assert 'rewardfleet_score_bucket{backend="tools",le="-3.0",service="tools"} 1.0' in metrics
    for source in reversed(found):  # the log first, which gets the new scores
        replayed = printed("score", "replay", str(source), "-o", f"again-{source}", *url)
        assert "2 records: 0 rewards changed (0.00%), 0 have no score" in replayed
    of_output, of_log = found.values()
    assert of_output.keys() == of_log.keys()
    for key, each in of_output.items():
        for name in ("score", "status", "cause", "components", "service"):
            assert each[name] == of_log[key][name]
    if service == "video":
        check_clips(out, url)


def check_page(source: Path, record: dict[str, Any], *, has_label: bool) -> None:
    labels = Path(f"labels-{source}.jsonl")
    with page_of(source, labels) as page:
        shown = page.get("/", params={"label_differs": 1}).text
        assert (shown.count('class="status suspicious">label differs') == 1) == has_label
        table = page.get("/").text
        for number in (part.split('"')[0] for part in table.split('data-n="')[1:]):
            text = page.get(f"/record/{number}").text
            assert ("<h2>Frames</h2>" in text) == (record["service"] == "video")
            if record["id"] in text.split("Same request")[0]:
                label = {"label": "wrong", "id": record["id"]}
                assert page.post(f"/record/{number}/label", params=label).status_code == 200
    [line] = map(json.loads, labels.read_text().splitlines())
    assert line["task_text"] == record["request"].get("task_text")


def statuses_of_frames(out: Path) -> list[int]:
    with page_of(out, Path("none.jsonl")) as page:
        numbers = [part.split('"')[0] for part in page.get("/").text.split('data-n="')[1:]]
        return sorted(page.get(f"/record/{each}/frames").status_code for each in numbers)


def check_clips(out: Path, url: list[str]) -> None:
    """Labels are evaluated, and a clip that has changed is not shown, nor scored again."""
    assert main(["eval", "video", f"labels-{out}.jsonl", "-o", "evaluated", *url]) == 0
    report = json.loads(Path("evaluated/report.json").read_text())
    assert report["counts"]["ok"] == 1
    Path("a.mp4").write_bytes(b"another clip")
    assert statuses_of_frames(out) == [200, 404]
    assert main(["score", "replay", str(out), "-o", "changed", *url]) == 1


def test_clips_of_a_table_are_those_in_its_rows_while_they_have_not_changed(
    tmp_path, serve: Callable[[str], str], monkeypatch
):
    monkeypatch.chdir(tmp_path)
    clip = LONG_CLIP.read_bytes()
    clips = [{"bytes": each, "path": None} for each in (clip, clip + b" ")]
    rows = [{"video": each, "task": "stack"} for each in clips]
    url, out = ["--url", serve("video")], Path("out")
    without = [{"task": "a"}]
    for shown, table in ([200, 200], rows), ([200, 404], rows[:1] * 2), ([404, 404], without):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), "a.parquet")
        if not out.exists():
            assert main(["score", "video", "a.parquet", "-o", str(out), *url]) == 0
        assert statuses_of_frames(out) == shown
        replayed = main(["score", "replay", str(out), "-o", f"again-{shown}", *url])
        assert replayed == shown.count(404)  # 2 if none has a score


@pytest.mark.parametrize(
    "wrong",
    [
        ("tools", "options.variant=strict", "unknown field 'options.variant'"),
        ("episode", "normalize=mean", "normalize: Input should be 'none'"),
        ("video", 'backend_kwargs={"rotated": true}', "the fake judge takes no options"),
    ],
)
def test_a_wrong_field_is_one_error_and_does_not_block_the_right_one(
    wrong: tuple[str, str, str], folder: Path, serve: Callable[[str], str], capsys, monkeypatch
):
    service, field, reason = wrong
    monkeypatch.chdir(folder)
    rows = [{**ROWS[service][0][0], "file": str(LONG_CLIP)} for _ in range(9)]
    if service != "video":
        rows = [{k: v for k, v in each.items() if k not in {"file", "uid"}} for each in rows]
    Path("nine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    words = ["score", service, "nine.jsonl", "--url", serve(service), "-o", f"nine-{service}"]
    assert main([*words, "--set", field]) == 2
    printed = capsys.readouterr().err
    assert printed.count(reason) == 1 and "nothing was scored" in printed
    assert main(words) == 0


def test_a_folder_of_failures_only_is_started_again(tmp_path, serve: Callable[[str], str], capsys):
    (tmp_path / "rows.jsonl").write_text('{"response": "a", "truth": "<response>a</response>"}\n')
    words = ["score", "tools", str(tmp_path / "rows.jsonl"), "--url", serve("tools")]
    words += ["-o", str(tmp_path / "out"), "--tests-column", "truth", "--format", "jsonl"]
    assert main([*words, "--set", "variant=1"]) == 2
    assert main(words) == 0
    assert main([*words, "--set", "step=1"]) == 2
    assert "has the scores of another input" in capsys.readouterr().err
