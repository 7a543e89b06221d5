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

from ...measure import CpuStopwatch
from ..video.test_bad_input import check_problem
from .conftest import Service, rows, sample, served_code

PAIRS = [{"input": {"stdin": "1 2"}, "output": {"stdout": "3"}}] * 2
IO = {"inputs": ["1 2\n"], "outputs": ["3\n"], "fn_name": None}
FN = {"inputs": ['[1, 2]\n"x"'], "outputs": ['{"a": [3]}'], "fn_name": "f"}

EVALPLUS = """import numpy as np
from math import inf

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    return False

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

inputs = [[1, (2,)], [3, {4}]]
results = [0.3, (inf, [None])]
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion(f(*inp), exp, 0)
"""


def encoded(value: object, protocol: int = 4) -> str:
    """Encode a value as LiveCodeBench does."""
    return compressed(pickle.dumps(value, protocol))


def compressed(pickled: bytes) -> str:
    return base64.b64encode(zlib.compress(pickled)).decode()


def read(dataset: str, row: dict, first: int | None = None):
    return read_row(DatasetTests(kind="dataset", dataset=dataset, row=row, first=first))[0]


@pytest.mark.parametrize(
    ("row", "cases"),
    [
        ({"selected_uts": PAIRS}, 2),
        ({"all_uts": json.dumps(PAIRS), "labels": '{"difficulty": "A"}'}, 2),
        ({"test": PAIRS}, 2),
        (
            {
                "public_tests": {"input": ["1 2"], "output": ["3"]},
                "private_tests": {"input": [], "output": []},
                "generated_tests": {"input": ["1 2"] * 3, "output": ["3"] * 3},
            },
            4,
        ),
    ],
)
def test_code_contests_rows(row: dict, cases: int):
    tests = read("code_contests", row)
    assert [(case.stdin, case.stdout) for case in tests.cases] == [("1 2", "3")] * cases
    assert (tests.checker, tests.setup) == ("float", "")
    assert len(read("code_contests", row, first=1).cases) == 1


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_livecodebench_compressed_tests(protocol: int):
    text = json.dumps({"input_output": json.dumps({**IO, "inputs": ["\u00fc \U0001f642"]})})
    tests = read("livecodebench", {"id": 1, "labels": "{}", "test": encoded(text, protocol)})
    assert [(case.stdin, case.stdout) for case in tests.cases] == [("\u00fc \U0001f642", "3\n")]


@pytest.mark.parametrize(
    "row",
    [
        {"test": json.dumps({"input_output": json.dumps(FN)})},
        {"test": {"input_output": FN}},
        {"test": encoded({"input_output": json.dumps(FN)})},  # SandboxFusion
        {
            "public_test_cases": json.dumps([]),
            "private_test_cases": encoded(
                json.dumps([{"input": FN["inputs"][0], "output": FN["outputs"][0]}])
            ),
            "metadata": '{"func_name": "f"}',
        },
    ],
)
def test_livecodebench_functional_tests(row: dict):
    tests = read("livecodebench", row)
    assert tests.fn_name == "f"
    assert [(case.args, case.expected) for case in tests.cases] == [([[1, 2], "x"], {"a": [3]})]


def test_livecodebench_public_tests_come_first():
    row = {
        "public_test_cases": '[{"input": "a", "output": "b", "testtype": "stdin"}]',
        "private_test_cases": encoded('[{"input": "c", "output": "d", "testtype": "stdin"}]'),
        "metadata": "{}",
    }
    assert [case.stdin for case in read("livecodebench", row).cases] == ["a", "c"]


def test_mbppplus_values_are_compared_outside_the_sandbox():
    tests = read("mbppplus", {"test": EVALPLUS, "test_list": ["assert f(1) == 1"]})
    assert tests.cases == [
        "assert f(*[1, (2,)]) == 0.3",
        "assert f(*[3, {4}]) == (inf, [None])",
    ]
    assert (tests.single_run, tests.tolerance) == (True, 1e-6)


