"""Failures as HTTP responses, and pydantic's findings as sentences."""

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from rewardfleet.wire.errors import ErrorKind, RewardFleetError

#: How many findings of one request are told, and how much of a refused value is shown.
_MAX_FINDINGS = 5
_MAX_SHOWN = 60


def problem_response(error: RewardFleetError, request_id: str | None = None) -> Response:
    """Return the failure as `application/problem+json`."""
    problem = error.problem().model_copy(update={"request_id": request_id})
    headers = {}
    if request_id is not None:
        headers["x-request-id"] = request_id
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind is ErrorKind.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Response(
        problem.model_dump_json(),
        status_code=error.status,
        media_type="application/problem+json",
        headers=headers,
    )


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Say what was wrong with a request for `model`, and what is accepted."""
    findings = error.errors(include_url=False, include_context=False)
    sentences = [
        _explain_one(finding["type"], finding["loc"], finding["msg"], finding["input"], model)
        for finding in findings[:_MAX_FINDINGS]
    ]
    if len(findings) > _MAX_FINDINGS:
        sentences.append(f"and {len(findings) - _MAX_FINDINGS} more")
    return "; ".join(sentences)


def _explain_one(
    kind: str, loc: tuple[int | str, ...], msg: str, value: object, model: type[BaseModel]
) -> str:
    where = ".".join(map(str, loc))[:_MAX_SHOWN]
    if kind == "extra_forbidden":
        return f"unknown field {where!r}; accepted: {', '.join(model.model_fields)}"
    if kind == "missing":
        return f"field {where!r} is missing"
    if kind in {"json_invalid", "json_type"}:
        return f"the body is not JSON that can be read: {msg}"
    if kind == "bytes_invalid_encoding":  # the value may be megabytes; the place says enough
        return f"{where}: {msg} Give plain base64, without a `data:` prefix"
    text = msg.removeprefix("Value error, ")
    shown = "" if isinstance(value, dict | list | bytes) else f" (got {_shown(value)})"
    return f"{where}: {text}{shown}" if where else text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
