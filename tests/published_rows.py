"""Score published rows of data sets: python tests/published_rows.py FOLDER [--dataset NAME]

FOLDER has the rows of a data set as NAME.jsonl or NAME.jsonl.gz, one row a line, as published. They
are not part of this repository. tests/data/rows has rows that were written from the descriptions of
data sets of which no published row, or none with a solution, could be had.

A service is started, and for each row it scores: the row's own solution, its completion as
published (a body, for HumanEval), `x = 1`, and a program whose functions return an object that
equals everything. With `--write`, the table in docs/code-service.md is updated.
"""

import argparse
import ast
import gzip
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rewardfleet.text.python import parse_source
from rewardfleet.wire.code import AssertTests, DatasetTests, PlainTests, fields_of_tests
from rewardfleet.wire.errors import InvalidRequest
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.datasets.rows import read_row
from rewardfleet_server.code.running.packages import last_error
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.code.tests.completion import complete, take_prompt
from rewardfleet_server.testing import serving

ROOT = Path(__file__).parent.parent
DESCRIBED = ROOT / "tests" / "data" / "rows"
PAGE = ROOT / "docs" / "code-service.md"

Row = dict[str, Any]
#: Data sets by the names of their files, as the table names them.
DATASETS: dict[str, str] = json.loads((DESCRIBED / "names.json").read_text())
#: Rows as trainers pass them on: the data set, the route, and the body for a text and a row.
TRAINERS: dict[str, tuple[str, str, Callable[[str, Row], Row]]] = {
    "TRL": ("humaneval", "/score", lambda text, row: _score(text, fields_of_tests(row)["tests"])),
    "verl": (
        "leetcode",
        "/score",
        lambda text, row: _score(text, fields_of_tests(_functional(row))["tests"]),
    ),
    "OpenRLHF": (
        "humaneval",
        "/get_reward",
        lambda text, row: {"query": [f"Q\n{text}"], "prompts": ["Q\n"], "labels": [_json(row)]},
    ),
    "slime": (
        "mbpp",
        "/slime",
        lambda text, row: {"prompt": "Q", "response": text, "label": _json(row)},
    ),
}
#: An object that equals everything, and answers every question.
EQUAL = """
class Equal:
    def _true(self, *args):
        return True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _true
    def __hash__(self):
        return 0
    def __len__(self):
        return 1
    def __iter__(self):
        return iter([self])
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self
    def _self(self, *args, **named):
        return self
    __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __round__ = _self
    __abs__ = __neg__ = __and__ = __or__ = _self
"""
#: More CPU time than by default, as some solutions need it on slow machines.
LIMITS = {"cpu_s": 30, "wall_s": 60}
CALLERS = 4


def _json(row: Row) -> str:
    return json.dumps(row)


def _functional(row: Row) -> str:
    script = f"{row['prompt']}\n{row['test']}\n\ncheck({row['entry_point']})"
    return json.dumps({"functional": script})


def _dataset(row: Row) -> Row:
    return {"kind": "dataset", "dataset": "auto", "row": row}


def _score(text: str, tests: object) -> Row:
    return {"revision": text, "tests": tests, "limits": LIMITS}


@dataclass
class Line:
    """A line of the table: numbers of rows."""

    name: str
    rows: int = 0
    refused: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        verdicts = self.counts["verdicts"]
        jail = f"{100 * self.counts['jail'] / verdicts:.1f} %" if verdicts else "-"
        kinds = ("CPython", "reference", "completion", "x", "equal")
        shares = [
            f"{self.counts[kind]} of {tried}" if (tried := self.counts[f"{kind} tried"]) else "-"
            for kind in kinds
        ]
        return [self.name, str(self.rows), str(self.refused), *shares, jail]


