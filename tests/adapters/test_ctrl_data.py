"""CTRL's training files.

The columns are those that `cleanup_rl.py` writes and `RewardModelForCritic` reads in
HKUNLP/critic-rl at 13dc710.
"""

import asyncio
import json
import math
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from rewardfleet import RewardFleet
from rewardfleet.adapters.ctrl import CritiqueReward, RewardModelForCritic, read_rows

from ..conftest import table
from .conftest import ECHO
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
    row = {"selected_uts": json.dumps(CASES), "time_limit": 2.0}
    assert rows[0]["tests"] == {"kind": "dataset", "dataset": "code_contests", "row": row}
    assert rows[1]["tests"]["row"] == {"selected_uts": RECORDS[1]["selected_uts"]}
    assert rows[0]["prompt"][-1]["content"] == "Review this."
    assert "prompt" not in rows[1]


def test_other_files_are_refused_by_row(tmp_path):
    path = tmp_path / "x.jsonl"
    for line, message in (
        (json.dumps({**RECORDS[0], "prompter_type": "leetcode"}), "has no `tests`, .* 'leetcode'"),
        (json.dumps({**RECORDS[0], "solution": None}), "`solution` is missing"),
        ("{", "not JSON"),
    ):
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
    scripts = np.array(RECORDS[1]["selected_uts"], dtype=object)
    row = {"selected_uts": scripts, "time_limit": math.nan}
    cases = [{"stdin": "1", "stdout": "1"}, {"stdin": None, "stdout": "2"}]
    cases = np.array(cases, dtype=object)
    stdio = {"kind": "stdio", "cases": cases, "fn_name": None, "tolerance": np.float64(0.5)}
    of_row = {"kind": "dataset", "dataset": "mbppplus", "row": row}
    for tests, revision in ((of_row, DOUBLE), (stdio, "print(1)")):
        rows = [{"id": 1, "problem": "", "solution": DOUBLE, "tests": tests}]
        fn = CritiqueReward(RewardFleet(code=code_url), rows, CharTokenizer())
        assert asyncio.run(fn.get_reward_all([CRITIQUE], [revision], rows)) == [0.5]
