"""Short answers: choices, yes or no, dates, and texts."""

import re
import unicodedata
from datetime import date


def _words(words: str, signs: str = "") -> re.Pattern[str]:
    """Return the pattern of words, in which `_` is a space, and of signs."""
    named = "|".join(words.split()).replace("_", " ")
    return re.compile(rf"\b(?:{named})\b{signs}", re.IGNORECASE)


#: What denies, doubts or restricts what a sentence says.
DENIES = _words(
    "not never no none nor neither nobody nowhere cannot wrong incorrect false except excluding "
    "other_than anything but unless maybe possibly perhaps probably might could alternatively "
    "actually wait guess eliminated possible unknown unclear unsure whether if otherwise instead "
    "rather previously at_least at_most or either rule_out reject all_of half_of square_root "
    "root_of derivative_of integral_of mod modulo else impossible",
    r"|n['’]t\b|[≠<>≤≥]|\\(?:neq?|[lg]eq?|pm)(?![a-z])|\?",
)
#: What makes another number or formula of one.
CHANGES = _words(
    "twice double triple half halves thirds? quarters? fourths? fifths? sixths? eighths? tenths? "
    "hundredths? thousandths? squared square_of square_root cubed? roots? inverse opposite "
    "reciprocal factorial over under below above less more fewer greater nearly almost before "
    "after between plus minus times up point sin cos tan log ln sqrt exp pi bn ppm basis to or "
    "and th st nd rd bc negative one is sum difference product ratio power per_thousand",
    r"|[-−](?:th)\b",
)
#: What of that is harmless where a sentence states something.
HARMLESS = _words(
    "is and or to between one point sum difference product ratio roots? sqrt sin cos tan log ln "
    "exp pi power"
)
_YES = "yes|true|correct|right|是|对|ja|oui|sí"
_NO = "no|false|incorrect|wrong|否|错|nein|non"
_SAYS_SO = re.compile(
    rf"\W*(?:(?P<yes>{_YES})|(?P<no>{_NO}))(?!\w)(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_STATES = re.compile(
    r"\W*(?:(?:so|thus|hence|therefore)\W+)?(?:(?:the|this|that)\s+)?(?:statement|claim|answer|it|this|that)"
    rf"(?:\s+is|['’]s)\s+(?P<not>not\s+)?(?:(?P<yes>{_YES})|(?P<no>{_NO}))\W*",
    re.IGNORECASE,
)
#: A letter of an option, at the beginning, in a list, and in a sentence.
_FIRST = re.compile(
    r"\W*(?:(?:option|choice|answer)\W+)?\(?(?P<letter>[A-Z])\)?"
    r"(?:(?=[.):\n*]|\s+[-–—]\s)|\s*$|\s+(?=\(|is the|because))"
    r"(?P<rest>.*)",
    re.DOTALL | re.IGNORECASE,
)
_LIST = re.compile(
    r"\W*(?:[A-J]{2,10}|\(?[A-Z]\)?(?:(?:\s*[,;/&]\s*|\s+)(?:and\s+)?\(?[A-Z]\)?){1,10})\W*"
)
_IN_SENTENCE = re.compile(r"(?<![\w'’])\(?(?:(?<=\()[A-Z](?=\))|[B-HJ-Z]|[AI](?=\W*$))(?![\w'’])")
_OTHER = re.compile(r"(?<![\w'’])\(?([B-HJ-Z]|(?<=\()[AI])(?![\w'’])")
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DATES = tuple(
    re.compile(rf"(?:.{{0,60}}\bon\s+)?(?:\w+day,?\s+)?{each}", re.IGNORECASE)
    for each in (
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?:T[\d:.Z+-]+)?",
        rf"{_MONTH}\s+(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:\s*,?\s+(?P<y>\d{{4}}))?",
        rf"(?:the\s+)?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\.?\s+(?:of\s+)?{_MONTH}(?:,?\s+(?P<y>\d{{4}}))?",
        r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
        r"(?P<y>\d{4})年(?P<m>\d{1,2})月(?P<d>\d{1,2})日",
        r"(?P<a>\d{1,2})/(?P<b>\d{1,2})/(?P<y>\d{4})",
    )
)
_MARKUP = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|textit|emph)\s*(?=\{)|\\[,;:! ]|[{}$*`]"
    r"|_(?=[{\d])|(?<!\w)_|_(?!\w)"
)


def read_choice(text: str) -> str | None:
    """Return the letters of the options that a text names, each once, in order; None if none."""
    text = _MARKUP.sub("", text).strip()
    if _LIST.fullmatch(text):
        return "".join(sorted(set(re.findall("[A-Z]", text))))
    if first := _FIRST.match(text):
        rest = first["rest"].strip(" .)*:")
        sentence = re.split(r"[.\n]", rest)[0]
        verb = re.match(
            r"\s*(?:is|was|would|can|could|seems|isn['’]t)\b(?! the (?:right|correct|best))",
            sentence,
        )
        is_denied = verb and DENIES.search(sentence)
        others = re.match(r"(?:.*[.,;])?\W*[B-HJ-Z]\W*$|.*[.,;]\s*\(?[B-HJ-Z][):]", rest)
        joint = re.search(r"\b(?:and|but|or|plus)\b|[,&/]|alternatively|possibly", rest)
        if is_denied or others or (joint and _OTHER.search(rest)):
            return None
        if first["letter"].isupper() or not rest:
            return first["letter"].upper()
    found = {each.strip("(") for each in _IN_SENTENCE.findall(text)}
    return found.pop() if len(found) == 1 and not DENIES.search(text) and "=" not in text else None


def read_yes_no(text: str) -> str | None:
    """Return `yes` or `no`, of a text that plainly says one of these or the like; None if none."""
    text = _MARKUP.sub(" ", text).strip()
    if stated := _STATES.fullmatch(text):
        return "yes" if bool(stated["yes"]) != bool(stated["not"]) else "no"
    match = _SAYS_SO.match(text)
    if match is None or not re.match(r"\W|$", match["rest"]):
        return None
    word = "yes" if match["yes"] else "no"
    rest = match["rest"]
    is_alone = not rest.strip(" .!,*")
    is_sentence = rest.strip()[:1] in ",.!;:*—–(-" and (match["yes"] or match["no"]).lower() in {
        "yes", "no", "true", "false", "ja", "nein", "oui", "non", "sí",
    }  # fmt: skip
    opposite = _NO if match["yes"] else _YES
    turns = rf"\b(?:{opposite}|actually|wait|mean|maybe|otherwise|if|or|definitely not)\b|\?"
    is_turned = re.search(turns, re.sub(r"\b[Nn]o (?=\w+ \w)", "", rest), re.IGNORECASE)
    return word if is_alone or (is_sentence and not is_turned) else None


def read_date(text: str) -> str | None:
    """Return a date as `2026-03-05`; None if the text is none.

    A date such as 03/04/2026, which is another one in other countries, is none.
    """
    text = " ".join(_MARKUP.sub(" ", text).split()).strip(" .,")
    match = next((each for form in _DATES if (each := form.fullmatch(text))), None)
    if match is None or DENIES.search(text):
        return None
    found = match.groupdict()
    if "a" in found:  # one of the numbers is a day
        found["m"], found["d"] = sorted((found["a"], found["b"]), key=int)
        if int(found["d"]) <= 12 and found["a"] != found["b"]:
            return None
    if "month" in found:
        found["m"] = str(_MONTHS.split().index(found["month"][:3].lower()) + 1)
    try:
        shown = date(int(found["y"] or 2000), int(found["m"]), int(found["d"])).isoformat()
    except ValueError:
        return None
    return shown if found["y"] else shown.replace("2000", "-")


def normalized(text: str) -> str:
    """Return a text without case, punctuation, articles and white space."""
    text = unicodedata.normalize("NFKC", _MARKUP.sub("", text)).casefold()
    text = re.sub(r"\b(?:a|an|the)\s+(?=\w)", "", text)
    text = re.sub(r"['’‘]|(?<=[^\W\d])-(?=\w)", "", text)
    text = re.sub(r"(?<!\d)[.,:/]|[.,:/](?!\d)|[^\w<>=≤≥≠#+%^.,:/\s&-]|_", " ", text)
    return "".join(text.split())


def readings(text: str) -> list[str]:
    """Return a text, and what is said in it, as in `The capital is Paris.`"""
    parts = re.split(r"\b(?:is|are|was|were|falls on)\b|(?<=[Ii]t)['’]s\b", text)
    is_plain = len(parts) == 2 and not DENIES.search(text) and not re.search(r"[,;:]", text)
    return [text, *parts] if is_plain else [text]


def read_list(text: str) -> list[str]:
    """Return the items of a list of words, normalized."""
    text = re.sub(r"(?m)^\s*(?:[-*•]|\d+[.)])\s+", "", _MARKUP.sub(" ", text)).strip(" []()")
    parts = re.split(r"[,;\n]|\band\b|\bthen\b|→|->", text)
    return [each for part in parts if (each := normalized(part.strip(" \"'")))]
