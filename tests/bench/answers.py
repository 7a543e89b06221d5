"""`make bench-answers`: how often the answers service is wrong, and its speed, as ratios.

The accuracy is that on the labeled pairs of `answers_pairs.py`, beside the functions of others, of
which those in the environments of `make install-trainers` and `make install-clients` run as well.
For the speed nothing is cached. Loopback only, with fixed counts. Exits with 1 if a ratio misses
its limit.
"""

import itertools
import json
import logging
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import harness
from answers_pairs import Pair, is_held_out, pairs, written
from answers_peers import PEERS, in_dollars
from harness import (
    Ratio,
    cpu_seconds,
    in_process,
    medians_in_turns,
    post,
    rate,
    run,
    send,
    serving,
    until_stopped,
)

from rewardfleet.wire.answers import AnswersRequest
from rewardfleet.wire.errors import RewardFleetError
from rewardfleet_server.answers.forms import FORMULAS, truths_of
from rewardfleet_server.registry import SERVICES
from rewardfleet_server.system.threads import usable_cores

ROOT = Path(__file__).parent.parent.parent
CALLERS, BATCH = 8, 256
#: Of a pair, what is not in its request.
LABELS = {"right", "family", "source"}
#: Parts of the formulas that are measured in turns, and answers of each in a process of its own.
SLICES, FRESH = 4, 30
RATE_ROUNDS, RATE_SECONDS = 9, 1.5
#: Easy answers, and hard ones that are in flight all the time.
EASY, HARD = 300, 4
GENERATED = 50_000
#: Seconds for which the function of another project may run.
PEER_SECONDS = 1800

serving_answers = partial(serving, "answers", cache_mb=0, cache=None)

# Accuracy


class Wrong(NamedTuple):
    """How many pairs have a wrong verdict."""

    negatives: int  #: right ones that are found wrong, or have no verdict
    positives: int  #: wrong ones that are found right

    @classmethod
    def of(cls, rows: Iterable[tuple[Pair, bool]]) -> "Wrong":
        wrong = [pair["right"] for pair, verdict in rows if pair["right"] != verdict]
        return cls(sum(wrong), len(wrong) - sum(wrong))

    def __str__(self) -> str:
        return f"{self.negatives} / {self.positives}"


def accuracy() -> Iterator[Ratio]:
    """Count wrong verdicts of the service, of its checkers, and of others."""
    labeled = pairs()
    print(f"{len(labeled)} pairs, {len(written())} of them written by hand, ", end="")
    print(f"{sum(map(is_held_out, labeled))} held out, {sum(p['right'] for p in labeled)} right")
    verdicts: dict[str, list[bool]] = {}
    for accept in ("any", "both"):
        scores = scores_of(labeled, accept=accept)
        verdicts[f"service, accept={accept}"] = [each["score"] == 1 for each in scores]
        if accept == "any":
            print_checkers(labeled, [each["details"] for each in scores])
            print("causes:", dict(Counter(each["cause"] for each in scores).most_common()))
    others = {name: found for name in PEERS if (found := verdicts_of(name))}
    verdicts |= others
    groups = [group_of(each) for each in labeled]
    parts: dict[str, Callable[[Pair], bool]] = {
        "held out": is_held_out,
        "held out, written by hand": lambda p: is_held_out(p) and p["source"] != "generated",
        "all": lambda _: True,
    }
    for title, is_in in parts.items():
        print_table(title, labeled, groups, verdicts, is_in)
    for title, wanted in {"all": {*groups}, "mathematics": {"formulas", "numbers"}}.items():
        rows = [
            number
            for number, pair in enumerate(labeled)
            if is_held_out(pair) and groups[number] in wanted
        ]
        found = {
            name: Wrong.of((labeled[number], each[number]) for number in rows)
            for name, each in verdicts.items()
        }
        ours = found["service, accept=any"]
        best = min(others, key=lambda name: sum(found[name]))
        for kind, limit in {"negatives": "<= 1/2", "positives": "<= 1"}.items():
            mine, theirs = getattr(ours, kind), getattr(found[best], kind)
            yield Ratio(f"false {kind} of {title}, held out; {best}", mine, theirs or 0.5, limit)


def fields_of(pair: Pair) -> dict[str, Any]:
    return {name: value for name, value in pair.items() if name not in LABELS}


def scores_of(labeled: list[Pair], **settings: object) -> list[dict[str, Any]]:
    """Return the scores of pairs, those of a service with settings of its own."""
    items = [fields_of(each) for each in labeled]
    batches = [{"items": items[first : first + BATCH]} for first in range(0, len(items), BATCH)]
    with serving_answers(**settings) as service:
        # One caller, whose answers are in order.
        answers, _ = send(service.port, (post("/score/batch", each) for each in batches))
    return [score for answer in answers for score in answer.score["results"]]


