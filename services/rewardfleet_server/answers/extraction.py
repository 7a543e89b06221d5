"""Which part of a text is the answer. Time is linear in the text."""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from rewardfleet.text.reading import read
from rewardfleet.wire.answers import Form, Rule

from .words import CHANGES, DENIES, HARMLESS

#: Characters of an answer, and of the text before it in which other answers are sought.
MAX_ANSWER = 10_000
_MAX_MARKS = 20  #: marks that are looked at, from the last one on
_MAX_WHOLE = 300  #: characters of a text without marks that is an answer as a whole

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\w\\])")
_TAG = re.compile(r"<(?:final_)?answer>", re.IGNORECASE)
_END_OF_TAG = re.compile(r"</(?:final_)?answer>", re.IGNORECASE)
_HASHES = re.compile("####(?!#)")
_PHRASE = re.compile(
    r"####(?!#)|(?<!wrong )(?<!incorrect )(?<!false )"
    r"\b(?:answers?|solution|result|antwort|lösung|respuesta|réponse)\b[ \t*_`]{0,9}"
    r"(?:\(.{1,30}\)[ \t]{0,9})?"
    r"(?:(?:is|are|was|ist|es|est|should be|must be|would be)\b(?! not\b)|[:：=]|(?<=[*_]))|"
    r"答案[是为為]?[:：]?|答[:：]",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"\$\$(?P<a>(?:[^$]|\\\$)+)\$\$|(?<!\\)\$(?P<b>(?:[^$]|(?<=\\)\$)+)(?<!\\)\$|"
    r"\\\((?P<c>(?:[^\\]|\\(?![()]))+)\\\)|\\\[(?P<d>(?:[^\\]|\\(?![\[\]]))+)\\\]"
)
_BLOCK = re.compile(r"```[\w-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_ITEM = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+\S")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
#: What only joins two answers.
_JOINT = re.compile(
    r"[\s$.,;*]{0,9}(?:(?:\\text\{\s*)?(?:or|and|oder|und|或|和)\b\s?\}?)?[\s$*\\()\[\]]{0,9}"
    r"(?:\w{1,3}\s?=\s?)?"
)
_LITERAL = ("exact", "regex", "json")  #: forms whose every character counts
#: Markup around a text.
_WRAPPERS = tuple(
    re.compile(each, re.DOTALL)
    for each in (
        r"\*\*(.*?)\*\*",
        r"__(.*?)__",
        r"`+(.*?)`+",
        r"\$\$(.*?)\$\$",
        r"\$([^$]*)\$",
        r"\\\((.*?)\\\)",
        r"\\\[(.*?)\\\]",
        r"\\(?:text|textbf|mathbf|mathrm|textrm|bf|boxed|fbox)\s*\{([^{}]*)\}",
        r"\{([^{},:\\]*)\}",
    )
)
_EDGES = " \t\r\n*_`"


class Extracted(NamedTuple):
    """What a rule has found."""

    rule: Rule
    answers: tuple[str, ...]  #: more than one if the text has several
    joined: str  #: all of them as one list, if nothing else is between them; else empty


def answer_of(text: str) -> str:
    """Return what a policy wrote as its answer: its last turn, without thoughts.

    A thought that never ends has no answer.
    """
    turn = read(text).last
    return "" if turn.cut and not turn.answer.strip() else turn.answer


def extract(
    text: str,
    rule: Rule | None,
    form: Form,
    is_readable: Callable[[str], object],
) -> Extracted | None:
    """Return the answer in a text, or the answers; None if there is none.

    Args:
        rule: None: the first one that finds something, of those for the form.
        form: That of the reference.
        is_readable: Whether an answer can be of that form. A rule that finds none such is the last.
    """
    unreadable = None
    for name in [rule] if rule else _ORDER.get(form, _ORDER_OF_FORMULAS):
        if unreadable is not None and name not in _MARKED:
            break
        found = _RULES[name](text)
        tidy = str.strip if form in _LITERAL else cleaned
        answers = [tidy(each) for each, _ in found]
        if not any(answers):
            continue
        if any(each and is_readable(each) for each in answers):
            answers = [each if is_readable(each) else "" for each in answers]
            joined = ", ".join(answers) if all(is_joint for _, is_joint in found[1:]) else ""
            kept = tuple(dict.fromkeys(each for each in answers if each))
            return Extracted(name, kept, joined if len(kept) > 1 else "")
        unreadable = unreadable or Extracted(name, (next(filter(None, answers)),), "")
    return unreadable


