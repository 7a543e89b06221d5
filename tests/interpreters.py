"""`make test-interpreters`: the fast tests on every Python from 3.11 to 3.13 that this machine has.

On Python 3.10, if it is there, the client is tested alone: installed from a wheel, next to the
oldest versions of its dependencies.

Each runs in a copy of the tracked files with its own environment. If this program runs as root,
the tests run as the user nobody where that user can execute the interpreter, as root may do more
than an ordinary user.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from server.processes import service_process

ROOT = Path(__file__).parent.parent
NAMES = ("python3.10", "python3.11", "python3.12", "python3.13", "python3")
NOBODY = 65534
#: Seconds for the installation, and for the tests.
INSTALL_SECONDS, TEST_SECONDS = 1800, 2700


def main() -> int:
    """Test every interpreter; return 1 if one failed."""
    tested = json.loads(_ask(sys.executable))[0]  # `make test` has tested this one
    failed = []
    for path, version in interpreters():
        if version == tested:
            continue
        started = time.monotonic()
        passed = test_client(path) if version.startswith("3.10.") else test(path)
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
            path = Path(folder, name)
            if not path.is_file():
                continue
            try:
                version, executable, has_venv = json.loads(_ask(str(path)))
            except (OSError, subprocess.SubprocessError, ValueError):
                continue
            short = tuple(map(int, version.split(".")[:2]))
            if (3, 10) <= short <= (3, 13) and has_venv and version not in seen:
                seen.add(version)
                yield executable, version


def _ask(path: str) -> str:
    program = (
        "import importlib.util, json, platform, sys\n"
        "has = importlib.util.find_spec('ensurepip') is not None\n"
        "print(json.dumps([platform.python_version(), sys.executable, has]))"
    )
    return subprocess.run(
        [path, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test(python: str) -> bool:
    """Run the fast tests with an interpreter."""
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
        own = {k: v for k, v in os.environ.items() if k in {"PATH", "LANG", "CI"}}
        pip_settings = {
            k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "UV_"))
        }
        options = {"cwd": checkout, "env": {**own, **pip_settings, "HOME": str(home)}, **user}
        environment = str(folder / "venv")
        pip = f"{environment}/bin/pip"
        install = [pip, "install", "--quiet", "--disable-pip-version-check"]
        commands = [
            [python, "-m", "venv", environment],
            [*install, "--require-hashes", "-r", "requirements.lock"],
            [*install, "--no-deps", "--no-build-isolation", "-e", "."],
        ]
        for command in commands:
            done = subprocess.run(command, timeout=INSTALL_SECONDS, check=False, **options)
            if done.returncode:
                return False
        tests = [f"{environment}/bin/python", "-m", "pytest", "-q", "-m", "not slow"]
        tests += ["-p", "no:cacheprovider"]
        return not subprocess.run(tests, timeout=TEST_SECONDS, check=False, **options).returncode


#: The oldest versions that the client accepts, which a trainer may have.
OLDEST = [
    "click==8.2.0",
    "httpx==0.28.0",
    "numpy==1.26.0",
    "pydantic==2.11.0",
    "typing-extensions==4.12.2",
]
#: Tests of the client that need no service.
PURE = ("test_episodes.py", "test_tool_budget_math.py", "test_tool_prompts.py", "test_tool_use.py")


def test_client(python: str) -> bool:
    """Install the client as a trainer's environment would, and test it against real services."""
    with tempfile.TemporaryDirectory(prefix="rewardfleet-client-") as name, ExitStack() as stack:
        pip = [f"{name}/venv/bin/pip", "--disable-pip-version-check"]
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        needed = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "dtaidistance"]
        commands = [
            [*wheel, "--no-build-isolation", "--wheel-dir", name, str(ROOT)],
            [python, "-m", "venv", f"{name}/venv"],
            [*pip, "install", "--quiet", *OLDEST, *needed, "scipy<1.14"],
        ]
        for command in commands:
            if subprocess.run(command, timeout=INSTALL_SECONDS, check=False).returncode:
                return False
        before = _installed(pip)
        (built,) = Path(name).glob("*.whl")
        install = [*pip, "install", "--quiet", str(built)]
        subprocess.run(install, timeout=INSTALL_SECONDS, check=True)
        changed = sorted(set(_installed(pip)) - set(before))
        if [each.partition("==")[0].partition(" ")[0] for each in changed] != ["rewardfleet"]:
            print(f"pip install changed {changed}")
            return False
        urls = {}
        for service in ("code", "episode", "tools", "video"):
            _, urls[service] = stack.enter_context(service_process(service))
        environment = {**os.environ, "REWARDFLEET_TEST_URLS": json.dumps(urls)}
        tests = [str(ROOT / "tests" / "oldest_python.py")]
        tests += [str(ROOT / "tests" / "client" / each) for each in PURE]
        pytest = [f"{name}/venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest += ["-p", "no:anyio"]  # its plugin uses what pytest has deprecated
        done = subprocess.run(
            [*pytest, "--noconftest", *tests],
            cwd=ROOT,
            env=environment,
            timeout=TEST_SECONDS,
            check=False,
        )
        return not done.returncode


def _installed(pip: list[str]) -> list[str]:
    listed = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def _copy_tracked_files(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in listed.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def _nobody_can_run(python: str) -> bool:
    command = [python, "-c", "import ensurepip"]
    try:
        return not subprocess.run(
            command, user=NOBODY, group=NOBODY, cwd="/", capture_output=True, check=False
        ).returncode
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
