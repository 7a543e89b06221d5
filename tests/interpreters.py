"""`make test-interpreters`: the fast tests on every Python from 3.11 to 3.13 that this machine has.

On Python 3.11, the client is also tested alone: installed from a wheel, next to the oldest versions
of its dependencies. With `--slice`, each version runs the tests of `SLICE` only, and 3.12, which
lies between others, none.

Each runs in a copy of the tracked files with its own environment. If this program runs as root,
the tests run as the user nobody where that user can execute the interpreter, as root may do more
than an ordinary user.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from install import STEP_SECONDS, install, make_environment
from server.processes import service_process

ROOT = Path(__file__).parent.parent
NAMES = ("python3.11", "python3.12", "python3.13", "python3")
NOBODY = 65534
#: Seconds for the tests of an interpreter.
TEST_SECONDS = 2700
#: What depends most on the version: the tree of a program, its runs in a jail, and all contracts.
SLICE = ["tests/contract", "tests/server/code/test_normal_form_pairs.py"]
SLICE += ["tests/server/code/test_verdicts.py"]


def main() -> int:
    paths = SLICE if sys.argv[1:] == ["--slice"] else []
    tested = json.loads(_ask(sys.executable))[0]  # `make test` has tested this one
    failed = []
    for path, version in interpreters():
        started = time.monotonic()
        passed = test_client(path) if version.startswith("3.11.") else True
        if version != tested and not (paths and version.startswith("3.12.")):
            passed = test(path, paths) and passed
        seconds = time.monotonic() - started
        print(f"Python {version} ({path}): {'passed' if passed else 'FAILED'} in {seconds:.0f} s")
        if not passed:
            failed.append(version)
    return 1 if failed else 0


def interpreters() -> Iterator[tuple[str, str]]:
    """Yield the path and version of every interpreter, each version once."""
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/bin", "/usr/local/bin"]
    folders += [str(each / "bin") for each in Path("~/.pyenv/versions").expanduser().glob("*")]
    seen = set()
    for folder in dict.fromkeys(folders):
        for name in NAMES:
            try:
                version, executable, has_venv = json.loads(_ask(f"{folder}/{name}"))
            except (OSError, subprocess.SubprocessError, ValueError):
                continue
            short = tuple(map(int, version.split(".")[:2]))
            if (3, 11) <= short <= (3, 13) and has_venv and version not in seen:
                seen.add(version)
                yield executable, version


def _ask(path: str) -> str:
    program = (
        "import importlib.util, json, platform, sys\n"
        "has = importlib.util.find_spec('ensurepip') is not None\n"
        "print(json.dumps([platform.python_version(), sys.executable, has]))"
    )
    command = [path, "-c", program]
    return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=60)


def test(python: str, paths: list[str]) -> bool:
    """Run the fast tests with an interpreter: all, or those below some paths."""
    with tempfile.TemporaryDirectory(prefix="rewardfleet-interpreter-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        checkout, home = folder / "checkout", folder / "home"
        _copy_tracked_files(checkout)
        home.mkdir()
        user: dict[str, object] = {}
        if os.geteuid() == 0 and _nobody_can_run(python):
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", name], check=True)
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        kept = re.compile(r"PATH|LANG|CI|(PIP|SSL|UV)_.*")
        environment = {k: v for k, v in os.environ.items() if kept.fullmatch(k)}
        options = {"cwd": checkout, "env": {**environment, "HOME": str(home)}, **user}
        try:
            own_python = make_environment(Path(python), folder / "venv", **options)
            install(own_python, ["--require-hashes", "-r", "requirements.lock"], **options)
            projects = ["--editable", ".", "--editable", "contrib/router"]
            install(own_python, ["--no-deps", "--no-build-isolation", *projects], **options)
        except subprocess.SubprocessError as error:
            print(error)
            return False
        tests = [str(own_python), "-m", "pytest", "-q", "-n", "6", "--dist", "worksteal"]
        tests += ["-m", "not slow and not serial and not full", "-p", "no:cacheprovider", *paths]
        return not subprocess.run(tests, timeout=TEST_SECONDS, check=False, **options).returncode


#: The oldest versions that the client accepts, which a trainer may have.
OLDEST = ["click==8.2.0", "httpx==0.28.0", "numpy==1.26.0", "pydantic==2.11.0", "sniffio==1.3.0"]
#: Tests of the client that need no service.
PURE = ("test_episodes.py", "test_tool_budget_math.py", "test_tool_use.py")


def test_client(python: str) -> bool:
    """Install the client as a trainer's environment would, and test it against real services."""
    with tempfile.TemporaryDirectory(prefix="rewardfleet-client-") as name, ExitStack() as stack:
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        needed = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "dtaidistance"]
        try:
            build = [*wheel, "--no-build-isolation", "--wheel-dir", name, str(ROOT)]
            subprocess.run(build, timeout=STEP_SECONDS, check=True)
            own_python = make_environment(Path(python), Path(name, "venv"))
            install(own_python, [*OLDEST, *needed, "scipy<1.14"])
            before = _installed(own_python)
            (built,) = Path(name).glob("*.whl")
            install(own_python, [str(built)])
        except subprocess.SubprocessError as error:
            print(error)
            return False
        changed = sorted(set(_installed(own_python)) - set(before))
        if [each.partition("==")[0].partition(" ")[0] for each in changed] != ["rewardfleet"]:
            print(f"the installation of the client changed {changed}")
            return False
        urls = {}
        for service in ("code", "episode", "tools", "video"):
            _, urls[service] = stack.enter_context(service_process(service))
        environment = {**os.environ, "REWARDFLEET_TEST_URLS": json.dumps(urls)}
        tests = [str(ROOT / "tests" / "oldest_packages.py")]
        tests += [str(ROOT / "tests" / "client" / each) for each in PURE]
        pytest = [str(own_python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest += ["-p", "no:anyio"]  # its plugin uses what pytest has deprecated
        pytest += ["--hypothesis-profile=ci"]  # tests/conftest.py, which needs the server, has ours
        options = {"cwd": ROOT, "env": environment, "timeout": TEST_SECONDS}
        command = [*pytest, "--noconftest", *tests]
        return not subprocess.run(command, check=False, **options).returncode


def _installed(python: Path) -> list[str]:
    freeze = [str(python), "-m", "pip", "freeze"]
    return subprocess.check_output(freeze, text=True, timeout=60).splitlines()


def _copy_tracked_files(target: Path) -> None:
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def _nobody_can_run(python: str) -> bool:
    options = {"user": NOBODY, "group": NOBODY, "cwd": "/", "stderr": subprocess.DEVNULL}
    try:
        subprocess.check_output([python, "-c", "import ensurepip"], **options)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
