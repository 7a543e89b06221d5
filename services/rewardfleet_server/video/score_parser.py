r"""The one strict readout of a score from what a vision-language model wrote.

The text is read in four stages, each narrower than the one before: closed tags (`<think>` away,
`<answer>` alone), then clauses that are marked as the answer, then numbers with their units, then
a verdict in words. A clause is understood entirely or not at all: one unknown word in it, and
nothing in it is read. So `100% certain that it failed`, `almost 80%` and `20% left` need no rules.

What is decided; the words are English, and a dash is an abstention:

    85%   85 percent   50/100   8 out of 10    as said: a written unit holds in every mode
    1   85   0.85   0   in percentage          .01  .85  -  0    0.85 and 1.0 look like 0-1
    1   85   0.85   0   in unit                1  -  .85  0
    1   85   0.85   0   in auto                -  .85  .85  0    1 may be 1 % or all of it
    Score (0-1): 1   Score (1-10): 8           1  -    a stated scale replaces the mode
    60-70%   between 60 and 70                 .65     a range wider than 20 points says too little
    ~80%   about 80%   80-ish   >90%           .8  .8  .8  -    a bound is not a value
    140%   -5   +5   1,000   3.1.2   5cm   1e2 -       not a share, or not surely one
    0,85   digits of other scripts             .85     decimal comma; but not "squared", halves, IV
    nan   inf   eighty   half                  -
    40% then ... Final answer: 70              .7      final answer > score, answer, ... > no mark
    [[85]]   \boxed{85}   {"score": 85}        .85     the first two are final answers, as is GLM's
    Score: 40 ... Score: 70   two <answer>s    -       what has the same rank must agree
    Score: no idea ... 40%                     -       a mark is not replaced by a guess
    80% (step 3 of 5)   step 3   3 bowls       .8 - -  a count is no score, nor a rival of one
    The bowl fell. 85   1. It fell. 85         .85  -  without mark or unit: the only number
    <answer> open, nested or empty             -       announced, and did not come
    cut by the token limit                     -       but for an <answer> closed outside <think>
    success   yes   failed   no                1 1 0 0 said alone, or after a mark
    not completed   incomplete                 0       the verdict is on the whole task
    did not fail   partly done   done          -       no verdict on the whole task
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

#: Raised with every change of what is read: judges tell it, and old cached scores are let go.
PARSER_VERSION = 1

ScoreMode = Literal["auto", "percentage", "unit"]


@dataclass(frozen=True)
class ParsedScore:
    """What was read.

    Attributes:
        score: In [0, 1], or None: the readout abstains.
        reason: A short sentence: what was read, or why nothing was.
    """

    score: float | None
    reason: str


def parse_score(text: str, *, mode: ScoreMode = "auto", truncated: bool = False) -> ParsedScore:
    """Read the score of a text, or abstain; never raises, in time linear in the text.

    Args:
        text: What the model wrote.
        mode: What a number without a unit means: 0 to 100, 0 to 1, or whichever is certain.
        truncated: The token limit cut the text. Only a closed `<answer>` may count then.
    """
    text = _fold(text)
    if not text.strip():
        return ParsedScore(None, "The text is empty.")
    said = _after_thinking(text)
    if said is None:
        return ParsedScore(None, "The thinking is never closed.")
    answers = _answers(said)
    if answers is None:
        return ParsedScore(None, "The <answer> tags are not closed, or not paired.")
    if not answers and truncated:
        return ParsedScore(None, "The token limit cut the text before an answer was closed.")
    readings = [_read(passage, mode) for passage in answers or [said]]
    abstained = next((reading for reading in readings if reading.score is None), None)
    if abstained is None and len({reading.score for reading in readings}) > 1:
        return ParsedScore(None, "The <answer>s disagree.")
    return abstained or readings[0]


# Stage 0: one spelling


def _fold(text: str) -> str:
    """Write everything in lower case, in one alphabet of digits and signs, on plain lines."""
    return "".join(map(_fold_char, text)).lower()


_SIGNS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    **dict.fromkeys("\u2014\u2015", " - "),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d\u201e", '"'),
    **dict.fromkeys("\u2044\u2215", "/"),
    **dict.fromkeys("\r\x85", "\n"),
    "\n": "\n",
    "\u066a": "%",  # Arabic percent sign, decimal separator
    "\u066b": ".",
    "\u25c1": "<",  # Kimi-VL writes its tags with triangles
    "\u25b7": ">",
}

_CATEGORIES = {
    "Cf": "",  # zero-width and direction marks: nobody sees them
    "Cs": "\ufffd",  # half a character: it must not join or end a number unseen
    "Zl": "\n",
    "Zp": "\n",
    "Cc": " ",
    "Zs": " ",
}


@lru_cache(maxsize=4096)
def _fold_char(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    plain = unicodedata.normalize("NFKC", char)
    # 10 squared is not 102: what only compatibility makes a digit stays as it is, unknown.
    return char if any(map(str.isdigit, plain)) else plain


# Stage 1: closed tags

_THINK = re.compile(r"<\s{0,4}(/?)\s{0,4}think(?:ing)?\s{0,4}>")
_ANSWER = re.compile(r"<\s{0,4}(/?)\s{0,4}answer\b[^<>]{0,80}>")


def _after_thinking(text: str) -> str | None:
    """Return what follows the last thought, or None where one is still open.

    Many chat templates open the thought in the prompt, so a close without an open is one too.
    """
    depth = end = 0
    for tag in _THINK.finditer(text):
        depth = max(0, depth - 1) if tag[1] else depth + 1
        end = tag.end()
    return None if depth else text[end:]


def _answers(text: str) -> list[str] | None:
    """Return what the <answer> tags hold, or None where they do not pair."""
    tags = list(_ANSWER.finditer(text))
    opens, closes = tags[::2], tags[1::2]
    if len(tags) % 2 or any(tag[1] for tag in opens) or not all(tag[1] for tag in closes):
        return None
    return [text[begin.end() : end.start()] for begin, end in zip(opens, closes, strict=True)]


# Stage 2: marks. A passage becomes clauses, and each is read by itself.

_NUMBER = r"(?:\d++(?:[.,]\d++)*+|\.\d++)"

#: A scale that the text itself names: "(0-100)", "out of 10" in brackets, "max_score": 10.
_SCALE = re.compile(
    rf"(?:\bon an? )?\bscale (?:of|from) [01](?:\.0)? ?(?:to|-) ?({_NUMBER})%?"
    rf"|\(? ?\b(?:on an? )?[01](?:\.0)? ?(?:to|-) ?({_NUMBER})%? ?(?:scale\b|\))"
    rf"|\( ?(?:out of|/) ?({_NUMBER})%? ?\)"
    rf"|\bmax\w{{0,20}}[\" ]{{0,3}}[:=] ?({_NUMBER})"
)

#: What is written for the eye, and what of it is said. In this order.
_MARKUP: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
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
        # "1. The robot" opens a list, or gives a score and goes on: no telling.
        (r"(?m)^ ?(\d{1,3})[.)] (?=\S)", r"item \1 ; "),
        (r"\b(?:because|since|given that)\b", ";"),
        (r"\bfail(?:s|ed)? to (?:complete|finish|succeed|accomplish|achieve)\b", "failed"),
        (r"\?", " ? ; "),  # a question is not an answer, and its sign is no known word
        (r"=", ":"),
        (r": ?\s++", ": "),  # the answer may stand on the line below its mark
    )
]

#: A comma before a number may be a list of numbers, which must not fall apart into answers.
_END_OF_CLAUSE = re.compile(r"[;!\n()]|\.(?!\d)|,(?! ?\d)| - (?=[a-z])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No "at" and "by" ("at 50%, it drops the bowl"), no "video" and "episode", which also just end.
_LIGHT = _words(
    "a an the this that it it's its is was are has have been did does do of for my i we "
    "so therefore thus hence only just now yet current currently value"
)
_SUBJECT = _words("task robot")
_AIM = _words("goal objective")  # "goal achieved", but "the goal is 100%"
_HEDGE = _words(
    "about around approximately approx roughly circa between exactly point points pts "
    "would say give rate rated think estimated assign i'd"
)
#: What may stand around a number that is neither marked nor said of the task.
_GIVING = _HEDGE | _words("a an this it it's is i so therefore thus hence only just")
_FINAL = _words("final overall")
_LABEL = _FINAL | _words(
    "score answer rating grade percentage percent completion completeness progress probability "
    "estimate reward result verdict outcome conclusion judgment judgement"
)
_GOOD = _words("success successful succeeded completed accomplished achieved pass passed yes true")
#: No verdict by themselves: "complete the task" repeats the order, "done." ends the talk.
_BASE = _words("complete finish finished succeed accomplish achieve done successfully")
_BAD = _words(
    "fail fails failed failing failure unsuccessful unsuccessfully incomplete unfinished "
    "unaccomplished"
)
_NO = _words("no false")
_NOT = _NO | _words("not never without isn't wasn't didn't doesn't hasn't")
_AUXILIARY = _words("is was are has have did does do")

_HEAVY = _SUBJECT | _GOOD | _BASE
_WITH_NUMBER = _LIGHT | _HEDGE | _LABEL | _HEAVY
_WITHOUT_NUMBER = _LIGHT | _LABEL | _HEAVY | _AIM | _BAD | _NOT

_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable to|impossible to|hard to|don't|do not) "
    r"(?:be |really |reliably )?(?:tell|determine|judge|assess|evaluate|say|see|estimate|know)"
    r"|\b(?:not sure|unsure|unclear)\b"
)
_RESERVATION = re.compile(r"\b(?:but|however|although|though|except|unless)\b")


@dataclass(frozen=True)
class _Clause:
    """A clause and what it says.

    Attributes:
        rank: 2 for a final answer, 1 for a score, 0 without a mark.
        share: In [0, 1], or why there is none.
        unit: The value was a percentage, a number, or a verdict in words.
    """

    text: str
    rank: int
    share: float | str
    unit: Literal["percent", "number", "words"] = "words"


def _read(passage: str, mode: ScoreMode) -> ParsedScore:
    """Read the strongest marks of a passage; without any, what it says unmarked."""
    scale = _stated_scale(passage, mode)
    text = _SCALE.sub(" ", passage)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    clauses = [_clause(part.strip(), scale) for part in _END_OF_CLAUSE.split(text) if part.strip()]
    for rank in (2, 1):
        marked = [clause for clause in clauses if clause.rank == rank]
        if marked:
            readable = [clause for clause in marked if isinstance(clause.share, float)]
            if _RESERVATION.search(text) and any(clause.unit == "words" for clause in readable):
                return ParsedScore(None, "The verdict is given with a reservation.")
            return _agreed(readable or marked[:1])
    return _unmarked(clauses, passage)


def _stated_scale(passage: str, mode: ScoreMode) -> ScoreMode | None:
    """Return what a bare number means: as the text says itself, or else as the mode says."""
    tops = {next(filter(None, found.groups())) for found in _SCALE.finditer(passage)}
    if not tops:
        return mode
    if tops == {"100"}:
        return "percentage"
    return "unit" if tops <= {"1", "1.0"} else None


def _unmarked(clauses: list[_Clause], passage: str) -> ParsedScore:
    """Read a passage in which nothing is marked: all that it says must agree."""
    if _REFUSAL.search(passage):
        return ParsedScore(None, "The text says that it cannot tell.")
    read = [clause for clause in clauses if isinstance(clause.share, float)]
    rest = [clause for clause in clauses if not isinstance(clause.share, float)]
    units = {clause.unit for clause in read}
    if "percent" in units:  # counts beside a percentage are no rivals: "80% (step 3 of 5)"
        rest = [clause for clause in rest if re.search(r"%|\bpercent|\bpct\b", clause.text)]
    elif "number" in units:
        rest = [clause for clause in rest if re.search(r"\d", clause.text)]
    if read and rest:
        return ParsedScore(None, f"Beside {_quote(read[0])} stands {_quote(rest[0])}.")
    return _agreed(read or rest[:1])


def _agreed(clauses: list[_Clause]) -> ParsedScore:
    """Read clauses that must all say the same."""
    for clause in clauses:
        if isinstance(clause.share, str):
            return ParsedScore(None, f"{_quote(clause)}: {clause.share}.")
        if clause.share != clauses[0].share:
            return ParsedScore(None, f"{_quote(clauses[0])} and {_quote(clause)} disagree.")
    if not clauses or isinstance(clauses[0].share, str):
        return ParsedScore(None, "The text says nothing.")
    return ParsedScore(clauses[0].share, f"Read {_quote(clauses[0])} as {clauses[0].share:g}.")


def _quote(clause: _Clause) -> str:
    return repr(clause.text if len(clause.text) <= 60 else f"{clause.text[:57]}...")


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
    (?![\w%+]|[-.,:/]\d|[ ]\d)      # part of a date, a time, a version, a word: no number
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

    def share(self, scale: ScoreMode | None) -> float | str:
        """Return its share of the whole, or why it is none."""
        on = "percent" if self.percent else scale
        if self.high is None:
            return _share(self.low, on)
        if self.join == "of":
            return "a count, not a score"
        if self.join in {"/", "out of"}:
            return "two units" if self.percent else _fraction(self.low, self.high)
        return _middle(_share(self.low, on), _share(self.high, on))


def _fraction(low: str, high: str) -> float | str:
    part, whole = _float(low), _float(high)
    if part is None or not whole or not 0 <= part <= whole:
        return "not a share of a whole"
    return part / whole


def _middle(low: float | str, high: float | str) -> float | str:
    if isinstance(low, str) or isinstance(high, str):
        return low if isinstance(low, str) else high
    if not low <= high <= low + 0.2 + 1e-9:
        return "a range this wide says too little"
    return round((low + high) / 2, 9)


def _float(digits: str) -> float | None:
    """Return the number, or None: 1,000 may be a thousand or one, and 3.1.2 is neither."""
    if re.fullmatch(r"0,\d{1,9}|\d{1,9},\d\d?", digits):
        digits = digits.replace(",", ".")
    return float(digits) if re.fullmatch(r"\d{0,9}\.?\d{1,18}", digits) else None


def _share(digits: str, scale: ScoreMode | Literal["percent"] | None) -> float | str:
    """Return the share that a number is on a scale, or why it is none."""
    number = _float(digits)
    if number is None or number < 0 or number > 100:
        return "not a number from 0 to 100"
    if number == 0 or scale == "percent":
        return number / 100
    if scale is None:
        return "on a scale that is neither 0-100 nor 0-1"
    return _on_scale(number, scale, whole=digits.isdecimal())


def _on_scale(number: float, scale: ScoreMode, *, whole: bool) -> float | str:
    if scale == "percentage":
        return number / 100 if number > 1 or whole else "0-1, where 0-100 was asked for"
    if scale == "unit":
        return number if number <= 1 else "not a number from 0 to 1"
    if number == 1:
        return "1 % or all of it: set the score mode"
    return number if number < 1 else number / 100


def _clause(text: str, scale: ScoreMode | None) -> _Clause:
    """Read one clause: all of it or nothing."""
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
        share = _value(tokens, quantities, scale)
    else:
        share = "no score" if text.endswith(":") else _verdict(words, marked=":" in text)
    return _Clause(text, _rank(text, words, share), share, unit)


def _rank(text: str, words: list[str], share: float | str) -> int:
    """Say how a clause is marked. What cannot be read is a mark only before a colon."""
    head, colon, _ = text.partition(":")
    if colon:
        words = head.split()
    elif isinstance(share, str):
        return 0
    if not _WITH_NUMBER.issuperset(words) or not _LABEL.intersection(words):
        return 0
    return 2 if _FINAL.intersection(words) else 1


def _value(
    tokens: list[str | _Quantity], quantities: list[_Quantity], scale: ScoreMode | None
) -> float | str:
    """Read a clause with numbers, which must agree."""
    words = [token for token in tokens if isinstance(token, str)]
    if not _WITH_NUMBER.issuperset(words):
        return "not understood as a score"
    if any(quantity.join == "and" for quantity in quantities) and "between" not in words:
        return "two numbers"
    if {"percentage", "percent"}.intersection(words):
        scale = "percentage"
    shares = [quantity.share(scale) for quantity in quantities]
    if len(set(shares)) > 1:
        return "the numbers disagree"
    if not _is_score(tokens, percent=all(quantity.percent for quantity in quantities)):
        return "a number, but not of a score"
    return shares[0]


def _is_score(tokens: list[str | _Quantity], *, percent: bool) -> bool:
    """Whether a number is a score, not a count or a moment.

    A percentage must be marked or said of the task. Any other number must follow a mark, and
    nothing that can be counted may stand between or behind: "task 3" and "1 result" are counts.
    """
    words = {token for token in tokens if isinstance(token, str)}
    if words <= _GIVING:
        return True
    if percent:
        return bool(words & (_LABEL | _HEAVY))
    heavy = max((index for index, token in enumerate(tokens) if token in _HEAVY), default=-1)
    rest = tokens[heavy + 1 :]
    first = next((index for index, token in enumerate(rest) if isinstance(token, _Quantity)), 0)
    return any(token in _LABEL for token in rest[:first])


# Stage 4: words


def _verdict(words: list[str], *, marked: bool) -> float | str:
    """Read a clause without numbers: what it says of the whole task after its last mark."""
    if not _WITHOUT_NUMBER.issuperset(words):
        return "neither a score nor a verdict"
    labels = [index for index, word in enumerate(words) if word in _LABEL]
    said = words[labels[-1] + 1 :] if labels else words
    if not said or (labels and not marked and said[0] not in _AUXILIARY):
        return "no score"
    negations = sum(word in _NOT for word in said)
    if not labels and not negations and said[0] in _AUXILIARY:
        return "a question"
    return _polarity(frozenset(said), said[-1], negations)


def _polarity(said: frozenset[str], last: str, negations: int) -> float | str:
    """Weigh words that are all known."""
    good, base, bad = said & _GOOD, said & _BASE, said & _BAD
    if negations + bool(bad) > 1 or (bad and good):
        return "no plain verdict"
    if bad or (negations and (good or base)):
        return 0.0
    if negations:
        return 0.0 if last in _NO and not said & _SUBJECT else "no plain verdict"
    if good or (base and said & (_AIM | {"task"}) and said & _AUXILIARY):
        return 1.0
    return "no score"
