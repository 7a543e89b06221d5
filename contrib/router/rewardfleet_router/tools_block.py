"""The list of available tools in a system prompt, in the format of ToolRL's datasets.

```text
**Available Tools**
In your response, you can use the following tools:
1. Name: get_weather
Description: The weather of a city.
Parameters: {"city": {"description": "", "type": "str", "default": ""}}

**Steps for Each Turn**
```
"""

import re
from collections.abc import Container
from dataclasses import dataclass

# White space after an optional mark is in the group of the mark. Otherwise a run of spaces can be
# divided in many ways, and a line that does not match takes hours.
_HEADING = re.compile(
    r"^[ \t]*(?:(?P<bold>\*\*)[ \t]*|(?P<hashes>#{1,6})[ \t]+(?:\*\*[ \t]*)?)available tools[ \t]*"
    r"(?::[ \t]*)?(?:\*\*[ \t]*)?(?::[ \t]*)?(?:#+[ \t]*)?\r?$",
    re.IGNORECASE | re.MULTILINE,
)
_BOLD_HEADING = re.compile(r"^[ \t]*\*\*[^*\n]+\*\*[ \t]*(?::[ \t]*)?\r?$", re.MULTILINE)
#: `1. Name: get_weather`, also `- **Name:** get_weather` and `1. **Name: get_weather**`.
_ENTRY = re.compile(
    r"^[ \t]*(?:(?:(?P<number>\d{1,4})[.)]|[-*])[ \t]*)?(?:\*\*)?name(?:\*\*)?[ \t]*:[ \t]*"
    r"(?:\*\*[ \t]*)?(?P<name>[^* \t\n\r](?:[^*\n\r]*[^* \t\n\r])?)[ \t]*(?:\*\*[ \t]*)?\r?$",
    re.IGNORECASE | re.MULTILINE,
)
#: `1. get_weather: The weather of a city.`, if no tool has the form above.
_SHORT_ENTRY = re.compile(
    r"^[ \t]*(?P<number>\d{1,4})[.)][ \t]+(?:\*\*)?(?P<name>[\w.\-/]+)(?:\*\*)?[ \t]*:"
    r"(?:\*\*)?(?P<description>[^\n\r]*)\r?$",
    re.MULTILINE,
)
_DESCRIPTION = re.compile(
    r"^[ \t]*(?:[-*][ \t]+)?(?:\*\*)?description(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(?P<text>.*?)"
    r"(?=^[ \t]*(?:[-*][ \t]+)?(?:\*\*)?parameters(?:\*\*)?[ \t]*:|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class ListedTool:
    """A tool as a prompt lists it.

    Attributes:
        name: As it is called.
        description: What it does; empty if there is none.
        text: Its lines, with the number.
    """

    name: str
    description: str
    text: str


@dataclass(frozen=True)
class ToolsBlock:
    """The list of available tools in a prompt.

    Attributes:
        start: Position of the heading.
        end: Position of the next heading, or of the end of the text.
        head: Heading and introduction.
        tools: The tools, in order; empty if none can be parsed.
    """

    start: int
    end: int
    head: str
    tools: tuple[ListedTool, ...]


def find_tools_block(text: str) -> ToolsBlock | None:
    """Return the list of available tools of a prompt, or None if it has none.

    It begins with the heading `**Available Tools**`, or one of Markdown with this text, and ends
    before the next heading of the same kind. Each tool begins with a line `1. Name: …`, with any
    bullet or none, or, where no line has this form, `1. <name>: <description>`.
    """
    heading = _HEADING.search(text)
    if heading is None:
        return None
    next_heading = _BOLD_HEADING
    if heading["hashes"]:
        next_heading = re.compile(rf"^#{{1,{len(heading['hashes'])}}}[ \t]+\S", re.MULTILINE)
    following = next_heading.search(text, heading.end())
    end = following.start() if following else len(text)
    entries = _entries(_ENTRY, text, heading.end(), end)
    entries = entries or _entries(_SHORT_ENTRY, text, heading.end(), end)
    starts = [entry.start() for entry in entries] + [end]
    tools = tuple(
        _tool(entry, text[start:after])
        for entry, start, after in zip(entries, starts, starts[1:], strict=False)
    )
    return ToolsBlock(heading.start(), end, text[heading.start() : starts[0]], tools)


def without_tools(text: str, block: ToolsBlock) -> str:
    """Return a prompt without its list of available tools."""
    before, after = text[: block.start].rstrip(), text[block.end :].lstrip()
    return f"{before}\n\n{after}" if before and after else before + after


def with_tools(text: str, block: ToolsBlock, names: Container[str]) -> str:
    """Return a prompt with only some of its tools, numbered from 1 if they were numbered.

    Args:
        text: The prompt.
        block: Its list of tools.
        names: The tools to keep.
    """
    kept = [
        _NUMBER.sub(rf"\g<1>{number}\g<2>", tool.text)
        for number, tool in enumerate((tool for tool in block.tools if tool.name in names), 1)
    ]
    if kept:
        last = block.tools[-1].text
        kept[-1] = kept[-1].rstrip() + last[len(last.rstrip()) :]
    return text[: block.start] + block.head + "".join(kept) + text[block.end :]


_NUMBER = re.compile(r"\A([ \t]*)\d+([.)])")


def _entries(pattern: re.Pattern[str], text: str, start: int, end: int) -> list[re.Match[str]]:
    entries = list(pattern.finditer(text, start, end))
    if not entries or entries[0]["number"] is None:
        return entries
    # A description may have lines of the same form: the numbers of tools follow each other.
    following = int(entries[0]["number"])
    numbered = []
    for entry in entries:
        if entry["number"] is not None and int(entry["number"]) == following:
            numbered.append(entry)
            following += 1
    return numbered


def _tool(entry: re.Match[str], text: str) -> ListedTool:
    if "description" in entry.re.groupindex:
        return ListedTool(entry["name"], entry["description"].strip(), text)
    description = _DESCRIPTION.search(text)
    return ListedTool(entry["name"], description["text"].strip() if description else "", text)
