"""CTRL's training files, and critiques written by a model that knows how programs ran.

The columns are those that `cleanup_rl.py` writes and `RewardModelForCritic` reads in
HKUNLP/critic-rl at 13dc710. The model is a server of OpenAI's format on loopback.
"""

import asyncio
import json
import math
from collections import Counter
from functools import partial

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from rewardfleet import RewardFleet
from rewardfleet.adapters.ctrl import (
    CritiqueReport,
    CritiqueReward,
    RewardModelForCritic,
    execution_feedback,
    read_rows,
    write_critiques,
)
from rewardfleet.wire.code import CodeScore
from rewardfleet_server.testing import serving

from ..conftest import table
from .conftest import ECHO, SUM
from .standin import CharTokenizer, batch_of
from .test_ctrl import CRITIQUE

pytestmark = pytest.mark.slow

CASES = [
    {"input": {"stdin": "1 2"}, "output": {"stdout": "3"}},
    {"input": {"stdin": "7"}, "output": {"stdout": "7"}},
]
DOUBLE = "def double(x):\n    return 2 * x"
RECORDS = table("ctrl_rows")


@pytest.fixture
def files(tmp_path) -> list[str]:
    """Return one Parquet file per form of the tests, and the same rows as JSON lines."""
    paths = []
    for number, record in enumerate(RECORDS):
        path = tmp_path / f"train_{number}.parquet"
        write_table(pa.Table.from_pylist([record]), path)
        paths.append(str(path))
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in RECORDS))
    return paths


def test_training_files_become_rows(files, tmp_path):
    rows = read_rows(files)
    assert rows == read_rows(tmp_path / "train.jsonl")
    assert [row["id"] for row in rows] == ["io/0", "assert/0"]
    assert rows[0]["tests"] == {
        "kind": "dataset",
        "dataset": "code_contests",
        "row": {"selected_uts": json.dumps(CASES), "time_limit": 2.0},
    }
    assert rows[1]["tests"]["row"] == {"selected_uts": RECORDS[1]["selected_uts"]}
    assert rows[0]["prompt"][-1]["content"] == "Review this."
    assert "prompt" not in rows[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (json.dumps({**RECORDS[0], "prompter_type": "leetcode"}), "has no `tests`, .* 'leetcode'"),
        (json.dumps({**RECORDS[0], "solution": None}), "`solution` is missing"),
        ("{", "not JSON"),
        ("[]", "a row is a JSON object"),
    ],
)
def test_other_files_are_refused_by_row(tmp_path, line, message):
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(RECORDS[0])}\n{line}\n")
    with pytest.raises(ValueError, match=f"x.jsonl:2: {message}"):
        read_rows(path)


@pytest.mark.parametrize(("run_all_cases", "expected"), [(True, [0.5, 0.5]), (False, [0.0, 0.0])])
def test_ctrls_signature_and_its_driver(files, code_url, capsys, run_all_cases, expected):
    """`run_rl.py` gives these arguments, and the driver calls these methods by these names."""
    reward_class = partial(RewardModelForCritic, fleet=RewardFleet(code=code_url))
    reward_fn = reward_class(
        file=files, tokenizer=CharTokenizer(), num_examine=1, run_all_cases=run_all_cases
    )
    ids, critiques, _ = reward_fn.parse_response(batch_of(["io/0", "assert/0"], [CRITIQUE] * 2))
    assert capsys.readouterr().out == f"{CRITIQUE}\n", "as many as num_examine"
    queries, samples = reward_fn.parse_query(ids)
    assert [query.problem for query in queries] == ["Add.", "Double."]
    rewards = asyncio.run(
        reward_fn.get_reward_all(critiques=critiques, revisions=[ECHO, DOUBLE], samples=samples)
    )
    assert rewards == expected
    shares = {"reward/failed": 0, "reward/abstained": 0, "reward/p50": expected[0]}
    assert reward_fn.metrics.items() >= shares.items()


async def test_tests_that_ctrl_runs_as_one_program_score_1_or_0(tmp_path, code_url):
    """Also with `run_all_cases=True`; tests/third_party/test_ctrl.py has the other forms."""
    tests = {"input_output": json.dumps({"inputs": ["1 2", "7"], "outputs": ["3", "7"]})}
    row = {"id": "1", "problem": "", "solution": "", "prompter_type": "livecodebench"}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({**row, "selected_uts": json.dumps(tests)}))
    reward_fn = RewardModelForCritic(path, CharTokenizer(), fleet=RewardFleet(code=code_url))
    _, samples = reward_fn.parse_query(["1"])
    assert await reward_fn.get_reward_all([CRITIQUE], [ECHO], samples) == [0]


def test_rows_of_a_data_frame_work_too(code_url):
    """`DataFrame.to_dict("records")` has arrays, NaN for missing numbers, keys of others."""
    row = {
        "selected_uts": np.array(RECORDS[1]["selected_uts"], dtype=object),
        "time_limit": math.nan,
    }
    cases = [{"stdin": "1", "stdout": "1"}, {"stdin": None, "stdout": "2"}]
    cases = np.array(cases, dtype=object)
    stdio = {"kind": "stdio", "cases": cases, "fn_name": None, "tolerance": np.float64(0.5)}
    for tests, revision in (
        ({"kind": "dataset", "dataset": "mbppplus", "row": row}, DOUBLE),
        (stdio, "print(1)"),
    ):
        rows = [{"id": 1, "problem": "", "solution": DOUBLE, "tests": tests}]
        fn = CritiqueReward(RewardFleet(code=code_url), rows, CharTokenizer())
        assert asyncio.run(fn.get_reward_all([CRITIQUE], [revision], rows)) == [0.5]


