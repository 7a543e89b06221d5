"""Plain numbers: decimals, fractions, percents, money, and the units after them."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from .extraction import core
from .words import CHANGES, DENIES, HARMLESS

#: Characters of a number with its unit, and digits of an exponent. Limits the time.
_MAX_CHARACTERS, _MAX_EXPONENT = 300, 400
_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "dozen": 12, "lakh": 10**5, "crore": 10**7,
}  # fmt: skip
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELLED = re.compile(
    rf"(?:(?P<tens>{_TENS.replace(' ', '|')})(?:[- ](?=\w))?)?(?P<ones>{_ONES.replace(' ', '|')})?"
    r"(?![\w-])(?!\s+(?:point|half|hal|third|quarter|fourth|fifth|sixth|in)\b)", re.IGNORECASE
)  # fmt: skip
_DIGITS = (
    r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|'|[\u00a0\u202f\u2009 ])\d{3})+(?!\d)"
    r"|\d{1,2}(?:,\d\d)+,\d{3}|\d+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    rf"""
    (?:(?P<name>[A-Za-z](?:_\{{?\w+\}}?)?)\s*(?:=|\\approx|≈)\s*)?
    (?:\\approx|≈|about|approximately)?\s*
    (?P<sign>[-+]?|minus\ |negative\ )\s*(?:(?P<currency>\\?[$€£¥]|USD|EUR)\s*)?
    (?:
        (?:(?P<whole>\d+)\s*(?:\s|(?=\\)))?
        (?:\\[dtc]?frac\s*(?:\{{\s*(?P<a>-?{_DECIMAL})\s*\}}|(?P<a1>\d))
           \s*(?:\{{\s*(?P<b>{_DECIMAL})\s*\}}|(?P<b1>\d))
           |(?P<c>{_DECIMAL})\s*[/÷⁄]\s*(?P<d>{_DECIMAL}))
        |(?P<decimal>{_DECIMAL})
         (?:[eE](?P<e>[-+]?\d+)
           |\s*(?:\\times|\\cdot|×|·|\*|x)\s*10\s*(?:\^|\*\*)\s*\{{?\s*(?P<exponent>[-+]?\d+)\s*\}}?)?
    )
    (?P<rest>.*)
    """,
    re.VERBOSE | re.DOTALL,
)
_PERCENT = re.compile(r"\s*(?:\\?%|per\s?cent\b)\s*")
#: Units that may follow a number without a space, or are short.
_SHORT_UNITS = (
    "m g s l L h A V W J N K C F T M B km cm mm nm µm um kg mg µg ms ns µs hr hrs min sec ft in mi "
    "yd oz lb lbs mph kph Hz kHz MHz GHz Pa kPa MPa kJ MJ kW MW GW kWh kV mV mA mL ml dL cL mol eV "
    "keV MeV GeV rad deg GB MB KB TB USD EUR GBP kN atm bar cal kcal pF µF μF nF mH Ω MΩ kΩ ° °C "
    "°F μm μg μs μV ¢ $ € £ am pm a.m. p.m. mM kmh days cents usd"
)
_UNIT = re.compile(
    r"(?:[^\W\d_]+|[°¢Ωμµ]+[A-Za-z]*|^[$€£])(?:\s*(?:\^|\*\*)\s*\(?-?\d\)?|[²³¹⁻]+|-?[1-4](?!\d))?"
)
_OF_UNITS = re.compile(r"[\s./*·()^²³⁻¹-]")
_LATEX_TEXT = re.compile(
    r"\\(?:text|mathrm|textrm|operatorname|rm|mbox|textbf|mathbf|,|;|:| )\s*|[{}]"
)
_FRACTIONS = {"½": "12", "⅓": "13", "¼": "14", "¾": "34", "⅔": "23", "⅕": "15", "⅛": "18"}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_DASHES = str.maketrans({"−": "-", "–": "-", "—": "-", "﹣": "-", "－": "-"})
#: Other spellings of what `_NUMBER` knows.
_SPELLINGS: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile("[½⅓¼¾⅔⅕⅛]"),
     lambda m: rf"\frac{{{_FRACTIONS[m[0]][0]}}}{{{_FRACTIONS[m[0]][1]}}}"),
    (re.compile("(?<=10)[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"), lambda m: f"^{{{m[0].translate(_SUPERSCRIPTS)}}}"),
    (re.compile(r"(?<=\d)_(?=\d{3}(?!\d))|\\!|\\left|\\right"), ""),
    (re.compile(r"\b0(?:,|\{,\})(?=\d)"), "0."),
    (re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d{1,20})\}"), lambda m: _repeating(*m.groups())),
    (re.compile(r"\\[dt]?frac\s*\{\s*(\\(?:text|mathrm)\{[^{}]*\}[^{}]*)\}\s*"
                r"\{((?:[^{}]|\{[^{}]*\})*)\}"), r" (\1)/(\2)"),
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A number, exactly, and the unit that follows it."""

    value: Fraction  #: without a percent sign
    is_percent: bool = False
    unit: str = ""  #: as written, without markup; currencies are units
    name: str = ""  #: the variable that it is the value of

    @property
    def shown(self) -> str:
        text = str(self.value)
        if self.value.denominator != 1 and abs(self.value) < 10**15:
            decimal = f"{float(self.value):.15g}"
            text = decimal if Fraction(decimal) == self.value else text
        return f"{text}{'%' if self.is_percent else ''} {self.unit}".strip()