def marked_answer(text: str) -> str:
    """Return what is after `####`, in the last box, or all; raise ValueError if several differ."""
    if boxes := _marked(text, _BOX, _box_at):
        last = [*takewhile(lambda box: box[1], reversed(boxes[1:]))]  # as in `\boxed{1}, \boxed{2}`
        return ", ".join(cleaned(each) for each, _ in boxes[len(boxes) - 1 - len(last) :])
    answers = dict.fromkeys(cleaned(each) for each, _ in _marked(text, _HASHES, _phrase_at))
    if len(answers) > 1:
        raise ValueError(f"has answers that contradict: {', '.join(answers)[:100]}")
    return next(iter(answers), text.strip())


def cleaned(text: str) -> str:
    """Return an answer without markup around it, and without the end of a sentence."""
    text = re.sub(r"~~[^~]*~~", "", text)
    before = None
    while before != text:
        before = text
        text = re.sub(r"^[>*-]\s+(?=\*\*|[A-Za-z])", "", text.strip()).strip(_EDGES)
        if not text.endswith("..."):
            text = re.sub(r"(?<=[A-Za-z]{2})!+$", "", text.rstrip(".。;,"))
        for wrapper in _WRAPPERS:
            if match := wrapper.fullmatch(text):
                text = match[1]
                break
    return text


#: The text of each answer, and whether only a word such as "or" is between it and the last one.
_Found = Sequence[tuple[str, bool]]


def _marked(
    text: str,
    mark: re.Pattern[str],
    read_at: Callable[[str, re.Match[str]], tuple[str, int] | None],
) -> _Found:
    """Return what follows the last mark, and the others of its paragraph, in order.

    What is in an earlier paragraph is an intermediate result.
    """
    found: list[tuple[str, int, int]] = []
    for each in reversed([*mark.finditer(text)][-_MAX_MARKS:]):
        content = read_at(text, each)
        if content is None or (found and content[1] > found[-1][1]):
            continue  # it is around another one
        if found and _PARAGRAPH.search(text, content[1], found[-1][1]):
            break
        found.append((content[0], each.start(), content[1]))
    found.reverse()
    ends = [0, *(end for _, _, end in found)]
    return [
        (content, bool(_JOINT.fullmatch(text, end, start)))
        for (content, start, _), end in zip(found, ends, strict=False)
    ]


def _box_at(text: str, mark: re.Match[str]) -> tuple[str, int] | None:
    start = mark.end()
    if text[start] != "{":  # \boxed 5
        token = re.compile(r"\\?\w+").match(text, start)
        return (token[0], token.end()) if token else None
    depth = 0
    for brace in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + MAX_ANSWER):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return text[start + 1 : brace.start()], brace.end()
    return None


def _in_tags(text: str) -> _Found:
    """Return what is in tags; wherever they are, those that differ are several answers."""
    found: list[tuple[str, bool]] = []
    for mark in [*_TAG.finditer(text)][-_MAX_MARKS:]:
        end = _END_OF_TAG.search(text, mark.end(), mark.end() + MAX_ANSWER)
        content = text[mark.end() : end.start() if end else mark.end() + MAX_ANSWER]
        found += _marked(content, _BOX, _box_at) or [(content, False)]
    return found


def _phrase_at(text: str, mark: re.Match[str]) -> tuple[str, int] | None:
    rest = re.compile(r"[\s*_:：]*").match(text, mark.end())
    start = rest.end() if rest else mark.end()
    if start == len(text):
        return None
    formula = _FORMULA.match(text, start, start + MAX_ANSWER)
    end = text.find("\n", formula.end() if formula else start)
    end = len(text) if end < 0 else end
    return text[start : min(end, start + MAX_ANSWER)], end


def _last_sentence_with_number(text: str) -> list[str]:
    sentences = re.split(r"(?<=[.!?。])\s+|\n+", text[-MAX_ANSWER:].strip())
    return [each for each in sentences if re.search(r"\d", each)][-1:]


