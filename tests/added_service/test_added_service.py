"""A sixth service, added as docs/architecture.md says, to a copy of the packages: all commands."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from rewardfleet_server.testing import wait_until
from rewardfleet_server.up.settings import free_port

from ..running import running

ROOT = Path(__file__).parents[2]
#: The entries that a contributor adds, by the file that has the table.
ENTRIES = {
    "clients/rewardfleet/services.py": """
    "words": Service(
        Lazy("rewardfleet.words:WordsClient"), WordsCause, port=18085, scores="text",
        group="wanted", request=Lazy("rewardfleet.words:words_request"),
        inputs="tables of responses and references",
        story=Lazy("rewardfleet.words:story_of_words"),
        item=Lazy("rewardfleet.words:item"), example="a response with all words",
        truth="wanted", fields=Lazy("rewardfleet.words:words_fields"), reported=("share",),
    ),
""",
    "services/rewardfleet_server/registry.py": """
    "words": ServiceEntry(
        "Count the words of a reference.",
        Lazy("rewardfleet_server.words.settings:WordsSettings"),
        Lazy("rewardfleet_server.words.app:create_app"),
    ),
""",
}
LAST_IMPORT = "from .wire.score import Request\n"
IMPORT = "from .wire.words import WordsCause\n"
ROWS = [
    {"response": "a b", "wanted": "a b", "uid": "r0"},
    {"response": "b", "wanted": "a b", "uid": "r1"},
]
OUTPUT = ("--format", "jsonl", "--id-column", "uid")
#: What adapters do with the service, and what they return of the first of the rows.
ADAPTERS = """
import asyncio, pickle, sys
from rewardfleet import blocking
from rewardfleet.adapters import trl, verl
url, columns = sys.argv[1], {"wanted": ["a b", "a b"]}
reward = pickle.loads(pickle.dumps(trl.reward_function("words", url)))
print(reward.func.__name__, asyncio.run(reward(["a b", "b"], **columns)))
scores = verl.compute_scores(["", ""], ["a b", "b"], ["a b", "a b"], url=url, service="words")
print([(each["reward/share"], each["reward/cause/missing_word"]) for each in scores])
with blocking.RewardFleet(words=url) as fleet:
    print(fleet.words.score("b", "a b").missing)
