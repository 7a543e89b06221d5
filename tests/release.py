"""`make release`: build the distributions, test them in empty environments, and write `dist/`.

On every Python from 3.11 to 3.13 that this machine has, the client is installed by pip, and the
services by uv. There is no repository there: the demo and the commands of the client run from what
was installed. `dist/` then has what a release needs. Nothing is published.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement

import rewardfleet
from chaos.fleet import fleet_up
from install import install
from interpreters import interpreters

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
#: The folder of each distribution, and the folders of its packages.
DISTRIBUTIONS = {".": ("clients", "services"), "contrib/router": ("contrib/router",)}
#: The largest wheel, in bytes. Most of it is the reference library and the clips of the demo.
MAX_WHEEL_BYTES = 10 * 2**20
#: Seconds of one command of an environment.
COMMAND_SECONDS = 300

#: A call of the client, given the URL of a fleet.
CALL = """
import sys
from rewardfleet import blocking
with blocking.RewardFleet(sys.argv[1]) as fleet:
    tests = {"kind": "stdio", "cases": [{"stdin": "2 3", "stdout": "5"}]}
    print(fleet.code.score("print(sum(map(int, input().split())))", tests).score)
"""


class Failed(Exception):
    """Something about the release is wrong."""


def main() -> int:
    """Make a release; return 1 if something about it is wrong."""
    with tempfile.TemporaryDirectory(prefix="rewardfleet-release-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # programs of the code service run as another user
        try:
            wheel, sdist, router = build(folder)
            newest = {
                version.rpartition(".")[0]: (path, version) for path, version in interpreters()
            }
            found = sorted(newest.values(), key=lambda each: each[1].split("."), reverse=True)
            pythons = [test_server(folder, *each, wheel) for each in found]
            with running_fleet(pythons[0], folder) as url:
                for path, version in found:
                    test_client(folder, path, version, wheel, url)
                test_client(folder, *found[0], sdist, url)
            test_router(folder, found[0][0], [wheel, router])
            write_notes([wheel, sdist, router])
        except Failed as error:
            print(f"the release failed: {error}", file=sys.stderr)
            return 1
    return 0


# Building


def build(folder: Path) -> tuple[Path, Path, Path]:
    """Build all distributions into `dist/`; return the wheel, the sdist and the router's wheel.

    Wheels are built from sdists, and must be what they would be if built from the repository.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    wheels, sdists = [], []
    for number, (place, packages) in enumerate(DISTRIBUTIONS.items()):
        project, unpacked = ROOT / place, folder / f"sdist{number}"
        sdist = hatchling(project, "sdist")
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (inside,) = unpacked.iterdir()
        wheel = hatchling(inside, "wheel")
        check_wheel(wheel, packages)
        print(
            f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: as complete", flush=True
        )
        wheels.append(wheel)
        sdists.append(sdist)
    return wheels[0], sdists[0], wheels[1]


def hatchling(project: Path, kind: str) -> Path:
    before = set(DIST.glob("*"))
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(DIST)], cwd=project)
    (built,) = set(DIST.glob("*")) - before
    return built


