"""Parsing a score from text; the decisions are listed in the module's docstring."""

import json
import math
import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardfleet_server.video.judges.score_parser import parse_score, prompt_scale

from ...conftest import DATA, table
from ...measure import CpuStopwatch

MODES = ("auto", "percentage", "unit")

#: Texts with their scores by mode, or in all modes; null is an abstention.
LINES = (DATA / "video" / "scores.jsonl").read_text().splitlines()
TABLE = [json.loads(line) for line in LINES if line.startswith("{")]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: ascii(row["text"]))
def test_a_text_has_the_score_in_the_table(row):
    for mode in row.keys() & {"all", *MODES}:
        for each in MODES if mode == "all" else [mode]:
            parsed = parse_score(row["text"], mode=each)
            expected = None if row[mode] is None else pytest.approx(row[mode], abs=1e-9)
            assert parsed.score == expected, parsed
            assert parsed.reason.endswith(".") and len(parsed.reason) < 200


def read_rate(name: str) -> Counter[str]:
    """Count the answers of a set that are read as a person reads them, otherwise, or not at all."""
    lines = (DATA / "video" / f"{name}_answers.jsonl").read_text().splitlines()
    counts: Counter[str] = Counter()
    for line in lines:
        if line.startswith("["):
            _, _, _, text, person, *prompt = json.loads(line)
            mode = prompt_scale(prompt[0]) if prompt else "percentage"
            score = parse_score(text, mode=mode).score
            is_right = score == (person if person is None else pytest.approx(person, abs=1e-3))
            counts["right" if is_right else "abstained" if score is None else "other"] += 1
    return counts


@pytest.mark.parametrize(("name", "least"), [("plain", 0.85), ("adversarial", 0)])
def test_answers_of_models_are_read_as_a_person_reads_them_or_not_at_all(name, least):
    counts = read_rate(name)
    assert counts.total() >= 300 and counts["right"] >= least * counts.total()
    assert counts["other"] <= 0.005 * counts.total()


@pytest.mark.parametrize(
    ("prompt", "scale"),
    [
        ("How far is {task}?", "auto"),
        ("{task}: from 0 (nothing) to 100 (all)?", "percentage"),
        ("Give the probability, between 0 and 1, of {task}.", "unit"),
        ("Rate {task} from 0 to 10.", 10.0),
        ("Score {task} out of 5.", 5.0),
        ("Rate {task} from 1 to 10.", None),
        ("Rate {task} from 0 to 10. A 0-100 scale is wrong.", None),
    ],
)
def test_a_prompt_names_the_scale(prompt, scale):
    assert prompt_scale(prompt) == scale


@pytest.mark.parametrize(("text", "score"), table("truncated_answers"))
def test_only_a_closed_answer_counts_in_a_truncated_text(text, score):
    assert parse_score(text, mode="percentage", truncated=True).score == score


@pytest.mark.parametrize("number", range(101))
def test_every_whole_percentage_is_exact(number):
    """In every form."""
    for text in (
        f"{number}%",
        f"{number}/100",
        f"Final answer: {number}%",
        f"<think>50%</think>\n<answer>{number}%</answer>",
        f"The task is about **{number}%** complete.",
    ):
        for mode in MODES:
            assert parse_score(text, mode=mode).score == number / 100, text
    for text in (str(number), f"[[{number}]]", f'{{"score": {number}, "steps": 3}}'):
        assert parse_score(text, mode="percentage").score == number / 100, text


# Any text

#: A text without digits needs one of these words to have a score.
VERDICTS = (
    r"\b(success\w*|succe\w+|complete\w*|accomplish\w*|achieve\w*|pass|passed|yes|true|no|false"
    r"|fail\w*|unsuccess\w*|incomplete|unfinished|unaccomplished|finish\w*|done)\b"
)

FRAGMENTS = st.sampled_from(table("score_fragments"))
TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(categories=["Nd", "No", "Nl", "Po", "Sm", "Cf", "Cs", "Cc", "Zs"])),
    st.lists(st.one_of(FRAGMENTS, st.sampled_from([" ", "\n"])), max_size=25).map("".join),
    st.lists(FRAGMENTS, max_size=25).map(" ".join),
)


@pytest.mark.slow
@settings(max_examples=200)
@given(text=TEXTS, mode=st.sampled_from(MODES), truncated=st.booleans())
def test_any_text_gives_a_score_or_an_abstention(text, mode, truncated):
    """It never raises, and a score in [0, 1] needs a digit or a word of success or failure."""
    parsed = parse_score(text, mode=mode, truncated=truncated)
    parsed.reason.encode()  # fails on half a surrogate pair
    if parsed.score is None:
        return
    assert math.isfinite(parsed.score) and 0 <= parsed.score <= 1
    if not any(map(str.isdecimal, text)):
        visible = "".join(char for char in text if unicodedata.category(char) != "Cf")
        visible = unicodedata.normalize("NFKC", visible).lower().replace("_", " ")
        assert re.search(VERDICTS, visible) and parsed.score in {0, 1}


@pytest.mark.slow
@settings(max_examples=200)
@given(text=TEXTS, mode=st.sampled_from(MODES))
def test_the_thinking_does_not_change_the_score(text, mode):
    answer = "<answer>85%</answer>"
    if "<" not in text and "\u25c1" not in text and "\uff1c" not in text:
        assert parse_score(f"<think>{text}</think>{answer}", mode=mode).score == 0.85


@settings(max_examples=200)
@given(text=TEXTS, mode=st.sampled_from(MODES))
def test_an_unclosed_think_tag_gives_no_score(text, mode):
    if not re.search(r"[<\u25c1\ufe64\uff1c]", text):
        assert parse_score(f"<think>{text}", mode=mode).score is None


@pytest.mark.serial
@pytest.mark.parametrize("piece", table("repeated_pieces"), ids=ascii)
@pytest.mark.slow
def test_the_time_is_linear_in_the_length(piece):
    """100 kB of anything takes under half a second; with backtracking it would take minutes."""
    text = piece * (100_000 // len(piece))
    watch = CpuStopwatch()
    parse_score(text)
    assert watch.seconds < 5  # enough for a machine under load
