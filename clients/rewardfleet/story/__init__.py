"""The story of a score: what `rewardfleet explain`, a page, Inspect and tables of samples tell."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import ERRORS, ErrorKind

from .texts import Part, escaped, lines_of, number, quoted

#: The fields of a request, or of a score, as JSON.
Fields = Mapping[str, Any]


def story_of(service: str, request: Fields, score: Fields) -> Iterator[str]:
    """Yield the lines of the story of a score, without control characters; see `parts_of`."""
    for part in parts_of(service, request, score):
        yield from lines_of(part)


def parts_of(service: str, request: Fields, score: Fields) -> Iterator[Part]:
    """Yield the parts of the story of a score.

    Args:
        request: The request, where fields with their defaults may be missing; empty if unknown.
        score: The score, likewise.
    """
    meaning, remedy = cause_of(service, score)
    result = "no score" if score.get("score") is None else f"score {number(score['score'])}"
    backend, cause = score.get("backend") or "", score.get("cause")
    by = f" by {backend}" if backend not in {"", service} else ""
    named = f", cause {cause}" if cause else ""
    yield escaped(f"{service}: {result}{by}, {score.get('status')}{named}", 300)
    if meaning:
        yield f"Why: {meaning}"
    error = score.get("error")
    if error is not None:
        yield f"The service says: {escaped(str(error.get('detail')), 2000)}"
        if error.get("request_id"):
            yield f"Its log has more under the request id {escaped(error['request_id'], 100)}."
    elif score.get("cause") != "no_answer":
        yield from SERVICES[service].story(request, score)
        yield f"Cached: {'yes' if score.get('cached') else 'no'}."
    if remedy:
        yield f"What would have to change: {remedy}"


def parts_of_record(record: Fields) -> Iterator[Part]:
    """Yield the parts of the story of a record of a score log, or of an output."""
    if record["place"] is not None:
        yield f"Input: {escaped(record['place'], 300)}"
    if metadata := json.loads(record["metadata"] or "{}"):
        shown = ", ".join(f"{name} {value}" for name, value in metadata.items())
        yield f"Its other columns: {quoted(shown)}"
    if record["label_differs"]:
        yield "Its label `success` is not what the score says."
    yield from parts_of(record["service"], json.loads(record["request"] or "{}"), score_of(record))


def score_of(record: Fields) -> dict[str, Any]:
    """Return the fields of the score of a record."""
    error = {name[6:]: value for name, value in record.items() if name.startswith("error_")}
    own = ("status", "score", "components", "backend", "cached", "cause")
    return {
        **json.loads(record["details"] or "{}"),
        **{name: record[name] for name in own},
        "components": record["components"] or {},
        "provenance": json.loads(record["provenance"] or "{}"),
        "error": error if error["kind"] is not None else None,
    }


def cause_of(service: str, score: Fields) -> tuple[str, str]:
    """Return why a score is what it is, and what would change it; empty if nothing lowers it."""
    name = score.get("cause")
    found = next((each for each in SERVICES[service].causes if each == name), None)
    if found is not None:
        return found.meaning, found.remedy
    error = score.get("error") or {}
    kind = next((each for each in ErrorKind if each in {name, error.get("kind")}), None)
    if kind is not None:
        meaning = " ".join((ERRORS[kind].__doc__ or "").split())
        is_retryable = ERRORS[kind].retryable
        return meaning, "Nothing: try again later." if is_retryable else "What the service says."
    return "" if score.get("status") == "ok" else "The record has no cause.", ""
