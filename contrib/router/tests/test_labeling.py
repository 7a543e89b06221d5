"""`rewardfleet-router label`: real Parquet files, and a model behind a real HTTP server."""

import asyncio
import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from fastapi import FastAPI, Request, Response
from pyarrow import parquet

from rewardfleet_router.__main__ import main
from rewardfleet_router.labels import labeling, model
from rewardfleet_router.labels.model import TOOL_FAMILY, read_label
from rewardfleet_router.labels.report import agreement
from rewardfleet_router.labels.row_labels import labels_of, read_sidecar
from rewardfleet_server.testing import serving, wait_until

WEATHER = ("get_weather", "The weather of a city.")
COMPOUND = ("compound_interest", "Computes the interest of an investment.")
SUM = ("total", "The sum of numbers.")
EMAIL = ("send_email", "Writes to somebody.")

#: Tools of the prompt, names of the called ones, and the label by patterns.
ROWS = [
    ([WEATHER, COMPOUND], [], "ANSWER"),
    ([WEATHER, COMPOUND], ["get_weather"], "SEARCH-FAMILY"),
    ([WEATHER, COMPOUND], ["compound_interest", "compound_interest"], "CALCULATE-FAMILY"),
    ([WEATHER, COMPOUND], ["get_weather", "compound_interest"], "MIXED"),
    ([EMAIL], ["send_email"], "MIXED"),
    ([SUM], ["total"], "MIXED"),
    ([], ["find_flights"], "SEARCH-FAMILY"),
]


def system_prompt(tools: list[tuple[str, str]]) -> str:
    listed = "\n".join(
        f"{number}. Name: {name}\nDescription: {description}\nParameters: {{}}"
        for number, (name, description) in enumerate(tools, 1)
    )
    block = f"**Available Tools**\nYou can use the following tools:\n{listed}\n\n" if tools else ""
    return f"You are a helpful assistant.\n\n{block}**Steps for Each Turn**\n1. **Think**"


def ground_truth(called: list[str]) -> str:
    if not called:
        return "<think> I know it. </think>\n<response> Done. </response>"
    calls = "\n".join(json.dumps({"name": name, "parameters": {}}) for name in called)
    return f"<think> A tool. </think>\n<tool_call>\n{calls}\n</tool_call>"


def row(index: int, tools: list[tuple[str, str]], called: list[str]) -> dict:
    return {
        "data_source": "rlla",
        "prompt": [
            {"role": "system", "content": system_prompt(tools)},
            {"role": "user", "content": f"<user> Request {index} </user>"},
        ],
        "reward_model": {"style": "rule", "ground_truth": ground_truth(called)},
        "extra_info": {"index": index, "split": "train"},
    }


def write(path: Path, rows: list[dict]) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = [row(index, tools, called) for index, (tools, called, _) in enumerate(ROWS)]
    return write(tmp_path / "train.parquet", rows)


def targets(path: Path) -> list[str]:
    return parquet.read_table(path)["router_target_action"].to_pylist()


def families(path: Path) -> list[dict[str, str]]:
    return [json.loads(each) for each in parquet.read_table(path)["tool_families"].to_pylist()]


