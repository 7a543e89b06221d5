"""Looks for programs that share a key and behave differently; `make fuzz-normal-form`.

Each round changes a real program, which prints what its functions return.
"""

import argparse
import ast
import builtins
import contextlib
import doctest
import json
import pickle
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import files
from pathlib import Path
from typing import Any, Self, TypeGuard

from rewardfleet_server.code.normal_form import normal_form

DATA = Path(__file__).parents[2] / "data" / "normal_form"
#: Seconds of CPU time of one program.
CPU_S = 5

# Real programs

_CHANCE = {"random", "time", "urllib"}  #: what makes a program's output change from run to run
#: Modules that make no program, and why.
_SKIPPED = {
    "algorithms/graph/find_all_cliques.py",  # a set's order
    "algorithms/graph/transitive_closure_dfs.py",  # its doctest raises
    "algorithms/stack/ordered_stack.py",  # likewise
}
#: What many modules import of their own package. It is put in the place of the import.
_NODE = "algorithms/common/tree_node.py"
_NODE_IMPORT = re.compile(
    r"^from algorithms\.(?:tree\.tree|common\.tree_node) import TreeNode$", re.MULTILINE
)


@cache
def programs() -> list[str]:
    """Return modules of the package `algorithms` that print what doctests show."""
    paths = sorted(path for path in files("algorithms") or () if path.suffix == ".py")
    sources = {str(path): path.read_text() for path in paths if path.parts[0] == "algorithms"}
    node = sources[_NODE].replace("from __future__ import annotations\n", "")
    found = []
    for path, text in sources.items():
        examples = list(_examples(ast.parse(text)))
        source = _NODE_IMPORT.sub(lambda _: node, text)
        tree = ast.parse(source)
        prints = any(line.startswith("print(repr(") for line in examples)
        if prints and path not in _SKIPPED and _imports(tree) <= sys.stdlib_module_names - _CHANCE:
            found.append("\n".join([source, *examples, ""]))
    return found


def _examples(tree: ast.Module) -> Iterator[str]:
    """Yield the statements of the doctests. Expressions are printed as an interpreter does."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        for example in _PARSER.get_examples(ast.get_docstring(node) or ""):
            for statement in ast.parse(_NODE_IMPORT.sub("", example.source)).body:
                is_shown = isinstance(statement, ast.Expr) and example.want
                text = ast.unparse(statement)
                yield f"print(repr({text}))" if is_shown else text


_PARSER = doctest.DocTestParser()


def _imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level or (node.module or "").partition(".")[0])
    return found


# Executing

_RUNNER = """
import json, os, resource, sys, types
def run(source):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(write, 1)
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(os.memfd_create("err"), 2)
        os.closerange(3, 100)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        with open("program.py", "w", errors="surrogatepass") as file:
            file.write(source)
        sys.stdin, sys.argv = open(0), ["program.py"]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__, main.__builtins__ = "program.py", __builtins__
        try:
            content = source.encode(errors="surrogatepass")  # decoded as a file is
            exec(compile(content, "program.py", "exec", dont_inherit=True), main.__dict__)
        except SystemExit:
            raise
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__.tb_next)
            sys.exit(1)
        sys.exit()
    os.close(write)
    with open(read, "rb") as pipe:
        out = pipe.read(100_000)
    return out.decode(errors="replace"), os.waitpid(pid, 0)[1]
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
"""


class Runner:
    """Executes programs, each in a process of its own, forked from one interpreter."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        source = _RUNNER.replace("CPU_S", str(CPU_S))
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},
            cwd=self._folder.name,
            text=True,
        )
        self._seen: dict[str, tuple[str, int]] = {}

    def behavior(self, source: str) -> tuple[str, int]:
        """Return what a program prints, without addresses, and its exit status."""
        if source not in self._seen:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(json.dumps(source) + "\n")
            self._process.stdin.flush()
            out, status = json.loads(self._process.stdout.readline())
            self._seen[source] = re.sub(r"0x[0-9a-f]+", "0x", out), status
        return self._seen[source]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()


# Renaming

_NAME_FIELDS = {"id", "arg", "name", "asname", "rest"}


def occurrences(tree: ast.AST, *, attributes: bool = False) -> list[tuple[ast.AST, str]]:
    """Return where variables, parameters, functions and imports are named, as node and field."""
    fields = _NAME_FIELDS | {"attr"} if attributes else _NAME_FIELDS
    return [
        (node, field)
        for node in ast.walk(tree)
        for field in node._fields
        if field in fields
        and isinstance(getattr(node, field), str)
        and not isinstance(node, ast.keyword)
        and not (isinstance(node, ast.alias) and field == "name")
    ]


