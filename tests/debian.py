"""Programs from Debian's packages, without installing these, at this machine's mirror."""

import os
import subprocess
from pathlib import Path

#: The release of the packages.
RELEASE = "trixie"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class MissingTool(Exception):
    """A tool that the tests need is not available on this machine."""


def extract(packages: tuple[str, ...], folder: Path) -> None:
    """Download packages and extract them, with an apt apart from that of the system.

    Raises:
        MissingTool: This is not Debian, or a package cannot be downloaded.
    """
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial", "parts"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(source() + "\n")
    (apt / "status").touch()
    options = {
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": apt / "parts",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": "3",
    }
    flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
    run("apt-get", *flags, "update", "-qq")
    run("apt-get", *flags, "download", "-qq", *packages, cwd=apt)
    for package in apt.glob("*.deb"):
        run("dpkg-deb", "--extract", str(package), str(folder / "extracted"))


def source() -> str:
    """Return the line of apt's sources for the release."""
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not sources.exists():
        raise MissingTool(f"{sources} does not exist: the mirror is unknown")
    lines = sources.read_text().splitlines()
    mirror = next(line.split()[1] for line in lines if line.startswith("URIs:"))
    return f"deb [signed-by={_KEYRING}] {mirror} {RELEASE} main"


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a command.

    Raises:
        MissingTool: It failed.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingTool(f"{' '.join(command)}: {done.stdout[-2000:]}")