def label(*arguments: object) -> dict:
    """Run the command in this process and return its report."""
    done = CliRunner().invoke(main, ["label", "--json", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def error_of(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["label", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    return done.stderr


# Patterns and mappings


def test_labels_become_columns_of_a_copy_of_the_dataset(dataset: Path, tmp_path: Path):
    report = label(dataset)
    output = tmp_path / "train_router.parquet"
    assert targets(output) == [target for *_, target in ROWS]
    by_tool = {"get_weather": "search", "compound_interest": "calculate"}
    assert families(output)[3] == by_tool and list(families(output)[3]) == list(by_tool)
    assert families(output)[6] == {"find_flights": "search"}, "a tool that is not listed"
    copied = parquet.read_table(output).drop_columns(["router_target_action", "tool_families"])
    assert copied.equals(parquet.read_table(dataset))
    counts = {"ANSWER": 1, "SEARCH-FAMILY": 2, "CALCULATE-FAMILY": 1, "MIXED": 3}
    assert report["outputs"] == [
        {"path": str(output), "rows": len(ROWS), "targets": counts, "malformed": 0}
    ]


def test_the_adapter_reads_the_columns(dataset: Path, tmp_path: Path):
    label(dataset)
    rows = parquet.read_table(tmp_path / "train_router.parquet").to_pylist()
    assert [labels_of(each).action for each in rows] == [0, 1, 2, -1, -1, -1, 1]
    assert labels_of(rows[0]).families == {
        "get_weather": "search",
        "compound_interest": "calculate",
    }


def test_a_file_of_families_comes_before_the_patterns(dataset: Path, tmp_path: Path):
    mapping = tmp_path / "families.json"
    mapping.write_text('{"total": "calculate", "get_weather": "other"}')
    report = label(dataset, "--tool-families", mapping)
    assert targets(tmp_path / "train_router.parquet") == [
        "ANSWER", "MIXED", "CALCULATE-FAMILY", "MIXED", "MIXED", "CALCULATE-FAMILY",
        "SEARCH-FAMILY",
    ]  # fmt: skip
    [tools] = report["tools"]
    assert (tools["methods"], tools["count"], tools["share"]) == (["file", "patterns"], 2, 0.0)
    [first, second] = report["disagreements"]
    assert (first["tool"], first["rows"]) == ("get_weather", 4), "the most frequent first"
    assert first["families"] == {"file": "other", "patterns": "search"}
    assert second["families"] == {"file": "calculate", "patterns": "other"}


def test_patterns_can_be_given(dataset: Path, tmp_path: Path):
    patterns = tmp_path / "patterns.json"
    patterns.write_text('{"calculate": ["tot*", "*interest*"]}')
    label(dataset, "--family-patterns", patterns)
    assert targets(tmp_path / "train_router.parquet") == [
        "ANSWER", "MIXED", "CALCULATE-FAMILY", "MIXED", "MIXED", "CALCULATE-FAMILY", "MIXED",
    ]  # fmt: skip


def test_the_family_of_a_tool_depends_on_its_description_in_that_row(tmp_path: Path):
    searches, calculates = ("run", "Does a search."), ("run", "Does a calculation.")
    rows = [row(0, [searches], ["run"]), row(1, [calculates], ["run"])]
    path = write(tmp_path / "train.parquet", rows)
    label(path)
    assert targets(tmp_path / "train_router.parquet") == ["SEARCH-FAMILY", "CALCULATE-FAMILY"]


def test_a_malformed_ground_truth_is_mixed_and_reported(tmp_path: Path):
    rows = [row(0, [WEATHER], []), row(1, [WEATHER], [])]
    rows[1]["reward_model"]["ground_truth"] = "<tool_call>\n{broken\n</tool_call>"
    report = label(write(tmp_path / "train.parquet", rows))
    assert targets(tmp_path / "train_router.parquet") == ["ANSWER", "MIXED"]
    assert report["outputs"][0]["malformed"] == 1


# Files


def test_a_folder_is_labeled_file_by_file(dataset: Path, tmp_path: Path):
    write(tmp_path / "test.parquet", [row(0, [WEATHER], ["get_weather"])])
    for _ in range(2):  # the outputs are no inputs
        report = label(tmp_path)
        names = [Path(each["path"]).name for each in report["outputs"]]
        assert names == ["test_router.parquet", "train_router.parquet"]
    assert targets(tmp_path / "test_router.parquet") == ["SEARCH-FAMILY"]


def test_labels_of_an_earlier_run_are_replaced(dataset: Path, tmp_path: Path):
    label(dataset)
    folder = tmp_path / "again"
    report = label(tmp_path / "train_router.parquet", "--output-dir", folder)
    table = parquet.read_table(report["outputs"][0]["path"])
    assert table.column_names.count("router_target_action") == 1
    assert table.equals(parquet.read_table(tmp_path / "train_router.parquet"))


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_sidecar_has_the_labels_alone(dataset: Path, tmp_path: Path, kind: str):
    report = label(dataset, "--sidecar", kind)
    path = tmp_path / f"train_router_labels.{kind}"
    assert [each["path"] for each in report["outputs"]] == [str(path)]
    sidecar = read_sidecar(path)
    rows = parquet.read_table(dataset).to_pylist()
    assert [labels_of(each, sidecar).target for each in rows] == [target for *_, target in ROWS]
    assert sidecar["2"].families == {"get_weather": "search", "compound_interest": "calculate"}


@pytest.mark.parametrize(("index", "reason"), [(None, "is missing"), (0, "0 is not unique")])
def test_a_sidecar_needs_an_index_for_each_row(tmp_path: Path, index, reason: str):
    rows = [row(0, [WEATHER], []), row(1, [WEATHER], [])]
    rows[1]["extra_info"]["index"] = index
    path = write(tmp_path / "train.parquet", rows)
    message = error_of(path, "--sidecar", "jsonl")
    assert f"row 2: extra_info.index {reason}" in message


def test_a_single_file_is_split_in_the_same_way_each_time(tmp_path: Path):
    rows = [row(index // 2, [WEATHER], ["get_weather"]) for index in range(400)]
    path = write(tmp_path / "data.parquet", rows)
    for folder in ("a", "b"):
        label(path, "--test-share", 0.2, "--output-dir", tmp_path / folder)
    indices = {}
    for name in ("train", "test"):
        tables = [
            parquet.read_table(tmp_path / folder / f"{name}_router.parquet") for folder in "ab"
        ]
        assert tables[0].equals(tables[1])
        indices[name] = {each["index"] for each in tables[0]["extra_info"].to_pylist()}
        assert tables[0].num_rows == 2 * len(indices[name]), "rows with an index stay together"
    assert not indices["train"] & indices["test"]
    assert indices["train"] | indices["test"] == set(range(200))
    assert 0.1 < len(indices["test"]) / 200 < 0.3
    label(path, "--test-share", 1e-9, "--output-dir", tmp_path / "c")
    assert parquet.read_table(tmp_path / "c" / "test_router.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: row.pop("prompt"), "has no column 'prompt'"),
        (lambda row: row.update(prompt="text"), "row 1: prompt: must be a list of messages"),
        (lambda row: row["reward_model"].pop("ground_truth"), "row 1: reward_model.ground_truth"),
    ],
)
def test_another_format_is_refused_with_the_reason(tmp_path: Path, change, reason: str):
    each = row(0, [WEATHER], [])
    change(each)
    assert reason in error_of(write(tmp_path / "train.parquet", [each]))


def test_wrong_arguments_are_refused_with_the_reason(dataset: Path, tmp_path: Path):
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1")
    patterns = tmp_path / "patterns.json"
    patterns.write_text('{"find": ["*"]}')
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, reason in [
        ([damaged], "damaged.parquet: "),
        ([tmp_path / "missing.parquet"], "missing.parquet: no such Parquet file"),
        ([empty], "no Parquet file in this folder"),
        ([dataset, dataset], "two datasets have the same output"),
        ([dataset, "--model", "m"], "give --model-url and --model together"),
        ([dataset, "--model", "m", "--model-url", "localhost:8000"], "give a URL, e.g. http://"),
        ([dataset, "--model-rows"], "--model-rows and --cache-file need --model-url"),
        ([dataset, "--family-patterns", patterns], "family_patterns"),
        ([dataset, "--test-share", "1"], "--test-share"),
        (
            [dataset, "--model-url", "http://127.0.0.1:9", "--model", "m", "--cache-file", damaged],
            "damaged.parquet: file is not a database",
        ),
    ]:
        assert reason in error_of(*arguments), arguments
    assert not list(tmp_path.glob("*_router*")), "nothing was written"


# A model

#: Answers by words in the question: about each row, then about each tool.
ANSWERS = {
    "Request 0": "ANSWER",
    "Request 1": "SEARCH",
    "Request 2": "CALCULATE",
    "Request 3": "MIXED",
    "Request 4": "ANSWER",
    "Request 5": "CALCULATE",
    "Request 6": "",
    "get_weather": "SEARCH",
    "compound_interest": "<think>It computes, and does not search.</think>\nCalculate.",
    "total": "CALCULATE",
    "send_email": "OTHER",
    "find_flights": "It could be SEARCH or OTHER.",
}


class Endpoint:
    """An OpenAI-compatible endpoint that records requests.

    Attributes:
        answers: The answers, by words in the question.
        failures: Other responses, by the number of the request from 1 on.
        answers_left: Answers until it stops answering.
        waiting: Requests that it does not answer.
    """

    def __init__(self) -> None:
        self.answers = dict(ANSWERS)
        self.failures: dict[int, Response] = {}
        self.answers_left = 1_000
        self.waiting = 0
        self.requests: list[dict] = []
        self.keys: list[str | None] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)

    @property
    def questions(self) -> list[str]:
        return [request["messages"][1]["content"] for request in self.requests]

    async def _complete(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if failure := self.failures.get(len(self.requests)):
            return failure
        if self.answers_left == 0:
            self.waiting += 1
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
        self.answers_left -= 1
        words = set(re.findall(r"\w+", self.questions[-1]))
        answer = next(a for key, a in self.answers.items() if set(key.split()) <= words)
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return Response(json.dumps({"choices": [choice]}), media_type="application/json")


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def url(endpoint: Endpoint):
    with serving(endpoint.app) as url:
        yield f"{url}/v1"


def test_a_model_labels_tools_and_agreement_is_reported(
    dataset: Path,
    endpoint: Endpoint,
    url: str,
    monkeypatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    report = label(dataset, "--model-url", url, "--model", "m")
    output = Path(report["outputs"][0]["path"])
    assert targets(output)[5] == "CALCULATE-FAMILY"
    assert targets(output)[6] == "SEARCH-FAMILY", "by patterns, as the model's answer is not valid"
    assert report["unanswered"] == {"tools": 1, "rows": 0}
    assert report["families"] == {
        "model": {"search": 1, "calculate": 2, "other": 1},
        "patterns": {"search": 2, "calculate": 1, "other": 2},
        "result": {"search": 2, "calculate": 2, "other": 1},
    }
    [tools], [rows] = report["tools"], report["targets"]
    assert (tools["methods"], tools["count"], tools["share"]) == (["model", "patterns"], 4, 0.75)
    assert (rows["count"], rows["share"]) == (5, 0.8), "only rows that call tools"
    [difference] = report["disagreements"]
    assert difference["families"] == {"model": "calculate", "patterns": "other"}
    request = endpoint.requests[0]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0, 512)
    assert set(endpoint.keys) == {"Bearer secret"}
    assert len(endpoint.requests) == 5, "one for each tool"


def test_a_model_labels_rows(dataset: Path, tmp_path: Path, endpoint: Endpoint, url: str):
    arguments = (dataset, "--model-url", url, "--model", "m", "--model-rows")
    report = label(*arguments)
    assert targets(tmp_path / "train_router.parquet") == [
        "ANSWER", "SEARCH-FAMILY", "CALCULATE-FAMILY", "MIXED", "ANSWER", "CALCULATE-FAMILY",
        "SEARCH-FAMILY",
    ]  # fmt: skip
    assert report["unanswered"] == {"tools": 1, "rows": 1}
    agreed = {tuple(each["methods"]): (each["count"], each["share"]) for each in report["targets"]}
    assert agreed[("model's rows", "model")] == (6, pytest.approx(5 / 6)), "send_email differs"
    assert agreed[("model's rows", "patterns")] == (6, pytest.approx(4 / 6))
    question = next(each for each in endpoint.questions if "Request 1" in each)
    assert '"get_weather"' in question, "the ground truth is shown"
    assert "Available Tools" not in question


def test_a_model_is_not_asked_about_malformed_rows(
    tmp_path: Path,
    endpoint: Endpoint,
    url: str,
):
    rows = [row(0, [], []), row(1, [], [])]
    rows[0]["reward_model"]["ground_truth"] = "no tags"
    path = write(tmp_path / "train.parquet", rows)
    label(path, "--model-url", url, "--model", "m", "--model-rows")
    assert targets(tmp_path / "train_router.parquet") == ["MIXED", "SEARCH-FAMILY"]
    assert ["Request 1" in each for each in endpoint.questions] == [True]


def test_answers_are_cached_and_invalid_ones_requested_again(
    dataset: Path,
    tmp_path: Path,
    endpoint: Endpoint,
    url: str,
):
    arguments = (dataset, "--model-url", url, "--model", "m")
    first = label(*arguments)
    assert (tmp_path / "router_labels.sqlite").exists()
    endpoint.requests.clear()
    assert label(*arguments) == first
    assert endpoint.questions == ["Name: find_flights\nDescription: "]
    endpoint.requests.clear()
    label(dataset, "--model-url", url, "--model", "another")
    assert len(endpoint.requests) == 5, "the cache belongs to the model"


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_and_ends_with_the_same_labels(
    tmp_path: Path,
    endpoint: Endpoint,
    url: str,
):
    tools = [(f"tool{number}", f"Kind {number % 3}.") for number in range(30)]
    words = ("SEARCH", "CALCULATE", "OTHER")
    rows = [row(number, tools, [f"tool{number}"]) for number in range(30)]
    endpoint.answers = {f"tool{number}": words[number % 3] for number in range(30)}
    (tmp_path / "killed").mkdir()
    (tmp_path / "undisturbed").mkdir()
    killed = write(tmp_path / "killed" / "train.parquet", rows)
    undisturbed = write(tmp_path / "undisturbed" / "train.parquet", rows)
    model = ("--model-url", url, "--model", "m", "--concurrency", "2")
    endpoint.answers_left = 12
    command = [sys.executable, "-m", "rewardfleet_router", "label", str(killed), *model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: endpoint.waiting == 2, 120)
    finally:
        process.kill()
        process.communicate()
    assert not (killed.parent / "train_router.parquet").exists()
    assert len(endpoint.requests) == 14
    endpoint.requests.clear()
    endpoint.answers_left = 1_000
    label(killed, *model)
    assert len(endpoint.requests) == 18, "only those that had no answer"
    endpoint.requests.clear()
    label(undisturbed, *model)
    assert len(endpoint.requests) == 30
    results = [parquet.read_table(p.parent / "train_router.parquet") for p in (killed, undisturbed)]
    assert results[0].equals(results[1])
    expected = ["SEARCH-FAMILY", "CALCULATE-FAMILY", "MIXED"] * 10
    assert targets(killed.parent / "train_router.parquet") == expected


@pytest.mark.slow
def test_the_endpoint_may_fail_for_a_while(dataset: Path, endpoint: Endpoint, url: str):
    endpoint.failures = {1: Response(status_code=503), 3: Response(status_code=429)}
    report = label(dataset, "--model-url", url, "--model", "m")
    assert report["unanswered"] == {"tools": 1, "rows": 0}


def test_an_interrupted_answer_is_asked_for_again(
    dataset: Path, endpoint: Endpoint, url: str, monkeypatch
):
    """As of vLLM at an update of weights. The other choice is no answer either."""
    monkeypatch.setattr(model, "_PAUSE", 0)
    message = {"role": "assistant", "content": "SEARCH"}
    cut = {"index": 0, "message": message, "finish_reason": "abort"}
    body = json.dumps({"choices": [{**cut, "index": 1, "finish_reason": "stop"}, cut]})
    aborted = Response(body, media_type="application/json")
    endpoint.failures = {1: aborted, 3: aborted}
    report = label(dataset, "--model-url", url, "--model", "m")
    assert report["unanswered"] == {"tools": 1, "rows": 0}
    endpoint.failures = dict.fromkeys(range(1, 100), aborted)
    endpoint.requests.clear()
    assert "interrupted 6 answers" in error_of(dataset, "--model-url", url, "--model", "other")


def test_a_refusal_ends_the_run_and_keeps_the_answers(
    dataset: Path,
    endpoint: Endpoint,
    url: str,
):
    model = ("--model-url", url, "--model", "m", "--concurrency", "1")
    endpoint.failures = {4: Response("no such model", status_code=404)}
    message = error_of(dataset, *model)
    assert "the endpoint of m refused: HTTP 404: no such model" in message
    endpoint.requests.clear()
    endpoint.failures.clear()
    label(dataset, *model)
    assert len(endpoint.requests) == 2, "3 of 5 tools had been labeled"


@pytest.mark.parametrize(
    "response",
    [
        Response("busy", media_type="text/plain"),
        Response("{", media_type="application/json"),
        Response("[]", media_type="application/json"),
        Response('{"choices": []}', media_type="application/json"),
        Response('{"choices": [{"message": null}]}', media_type="application/json"),
    ],
    ids=lambda response: response.body.decode(),
)
def test_an_answer_that_is_no_completion_is_reported(
    dataset: Path, endpoint: Endpoint, url: str, response: Response
):
    endpoint.failures = dict.fromkeys(range(1, 10), response)
    message = error_of(dataset, "--model-url", url, "--model", "m")
    assert "the endpoint of m did not return a valid chat completion" in message


def test_an_endpoint_that_is_not_there_is_reported_without_its_key(
    dataset: Path, monkeypatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(labeling, "_RETRIES", 0)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    message = error_of(dataset, "--model-url", url, "--model", "m")
    assert "the endpoint of m failed: APIConnectionError: " in message
    assert "secret" not in message + caplog.text


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar(dataset: Path, endpoint: Endpoint, url: str):
    main_end, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    command = [sys.executable, "-m", "rewardfleet_router", "label", str(dataset)]
    process = subprocess.Popen(
        [*command, "--model-url", url, "--model", "m"],
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the process has ended
        while chunk := os.read(main_end, 10_000):
            shown += chunk
    os.close(main_end)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"Labeling tools" in shown and b"5/5" in shown
    table = out.decode()
    assert "train_router.parquet" in table
    assert "No valid answer of the model for 1 tools" in table
    assert "total" in table and "75.0%" in table


@pytest.mark.parametrize(
    ("text", "finish_reason", "label"),
    [
        ("SEARCH", "stop", "SEARCH"),
        (" **Search**.", "stop", "SEARCH"),
        ("Label: calculate", "stop", "CALCULATE"),
        ("Label: calculate", None, None),
        ("SEARCH", "content_filter", None),
        ("SEARCH", "abort", None),
        ("<think>Is it SEARCH? No.</think>OTHER", "stop", "OTHER"),
        ("Is it SEARCH? No.</think>OTHER", "stop", "OTHER"),
        ("SEARCH or OTHER", "stop", None),
        ("RESEARCH", "stop", None),
        ("<think>SEARCH", "stop", None),
        ("SEARCH", "length", None),
        ("", "stop", None),
        (None, "stop", None),
    ],
)
def test_an_answer_counts_if_it_names_one_label(text, finish_reason, label):
    assert read_label(text, finish_reason, TOOL_FAMILY.labels) == label


def test_kappa_is_that_of_a_textbook_example():
    """Two raters, 50 items: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no; kappa is 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    labels = {
        "a": {number: pair[0] for number, pair in enumerate(pairs)},
        "b": {number: pair[1] for number, pair in enumerate(pairs)} | {99: "y"},
    }
    result = agreement(labels, "a", "b")
    assert (result.count, result.share, result.kappa) == (50, 0.7, pytest.approx(0.4))
    same = agreement({"a": {1: "y"}, "b": {1: "y"}}, "a", "b")
    assert (same.share, same.kappa) == (1.0, None)
    assert agreement({"a": {1: "y"}, "b": {2: "y"}}, "a", "b").share is None