def verdicts_of(peer: str) -> list[bool]:
    """Return the verdicts of the function of another project, nothing if it is not installed."""
    of_trainers = ROOT / ".venv-trainers/bin/python"
    python = sys.executable if peer == "math-verify" else of_trainers
    path = str(ROOT / ".clients") if peer.startswith("NeMo") else ""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [python, Path(__file__).with_name("answers_peers.py"), peer, results]
        try:
            subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                check=True,
                timeout=PEER_SECONDS,
                text=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            print(f"{peer} is skipped: {lines[-1]}")
            return []
        return json.loads(results.read_text())


def print_checkers(labeled: list[Pair], details: list[dict[str, Any]]) -> None:
    """Print how often each checker is wrong about what was checked at all."""
    for name in ("math_verify", "numeric"):
        for title, is_in in {"held out": is_held_out, "all": lambda _: True}.items():
            rows = [
                (pair, each.get(name))
                for pair, each in zip(labeled, details, strict=True)
                if {"math_verify", "numeric"} & each.keys() and is_in(pair)
            ]
            wrong = Wrong.of((pair, verdict == "equal") for pair, verdict in rows)
            without = sum(verdict not in {"equal", "different"} for _, verdict in rows)
            print(f"checker {name}, {title}: {wrong} of {len(rows)}; {without} without a verdict")


def group_of(pair: Pair) -> str:
    """Return the kind of a pair's reference."""
    if {"tolerance", "units"} & pair.keys():
        return "quantities"
    try:
        form = truths_of(AnswersRequest.model_validate(fields_of(pair)))[0].form
    except (RewardFleetError, ValueError):
        form = pair.get("form", "expression")
    if form in FORMULAS:
        return "formulas"
    return {"number": "numbers", "json": "JSON, regex", "regex": "JSON, regex"}.get(form, "words")


def print_table(
    title: str,
    labeled: list[Pair],
    groups: list[str],
    verdicts: dict[str, list[bool]],
    is_in: Callable[[Pair], bool],
) -> None:
    count = Counter(group for group, pair in zip(groups, labeled, strict=True) if is_in(pair))
    names = sorted(count)
    heads = [f"{name} ({count[name]})" for name in names]
    print(f"\nFalse negatives / false positives, {title}:\n")
    print(f"| | all ({count.total()}) | {' | '.join(heads)} |\n|{'---|' * (len(names) + 2)}")
    for name, each in verdicts.items():
        rows = [row for row in zip(groups, labeled, each, strict=True) if is_in(row[1])]
        cells = [Wrong.of((pair, right) for _, pair, right in rows)]
        cells += [
            Wrong.of((pair, right) for of, pair, right in rows if of == group) for group in names
        ]
        print(f"| {name} | {' | '.join(map(str, cells))} |")


# Speed


class Speed(NamedTuple):
    """Answers per second, and milliseconds of CPU time of one."""

    rate: float
    cpu_ms: float


#: math-verify in a process of its own, with its own time limit.
FRESH_PROGRAM = """
import sys
from math_verify import parse, verify
print(verify(parse(sys.argv[2]), parse(sys.argv[1])))
"""


def speed() -> Iterator[Ratio]:
    chosen = formulas()
    slices = [chosen[number::SLICES] for number in range(SLICES)]
    print(f"{len(chosen)} formulas in {SLICES} slices; {usable_cores()} cores")
    found: dict[str, list[Speed]] = {"service": [], "pool": [], "fresh process": []}
    with serving_answers() as service, ProcessPoolExecutor(2, initializer=quiet) as pool:
        ways = {
            "service": (over_http, service.port, service.pid),
            "pool": (in_pool, pool, os.getpid()),
            "fresh process": (in_fresh, FRESH, None),
        }
        for part in (slices[-1], *slices):  # the first time, all import and build what they use
            for name, (work, of, pid) in ways.items():
                found[name].append(speed_of(partial(work, of, part), pid))
    medians = []
    for name, each in found.items():
        rates, cpu = zip(*each[1:], strict=True)
        medians.append(Speed(statistics.median(rates), statistics.median(cpu)))
        print(
            f"{name}: {medians[-1].rate:.1f} answers/s ({min(rates):.1f} to {max(rates):.1f}), ",
            end="",
        )
        print(f"{medians[-1].cpu_ms:.1f} ms of CPU each ({min(cpu):.1f} to {max(cpu):.1f})")
    ours, pool_, fresh = medians
    yield Ratio(
        "formulas/s, both checkers; math-verify, fresh processes", ours.rate, fresh.rate, ">= 10"
    )
    yield Ratio("formulas/s, both checkers; math-verify in a pool", ours.rate, pool_.rate, ">= 1/2")
    yield Ratio(
        "CPU ms of a formula; math-verify, fresh process", ours.cpu_ms, fresh.cpu_ms, "<= 1/10"
    )
    yield Ratio("CPU ms of a formula; math-verify in a pool", ours.cpu_ms, pool_.cpu_ms, "<= 2")


