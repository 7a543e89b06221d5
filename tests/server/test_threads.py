"""Threads of services, and the cores that they may use."""

import os
import sys
from pathlib import Path

import pytest

from rewardfleet_server.system.cgroups import cpu_quotas

from ..cgroups import cpu_group
from ..conftest import table
from ..running import output_of

PROGRAM = """
import os
from concurrent.futures import ThreadPoolExecutor
from rewardfleet_server.system.threads import lower_thread_priority

def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)

def in_thread():
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as pool:
        return pool.submit(niceness).result()

own = niceness()
print(in_thread() - max(own, 10), niceness() - own)
os.nice(15)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may lower any niceness
print(in_thread() - niceness())
"""


def test_threads_compute_at_a_low_priority_also_in_a_service_with_a_lower_one():
    assert output_of(sys.executable, "-c", PROGRAM).split() == ["0", "0", "0"]


WORKERS = "from rewardfleet_server.code.settings import CodeSettings as S; print(S().workers)"


def test_only_the_cores_of_the_process_count():
    """Also with the options of the code service, whose workers are as many."""
    core = min(os.sched_getaffinity(0))
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); {WORKERS}"
    assert output_of(sys.executable, "-c", program) == "1\n"


@pytest.mark.parametrize(("quota", "cores"), [(1.5, 1), (0.2, 1), (4096.0, None)])
def test_only_the_cores_within_the_cpu_quota_count(quota: float, cores: int | None):
    """As in a container with a CPU limit. A quota beyond the machine changes nothing."""
    with cpu_group(quota) as group:
        found = output_of(*group.command, sys.executable, "-c", WORKERS)
    assert int(found) == (cores or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(("group", "mount", "files", "quotas"), table("cpu_quotas"))
def test_cpu_quotas_are_those_of_the_cgroups_of_both_versions(
    tmp_path: Path, group: str, mount: str, files: dict[str, str], quotas: list[float]
):
    found = {"proc/self/cgroup": group, "proc/self/mountinfo": mount}
    for name, content in {**found, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert list(cpu_quotas(tmp_path)) == quotas
