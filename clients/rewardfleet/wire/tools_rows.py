"""Ground truths and tools as rows of data sets have them, as fields of a `ToolsRequest`."""

from collections.abc import Mapping
from typing import Any

from .tools import ToolsRequest
from .truth import given, parsed, plain

_FIELDS = ToolsRequest.model_fields.keys() - {"response"}


def fields_of_truth(ground_truth: Any, row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of a request that a ground truth of a trainer's dataset stands for.

    Args:
        ground_truth: The correct answer; or an object with it as `ground_truth` and further fields,
            or the JSON of that as text. Fields that a request does not have are left out.
        row: Further fields, used where the object does not have them.
    """
    found = parsed(ground_truth)
    is_object = isinstance(found, Mapping) and "ground_truth" in found
    found = {**(row or {}), **(found if is_object else {"ground_truth": ground_truth})}
    fields = given(found, _FIELDS)
    return {**fields, "tools": _as_tools(fields["tools"])} if "tools" in fields else fields


def _as_tools(tools: Any) -> Any:
    """Return the tools of a row as `ToolsRequest` has them, by name, description and `parameters`.

    A tool is an object with these, among others, or with a `function` that has them, as in OpenAI's
    interface; or its name. The list may be JSON as text. Anything else stays as it is.
    """
    tools = plain(parsed(tools))
    return [_as_tool(each) for each in tools] if isinstance(tools, list) else tools


def _as_tool(tool: Any) -> Any:
    match tool:
        case {"function": dict(described)} | dict(described):
            schema = parsed(described.get("parameters"))
            found = given(described, ("name", "description"))
            return {**found, "parameters": schema} if isinstance(schema, dict) else found
    return {"name": tool} if isinstance(tool, str) else tool
