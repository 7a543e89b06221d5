"""Routes, and prompts rewritten for them."""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from rewardfleet.wire.tools import Family

from .tools_block import find_tools_block, with_tools, without_tools

#: A message of a chat: `role` and `content`.
Message = dict[str, Any]

#: Roles that may list the tools.
_ROLES = ("system", "developer", "user")


class Route(StrEnum):
    """What a prompt may use."""

    ANSWER = "ANSWER"
    SEARCH = "SEARCH-FAMILY"
    CALCULATE = "CALCULATE-FAMILY"

    @property
    def family(self) -> Family | None:
        """The family of tools that it favors, or None for `ANSWER`."""
        return _FAMILIES.get(self)


#: The index of a route is its action.
ROUTES = tuple(Route)

_FAMILIES: dict[Route, Family] = {Route.SEARCH: "search", Route.CALCULATE: "calculate"}


@dataclass(frozen=True)
class RouteTexts:
    """What the routes append to a system prompt.

    Attributes:
        version: Name of the file, e.g. "v1". A policy is trained with one version.
        texts: The text of each route.
    """

    version: str
    texts: Mapping[Route, str]


#: The version of the texts that is used by default.
TEXTS_VERSION = "v1"


@cache
def load_route_texts(version: str = TEXTS_VERSION) -> RouteTexts:
    """Return the texts of a version that ships with this package.

    Raises:
        ValueError: There is no such version.
    """
    folder = files(__package__) / "route_texts"
    known = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())
    if version not in known:
        raise ValueError(f"route texts: unknown version {version!r}; known: {', '.join(known)}")
    loaded = tomllib.loads((folder / f"{version}.toml").read_text(encoding="utf-8"))
    texts = {route: str(loaded["texts"][route]).strip() for route in ROUTES}
    return RouteTexts(version, texts)


def rewrite_prompt(
    messages: Iterable[Mapping[str, Any]],
    route: Route,
    families: Mapping[str, Family] | None = None,
    *,
    texts: RouteTexts | None = None,
) -> list[Message]:
    """Return a copy of a chat prompt, rewritten for a route.

    `ANSWER` removes the list of available tools. The other routes keep it. If it has a tool of the
    favored family, only the tools of this family and those of unknown families stay, so none of
    the family `other`; if it has none, all stay. The text of the route is appended to the system
    message, which is added where there is none.

    Args:
        messages: The prompt, e.g. the `prompt` column of a row.
        route: The route.
        families: Families of tools by name, where they are known.
        texts: The texts of the routes; None: those of `TEXTS_VERSION`.
    """
    copies = [deepcopy(dict(message)) for message in messages]
    for message in copies:
        if message.get("role") in _ROLES and _rewrite_tools(message, route, families or {}):
            break
    text = (texts or load_route_texts()).texts[route]
    if copies and copies[0].get("role") in {"system", "developer"}:
        _append(copies[0], text)
        return copies
    return [{"role": "system", "content": text}, *copies]


def _rewrite_tools(message: Message, route: Route, families: Mapping[str, Family]) -> bool:
    """Rewrite the list of tools of a message in place. Return whether it has one."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"], found = _rewrite_text(content, route, families)
        return found
    for part in _text_parts(content):
        part["text"], found = _rewrite_text(part["text"], route, families)
        if found:
            return True
    return False


def _rewrite_text(text: str, route: Route, families: Mapping[str, Family]) -> tuple[str, bool]:
    block = find_tools_block(text)
    if block is None:
        return text, False
    if route is Route.ANSWER:
        return without_tools(text, block), True
    names = {tool.name for tool in block.tools}
    if any(families.get(name) == route.family for name in names):
        kept = {name for name in names if families.get(name) in {route.family, None}}
        return with_tools(text, block, kept), True
    return text, True


def _append(message: Message, text: str) -> None:
    content = message.get("content")
    if isinstance(content, str) or content is None:
        message["content"] = f"{(content or '').rstrip()}\n\n{text}".lstrip()
    else:
        message["content"] = [*content, {"type": "text", "text": text}]


def _text_parts(content: Any) -> list[dict[str, Any]]:
    parts = [] if content is None else list(content)
    return [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
