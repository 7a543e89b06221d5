"""A ground truth of the code service has the same score through every door."""

import functools
import json
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from rewardfleet import code_request
from rewardfleet.adapters.trl import reward_function
from rewardfleet.blocking import RewardFleet
from rewardfleet.commands.main import main
from rewardfleet.wire.validation import encode_json, validate_json

from ..code.conftest import asserts, served_code, stdio
from .test_trainers import PROMPT, answer, openrlhf, rollout, slime

FIVE, ADD = "print(5)", "def add(a, b):\n    return a + b"
BUSY = "for _ in range(30_000_000):\n    pass\nprint(5)"
TWO = [("2 3", "5"), ("1 1", "2")]
STDIO, ONE = stdio(*TWO), stdio(TWO[0])
IO = {"inputs": [given for given, _ in TWO], "outputs": [expected for _, expected in TWO]}
ASSERTS = ["assert add(1, 2) == 3", "assert add(1, 1) == 3"]
ALL = {"mode": "all_pass"}


def cases(given: str, expected: str) -> list[dict[str, str]]:
    return [{given: each[0], expected: each[1]} for each in TWO]


#: Programs, ground truths, and their scores.
TRUTHS: list[tuple[str, Any, float]] = [
    *((FIVE, cases("stdin", name), 0.5) for name in ("stdout", "expected_output")),
    *((FIVE, cases("input", name), 0.5) for name in ("output", "expected_output")),
    (FIVE, cases("stdin", "stdout")[0], 1.0),
    (FIVE, {"test_cases": cases("stdin", "stdout"), **ALL}, 0.0),
    (ADD, ASSERTS, 0.5),
    (ADD, ASSERTS[0], 1.0),
    (ADD, {"tests": asserts(*ASSERTS), **ALL}, 0.0),
    (FIVE, STDIO, 0.5),
    (FIVE, IO, 0.5),
    (FIVE, {**IO, **ALL}, 0.0),
    (FIVE, {"tests": STDIO, **ALL}, 0.0),
    (FIVE, {"tests": json.dumps(IO), **ALL}, 0.0),
    (FIVE, json.dumps({"tests": {"tests": cases("input", "output"), **ALL}}), 0.0),
    (FIVE, {"kind": "dataset", "dataset": "auto", "row": {"ground_truth": {**IO, **ALL}}}, 0.0),
    (FIVE, {"reward_model": {"ground_truth": json.dumps({"tests": STDIO, **ALL})}}, 0.0),
    (FIVE, {"tests": {"tests": STDIO, "mode": "pass_rate"}, **ALL}, 0.5),
    (BUSY, {"tests": ONE, "limits": {"cpu_s": 0.2}}, 0.0),
    (BUSY, {"tests": ONE, "time_limit": "200 ms"}, 0.0),
    (BUSY, {"tests": ONE}, 1.0),
]


def by_client(url: str, _: Path) -> list[float | None]:
    with RewardFleet(code=url) as fleet:
        alone = [fleet.code.score(program, truth).score for program, truth, _ in TRUTHS]
        named = [{"program": program, "tests": truth} for program, truth, _ in TRUTHS]
        assert [score.score for score in fleet.code.score_batch(named)] == alone
    return alone


def by_trl(url: str, _: Path) -> list[float]:
    function = reward_function("code", url, is_async=False)
    programs, truths, _ = zip(*TRUTHS, strict=True)
    return function(prompts=[""] * len(programs), completions=[*programs], tests=[*truths])


def by_score(url: str, folder: Path) -> list[float]:
    rows = [json.dumps({"program": program, "tests": truth}) for program, truth, _ in TRUTHS]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    main(["score", "code", str(folder / "rows.jsonl"), "--url", url, "-o", str(folder / "out")])
    found = pq.read_table(folder / "out" / "part-00000.parquet", columns=["row", "score"])
    return found.sort_by("row")["score"].to_pylist()


def by_harbor(url: str, folder: Path) -> list[float]:
    options = ["--tests", str(folder / "tests"), "--output-dir", str(folder), "--url", url]
    found = []
    for program, truth, _ in TRUTHS:
        (folder / "program.py").write_text(program)
        (folder / "tests").write_text(truth if isinstance(truth, str) else json.dumps(truth))
        assert main(["harbor", str(folder / "program.py"), *options]) == 0
        found.append(json.loads((folder / "reward.json").read_text())["reward"])
    return found


def by_http(path: str, body_of: Callable[[str, Any], Any], *places: Any) -> Callable[..., Any]:
    """Return the door of a route: its body, and where its answer has the score."""

    def door(url: str, _: Path) -> list[Any]:
        with httpx.Client(base_url=url, timeout=60) as client:
            bodies = [body_of(program, truth) for program, truth, _ in TRUTHS]
            answers: list[Any] = [answer(client, path, body) for body in bodies]
        return [functools.reduce(operator.getitem, places, each) for each in answers]

    return door


def row_of(truth: Any) -> dict[str, Any]:
    return {"kind": "dataset", "dataset": "auto", "row": {"ground_truth": truth}}


DOORS: dict[str, Callable[[str, Path], list[float | None]]] = {
    "client": by_client,
    "TRL": by_trl,
    "score": by_score,
    "harbor": by_harbor,
    "/score": by_http("/score", lambda p, t: {"program": p, "tests": t}, "score"),
    "row": by_http("/score", lambda p, t: {"revision": p, "tests": row_of(t)}, "score"),
    "/get_reward": by_http("/get_reward", lambda p, t: openrlhf(PROMPT + p, t), "rewards", 0),
    "/slime": by_http("/slime", slime),
    "/verify": by_http("/verify", lambda p, t: rollout(p, ground_truth=t), "reward"),
    "/step": by_http("/step", lambda p, t: {"action": {"code": p, "tests": t}}, "reward"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_code(workers=2, cache_mb=64) as service:
        yield str(service.client.base_url)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_truth_has_one_score(door: str, url: str, tmp_path: Path):
    assert DOORS[door](url, tmp_path) == [score for _, _, score in TRUTHS]


def test_what_a_request_says_comes_before_its_truth():
    """Also where rules of the request are for the service, which reads the tests in the row."""
    truth = {"tests": STDIO, **ALL, "limits": {"cpu_s": 1}}
    request = code_request(FIVE, {**row_of(truth), "checker": "exact"}, mode="pass_rate")
    assert (request.mode, request.limits.cpu_s, request.tests.kind) == ("pass_rate", 1, "dataset")
    assert validate_json(type(request), encode_json(request)) == request