def renamable(tree: ast.Module) -> list[str]:
    """Return the names of local variables alone, whose renaming changes nothing but names."""
    found, fixed = set(), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            fixed.update(node.names)
        elif isinstance(node, ast.alias):
            fixed.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            fixed.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            fixed.add(node.name)
            found.update(each.id for each in ast.walk(node) if _is_stored(each))
        elif isinstance(node, ast.ClassDef):
            fixed.add(node.name)
            fixed.update(_bound_in(node))
    for part in tree.body:
        if not isinstance(part, ast.FunctionDef | ast.ClassDef):
            fixed.update(each.id for each in ast.walk(part) if _is_stored(each))
    return sorted(name for name in found - fixed if not name.startswith("_"))


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _bound_in(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        else:
            yield from (name.id for name in ast.walk(part) if isinstance(name, ast.Name))


def _copy(tree: ast.Module) -> ast.Module:
    copy: ast.Module = pickle.loads(pickle.dumps(tree))  # a third of the time of copy.deepcopy
    return copy


def rename(tree: ast.Module, names: dict[str, str]) -> ast.Module:
    """Return the program with names replaced, wherever they are the names of variables."""
    tree = _copy(tree)
    for node, name_field in occurrences(tree):
        setattr(node, name_field, names.get(getattr(node, name_field), getattr(node, name_field)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [names.get(name, name) for name in node.names]
    return tree


# Changes

Change = Callable[[ast.Module, random.Random], ast.Module]


def rename_all(tree: ast.Module, chance: random.Random) -> ast.Module:
    names = renamable(tree)
    fresh = [f"v{number}" for number in range(len(names))]
    chance.shuffle(fresh)
    return rename(tree, dict(zip(names, fresh, strict=True)))


def rename_one(tree: ast.Module, chance: random.Random) -> ast.Module:
    names = renamable(tree)
    return rename(tree, {chance.choice(names): "fresh"} if names else {})


def rename_occurrence(tree: ast.Module, chance: random.Random) -> ast.Module:
    """Replace one name at one place, by another of the program or by a common one."""
    tree = _copy(tree)
    places = occurrences(tree, attributes=True)
    if places:
        node, name_field = chance.choice(places)
        known = sorted({getattr(*place) for place in places})
        common = ["fresh", "x", "i", "_", "len", "sum", "list", "result", "self", "__x"]
        setattr(node, name_field, chance.choice(known if chance.random() < 0.75 else common))
    return tree


def change_hints(tree: ast.Module, chance: random.Random) -> ast.Module:
    tree = _copy(tree)
    hints = ["int", "list[int]", "List[int]", "'x'", "None", "str | None", "print()", "x", "yield"]
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.FunctionDef) and chance.random() < 0.3:
            hint = chance.choice([None, None, *hints[:-1]])
            value = ast.parse(hint, mode="eval").body if hint else None
            setattr(node, "annotation" if isinstance(node, ast.arg) else "returns", value)
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            for place, part in enumerate(block):
                if isinstance(part, ast.AnnAssign) and part.value and chance.random() < 0.5:
                    block[place] = ast.Assign([part.target], part.value)
                elif isinstance(part, ast.Assign) and chance.random() < 0.2:
                    hint = ast.parse(chance.choice(hints[:-1]), mode="eval").body
                    if len(part.targets) == 1 and isinstance(part.targets[0], ast.Name):
                        block[place] = ast.AnnAssign(part.targets[0], hint, part.value, simple=1)
    return ast.fix_missing_locations(tree)


_IMPORTS = (
    "from math import *",
    "from typing import *",
    "from collections import *",
    "from operator import *",
    "import math as x",
    "import sys as i",
    "from functools import reduce as result",
    "from __future__ import annotations",
)


def change_imports(tree: ast.Module, chance: random.Random) -> ast.Module:
    tree = _copy(tree)
    places = [
        n for n, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    kept = tree.body.pop(chance.choice(places)) if places and chance.random() < 0.6 else None
    if kept is None or chance.random() < 0.5:
        kept = ast.parse(chance.choice(_IMPORTS)).body[0]
    if chance.random() < 0.8:
        tree.body.insert(chance.choice([0, 0, chance.randint(0, len(tree.body))]), kept)
    return tree


def reorder(tree: ast.Module, chance: random.Random) -> ast.Module:
    """Swap two statements that follow each other, or move one into a class."""
    tree = _copy(tree)
    blocks = [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list) and len(block) > 1
    ]
    if blocks:
        block = chance.choice(blocks)
        place = chance.randrange(len(block) - 1)
        block[place : place + 2] = reversed(block[place : place + 2])
    return tree


#: Statements that may show names (`NAME`, `FUNCTION`) or lines. They are added to both programs.
LOOKS = (DATA / "looks.txt").read_text().rstrip("\n").split("\n####\n")


def look(tree: ast.Module, chance: random.Random) -> tuple[ast.Module, str]:
    """Return the program with a statement that may show a name, and that name."""
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    function = chance.choice(functions or ["len"])
    names = renamable(tree)
    name = chance.choice(names or ["x"])
    text = chance.choice(LOOKS).replace("FUNCTION", function).replace("NAME", name)
    tree = _copy(tree)
    tree.body += ast.parse(text).body
    return tree, function if function in names and chance.random() < 0.5 else name


def relayout(source: str, chance: random.Random) -> str:
    """Return the program with empty lines and comments, so that its line numbers are others."""
    lines = source.split("\n")
    if '"""' in source or "'''" in source or "\\\n" in source:
        return "\n" * chance.randint(0, 3) + source
    text = "\n".join("# a comment\n" * (chance.random() < 0.1) + line for line in lines)
    return "\n" * chance.randint(0, 3) + text


#: Changes, and whether they are pure: the program behaves the same, unless it looks at itself.
CHANGES: dict[str, tuple[Change, bool]] = {
    "rename all": (rename_all, True),
    "rename one": (rename_one, True),
    "rename an occurrence": (rename_occurrence, False),
    "hints": (change_hints, False),
    "imports": (change_imports, False),
    "order": (reorder, False),
}


# The search


@dataclass
class Findings:
    """What a search has found: pairs, by change."""

    pairs: Counter[str] = field(default_factory=Counter)
    shared: Counter[str] = field(default_factory=Counter)  #: those with one key, which are executed
    differing: Counter[str] = field(default_factory=Counter)  #: executed, behave differently
    #: Pairs that share a key and behave differently: the change, and both programs.
    wrong: list[tuple[str, str, str]] = field(default_factory=list)

    def table(self) -> str:
        rows = [f"{'change':22} {'pairs':>7} {'one key':>8} {'differ':>7}"]
        rows += [
            f"{name:22} {count:7} {self.shared[name]:8} {self.differing[name]:7}"
            for name, count in self.pairs.items()
        ]
        return "\n".join([*rows, f"{len(self.wrong)} pairs share a key and behave differently"])


def pair(source: str, name: str, chance: random.Random) -> tuple[str, str]:
    """Return a program, which may have got a look at itself, and its changed form."""
    tree = ast.parse(source)
    if name == "look":
        tree, shown = look(tree, chance)
        changed = rename(tree, {shown: "fresh"})
    else:
        if chance.random() < 0.2:
            tree, _ = look(tree, chance)
        changed = CHANGES[name][0](tree, chance)
    first, second = ast.unparse(tree), ast.unparse(changed)
    return first, relayout(second, chance) if chance.random() < 0.5 else second


def search(seconds: float, seed: int, *, everything: bool = True) -> Findings:
    """Try pairs until the time is up, at least one for each program.

    Args:
        everything: Whether pairs with different keys are executed, too, for the counts.
    """
    chance, found, ends = random.Random(seed), Findings(), time.monotonic() + seconds
    order = list(programs())
    chance.shuffle(order)
    names = [*CHANGES, "look", "look"]
    with Runner() as runner:
        done = 0
        while done < len(order) or time.monotonic() < ends:
            source = order[done % len(order)]
            name = names[done % len(names)] if done < len(order) else chance.choice(names)
            done += 1
            with contextlib.suppress(SyntaxError, RecursionError, ValueError):
                _try(found, runner, name, *pair(source, name, chance), everything=everything)
    return found


def _try(
    found: Findings, runner: Runner, name: str, first: str, second: str, *, everything: bool
) -> None:
    if first == second:
        return
    found.pairs[name] += 1
    is_shared = normal_form(first) == normal_form(second)
    found.shared[name] += is_shared
    if not (is_shared or everything):
        return
    if runner.behavior(first) != runner.behavior(second):
        found.differing[name] += 1
        if is_shared:
            found.wrong.append((name, first, second))


def hits() -> Counter[str]:
    """Return how many pure renames of all programs there are, and of how many the key is shared.

    By change, and by change with `: shared`.
    """
    chance, counts = random.Random(0), Counter[str]()
    for source in programs():
        tree = ast.parse(source)
        key = normal_form(ast.unparse(tree))
        for name in ("rename all", "rename one"):
            changed = relayout(ast.unparse(CHANGES[name][0](tree, chance)), chance)
            counts[name] += 1
            counts[f"{name}: shared"] += normal_form(changed) == key
    return counts


def main() -> int:
    """Search for a given time; print what was found. Exits with 1 if keys are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{len(programs())} programs, {args.seconds:g} s, --seed {args.seed}")
    found = search(args.seconds, args.seed)
    print(found.table())
    counts: Any = hits()
    for name in ("rename all", "rename one"):
        print(f"{name}: {counts[name + ': shared']} of {counts[name]} share a key")
    for name, first, second in found.wrong[:10]:
        both = textwrap.indent(first + "\n---\n" + second, "    ")
        print(f"\n{name}\n{both}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
