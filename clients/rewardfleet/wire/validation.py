"""Validation by pydantic models, with errors as sentences for callers and command lines."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from .errors import InvalidRequest
from .policy_text import POLICY_FIELDS, without_lone_surrogates

ModelT = TypeVar("ModelT", bound=BaseModel)

#: How many errors of one model are listed, and how many characters of a value are shown.
_MAX_ERRORS = 5
_MAX_SHOWN = 60
#: How often data is validated, as without a null others may be found; and with how many errors at
#: most, as a list of these takes time.
_MOST_PASSES, _MOST_NULLS = 5, 10_000


def validate(model: type[ModelT], data: object, *, prefix: str = "") -> ModelT:
    """Validate Python data. A null in an object is absent where it is not accepted.

    Tables have such nulls: they give each object the keys of all rows.

    Raises:
        InvalidRequest: The data is not valid. The message starts with `prefix`.
    """
    first: ValidationError | None = None
    for _ in range(_MOST_PASSES):
        try:
            return model.model_validate(data)
        except ValidationError as error:
            first = first or error
            if (data := _without_nulls(data, error)) is None:
                break
    assert first is not None  # noqa: S101 - else it is valid
    raise InvalidRequest(f"{prefix}{format_validation_error(first, model)}") from None


def validate_json(
    model: type[ModelT],
    body: bytes,
    *,
    context: Mapping[str, Any] | None = None,
    policy_fields: Collection[str] = POLICY_FIELDS,
) -> ModelT:
    """Validate JSON strictly: neither `"16"` nor `true` is an integer, but `16.0` is one.

    Lone surrogates are accepted in policy texts only.

    Raises:
        InvalidRequest: It is not JSON, or not valid.
    """
    for is_last in (False, False, True):
        try:
            return model.model_validate_json(body, strict=True, context=context)
        except ValidationError as error:
            # Of several errors, a list of all would be built.
            first = error.errors(include_input=False)[0] if error.error_count() == 1 else None
            if first and "JSON: number out of range" in first["msg"]:  # which Python's parser takes
                with suppress(ValueError, RecursionError):
                    return validate(model, json.loads(body))
            if first and first["type"] == "json_invalid":
                accepted = without_lone_surrogates(body, policy_fields)
            else:
                accepted = _with_integers(body, error)
            if is_last or accepted is body:
                raise InvalidRequest(format_validation_error(error, model)) from None
            body = accepted
    raise AssertionError("the last attempt returns or raises")


def read_lines(path: Path, model: type[ModelT]) -> Iterator[tuple[int, ModelT | str]]:
    """Yield the number of each line of JSON in a file, and its value or why it is none."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                yield number, model.model_validate_json(line)
            except ValidationError as error:
                yield number, format_validation_error(error, model)


def _with_integers(body: bytes, error: ValidationError) -> bytes:
    """Return JSON with `16` in place of `16.0` where an error expects an integer.

    In JSON Schema they are equal. A validator that converts floats would take as long for each
    integer as all the rest, so only what was refused is converted.
    """
    places = [
        each["loc"]
        for each in error.errors(include_url=False, include_context=False)
        if each["type"] == "int_type" and _as_integer(each["input"]) is not each["input"]
    ]
    if not places:
        return body
    data = json.loads(body)
    for place in places:
        parent, last = _place_in(data, place)
        if isinstance(parent, list):  # of which only the first error may be known
            parent[:] = map(_as_integer, parent)
        elif parent is not None:
            parent[last] = _as_integer(parent[last])
    return json.dumps(data).encode()


def _without_nulls(data: object, error: ValidationError) -> object:
    """Return a copy of data without the nulls in objects that are refused; None if there are none.

    A null under a name that is not known is one as well.
    """
    if error.error_count() > _MOST_NULLS:
        return None
    errors = error.errors(include_url=False, include_context=False)
    places = [each["loc"] for each in errors if each["input"] is None]
    data, found = _copied(data) if places else data, False
    for place in places:
        parent, last = _place_in(data, place)
        if isinstance(parent, dict) and parent[last] is None:
            del parent[last]
            found = True
    return data if found else None


