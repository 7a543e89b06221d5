"""What the page shows of one record, by service, from its request and its score."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewardfleet.wire.score import figures_of

#: Width and height of the drawing of a curve, in units of its SVG.
CURVE_WIDTH, CURVE_HEIGHT = 640, 120
#: Tests, and calls of tools, that are shown, at most.
_MOST_TESTS = _MOST_CALLS = 100


@dataclass(frozen=True)
class Explanation:
    """What `rewardfleet explain` knows of a record."""

    story: str = ""
    #: What each test of a program gives and expects; empty if that is not known.
    cases: Sequence[tuple[Any, Any]] = ()
    #: The calls of an answer: `text`, `state`, and, unless they are missing, `family` and `cost`.
    calls: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Test:
    """A test of a program, and what came of it."""

    number: int
    given: str
    expected: str
    verdict: Mapping[str, Any]


@dataclass(frozen=True)
class Details:
    """The parts of a record that have a form of their own. What is left is shown as JSON."""

    story: str = ""
    #: What the policy wrote: the text before the block that was taken, the block, the text after.
    text: tuple[str, str, str] | None = None
    correct_answer: str = ""  #: that of an answer with calls of tools
    calls: Sequence[Mapping[str, Any]] = ()  #: see `Explanation`
    more_calls: int = 0  #: how many are not shown
    budget: float | None = None  #: of the mean cost of the answers of its run
    tests: Sequence[Test] = ()
    more_tests: int = 0  #: how many are not shown
    suspicions: Sequence[str] = ()
    model_output: str = ""
    references: Sequence[Mapping[str, Any]] = ()  #: each a `NearestReference`
    curve: Sequence[tuple[int, float | None]] = ()  #: the last frame of each prefix, and its value
    lines: Sequence[str] = ()  #: the curve as points of SVG polylines, interrupted where it is null
    figures: Mapping[str, float | str] = field(default_factory=dict)  #: see `figures_of`
    request: str = ""
    details: str = ""
    provenance: str = ""


def details_of(record: Mapping[str, Any], explained: Explanation) -> Details:
    """Return what is shown of a record, as `Records.record` returns it."""
    request = _parsed(record["request"])
    details = _parsed(record["details"])
    provenance = _parsed(record["provenance"])
    figures = figures_of({**details, "components": record["components"]})
    details.pop("details", None)
    curve = details.pop("curve", None) or {}
    points = list(zip(curve.get("frames", ()), curve.get("values", ()), strict=False))
    taken = details.pop("code", "")
    written = request.pop("revision", None) or request.pop("response", None)
    verdicts = details.pop("verdicts", ())
    shown = list(itertools.islice(_tests(explained.cases, verdicts), _MOST_TESTS))
    return Details(
        story=explained.story,
        text=None if written is None else _around(written, taken),
        correct_answer=request.pop("ground_truth", ""),
        calls=explained.calls[:_MOST_CALLS],
        more_calls=max(len(explained.calls) - _MOST_CALLS, 0),
        budget=_budget(figures),
        tests=shown,
        more_tests=max(len(verdicts) - len(shown), 0),
        suspicions=details.pop("suspicions", ()),
        model_output=details.pop("model_output", ""),
        references=details.pop("references", ()),
        curve=points,
        lines=_lines(points),
        figures=figures,
        request=_pretty(request),
        details=_pretty(details),
        provenance=_pretty(provenance),
    )


def _budget(figures: Mapping[str, Any]) -> float | None:
    # Without a budget, nothing violates it.
    violation = figures.get("violation")
    return figures["cost"] - violation if violation and "cost" in figures else None


def _parsed(text: str | None) -> dict[str, Any]:
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) if value else ""


def _around(text: str, block: str) -> tuple[str, str, str]:
    """Return a text as what is before its block, the block, and what is after it."""
    start = text.find(block.strip("\n")) if block.strip() else -1
    if start < 0:
        return text, "", ""
    end = start + len(block.strip("\n"))
    return text[:start], text[start:end], text[end:]


def _tests(
    cases: Sequence[tuple[Any, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> Iterable[Test]:
    """Yield the tests with their verdicts."""
    pairs = itertools.zip_longest(cases, verdicts)
    for number, (case, verdict) in enumerate(pairs, 1):
        given, expected = case or ("", "")
        yield Test(number, _text(given), _text(expected), verdict or {})


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lines(points: Sequence[tuple[int, float | None]]) -> list[str]:
    if not points:
        return []
    last = max(frame for frame, _ in points) or 1
    return [
        " ".join(
            f"{frame / last * CURVE_WIDTH:.1f},{(1 - value) * CURVE_HEIGHT:.1f}"
            for frame, value in part
            if value is not None
        )
        for is_known, part in itertools.groupby(points, lambda each: each[1] is not None)
        if is_known
    ]
