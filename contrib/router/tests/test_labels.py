"""Weak labels, in columns and in sidecars."""

import json

import pytest

from rewardfleet_router.labels.row_labels import (
    NO_LABEL,
    RowLabels,
    labels_of,
    parse_labels,
    read_sidecar,
)

FAMILIES = {"find": "search", "add": "calculate"}


@pytest.mark.parametrize(
    ("target", "action"),
    [
        ("ANSWER", 0),
        ("SEARCH-FAMILY", 1),
        ("CALCULATE-FAMILY", 2),
        ("MIXED", NO_LABEL),
        (None, NO_LABEL),
        ("", NO_LABEL),
    ],
)
def test_a_label_is_an_action_unless_it_is_mixed(target, action):
    assert parse_labels({"router_target_action": target}).action == action


def test_families_may_be_a_mapping_or_text():
    labels = RowLabels(None, FAMILIES)
    assert parse_labels({"tool_families": FAMILIES}) == labels
    assert parse_labels({"tool_families": json.dumps(FAMILIES)}) == labels
    assert parse_labels({"tool_families": {**FAMILIES, "of_another_row": None}}) == labels
    assert parse_labels({}) == RowLabels()


PUBLISHED = {
    "router_target_action_gt": "SEARCH-FAMILY",
    "router_tool_family_gt": '{"find": "SEARCH", "add": "CALCULATE", "say": "OTHER"}',
}


def test_the_columns_of_the_authors_dataset_are_labels():
    families = {"find": "search", "add": "calculate", "say": "other"}
    assert parse_labels(PUBLISHED) == RowLabels("SEARCH-FAMILY", families)
    other = parse_labels({**PUBLISHED, "router_target_action_gt": "OTHER"})
    assert other == RowLabels("MIXED", families) and other.action == NO_LABEL
    unlabeled = {"router_target_action_gt": None, "router_tool_family_gt": None}
    assert parse_labels(unlabeled) == RowLabels()


def test_our_columns_come_before_those_of_the_authors():
    ours = {"router_target_action": "ANSWER", "tool_families": FAMILIES}
    assert parse_labels({**PUBLISHED, **ours}) == RowLabels("ANSWER", FAMILIES)
    empty = {"router_target_action": "", "tool_families": "{}"}
    assert parse_labels({**PUBLISHED, **empty}) == parse_labels(PUBLISHED)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"router_target_action_gt": "SEARCH"}, "router_target_action_gt: unknown 'SEARCH'"),
        ({"router_tool_family_gt": '{"a": "MATH"}'}, "router_tool_family_gt: unknown 'math' of"),
        ({"router_tool_family_gt": "["}, "router_tool_family_gt: not JSON"),
        ({"router_target_action": "OTHER"}, "router_target_action: unknown 'OTHER'"),
        ({"router_target_action": "SEARCH"}, "router_target_action: unknown 'SEARCH'; known: ANS"),
        ({"tool_families": {"a": "math"}}, "tool_families: unknown 'math' of 'a'; known: search"),
        ({"tool_families": "{"}, "tool_families: not JSON"),
        ({"tool_families": "[1]"}, "tool_families: a mapping"),
    ],
)
def test_malformed_labels_are_errors(row, message):
    with pytest.raises(ValueError, match=message):
        parse_labels(row)


ROWS = [
    {"index": 3, "router_target_action": "ANSWER", "tool_families": FAMILIES},
    {"index": 5, "router_target_action": "MIXED", "tool_families": {}},
]
CSV = 'index,router_target_action,tool_families\n3,ANSWER,"{""find"": ""search"", ""add"": '
CSV += '""calculate""}"\n5,MIXED,\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.jsonl", "\n".join(map(json.dumps, ROWS)) + "\n\n"),
        ("labels.json", json.dumps(ROWS)),
        ("labels.csv", CSV),
        ("labels.csv", "\ufeff" + CSV),
    ],
)
def test_a_sidecar_has_labels_by_index(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    sidecar = read_sidecar(path)
    assert sidecar == {"3": RowLabels("ANSWER", FAMILIES), "5": RowLabels("MIXED")}
    own = {"router_target_action": "SEARCH-FAMILY"}
    assert labels_of({"extra_info": {"index": 3}, **own}, sidecar).action == 0
    assert labels_of({"extra_info": {"index": "5"}, **own}, sidecar).action == NO_LABEL
    assert labels_of({"extra_info": {"index": 4}, **own}, sidecar).action == 1
    assert labels_of({"extra_info": {"index": 4}}, sidecar) == RowLabels()
    assert labels_of({"extra_info": None, **own}).action == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"router_target_action": "ANSWER"}', "row 1: index is missing"),
        ('{"index": 1}\n{"index": "1"}', "row 2: .*not unique"),
        ('{"index": 1, "router_target_action": "?"}', "row 1: router_target_action: unknown"),
        ("{", "labels.jsonl:1: not JSON"),
        ("[1]", "labels.jsonl:1: a row is a JSON object"),
    ],
)
def test_a_malformed_sidecar_is_an_error_that_names_the_row(tmp_path, text, message):
    path = tmp_path / "labels.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_sidecar(path)
