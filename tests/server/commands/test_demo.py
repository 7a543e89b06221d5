"""`rewardfleet demo`, on the rollouts in the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_scores_its_rollouts_anywhere(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "rewardfleet_server", "demo"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "60"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rest = done.stdout.partition("\n\n")[2]
    table, summary = rest.split("\n\n")[:2]
    assert len(table.splitlines()) == 1 + 11
    assert max(len(line) for line in table.splitlines()) <= 60
    assert "AUROC 1.000 over 4 successes and 7 failures; 0 abstained." in summary
    assert "11 of 11 scores came from the cache" in summary
    for name in ("code", "episode", "tools"):
        assert f"\n{name} " in rest
