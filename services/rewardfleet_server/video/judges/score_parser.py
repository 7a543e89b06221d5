r"""Parse a score from the text of a vision-language model, strictly.

The text is parsed in four stages, each narrower than the one before: what is answered (without
thoughts; if there is an `<answer>`, only it), then clauses that are marked as the answer, then
numbers with their units, then a verdict in words. A clause is understood completely or not at all:
if it has one unknown word, nothing in it counts. Therefore `100% certain that it failed`, `almost
80%` and `20% left` need no rules.

The decisions. Words are English; a dash is an abstention:

    85%   85 percent   50/100   8 out of 10    as written: a unit in the text holds in every mode
    1   85   0.85   0   in percentage          .01  .85  -  0    0.85 and 1.0 look like 0-1
    1   85   0.85   0   in unit                1  -  .85  0
    1   85   0.85   0   in auto                -  .85  .85  0    1 may mean 1 % or 100 %
    Score (0-1): 1   Score (1-10): 8           1  -    a scale in the text replaces the mode
    60-70%   between 60 and 70                 .65     a range wider than 20 points is too vague
    ~80%   about 80%   80-ish   >90%           .8  .8  .8  -    a limit is not a value
    140%   -5   +5   1,000   3.1.2   5cm   1e2 -       not a share, or ambiguous
    0,85   digits of other scripts             .85     decimal comma; but not "squared", halves, IV
    nan   inf   eighty   half                  -
    40% then ... Final answer: 70              .7      final answer > score, answer, ... > no marker
    [[85]]   \boxed{85}   {"score": 85}        .85     the first two are final answers, as GLM's
    Score: 40 ... Score: 70   two <answer>s    -       markers of the same rank must agree
    Score: no idea ... 40%                     -       a marker without a score is not replaced
    80% (step 3 of 5)   step 3   3 bowls       .8 - -  a count is not a score and does not conflict
    The bowl fell. 85   1. It fell. 85         .85  -  no marker or unit: it must be the only number
    <answer> open, nested or empty             -       an answer was announced, but not given
    cut by the token limit                     -       unless an <answer> is closed outside <think>
    success   yes   failed   no                1 1 0 0 alone, or after a marker
    not completed   incomplete                 0       the verdict is on the complete task
    did not fail   partly done   done          -       not a verdict on the complete task
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rewardfleet.text import read

#: Increased with every change of the decisions. It is part of cache keys, so scores parsed by an
#: older version are not used any more.
PARSER_VERSION = 3

#: What a number without a unit means: 0 to 100, 0 to 1, or whichever of the two is certain.
ScoreMode = Literal["auto", "percentage", "unit"]
#: The same, or that it has a unit.
Scale = Literal["auto", "percentage", "unit", "percent"]


@dataclass(frozen=True)
class ParsedScore:
    """The result of parsing a text."""

    score: float | None  #: in [0, 1], or None if the text has no clear score
    reason: str  #: a short sentence: what was parsed, or why nothing was


def parse_score(text: str, *, mode: ScoreMode = "auto", truncated: bool = False) -> ParsedScore:
    """Parse the score of a text. It never raises, and takes time linear in the text.

    Args:
        mode: What a number without a unit means.
        truncated: Whether the token limit cut the text; then only a closed `<answer>` counts.
    """
    if not text.strip():
        return ParsedScore(None, "The text is empty.")
    turn = read(text).last
    if turn.cut:
        return ParsedScore(None, "The text ends within its thoughts.")
    # Lower case, ASCII digits and signs, and plain line breaks.
    output = "".join(map(_fold_char, turn.answer.translate(_SIGNS))).lower()
    answers = _answers(output)
    if answers is None:
        return ParsedScore(None, "The <answer> tags are not closed, or not paired.")
    if not answers and truncated:
        return ParsedScore(None, "The token limit cut the text before an <answer> was closed.")
    parsed = [_parse(passage, mode) for passage in answers or [output]]
    abstention = next((each for each in parsed if each.score is None), None)
    if abstention is None and len({each.score for each in parsed}) > 1:
        return ParsedScore(None, "The <answer>s disagree.")
    return abstention or parsed[0]


# Stage 0: normalize characters

#: Signs that compatibility does not map, among them the percent sign and decimals of Arabic.
_SIGNS = str.maketrans(
    "\u2010\u2011\u2012\u2013\u2212\u2018\u2019\u201c\u201d\u201e\u2044\u2215\u066a\u066b\r\x85\u2028\u2029",
    '-----\'\'"""//%.\n\n\n\n',
)
_CATEGORIES = {
    "Cf": "",  # zero-width and direction marks, which are invisible
    "Cs": "\ufffd",  # half of a surrogate pair: it must neither join nor end a number
    "Cc": " ",
    "Zs": " ",
}


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    if char == "\n":
        return char
    if char in "\u2014\u2015":  # dashes that separate
        return " - "
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    plain = unicodedata.normalize("NFKC", char)
    # 10 squared is not 102: characters that are digits only by compatibility stay unknown.
    return char if any(map(str.isdigit, plain)) else plain


