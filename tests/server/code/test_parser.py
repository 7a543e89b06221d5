"""Python's parser in several threads."""

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rewardfleet_server.code.normal_form import normal_form
from rewardfleet_server.code.tests.asserts import parse
from rewardfleet_server.code.tests.imports import import_statements

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


@pytest.mark.slow
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
