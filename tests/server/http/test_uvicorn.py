"""What `http/protocol.py` needs of uvicorn, which promises none of it, on its newest release."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
#: The tests of what the protocol does.
TESTS = ("test_connections.py", "test_draining.py", "test_hosts.py", "test_openenv.py")


def accepted() -> Requirement:
    """Return the releases that the extra `server` accepts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, project["optional-dependencies"]["server"])
    return next(each for each in needed if each.name == "uvicorn")


def test_the_tested_release_of_uvicorn_is_the_only_series_that_is_accepted():
    """A later one may lack what the protocol uses, or call it differently."""
    tested = version("uvicorn")
    major, minor = map(int, tested.split(".")[:2])
    assert accepted().specifier.contains(tested)
    assert not accepted().specifier.contains(f"{major}.{minor + 1}.0")


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_protocol_works_on_the_newest_release_of_uvicorn(tmp_path: Path):
    """If it is outside the accepted range and passes, the range can be raised."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    done = subprocess.run(
        [*install, str(tmp_path), "uvicorn"], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no registry: {done.stderr.splitlines()[-1:]}")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ask = [sys.executable, "-c", "import uvicorn; print(uvicorn.__version__, uvicorn.__file__)"]
    newest = subprocess.check_output(ask, env=environment, text=True, timeout=60).split()
    assert newest[1].startswith(str(tmp_path))
    tests = [str(Path(__file__).with_name(each)) for each in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    tested = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500,
        check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout[-5000:]
    assert accepted().specifier.contains(newest[0]), f"it works: accept uvicorn {newest[0]}"