def respelled(text: str) -> str:
    """Return a text with fractions, powers and repeating digits as LaTeX has them."""
    text = text.translate(_DASHES)
    for pattern, to in _SPELLINGS:
        text = pattern.sub(to, text)
    return text


@lru_cache(4096)
def read_number(text: str) -> Number | None:
    """Return the number that a text is, None if it is something else."""
    text = respelled(text[: _MAX_CHARACTERS + 1]).strip()
    is_formula = text[:1] == text[-1:] == "$" and len(text) > 1
    text = text[1:-1].strip() if is_formula else text.rstrip("$")
    if (spelled := _SPELLED.match(text)) and spelled[0]:
        tens = _TENS.split().index(spelled["tens"].lower()) * 10 + 20 if spelled["tens"] else 0
        ones = _ONES.split().index(spelled["ones"].lower()) if spelled["ones"] else 0
        text = f"{tens + ones}{text[spelled.end() :]}"
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MAX_CHARACTERS:
        return None
    percent = _PERCENT.match(match["rest"])
    unit = _unit(match["rest"][percent.end() if percent else 0 :])
    value = _value(match)
    if unit is None or value is None:
        return None
    first, _, after = unit.partition(" ")
    if scale := _SCALES.get(first.lower().removesuffix("s")):
        value, unit = value * scale, after
    unit = match["currency"].lstrip("\\") if match["currency"] else unit
    value = -value if match["sign"].strip() in {"-", "minus", "negative"} else value
    return Number(value, percent is not None, unit, match["name"] or "")


def number_in(text: str) -> Number | None:
    """Return the number that a sentence states, None if it is not plain which one."""
    number = read_number(text) or read_number(core(text))
    stated = respelled(_REASON.split(text, maxsplit=1)[0])
    if number is not None or "\\" in stated or DENIES.search(text) or not _PROSE.search(stated):
        return number
    said = _SAYS.split(stated)[-1]
    found = [*_CANDIDATE.finditer(said)]
    if len(found) != 1 or CHANGES.search(HARMLESS.sub(" ", stated)):
        return None
    words = _WORD.match(said, found[0].end())
    return read_number(f"{found[0][0]}{words[0] if words else ''}") or read_number(found[0][0])


