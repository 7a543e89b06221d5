"""Draw mutations of source lines with a fixed seed, and see whether the tests find them.

    python tests/mutations.py --list
    python tests/mutations.py --out mutations.jsonl    (resumes)

Each mutation is applied to a clone of the last commit. First run the test files that import the
mutated module, then those of its package, then all of `make test`, until a test fails.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = (Path("clients/rewardfleet"), Path("services/rewardfleet_server"))
SEED = 29
#: Seconds for a part of the tests. A mutation that makes them hang is found.
PART_SECONDS = 1200

#: Run in environments of their own, or by `make demo`.
ELSEWHERE = re.compile(r"/engine_\w+\.py|robometer|demo\.py")
#: Mutations that no test can observe, as (file, line, mutated line), and why.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "services/rewardfleet_server/tools/scorer.py",
        "_SHORT_ANSWER = 64 * 1024",
        "_SHORT_ANSWER = 0 * 1024",
    ): "every answer is scored in a thread: the scores are the same",
}

#: Tests of packages of the client that are in the folders of services.
FOLDERS = {"episodes": "server/episode", "tool_use": "server/tools", "wire": "server"}

OPPOSITES = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """A change of one line of a file.

    Attributes:
        kind: What is changed: comparison, constant, branch, return value, deleted call.
        file: The file, relative to the root.
        line: Number of the line, from 1.
        before: The line.
        after: What replaces it.
    """

    kind: str
    file: str
    line: int
    before: str
    after: str

    @property
    def package(self) -> str:
        """The package below `rewardfleet` or `rewardfleet_server`, or one of these."""
        return "/".join(Path(self.file).parts[1:-1][:2])

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.file, self.before.strip(), self.after.strip())


def main() -> int:
    """List or try the mutations; return 1 if fewer than 26 of 30 are found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the mutations only")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"), help="results")
    parser.add_argument("--tests-from", type=Path, help="a checkout whose tests are used instead")
    arguments = parser.parse_args()
    drawn = draw(arguments.count)
    if arguments.list:
        for number, each in enumerate(drawn):
            print(f"{number:>2} {each.kind:<13}{each.file}:{each.line}")
            print(f"   - {each.before.strip()}\n   + {each.after.strip()}")
        return 0
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {tuple(each["key"]): each["found_by"] for each in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="rewardfleet-mutations-") as name:
        python = make_copy(Path(name), arguments.tests_from)
        for number, each in enumerate(drawn):
            if each.key not in done:
                started = time.monotonic()
                done[each.key] = found_by = try_mutation(each, python)
                record = {**asdict(each), "key": each.key, "found_by": found_by}
                record["seconds"] = round(time.monotonic() - started)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            print(f"{number:>2} {each.file}:{each.line} {done[each.key] or 'MISSED'}", flush=True)
    found = sum(done[each.key] is not None for each in drawn)
    print(f"found {found} of {len(drawn)}")
    return int(found < 26 / 30 * len(drawn))


def draw(count: int) -> list[Mutation]:
    """Return mutations in an order that depends on the seed: one of each package first.

    Its place is a hash of the mutation, so that a change of other lines does not change the draw.
    """
    by_package: dict[str, dict[tuple[str, str, str], Mutation]] = defaultdict(dict)
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            if not ELSEWHERE.search(str(path)):
                for each in mutations_of(path):
                    by_package[each.package].setdefault(each.key, each)
    ordered = [sorted(each.values(), key=_place) for each in by_package.values()]
    rest = sorted((each for package in ordered for each in package[1:]), key=_place)
    return ([package[0] for package in ordered] + rest)[:count]