def formulas() -> list[Pair]:
    """Return pairs that both checkers compare, in a random order. None is there twice."""
    labeled = [each for each in pairs() if isinstance(each.get("reference"), str)]
    found: dict[tuple[str, str], Pair] = {}
    for pair, score in zip(labeled, scores_of(labeled), strict=True):
        details = score["details"]
        is_checked = {"math_verify", "numeric"} <= details.keys() and details["form"] in FORMULAS
        if is_checked and details["answer"] != details["reference"]:
            found.setdefault((details["answer"], details["reference"]), pair)
    chosen = [*found.values()]
    random.Random(1).shuffle(chosen)
    return chosen


def speed_of(work: Callable[[], int], pid: int | None) -> Speed:
    """Return the speed of work that returns how many answers it has checked.

    Args:
        work: What is measured.
        pid: The process that does it, with its descendants; None: children that have ended.
    """

    def cpu() -> float:
        if pid is not None:
            return cpu_seconds(pid)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    cpu_before, started = cpu(), time.perf_counter()
    count = work()
    seconds = time.perf_counter() - started
    return Speed(count / seconds, (cpu() - cpu_before) * 1000 / count)


def over_http(port: int, part: list[Pair]) -> int:
    send(port, [post("/score", fields_of(each)) for each in part], callers=CALLERS)
    return len(part)


def in_pool(pool: ProcessPoolExecutor, part: list[Pair]) -> int:
    texts = [(each["response"], in_dollars(each["reference"])) for each in part]
    for future in [pool.submit(verified, *each) for each in texts]:
        future.result()
    return len(part)


def quiet() -> None:
    logging.disable()


def verified(response: str, reference: str) -> bool | None:
    """Verify an answer by math-verify alone, without a time limit; return None if it fails."""
    from math_verify import parse, verify

    try:
        right = parse(reference, parsing_timeout=None)
        return verify(right, parse(response, parsing_timeout=None), timeout_seconds=None)
    except Exception:  # noqa: BLE001 - of any kind: it has no verdict
        return None


def in_fresh(count: int, part: list[Pair]) -> int:
    """Check some answers, each in a process of its own, two at a time."""

    def check(pair: Pair) -> None:
        texts = pair["response"], in_dollars(pair["reference"])
        command = [sys.executable, "-c", FRESH_PROGRAM, *texts]
        subprocess.run(command, capture_output=True, timeout=120, check=False)

    with ThreadPoolExecutor(2) as threads:
        return len([*threads.map(check, part[:count])])


def numbers() -> Iterator[Ratio]:
    """Compare plain numbers with an empty endpoint of the same server."""
    body = {"response": "6 times 12 is 72, so she has \\boxed{72} left.", "reference": "72"}
    request = post("/score", body)
    with (
        serving_answers() as service,
        in_process(harness.empty_endpoint, AnswersRequest, False) as empty,
    ):
        [answer], _ = send(service.port, [request])
        assert answer.score["score"] == 1, answer
        measures = [
            partial(rate, server.port, request, callers=CALLERS, seconds=RATE_SECONDS)
            for server in (service, empty)
        ]
        for measure in measures:
            measure()
        ours, other = medians_in_turns(*measures, rounds=RATE_ROUNDS)
    yield Ratio("plain numbers per second; an empty endpoint", ours, other, ">= .3")


# Limits


def beside_hard() -> Iterator[Ratio]:
    """Measure easy answers alone, and beside hard ones that use up their CPU time."""
    turn = itertools.count(2)

    def easy() -> bytes:
        number = next(turn)
        response = f"\\boxed{{(x+{number})(x-{number})}}"
        return post("/score", {"response": response, "reference": f"x^2-{number**2}"})

    def milliseconds(port: int) -> list[float]:
        return [each.seconds * 1000 for each in send(port, (easy() for _ in range(EASY)))[0]]

    with serving_answers() as service:
        milliseconds(service.port)
        alone = milliseconds(service.port)
        with until_stopped(send_hard, service.port) as stop:
            beside = milliseconds(service.port)
            seconds = stop()
    print(f"easy answers, ms: alone {shown(alone)}; beside {shown(beside)}")
    print(f"{len(seconds)} hard ones meanwhile: {min(seconds):.1f} to {max(seconds):.1f} s")
    yield Ratio(
        "p90 ms of an easy formula beside 4 hard ones; alone", p90(beside), p90(alone), "<= 3"
    )


