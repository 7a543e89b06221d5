"""`rewardfleet lint`, by real services."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rewardfleet.commands.main import main
from rewardfleet.lint.findings import FINDINGS
from rewardfleet.lint.rows import SERVICES

from ...conftest import table
from ...score_log.conftest import service_at
from .test_score import write_rows

pytestmark = pytest.mark.slow

ROWS = table("linted_rows")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(service_at(name)) for name in SERVICES}


@pytest.mark.parametrize("service", SERVICES)
def test_rows_have_the_findings_that_they_should(service: str, urls, tmp_path):
    chosen = [each for each in ROWS if each["service"] == service]
    file = write_rows(tmp_path / "rows.jsonl", [each["row"] for each in chosen])
    folder = tmp_path / "out"
    assert main(["lint", str(file), "-o", str(folder), "--url", urls[service]]) == 0
    report = json.loads((folder / "lint.json").read_text())
    found = defaultdict(list)
    for each in report["findings"]:
        found[each["row"]].append(each["id"])
        assert each["change"]
    for each in chosen:
        assert found[each["row"]["id"]] == each["findings"]
    assert report["service"] == service  # found by the columns
    page = (folder / "lint.html").read_text()
    assert all(each["row"] in page for each in report["findings"])


RIGHT, WRONG = {"id": "a", "reference": "1"}, {"id": "b", "reference": " "}


@pytest.mark.parametrize(
    "case",
    [
        ([], 0, "invalid  b"),
        (["--fail-above", "0"], 1, ""),
        (["--fail-above", "1"], 0, ""),
        (["--fail-above", "0.499"], 1, ""),
        (["--fail-above", "0.5"], 0, ""),
        (["--fail-above", "0", "--ignore", "invalid:b=it is known"], 0, "0 rows have findings"),
        (["--ignore", "invalid:a=why not"], 0, "--ignore invalid:a: there is no such finding"),
        (["--ignore", "invalid:b"], 2, "give ID:ROW=REASON"),
        (["--ignore", "wrong:b=reason"], 2, "ID one of invalid, no-check"),
        (["--fail-above", "few"], 2, "'few' is not a valid float"),
        (["--service", "code"], 0, "invalid  a"),
        (["--id-column", "reference", "--fail-above", "0", "--ignore", "invalid: =x"], 0, ""),
    ],
)
def test_options(case: tuple[list[str], int, str], urls, tmp_path, capsys):
    options, status, said = case
    file = write_rows(tmp_path / "rows.jsonl", [RIGHT, WRONG])
    url = urls["code" if "code" in options else "answers"]
    assert main(["lint", str(file), "--url", url, *options]) == status
    assert said in "".join(capsys.readouterr())


def test_what_is_scored_is_not_scored_again_and_services_are_started(urls, tmp_path, capsys):
    """The same command goes on with what is there; other rows are refused."""
    rows = write_rows(tmp_path / "rows.jsonl", [RIGHT])
    command = ["lint", str(rows), "-o", str(tmp_path / "out")]
    assert main(command) == 0
    [part] = (tmp_path / "out" / "scores").glob("part-*")
    text = part.read_text()
    text = text.replace('"correct":1.0', '"correct":0.0')
    part.write_text(text.replace('"cause":null', '"cause":"wrong_answer"'))
    command += ["--url", urls["answers"]]
    assert main(command) == 0
    assert "unreachable  a" in capsys.readouterr().out
    write_rows(rows, [RIGHT, WRONG])
    assert main(command) == 2
    assert "another input" in capsys.readouterr().err


def test_no_service_reads_rows_of_clips(tmp_path, capsys):
    assert main(["lint", str(write_rows(tmp_path / "rows.jsonl", [{"clip": "a.mp4"}]))]) == 2
    assert "--service: give one of code, tools, answers" in capsys.readouterr().err


def test_the_page_lists_all_findings():
    page = (Path(__file__).parents[3] / "docs" / "lint.md").read_text()
    for name, each in FINDINGS.items():
        assert f"| `{name}` | {each['meaning']} | {each['change']} |" in page
