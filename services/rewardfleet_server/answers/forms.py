"""Comparison of answers with references: here if its cost is bounded, else by a worker process."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rewardfleet.wire.answers import AnswersRequest, Form
from rewardfleet.wire.causes import AnswersCause
from rewardfleet.wire.errors import InvalidRequest

from .extraction import MAX_ANSWER, Extracted, cleaned, core, extract, marked_answer
from .numbers import Number, equal, number_in, read_number
from .words import normalized, read_choice, read_date, read_list, read_yes_no, readings

_MAX_TEXT = 1_000  #: characters of texts that are compared here
#: Forms of formulas, which both checkers compare.
FORMULAS: frozenset[Form] = frozenset(
    {"expression", "set", "list", "interval", "equation", "matrix"}
)
_CHOICE = re.compile(r"\(?([A-J])\)?\.?|[A-J](?:\s*,\s*[A-J])+")
#: A date that is another one in other countries, and e.g. H2O.
_DATE_OR_SUBSTANCE = re.compile(r"\d{1,2}/\d{1,2}/\d{4}|(?=.*\d)(?=.*[A-Z])(?:[A-Z][a-z]?\d*){2,}")
_MATRIX = re.compile(r"\\begin\s*\{[pbvBV]?(?:small)?matrix|\\begin\s*\{array")
_INTERVAL = re.compile(
    r",[^,()\[\]]*\\?(?:infty|oo|∞)\s*[)\]]|[\[(]\s*[^,()\[\]]*\\?(?:infty|oo|∞)|"
    r"\[[^,\[\]]+,[^,\[\]]+\)|\([^,()]+,[^,()]+\]|\\cup|∪"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
#: Words in formulas.
_FUNCTIONS = (
    "sqrt sin cos tan cot sec csc log ln exp abs pi inf infty oo arcsin arccos arctan sinh cosh "
    "tanh frac or and"
)


@dataclass(frozen=True)
class Outcome:
    """What came of a comparison."""

    is_right: bool
    cause: AnswersCause | None  #: why it is not right
    details: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A comparison for a worker process."""

    job: dict[str, Any]  #: JSON, which says all that the outcome depends on
    #: Of the outcome. Without a `rule` there is no answer, and only the reference is checked.
    details: dict[str, float | str]


@dataclass(frozen=True)
class Truth:
    """A reference in its form."""

    form: Form
    text: str  #: as it is compared
    request: AnswersRequest

    @cached_property
    def number(self) -> Number | None:
        return read_number(self.text)

    def compare(self, text: str) -> Outcome | Check:  # noqa: PLR0911 - one for each form
        """Compare the answer in a text with the reference, or return how to."""
        rule = None if self.request.extract == "auto" else self.request.extract
        found = extract(text, rule, self.form, _READERS.get(self.form, bool))
        is_plain = self.form in {*_READERS, "text", "exact"} or self.number is not None
        if found is None and not is_plain:
            return self._check(None)
        if found is None:
            return Outcome(False, AnswersCause.NO_FINAL_ANSWER, self._details())
        longest = max(map(len, found.answers))
        if longest > max(MAX_ANSWER, 2 * len(self.text)):
            return self._wrong(found, AnswersCause.TOO_COMPLEX)
        if self.form in _READERS:
            return self._compare_values(found)
        if self.form in {"text", "exact"} and max(longest, len(self.text)) <= _MAX_TEXT:
            return self._compare_texts(found)
        if self.form in {"set", "list"} and _has_words(self.text):
            return self._compare_lists(found)
        if self.form == "number":
            return self._compare_numbers(found)
        return self._check(found)

    def _compare_values(self, found: Extracted) -> Outcome:
        read = _READERS[self.form]
        values = [read(each) for each in found.answers]
        if None in values:
            return self._wrong(found, AnswersCause.UNREADABLE)
        return self._compare_shown(found, values, read(self.text) or "")

    def _compare_shown(self, found: Extracted, values: Sequence[Any], right: str) -> Outcome:
        if len({*values}) > 1:
            return self._wrong(found, AnswersCause.SEVERAL_ANSWERS)
        cause = None if values[0] == right else AnswersCause.WRONG_ANSWER
        return Outcome(cause is None, cause, self._details(found, values[0], right))

    def _compare_texts(self, found: Extracted) -> Outcome:
        if self.form == "exact":
            return self._compare_shown(found, found.answers, self.text)
        right = normalized(self.text)
        said = [[normalized(part) for part in readings(each)] for each in found.answers]
        values = [right if right in each else each[0] for each in said]
        return self._compare_shown(found, values, right)

    def _compare_lists(self, found: Extracted) -> Outcome:
        lists = [read_list(each) for each in (*found.answers, self.text)]
        if self.form == "set":
            lists = [sorted({*each}) for each in lists]
        *values, right = (", ".join(each) for each in lists)
        return self._compare_shown(found, values, right)

    def _compare_numbers(self, found: Extracted) -> Outcome | Check:
        numbers = [number_in(each) for each in found.answers]
        reference, first = self.number, numbers[0]
        if reference is None or first is None or None in numbers:
            return self._check(found)
        units = {each.unit for each in numbers if each is not None} - {"", reference.unit}
        if self.request.units is not None or (reference.unit and units):
            return self._check(found, [*numbers, reference])
        if any(each and not equal(each, first, None) for each in numbers):
            return self._wrong(found, AnswersCause.SEVERAL_ANSWERS)
        is_right = equal(first, reference, self.request.tolerance)
        cause = None if is_right else AnswersCause.WRONG_ANSWER
        return Outcome(is_right, cause, self._details(found, first.shown, reference.shown))

    def _check(self, found: Extracted | None, quantities: Sequence[Any] = ()) -> Check:
        job: dict[str, Any] = {
            "form": self.form,
            "auto": self.request.form == "auto",
            "answers": [self._core(each) for each in found.answers] if found else [],
            "joined": found.joined if found else "",
            "reference": self.text,
        }
        for name in ("tolerance", "units", "json_schema"):
            if (value := getattr(self.request, name)) is not None:
                job[name] = value
        if self.form == "json" and self.request.reference is None:
            del job["reference"]
        if quantities:
            job["quantities"] = [
                [f"{each.value}", "percent" if each.is_percent else each.unit]
                for each in quantities
            ]
        shown = " | ".join(job["answers"]), str(job.get("reference", ""))
        return Check(job, self._details(found, *shown))

    def _core(self, answer: str) -> str:
        if self.form == "set" and "=" in answer:
            answer = answer.rpartition("=")[2] if answer.rstrip(" $").endswith("}") else answer
        return core(answer) if self.form in FORMULAS or self.form == "number" else answer

    def _wrong(self, found: Extracted, cause: AnswersCause) -> Outcome:
        return Outcome(False, cause, self._details(found, " | ".join(found.answers)))

    def _details(
        self, found: Extracted | None = None, answer: str = "", reference: str | None = None
    ) -> dict[str, float | str]:
        shown = self.text if reference is None else reference
        details: dict[str, float | str] = {"form": self.form, "reference": shown[:_MAX_TEXT]}
        if found is not None:
            details |= {"rule": found.rule, "answer": answer[:_MAX_TEXT]}
        return details


