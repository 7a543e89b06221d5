"""Right programs are accepted and wrong ones rejected if the tests construct the program's classes.

The programs are in `tests/data/code/objects.txt`, which describes its format.
"""

from collections import defaultdict
from collections.abc import Iterator

import pytest

from ...conftest import DATA
from .conftest import Service, asserts, sample

pytestmark = [pytest.mark.slow, pytest.mark.protocol]


def sections() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield the name of each section, and its parts by kind."""
    text = (DATA / "code" / "objects.txt").read_text()
    for section in text.split("\n#### ")[1:]:
        name, *blocks = section.split("\n---- ")
        parts = defaultdict(list)
        for block in blocks:
            kind, _, content = block.partition("\n")
            parts[kind].append(content.strip("\n") + "\n")
        parts["wrong"] = [changed(parts["right"][0], each) for each in parts["wrong"]]
        yield name, parts


def changed(program: str, change: str) -> str:
    """Return a program with lines replaced, or the one that the change consists of."""
    if not change.startswith("- "):
        return change
    lines = change.splitlines()
    old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    assert program.count(old) == 1, change
    return program.replace(old, new)


SECTIONS = dict(sections())


@pytest.mark.parametrize("parts", sample(SECTIONS, 4))
def test_right_programs_are_accepted_and_wrong_ones_rejected(level_service: Service, parts):
    (entry_point,) = parts["entry point"] or [""]
    tests = asserts(*parts["test"], entry_point=entry_point.strip())
    for kind in ("right", "wrong"):
        for program in parts[kind]:
            score = level_service.score(program, tests)
            assert (score["score"] == 1) == (kind == "right"), (program, score)
