"""One check in a worker process: from a job to a reply, both JSON."""

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cache, partial
from typing import Any

import jsonschema
import pint
from sympy.core import random as sympy_random

from rewardfleet_server.answers.numbers import near
from rewardfleet_server.answers.words import normalized

from . import numeric, symbolic

#: A verdict of a checker.
EQUAL, DIFFERENT, UNREADABLE = "equal", "different", "unreadable"
_SEED = 7
#: How much two converted quantities may differ, as a share: conversions are binary.
_CONVERTED = 1e-9
_UNITS = {
    "¢": "cents",
    "$": "USD",
    "€": "EUR",
    "£": "GBP",
    "\\mu": "µ",
    "\\Omega": "ohm",
    "\\cdot": "*",
    "%": "percent",
}
_MARKUP = re.compile(r"[\s{}$]|\\left|\\right|\\[,;! ]")
#: Units of money, which pint does not know: a hundred cents are a dollar.
_MONEY = (
    "USD = [money] = dollar = dollars = bucks",
    "cent_USD = 0.01 * USD = cent = cents",
    "EUR = [euro] = euro",
    "GBP = [pound_sterling]",
)


class Invalid(Exception):
    """What the caller wrote cannot be used."""


def check(
    job: dict[str, Any], report: Callable[[dict[str, str]], None] = lambda _: None
) -> dict[str, Any]:
    """Return the `outcome`: `right`, a cause, or `invalid` with `why`; and verdicts by checker.

    Args:
        job: `form`, `reference`, `answers` (and `joined`), `accept`, and options. If there are no
            `answers`, the reference is compared with itself.
        report: Called with the verdict of the quicker checker, before the other one begins.
    """
    random.seed(_SEED)  # the same each time
    sympy_random.seed(_SEED)
    try:
        if job["form"] in _COMPARE and (job["form"] != "number" or "quantities" in job):
            return _COMPARE[job["form"]](job)
        return _formulas(job, report)
    except Invalid as error:
        return {"outcome": "invalid", "why": str(error)[:300]}


def _reply(found: Iterable[bool | str], name: str) -> dict[str, Any]:
    """Return the reply for whether each answer is equal, or another verdict."""
    words = {True: EQUAL, False: DIFFERENT}
    verdicts = [each if isinstance(each, str) else words[each] for each in found] or [EQUAL]
    outcome = "right" if {*verdicts} == {EQUAL} else "wrong_answer"
    if len({*verdicts}) > 1:
        outcome = "several_answers"
    elif verdicts[0] == UNREADABLE:
        outcome = "unreadable"
    return {"outcome": outcome, "checkers": {name: verdicts[0]}}


# Formulas


def _formulas(job: dict[str, Any], report: Callable[[dict[str, str]], None]) -> dict[str, Any]:
    answers = job.get("answers") or [job["reference"]]
    unreadable = Invalid(f"cannot be read as {job['form']}: {job['reference'][:100]!r}")
    if len(answers) > 1:
        report = lambda _: None  # noqa: E731 - not of one answer among several
    if not job.get("answers") and not job.get("auto") and not _is_readable(job["reference"]):
        raise unreadable
    found = [_verdicts(job, each, report) for each in answers]
    if len(found) > 1 and job.get("joined"):
        as_list = _verdicts(job, job["joined"], report)
        found = [as_list] if as_list["outcome"] == "right" else found
    if found[0]["outcome"] == "unreadable" and not _is_readable(job["reference"]):
        if job.get("auto"):
            return _texts(job)
        raise unreadable
    outcomes = {each["outcome"] for each in found}
    return found[0] if len(outcomes) == 1 else {**found[0], "outcome": "several_answers"}


def _verdicts(
    job: dict[str, Any], answer: str, report: Callable[[dict[str, str]], None]
) -> dict[str, Any]:
    """Return what both checkers find, and what follows from it."""
    pair = answer, job["reference"], job["form"], job.get("tolerance")
    checkers = {"numeric": _verdict(lambda: numeric.compare(*pair))}
    report(checkers)
    checkers["math_verify"] = _verdict(lambda: symbolic.compare(*pair))
    found = {each for each in checkers.values() if each != UNREADABLE}
    if not found:
        same = _MARKUP.sub("", answer) == _MARKUP.sub("", job["reference"])
        outcome = "right" if same else "unreadable"
    elif len(found) == 1:
        outcome = "right" if found == {EQUAL} else "wrong_answer"
    else:
        outcome = "right" if job.get("accept") == "any" else "checkers_disagree"
    return {"outcome": outcome, "checkers": checkers, "disagree": len(found) > 1}