#: Forms whose answers are read as a value, which is compared; and what their references are.
_READERS = {"choice": read_choice, "yes_no": read_yes_no, "date": read_date}
_ACCEPTED = {"choice": "a letter", "yes_no": "yes or no", "date": "a date such as 2026-03-05"}


def truths_of(request: AnswersRequest) -> list[Truth]:
    """Return the references of a request in their forms; raise InvalidRequest for a wrong one."""
    truths = []
    for number, value in enumerate(request.references):
        name = "reference" if len(request.references) == 1 else f"reference[{number}]"
        try:
            truths.append(_truth_of(value, request))
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}") from None
    kinds = {each.text.casefold() for each in truths if each.form == "yes_no"}
    if len({read_yes_no(each) for each in kinds}) > 1:
        raise InvalidRequest("reference: `yes` and `no` contradict")
    return truths


def _truth_of(value: Any, request: AnswersRequest) -> Truth:
    form = request.form
    if isinstance(value, dict) or value is None or request.json_schema is not None:
        if form not in {"auto", "json"}:
            raise ValueError(f"an object is for `form: json` (got {form!r})")
        text = value if isinstance(value, str) else json.dumps(value)
        return Truth("json", _checked_json(text), request)
    if isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = value if isinstance(value, str) else repr(value)
    if form in {"exact", "regex"}:
        return Truth(form, _compiled(text) if form == "regex" else text.strip(), request)
    if form == "json":
        return Truth(form, _checked_json(text), request)
    text = cleaned(marked_answer(text)) if form != "text" else text.strip()
    if not text:
        raise ValueError("is empty")
    is_number = request.units is not None or request.tolerance is not None
    found = ("number" if is_number else _form_of(text)) if form == "auto" else form
    if found in _READERS and _READERS[found](text) is None:
        accepted = _ACCEPTED[found]
        raise ValueError(f"give {accepted} for `form: {found}` (got {text[:60]!r})")
    return Truth(found, text, request)


def _form_of(text: str) -> Form:  # noqa: PLR0911 - one for each form
    """Return the form that a reference has by its looks."""
    if _CHOICE.fullmatch(text):
        return "choice"
    if _DATE_OR_SUBSTANCE.fullmatch(text):
        return "text"
    if read_yes_no(text) and _WORD.fullmatch(text.strip("{} ")):
        return "yes_no"
    if read_date(text) is not None:
        return "date"
    if read_number(text) is not None:
        return "number"
    if text[:1] == "{" and '"' in text and text[-1:] == "}":
        return "json"
    if _MATRIX.search(text):
        return "matrix"
    bare = re.sub(r"\\(?:text|mathrm|operatorname)\s*\{([^{}]*)\}", r" \1 ", text)
    if _has_words(bare) or not re.search(r"[\w\\]", bare):
        return "text"
    if _INTERVAL.search(text):
        return "interval"
    if text.startswith(("\\{", "{")) and text.endswith("}"):
        return "set"
    return "expression"


def _has_words(text: str) -> bool:
    """Return whether a text has words that are in no formula."""
    words = [each.casefold() for each in _WORD.findall(re.sub(r"\\[A-Za-z]+", " ", text))]
    longest = 3 if re.search(r"[\\\d+*/^=]", text) else 1
    return any(len(each) > longest and each not in _FUNCTIONS.split() for each in words)


def _compiled(pattern: str) -> str:
    if len(pattern) > _MAX_TEXT:
        raise ValueError(f"a pattern of more than {_MAX_TEXT:,} characters")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no regular expression: {error}") from None
    return pattern


def _checked_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