# Stage 1: closed tags

_ANSWER = re.compile(r"<\s{0,4}(/?)\s{0,4}answer\b[^<>]{0,80}>")


def _answers(text: str) -> list[str] | None:
    """Return the contents of the <answer> tags, or None if they are not paired."""
    parts = _ANSWER.split(text)
    is_paired = parts[1::2] == ["", "/"] * (len(parts) // 4)
    return parts[2::4] if is_paired else None


# Stage 2: markers. A passage is split into clauses, and each is parsed by itself.

# Python before 3.11.5 does not undo what the last, failed round of a possessive group consumed
# (CPython gh-106052), so a round of this one begins with a lookahead for all that it needs.
_NUMBER = r"(?:\d++(?:(?=[.,]\d)[.,]\d++)*+|\.\d++)"

#: A scale that the text states: "(0-100)", "out of 10" in parentheses, "max_score": 10.
_SCALE = re.compile(
    rf"(?:\bon an? )?\bscale (?:of|from) [01](?:\.0)? ?(?:to|-) ?({_NUMBER})%?"
    rf"|\(? ?\b(?:on an? )?[01](?:\.0)? ?(?:to|-) ?({_NUMBER})%? ?(?:scale\b|\))"
    rf"|\( ?(?:out of|/) ?({_NUMBER})%? ?\)"
    rf"|\bmax\w{{0,20}}[\" ]{{0,3}}[:=] ?({_NUMBER})"
)

#: Replacements of markup, in this order.
_MARKUP = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"```\w*+", " ; "),
        (r"\.{2,}+", " ; "),
        (r"<\|begin_of_box\|>([^<>]{0,80})<\|end_of_box\|>", r" ; final answer: \1 ; "),
        (r"\\boxed ?\{([^{}\n]{0,80})\}", r" ; final answer: \1 ; "),
        (r"\[\[([^\[\]\n]{0,80})\]\]", r" ; final answer: \1 ; "),
        (r"<[|/]{0,2}[a-z][^<>\n]{0,80}>", " ; "),
        (r"\\%", "%"),
        (r"[\"`*_{}\[\]]|(?<!\w)'|'(?!\w)", " "),
        (r" ++", " "),
        (r"(?m)^ ?[-#\u2022]++ ", " "),
        # "1. The robot" starts a list item, or is a score with a sentence after it: ambiguous.
        (r"(?m)^ ?(\d{1,3})[.)] (?=\S)", r"item \1 ; "),
        (r"\b(?:because|since|given that)\b", ";"),
        (r"\bfail(?:s|ed)? to (?:complete|finish|succeed|accomplish|achieve)\b", "failed"),
        (r"\?", " ? ; "),  # a question is not an answer; "?" is an unknown word
        (r"=", ":"),
        (r": ?\s++", ": "),  # the answer may be on the line below its marker
    )
]

#: A comma before a number does not end a clause: a list of numbers is not several answers.
_END_OF_CLAUSE = re.compile(r"[;!\n()]|\.(?!\d)|,(?! ?\d)| - (?=[a-z])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that do not change a clause's meaning. Not "at" and "by" ("at 50%, it drops the bowl"), and
# not "video" and "episode", which are also "finished" after a failure.
_FILLER = _words(
    "a an the this that it it's its is was are has have been did does do of for my i we "
    "so therefore thus hence only just now yet current currently value"
)
_SUBJECT = _words("task robot")
_GOAL = _words("goal objective")  # "goal achieved", but "the goal is 100%"
_HEDGE = _words(
    "about around approximately approx roughly circa between exactly point points pts "
    "would say give rate rated think estimated assign i'd"
)
#: Words that may surround a number which has no marker and is not said of the task.
_AROUND_NUMBER = _HEDGE | _words("a an this it it's is i so therefore thus hence only just")
_FINAL = _words("final overall")
_LABEL = _FINAL | _words(
    "score answer rating grade percentage percent completion completeness progress probability "
    "estimate reward result verdict outcome conclusion judgment judgement"
)
_POSITIVE = _words(
    "success successful succeeded completed accomplished achieved pass passed yes true"
)
#: Not a verdict alone: "complete the task" repeats the instruction, "done." ends the output.
_COMPLETION = _words("complete finish finished succeed accomplish achieve done successfully")
_NEGATIVE = _words(
    "fail fails failed failing failure unsuccessful unsuccessfully incomplete unfinished "
    "unaccomplished"
)
_NO = _words("no false")
_NOT = _NO | _words("not never without isn't wasn't didn't doesn't hasn't")
_AUXILIARY = _words("is was are has have did does do")

_ABOUT_TASK = _SUBJECT | _POSITIVE | _COMPLETION
_WITH_NUMBER = _FILLER | _HEDGE | _LABEL | _ABOUT_TASK
_WITHOUT_NUMBER = _FILLER | _LABEL | _ABOUT_TASK | _GOAL | _NEGATIVE | _NOT

_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable to|impossible to|hard to|don't|do not) "
    r"(?:be |really |reliably )?(?:tell|determine|judge|assess|evaluate|say|see|estimate|know)"
    r"|\b(?:not sure|unsure|unclear)\b"
)
_RESERVATION = re.compile(r"\b(?:but|however|although|though|except|unless)\b")