def p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[8]


def shown(values: list[float]) -> str:
    return f"p50 {statistics.median(values):.1f}, p90 {p90(values):.1f}, max {max(values):.1f}"


def send_hard(pipe: Pipe, port: int) -> None:
    """Keep hard answers in flight; the result is the seconds that each took."""

    def requests() -> Iterator[bytes]:
        for number in itertools.count(1):
            if number > HARD and pipe.poll():
                return
            yield post("/score", hard(number))
            if number == HARD:
                pipe.send("sending")

    answers, _ = send(port, requests(), callers=HARD)
    assert all(each.score["cause"] == "too_complex" for each in answers), answers[0].body
    pipe.send([each.seconds for each in answers])


def hard(number: int) -> dict[str, str]:
    """Return an answer whose check takes more than its CPU time, and needs little memory."""
    text = f"\\boxed{{\\sum_{{k=1}}^{{{3_000_000 + number}}} \\sin(k)}}"
    return {"response": text, "reference": "\\frac{\\pi}{3}", "form": "expression"}


def generated() -> Iterator[Ratio]:
    """Answer random formulas, of which some are malformed; none may hang."""
    drawn = random.Random(7)
    items = (
        {"response": response(drawn), "reference": formula(drawn, 2)} for _ in range(GENERATED)
    )
    requests = (post("/score/batch", {"items": [each]}) for each in items)
    with serving_answers() as service:
        answers, seconds = send(service.port, requests, callers=CALLERS)
        limit = SERVICES["answers"].settings.load()().max_cpu_s
    results = [each.score["results"][0] for each in answers]
    print(f"{len(results)} answers in {seconds:.0f} s:", end=" ")
    print(dict(Counter(f"{each['status']}: {each['cause']}" for each in results).most_common()))
    taken = [each.seconds for each in answers]
    print(f"seconds: p50 {statistics.median(taken):.3f}, max {max(taken):.2f}")
    yield Ratio("generated pairs that are answered; all", len(results), GENERATED, ">= 1")
    # Each of those in flight may use up the limit twice: for the answer, and the reference alone.
    queue = CALLERS * 2 * limit / usable_cores()
    yield Ratio("slowest generated pair; CPU limits of all in flight", max(taken), queue, "<= 1")


def response(drawn: random.Random) -> str:
    """Return what a model may write: a formula, often in a box, and sometimes broken."""
    text = formula(drawn, drawn.randint(0, 2))
    if drawn.random() < 0.3:
        for _ in range(drawn.randint(1, 3)):
            place = drawn.randrange(len(text) + 1)
            kept = place + drawn.randint(0, 2)
            added = drawn.choice(["", *"{}()[]\\^_&$,=|!", "\\frac", "\\left"])
            text = f"{text[:place]}{added}{text[kept:]}"
    return drawn.choice(["\\boxed{@}", "So $@$.", "Answer: @", "@", "\\[ @ \\]"]).replace("@", text)


def formula(drawn: random.Random, depth: int) -> str:
    if not depth or drawn.random() < 0.15:
        number = f"{drawn.randint(0, 99)}"
        return drawn.choice(["x", "y", "n", "\\pi", "e", "i", number, "0.5", "\\infty"])
    a, b = formula(drawn, depth - 1), formula(drawn, depth - 1)
    return drawn.choice(SHAPES).replace("A", a).replace("B", b)


SHAPES = (
    "A + B", "A - B", "A B", "A \\cdot B", "\\frac{A}{B}", "\\sqrt{A}", "(A)^{B}", "(A)^2",
    "\\sin(A)", "\\ln(A)", "\\log_{2}(A)", "|A|", "e^{A}", "\\sum_{k=1}^{9} A", "A = B", "A/B",
    "\\int_0^1 A\\,dx", "\\{A, B\\}", "(A, B]", "A, B", "A \\le B", "\\binom{A}{B}", "(A)!",
    "\\begin{pmatrix} A & B \\end{pmatrix}", "\\text{A}", "A \\pm B", "\\lim_{x \\to 0} A",
    "\\left( A \\right)",
)  # fmt: skip


if __name__ == "__main__":
    parts = {"accuracy": accuracy, "speed": speed, "numbers": numbers}
    run({**parts, "beside hard": beside_hard, "generated": generated})
