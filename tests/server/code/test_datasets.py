"""Raw rows of datasets as tests. The last part is over real HTTP."""

import base64
import json
import math
import pickle
import zlib

import pytest

from rewardfleet.wire.code import AssertTests, DatasetTests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.datasets.columns import MAX_DECOMPRESSED
from rewardfleet_server.code.datasets.rows import read_row

from ...conftest import JSON
from ...measure import CpuStopwatch
from ..http.test_requests import metric
from ..video.test_bad_input import check_problem
from .conftest import Service, asserts, check_verdicts, functional, rows, sample, stdio

PAIRS = [{"input": {"stdin": "1 2"}, "output": {"stdout": "3"}}] * 2


def encoded(value: object, protocol: int = 4) -> str:
    """Encode a value as LiveCodeBench does."""
    return compressed(pickle.dumps(value, protocol))


def compressed(pickled: bytes) -> str:
    return base64.b64encode(zlib.compress(pickled)).decode()


def read(dataset: str, row: dict, first: int | None = None):
    return read_row(DatasetTests(kind="dataset", dataset=dataset, row=row, first=first))[0]


@pytest.mark.parametrize("each", sample(rows("datasets", "forms")))
def test_a_row_becomes_its_tests(each):
    """In each form in which its dataset is published."""
    tests = read(each["dataset"], each["row"]).model_dump(mode="json")
    assert {name: tests[name] for name in each["tests"]} == each["tests"]
    assert each.get("in_setup", "") in tests["setup"]
    assert len(read(each["dataset"], each["row"], first=1).cases) == 1


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_livecodebench_compressed_tests(protocol: int):
    text = json.dumps({"input_output": {"inputs": ["\u00fc \U0001f642"], "outputs": ["3\n"]}})
    tests = read("livecodebench", {"id": 1, "labels": "{}", "test": encoded(text, protocol)})
    assert [(case.stdin, case.stdout) for case in tests.cases] == [("\u00fc \U0001f642", "3\n")]


@pytest.mark.parametrize("each", sample(rows("datasets", "sources")))
def test_rows_with_source_code_as_tests(each):
    """They are read with the code around the program, as published."""
    found = read_row(DatasetTests(kind="dataset", dataset="auto", row=each["row"]))
    tests = found.tests
    assert isinstance(tests, AssertTests)
    (case,) = tests.cases
    solution = found.solution and found.solution.rstrip("\n")
    expected = (each[name] for name in ("case", "prompt", "entry_point", "solution"))
    assert (case, tests.prompt, tests.entry_point, solution) == tuple(expected)


@pytest.mark.parametrize("each", sample(rows("datasets", "solutions")))
def test_the_first_solution_in_python_is_checked(each):
    row = {"inputs": ["1 2\n"], "outputs": ["3\n"], **each["columns"]}
    tests = DatasetTests(kind="dataset", dataset="auto", row=row, check_reference=True)
    assert read_row(tests).solution.strip() == "print(3)"


@pytest.mark.parametrize("dataset", ["auto", "code_contests"])
def test_time_limits(dataset: str):
    nan = {"row": {"test": PAIRS, "time_limit": math.nan}, "seconds": None}
    for each in [*rows("datasets", "time limits").values(), nan]:
        found = read_row(DatasetTests(kind="dataset", dataset=dataset, row=each["row"])).limits
        assert found.get("cpu_s") == each["seconds"], each


# Rows that cannot be read


#: Bytes as Latin-1.
PICKLES = {
    name: row["pickled"].encode("latin-1") for name, row in rows("datasets", "pickles").items()
}
PICKLES["decimal-number"] = b"I" + b"9" * 100_000 + b"\n."


@pytest.mark.parametrize("pickled", PICKLES.values(), ids=PICKLES)
def test_a_pickle_of_anything_but_a_string_is_rejected(pickled: bytes, capsys):
    with pytest.raises(InvalidRequest, match="pickle"):
        read("livecodebench", {"test": compressed(pickled)})
    assert capsys.readouterr().out == ""


@pytest.mark.serial
@pytest.mark.slow
def test_a_decompression_bomb_is_rejected():
    bomb = base64.b64encode(zlib.compress(bytes(20 * MAX_DECOMPRESSED), 1)).decode()
    watch = CpuStopwatch()
    with pytest.raises(InvalidRequest, match="larger than 32 MiB"):
        read("livecodebench", {"test": bomb})
    assert watch.seconds < 5


#: Besides those in `tests/data/code/datasets.jsonl`.
INVALID = [
    ("code_contests", {"test": "[" * 100_000}, "test: not valid JSON"),
    ("code_contests", {"test": PAIRS * 501}, "1002 tests; use the `first` 1000"),
    ("code_contests", {"test": PAIRS, "time_limit": math.inf}, "time_limit"),
    ("code_contests", {"test": PAIRS, "time_limit": "2 seconds" + " " * 10**6}, "time_limit"),
    ("livecodebench", {"test": encoded("{}" * 999)[:-4]}, "truncated"),
    ("livecodebench", {"test": encoded("no JSON")}, "test: not valid JSON"),
    ("livecodebench", {"test": encoded("[]")}, "`input_output` is missing"),
    # For such an index of its memo, Python's own unpickler takes gigabytes.
    ("livecodebench", {"test": compressed(b"\x80\x02X\2\0\0\0{}r\xff\xff\xff\x7f.")}, "missing"),
]


