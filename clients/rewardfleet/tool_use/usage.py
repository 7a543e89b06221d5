"""Which tools an answer used, by family, and what that costs."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from rewardfleet.wire.tools import Family, ToolDescription, ToolName, ToolsOptions
from rewardfleet.wire.validation import format_validation_error

from .answer import ToolCall, by_name

_Patterns = tuple[tuple[Family, tuple[str, ...]], ...]
#: Patterns of names and descriptions of tools, by family, with `*` for any text.
_DEFAULT: _Patterns = (
    ("calculate", ("*calc*", "*comput*", "*math*", "*equation*", "*arithmetic*", "*convert*")),
    ("search", (
        "*search*", "*retriev*", "*lookup*", "*look_up*", "*look up*", "*query*", "*find*",
        "*fetch*", "get*", "list*", "*wiki*", "*news*", "*browse*", "*weather*",
    )),
)  # fmt: skip
#: A name or description is matched up to this length.
_MAX_CHARACTERS = 2_000
#: A tool that is called by a name longer than this is reported by the beginning of it.
_MAX_NAME = 200
_LABELS = TypeAdapter(dict[ToolName, Family])


class Usage(NamedTuple):
    """The use of tools by one answer."""

    calls: int  #: how many tools it called, those included that cannot be parsed
    repeats: int  #: how many of these calls equal an earlier one
    #: How many calls of each tool, by family and name.
    by_family: dict[Family, dict[str, int]]


def usage_of(
    calls: Sequence[ToolCall],
    options: ToolsOptions,
    labels: Mapping[str, Family],
    tools: Iterable[ToolDescription],
    default_labels: Mapping[str, Family],
) -> Usage:
    """Return the use of tools of an answer.

    Args:
        options: `families` and `family_patterns`.
        labels: Families by the name of the tool. They come before the options.
        tools: Descriptions of the tools, for the patterns.
        default_labels: Families by name. They come after the options, and before the patterns.
    """
    by_family: dict[Family, dict[str, int]] = {}
    descriptions = {tool.name: tool.description for tool in tools}
    for name, of_tool in by_name(calls).items():
        family = (
            labels.get(name)
            or options.families.get(name)
            or default_labels.get(name)
            or family_by_patterns(name, descriptions.get(name, ""), options)
        )
        shown = reported_name(name)
        tools_of_family = by_family.setdefault(family, {})
        tools_of_family[shown] = tools_of_family.get(shown, 0) + len(of_tool)
    return Usage(len(calls), len(calls) - len(set(calls)), by_family)


def reported_name(name: str) -> str:
    """Return the name of a tool as scores have it."""
    # A name in a policy's JSON may have lone surrogates, which cannot be sent.
    shown = name[:_MAX_NAME]
    return shown if shown.isascii() else shown.encode(errors="replace").decode()


def family_by_patterns(name: str, description: str, options: ToolsOptions) -> Family:
    """Return the family of a tool by the patterns, `other` if none matches.

    They are matched with the name first, then with the description, without regard to case.
    """
    patterns = tuple(options.family_patterns.items()) if options.family_patterns else None
    return (
        _matched(name[:_MAX_CHARACTERS], patterns)
        or _matched(description[:_MAX_CHARACTERS], patterns)
        or "other"
    )


@lru_cache(maxsize=1024)  # the answers of a run call the same tools
def _matched(text: str, patterns: _Patterns | None) -> Family | None:
    """Return the first family of which a pattern matches a text that is not empty."""
    for family, globs in _DEFAULT if patterns is None else patterns:
        pattern = "|".join(map(translate, globs))
        if text and globs and re.match(pattern, text, re.IGNORECASE):
            return family
    return None


def cost_of(usage: Usage, options: ToolsOptions) -> float:
    """Return the cost of the tools that an answer used, 0 or more.

    `any_tool`: `cost_weights.any_tool` if it used any. `families`: the sum of the weights of the
    families that it used. `calls`: the sum over all calls of the weight of their family.
    """
    if not usage.calls:
        return 0.0
    weights = options.cost_weights
    if options.cost == "any_tool":
        return weights.any_tool
    cost = 0.0
    for family, tools in usage.by_family.items():
        weight: float = getattr(weights, family)
        cost += weight * sum(tools.values()) if options.cost == "calls" else weight
    return cost


def read_families(path: Path) -> Mapping[str, Family]:
    """Return the families of tools in the JSON file of `--tool-families`.

    Raises:
        ValueError: It cannot be read, or has another form.
    """
    try:
        labels = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)
        return _LABELS.validate_python(labels)
    except ValidationError as error:
        raise ValueError(f"--tool-families {path}: {format_validation_error(error)}") from None
    except (OSError, ValueError) as error:
        hint = "give a JSON object of tools and their families"
        raise ValueError(f"--tool-families {path}: {hint}: {error}") from None


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for tool, family in pairs:
        if labels.setdefault(tool, family) != family:
            raise ValueError(f"{tool} is in two families: {labels[tool]} and {family}")
    return labels