class Rows:
    """Scores rows by a running service.

    Args:
        client: Leads to the service.
    """

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def line(self, name: str, rows: list[Row], trainer: str = "") -> Line:
        line = Line(name)
        with ThreadPoolExecutor(CALLERS) as pool:
            for index, result in enumerate(pool.map(lambda row: self._row(row, trainer), rows)):
                line.rows += 1
                counts, refused, failure = result
                line.counts.update(counts)
                line.refused += bool(refused)
                if refused or failure:
                    line.failures.append(f"{name} {_id(rows[index], index)}: {refused or failure}")
        return line

    def _row(self, row: Row, trainer: str) -> tuple[Counter[str], str, str]:
        """Return counts, why the row is refused, and why its solution fails."""
        counts: Counter[str] = Counter()
        try:
            tests, program, completion = _read(row)
        except InvalidRequest as error:
            return counts, error.detail, ""
        problem, answer = self._answer("x = 1", row, trainer)
        if problem:
            return counts, problem, ""
        counts.update({"x tried": 1, "x": _passed(answer)})
        failure = ""
        if program is not None:
            counts.update({"CPython tried": 0})
            if (accepted := self._cpython(tests, program)) is not None:
                counts.update({"CPython tried": 1, "CPython": int(accepted)})
            problem, answer = self._answer(f"```python\n{program}\n```", row, trainer)
            counts.update({"reference tried": 1, "reference": _passed(answer)})
            verdicts = answer.get("verdicts", [])
            counts.update({"verdicts": len(verdicts), "jail": _by_jail(verdicts)})
            if not _passed(answer):
                of_python = "" if accepted is None else f" (CPython accepts: {accepted})"
                failure = (problem or _why(answer)) + of_python
        if completion is not None and completion != program:
            problem, answer = self._answer(completion, row, trainer)
            counts.update({"completion tried": 1, "completion": _passed(answer)})
        equal = _equal_program(tests, program)
        if equal is not None:
            problem, answer = self._answer(equal, row, trainer)
            counts.update({"equal tried": 1, "equal": _passed(answer)})
            if _passed(answer):
                failure += " EQUAL ACCEPTED"
        return counts, "", failure

    def _answer(self, text: str, row: Row, trainer: str) -> tuple[str, Row]:
        """Return why a request failed, or ""; and the score."""
        if trainer:
            _, path, body = TRAINERS[trainer]
            response = self._client.post(path, json=body(text, row))
        else:
            response = self._client.post("/score", json=_score(text, _dataset(row)))
        answer = response.json()
        if response.status_code != 200:
            return f"{response.status_code} {answer.get('detail')}", {}
        if isinstance(answer, int | float):
            return "", {"score": answer}
        return "", answer if "rewards" not in answer else {"score": answer["rewards"][0]}

    def _cpython(self, tests: PlainTests, program: str) -> bool | None:
        """Return whether plain Python accepts a program: it and all asserts, as one script."""
        if not isinstance(tests, AssertTests):
            return None
        prompt, plain = take_prompt(tests)
        script = [plain.setup, complete(program, prompt), *tests.cases, _call(tests)]
        if any("from solution import" in case for case in tests.cases):
            script.insert(0, "import sys\nsys.modules['solution'] = sys.modules['__main__']")
        cases = [{"stdin": "", "stdout": ""}]
        item = _score("\n".join(script), {"kind": "stdio", "cases": cases})
        verdict = self._client.post("/score", json=item).json()["verdicts"][0]["verdict"]
        return verdict in {"accepted", "wrong_answer"}  # whatever it prints


def _call(tests: AssertTests) -> str:
    """Return what calls the tests in a script."""
    calls = []
    for case in tests.cases:
        for node in parse_source(case).body:
            match node:
                case ast.FunctionDef(name="check") if tests.entry_point:
                    calls.append(f"check({tests.entry_point})")
                case ast.FunctionDef(name=name, args=args) if name.startswith("test"):
                    calls += [] if args.args else [f"{name}()"]
                case ast.ClassDef(bases=[_, *_]) if "unittest" in case:
                    return "import unittest\nunittest.main()"
    return "\n".join(calls)


def _read(row: Row) -> tuple[PlainTests, str | None, str | None]:
    """Return the tests of a row, its solution as a complete program, and as it was published."""
    tests = DatasetTests.model_validate(_dataset(row))
    try:
        found = read_row(tests.model_copy(update={"check_reference": True}))
    except InvalidRequest:
        found = read_row(tests)
    program = found.solution
    if program is None:
        return found.tests, None, None
    prompt, _ = take_prompt(found.tests)
    return found.tests, complete(program, prompt), row.get("canonical_solution")