def _verdict(compare: Callable[[], object]) -> str:
    try:
        return EQUAL if compare() else DIFFERENT
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a checker that fails has no verdict
        return UNREADABLE


def _is_readable(text: str) -> bool:
    readers = (symbolic.read, numeric.parse)
    return any(_verdict(partial(read, text)) != UNREADABLE for read in readers)


# Quantities


@cache
def _registry() -> pint.UnitRegistry[Any]:
    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(cache_folder=None)
    for definition in _MONEY:
        registry.define(definition)
    return registry


def _quantities(job: dict[str, Any]) -> dict[str, Any]:
    *answers, reference = job["quantities"]
    unit = _unit(reference[1]) if reference[1] else None
    wanted = _unit(job["units"]) if "units" in job else None
    if "units" in job and wanted is None:
        raise Invalid(f"units: pint knows no unit {job['units']!r}")
    if unit is not None and wanted is not None and unit.dimensionality != wanted.dimensionality:
        raise Invalid(
            f"units: {job['units']} contradicts the unit of the reference, {reference[1]}"
        )
    right, unit, tolerance = Fraction(reference[0]), unit or wanted, job.get("tolerance")
    found = [_same_quantity(each, right, unit, tolerance) for each in answers]
    if found == ["wrong_unit"]:
        return {"outcome": "wrong_unit", "checkers": {"pint": DIFFERENT}}
    return _reply(found, "pint")


def _same_quantity(
    quantity: Sequence[str], right: Fraction, wanted: Any, tolerance: float | None
) -> bool | str:
    value, written = Fraction(quantity[0]), quantity[1]
    unit = _unit(written) if written else None
    if wanted is not None and written:
        if unit is None or unit.dimensionality != wanted.dimensionality:
            return "wrong_unit"
        if unit != wanted:
            value = Fraction(_registry().Quantity(float(value), unit).to(wanted).magnitude)
            tolerance = tolerance or _CONVERTED
    return near(value, right, tolerance)


def _unit(written: str) -> Any:
    """Return a unit; None if pint knows none of that name."""
    text = re.sub(
        r"(?i)(?:degrees?|°)\s*(celsius|fahrenheit|c|f)\b", lambda m: f"°{m[1][0].upper()}", written
    )
    for name, unit in _UNITS.items():
        text = text.replace(name, unit)
    text = re.sub(r"\bper\b", "/", text.replace("° C", "°C").replace("° F", "°F")).replace("\\", "")
    text = re.sub(r"\bsq(?:uare)?\.?\s+(\w+)", r"\1^2", re.sub(r"\bcubic\s+(\w+)", r"\1^3", text))
    text = re.sub(r"(?<=[A-Za-zµ])(-?\d)", r"^\1", text)
    try:
        return _registry().parse_units(text.strip())
    except Exception:  # noqa: BLE001 - its parsers raise many kinds
        return None


# Texts and JSON


def _texts(job: dict[str, Any]) -> dict[str, Any]:
    tidy = normalized if job["form"] == "text" else str
    return _reply((tidy(each) == tidy(job["reference"]) for each in job["answers"]), "text")


def _regex(job: dict[str, Any]) -> dict[str, Any]:
    found = (re.fullmatch(job["reference"], each) is not None for each in job["answers"])
    return _reply(found, "regex")


def _json(job: dict[str, Any]) -> dict[str, Any]:
    schema = job.get("json_schema")
    validator = None
    if schema is not None:
        kind: Any = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise Invalid(f"schema: no JSON Schema: {error.message}") from None
        validator = kind(schema)
    right = json.loads(job["reference"]) if "reference" in job else None
    if validator is not None and "reference" in job and not _is_valid(validator, right):
        raise Invalid("the reference contradicts the schema: it is not valid by it")
    found: list[bool | str] = []
    for answer in job["answers"]:
        try:  # `Fraction` raises for NaN and infinities, which are not JSON
            value = json.loads(answer, object_pairs_hook=_unique, parse_constant=Fraction)
        except (ValueError, RecursionError):
            found.append(UNREADABLE)
        else:
            is_right = "reference" not in job or _same(value, right)
            found.append(is_right and (validator is None or _is_valid(validator, value)))
    return _reply(found, "json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _is_valid(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 - e.g. of a reference or a pattern in it
        raise Invalid(f"schema: cannot be used: {error}") from None


def _same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


_COMPARE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "number": _quantities,
    "text": _texts,
    "exact": _texts,
    "regex": _regex,
    "json": _json,
}
