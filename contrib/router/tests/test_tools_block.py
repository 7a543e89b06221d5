"""The list of available tools in prompts of ToolRL's datasets and of similar ones."""

import pytest

from rewardfleet_router.tools_block import find_tools_block, with_tools, without_tools

HEAD = "You are a helpful assistant.\n\n**Available Tools**\nYou can use the following tools:\n"
WEATHER = '1. Name: get_weather\nDescription: The weather.\nParameters: {"city": {"type": "str"}}\n'
ADD = '2. Name: add\nDescription: Adds.\nParameters: {"a": {"type": "int"}}\n'
STEPS = "**Steps for Each Turn**\n1. **Think:** Recall.\n2. **Respond:** Answer.\n"
PROMPT = f"{HEAD}{WEATHER}{ADD}\n{STEPS}"


def test_tools_are_found_with_names_and_descriptions():
    block = find_tools_block(PROMPT)
    assert [tool.name for tool in block.tools] == ["get_weather", "add"]
    assert [tool.description for tool in block.tools] == ["The weather.", "Adds."]
    assert PROMPT[block.start :].startswith("**Available Tools**")
    assert PROMPT[block.end :] == STEPS


def test_without_tools_the_rest_is_unchanged():
    assert without_tools(PROMPT, find_tools_block(PROMPT)) == (
        f"You are a helpful assistant.\n\n{STEPS}"
    )


@pytest.mark.parametrize("between", ["\n", "\n\n", "\r\n", "\n  "])
def test_all_tools_give_the_same_text(between):
    prompt = PROMPT.replace("\n", between)
    assert with_tools(prompt, find_tools_block(prompt), {"get_weather", "add"}) == prompt


def test_some_tools_are_numbered_from_one():
    prompt = with_tools(PROMPT, find_tools_block(PROMPT), {"add"})
    assert prompt == f"{HEAD}{ADD.replace('2.', '1.')}\n{STEPS}"


def test_the_list_may_be_the_whole_prompt_or_its_end():
    assert find_tools_block("**Available Tools**").tools == ()
    ending = HEAD + WEATHER + ADD.strip()
    block = find_tools_block(ending)
    assert block.end == len(ending)
    assert with_tools(ending, block, {"get_weather", "add"}) == ending
    assert without_tools(ending, block) == "You are a helpful assistant."


@pytest.mark.parametrize(
    "heading",
    ["**Available Tools**", "**Available Tools:**", "**available tools**:", "## Available Tools"],
)
def test_headings_and_forms_of_tools(heading):
    after = "## Steps\nThink." if heading.startswith("#") else "**Steps**\nThink."
    forms = {
        "indented": "1. **Name: a b**\n   Description: First\n   and more.\n   Parameters: {\n  }\n"
        "2. **Name: c**\n   Description: Second.\n   Parameters: {}\n",
        "bullets": "- **Name:** a b\n- **Description:** First\n   and more.\n- **Name:** c\n"
        "- **Description:** Second.\n",
        "plain": "Name: a b\nDescription: First\n   and more.\nName: c\nDescription: Second.\n",
        "windows": "1. Name: a b\r\nDescription: First\n   and more.\r\n2. Name: c\r\n"
        "Description: Second.\r\n",
    }
    for form, tools in forms.items():
        block = find_tools_block(f"{heading}\n{tools}\n{after}")
        assert [tool.name for tool in block.tools] == ["a b", "c"], form
        texts = [" ".join(tool.description.split()) for tool in block.tools]
        assert texts == ["First and more.", "Second."], form


def test_tools_with_name_and_description_on_one_line():
    """The form of API-Bank's third level in ToolRL's repository."""
    tools = "1. Forum-Posts: Gets posts.\nParameters: {}\n2. Name2: Other: text.\nParameters: {}\n"
    block = find_tools_block(f"**Available Tools**\n{tools}\n{STEPS}")
    assert [(tool.name, tool.description) for tool in block.tools] == [
        ("Forum-Posts", "Gets posts."),
        ("Name2", "Other: text."),
    ]


def test_lines_of_a_description_are_not_tools():
    described = "1. Name: a\nDescription: A form with\nName: of a person\n7. Name: of a pet\n"
    block = find_tools_block(f"**Available Tools**\n{described}2. Name: b\n")
    assert [tool.name for tool in block.tools] == ["a", "b"]


def test_a_subheading_of_markdown_belongs_to_the_list():
    text = "## Available Tools\n### Web\n1. Name: a\n### Math\n2. Name: b\n# Steps\n1. Name: c\n"
    block = find_tools_block(text)
    assert [tool.name for tool in block.tools] == ["a", "b"]
    assert text[block.end :].startswith("# Steps")


@pytest.mark.parametrize("text", ["", "No tools.", "Use available tools.", "**Tools**\nName: a"])
def test_a_prompt_without_the_heading_has_no_list(text):
    assert find_tools_block(text) is None


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["name:", "1. Name: ", "1. Name: *", "Description:\n", "** **"])
def test_the_time_is_linear(unit):
    """A prompt of a megabyte is parsed within the time limit of a test."""
    find_tools_block("**Available Tools**\n1. Name: a\n" + unit * (1_000_000 // len(unit)))
    find_tools_block("**Available Tools**\n" + (unit + "\n") * (1_000_000 // len(unit)))


@pytest.mark.parametrize(
    "text",
    [
        "**Available Tools{gap}x",
        "#{gap}x",
        "{gap}x",
        "**Available Tools**\n{gap}x\n1.{gap}x\n-{gap}x\n**Steps**{gap}x",
        "**Available Tools**\nName:{gap}x*\nName: x{gap}*",
        "**Available Tools**\n1.{gap}a{gap}:{gap}\rx",
    ],
)
def test_a_long_run_of_spaces_takes_no_time(text):
    """Within the time limit of a test; a quadratic search would take minutes."""
    find_tools_block(text.format(gap=" " * 200_000))