def test_rows_of_mbppplus_that_forget_to_assert_are_compared():
    start, end = EVALPLUS.index("def assertion"), EVALPLUS.index("inputs =")
    forgetful = """def assertion(out, exp, atol):
    if isinstance(out, bool):
        exact_match = out == exp
    else:
        exact_match = exp == (out is not None)

"""
    cases = read("mbppplus", {"test": EVALPLUS[:start] + forgetful + EVALPLUS[end:]}).cases
    result = "assert (out if isinstance(out, bool) else out is not None) == 0.3"
    assert cases[0] == f"out = f(*[1, (2,)])\n{result}"


@pytest.mark.parametrize(
    "script",
    [
        EVALPLUS.replace("out == exp", "set(out) == set(exp)"),
        EVALPLUS.replace("exp, 0)", "ref_func(*inp), 0)"),
        EVALPLUS.replace("exp, 0)", "exp, 1)"),
        EVALPLUS.replace("f(*inp)", "set(f(*inp))"),
        EVALPLUS + "\nassert f(1)",
        "def check(f):\n    assert f(1)\ncheck(f)",
    ],
)
def test_mbppplus_scripts_of_another_form_are_one_case(script: str):
    assert read("mbppplus", {"test": script}).cases == [script]


HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from math import sqrt\n\n\ndef f(x):\n    """Return the root."""\n',
    "entry_point": "f",
    "canonical_solution": "    return sqrt(x)\n",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n",
}
STARTER = "class Solution:\n    def f(self, x: int) -> int:\n        "


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


def test_the_setup_of_mbpp_runs_after_the_program_if_it_needs_that():
    row = {"test_setup_code": "root = Node(1)", "test_list": ["assert f(root) == 1"]}
    tests = read("mbppplus", row)
    assert tests.cases == ["root = Node(1)\nassert f(root) == 1"]
    tests = read("mbppplus", {**row, "test_setup_code": "import math"})
    assert tests.cases == row["test_list"]
    assert "import math" in tests.setup


FUNCTIONAL = {"input": "1", "output": "2", "testtype": "functional"}


@pytest.mark.parametrize(
    "row",
    [
        {"input_output": {"inputs": [[1]], "outputs": [2], "fn_name": "f"}},
        {"public_test_cases": json.dumps([FUNCTIONAL]), "metadata": '{"func_name": "f"}'},
        {"tests": json.dumps([{**FUNCTIONAL, "metadata": {"func_name": "f"}}])},  # DeepCoder
    ],
)
def test_functions_with_starter_code(row: dict):
    tests = read("auto", {**row, "starter_code": STARTER})
    assert (tests.fn_name, tests.cases[0].args, tests.cases[0].expected) == ("f", [1], 2)
    assert tests.prompt == STARTER


@pytest.mark.parametrize(
    "columns",
    [
        {"solutions": '["print 3", "print(3)", "print(4)"]'},
        {"solutions": ["```python\nprint(3)```"]},
        {"solutions": {"language": [2, 1, 3], "solution": ["x", "y", "print(3)"]}},
        {"correct_submissions": [{"language": "cpp", "code": "x"}, {"code": "print(3)"}]},
        {"solution": "print(3)", "solutions": ["x"]},
        {"solutions": "print(3)"},
    ],
)
def test_the_first_solution_in_python_is_checked(columns: dict):
    row = {**IO, **columns}
    tests = DatasetTests(kind="dataset", dataset="auto", row=row, check_reference=True)
    assert read_row(tests).solution.strip() == "print(3)"


def test_mbppplus_lists_of_asserts():
    row = {"selected_uts": ["assert f(1) == 2", "assert f(2)"], "test_imports": ["import math"]}
    tests = read("mbppplus", row)
    assert (tests.cases, tests.single_run) == (row["selected_uts"], False)
    assert "import math" in tests.setup
    text = read("mbppplus", {"test": "assert f(1) == 2\nassert(f(2))\n"})
    assert (text.cases, text.single_run) == (["assert f(1) == 2", "assert f(2)"], True)


