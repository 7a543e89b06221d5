"""The rows of a table are those that were written to it, or are refused: of all services."""

import csv
import functools
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from rewardfleet.bulk.requests import RequestBuilder
from rewardfleet.bulk.rows import read_rows
from rewardfleet.rows import requests_of
from rewardfleet.services import SERVICES
from rewardfleet.tool_use import parse_answer
from rewardfleet.wire.errors import InvalidRequest

Rows = list[dict[str, Any]]

_KEYS = st.sampled_from(["a", "b", "c"])
_OBJECTS = st.dictionaries(_KEYS, st.integers(0, 9) | st.none(), max_size=3)
_NESTED = st.dictionaries(_KEYS, _OBJECTS, max_size=2)


def _record(required: Mapping[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects of which each has some of the optional keys; other values are constants."""
    always, some = ({n: _values(v) for n, v in each.items()} for each in (required, optional))
    return st.fixed_dictionaries(always, optional=some)


def _values(value: Any) -> st.SearchStrategy[Any]:
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


_CASE = _record({"args": st.lists(_OBJECTS, min_size=1), "expected": _NESTED})
_CASES = st.lists(_CASE, min_size=1, max_size=2)
_FUNCTIONAL = _record(
    {"kind": "functional", "fn_name": "f", "cases": _CASES}, tolerance=0.5, bool_is_int=True
)
_STDIO = _record(
    {"kind": "stdio", "cases": [{"stdin": "1", "stdout": "1"}]}, checker="exact", tolerance=0.5
)
_VERL = _record({"inputs": st.lists(st.tuples(_OBJECTS).map(list), min_size=1, max_size=1)}).map(
    lambda each: {**each, "outputs": [1], "fn_name": "f"}
)
_PROGRAMS = _record(
    {"revision": "def f(x): return x", "tests": _FUNCTIONAL | _STDIO | _VERL},
    limits=_record({}, cpu_s=3.0, memory_mb=64),
    mode="all_pass",
)
_FAMILIES = st.dictionaries(_KEYS, st.sampled_from(["search", "other"]), max_size=2)
_TRUTH = st.dictionaries(_KEYS, st.integers(0, 9)).map(
    lambda each: f"<tool_call>{json.dumps({'name': 'f', 'parameters': each})}</tool_call>"
)
_CALL = _record({"name": "f", "arguments": _OBJECTS | _NESTED})
_RESPONSE = st.lists(_CALL, min_size=1, max_size=2).map(
    lambda calls: [{"role": "assistant", "content": None, "tool_calls": calls}]
)
_ANSWERS = _record(
    {"ground_truth": _TRUTH, "response": _RESPONSE},
    tool_families=_FAMILIES,
    options=_record({}, cost="families", cost_weights=_record({}, search=2.0, other=3.0)),
)
_VERDICT = _record(
    {"score": 0.5, "status": "ok", "components": st.dictionaries(_KEYS, st.just(0.25))},
    backend="vlm",
    details=st.dictionaries(_KEYS, st.sampled_from(["x", "y"])),
)
_EPISODES = _record(
    {"kind": "visual", "episode_reward": 1.0, "visual_success": _VERDICT}, temperature=0.5, uid="e"
)
ROWS = {
    "code": st.lists(_PROGRAMS, min_size=1, max_size=3),
    "tools": st.lists(_ANSWERS, min_size=1, max_size=3),
    "episode": st.lists(_EPISODES, min_size=1, max_size=3),
}


def _parquet(rows: Rows, path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows, _schema(rows)), path)


def _saved(rows: Rows, path: Path) -> None:
    path.mkdir()
    (path / "state.json").touch()
    table = pa.Table.from_pylist(rows, _schema(rows))
    with pa.ipc.new_stream(str(path / "data.arrow"), table.schema) as stream:
        stream.write_table(table)


def _schema(rows: Rows) -> pa.Schema:
    """Return the schema of rows, also with the columns that the first one has not."""
    names = list(dict.fromkeys(name for each in rows for name in each))
    return pa.schema({name: pa.array([each.get(name) for each in rows]).type for name in names})


def _with_json(rows: Rows, path: Path) -> None:
    """Write objects as JSON, as `datasets` does if they differ."""
    names = dict.fromkeys(name for each in rows for name in each)
    texts = {n: [json.dumps(each[n]) if n in each else None for each in rows] for n in names}
    pq.write_table(pa.table({n: pa.array(each, pa.json_()) for n, each in texts.items()}), path)


def _csv(rows: Rows, path: Path) -> None:
    if not all(isinstance(each.get("response", ""), str) for each in rows):
        raise pa.ArrowInvalid("a cell is a text, which is what a policy wrote")
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for each in rows for name in each)))
        writer.writeheader()
        for row in rows:
            cells = row.items()
            writer.writerow({n: c if isinstance(c, str) else json.dumps(c) for n, c in cells})


def _duckdb(rows: Rows, path: Path) -> None:
    import duckdb  # noqa: PLC0415 - not in the environment of trainers

    lines = path.with_suffix(".jsonl")
    _json_lines(rows, lines)
    duckdb.sql(f"copy (select * from read_json_auto('{lines}')) to '{path}' (format parquet)")


def _json_lines(rows: Rows, path: Path) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def _datasets(rows: Rows, path: Path) -> None:
    import datasets  # noqa: PLC0415 - in the environment of trainers

    datasets.disable_progress_bars()
    lines = path.with_name(f"{path.name}.jsonl")
    _json_lines(rows, lines)
    cache = str(path.with_name("cache"))
    found = datasets.load_dataset("json", data_files=str(lines), split="train", cache_dir=cache)
    found.to_parquet(str(path)) if path.suffix else found.save_to_disk(str(path))


TABLES = {"rows.parquet": _parquet, "saved": _saved, "rows.csv": _csv, "json.parquet": _with_json}
if find_spec("duckdb"):
    TABLES |= {"duckdb.parquet": _duckdb}
if find_spec("datasets"):
    TABLES |= {"datasets.parquet": _datasets, "datasets": _datasets}
#: What cannot be written: Arrow has one type per column, and a cell of a CSV is a text.
CANNOT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


@pytest.mark.parametrize("service", ROWS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_table_gives_the_same_requests_or_refuses_them(
    service: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    rows = data.draw(ROWS[service])
    folder = tmp_path_factory.mktemp("tables")
    _json_lines(rows, folder / "rows.jsonl")
    expected = requests_in(service, folder / "rows.jsonl")
    assert None not in expected
    for name, write in TABLES.items():
        try:
            write(rows, folder / name)
        except CANNOT:
            continue
        found = requests_in(service, folder / name)
        assert _are_refused_or_equal(found, expected), (name, found)
        if name == "json.parquet":
            assert found == expected
        columns = _of_trainer(folder / name)
        if SERVICES[service].scores == "text" and not name.endswith(".csv"):
            adapted = [_built(_adapted(service), each) for each in columns]
            assert _are_refused_or_equal(adapted, expected), (name, adapted)


#: Two rows, of which only the second has some keys.
_OPTIONAL = {
    "code": {
        "tests": [
            {"kind": "stdio", "cases": [{"stdin": "", "stdout": "1"}]},
            {"kind": "stdio", "cases": [{"stdout": "1"}], "checker": "exact", "tolerance": 0.5},
        ],
        "limits": [{"cpu_s": 3.0}, {"memory_mb": 64}],
    },
    "tools": {
        "ground_truth": [
            {"ground_truth": "<think>", "tool_families": {"f": "search"}},
            {
                "ground_truth": "<think>",
                "options": {"cost": "calls"},
                "tool_families": {"g": "other"},
            },
        ],
    },
    "episode": {
        "visual_success": [
            {"score": 0.5, "status": "ok", "components": {"a": 0.5}},
            {"score": 0.5, "status": "ok", "components": {"b": 0.5}, "backend": "vlm"},
        ],
        "kind": ["visual", "visual"],
        "episode_reward": [1.0, 1.0],
    },
}


@pytest.mark.parametrize("service", _OPTIONAL)
def test_what_one_row_does_not_have_is_absent(service: str, tmp_path: Path):
    texts = {"code": "revision", "tools": "response", "episode": "uid"}
    columns = {texts[service]: ["a", "b"], **_OPTIONAL[service]}
    rows = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    _json_lines(rows, tmp_path / "rows.jsonl")
    _parquet(rows, tmp_path / "rows.parquet")
    expected = requests_in(service, tmp_path / "rows.jsonl")
    assert None not in expected and requests_in(service, tmp_path / "rows.parquet") == expected
    if SERVICES[service].scores == "text":
        found = [row.fields for row in read_rows(tmp_path / "rows.parquet")]
        assert [_built(_adapted(service), each) for each in found] == expected


def test_columns_of_values_are_checked_and_what_the_policy_got_is_not(tmp_path: Path):
    seen = [{"role": "user", "content": "", "name": None}, {"role": "tool", "name": "f"}]
    row = {"output": seen, "fn_name": "f", "responses_create_params": {"input": seen}}
    rows = [{**row, "outputs": [1], "inputs": [[each]]} for each in ("x", {"a": 1}, {})]
    _parquet(rows[:1], tmp_path / "right.parquet")
    _parquet(rows[1:], tmp_path / "wrong.parquet")
    assert None not in requests_in("code", tmp_path / "right.parquet")
    assert requests_in("code", tmp_path / "wrong.parquet")[1] is None


def test_a_map_that_has_a_key_twice_is_refused(tmp_path: Path):
    pairs = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"meta": pairs}), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="duplicate key was 'a'"):
        list(read_rows(tmp_path / "rows.parquet"))


def test_a_null_that_a_program_would_get_is_refused_by_name(tmp_path: Path):
    cases = [{"args": [{"a": 1}], "expected": None}, {"args": [{"b": "z"}], "expected": None}]
    tests = {"kind": "functional", "fn_name": "f", "cases": cases}
    _parquet([{"revision": "", "tests": tests}], tmp_path / "rows.parquet")
    _json_lines([{"revision": "", "tests": tests}], tmp_path / "rows.jsonl")
    ((item,),) = [RequestBuilder("code").items(read_rows(tmp_path / "rows.parquet"))]
    with pytest.raises(InvalidRequest, match=r"tests\.cases\.0\.args\.0\.b: .*as JSON text"):
        RequestBuilder("code").build(item)
    assert None not in requests_in("code", tmp_path / "rows.jsonl")


_OF_GYM = {"type": "function_call", "name": "f", "arguments": '{"a": null}'}


@pytest.mark.parametrize(
    ("truth", "is_kept"),
    [
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', False),
        ('<tool_call>{"name": "f", "parameters": {"a": null}}</tool_call>', True),
        ([_OF_GYM], True),
        (json.dumps(_OF_GYM), True),
        ({"reward_model": {"ground_truth": json.dumps(_OF_GYM)}}, True),
        ([{"f": {"a": [1, None]}}], True),
    ],
)
def test_an_argument_that_is_null_is_absent_unless_it_is_right(truth: Any, is_kept: bool):
    call = {"name": "f", "arguments": {"a": None, "b": {"c": 1, "d": None}}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    row = {"response": messages, "ground_truth": truth}
    (call,) = _adapted("tools")(row).response.splitlines()[1:-1]
    assert json.loads(call)["parameters"] == ({"a": None} if is_kept else {}) | {"b": {"c": 1}}


def test_names_of_calls_may_be_anything_and_arguments_of_any_depth():
    deep: Any = functools.reduce(lambda inner, _: {"a": inner}, range(900), {})
    for name in (["f"], {"f": 1}, 5, None, "", "f"):
        calls = [{"name": name, "arguments": deep if name == "f" else {"a": None}}]
        row = {"response": [{"role": "assistant", "tool_calls": calls}], "ground_truth": "<think>"}
        assert "<tool_call>" in _adapted("tools")(row).response, name


def test_splits_are_named(tmp_path: Path):
    for split in ("test", "train"):
        _saved([{"response": split}], tmp_path / split)
    (tmp_path / "dataset_dict.json").touch()
    with pytest.raises(ValueError, match=f"{tmp_path}/test, {tmp_path}/train"):
        list(read_rows(tmp_path))
    (row,) = read_rows(tmp_path / "test")
    assert row.fields == {"response": "test"}
    for split in ("test", "train"):  # as on the hub
        _parquet([{"response": split}], tmp_path / "test" / f"{split}-00000-of-00001.parquet")
    (tmp_path / "test" / "state.json").unlink()
    with pytest.raises(ValueError, match=r"/test-\*, .*/train-\*"):
        list(read_rows(tmp_path / "test"))


def requests_in(service: str, path: Path) -> list[Any]:
    """Return the requests of the rows of a table; None for those that are refused."""
    builder = RequestBuilder(service)
    return [_built(builder.build, item) for item in builder.items(read_rows(path))]


def _of_trainer(path: Path) -> list[Mapping[str, Any]]:
    """Return the rows of a table as a trainer has them."""
    if path.name != "datasets":
        return [row.fields for row in read_rows(path)]
    import datasets  # noqa: PLC0415 - in the environment of trainers

    return [*datasets.load_from_disk(str(path))]


def _adapted(service: str) -> Callable[[Mapping[str, Any]], Any]:
    truth, text = SERVICES[service].truth, {"code": "revision", "tools": "response"}[service]
    return lambda row: requests_of(service, [(row[text], row[truth], row)])[0]


def _built(build: Callable[[Any], Any], item: Any) -> Any:
    """Return the fields of a request, in which calls are parsed; None if it is refused."""
    try:
        request = build(item)
    except InvalidRequest:
        return None
    fields = {name: getattr(request, name) for name in type(request).model_fields}
    return fields | {"response": parse_answer(fields.get("response", ""))}


def _are_refused_or_equal(found: list[Any], expected: list[Any]) -> bool:
    return all(each is None or each == right for each, right in zip(found, expected, strict=True))