def _last_line(text: str) -> list[str]:
    """Return the last line; of a list with a line for each item, all of it."""
    lines = text.strip()[-MAX_ANSWER:].splitlines()
    items = [*takewhile(_ITEM.match, reversed(lines))]
    return ["\n".join(reversed(items))] if len(items) > 1 else lines[-1:]


def _blocks_or_all(text: str) -> list[str]:
    blocks: list[str] = _BLOCK.findall(text)
    inner = re.search(r"(?<!\S)[\[{].*[\]}]", text, re.DOTALL)  # JSON in a sentence
    if not blocks and inner and re.match(r"[^\[{]*:\s*$", text[: inner.start()]):
        blocks = [inner[0]]
    return blocks or [text]


def _short_line(text: str) -> list[str]:
    text = text.strip()
    return [text] if len(text) <= _MAX_WHOLE and "\n" not in text else []


def _apart(find: Callable[[str], list[str]]) -> Callable[[str], _Found]:
    """Return a rule whose answers are never one list."""
    return lambda text: [(each, False) for each in find(text)]


_RULES: dict[str, Callable[[str], _Found]] = {
    "answer_tag": _in_tags,
    "last_box": lambda text: _marked(text, _BOX, _box_at),
    "answer_phrase": lambda text: _marked(text, _PHRASE, _phrase_at),
    "short_text": _apart(_short_line),
    "last_formula": _apart(lambda text: formulas_in(text[-MAX_ANSWER:])[-1:]),
    "last_number": _apart(_last_sentence_with_number),
    "last_line": _apart(_last_line),
    "whole_text": _apart(_blocks_or_all),
}
_MARKED: tuple[Rule, ...] = ("answer_tag", "last_box", "answer_phrase")
_ORDER_OF_FORMULAS: tuple[Rule, ...] = (*_MARKED, "short_text", "last_formula", "last_line")
#: The rules that are tried, by the form of the reference.
_ORDER: dict[str, tuple[Rule, ...]] = {
    "number": (*_MARKED, "short_text", "last_formula", "last_number"),
    **dict.fromkeys(("choice", "yes_no", "date", "text"), (*_MARKED, "short_text", "last_line")),
    **dict.fromkeys(("exact", "regex"), (*_MARKED, "whole_text")),
    "json": ("answer_tag", "whole_text"),
}


def core(text: str) -> str:
    """Return the formula that a sentence states, as in `The roots are $x=2$ and $x=3$.`

    A text that is a formula, or a sentence that denies, changes or restricts one, stays as it is.
    """
    text = re.split(r"\s*(?:\\text\{\s*)?\bfor (?:every|all|any)\b", text, maxsplit=1)[0]
    bare = _FORMULA.sub(" ", text)
    prose = re.sub(r"\\[A-Za-z]+(?:\{[A-Za-z ]*\})?", " ", bare)
    formulas = [cleaned(each) for each in formulas_in(text)]
    if not _PROSE.search(prose):
        return exact(", ".join(formulas) if formulas and _LIST.fullmatch(bare) else text)
    if DENIES.search(_BARE_OR.sub(" ", bare)) or CHANGES.search(HARMLESS.sub(" ", bare)):
        return text
    if formulas:
        return exact(", ".join(formulas))
    return exact(cleaned(_SAYS.split(text)[-1]))


_PROSE = re.compile(r"(?<![A-Za-z])(?!(?:sqrt|sin|cos|tan|log|exp|abs|or|and|inf)\b)[A-Za-z]{2,}")
_SAYS = re.compile(r"\b(?:is|are|equals|gives|to|be)\b|:\s")
_BARE_OR = re.compile(r"\b(?:or|either)\b")
_LIST = re.compile(r"(?:\s|,|;|\bor\b|\band\b)+")
_APPROXIMATELY = re.compile(r"^([^≈]*?\d[^≈]*?)(?:≈|\\approx)\s*-?\d*\.?\d+\W*$", re.DOTALL)


def exact(text: str) -> str:
    """Return a formula without the rounded value after it."""
    return _APPROXIMATELY.sub(r"\1", text).strip()


def formulas_in(text: str) -> list[str]:
    """Return the formulas of a text, without their marks."""
    return [each[each.lastgroup or 0] for each in _FORMULA.finditer(text)]
