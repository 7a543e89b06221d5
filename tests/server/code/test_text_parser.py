"""No text of a policy holds up others, and no failure to parse one becomes a verdict."""

import asyncio
import gc
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from rewardfleet.text.judgment import overall_judgment
from rewardfleet.text.program import extract_program
from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.code import text_parser
from rewardfleet_server.code.normal_form import LARGEST, names_of_tests, normal_form
from rewardfleet_server.code.normal_form.introspection import Uses
from rewardfleet_server.code.tests.asserts import parse
from rewardfleet_server.code.tests.imports import import_statements
from rewardfleet_server.code.text_parser import TextParser
from rewardfleet_server.code.text_tasks import form_digest
from rewardfleet_server.testing import wait_until

from ...conftest import table, text_of
from ..processes import Watch, descendants, idle_seconds, service_process
from .conftest import stdio

pytestmark = pytest.mark.slow

FENCED = "```python\nprint('\ud800')\n```\n"
RENAMED = ["def f():\n" + f"    {name} = 1\n" * 400 + f"    return {name}\n" for name in "xy"]

NO_TESTS = Uses()


@pytest.fixture
def parser() -> Iterator[TextParser]:
    parser = TextParser()
    yield parser
    parser.close()


def processes() -> set[int]:
    return descendants(depth=1)


@pytest.mark.parametrize("times", [1, 100, 10_000], ids=["at once", "quick", "slow"])
def test_a_text_is_parsed_alike_wherever_that_is_done(parser: TextParser, times: int):
    text = FENCED * times
    assert asyncio.run(parser.program(text)) == extract_program(text)
    critique = "overall judgment: incorrect\n" * times * 10
    assert asyncio.run(parser.judgment(critique)) == overall_judgment(critique) == "incorrect"
    assert asyncio.run(parser.judgment("-" * 100 * times)) is None


@pytest.mark.parametrize("uses", [NO_TESTS, names_of_tests("", ["assert f() == 1"])])
def test_long_programs_that_are_equal_up_to_names_share_a_form(parser: TextParser, uses: Uses):
    forms = {asyncio.run(parser.form(program, uses)) for program in RENAMED}
    assert forms == {(form_digest(RENAMED[0], uses), True)}