"""


class Project(NamedTuple):
    """A copy of the packages with the service, and what its fleet has."""

    folder: Path

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "rewardfleet", *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        packages = f"{self.folder / 'clients'}:{self.folder / 'services'}"
        return {**os.environ, "PYTHONPATH": packages, "COLUMNS": "200"}

    def run(self, *arguments: object, status: int | None = 0, **variables: str) -> str:
        """Run a command; return what it has written. `status` is its exit status, None for any."""
        return self.finish(self.command(*arguments), status, **variables)

    def finish(self, command: list[str], status: int | None = 0, **variables: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env={**self.environment, **variables}, capture_output=True,
            text=True, timeout=170, check=False,
        )  # fmt: skip
        assert status in {None, done.returncode}, done.stdout + done.stderr
        return done.stdout + done.stderr

    def running(self, url: str, *arguments: object) -> AbstractContextManager[object]:
        """Run a command that serves a URL for the block."""
        return running(self.command(*arguments), url, cwd=self.folder, env=self.environment)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("project")
    for packages in ("clients", "services"):
        shutil.copytree(ROOT / packages, folder / packages)
        shutil.copytree(Path(__file__).parent / packages, folder / packages, dirs_exist_ok=True)
    for file, entry in ENTRIES.items():
        before, end, after = (folder / file).read_text().rpartition("\n}\n")
        assert end, file
        text = f"{before}{entry}}}\n{after}".replace(LAST_IMPORT, LAST_IMPORT + IMPORT)
        (folder / file).write_text(text)
    lines = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    (folder / "rows.jsonl").write_text(lines)
    (folder / "request.json").write_text(json.dumps(ROWS[1]))
    return Project(folder)


@pytest.fixture(scope="module")
def fleet(project: Project) -> Iterator[str]:
    """A fleet of `rewardfleet up` with the service, whose score log is in `log`."""
    port = free_port()
    (project.folder / "fleet.toml").write_text(f"port = {port}\n[words]\nport = 0\n")
    url = f"http://127.0.0.1:{port}"
    flags = ("--config", "fleet.toml", "--data-dir", "data", "--score-log", "log")
    with project.running(f"{url}/readyz", "up", "--only", "words", *flags):
        yield url


pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_fleet_with_it_is_shown_scored_explained_and_measured(project: Project, fleet: str):
    run = project.run
    assert re.search(r"words +\S+ +ready", run("status", fleet))
    assert "Score INPUT: tables of responses and references" in run("score", "words", "--help")
    run("score", "words", "rows.jsonl", "--url", fleet, "-o", "out", *OUTPUT)
    lines = next((project.folder / "out").glob("part-*.jsonl")).read_text().splitlines()
    scores = {each["uid"]: each["score"] for each in map(json.loads, lines)}
    assert scores == {"r0": 1.0, "r1": 0.5}
    assert "Missing: a\n" in run("explain", "request.json", "--url", fleet)
    report = run("load", fleet, "--rate", "50", "--duration-s", "1")
    assert "words" in report and "came from the cache" not in report
    assert project.finish([sys.executable, "-c", ADAPTERS, f"{fleet}/words"]).splitlines() == [
        "words_reward [1.0, 0.5]", "[(1.0, 0.0), (0.5, 1.0)]", "['a']"
    ]  # fmt: skip


def test_its_log_is_read_reported_and_replayed(project: Project, fleet: str):
    run, log = project.run, project.folder / "log"
    labels = ("--set", "run=r", "--set", "step=1")
    run("score", "words", "rows.jsonl", "--url", fleet, *labels, "-o", "labeled", *OUTPUT)
    wait_until(lambda: len(logged(log)) == 2)
    [wrong] = [each["id"] for each in logged(log) if each["score"] < 1]
    assert wrong[:12] in run("log", "list", "log", "--run", "r")
    assert "words" in run("log", "count", "log")
    assert "Missing: a\n" in run("explain", "log", "--id", wrong)
    groups = run("report", "log", "--run", "r").partition("Groups")[2].splitlines()[2]
    assert groups.split() == ["words", "1", "0.0%", "0.0%"]
    changed = ("--set", "response=a", "-o", "replay")
    replayed = run("score", "replay", "log", "--run", "r", "--url", fleet, *changed)
    assert "2 records: 1 rewards changed (50.00%)" in replayed
    assert "1 of 1 groups changed" in replayed
    port = free_port()
    page = f"http://127.0.0.1:{port}/"
    with project.running(page, "look", "log", "--port", port):
        assert "missing_word" in httpx.get(page, trust_env=False, timeout=60).text


def logged(folder: Path) -> list[dict[str, Any]]:
    """The records of the run `r`."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [each for each in map(json.loads, lines) if each["run"] == "r"]


def test_it_starts_alone_and_behind_a_gateway(project: Project):
    assert "Count the words of a reference." in project.run("serve", "--help")
    scored = project.run("score", "words", "rows.jsonl", "--start", "", "--limit", 1)
    assert '"score": 1.0' in scored
    port, own = free_port(), free_port()
    url = f"http://127.0.0.1:{port}/words"
    gateway = ("gateway", "--port", port, "--service", f"words=http://127.0.0.1:{own}")
    with (
        project.running(f"http://127.0.0.1:{own}/readyz", "serve", "words", "--port", own),
        project.running(f"{url}/readyz", *gateway),
    ):
        answer = httpx.post(f"{url}/score", json=ROWS[1], trust_env=False, timeout=60)
        assert answer.json()["score"] == 0.5


def test_a_command_that_it_takes_no_part_in_says_so(project: Project):
    assert "no such command: words" in project.run("eval", "words", status=2)


def test_the_demo_scores_its_rollouts_and_an_item_of_each_service(project: Project):
    shown = project.run("demo", COLUMNS="60")
    table, summary, *_ = shown.split("\n\n")[1:]
    assert len(table.splitlines()) == 1 + 11
    assert max(len(line) for line in table.splitlines()) <= 60
    assert "AUROC 1.000 over 4 successes and 7 failures; 0 abstained." in summary
    for name in ("code", "episode", "tools"):
        assert f"\n{name} " in shown
    assert re.search(r"\nwords +a response with all words +1.00\n", shown)
    assert shown.endswith('"the task" --success\n')  # and nothing on standard error
