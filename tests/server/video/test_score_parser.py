"""Parsing a score from text; the decisions are listed in the module's docstring."""

import math
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardfleet_server.video.judges.score_parser import parse_score

from ...measure import CpuStopwatch

MODES = ("auto", "percentage", "unit")

#: Text, and its score in the modes percentage, unit and auto; None is an abstention.
BY_MODE = [
    # whole numbers and decimals, which differ between the modes
    ("0", 0.0, 0.0, 0.0),
    ("0.0", 0.0, 0.0, 0.0),
    ("1", 0.01, 1.0, None),
    ("1.0", None, 1.0, None),  # looks like 0-1, but 0-100 was requested
    ("0.85", None, 0.85, 0.85),
    (".85", None, 0.85, 0.85),
    ("0,85", None, 0.85, 0.85),  # a decimal comma
    ("8.5", 0.085, None, 0.085),
    ("85,5", 0.855, None, 0.855),
    ("85", 0.85, None, 0.85),
    ("100", 1.0, None, 1.0),
    ("100.1", None, None, None),
    ("140", None, None, None),
    ("60-70", 0.65, None, 0.65),
    ("0.6-0.7", None, 0.65, 0.65),
    ("between 60 and 70", 0.65, None, 0.65),
    ("Score: 85", 0.85, None, 0.85),
    ("Score: 1", 0.01, 1.0, None),
    ("Score: 0.85", None, 0.85, 0.85),
    ('{"score": 85}', 0.85, None, 0.85),
    ('{"score": 0.85, "reason": "step 3"}', None, 0.85, 0.85),
    ("<answer>1</answer>", 0.01, 1.0, None),
    # a scale in the text holds in every mode, and so does a unit in a marker
    ("Score (0-100): 1", 0.01, 0.01, 0.01),
    ("Score (0-1): 1", 1.0, 1.0, 1.0),
    ("Score (out of 100): 85", 0.85, 0.85, 0.85),
    ("On a scale of 0 to 100, I would give 85.", 0.85, 0.85, 0.85),
    ("On a 0-100 scale: 85", 0.85, 0.85, 0.85),
    ("completion percentage: 1", 0.01, 0.01, 0.01),
]

