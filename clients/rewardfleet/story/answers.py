"""The story of the score of an answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from .texts import Part, Text, quoted

#: What `details` has besides the verdicts of checkers.
_COMPARED = ("form", "rule", "answer", "reference")


def story_of_answer(request: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[Part]:
    """Yield which part of the text was the answer, and what each checker found."""
    if request.get("response") is not None:
        yield Text("What the policy wrote", request["response"])
    details = score.get("details") or {}
    if not details:
        return
    if "rule" in details:
        yield f"The answer, by the rule {details['rule']}: {quoted(details['answer'])}"
    yield f"The reference, as {details['form']}: {quoted(details['reference'])}"
    for name, verdict in details.items():
        if name not in _COMPARED:
            yield f"  {name}: {verdict}"