@pytest.mark.parametrize(
    ("io", "cases"),
    [
        ({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"}, [([1, 2], [3])]),
        ({"inputs": [[1]], "outputs": [[0, 1]], "fn_name": "f"}, [([1], [0, 1])]),
        ({"inputs": [["x"]], "outputs": ["x"], "fn_name": "f"}, [(["x"], "x")]),
    ],
)
def test_apps_functional_tests(io: dict, cases: list):
    tests = read("apps", {"input_output": json.dumps(io)})
    assert [(case.args, case.expected) for case in tests.cases] == cases


def test_apps_rows_of_other_forms():
    lines = {"inputs": [["1", "2"]], "outputs": [["3"]]}
    (case,) = read("apps", {"input_output": lines}).cases
    assert (case.stdin, case.stdout) == ("1\n2", "3")
    assert read("apps", {"selected_uts": ["assert f(1) == 2"]}).cases == ["assert f(1) == 2"]
    assert len(read("apps", {"all_uts": json.dumps(PAIRS)}).cases) == 2


@pytest.mark.parametrize(
    ("time_limit", "seconds"),
    [
        (2, 2.0),
        (0.5, 0.5),
        (math.nan, None),
        (None, None),
        ("2.0 seconds", 2.0),
        ("1 second(s)", 1.0),
        (" 1.5 Sec. ", 1.5),
        ("2s", 2.0),
        (".5", 0.5),
        ("50 ms", 0.05),
        ("1000ms", 1.0),
        ("2 minutes", 120.0),
        ("0.5 - 2 seconds", 2.0),
        ("", None),
        ({"seconds": 1, "nanos": 500_000_000}, 1.5),
        ('{"seconds": 2, "nanos": 0}', 2.0),
        ({"seconds": 0, "nanos": 0}, None),
        ({"seconds": math.nan}, None),
    ],
)
def test_time_limits(time_limit: object, seconds: float | None):
    row = {"selected_uts": PAIRS, "time_limit": time_limit}
    tests = DatasetTests(kind="dataset", dataset="code_contests", row=row)
    assert read_row(tests)[1] == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("time_limit", "seconds"), [(2000, 2.0), ("2000", 2.0), ("2 seconds", 2.0), ("500 ms", 0.5)]
)
@pytest.mark.parametrize("checker", ["int main() {}", None])
def test_codecontests_plus_has_milliseconds(checker, time_limit, seconds):
    cases = [{"input": "1", "output": "1"}]
    row = {"test_cases": cases, "checker": checker, "time_limit": time_limit}
    for name in ("auto", "code_contests"):
        read_again = read_row(DatasetTests(kind="dataset", dataset=name, row=row))
        assert read_again[1] == seconds


# Rows that cannot be read


class Evil:
    def __reduce__(self):
        return print, ("evil",)


TEXT = pickle.dumps("{}", 2)

HOSTILE = {
    "call": pickle.dumps(Evil()),
    "global": b"cos\nsystem\n.",
    "stack-global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "list": pickle.dumps(["{}"]),
    "bytes": pickle.dumps(b"{}"),
    "dict": pickle.dumps({"input_output": IO}),
    "number": pickle.dumps(7),
    "two-texts": b"X\2\0\0\0{}X\2\0\0\0[].",
    "popped": b"X\2\0\0\0{}0N.",
    "persistent": b"Pid\n.",
    "extension": b"\x82\x01.",
    "instance": b"(ios\nsystem\n.",
    "buffers": b"\x80\x05\x97.",
    "no-stop": TEXT[:-1],
    "nothing": b"",
    "stop-only": b".",
    "junk": b"\xff\xfe\xfd",
    "length-that-lies": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f{}.",
    "frame-that-lies": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f\x8c\x02{}\x94",
    "long-number": b"\x8b\xff\xff\xff\x7f.",
    "decimal-number": b"I" + b"9" * 100_000 + b"\n.",
}


@pytest.mark.parametrize("pickled", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_pickle_of_anything_but_a_string_is_rejected(pickled: bytes, capsys):
    with pytest.raises(InvalidRequest, match="pickle"):
        read("livecodebench", {"test": compressed(pickled)})
    assert capsys.readouterr().out == ""


def test_a_huge_memo_index_takes_no_memory():
    """Python's own unpickler allocates a table of that size."""
    pickled = b"\x80\x02X\2\0\0\0{}r\xff\xff\xff\x7f."
    with pytest.raises(InvalidRequest, match="`input_output` is missing"):
        read("livecodebench", {"test": compressed(pickled)})


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


@pytest.fixture(scope="module")
def service():
    with served_code(workers=1) as service:
        yield service


def dataset(name: str, row: dict, **fields: object) -> dict[str, object]:
    return {"kind": "dataset", "dataset": name, "row": row, **fields}


SOLUTION = """class Solution:
    def permutations(self, xs: List[int], k: int) -> int:
        return len(list(permutations(xs, k)))
"""


@pytest.mark.parametrize(
    ("program", "score"),
    [
        ("pass", 0.0),  # a function that the row imports does not count
        ("gcd = gcd", 0.0),
        ("def gcd(a, b): return 1", 0.0),
        ("from math import gcd", 1.0),
        ("gcd2 = gcd\ndef gcd(a, b): return gcd2(a, b)", 1.0),
        ("class Solution:\n  def gcd(self, a, b): return gcd(a, b)", 1.0),
    ],
)
def test_the_program_itself_must_define_the_function(service: Service, program: str, score: float):
    row = {"input_output": {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}}
    assert service.score(program, dataset("apps", row))["score"] == score


def test_a_method_of_livecodebench_may_use_the_imports_of_the_dataset(service: Service):
    """Here it has the name of an imported function."""
    io = {"inputs": ["[1, 2, 3]\n2", "[1]\n1"], "outputs": ["6", "2"], "fn_name": "permutations"}
    tests = dataset(
        "livecodebench", {"test": encoded(json.dumps({"input_output": json.dumps(io)}))}
    )
    score = service.score(f"```python\n{SOLUTION}```", tests)
    assert (score["pass_rate"], score["code"]) == (0.5, SOLUTION)
    verdicts = [(each["verdict"], each["verdict_by"]) for each in score["verdicts"]]
    assert verdicts == [("accepted", "service"), ("wrong_answer", "service")]


@pytest.mark.parametrize("each", sample(rows("datasets", "values of apps")))
def test_values_of_apps(service: Service, each):
    """A list of one item may be the item; and JSON has turned keys that are integers into texts."""
    io = {"fn_name": "f", "inputs": each["inputs"], "outputs": each["outputs"]}
    program = f"def f(x):\n    return {each['returned']}"
    for row in (io, {"input_output": json.dumps(io)}):
        score = service.score(program, dataset("auto", row))
        assert score["score"] == each["passed"] / len(io["inputs"]), score["verdicts"]


def test_keys_of_livecodebench_stay_texts(service: Service):
    """Its runner does not change them."""
    test = {"input": '{"1": 5}', "output": '{"1": 5}', "testtype": "functional"}
    row = {"public_test_cases": [test], "metadata": {"func_name": "f"}}
    tests = dataset("livecodebench", row)
    assert service.score("def f(x):\n    return {'1': x['1']}", tests)["score"] == 1.0


def test_livecodebench_over_http(service: Service):
    tests = dataset("livecodebench", {"test": {"input_output": IO}})
    assert service.score("print(reduce(add, map(int, input().split())))", tests)["score"] == 1.0


def test_code_contests_over_http(service: Service):
    tests = dataset("code_contests", {"selected_uts": PAIRS}, first=1)
    assert len(service.score("print(3)", tests)["verdicts"]) == 1


def test_mbppplus_over_http(service: Service):
    """With values within the tolerance, values that equal everything, and a script."""
    tests = dataset("mbppplus", {"test": EVALPLUS})
    right = "def f(x, y): return 0.1 + 0.2 if x == 1 else (float('inf'), [None])"
    score = service.score(right, tests)
    assert score["pass_rate"] == 1.0
    equal = "class E(float):\n    def __eq__(self, o): return True\ndef f(x, y): return E(7)"
    assert service.verdict(equal, tests) == "wrong_answer"
    row = {"test_list": ["assert f() == 1", "assert f() in (1,)"]}
    anything = "class E:\n  __eq__ = lambda *_: True\ndef f(): return E()"
    tests = dataset("mbppplus", row)
    assert service.score(anything, tests)["pass_rate"] == 0.0
    script = dataset("mbppplus", {"test": "def check(f):\n    assert f(1) == 2\ncheck(f)"})
    (verdict,) = service.score("def f(x): return x + 1", script)["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "service")
    assert service.verdict("def f(x): return x", script) == "wrong_answer"


def test_scripts_of_code_r1_have_the_imports_and_classes_of_its_runner(service: Service):
    lists = "assert is_same_list(Solution().f(list_node([1, 2])), list_node([2, 1]))"
    tree = "tree_node([1, 3, 2, None, None, 4])"
    trees = f"assert is_same_tree(Solution().g(tree_node([1, 2, 3, 4])), {tree})"
    program = """class Solution:
    def f(self, head: Optional[ListNode]) -> Optional[ListNode]:
        return ListNode(head.next.val, ListNode(head.val))
    def g(self, root: TreeNode):
        root.left, root.right = root.right, root.left
        return root
"""
    for test, score in ((lists, 1.0), (trees, 1.0), (trees.replace("3, 2", "2, 3"), 0.0)):
        tests = dataset("auto", {"ground_truth": {"functional": test}})
        assert service.score(program, tests)["score"] == score


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


def test_a_time_limit_of_nan_is_none(service: Service):
    """pandas and `requests` send NaN for a missing value."""
    body = {
        "revision": "print(3)",
        "tests": dataset("code_contests", {"test": PAIRS, "time_limit": math.nan}),
    }
    headers = {"content-type": "application/json"}
    response = service.client.post("/score", content=json.dumps(body), headers=headers)
    assert response.json()["score"] == 1.0


def test_a_row_that_cannot_be_read_is_a_clear_problem(service: Service):
    tests = dataset("livecodebench", {"test": compressed(HOSTILE["call"])})
    check_problem(service.post("x", tests), "invalid", "not exactly one string")


# References


def checked(**columns: object) -> dict[str, object]:
    return dataset("auto", {**HUMANEVAL, **columns}, check_reference=True)


def test_a_row_whose_solution_passes_is_scored(service: Service):
    for revision, score in (("    return sqrt(x)", 1.0), ("    return 1", 0.0)):
        assert service.score(revision, checked())["score"] == score


@pytest.mark.parametrize(
    ("solution", "reason"),
    [
        ("    return x", "its own solution fails test 1: wrong answer"),
        ("    return y", "fails test 1: runtime error: NameError: name 'y'"),
        ("    return (", "fails test 1: compile error: SyntaxError"),
        ("    import absent_\n    return 2", "its solution imports 'absent_', which"),
        ("", "check_reference: the row has no solution in Python"),
    ],
)
def test_tests_that_reject_the_solution_of_their_row_are_invalid(service, solution, reason):
    response = service.post("    return sqrt(x)", checked(canonical_solution=solution))
    check_problem(response, "invalid", reason)


def test_a_package_that_only_the_solution_imports_must_be_installed(service: Service):
    """Otherwise no right program would pass."""
    tests = dataset("auto", {**HUMANEVAL, "canonical_solution": "    from absent_.a import b"})
    response = service.post("    return sqrt(x)", tests)
    check_problem(response, "invalid", "its solution imports 'absent_', which programs cannot")


def test_a_package_that_only_the_program_imports_is_named_and_counted(service: Service):
    (verdict,) = service.score("    import absent_.x", dataset("auto", HUMANEVAL))["verdicts"]
    assert (verdict["verdict"], verdict["missing_module"]) == ("runtime_error", "absent_")
    assert "rewardfleet_missing_modules_total 1.0" in service.client.get("/metrics").text
