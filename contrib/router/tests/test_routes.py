"""Prompts rewritten for a route."""

import pytest

from rewardfleet_router.routes import ROUTES, Route, load_route_texts, rewrite_prompt

TOOLS = "1. Name: find\nDescription: Finds.\n2. Name: add\nDescription: Adds.\n3. Name: book\n"
SYSTEM = f"You help.\n\n**Available Tools**\nYou can use:\n{TOOLS}\n**Steps**\nThink."
PROMPT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "1 + 1?"}]
FAMILIES = {"find": "search", "add": "calculate", "book": "other"}
TEXTS = load_route_texts().texts


def test_the_index_of_a_route_is_its_action():
    assert [str(route) for route in ROUTES] == ["ANSWER", "SEARCH-FAMILY", "CALCULATE-FAMILY"]
    assert [route.family for route in ROUTES] == [None, "search", "calculate"]


def test_answer_removes_the_tools():
    system, user = rewrite_prompt(PROMPT, Route.ANSWER, FAMILIES)
    assert system["content"] == f"You help.\n\n**Steps**\nThink.\n\n{TEXTS[Route.ANSWER]}"
    assert "Do NOT use any tools" in system["content"]
    assert user == PROMPT[1]


def test_a_family_is_favored_and_all_tools_are_listed_where_families_are_not_known():
    for route in (Route.SEARCH, Route.CALCULATE):
        system, _ = rewrite_prompt(PROMPT, route)
        assert system["content"] == f"{SYSTEM}\n\n{TEXTS[route]}"
        assert "Prefer" in TEXTS[route] and "avoid" in TEXTS[route]


@pytest.mark.parametrize(("route", "tool"), [(Route.SEARCH, "find"), (Route.CALCULATE, "add")])
def test_only_tools_of_the_family_are_listed_where_families_are_known(route, tool):
    system, _ = rewrite_prompt(PROMPT, route, FAMILIES)
    listed = f"You can use:\n1. Name: {tool}\nDescription: {tool.capitalize()}s.\n\n**Steps**"
    assert listed in system["content"]
    assert system["content"].count("Name:") == 1


def test_tools_of_an_unknown_family_are_listed():
    system, _ = rewrite_prompt(PROMPT, Route.SEARCH, {"find": "search", "add": "calculate"})
    assert "1. Name: find\n" in system["content"] and "2. Name: book\n" in system["content"]
    assert "Name: add" not in system["content"]


def test_all_tools_are_listed_if_none_is_of_the_family():
    system, _ = rewrite_prompt(PROMPT, Route.SEARCH, dict.fromkeys(FAMILIES, "calculate"))
    assert TOOLS in system["content"]


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_without_tools_or_system_message_gets_the_text(route):
    assert rewrite_prompt([{"role": "system", "content": "You help."}], route, FAMILIES) == [
        {"role": "system", "content": f"You help.\n\n{TEXTS[route]}"}
    ]
    assert rewrite_prompt(PROMPT[1:], route) == [
        {"role": "system", "content": TEXTS[route]},
        PROMPT[1],
    ]
    assert rewrite_prompt([{"role": "system", "content": None}], route) == [
        {"role": "system", "content": TEXTS[route]}
    ]


def test_tools_in_the_message_of_the_user_are_removed():
    system, user = rewrite_prompt([{"role": "user", "content": SYSTEM}], Route.ANSWER)
    assert system["content"] == TEXTS[Route.ANSWER]
    assert user["content"] == "You help.\n\n**Steps**\nThink."


def test_earlier_answers_are_not_changed():
    for first in PROMPT:
        history = [first, {"role": "assistant", "content": SYSTEM}]
        assert rewrite_prompt(history, Route.ANSWER)[-1] == history[-1]


def test_a_developer_message_is_a_system_message():
    (message,) = rewrite_prompt([{"role": "developer", "content": SYSTEM}], Route.ANSWER)
    assert message["content"] == f"You help.\n\n**Steps**\nThink.\n\n{TEXTS[Route.ANSWER]}"


def test_a_message_may_have_parts():
    parts = [{"type": "image"}, {"type": "text", "text": SYSTEM}]
    prompt = [{"role": "system", "content": parts}]
    (message,) = rewrite_prompt(prompt, Route.ANSWER)
    assert message["content"] == [
        {"type": "image"},
        {"type": "text", "text": "You help.\n\n**Steps**\nThink."},
        {"type": "text", "text": TEXTS[Route.ANSWER]},
    ]
    assert parts == [{"type": "image"}, {"type": "text", "text": SYSTEM}]


def test_the_original_is_unchanged():
    before = [dict(message) for message in PROMPT]
    for route in ROUTES:
        rewrite_prompt(PROMPT, route, FAMILIES)
    assert before == PROMPT


def test_texts_have_versions():
    texts = load_route_texts("v1")
    assert texts.version == "v1" and set(texts.texts) == set(ROUTES)
    with pytest.raises(ValueError, match="unknown version '../v1'; known: v1"):
        load_route_texts("../v1")