_PROSE = re.compile(r"(?:^|\s)[^\W\d_]{2}")
#: After which a sentence states its result, and before which it gives its reason.
_SAYS = re.compile(
    r"=|≈|\\approx|:|\b(?:is|are|was|were|be|get|gets|equals|makes?|earns?|to|costs?)\b"
)
_REASON = re.compile(r"(?<=[\d$]),?\s+(?:since|because|where|as|so that|given)\b")
_CANDIDATE = re.compile(
    r"(?<![\w.,/^{√∛±<>≤≥≠*×·+(-])(?:minus |negative |-)?[$€£]?(?:\d[\d,]*(?:\.\d+)?"
    r"(?:\s*×\s*10\^\{-?\d+\})?(?:\s?/\s?\d+)?|\d*\\frac\{\d+\}\{\d+\})(?![\d√])%?(?!\s*[-+*/^×·÷=!_({√]|['’]s)"
)
_WORD = re.compile(r"\s?(?:square |cubic )?[^\W\d_]+(?:/[^\W\d_]+|[\^]?[²³23]|\sper\s[a-z]+)?")


def _value(match: re.Match[str]) -> Fraction | None:
    top = match["a"] or match["a1"] or match["c"]
    if top is not None:
        bottom = _fraction(match["b"] or match["b1"] or match["d"])
        if not bottom:
            return None
        return Fraction(match["whole"] or 0) + _fraction(top) / bottom
    exponent = int(match["e"] or match["exponent"] or 0)
    if match["whole"] or abs(exponent) > _MAX_EXPONENT:
        return None
    return _fraction(match["decimal"]) * Fraction(10) ** exponent


def _fraction(digits: str) -> Fraction:
    return Fraction(re.sub(r"[^\d.-]", "", digits))


def _repeating(whole: str, digits: str, period: str) -> str:
    value = int(f"{whole}{digits}{period}") - int(f"{whole}{digits}" or 0)
    return rf"\frac{{{value}}}{{{(10 ** len(period) - 1) * 10 ** len(digits)}}}"


def _unit(text: str) -> str | None:
    """Return the unit after a number, without markup; None if what follows is no unit."""
    has_space = text[:1] in {" ", "\\"}
    text = re.sub(r"\^?\s*\{?\\circ\}?|\\degree|\^\s*°|º", "°", text)
    text = text.replace("\\mu ", "µ").replace("\\Omega", "Ω").replace("\\cdot", "*")
    text = re.sub(r"(?<=\s)\([^\d()]*\)\s*$", "", _LATEX_TEXT.sub(" ", text))
    text = " ".join(text.strip().rstrip(" .,;:$*_`").split())
    words = _UNIT.findall(text)
    if "\\" in text or _OF_UNITS.sub("", _UNIT.sub("", text)) or CHANGES.search(text):
        return None
    name = re.match(r"[^\d^*²³¹⁻(\s-]*", words[0] if words else "")[0]  # type: ignore[index]
    is_word = len(name) > 2 if has_space else len(name) > 3 and name.islower()
    is_unit = is_word or name in _SHORT_UNITS.split() or text.startswith("°")
    return text if is_unit or not text else None


def equal(answer: Number, reference: Number, tolerance: float | None) -> bool:
    """Return whether two numbers are equal, whatever their units.

    Without a percent sign on one of them, a percent is a hundredth, or one of the unit that it is.
    """
    if answer.name and reference.name and answer.name != reference.name:
        return False
    is_near = near(answer.value, reference.value, tolerance)
    if answer.is_percent == reference.is_percent:
        return is_near
    if answer.unit or reference.unit:
        return False
    hundredth, right = (
        each.value / 100 if each.is_percent else each.value for each in (answer, reference)
    )
    return near(hundredth, right, tolerance) or (is_near and abs(reference.value) >= 1)


def near(value: Fraction, reference: Fraction, tolerance: float | None) -> bool:
    """Return whether two values differ by at most a share of the reference; see `tolerance`."""
    if tolerance is None:
        return value == reference
    return abs(value - reference) <= Fraction(tolerance) * (abs(reference) or 1)
