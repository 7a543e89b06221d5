"""Validation by pydantic models, with errors as sentences for callers and command lines."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import InvalidRequest
from .policy_text import without_lone_surrogates

ModelT = TypeVar("ModelT", bound=BaseModel)

#: How many errors of one model are listed, and how many characters of a value are shown.
_MAX_ERRORS = 5
_MAX_SHOWN = 60


def validate(
    model: type[ModelT],
    data: object,
    *,
    prefix: str = "",
    context: Mapping[str, Any] | None = None,
) -> ModelT:
    """Validate Python data.

    Args:
        model: The model that the data must match.
        data: A mapping, or an instance of the model.
        prefix: Starts the message of an error, e.g. `backend_kwargs: `.
        context: For the model's validators.

    Raises:
        InvalidRequest: The data is not valid.
    """
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        raise InvalidRequest(f"{prefix}{format_validation_error(error, model)}") from None


def validate_json(model: type[ModelT], body: bytes) -> ModelT:
    """Validate JSON. Lone surrogates are accepted in policy texts only.

    Raises:
        InvalidRequest: It is not JSON, or not valid.
    """
    try:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            if not _is_not_json(error):
                raise
            return model.model_validate_json(without_lone_surrogates(body))
    except ValidationError as error:
        raise InvalidRequest(format_validation_error(error, model)) from None


def _is_not_json(error: ValidationError) -> bool:
    if error.error_count() != 1:  # otherwise a list of all errors would be built
        return False
    return error.errors(include_input=False)[0]["type"] == "json_invalid"


def encode_json(model: BaseModel, *, exclude_unset: bool = False) -> bytes:
    """Return a model as JSON.

    Raises:
        InvalidRequest: It has text that cannot be encoded as UTF-8.
    """
    try:
        return model.model_dump_json(exclude_unset=exclude_unset).encode()
    except ValueError as error:  # pydantic_core.PydanticSerializationError
        raise InvalidRequest(f"the request cannot be encoded: {error}") from None


def format_validation_error(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return what was wrong with the input of a model, and what is accepted, as sentences.

    Args:
        error: The error that pydantic raised.
        model: The model; the message about an unknown field lists its fields.
    """
    return join_errors(error, lambda each: _format_one(each, model))


class InputError(NamedTuple):
    """One of the errors of a validation.

    Attributes:
        kind: Pydantic's name of the error, e.g. `int_parsing`.
        loc: Names and indices that lead to the value.
        value: The value.
        reason: Why it is not accepted.
    """

    kind: str
    loc: tuple[int | str, ...]
    value: object
    reason: str


def join_errors(error: ValidationError, format_one: Callable[[InputError], str]) -> str:
    """Return one sentence for each of the first errors of a validation.

    Args:
        error: The error that pydantic raised.
        format_one: Returns the sentence of an error.
    """
    errors = error.errors(include_url=False, include_context=False)
    sentences = []
    for each in errors[:_MAX_ERRORS]:
        reason = each["msg"].removeprefix("Value error, ")
        sentences.append(format_one(InputError(each["type"], each["loc"], each["input"], reason)))
    if len(errors) > _MAX_ERRORS:
        sentences.append(f"and {len(errors) - _MAX_ERRORS} more")
    return "; ".join(sentences)


def _format_one(error: InputError, model: type[BaseModel] | None) -> str:
    kind, loc, value, reason = error
    # The members of a union that pydantic names itself mean nothing to a caller.
    names = [str(part) for part in loc if not str(part).startswith("function-")]
    field = ".".join(names)[:_MAX_SHOWN]
    if kind == "extra_forbidden":
        fields = model.model_fields if model is not None and len(loc) == 1 else ()
        accepted = f"; accepted: {', '.join(fields)}" if fields else ""
        return f"unknown field {field!r}{accepted}"
    if kind == "missing":
        return f"field {field!r} is missing"
    if kind in {"json_invalid", "json_type"}:
        return f"the body is not valid JSON: {reason}"
    if kind == "bytes_invalid_encoding":  # the value may be megabytes; the field's name is enough
        return f"{field}: {reason} Give plain base64, without a `data:` prefix"
    got = "" if isinstance(value, dict | list | bytes) else f" (got {_shorten(value)})"
    return f"{field}: {reason}{got}" if field else reason


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
