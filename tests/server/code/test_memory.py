"""The memory of programs: how much there is, who waits for it, and what others cannot do to it."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from rewardfleet.wire.code import Limits
from rewardfleet_server.code.app import create_app
from rewardfleet_server.code.running.doctor import checks
from rewardfleet_server.code.sandboxes import RunLimits
from rewardfleet_server.code.sandboxes.jail.memory import Capacity, Memory, Share, run_bytes
from rewardfleet_server.code.settings import CodeSettings
from rewardfleet_server.flags import read_settings

from ...cgroups import memory_group
from ...conftest import table
from ..processes import service_process
from .conftest import LEVELS, asserts, rows, sample, sources, stdio

GIB, MIB = 2**30, 2**20

# What there is


@pytest.mark.parametrize("row", sample(rows("machines")))
def test_the_memory_is_that_of_the_container_or_the_machine(tmp_path: Path, row):
    """Files besides /proc/meminfo of 10 GiB, and the GiB that they leave."""
    files = dict(row["files"])
    mounted = files.pop("root", "/")
    meminfo = f"MemTotal: {10 << 20} kB\nCommitLimit: {5 << 20} kB\n"
    found = {"/proc/meminfo": meminfo, "/proc/sys/vm/overcommit_memory": "0\n"}
    for name, content in files.items():
        path = name if name.startswith("/") else f"/proc/self/{name}"
        found[path] = content.format(root=mounted) if name == "mountinfo" else content
    for name, content in found.items():
        file = tmp_path / name[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert Capacity.here(tmp_path).total == pytest.approx(row["gib"] * GIB, abs=1)


@pytest.mark.parametrize(("workers", "limit_mb", "refusal"), table("memory_of_workers"))
def test_a_service_without_memory_for_a_program_per_worker_does_not_start(
    monkeypatch: pytest.MonkeyPatch, workers: int, limit_mb: int | None, refusal: str | None
):
    monkeypatch.setattr(Capacity, "here", lambda: Capacity(2 * GIB, "this container"))
    given = {"workers": workers} | ({"max_memory_mb": limit_mb} if limit_mb else {})
    settings = read_settings(CodeSettings, given)
    assert settings.max_memory_mb == (limit_mb or 448)
    found = {each.status: each for each in checks(settings) if "memory" in each.what}
    if refusal is None:
        assert "this container has 1.5 GiB for programs, of 2.0 GiB" in found["note"].what
        assert f"at most {settings.max_memory_mb}" in found["note"].fix
        return
    with pytest.raises(ValueError, match=refusal):
        create_app(settings)
    failed = found["failed"]
    assert refusal in f"{failed.what}. {failed.fix}"


def test_a_program_and_its_tests_need_what_their_limits_permit():
    limits = RunLimits(1, 1, 1024 * MIB, 16 * MIB)
    assert run_bytes(limits, tests_apart=False, writable=128 * MIB) == (1024 + 128 + 128) * MIB
    assert run_bytes(limits, tests_apart=True) == (3 * 1024 + 2 * 128) * MIB


def slack_bytes(total: int, workers: int, limit_mb: int) -> int:
    """Return what a container has besides the service and a program with tests per worker."""
    limits = RunLimits(1, 1, limit_mb * MIB, Limits().output_kb * 1024)
    program = run_bytes(limits, tests_apart=True, writable=128 * MIB)
    return Capacity(total, "").of_programs - workers * program


def test_the_container_of_the_stack_has_slack():
    compose = (Path(__file__).parents[3] / "docker-compose.yml").read_text()
    defaults = dict(re.findall(r"\$\{CODE_(\w+):-(\d+)g?\}", compose))
    workers, limit_mb, memory = (
        int(defaults[name]) for name in ("WORKERS", "PROGRAM_MEMORY_MB", "MEMORY")
    )
    files = int(re.search(r"/tmp:size=(\d+)m", compose)[1]) * MIB
    assert slack_bytes(memory * GIB, workers, limit_mb) - files >= GIB


# Who waits


def test_a_job_is_passed_only_by_those_that_leave_what_it_needs():
    memory = Memory(10)
    running, large, small, other = Share(6), Share(7), Share(3), Share(1)
    assert memory.take(running)
    assert not memory.take(large)
    assert memory.take(small)  # of the 3 that the large one leaves
    assert not memory.take(other)  # though there is 1: the large one would wait for it
    memory.give_back(small)
    assert not memory.take(large)
    assert memory.take(other)
    memory.give_back(running)
    assert memory.take(large)
    assert memory.waits == 2
    for each in (large, other):
        memory.give_back(each)
    assert memory.take(Share(99))  # more than there is: it is alone
    assert not memory.take(small)
    memory = Memory(10)
    assert memory.take(running)
    assert not memory.take(large)
    assert not memory.take(Share(4))
    memory.forget(large)  # which no longer waits
    assert memory.take(Share(4))


# In a container

#: The first one takes all that it can, also what its limit does not count, and keeps it.
HOG, HOLDS = sources("memory").values()


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_programs_do_not_lose_their_memory_to_others(level: str):
    """In 2 GiB, which the programs that may use a core at the same time would exceed."""
    flags = ("--isolation", level, "--workers", "4", "--cache", "", "--set", "cache_mb=0")
    with (
        memory_group(2 * GIB) as group,
        service_process("code", *flags, prefix=group.command) as (_, url),
        httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
        ThreadPoolExecutor(32) as threads,
    ):

        def score(revision: str, tests: dict[str, object], memory_mb: int) -> tuple[object, ...]:
            limits = {"memory_mb": memory_mb, "output_kb": 4096, "cpu_s": 1, "wall_s": 30}
            body = {"revision": revision, "tests": tests, "limits": limits}
            response = client.post("/score", json=body)
            return response.status_code, response.json().get("score")

        def honest(number: int, seconds: float, held_mb: int, memory_mb: int) -> tuple[object, ...]:
            tests = stdio(("", str((held_mb << 20) + number)))
            if number % 5 == 0:
                tests = asserts(f"assert f(1) in ({number + 1},)")
            return score(HOLDS.format(held_mb, seconds, number), tests, memory_mb)

        large = threads.map(lambda number: honest(number, 1, 240, 256), range(9))
        assert list(large) == [(200, 1.0)] * 9
        hogs = [
            threads.submit(score, f"{HOG}#{tests['kind']} {memory_mb}", tests, memory_mb)
            for memory_mb, tests in (
                (448, stdio(("", ""))),
                (64, asserts("assert len(f(40)) in (f(41),)")),
            )
        ]
        small = threads.map(lambda number: honest(number, 0.02, 10, 32), range(20))
        assert list(small) == [(200, 1.0)] * 20
        assert [each.result() for each in hogs] == [(200, 0.0)] * len(hogs)
        assert group.kills() == 0
        metrics = client.get("/metrics").text
        assert "rewardfleet_program_kills_total 0.0" in metrics
        assert "rewardfleet_memory_waits_total 0.0" not in metrics