# Critiques


def score_of(*verdicts: dict) -> CodeScore:
    accepted = [each["verdict"] == "accepted" for each in verdicts]
    rate = sum(accepted) / len(accepted)
    fields = {"score": rate, "status": "ok", "pass_rate": rate, "verdicts": list(verdicts)}
    return CodeScore.model_validate(fields)


@pytest.mark.parametrize("case", table("hints"))
def test_a_hint_says_what_happened(case: dict):
    hint = execution_feedback(score_of(*case["verdicts"]), case["tests"])
    for text in case["told"]:
        assert text in hint
    assert len(hint) < 1500


class Model:
    """A server of OpenAI's format, whose answers a function gives."""

    def __init__(self, answer) -> None:
        self.prompts: list[str] = []
        self.bodies: list[dict] = []
        self.headers: list[str | None] = []
        self._answer = answer

    async def complete(self, request: Request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers.get("authorization"))
        self.prompts.append(body["messages"][-1]["content"])
        answer = self._answer(self.prompts[-1])
        if isinstance(answer, int):
            return PlainTextResponse("no", status_code=answer)
        return JSONResponse({"choices": [{"message": {"content": answer}}]})

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])


def critic(prompt: str) -> str:
    """Judge as the hint says."""
    judgment = "Correct" if "passes all tests" in prompt else "Incorrect"
    return f"<think>hm: the hint</think>\nAnalysis: a\n\nOverall judgment: {judgment}"


async def critiques(model: Model, rows, path, code_url: str, **options) -> CritiqueReport:
    with serving(model.app()) as server:
        fleet = RewardFleet(code=code_url, timeout_s=20)
        return await write_critiques(
            fleet,
            rows,
            path,
            url=f"{server}/v1",
            model="m",
            **options,
        )


async def test_critiques_are_written_from_what_programs_did(code_url, files, tmp_path):
    path = tmp_path / "sft.jsonl"
    rows = [
        *read_rows(files),
        {**read_rows(files)[0], "id": "right", "solution": SUM, "prompt": "x"},
    ]
    model = Model(critic)
    sampling = {"temperature": 0.5, "max_tokens": 64}
    report = await critiques(model, rows, path, code_url, sampling=sampling, api_key="k")
    assert report == CritiqueReport(written=3)
    lines = {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}
    wrong, double, right = (lines[name] for name in ("io/0", "assert/0", "right"))
    assert wrong == {
        "id": "io/0",
        "critic_instruction": "Review this.",
        "critique": "Analysis: a\n\nOverall judgment: Incorrect",
    }
    assert "Double." in double["critic_instruction"] and DOUBLE in double["critic_instruction"]
    assert right["critique"].endswith("Correct")
    assert not any("Expected output" in line["critic_instruction"] for line in lines.values())
    assert any("Input:\n1 2\nExpected output:\n3" in prompt for prompt in model.prompts)
    assert model.headers == ["Bearer k"] * 3
    assert model.bodies[0].items() >= {"model": "m", **sampling}.items()

    again = await critiques(model, rows, path, code_url)
    assert again == CritiqueReport(present=3), "an interrupted call goes on"
    path.write_bytes(path.read_bytes()[:-10])  # as if killed while it wrote the last line
    again = await critiques(model, rows, path, code_url)
    assert again == CritiqueReport(written=1, present=2)
    assert {json.loads(line)["id"] for line in path.read_text().splitlines()} == set(lines)
    assert len(model.prompts) == 4


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("As the hint says.\nOverall judgment: Incorrect", "mentions_hint"),
        ("Analysis: a", "no_judgment"),
        ("Overall judgment: Correct", "wrong_judgment"),
    ],
)
async def test_unfit_critiques_are_not_written(code_url, files, tmp_path, answer, reason):
    path = tmp_path / "sft.jsonl"
    report = await critiques(Model(lambda _: answer), read_rows(files[0]), path, code_url)
    assert report == CritiqueReport(rejected={reason: 1})
    assert not path.exists()


async def test_failures_are_counted_and_retried(code_url, files, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rewardfleet.adapters.ctrl.critiques._FIRST_WAIT", 0.001)
    tries: Counter[str] = Counter()

    def flaky(prompt: str):
        tries[prompt] += 1
        return 503 if tries[prompt] < 3 else critic(prompt)

    rows, path = read_rows(files), tmp_path / "sft.jsonl"
    rows[1] = {**rows[1], "tests": {"kind": "stdio", "cases": []}}
    report = await critiques(Model(flaky), rows, path, code_url)
    assert report == CritiqueReport(written=1, failed=1)
    assert list(tries.values()) == [3]
    assert "no critique of row assert/0" in caplog.text
    for broken in (lambda _: "", lambda _: 503, lambda _: 400):
        report = await critiques(Model(broken), read_rows(files[1]), path, code_url)
        assert report == CritiqueReport(failed=1)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        await critiques(Model(lambda _: 401), read_rows(files[1]), path, code_url)