def check_wheel(wheel: Path, packages: tuple[str, ...]) -> None:
    """Check that a wheel has all tracked files of its packages, nothing else, and its metadata."""
    listed = run(["git", "ls-files", "-z", *packages], cwd=ROOT).split("\0")
    tracked = set()
    for place in packages:
        paths = [each.removeprefix(f"{place}/") for each in listed if each.startswith(f"{place}/")]
        tracked |= {each for each in paths if each.partition("/")[0] in PACKAGES}
    with zipfile.ZipFile(wheel) as archive:
        names = {each for each in archive.namelist() if ".dist-info/" not in each}
        (path,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        text = archive.read(path).decode()
        licenses = [each for each in archive.namelist() if "/licenses/LICENSE" in each]
    if names != tracked:
        raise Failed(f"{wheel.name} differs from the repository in {sorted(names ^ tracked)}")
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        raise Failed(f"{wheel.name} has more than {MAX_WHEEL_BYTES} bytes")
    metadata = Metadata.from_email(text, validate=True)
    needed = ("summary", "description", "license_expression", "requires_python", "project_urls")
    missing = [each for each in needed if not getattr(metadata, each)]
    if missing or not licenses:
        raise Failed(
            f"{wheel.name} has no {', '.join([*missing, *(['LICENSE'] * (not licenses))])}"
        )
    if str(metadata.version) != HeaderParser().parsestr(text)["Version"]:
        raise Failed(f"{wheel.name}: its version is not in normal form")
    cited = re.search(r"(?m)^version: (.*)$", (ROOT / "CITATION.cff").read_text())
    if cited is None or cited[1] != rewardfleet.__version__:
        raise Failed(f"CITATION.cff does not have the version {rewardfleet.__version__}")


#: What wheels contain at their top.
PACKAGES = {"rewardfleet", "rewardfleet_command.py", "rewardfleet_server", "rewardfleet_router"}


# Environments


def test_server(folder: Path, interpreter: str, version: str, wheel: Path) -> Path:
    """Install the services by uv and run the demo; return the environment's Python."""
    started = time.monotonic()
    python = make_environment(interpreter, folder / f"server-{version}")
    install_by_uv(python, [f"rewardfleet[server] @ {wheel.as_uri()}"])
    installed = time.monotonic() - started
    shown = command(python, "demo")
    if "AUROC 1.000 over 4 successes and 7 failures" not in shown or "code  " not in shown:
        raise Failed(f"the demo on Python {version}: {shown}")
    report("services", version, wheel, installed, started)
    return python


def test_client(folder: Path, interpreter: str, version: str, file: Path, url: str) -> None:
    """Install the client by pip, and use its commands and a fleet."""
    started = time.monotonic()
    place = folder / f"client-{version}-{file.suffix[1:]}"
    python = make_environment(interpreter, place)
    quiet = ["--quiet", "--disable-pip-version-check"]
    run([str(python), "-m", "pip", "install", *quiet, f"rewardfleet @ {file.as_uri()}"])
    run([str(python), "-m", "pip", "check"])
    installed = time.monotonic() - started
    extra = packages_of_server(python)
    if extra:
        raise Failed(f"the client on Python {version} installs {', '.join(sorted(extra))}")
    version_line = f"rewardfleet {rewardfleet.__version__}\n"
    by_module = run([str(python), "-m", "rewardfleet", "-V"])
    if not command(python, "--version") == by_module == version_line:
        raise Failed(f"Python {version}: another version than {rewardfleet.__version__}")
    clip = next((ROOT / "tests/data/libero/videos").glob("*put_the_bowl_on_the_stove__success*"))
    task = "put the bowl on the stove"
    shown = [
        command(python, "status", url),
        command(python, "doctor"),
        command(python, "load", url, "--duration-s", "1", "--max-errors", "0"),
        command(python, "score", "video", str(clip), task, "--url", url),
        run([str(python), "-c", CALL, url], cwd=place),
    ]
    if shown[-1].strip() != "1.0":
        raise Failed(f"the client on Python {version}: {shown}")
    report("client", version, file, installed, started)


def make_environment(interpreter: str, place: Path) -> Path:
    run([interpreter, "-m", "venv", str(place)])
    return place / "bin" / "python"


def install_by_uv(python: Path, packages: list[str]) -> None:
    """Install by the uv of this environment into another one, which does not have it."""
    uv = python.with_name("uv")
    uv.symlink_to(Path(sys.executable).with_name("uv"))
    try:
        install(python, packages)
    except subprocess.SubprocessError as error:
        raise Failed(str(error)) from None
    finally:
        uv.unlink()


def packages_of_server(python: Path) -> set[str]:
    """Return the packages of an environment that only the extra `server` needs."""
    program = (
        "import importlib.metadata as m\n"
        "print(*[d.name for d in m.distributions()], sep='\\n')\n"
        "print('==', *m.requires('rewardfleet'), sep='\\n')"
    )
    names, _, requirements = run([str(python), "-c", program]).partition("==\n")
    parsed = [Requirement(each) for each in requirements.splitlines()]
    server = {each.name for each in parsed if each.marker and "server" in str(each.marker)}
    return {each for each in names.split() if each in server}


def test_router(folder: Path, interpreter: str, wheels: list[Path]) -> None:
    started = time.monotonic()
    python = make_environment(interpreter, folder / "router")
    install_by_uv(python, list(map(str, wheels)))
    installed = time.monotonic() - started
    if "Usage: " not in run([str(python.with_name("rewardfleet-router")), "--help"]):
        raise Failed("the router has no help")
    report("router", "", wheels[-1], installed, started)


@contextmanager
def running_fleet(python: Path, folder: Path) -> Iterator[str]:
    config = "".join(f"[{name}]\nport = 0\n" for name in ("video", "code", "episode", "tools"))
    program = [str(python.with_name("rewardfleet"))]
    with fleet_up(folder, config, program=program, cwd=folder, env=environment()) as fleet:
        yield fleet.url


def command(python: Path, *arguments: str) -> str:
    """Run the command of an environment, outside of the repository; return its output."""
    return run([str(python.with_name("rewardfleet")), *arguments], cwd=python.parent)


def run(arguments: list[str], cwd: Path | None = None) -> str:
    """Run a program; return its output.

    Raises:
        Failed: Its status is not 0.
    """
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        shown = " ".join(arguments)[:300]
        raise Failed(f"status {done.returncode} of {shown}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return this environment without what belongs to development."""
    own = ("PYTHON", "REWARDFLEET_", "VIRTUAL_ENV", "COLUMNS")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def report(what: str, version: str, file: Path, installed_s: float, started: float) -> None:
    used = time.monotonic() - started - installed_s
    words = f"{what} {version} ({file.name})"
    print(f"{words:62} installed in {installed_s:3.0f} s, used in {used:3.0f} s", flush=True)


# What a release needs


def write_notes(files: list[Path]) -> None:
    """Write the digests of all files, and the changes with the steps of a release."""
    built = sorted(DIST.glob("rewardfleet*"))
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in built]
    (DIST / "SHA256SUMS").write_text("".join(sums))
    changes = (ROOT / "CHANGELOG.md").read_text()
    version = rewardfleet.__version__
    section = re.search(
        rf"(?ms)^## \[?(?:{re.escape(version)}|Unreleased)\b.*?(?=^## |\Z)", changes
    )
    if section is None:
        raise Failed(f"CHANGELOG.md has neither {version} nor Unreleased")
    steps = [
        f"Give the section of CHANGELOG.md the heading `## {version}` and a date, if it has none.",
        f"Tag the commit: `git tag -s v{version}`, and push the tag.",
        "Check the files: `sha256sum --check SHA256SUMS`.",
        f"Upload {', '.join(f'`{each.name}`' for each in built)} to the package index.",
        "Then pages may say `pip install rewardfleet`; until then they say `pip install .`.",
    ]
    numbered = "".join(f"{number}. {step}\n" for number, step in enumerate(steps, 1))
    (DIST / "RELEASE.md").write_text(f"# Release {version}\n\n{numbered}\n{section[0]}")
    print(f"{DIST.name}/: {', '.join(each.name for each in sorted(DIST.iterdir()))}")


if __name__ == "__main__":
    sys.exit(main())
