"""The routes whose requests wait in line are those of the documentation."""

import re
from pathlib import Path

from rewardfleet.wire.waiting import _WAITS, waits_at

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/wire-formats.md").read_text()


def test_the_page_has_the_routes_and_their_times():
    table = PAGE.partition("## Waiting in line")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `/")]
    found = {path: row for row in rows for path in re.findall(r"`(/\S+)`", row[1])}
    assert found.keys() - {"/ws"} == _WAITS.keys()
    for path, waits in _WAITS.items():
        in_line, answer = (cell.strip() for cell in found[path][3:5])
        assert in_line == (f"{waits.in_line_s:g} s" if waits.in_line_s else "`deadline_s` - 20 s")
        assert answer == (f"{waits.answer_s:g} s" if waits.answer_s else "`deadline_s`")


def test_a_path_of_gym_may_have_the_id_of_a_rollout():
    assert waits_at("/ng-rollout/a/verify") is waits_at("/verify") is not None
    assert waits_at("/score") is None
