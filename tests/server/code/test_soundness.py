"""Programs that do not solve their task are not accepted, whatever they try.

The programs are in `tests/data/code/attacks.txt`. A section begins with its name and with what its
tests expect; its next line is a request without the program. Of its programs, the first is right.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ...conftest import DATA
from .conftest import LIMITS, SHORT_LIMITS, Service, sample

pytestmark = [pytest.mark.slow, pytest.mark.protocol]


class Section(NamedTuple):
    """Tests, and programs for them."""

    name: str
    #: `values`, so that no attack may pass, or `objects` of the program, whose classes may decide,
    #: which must be reported.
    expects: str
    request: dict[str, Any]  #: the tests and other fields
    right: str  #: a program that solves the task
    attacks: dict[str, str]  #: programs that do not, by name


def sections() -> Iterator[Section]:
    _, *blocks = (DATA / "code" / "attacks.txt").read_text().split("\n=== ")
    for block in blocks:
        head, *programs = block.split("\n--- ")
        title, request = head.split("\n", 1)
        name, _, expects = title.partition(" | ")
        assert expects in {"values", "objects"}, title
        (_, right), *attacks = (each.split("\n", 1) for each in programs)
        yield Section(name, expects, json.loads(request), right, dict(attacks))


SECTIONS = {each.name: each for each in sections()}


@pytest.mark.parametrize("section", sample(SECTIONS, 3))
def test_no_attack_passes(level_service: Service, section: Section):
    request = {"limits": SHORT_LIMITS, **section.request}
    score = level_service.score(section.right, **{**request, "limits": LIMITS})
    assert {each["verdict"] for each in score["verdicts"]} == {"accepted"}, score
    for name, program in section.attacks.items():
        score = level_service.score(program, **request)
        accepted = {v["verdict_by"] for v in score["verdicts"] if v["verdict"] == "accepted"}
        assert accepted <= ({"jail"} if section.expects == "objects" else set()), (name, score)
        if accepted:  # which is reported, and `strict` rejects
            assert any("decided by" in each for each in score["suspicions"]), (name, score)
            strict = {**request, "tests": {**section.request["tests"], "strict": True}}
            score = level_service.score(program, **strict)
            assert "accepted" not in {each["verdict"] for each in score["verdicts"]}, (name, score)