#: Text with the same score in every mode: it has a unit, or no number.
SAME = [
    # percentages
    ("85%", 0.85),
    ("85 %", 0.85),
    ("85 percent", 0.85),
    ("85 per cent", 0.85),
    ("85 pct", 0.85),
    ("1%", 0.01),
    ("0.5%", 0.005),
    ("0%", 0.0),
    ("100%", 1.0),
    ("140 %", None),
    ("-5%", None),
    ("+5%", None),  # a difference
    ("85%%", None),
    ("80% complete (step 3 of 5)", 0.8),
    ("80% complete (3/5 steps)", 0.8),  # counts do not conflict
    ("The task is about 80% complete.", 0.8),
    ("The robot has completed approximately 80% of the task.", 0.8),
    ("I'd say 80%.", 0.8),
    ("My estimate is 80%.", 0.8),
    ("Progress: 80% complete", 0.8),
    ("Success rate: 80%", 0.8),
    ("The task is 80% complete, but the bowl fell.", 0.8),
    ("~80%", 0.8),
    ("\u224880%", 0.8),
    ("about 80%", 0.8),
    ("80%-ish", 0.8),
    ("50%\n50 %", 0.5),  # they agree
    # percentages that are limits, differences, confidences, times, or of something else
    (">90%", None),
    ("< 10%", None),
    ("less than 10%", None),
    ("at least 80%", None),
    ("almost 100%", None),
    ("up to 80%", None),
    ("20% left", None),
    ("20% incomplete", None),
    ("80% failed", None),
    ("not 85%", None),
    ("The task is not 100% complete", None),
    ("It must be 100% complete", None),
    ("If it were 80% complete", None),
    ("The goal is 100% completion", None),
    ("100% certain that it failed", None),
    ("I am 80% sure", None),
    ("0% chance that it failed", None),
    ("80% chance of success", None),
    ("Failed. I am 100% certain.", None),
    ("At 50%, the robot drops the bowl.", None),
    ("At 50% of the video it is done", None),
    ("The drawer is 50% open", None),
    ("80% complete. The drawer is 50% open.", None),
    ("The robot moved 30% faster", None),
    ("It went from 40% to 80%", None),
    ("50%\n60%", None),
    ("80% or 90%", None),
    ("80% complete, not finished", None),  # a number and a verdict that contradict each other
    ("Failed. 100%", None),
    # fractions and counts
    ("50/100", 0.5),
    ("8/10", 0.8),
    ("85 out of 100", 0.85),
    ("Score: 0.85/1", 0.85),
    ("Score: 4 out of 5", 0.8),
    ("85/100 (85%)", 0.85),
    ("0/10", 0.0),
    ("5/3", None),
    ("1/0", None),
    ("50/100%", None),
    ("-1/2", None),
    ("1/2/3", None),
    ("3 of 5", None),
    ("3/5 steps", None),
    ("task 3/5", None),
    ("The robot completed 3 of 5 steps", None),
    # ranges
    ("60-70%", 0.65),
    ("60%-70%", 0.65),
    ("60\u201370 %", 0.65),  # an en dash
    ("60% to 70%", 0.65),
    ("between 60% and 70%", 0.65),
    ("70-60%", None),
    ("0-100%", None),  # an echo of the question
    ("40% to 80%", None),  # too wide
    ("60 and 70", None),
    # not a number, or ambiguous
    ("", None),
    (" \n\t\u200b", None),
    ("nan", None),
    ("inf", None),
    ("-Infinity", None),
    ("Score: NaN", None),
    ("I cannot tell", None),
    ("I cannot tell. 50%", None),
    ("N/A", None),
    ("null", None),
    ("eighty", None),
    ("half", None),
    ("%", None),
    ("-5", None),
    ("-0", None),
    ("+85", None),
    ("1,000", None),  # one thousand, or 1.000
    ("1 000", None),
    ("3.1.2", None),
    ("1e2", None),
    ("1e400", None),
    ("9" * 400, None),
    ("10:30", None),
    ("2024-11-20", None),
    ("5cm", None),
    ("v2", None),
    ("Qwen2.5", None),
    ("85\u00b0", None),
    ("10\u00b2", None),  # ten squared is not 102
    ("1\u00bd", None),  # one and a half is not 11/2
    ("\u2167", None),  # the Roman eight
    ("\u2460", None),  # a one in a circle
    ("8\x005", None),  # a NUL may replace any character
    ("85\ud800", None),  # half of a surrogate pair, too
    ("85\ufffd", None),
    # scales other than 0-100 and 0-1
    ("On a scale of 1 to 10, score: 8", None),
    ("Rating (1-5): 4", None),
    ('{"score": 8, "max_score": 10}', None),
    # a verdict in words
    ("success", 1.0),
    ("Success!", 1.0),
    ("SUCCESSFUL", 1.0),
    ("yes", 1.0),
    ("true", 1.0),
    ("task completed successfully", 1.0),
    ("The robot successfully completed the task.", 1.0),
    ("The task is complete.", 1.0),
    ("Goal achieved", 1.0),
    ("Yes, the task was completed.", 1.0),
    ("Verdict: success\nThe bowl is on the plate.", 1.0),
    ('{"success": true}', 1.0),
    ('{"success": false}', 0.0),
    ("Answer: no", 0.0),
    ("The answer is no.", 0.0),
    ("no", 0.0),
    ("failed", 0.0),
    ("failure", 0.0),
    ("unsuccessful", 0.0),
    ("not a success", 0.0),
    ("no success", 0.0),
    ("did not succeed", 0.0),
    ("didn\u2019t succeed", 0.0),
    ("not completed", 0.0),
    ("incomplete", 0.0),
    ("failed to complete the task", 0.0),
    ("The task was not completed successfully.", 0.0),
    ("No, it failed.", 0.0),
    # words that are not a verdict on the complete task
    ("did not fail", None),
    ("not unsuccessful", None),
    ("success or failure", None),
    ("success/failure", None),
    ("partially completed", None),
    ("nearly successful", None),
    ("probably a success", None),
    ("would have been a success", None),
    ("not fully completed", None),
    ("Complete the task", None),  # repeats the instruction
    ("Was the task completed", None),
    ("Success?", None),
    ("Done.", None),  # the output is done
    ("No answer.", None),
    ("Success score:", None),
    ("Success:", None),
    ("Step 3 failed", None),
    ("It failed. Later it recovered.", None),
    ("The robot successfully grasped the bowl.", None),
    ("Yes, but the bowl fell.", None),
    ("Answer: yes, but the bowl fell.", None),
    ("Success. Failure.", None),
    ("successor", None),
    ("know", None),
]

