r"""Parse a score from the text of a vision-language model, strictly.

A text has a score if it states it in one of these forms; any other text is an abstention. Words
are English, Chinese, German or Spanish (`score_words.toml`). Thoughts are left out.

    bare        85   **85%**   about 80%   60-70%   8/10    with prose that has no other number
    sentence    The task is about 80% complete.     every word of the clause is known
    label       Score: 85   {"progress": 85}   Answer: yes      a name of the score, and its value
    final       Final answer: 85   \boxed{85}       unclear clauses before it do not count
    tag         <answer>85</answer>   [[85]]        no number before it counts
    verdict     success   The task was not completed.   1 or 0, alone or behind a label

A text with such a form is an abstention all the same, if

    another clause has a number or a label and is not understood, unless it counts: `3 of 5 steps`;
    two values differ, or a number and a verdict contradict each other: `100. The task failed.`;
    prose is not about the scene, or stands beside 0, 50 or 100, unless before a final value;
    a phrase takes back, is a condition, cites, or says that it cannot tell;
    the token limit cut it, unless an `<answer>` is closed.

What a number without a unit means is said by a scale in the text, else by the mode. Numbers on a
scale that begins at 1 are abstentions, as they have two readings (8 of 10, or 7 of 9). So are 0.85
as a percentage, 1 to 10 where no scale is known, limits, 1,000, -5, 140%, and wide ranges.
"""

import re
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rewardfleet.text import read

#: Increased with every change of the decisions. It is part of cache keys, so scores parsed by an
#: older version are not used any more.
PARSER_VERSION = 4

#: What a number without a unit means: 0 to 100, 0 to 1, or whichever of the two is certain.
ScoreMode = Literal["auto", "percentage", "unit"]
#: The same, or the top of another scale that begins at 0; None if no number on it can be read.
Scale = ScoreMode | float | None


@dataclass(frozen=True)
class ParsedScore:
    score: float | None  #: in [0, 1], or None if the text has no clear score
    reason: str  #: a short sentence: what was parsed, or why nothing was


