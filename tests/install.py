"""Make a virtual environment of locked, hash-checked requirements and of this project.

    python3 tests/install.py .venv requirements.lock

pip installs uv first, and uv the rest, from the package indexes that pip is configured with. Files
are hard links into uv's cache where the file system allows it. If uv cannot be installed, or cannot
install the requirements, pip installs them.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: The version of uv is locked here.
LOCK = ROOT / "requirements.lock"
#: Seconds of one step: a download of gigabytes from a slow index.
STEP_SECONDS = 3600

#: Options of pip that say where packages come from, and those of uv that mean the same.
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
#: Options of pip that are environment variables of uv.
UV_VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY", "timeout": "UV_HTTP_TIMEOUT"}


def main() -> int:
    """Install what the command line names; return 1 if that fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path, help="folder of the virtual environment")
    parser.add_argument(
        "requirements", type=Path, nargs="+", help="files with pinned versions and hashes"
    )
    parser.add_argument(
        "--also", type=Path, action="append", default=[], help="another project of this repository"
    )
    parser.add_argument("--no-deps", action="store_true", help="install what the file lists only")
    arguments = parser.parse_args()
    started = time.monotonic()
    locked = "".join(each.read_text() for each in arguments.requirements)
    count = len(re.findall(r"(?m)^[\w.-]+(?:\[.*\])?==", locked))
    where = f"{count} packages into {arguments.environment}"
    print(f"installing {where} ...", flush=True)
    files = [word for each in arguments.requirements for word in ("-r", str(each))]
    projects = [word for each in (ROOT, *arguments.also) for word in ("--editable", str(each))]
    steps = [
        [*(["--no-deps"] if arguments.no_deps else []), "--require-hashes", *files],
        ["--no-deps", "--no-build-isolation", *projects],
    ]
    try:
        python = make_environment(Path(sys.executable), arguments.environment)
        for step in steps:
            install(python, step)
    except subprocess.SubprocessError as error:
        print(f"the installation failed: {error}", file=sys.stderr)
        return 1
    print(f"installed {where} in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def make_environment(interpreter: Path, folder: Path, **options: object) -> Path:
    """Make a virtual environment with pip and, if it can be installed, uv; return its Python.

    Raises:
        subprocess.SubprocessError: The environment cannot be made.
    """
    _run([str(interpreter), "-m", "venv", str(folder)], **options)
    python = folder / "bin" / "python"
    locked = re.search(r"(?m)^uv==.*(\n .*--hash.*)+", LOCK.read_text())
    assert locked, f"{LOCK} has no uv"
    only_uv = folder / "uv.txt"
    only_uv.write_text(locked[0])
    try:
        _run([*_pip(python), "--require-hashes", "-r", str(only_uv)], **options)
    except subprocess.CalledProcessError:
        print("uv cannot be installed, pip is used instead", flush=True)
    return python


def install(python: Path, arguments: list[str], **options: object) -> None:
    """Install by uv into the environment of an interpreter, else by pip.

    Raises:
        subprocess.SubprocessError: pip failed as well, or a step did not end in time.
    """
    uv = python.with_name("uv")
    if uv.exists():
        settings = dict(_pip_settings(python))
        flags = [
            word
            for name, flag in UV_OPTIONS.items()
            for value in settings.get(name, "").split()
            for word in (flag, value)
        ]
        given = {UV_VARIABLES[k]: v for k, v in settings.items() if k in UV_VARIABLES}
        environment = {**given, **(options.pop("env", None) or os.environ)}
        # As pip does, which takes the best version of all indexes; hashes say what is accepted.
        flags += ["--index-strategy", "unsafe-best-match"]
        # As pip does; else each process compiles what it imports, where none may write.
        flags += ["--compile-bytecode"]
        command = [str(uv), "pip", "install", "--quiet", "--python", str(python), *flags]
        try:
            return _run([*command, *arguments], env=environment, **options)
        except subprocess.CalledProcessError:
            print("uv cannot install this, pip is used instead", flush=True)
    return _run([*_pip(python), *arguments], **options)


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def _pip_settings(python: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of pip in files, then in environment variables, which win."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    for section in ("global", "install", ":env:"):
        for name, value in re.findall(rf"(?m)^{section}\.([\w-]+)=(.*)$", listed):
            yield name, str(ast.literal_eval(value))


def _run(command: list[str], **options: object) -> None:
    subprocess.run(command, timeout=STEP_SECONDS, check=True, **options)


if __name__ == "__main__":
    sys.exit(main())