#: Text, and its score in percentage mode.
PERCENTAGE = [
    # thinking
    ("<think>\u2026 40% then \u2026</think><answer>85</answer>", 0.85),
    ("<think>40%</think>85", 0.85),
    ("40% so far</think>85", 0.85),  # the prompt contains the opening tag
    ("<THINK>40%</THINK>\n85", 0.85),
    ("\u25c1think\u25b740%\u25c1/think\u25b785", 0.85),  # Kimi-VL
    ("<think><answer>40</answer></think><answer>85</answer>", 0.85),
    ("<think>a</think><think>b</think>85", 0.85),
    ("<think>40% then step 4", None),
    ("<think>a<think>b</think>85", 0.85),  # servers end thoughts at the first mark, too
    ("85<think>or rather", None),
    ("<think><answer>85</answer>", None),
    ("<think><answer>85</answer></think>", None),  # inside the thinking
    ("<think>85</think>", None),
    # answers
    ("<answer>85</answer>", 0.85),
    ("<answer>\n 85% \n</answer>", 0.85),
    ("< ANSWER >85</ Answer >", 0.85),
    ("<answer>The task is 85% complete.</answer>", 0.85),
    ("<answer>85</answer> after 3 of 5 steps, 60%", 0.85),
    ("Score: 40 <answer>85</answer>", 0.85),
    ("<answer>85</answer><answer>85%</answer>", 0.85),
    ("<answer>80</answer><answer>90</answer>", None),
    ("<answer>80</answer><answer></answer>", None),
    ("<answer></answer> 85", None),
    ("<answer>85", None),
    ("85</answer>", None),
    ("<answer>40</answer><answer>85", None),
    ("<answer><answer>85</answer></answer>", None),
    ("<answer>I cannot tell</answer> 85", None),
    ("<answer>40 or 85</answer>", None),
    ("<answer><|begin_of_box|>85<|end_of_box|></answer>", 0.85),  # GLM
    ("<answer>85</answer><|im_end|>", 0.85),
    # markers
    ("Step 1: 20%\nStep 2: 40%\nFinal answer: 70", 0.7),
    ("Step 1: grasp. Step 2: lift. The final answer is 70.", 0.7),
    ("Score: 40. Final score: 70", 0.7),
    ("**Final Answer:**\n\n**85**", 0.85),
    ("## Score\n85", 0.85),
    ("Score = 85", 0.85),
    ("Score \u2013 85", 0.85),
    ("The score is 85.", 0.85),
    ("I would give it a score of 85", 0.85),
    ("Score: 85 because 3 of 5 steps are done", 0.85),
    ("Score: 85 - the robot dropped 1 bowl", 0.85),
    ("Score: 85 (confidence: 90%)", 0.85),
    ("Score: 85\nScore: 85%", 0.85),
    ("1. It grasps.\n2. It lifts.\nScore: 85", 0.85),
    ("Step 2 is at 40% [[85]]", 0.85),
    (r"so $\boxed{85\%}$", 0.85),
    ("40% <|begin_of_box|>85<|end_of_box|>", 0.85),
    ("Score: 40\nScore: 70", None),
    ("Score: 85, 90", None),
    ("Score: 85 or 90", None),
    ("Score: - 5", None),
    ("Score: unknown\n85", None),  # a marker without a score is not replaced
    ("Score: I cannot tell; 3 objects were moved", None),
    ("Final answer: maybe 70. Score: 40", None),
    ("[[]] 3", None),
    ("[[40]] [[85]]", None),
    ("[[80, 90]]", None),
    ("Step 3: 85", None),
    ("Score: 3 steps", None),
    ("Result 3: completed", None),
    ("The score is not 85", None),
    # JSON, also invalid
    ('```json\n{\n  "score": 85\n}\n```', 0.85),
    ("{'score': 85}", 0.85),
    ('{"score": "85%"}', 0.85),
    ('{"score":85,"steps":5}', 0.85),
    ('{"success": true, "score": 85}', 0.85),
    ('{"reason": "40% at step 3", "score": 85', 0.85),  # an unclosed brace changes nothing
    ('{"steps": [{"score": 10}], "final_score": 85}', 0.85),
    ('[{"score": 40}, {"score": 85}]', None),
    ('{"step_score": 85}', None),
    ('{"score": null}', None),
    ('{"score": NaN}', None),
    ('{"score": -5}', None),
    ('{"steps": 5}', None),
    # numbers without a marker
    ("85.", 0.85),
    ("...85", 0.85),
    ("(85)", 0.85),
    ('"85"', 0.85),
    ("**85**", 0.85),
    ("__85__", 0.85),
    ("`85`", 0.85),
    ("```\n85\n```", 0.85),
    ("<b>85</b>", 0.85),
    ("- 85", 0.85),
    ("[[85]]", 0.85),
    ("\n\n85\r\n", 0.85),
    ("85 points", 0.85),
    ("80-ish", 0.8),
    ("The bowl is on the plate.\n\n85", 0.85),
    ("85\nThe bowl is on the plate.", 0.85),
    ("85\n85", 0.85),
    ("40 85", None),
    ("40\n85", None),
    ("[40, 85]", None),
    ("40 or 85", None),
    ("~~40~~ 85", None),
    ("Step 1. Step 2. 85", None),
    ("1. The robot grasps the bowl.", None),  # a list
    ("At 3, the robot lifts the bowl.", None),
    ("The robot picked 3 bowls", None),
    ("Task 3", None),
    ("1 result", None),
    ("40 + 45 = 85", None),
    # other scripts, and invisible characters
    ("\u0668\u0665", 0.85),  # Arabic-Indic
    ("\u0668\u0665\u066a", 0.85),
    ("\u06f8\u06f5", 0.85),  # Persian
    ("\u096e\u096b", 0.85),  # Devanagari
    ("\uff18\uff15\uff05", 0.85),  # fullwidth
    ("\uff33core\uff1a85", 0.85),
    ("\U0001d7e0\U0001d7dd", 0.85),  # mathematical
    ("8\u200b5", 0.85),
    ("\ufeff85\u200f", 0.85),
    ("85\x00", 0.85),  # padding
]