def _equal_program(tests: PlainTests, program: str | None) -> str | None:
    """Return a program with the functions and classes of a solution, which return `Equal()`."""
    try:
        body = parse_source(program or "").body
    except SyntaxError:
        return None
    names = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    classes = [each for each in body if isinstance(each, ast.ClassDef)]
    if isinstance(tests, AssertTests) and not names and not classes:
        names = [tests.entry_point] if tests.entry_point.isidentifier() else []
    elif not isinstance(tests, AssertTests) and hasattr(tests, "fn_name"):
        names = [tests.fn_name]
    if not names and not classes:
        return None
    lines = [EQUAL, *(f"def {name}(*args, **named): return Equal()" for name in names)]
    for each in classes:
        methods = [node.name for node in each.body if isinstance(node, ast.FunctionDef)]
        methods = [name for name in methods if name != "__init__"]
        rows = [f"    def {name}(self, *args, **named): return Equal()" for name in methods]
        start = ["    def __init__(self, *args, **named): pass"]
        lines += [f"class {each.name}:", *start, *rows]
    return "\n".join(lines)


def _passed(answer: Mapping[str, Any]) -> int:
    return int(answer.get("score") == 1.0)


def _by_jail(verdicts: list[Row]) -> int:
    return sum(verdict["verdict_by"] == "jail" for verdict in verdicts)


def _why(answer: Mapping[str, Any]) -> str:
    for number, verdict in enumerate(answer.get("verdicts", []), 1):
        if verdict["verdict"] not in {"accepted", "left_out"}:
            error = last_error(verdict["stderr"])
            return f"test {number}: {verdict['verdict']} {error} {answer.get('suspicions')}"
    return str(answer)[:100]


def _id(row: Row, index: int) -> str:
    return str(row.get("task_id") or row.get("question_id") or row.get("id") or index)


# Files


def _rows_of(folder: Path, name: str) -> Iterator[Row]:
    for suffix, opened in ((".jsonl", Path.open), (".jsonl.gz", gzip.open)):
        file = folder / f"{name}{suffix}"
        if file.exists():
            with opened(file, "rt") as lines:
                yield from (json.loads(line) for line in lines if line.strip())
            return


@contextmanager
def _service(packages: str) -> Iterator[httpx.Client]:
    settings: dict[str, Any] = {"cache_mb": 0, "cache": None}
    if packages:
        settings["packages"] = packages
    app = create_app(CodeSettings(**settings))
    with serving(app) as url, httpx.Client(base_url=url, timeout=300) as client:
        yield client


def _write(lines: list[Line]) -> None:
    page = PAGE.read_text()
    for line in lines:
        text = f"| {' | '.join(line.cells())} |"
        old = [each for each in page.split("\n") if each.startswith(f"| {line.name} |")]
        old = [each for each in old if each.count("|") == text.count("|")]
        if not old:
            sys.exit(f"{PAGE}: the table has no line for {line.name}")
        page = page.replace(old[-1], text)
    PAGE.write_text(page)


def main() -> None:
    """Print the table, and the rows that are refused or whose solution fails."""
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__ or ""))
    parser.add_argument("folder", type=Path, help="has the rows, outside of the repository")
    parser.add_argument("--dataset", action="append", help="only this one; may be repeated")
    parser.add_argument("--limit", type=int, help="only the first rows of each data set")
    parser.add_argument("--packages", default="", help="for programs, as of `serve code`")
    parser.add_argument("--write", action="store_true", help="update docs/code-service.md")
    given = parser.parse_args()
    lines = []
    with _service(given.packages) as client:
        scored = Rows(client)
        passed_on = {each: f"{each}: {DATASETS[name]}" for each, (name, *_) in TRAINERS.items()}
        for name, label in {**DATASETS, **passed_on}.items():
            if given.dataset and name not in given.dataset:
                continue
            trainer = name if name in TRAINERS else ""
            file = TRAINERS[name][0] if trainer else name
            published = list(_rows_of(given.folder, file))
            described = [] if trainer else list(_rows_of(DESCRIBED, file))
            of_description = "from its description" if published else "no published row tried"
            for suffix, rows in (("", published), (f", {of_description}", described)):
                if rows:
                    line = scored.line(f"{label}{suffix}", rows[: given.limit], trainer)
                    lines.append(line)
                    print("\n".join(line.failures), file=sys.stderr)
                    print(f"| {' | '.join(line.cells())} |", flush=True)
    if given.write:
        _write(lines)


if __name__ == "__main__":
    main()