@dataclass(frozen=True)
class _Clause:
    text: str
    rank: int  #: 2 if marked as a final answer, 1 if marked as a score, 0 without a marker
    score: float | None  #: in [0, 1], if it has one
    #: Whether the score was a percentage, a number without a unit, or words.
    unit: Literal["percent", "number", "words"] = "words"


def _parse(passage: str, mode: ScoreMode) -> ParsedScore:
    """Parse the clauses with the highest rank of marker, or all clauses if none has a marker."""
    scale = _stated_scale(passage, mode)
    text = _SCALE.sub(" ", passage)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    clauses = [_clause(part.strip(), scale) for part in _END_OF_CLAUSE.split(text) if part.strip()]
    rank = max((clause.rank for clause in clauses), default=0)
    marked = [clause for clause in clauses if clause.rank == rank]
    scored = [clause for clause in marked if clause.score is not None]
    units = {clause.unit for clause in scored}
    if rank:
        if "words" in units and _RESERVATION.search(text):
            return ParsedScore(None, "The verdict is given with a reservation.")
    elif _REFUSAL.search(passage):
        return ParsedScore(None, "The text states that no score can be determined.")
    elif scored:
        # Counts do not conflict with a percentage: "80% (step 3 of 5)".
        other = r"%|\bpercent|\bpct\b" if "percent" in units else r"\d" if "number" in units else ""
        scored += [each for each in marked if each.score is None and re.search(other, each.text)]
    return _agreed(scored or marked[:1], mode)


def _agreed(clauses: list[_Clause], mode: ScoreMode) -> ParsedScore:
    """Combine clauses that must all have the same score."""
    for clause in clauses:
        if clause.score is None:
            return ParsedScore(None, f"{_quote(clause)} is not clear as a score (mode: {mode}).")
        if clause.score != clauses[0].score:
            return ParsedScore(None, f"{_quote(clauses[0])} and {_quote(clause)} disagree.")
    if not clauses or clauses[0].score is None:
        return ParsedScore(None, "The text has no score.")
    return ParsedScore(clauses[0].score, f"Parsed {_quote(clauses[0])} as {clauses[0].score:g}.")


def _quote(clause: _Clause) -> str:
    return repr(clause.text if len(clause.text) <= 60 else f"{clause.text[:57]}...")


def _stated_scale(passage: str, mode: ScoreMode) -> ScoreMode | None:
    """Return what a number without a unit means: by a scale in the text, or else by the mode.

    None if the text states another scale than 0-100 or 0-1.
    """
    tops = {next(filter(None, found.groups())) for found in _SCALE.finditer(passage)}
    if not tops:
        return mode
    if tops == {"100"}:
        return "percentage"
    return "unit" if tops <= {"1", "1.0"} else None


# Stage 3: numbers with their units

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
    |(?P<silent>[:,~\u2248\s]|(?<=[a-z][ ])-[ ])
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class _Quantity:
    """A number, a fraction or a range, as written."""

    low: str
    join: str | None
    high: str | None
    percent: bool

    def score(self, scale: Scale | None) -> float | None:
        """Return the score in [0, 1]; None if it is a count, too wide or ambiguous."""
        scale = "percent" if self.percent else scale
        if self.high is None:
            return _share(self.low, scale)
        if self.join in {"/", "out of"}:
            part, whole = _float(self.low), _float(self.high)
            is_share = not self.percent and part is not None and whole and 0 <= part <= whole
            return (part or 0) / (whole or 1) if is_share else None
        low, high = _share(self.low, scale), _share(self.high, scale)
        if self.join == "of" or low is None or high is None or not low <= high <= low + 0.2 + 1e-9:
            return None
        return round((low + high) / 2, 9)