TABLE = [
    *BY_MODE,
    *[(text, score, score, score) for text, score in SAME],
]


def check(text, mode, score):
    parsed = parse_score(text, mode=mode)
    assert parsed.score == (None if score is None else pytest.approx(score, abs=1e-9)), parsed
    assert parsed.reason.endswith(".") and len(parsed.reason) < 200


@pytest.mark.parametrize(("text", "percentage", "unit", "auto"), TABLE, ids=ascii)
def test_a_text_has_the_score_in_the_table(text, percentage, unit, auto):
    check(text, "percentage", percentage)
    check(text, "unit", unit)
    check(text, "auto", auto)


@pytest.mark.parametrize(("text", "score"), PERCENTAGE, ids=ascii)
def test_a_text_has_the_score_in_the_table_in_percentage_mode(text, score):
    check(text, "percentage", score)


def test_the_tables_have_no_duplicates():
    texts = [text for text, *_ in [*TABLE, *PERCENTAGE]]
    assert len(texts) >= 120
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("85", None),
        ("Final answer: 8", None),  # or 85
        ("<think>40% then step 4", None),
        ("<think>x</think><answer>8", None),
        ("<answer>85</answer", None),
        ("<think><answer>85</answer>", None),
        ("<answer>80</answer> or <answer>9", None),
        ("<answer>85</answer>", 0.85),
        ("<think>x</think><answer>85</answer> The bowl is", 0.85),
    ],
)
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

PIECES = r"""1 0 85 0.85 0,85 140 -5 % / - to of between and 60-70% 3/5 ٨ ½ ² <think> </think>
    <answer> </answer> [[ ]] \boxed{ } { " ' ` ``` ** __ ( ) <|im_end|> score: final answer overall
    percentage (0-100) step task robot it is was the a not no yes success failed complete completed
    done unsuccessful true false certain that about ~ > nan inf cannot tell but because . , ; : ? !
    = ◁ ▷"""
FRAGMENTS = st.sampled_from([*PIECES.split(), "\ud800", "\x00", "\u200b"])
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
@pytest.mark.parametrize(
    "piece",
    r"""1|1 |a|a b |'|<|<a|<think>|<answer>|<answer>1</answer>|[[|[[1]] |\boxed{|```|{|score: |-1|
1-|1.|1,|1/|1 to |60-70% |between |fail to |max|scale of 0 to |(0-|0-100 scale |cannot |: |   |
...|# - |85% complete. |success, |yes. |not |½|٨|=|?""".replace("\n", "").split("|"),
    ids=ascii,
)
@pytest.mark.slow
def test_the_time_is_linear_in_the_length(piece):
    """100 kB of anything takes under half a second; with backtracking it would take minutes."""
    text = piece * (100_000 // len(piece))
    watch = CpuStopwatch()
    parse_score(text)
    assert watch.seconds < 5  # enough for a machine under load
