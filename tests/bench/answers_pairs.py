"""The labeled pairs of `make bench-answers`: those written by hand, and generated ones.

Both come from tests/data/answers. A generated pair has one value in two forms, of which a model
wrote one; or what the model wrote is wrong. Half of all pairs are held out, by their hash.
"""

import hashlib
import itertools
import json
import random
import re
import tomllib
from collections.abc import Callable, Mapping
from math import comb
from pathlib import Path
from typing import Any

#: A pair: `response`, `reference`, `right`, `family`, `source`, and options of a request.
Pair = dict[str, Any]

FOLDER = Path(__file__).parent.parent / "data" / "answers"
#: Draws of numbers for each family.
DRAWS = 11
#: What models write around an answer: LaTeX, a plain formula, and one with words.
LATEX = (
    "\\boxed{@}", "So the result is\n\\[\\boxed{@}\\]", "Therefore, the answer is $\\boxed{@}$.",
    "<think>First I took 7, but that has a slip.</think>\nThe answer is $@$.", "Answer: $@$",
    "The final answer is \\(@\\).", "Step 1: simplify.\nStep 2: check.\n\n**Final answer:** $@$",
)  # fmt: skip
WORDS = (
    "The answer is @.", "**Answer:** @", "<answer>@</answer>", "Final answer: @",
    "<think>\nLet me check 12 first.\n</think>\n\n**@**",
)  # fmt: skip
PLAIN = (*WORDS, "\\boxed{@}", "Simplifying, we get @", "Answer: $@$", "@")
#: Functions with names as long as words.
FUNCTIONS = "sqrt", "exp", "cos", "sin"


def pairs() -> list[Pair]:
    return [*written(), *generated()]


def written() -> list[Pair]:
    """Return the pairs that were written one by one."""
    files = sorted(FOLDER.glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def is_held_out(pair: Pair) -> bool:
    """Return whether a pair is not for tuning."""
    key = json.dumps([pair["response"], pair.get("reference")])
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 2 == 0


def generated() -> list[Pair]:
    found: dict[str, Pair] = {}
    turns = {formats: itertools.cycle(formats) for formats in (LATEX, PLAIN, WORDS)}
    families = tomllib.loads((FOLDER / "generated.toml").read_text())
    for name, family in families.items():
        drawn = random.Random(name)
        options = {"form": family["form"]} if "form" in family else {}
        for _ in range(DRAWS):
            fill = filler(drawn, family["where"], family.get("unless", "False"))
            reference = fill(family["reference"])
            for template, is_right in (
                *((each, True) for each in family["right"]),
                *((each, False) for each in family["wrong"]),
            ):
                answer = fill(template)
                response = next(turns[formats_of(answer)]).replace("@", answer)
                pair = {"response": response, "reference": reference, "right": is_right,
                        "family": name, "source": "generated", **options}  # fmt: skip
                found.setdefault(response + reference, pair)
    return [*found.values()]


def formats_of(answer: str) -> tuple[str, ...]:
    """Return what models write around an answer."""
    if "\\" in answer:
        return LATEX
    words = {*re.findall("[A-Za-z]{3,}|/[a-z]", answer)} - {*FUNCTIONS}
    return WORDS if words else PLAIN


def filler(drawn: random.Random, where: Mapping[str, str], unless: str) -> Callable[[str], str]:
    """Draw numbers; return a function that fills a template with them."""
    numbers: dict[str, Any] = {"comb": comb}
    while True:
        for name, values in where.items():
            numbers[name] = drawn.choice(eval(values))
        if not eval(unless, numbers):
            break

    def value(match: re.Match[str]) -> str:
        expression, _, style = match[1].partition(":")
        return format(eval(expression, numbers), style)

    return lambda template: re.sub(r"<([^<>\s]+(?:, \w+\))?)>", value, template)
