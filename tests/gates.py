"""Run gates, which are targets of the Makefile, and print a table of what each took.

    python3 tests/gates.py ci        what a commit must pass; ends at the first gate that fails
    python3 tests/gates.py all       everything in full, for the night before a release

`all` goes on after a failed gate. Started again, it leaves out gates that this state of the files
has passed, which it reads from `.gates.jsonl`.
"""

import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PASSED = ROOT / ".gates.jsonl"

#: The closing line of a run of pytest, and the counts in it.
_CLOSING_LINE = re.compile(r"(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s\b")
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?)\b")


@dataclass(frozen=True)
class Gate:
    """A target of the Makefile.

    Attributes:
        target: The target, and variables for it.
        limit_s: Seconds after which it has failed.
        tools: Programs that it needs besides those that `make install` installs without root. If
            one is missing, the gate fails in CI and is skipped elsewhere.
        as_root: Whether it needs root.
    """

    target: str
    limit_s: int
    tools: tuple[str, ...] = ()
    as_root: bool = False


_TABLE = tomllib.loads((ROOT / "tests" / "data" / "gates.toml").read_text())


def _gates(rows: list[dict[str, Any]]) -> list[Gate]:
    return [Gate(**each | {"tools": tuple(each.get("tools", ()))}) for each in rows]


[ENVIRONMENTS] = _gates(_TABLE["environments"])
QUICK, ALONE, ALL = (_gates(_TABLE[name]) for name in ("quick", "alone", "all"))
LANES = [*map(_gates, _TABLE["lanes"])]
CI = [*QUICK, *ALONE, *(gate for lane in LANES for gate in lane)]


@dataclass(frozen=True)
class Outcome:
    """What a gate did.

    Attributes:
        gate: The gate's target.
        result: `passed`, `failed`, or why it did not run.
        wall_s: Seconds of wall time.
        cpu_s: CPU seconds of its processes that have been waited for.
        tests: Tests that ran.
    """

    gate: str
    result: str
    wall_s: float = 0
    cpu_s: float = 0
    tests: int = 0

    @property
    def is_failure(self) -> bool:
        return self.result != "passed" and not self.result.startswith("skipped")


def main() -> int:
    """Run the gates that the command line names; return 1 if one failed."""
    if sys.argv[1:] not in (["ci"], ["all"]):
        sys.exit(__doc__)
    started = time.monotonic()
    outcomes = run_all() if sys.argv[1] == "all" else run_for_a_commit()
    print(table(outcomes))
    print(f"all gates, some of which ran beside others, took {time.monotonic() - started:.0f} s")
    return int(any(each.is_failure for each in outcomes))


def run_all() -> list[Outcome]:
    """Run the gates of `ALL` that have not passed yet, and note those that pass."""
    state = state_of_files()
    done = passed_before(state)
    outcomes = []
    for gate in ALL:
        outcome = done.get(gate.target) or run(gate)
        outcomes.append(outcome)
        if outcome.result == "passed" and gate.target not in done:
            with PASSED.open("a") as file:
                file.write(json.dumps({"state": state, **asdict(outcome)}) + "\n")
    return outcomes


def run_for_a_commit() -> list[Outcome]:
    """Run the gates of `CI` until one fails."""
    with ThreadPoolExecutor(1) as beside:
        installed = beside.submit(run, ENVIRONMENTS)
        outcomes = until_one_fails(QUICK)
        outcomes.append(installed.result())
    if not any(each.is_failure for each in outcomes):
        outcomes += until_one_fails(ALONE)
    if not any(each.is_failure for each in outcomes):
        with ThreadPoolExecutor() as beside:
            outcomes += chain.from_iterable(beside.map(until_one_fails, LANES))
    return outcomes


def until_one_fails(gates: Iterable[Gate]) -> list[Outcome]:
    """Run gates in order, and none after one that fails."""
    outcomes = []
    for gate in gates:
        outcomes.append(run(gate))
        if outcomes[-1].is_failure:
            break
    return outcomes


def run(gate: Gate) -> Outcome:
    """Run a gate, print its output, and measure it."""
    outcome = _run(gate)
    print(f"gate {gate.target}: {outcome.result} after {outcome.wall_s:.0f} s", flush=True)
    return outcome


def _run(gate: Gate) -> Outcome:
    if missing := what_is_missing(gate):
        return Outcome(gate.target, f"{'failed' if 'CI' in os.environ else 'skipped'}: {missing}")
    started = time.monotonic()
    process = subprocess.Popen(
        ["make", *gate.target.split()],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    counts: list[int] = []
    printing = threading.Thread(target=_print_and_count, args=(process.stdout, counts), daemon=True)
    printing.start()
    ended = os.pidfd_open(process.pid)
    try:
        is_late = not select.select([ended], [], [], gate.limit_s)[0]
    finally:
        os.close(ended)
        os.killpg(process.pid, signal.SIGKILL)  # what it has started and not ended
    # With the times of the processes that it has waited for, and of no other gate's.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    printing.join(60)
    result = f"failed: it took more than {gate.limit_s} s" if is_late else "passed"
    if process.returncode and not is_late:
        result = "failed"
    wall_s = time.monotonic() - started
    return Outcome(gate.target, result, wall_s, usage.ru_utime + usage.ru_stime, sum(counts))


def what_is_missing(gate: Gate) -> str | None:
    """Return what a gate needs and this machine lacks, once it has installed what it can."""
    if gate.as_root and os.geteuid() != 0:
        return "it needs root"
    if {"bwrap", "redis-server"} & {*gate.tools}:
        subprocess.run(["make", "--silent", "servers"], cwd=ROOT, timeout=900, check=False)
    missing = [each for each in gate.tools if shutil.which(each) is None]
    return f"it needs {' and '.join(missing)}" if missing else None


def _print_and_count(lines: Iterable[str], counts: list[int]) -> None:
    """Print the output of a gate; add the tests of each run of pytest to the counts."""
    for line in lines:
        print(line, end="", flush=True)
        if closing := _CLOSING_LINE.match(line):
            counts += [int(count) for count, _ in _COUNTS.findall(closing[1])]


def state_of_files() -> str:
    """Return a digest of all files that git tracks or would add."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True).stdout
    digest = hashlib.sha256()
    for name in sorted(listed.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def passed_before(state: str) -> dict[str, Outcome]:
    """Return the outcomes of gates that this state of the files has passed."""
    lines = PASSED.read_text().splitlines() if PASSED.exists() else []
    outcomes = [json.loads(line) for line in lines]
    return {each["gate"]: Outcome(**each) for each in outcomes if each.pop("state") == state}


def table(outcomes: list[Outcome]) -> str:
    """Return what each gate took, longest first, and the sum."""
    rows = [f"{'gate':<28}{'wall':>8}{'CPU':>8}{'tests':>8}  result"]
    total = Outcome(
        "sum", "", *(sum(getattr(o, f) for o in outcomes) for f in ("wall_s", "cpu_s", "tests"))
    )
    for each in [*sorted(outcomes, key=lambda each: -each.wall_s), total]:
        times = f"{each.wall_s:>6.0f} s{each.cpu_s:>6.0f} s"
        rows.append(f"{each.gate:<28}{times}{each.tests:>8}  {each.result}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