def _place(mutation: Mutation) -> bytes:
    return hashlib.sha256(f"{SEED} {mutation.key}".encode()).digest()


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Yield the mutations of a file, without equivalent ones."""
    text = path.read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    original = ast.dump(tree)
    for kind, node, start, end, new in changes(tree, lines):
        before = lines[node.lineno - 1]
        # Columns count bytes.
        encoded = before.encode()
        after = (encoded[:start] + new.encode() + encoded[end:]).decode()
        mutated = "\n".join([*lines[: node.lineno - 1], after, *lines[node.lineno :]]) + "\n"
        try:
            if ast.dump(ast.parse(mutated)) == original:
                continue
        except SyntaxError:
            continue
        found = Mutation(kind, str(path.relative_to(ROOT)), node.lineno, before, after)
        is_version = kind == "constant" and "VERSION = " in before  # any other new one would do
        if found.key not in EQUIVALENT and not is_version:
            yield found


def changes(module: ast.Module, lines: list[str]) -> Iterator[tuple[str, ast.AST, int, int, str]]:
    """Yield kind, node, first and last column of what is replaced on its line, and by what."""
    for node in _executed(module):
        if getattr(node, "lineno", 0) != getattr(node, "end_lineno", 1) and not isinstance(
            node, ast.If | ast.While
        ):
            continue
        match node:
            case ast.Compare(left=left, comparators=[right]):
                start, end = left.end_col_offset, right.col_offset
                operator = lines[node.lineno - 1].encode()[start:end].decode()
                if operator.strip() in OPPOSITES:
                    yield "comparison", node, start, end, f" {OPPOSITES[operator.strip()]} "
            case ast.Constant(value=bool(value)):
                yield "constant", node, node.col_offset, node.end_col_offset, str(not value)
            case ast.Constant(value=int(value) | float(value)):
                new = "0" if value else "1"
                yield "constant", node, node.col_offset, node.end_col_offset, new
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if test.lineno == test.end_lineno == node.lineno:
                    source = lines[node.lineno - 1].encode()[test.col_offset : test.end_col_offset]
                    negated = f"not ({source.decode()})"
                    yield "branch", node, test.col_offset, test.end_col_offset, negated
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                yield "return value", node, value.col_offset, value.end_col_offset, "None"
            case ast.Expr(value=ast.Call(func=func)) if not ast.unparse(func).startswith("log."):
                yield "deleted call", node, node.col_offset, node.end_col_offset, "pass"


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes, without annotations, decorators, and what only type checkers read."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field not in {"annotation", "returns", "decorator_list", "type_params"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _executed(child)


def make_copy(folder: Path, tests_from: Path | None) -> Path:
    """Clone the last commit into an environment that imports the clone; return its Python."""
    copy = folder / "copy"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], timeout=300, check=True)
    if tests_from is not None:
        shutil.rmtree(copy / "tests")
        shutil.copytree(tests_from / "tests", copy / "tests")
    venv = folder / "venv"
    command = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
    subprocess.run(command, timeout=300, check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    (own,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
    # The .pth file of the editable installation is read in its own folder only.
    sources = (copy / "clients", copy / "services", copy / "contrib" / "router", own)
    (site / "copy.pth").write_text("".join(f"{each}\n" for each in sources))
    for program in (Path(sys.prefix) / "bin").iterdir():
        if not (venv / "bin" / program.name).exists() and program.name != "rewardfleet":
            (venv / "bin" / program.name).symlink_to(program)
    python = venv / "bin" / "python"
    script = (
        f"#!{python}\nimport sys\nfrom rewardfleet.commands.main import main\nsys.exit(main())\n"
    )
    (venv / "bin" / "rewardfleet").write_text(script)
    (venv / "bin" / "rewardfleet").chmod(0o755)
    return python


def try_mutation(mutation: Mutation, python: Path) -> str | None:
    copy = python.parent.parent.parent / "copy"
    path = copy / mutation.file
    original = path.read_text()
    lines = original.split("\n")
    assert lines[mutation.line - 1] == mutation.before, "the mutated files must be committed"
    lines[mutation.line - 1] = mutation.after
    path.write_text("\n".join(lines))
    try:
        for part in parts(mutation, copy):
            while found := run_tests(part, python, copy):
                if "::" not in found or run_tests([found], python, copy):
                    return found
                part += ["--deselect", found]  # alone, it passes
    finally:
        path.write_text(original)
    return None


def parts(mutation: Mutation, copy: Path) -> Iterator[list[str]]:
    """Yield arguments of pytest, from the nearest tests to all of them."""
    module = ".".join(Path(mutation.file).with_suffix("").parts[1:]).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imported = (
        rf"(from|import) {re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
    )
    parallel = ["-n", "6", "--dist", "worksteal", "-m", "not serial and not full and not chaos"]
    nearest = [
        str(each.relative_to(copy))
        for each in sorted((copy / "tests").rglob("test_*.py"))
        if re.search(imported, each.read_text()) or each.stem == f"test_{name}"
    ]
    if nearest:
        yield [*parallel, *nearest]
    side = "server" if mutation.file.startswith("services") else "client"
    folder = mutation.package.partition("/")[2]
    named = (FOLDERS.get(folder), f"{side}/{folder}", folder, side)
    for candidate in [f"tests/{each}" for each in named if each]:
        if folder and (copy / candidate).is_dir():
            yield [*parallel, candidate]
            break
    yield parallel
    yield ["-m", "serial and not full"]


def run_tests(arguments: list[str], python: Path, copy: Path) -> str | None:
    command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PART_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the tests did not end within {PART_SECONDS} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode in {0, 5}:  # 5: no test was selected
        return None
    if failed := re.search(r"(?m)^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output):
        return failed[1]
    subprocess.run([str(python), "-m", "pytest", "--version"], timeout=60, check=True)
    return output.strip().splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