def _float(digits: str) -> float | None:
    """Return the number, or None if it is ambiguous like 1,000 or invalid like 3.1.2."""
    if re.fullmatch(r"0,\d{1,9}|\d{1,9},\d\d?", digits):
        digits = digits.replace(",", ".")
    return float(digits) if re.fullmatch(r"\d{0,9}\.?\d{1,18}", digits) else None


def _share(digits: str, scale: Scale | None) -> float | None:
    """Return the score of a number on a scale, or None if it is none."""
    number = _float(digits)
    if number is None or number > 100:
        return None
    if number == 0 or scale == "percent":
        return number / 100
    if scale == "percentage":  # 0.85 and 1.0 look like 0-1
        return number / 100 if number > 1 or digits.isdecimal() else None
    if scale is None or (scale == "auto" and number == 1) or (scale == "unit" and number > 1):
        return None
    return number if number <= 1 else number / 100


def _clause(text: str, scale: ScoreMode | None) -> _Clause:
    """Parse one clause, completely or not at all."""
    tokens: list[str | _Quantity] = []
    for found in _TOKEN.finditer(text):
        if found["low"]:
            percent = bool(found["unit"] or found["low_unit"])
            tokens.append(_Quantity(found["low"], found["join"], found["high"], percent))
        elif not found["silent"]:
            tokens.append(found[0])
    words = [token for token in tokens if isinstance(token, str)]
    quantities = [token for token in tokens if isinstance(token, _Quantity)]
    unit: Literal["percent", "number", "words"] = "words"
    if quantities:
        unit = "percent" if any(quantity.percent for quantity in quantities) else "number"
        score = _value(tokens, quantities, scale)
    else:
        score = None if text.endswith(":") else _verdict(words, marked=":" in text)
    return _Clause(text, _rank(text, words, score), score, unit)


def _rank(text: str, words: list[str], score: float | None) -> int:
    """Return the rank of a clause's marker. A clause without a score has one only with a colon."""
    head, colon, _ = text.partition(":")
    if colon:
        words = head.split()
    elif score is None:
        return 0
    if not _WITH_NUMBER.issuperset(words) or not _LABEL.intersection(words):
        return 0
    return 2 if _FINAL.intersection(words) else 1


def _value(
    tokens: list[str | _Quantity], quantities: list[_Quantity], scale: Scale | None
) -> float | None:
    """Return the score of a clause with numbers, which must agree and not be counts or times.

    A percentage needs a label or a word about the task in its clause. Any other number must follow
    a label, with nothing that can be counted between or behind: "task 3" and "1 result" are counts.
    """
    words = {token for token in tokens if isinstance(token, str)}
    if not words <= _WITH_NUMBER or (
        "between" not in words and any(each.join == "and" for each in quantities)
    ):
        return None
    if words & {"percentage", "percent"}:
        scale = "percentage"
    scores = {quantity.score(scale) for quantity in quantities}
    if len(scores) > 1:
        return None
    if words <= _AROUND_NUMBER:
        is_score = True
    elif all(quantity.percent for quantity in quantities):
        is_score = bool(words & (_LABEL | _ABOUT_TASK))
    else:
        about = max(
            (index for index, token in enumerate(tokens) if token in _ABOUT_TASK), default=-1
        )
        rest = tokens[about + 1 :]
        first = next((i for i, token in enumerate(rest) if isinstance(token, _Quantity)), 0)
        is_score = any(token in _LABEL for token in rest[:first])
    return scores.pop() if is_score else None


# Stage 4: words


def _verdict(words: list[str], *, marked: bool) -> float | None:
    """Return the verdict of a clause without numbers, after its last label: 1, 0 or None."""
    labels = [index for index, word in enumerate(words) if word in _LABEL]
    verdict = words[labels[-1] + 1 :] if labels else words
    if not verdict or not _WITHOUT_NUMBER.issuperset(words):
        return None
    positive, completion, negative = (
        set(verdict) & each for each in (_POSITIVE, _COMPLETION, _NEGATIVE)
    )
    negations = sum(word in _NOT for word in verdict)
    is_question = not labels and not negations and verdict[0] in _AUXILIARY
    is_name = labels and not marked and verdict[0] not in _AUXILIARY  # "answer failed"
    if is_question or is_name or negations + bool(negative) > 1 or (negative and positive):
        return None
    if negative or (negations and (positive or completion)):
        return 0.0
    if negations:
        return 0.0 if verdict[-1] in _NO and not _SUBJECT.intersection(verdict) else None
    is_done = (
        completion and _AUXILIARY.intersection(verdict) and (_GOAL | {"task"}).intersection(verdict)
    )
    return 1.0 if positive or is_done else None
