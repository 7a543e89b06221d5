"""Threads of services, and the cores that they may use."""

import os
import subprocess
import sys

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
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "0", "0"]


def test_only_the_cores_of_the_process_count():
    """Also with the options of the code service, whose workers are as many."""
    program = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "from rewardfleet_server.code.settings import CodeSettings\n"
        "print(CodeSettings().workers)"
    )
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", program, str(core)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