def parse_score(text: str, *, mode: Scale = "auto", truncated: bool = False) -> ParsedScore:
    """Parse the score of a text. It never raises, and takes time linear in the text.

    Args:
        mode: What a number without a unit means, see `prompt_scale`.
        truncated: Whether the token limit cut the text; then only a closed `<answer>` counts.
    """
    if not text.strip():
        return ParsedScore(None, "The text is empty.")
    turn = read(text).last
    if turn.cut:
        return ParsedScore(None, "The text ends within its thoughts.")
    parts = _ANSWER.split(_plain(turn.answer))
    answers = parts[2::4]
    if parts[1::2] != ["", "/"] * (len(parts) // 4) or not all(map(str.strip, answers)):
        return ParsedScore(None, "The <answer> tags are empty, not closed, or not paired.")
    if not answers and truncated:
        return ParsedScore(None, "The token limit cut the text before an <answer> was closed.")
    parts[2::4] = [f"\n{_TAG}{_BOX.sub(' ', answer).strip()}\n" for answer in answers]
    return _parse("".join(parts[::2]), mode)


def prompt_scale(prompt: str) -> Scale:
    """Return the scale that a prompt names: `auto` if none, None if several, or not from 0."""
    plain = re.sub(r" ?\([^()\n]{0,40}\)(?= ?(?:to\b|and\b|-))", "", _plain(prompt))
    scale = _stated_scale(_IN_PROMPT, plain, "auto")
    return "percentage" if scale == 100 else "unit" if scale == 1 else scale


_DATA = tomllib.loads(Path(__file__).with_name("score_words.toml").read_text(encoding="utf-8"))
_CHINESE, _FOREIGN = (
    dict(pair.split("=") for pair in _DATA["meanings"][language].split())
    for language in ("chinese", "german_and_spanish")
)
_IN_CHINESE = re.compile("|".join(sorted(_CHINESE, key=len, reverse=True)))
_WORDS = {name: frozenset(words.split()) for name, words in _DATA["words"].items()}
_LABEL = _WORDS["label"] | _WORDS["final"]
_NOT = _WORDS["not"] | _WORDS["no"]
_DONE = _WORDS["positive"] | _WORDS["completion"]
_ABOUT_TASK = _WORDS["subject"] | _DONE
_WITH_NUMBER = _WORDS["filler"] | _WORDS["hedge"] | _LABEL | _ABOUT_TASK
_VERDICT = _WORDS["filler"] | _LABEL | _ABOUT_TASK | _WORDS["goal"] | _WORDS["negative"] | _NOT
_KNOWN = _WITH_NUMBER | _VERDICT | _WORDS["introduction"] | _WORDS["other"]
_PHRASES = {name: re.compile(text.replace("\n", "")) for name, text in _DATA["phrases"].items()}
_SIGNS = str.maketrans(_DATA["signs"])


def _plain(text: str) -> str:
    """Return a text in lower case, with ASCII digits and signs, plain line breaks, no Chinese."""
    plain = "".join(map(_fold_char, text.translate(_SIGNS))).lower()
    return plain if plain.isascii() else _IN_CHINESE.sub(lambda m: f" {_CHINESE[m[0]]} ", plain)


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category in _DATA["categories"] and char != "\n":
        return str(_DATA["categories"][category])
    plain = unicodedata.normalize("NFKC", char)
    # 10 squared is not 102: characters that are digits only by compatibility stay unknown.
    return char if any(map(str.isdigit, plain)) else plain


#: Stands for a tag, in front of its content; the text has no control characters any more.
_TAG = "\x02"
_ANSWER = re.compile(r"<\s{0,4}(/?)\s{0,4}answer\b[^<>]{0,80}>")
_BOX = re.compile(r"<\|(?:begin|end)_of_box\|>|\[\[|\]\]")
# Python before 3.11.5 does not undo what the last, failed round of a possessive group consumed
# (CPython gh-106052), so a round of this one begins with a lookahead for all that it needs.
_NUMBER = r"(?:\d++(?:(?=[.,]\d)[.,]\d++)*+|\.\d++)"

#: A scale, by its bottom, if that is given, and its top.
_RANGE = rf"(?<![\w.,-])([01])(?:\.0)? ?(?:to|and|bis|al?|-) ?({_NUMBER})%?"
_SCALE = re.compile(
    rf"(?:\b(?:on|in|auf|en) (?:an?|una|einer)? ?)?"
    rf"\b(?:scale|skala|escala)\"? ?(?:of|from|von|del?|:)? ?[\"(]?{_RANGE}"
    rf"|\(? ?(?:\bon an? )?{_RANGE} ?(?:scale\b|\))"
    rf"|()\( ?(?:out of|/) ?({_NUMBER})%? ?\)"
    rf"|()\bmax(?:_?score|imum)?[\" ]{{0,3}}[:=] ?({_NUMBER})(?: points)?"
)
_IN_PROMPT = re.compile(rf"{_RANGE}|()\bout of ({_NUMBER})")
_MARKUP = [(re.compile(pattern), by) for pattern, by in _DATA["replacements"].items()]
#: A comma before a number does not end a clause: a list of numbers is not several answers.
_END_OF_CLAUSE = re.compile(r"[;!\n()]|\.(?!\d)|,(?! ?\d)| - (?=[a-z])")
_COUNTED = rf"(?:{'|'.join(_WORDS['counted'])})s?"
#: What is counted, not scored: "step 3", "3 of 5 steps". It is no known word.
_COUNT = re.compile(
    rf"\b{_COUNTED} ?\d++(?: ?(?:of|/|to|-|and) ?\d++)?(?![\d%])"
    rf"|(?<![\w.,/-])\d++(?: ?(?:of|/|to|-|and|out of) ?\d++)? {_COUNTED}\b"
)


def _stated_scale(pattern: re.Pattern[str], text: str, default: Scale) -> Scale:
    """Return the only scale that a text states, None if it has several or none from 0."""
    stated = {tuple(filter(None, found)) for found in pattern.findall(text)}
    if not stated:
        return default
    *bottom, top = stated.pop()
    return None if stated or bottom == ["1"] else _float(top) or None


@dataclass(frozen=True)
class _Clause:
    text: str
    rank: int  #: 3 in a tag, 2 marked as final, 1 marked as a score, 0 without a marker
    score: float | None  #: in [0, 1], if it is understood and has one
    #: Whether it has a percentage, another number that does not count, or only words.
    unit: Literal["percent", "number", "words"]
    words: frozenset[str]

    def __repr__(self) -> str:
        return repr(self.text.removeprefix(_TAG)[:60])


def _parse(passage: str, mode: Scale) -> ParsedScore:
    """Take the first value of the highest rank, unless another clause speaks against it."""
    if _PHRASES["void"].search(passage):
        return ParsedScore(None, "The text has a condition, cites, or says that it cannot tell.")
    scale = _stated_scale(_SCALE, passage, mode)
    text = _SCALE.sub(" ", passage)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    clauses = [_clause(part.strip(), scale) for part in _END_OF_CLAUSE.split(text) if part.strip()]
    rank = max((each.rank for each in clauses), default=0)
    scored = [each for each in clauses if each.rank == rank and each.score is not None]
    if not scored:
        return ParsedScore(None, f"No score is clear (mode: {mode}) in {clauses[:1]}.")
    value = next((each for each in scored if each.unit != "words"), scored[0])
    start = clauses.index(value) if rank >= 2 else 0
    for index, other in enumerate(clauses):
        is_before = index < start and other.rank < rank
        is_doubt = not is_before and _PHRASES["doubt"].search(other.text)
        if is_doubt or _speaks_against(other, value, is_before):
            return ParsedScore(None, f"{value!r} and {other!r} do not agree.")
    return ParsedScore(value.score, f"Parsed {value!r} as {value.score:g}.")


def _speaks_against(other: _Clause, value: _Clause, is_before: bool) -> bool:
    """Return whether a clause makes a value unclear. One `is_before` a final or tagged value."""
    assert value.score is not None  # noqa: S101 - the caller chose it so
    if other.unit != "words" and (other.score is None or value.unit != "words"):
        is_superseded = is_before and (value.rank == 3 or other.score is None)
        return other.score != value.score and not is_superseded
    is_marked = other.rank > 0 and not is_before
    if other.score is None and (is_marked or not _may_stand_beside(other, value, is_before)):
        return True
    claim = _claim(other) if other.score is None else other.score
    if claim is None or other.unit == value.unit:
        return claim not in {None, value.score}
    verdict, number = (claim, value.score) if other.unit == "words" else (value.score, claim)
    return number < 0.5 if verdict else number > 0.94


def _may_stand_beside(prose: _Clause, value: _Clause, is_before: bool) -> bool:
    """Return whether prose may stand beside a value, because it is about the scene.

    A model that saw nothing says 0 or 50, and why; a condition is one of 100. None beside these.
    """
    if value.rank == 0 and (
        value.unit == "words" or (value.unit == "number" and re.search(r"\d", prose.text))
    ):
        return False
    if prose.words <= _KNOWN:
        return True
    is_scene = bool(_PHRASES["scene"].search(prose.text))
    if is_before and value.score in {0.0, 0.5}:
        return is_scene and _claim(prose) != 0
    return is_before or (is_scene and (value.score not in {0.0, 0.5, 1.0} or value.unit == "words"))


def _claim(prose: _Clause) -> float | None:
    """Return whether a clause may say of the task that it is done, 1, or not, 0."""
    if prose.words & (_WORDS["negative"] | _WORDS["mishap"] | _NOT):
        return 0.0
    is_done = prose.words & _DONE and prose.words & (_WORDS["subject"] | _WORDS["goal"])
    return 1.0 if is_done and not prose.words & _WORDS["partly"] else None


_TOKEN = re.compile(
    rf"""
    (?P<word>[^\W\d_]++(?:'[a-z]++)?)
    |(?<![\w.,/-])
    (?P<low>[+-]?{_NUMBER})
    (?:
        (?P<low_unit>[ ]?%)?
        [ ]?(?P<join>-|/|\b(?:to|and|out[ ]of|of)\b)[ ]?
        (?P<high>{_NUMBER})
    )?
    (?P<unit>[ ]?(?:%|percent\b|per[ ]cent\b|pct\b))?
    (?:[ ]?-?ish\b)?
    (?![\w%+]|[-.,:/]\d|[ ]\d)      # part of a date, time, version or word: not a number
    |(?P<silent>[:,~\u2248\s\x02]|(?<=[a-z][ ])-[ ])
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _clause(text: str, scale: Scale) -> _Clause:
    """Parse one clause, completely or not at all."""
    found = [each for each in _TOKEN.finditer(_COUNT.sub(" counted ", text)) if not each["silent"]]
    tokens = [_FOREIGN.get(each[0], each[0]) if not each["low"] else each for each in found]
    words = [each for each in tokens if isinstance(each, str)]
    numbers = [each for each in found if each["low"]]
    head, colon, value = text.partition(":")
    unit: Literal["percent", "number", "words"] = "words"
    if numbers and not (words and words[0] in _WORDS["other"]):
        unit = "percent" if any(each["unit"] or each["low_unit"] for each in numbers) else "number"
        scale = "percentage" if _WORDS["percentage"].intersection(words) else scale
        scores = {_score(each, scale) for each in numbers}
        score = scores.pop() if len(scores) == 1 and _is_said(tokens) else None
    else:
        score = _verdict(words, marked=bool(colon)) if value or not colon else None
    marker = [_FOREIGN.get(word, word) for word in head.split()] if colon else words
    is_marked = (score is not None or value) and _WITH_NUMBER.issuperset(marker)
    rank = 3 if text.startswith(_TAG) else 0
    if not rank and is_marked and _LABEL.intersection(marker):
        rank = 2 if _WORDS["final"].intersection(marker) else 1
    return _Clause(text, rank, score, unit, frozenset(words))


def _is_said(tokens: list[str | re.Match[str]]) -> bool:
    """Return whether the numbers of a clause are said of the task: not counts or times.

    A percentage needs a label or a word about the task in its clause. Any other number must follow
    a label, with nothing that can be counted between or behind: "task 3" and "1 result" are counts.
    """
    words = {each for each in tokens if isinstance(each, str)}
    numbers = [each for each in tokens if isinstance(each, re.Match)]
    has_and = any(each["join"] == "and" for each in numbers)
    if not words <= _WITH_NUMBER or (has_and and "between" not in words):
        return False
    if words <= _WORDS["hedge"] | _WORDS["around_number"]:
        return True
    if all(each["unit"] or each["low_unit"] for each in numbers):
        return bool(words & (_LABEL | _ABOUT_TASK))
    before, behind = tokens[: tokens.index(numbers[0])], tokens[tokens.index(numbers[0]) :]
    labels = [each for each in before if each in _LABEL or each in _ABOUT_TASK]
    return bool(labels) and labels[-1] in _LABEL and _ABOUT_TASK.isdisjoint(behind)


def _score(number: re.Match[str], scale: Scale) -> float | None:
    """Return the score of a number, a fraction or a range, in [0, 1]; None if it is unclear."""
    low, join, high = number.group("low", "join", "high")
    is_percent = bool(number["unit"] or number["low_unit"])
    if join in {"/", "out of"} or (join == "of" and high == "100"):
        part, whole = _float(low), _float(high)
        if part is None or not whole or part > whole or is_percent:
            return None
        return None if isinstance(scale, float) and whole != scale else part / whole
    first, last = (_share(each, scale, is_percent=is_percent) for each in (low, high or low))
    if join == "of" or first is None or last is None or not first <= last <= first + 0.2 + 1e-9:
        return None
    return round((first + last) / 2, 9)


def _float(digits: str) -> float | None:
    """Return the number, or None if it is ambiguous like 1,000 or invalid like 3.1.2."""
    if re.fullmatch(r"0,\d{1,9}|\d{1,9},\d\d?", digits):
        digits = digits.replace(",", ".")
    return float(digits) if re.fullmatch(r"\d{0,9}\.?\d{1,18}", digits) else None


def _share(digits: str, scale: Scale, *, is_percent: bool) -> float | None:
    number = _float(digits)
    scale = "percentage" if is_percent else scale
    if number is None or scale is None or (scale == "auto" and 1 <= number <= 10):
        return None
    is_unit = scale == "unit" or (scale == "auto" and number < 1)
    top = scale if isinstance(scale, float) else 1.0 if is_unit else 100.0
    looks_small = top > 1 and 0 < number <= 1 and not (is_percent or digits.isdecimal())
    return None if number > top or looks_small else number / top


def _verdict(words: list[str], *, marked: bool) -> float | None:
    """Return the verdict of a clause without numbers, after its last label: 1, 0 or None."""
    labels = [index for index, word in enumerate(words) if word in _LABEL]
    verdict = words[labels[-1] + 1 :] if labels else words
    if not verdict or not _VERDICT.issuperset(words):
        return None
    positive, completion, negative, auxiliary = (
        set(verdict) & _WORDS[name] for name in ("positive", "completion", "negative", "auxiliary")
    )
    negations = sum(word in _NOT for word in verdict)
    is_question = verdict[0] in _WORDS["auxiliary"]
    is_other = labels and not marked if not is_question else not (labels or negations)
    if is_other or negations + bool(negative) > 1 or (negative and positive):
        return None
    if negative or (negations and (positive or completion)):
        return 0.0
    if negations:
        return 0.0 if verdict[-1] in _WORDS["no"] and not _WORDS["subject"] & set(verdict) else None
    is_done = completion and auxiliary and (_WORDS["goal"] | {"task"}) & set(verdict)
    return 1.0 if positive or is_done else None