@pytest.mark.parametrize(
    ("limit", "value", "is_final"), [("_FORM_CPU_S", 0.02, True), ("_FORM_S", 0.02, False)]
)
def test_the_key_of_a_program_that_takes_too_long_is_its_text(
    parser: TextParser, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, is_final: bool
):
    heavy = "f'" + "{x}" * (LARGEST // 3 - 2) + "'"
    asyncio.run(parser.form(heavy[:-3] + "x'", NO_TESTS))  # the process has started
    monkeypatch.setattr(text_parser, "_FORM_S", 120.0)  # a busy machine takes long
    monkeypatch.setattr(text_parser, limit, value)
    assert asyncio.run(parser.form(heavy, NO_TESTS)) == (form_digest(heavy, None), is_final)
    monkeypatch.undo()
    program = RENAMED[0] * 10
    expected = (form_digest(program, NO_TESTS), True)
    # On a busy machine, the process is still at the other one.
    wait_until(lambda: asyncio.run(parser.form(program, NO_TESTS)) == expected, 120)


@pytest.mark.parametrize("end", ["dies", "hangs", "has no memory"])
def test_a_process_that_fails_is_replaced_and_no_text_is_judged_by_it(
    parser: TextParser, monkeypatch: pytest.MonkeyPatch, end: str
):
    before, program = processes(), FENCED * (20_000 if end == "has no memory" else 1_000)
    if end == "has no memory":
        monkeypatch.setattr(text_parser, "_MEMORY_BYTES", 2**20)
        parser = TextParser()
    else:
        asyncio.run(parser.program(program))
        for process in processes() - before:
            os.kill(process, signal.SIGSTOP)
        monkeypatch.setattr(text_parser, "_HANG_S", 0.2 if end == "hangs" else 60)

    async def fail() -> None:
        lost = asyncio.gather(
            parser.program(program), parser.form(program, NO_TESTS), return_exceptions=True
        )
        while end == "dies" and not lost.done():
            for process in processes() - before:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            await asyncio.sleep(0.01)
        failure, form = await lost
        assert isinstance(failure, BackendFailed)
        assert form[0] in {form_digest(program, None), form_digest(program, NO_TESTS)}

    asyncio.run(fail())
    monkeypatch.undo()
    working = TextParser() if end == "has no memory" else parser
    assert asyncio.run(working.program(program)) == extract_program(program)
    for each in (parser, working):
        each.close()
    assert processes() <= before


# In several threads

SOURCE = "import numpy\n" + "x = [1, (2, 3), {'a': f(b)[0]}]\n" * 300
SECONDS = 1


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Let threads take turns wherever they can: in finalizers, which end while another parses."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50, 2, 2)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


class Cycle:
    """It is finalized by a collection of garbage."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


@pytest.mark.usefixtures("interrupted")
def test_threads_that_parse_do_not_disturb_each_other():
    """Without a lock, every second call fails on Python 3.11.7. Filters of warnings are shared."""
    until, filters = time.monotonic() + SECONDS, list(warnings.filters)

    def parse_often(call: Callable[[], object], depth: int) -> int:
        if depth:  # the parser stores how deep its caller is
            return parse_often(call, depth - 1)
        calls = 0
        while not calls or time.monotonic() < until:
            for _ in range(3):
                Cycle()
            call()
            calls += 1
        return calls

    calls = [
        lambda: normal_form(SOURCE),
        lambda: parse(SOURCE, "tests"),
        lambda: import_statements([SOURCE]),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(parse_often, each, 20 * n) for n, each in enumerate(calls)]
        assert all(each.result() for each in running)
    assert warnings.filters == filters


# Beside others

CALLERS = 2
#: Seconds that a text may delay an answer, besides the longest one of the idle service.
DELAY = 0.25
#: None compiles, though the parser takes it: of programs that run, the jails' cores hold up others.
BAD = "\nreturn"
PROGRAMS = {
    **{name: text_of(pieces) for name, pieces in table("programs_that_take_long")},
    "3,000 functions": "".join(f"def f{n}():1\n" for n in range(3_000)),
}
JUDGED = "Overall judgment: Correct"
TEXTS = {
    **{name: {"revision": text + BAD} for name, text in PROGRAMS.items()},
    "a critique of judgments": {"critique": "overall judgment: " * 55_000},
    "a critique of tags": {"critique": f"overall judgment: {'<_>' * 60}x" * 4_500},
    "an original program": {"original_program": PROGRAMS["fences"], "critique": JUDGED},
}


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, int]]:
    with service_process("code", "--workers", "2") as (process, url):
        yield url, process.pid


def score(url: str, **fields: str) -> httpx.Response:
    item = {"revision": "print(1", "tests": stdio(("", "1"))} | fields
    return httpx.post(f"{url}/score", json=item, timeout=120, trust_env=False)


#: One of each kind; the others are for `make test-full`.
FEW = {
    "fields of an f-string", "short, but dense", "a critique of judgments", "an original program",
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [each if each in FEW else pytest.param(each, marks=pytest.mark.full) for each in TEXTS]
)
def test_no_text_holds_up_others(service: tuple[str, int], name: str):
    """Neither `/healthz` nor a call whose score is known.

    If one of them waits, this is repeated: a busy machine delays an answer now and then.
    """
    honest = json.dumps({"revision": "print(1)", "tests": stdio(("", "1"))}).encode()

    def send(caller: int) -> httpx.Response:
        own = f"\n# {caller} {os.urandom(8).hex()}"
        return score(service[0], **{field: text + own for field, text in TEXTS[name].items()})

    idle = [idle_seconds(*service, body) for body in (b"", honest)]
    for _ in range(5):
        pool = ThreadPoolExecutor(CALLERS)
        with Watch(*service) as health, Watch(*service, honest) as known, pool:
            answers = list(pool.map(send, range(CALLERS)))
        waits = [health.slowest - idle[0], known.slowest - idle[1]]
        if max(waits) < DELAY:
            break
    assert max(waits) < DELAY
    assert {(each.status_code, each.json().get("score")) for each in answers} == {(200, 0.0)}
