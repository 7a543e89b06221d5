"""What FastAPI does not know about a service's routes, for the OpenAPI document."""

import re
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from rewardfleet.wire.errors import ERROR_OF_STATUS, Problem
from rewardfleet.wire.frames import FRAMES_TYPE
from rewardfleet.wire.score import MAX_NAME

from .body import FILE_FIELD
from .problems import PROBLEM_TYPE
from .routes import FORM_TYPE, Route, Service

_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_NAME}
_INVALID_ITEM = "Anything else: its result has `status: error`, and the other items are scored."
#: The failures in the OpenAPI document. It defines `Problem`, as scores contain it.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": error.kind.replace("_", " ").capitalize(),
        "content": {PROBLEM_TYPE: {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}},
    }
    for status, error in ERROR_OF_STATUS.items()
}
#: The failures of a route that only reads, without and with a key.
OPEN_PROBLEMS: dict[int | str, dict[str, Any]] = {status: PROBLEMS[status] for status in (403, 405)}
KEY_PROBLEMS = {401: PROBLEMS[401], **OPEN_PROBLEMS}


def failures_of(route: Route[Any]) -> dict[int | str, dict[str, Any]]:
    """Return the failures of a route, which may have its own format."""
    if route.failure_model is None:
        return PROBLEMS
    return {
        status: {"description": problem["description"], "model": route.failure_model}
        for status, problem in PROBLEMS.items()
    }


def request_document(route: Route[Any], service: Service[Any, Any]) -> dict[str, Any]:
    """Return what FastAPI does not know about the requests of a route."""
    extra: dict[str, Any] = {}
    if route.request_model is not None:
        schema = _inline_schema(route.request_model, service.field_schemas)
        if route.items_fail_alone:
            items = schema["properties"]["items"]
            items["items"] = {"anyOf": [items["items"], {"description": _INVALID_ITEM}]}
        content = {"application/json": {"schema": schema}}
        if route.decode_form is not None:
            content[FORM_TYPE] = {"schema": _form_schema(schema, service)}
        if route.frames_of is not None:
            content[FRAMES_TYPE] = {"schema": {"type": "string", "format": "binary"}}
        extra["requestBody"] = {"required": True, "content": content}
    if names := re.findall(r"{(\w+)}", route.path):
        extra["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _NAME_SCHEMA} for name in names
        ]
    return extra


def _inline_schema(
    model: type[BaseModel], field_schemas: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a model's schema, without references, with what the settings add to its fields."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(each) for each in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        # A discriminator maps to definitions; the constants of the inlined schemas say the same.
        rest = {
            key: inline(value)
            for key, value in node.items()
            if key not in {"$ref", "discriminator"}
        }
        if name:
            return {**inline(definitions[name]), **rest}
        if rest.get("type") == "number":
            return _with_range(rest)
        for field in rest.get("properties", ()):
            rest["properties"][field] |= field_schemas.get(field, {})
        return rest

    inlined: dict[str, Any] = inline(schema)
    return inlined


def _with_range(number: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a number with the range of those that are not infinite."""
    largest = sys.float_info.max
    below = {} if {"minimum", "exclusiveMinimum"} & set(number) else {"minimum": -largest}
    above = {} if {"maximum", "exclusiveMaximum"} & set(number) else {"maximum": largest}
    return {**number, **below, **above}


def _form_schema(schema: Mapping[str, Any], service: Service[Any, Any]) -> dict[str, Any]:
    """Return the schema of a form: the file, and the fields of the JSON body that remain."""
    file = {
        "type": "string",
        "format": "binary",
        "description": "The file, instead of a field that provides the input.",
    }
    fields = {
        name: _without_null(field)
        for name, field in schema["properties"].items()
        if name not in service.upload_replaces
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**fields, FILE_FIELD: file},
        "required": [*schema.get("required", ()), FILE_FIELD],
    }


def _without_null(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field of a form, where a text is never null."""
    match field:
        case {"anyOf": [{"type": "string"} as text, {"type": "null"}], **rest}:
            kept = {name: value for name, value in rest.items() if name != "default"}
            if "enum" in kept:
                kept["enum"] = [value for value in kept["enum"] if value is not None]
            return {**text, **kept}
    return field