@pytest.mark.parametrize(
    ("dataset", "row", "detail"),
    [*(each.values() for each in rows("datasets", "invalid").values()), *INVALID],
)
def test_a_row_that_cannot_be_read(dataset: str, row: dict, detail: str):
    with pytest.raises(InvalidRequest, match=r"^tests\.row: ") as caught:
        read(dataset, row)
    assert detail in str(caught.value)
    assert len(str(caught.value)) < 300


# Over HTTP


def dataset(name: str, row: dict, **fields: object) -> dict[str, object]:
    return {"kind": "dataset", "dataset": name, "row": row, **fields}


@pytest.mark.parametrize("each", sample(rows("datasets", "scored")))
def test_a_program_is_scored_on_a_row(service: Service, each):
    check_verdicts(service, each)


@pytest.mark.parametrize("each", sample(rows("datasets", "refused")))
def test_tests_that_cannot_be_trusted_are_invalid(service: Service, each):
    response = service.post("    return sqrt(x)", each["tests"])
    check_problem(response, "invalid", each["detail"])


@pytest.mark.parametrize("each", sample(rows("datasets", "values of apps")))
def test_values_of_apps(service: Service, each):
    """A list of one item may be the item; and JSON has turned keys that are integers into texts."""
    io = {"fn_name": "f", "inputs": each["inputs"], "outputs": each["outputs"]}
    program = f"def f(x):\n    return {each['returned']}"
    for row in (io, {"input_output": json.dumps(io)}):
        score = service.score(program, dataset("auto", row))
        assert score["score"] == each["passed"] / len(io["inputs"]), score["verdicts"]


@pytest.mark.slow
def test_the_time_limit_of_a_row_is_used_if_the_request_gives_none(service: Service):
    tests = dataset("code_contests", {"test": PAIRS[:1], "time_limit": 0.2})
    busy = "import time\nwhile time.process_time() < 0.8: pass\nprint(3)"
    body = {"revision": busy, "tests": tests}
    score = service.client.post("/score", json=body).json()
    assert score["verdicts"][0]["verdict"] == "time_limit"
    body["limits"] = {"cpu_s": 5}
    assert service.client.post("/score", json=body).json()["score"] == 1.0
    tests["row"]["time_limit"] = 1000
    check_problem(
        service.client.post("/score", json={"revision": busy, "tests": tests}),
        "invalid",
        "tests.row: time_limit: as limits.cpu_s: this service allows at most 60 (got 1000)",
    )


def test_a_package_that_only_the_program_imports_is_named_and_counted(service: Service):
    row = rows("datasets", "sources")["HumanEval"]["row"]
    before = metric(service.client, "rewardfleet_missing_modules_total")
    (verdict,) = service.score("    import absent_.x", dataset("auto", row))["verdicts"]
    assert (verdict["verdict"], verdict["missing_module"]) == ("runtime_error", "absent_")
    assert metric(service.client, "rewardfleet_missing_modules_total") == before + 1


@pytest.mark.slow
def test_integers_may_have_50_000_digits_in_every_kind_of_row(service: Service):
    power, digits = "3 ** 100_000", str(3**100_000)
    echo = "def f(x):\n    return x"
    pair = {"inputs": [digits], "outputs": [digits], "fn_name": "f"}
    for program, tests in [
        (f"print({power} + int(input()))", stdio(("0", digits))),
        ("print(int(input()) + 1 - 1)", stdio((digits, digits))),
        (echo, asserts(f"assert f({digits}) == {power}")),
        (echo, asserts(f"assert f({digits}) == {digits}")),
        (echo, asserts(f"x = str(f({power}))\nassert x == str({power})")),
        (echo, functional("f", ([3**100_000], 3**100_000))),
        (echo, dataset("auto", {"input_output": json.dumps(pair)})),
        (f"def f(x):\n    return {digits}", functional("f", ([1], 3**100_000))),
    ]:
        assert service.score(program, tests)["score"] == 1, tests["kind"]
    verdicts = service.score("print(10 ** 50_000)", stdio(("", "")))["verdicts"]
    assert "Exceeds the limit (50000 digits)" in verdicts[0]["stderr"]
    longer = {"inputs": [f"{digits}{digits}"], "outputs": ["1"], "fn_name": "f"}
    tests = dataset("livecodebench", {"test": {"input_output": longer}})
    check_problem(service.post(echo, tests), "invalid", "Exceeds the limit (50000 digits)")
    deep = f'{{"revision": "", "tests": [{digits}, {"[" * 100_000}'
    response = service.client.post("/score", content=deep, headers=JSON)
    check_problem(response, "invalid", "not valid JSON")


@pytest.mark.parametrize("each", sample(rows("rows")))
def test_rows_of_functions_classes_predictions_and_codeforces(service: Service, each):
    """Right answers have 1, wrong ones less, and what is not supported is refused."""
    response = service.post(each["program"], each["tests"])
    assert response.json().get("score", response.status_code) == each["is"], response.text