def _copied(value: object) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _place_in(data: Any, loc: tuple[int | str, ...]) -> tuple[Any, Any]:
    """Return the object or list with the value of an error, and its key; None if none has it."""
    parent: Any = None
    last: Any = None
    for index, part in enumerate(loc):
        is_last = index == len(loc) - 1
        found = data.get(part) if isinstance(data, dict) else None
        # Other parts name the member of a union, also where a field has this name.
        if isinstance(data, dict) and part in data and (is_last or isinstance(found, dict | list)):
            parent, last, data = data, part, found
        elif isinstance(data, list) and isinstance(part, int):
            parent, last, data = data, part, data[part]
    return parent, last


def _as_integer(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


def encode_json(model: BaseModel) -> bytes:
    """Return a model as JSON without unset fields, which an older service may not know.

    Raises:
        InvalidRequest: It has text that cannot be encoded as UTF-8.
    """
    try:
        return model.model_dump_json(exclude_unset=True).encode()
    except ValueError as error:  # pydantic_core.PydanticSerializationError
        field = next((name for name in model.model_fields_set if not _is_encoded(model, name)), "")
        place = f"{field}: " if field else ""
        raise InvalidRequest(f"{place}the request cannot be encoded: {error}") from None


def _is_encoded(model: BaseModel, field: str) -> bool:
    try:
        model.model_dump_json(include={field})
    except ValueError:
        return False
    return True


def format_validation_error(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Return what was wrong with the input of a model, and what is accepted, as sentences."""
    return join_errors(error, lambda each: _format_one(each, model))


class InputError(NamedTuple):
    """One of the errors of a validation."""

    kind: str  #: pydantic's name of the error, e.g. `int_parsing`
    loc: tuple[int | str, ...]  #: names and indices that lead to the value
    value: object
    reason: str  #: why it is not accepted


def join_errors(error: ValidationError, format_one: Callable[[InputError], str]) -> str:
    """Return one sentence for each of the first errors of a validation."""
    found = error.errors(include_url=False, include_context=False)
    # A default that depends on other fields is missing because one of these is not accepted.
    errors = [each for each in found if each["type"] != "default_factory_not_called"]
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
        fields = [] if model is None else _fields_at(model, loc)
        accepted = f"; accepted: {', '.join(fields)}" if fields else ""
        if str(loc[-1]) in {"timeout", "timeout_s"}:
            accepted = "; give `timeout_s` to `RewardFleet`, or the header X-Request-Timeout"
        return f"unknown field {field!r}{accepted}"
    if kind == "missing":
        return f"field {field!r} is missing"
    if kind in {"json_invalid", "json_type"}:
        return f"the body is not valid JSON: {reason}"
    if kind == "bytes_invalid_encoding":  # the value may be megabytes; the field's name is enough
        return f"{field}: {reason} Give plain base64, without a `data:` prefix"
    is_object = kind in {"model_type", "model_attributes_type"}
    if is_object and model and (fields := _fields_at(model, (*loc, ""))):
        reason = f"Input should be an object with {', '.join(fields)}"
    got = "" if isinstance(value, dict | list | bytes) else f" (got {_shorten(value)})"
    return f"{field}: {reason}{got}" if field else reason


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the fields that are accepted where an error is; none if it is not clear which."""
    found = [model]
    for part in loc[:-1]:
        fields = [each.model_fields.get(str(part)) for each in found]
        inner = [each for field in fields if field for each in _models_in(field.annotation)]
        if inner or isinstance(part, str):  # a field, or the `kind` of a member of a union
            kinds = [each.model_fields.get("kind") for each in found]
            of_kind = zip(found, kinds, strict=True)
            found = inner or [each for each, k in of_kind if k and part in get_args(k.annotation)]
    fields_of = found[0].model_fields if len(found) == 1 else {}
    return [info.alias or name for name, info in fields_of.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [each for inner in get_args(annotation) for each in _models_in(inner)]


def _shorten(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
