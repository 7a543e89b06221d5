"""What `rewardfleet.adapters.router` exports, with torch and without."""

import importlib.util
import subprocess
import sys

import pytest

from rewardfleet.adapters import router

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
from rewardfleet.adapters import router
print(router.Route.ANSWER)
try:
    router.RouterHead
except ImportError as error:
    print(error)
try:
    router.no_such_name
except AttributeError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_torch_routes_work_and_the_head_says_what_it_needs():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "ANSWER",
        "RouterHead needs PyTorch: pip install torch",
        "module 'rewardfleet.adapters.router' has no attribute 'no_such_name'",
    ]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_all_names_exist():
    assert router.__all__ == sorted(router.__all__)
    for name in router.__all__:
        assert getattr(router, name).__doc__ or name == "ROUTES", name
