"""Packages that programs can import: virtual environments for the jails, built once and cached."""

import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rewardfleet_server.code.sandboxes.jail.isolation import Python, find_python, jail_user
from rewardfleet_server.code.settings import CodeSettings, environments_folders
from rewardfleet_server.system.child_process import end_with_parent

log = logging.getLogger(__name__)

#: What is installed by default: what most programs and tests of data sets import.
DEFAULT_PACKAGES = ("numpy", "pytest", "sortedcontainers")
#: Packages whose modules have other names, of those that tests and solutions of datasets import.
_PACKAGES = {
    "Crypto": "pycryptodome", "Levenshtein": "python-Levenshtein", "PIL": "pillow",
    "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
    "docx": "python-docx", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "PyYAML",
}  # fmt: skip
BUILD_COMMAND = "rewardfleet packages build"  #: the command that installs them

#: Bytes of an installer's output that are searched for the reason of a failure.
_MAX_OUTPUT = 100_000
_MAX_REASON = 400
#: The line of a traceback that says what was raised, what names the package of a frame, and a
#: line that names a missing module.
_ERROR = re.compile(
    r"(?m)^(?: {4}.*\n(?=[\w.]+(?::|$))|(?=[\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b))(.*)"
)
_INSTALLED = re.compile(r"-packages/(\w{1,100})")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w{1,100})")
#: Seconds of one step of a build, e.g. of a download from a slow registry.
_STEP_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment for the jails: it is complete, or does not exist."""

    requirements: tuple[str, ...]  #: what is installed: names of packages with version specifiers
    base: Python  #: the interpreter that it is made with
    folder: Path  #: where it is, or will be: named after its interpreter and requirements

    @property
    def is_built(self) -> bool:
        """Whether it exists, and can be reached."""
        return os.access(self.folder, os.F_OK)

    def build(self) -> Python:
        """Build it unless it exists, and return its interpreter. Processes wait for each other.

        Raises:
            ValueError: A package cannot be installed, also for lack of pip and uv or because it
                takes too long; or the user of the jails could not use it.
        """
        if self.is_built:  # maybe in a folder that cannot be written to
            return _python_in(self.folder)
        try:
            _make_folders(self.folder.parent)
            with self.folder.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self.is_built:
                    self._build(lock.fileno())
        except OSError as error:
            raise ValueError(
                f"--packages: {self.folder.parent} cannot be used: {error.strerror or error}; "
                "XDG_CACHE_HOME names another folder for caches"
            ) from error
        return _python_in(self.folder)

    def _build(self, lock: int) -> None:
        names = ", ".join(self.requirements)
        log.info("installing packages for programs into %s: %s", self.folder, names)
        partial = self.folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a build that was killed
        try:
            _run([self.base.path, "-m", "venv", "--without-pip", str(partial)], lock)
            python = _python_in(partial).path  # checked before anything is downloaded
            _run([*_installer(python), *self.requirements], lock)
            partial.rename(self.folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def environment_of(settings: CodeSettings) -> Environment:
    """Return the environment of `--packages`, or of the default packages; or raise ValueError."""
    base = find_python(settings.python)
    if len(base.prefixes) > 1:
        raise ValueError(
            f"--packages: --python {base.path} is one of a virtual environment, whose packages "
            "programs would not see: install packages there, or give the interpreter it is made of"
        )
    requirements = tuple(settings.packages or DEFAULT_PACKAGES)
    parts = (os.path.realpath(base.path), platform.machine(), *requirements)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    found = [Environment(requirements, base, folder / digest) for folder in environments_folders()]
    return next((each for each in found if each.is_built), found[0])


def jail_python(settings: CodeSettings) -> Python:
    """Return the interpreter of the jails; raise ValueError if none works, or a build fails."""
    if settings.packages:
        return environment_of(settings).build()
    if settings.python is not None:
        return find_python(settings.python)
    environment = environment_of(settings)
    if environment.is_built:
        try:
            return environment.build()
        except ValueError as error:
            log.warning("%s", error)
    return environment.base


def warn_without_packages(settings: CodeSettings, python: Python) -> None:
    """Log how to install the default packages, if the jails use no environment at all."""
    if settings.python is None and len(python.prefixes) == 1:
        names = " or ".join(DEFAULT_PACKAGES)
        log.warning("programs cannot import %s; to install them: %s", names, BUILD_COMMAND)


def how_to_add(settings: CodeSettings, module: str) -> str:
    """Return what an operator does so that programs can import a module."""
    if settings.sandbox == "fusion":
        return "install it on the SandboxFusion server"
    if settings.python is not None and not settings.packages:
        return "install it into the environment of --python, and start the service again"
    packages = ",".join([*(settings.packages or DEFAULT_PACKAGES), _PACKAGES.get(module, module)])
    return f"rewardfleet serve code --packages {shlex.quote(packages)}"


def last_error(stderr: str) -> str:
    """Return the last error in the standard error of a program, as in a traceback; or ""."""
    errors: list[str] = _ERROR.findall(stderr)
    return errors[-1][:_MAX_REASON] if errors else ""


def missing_module(stderr: str) -> str:
    """Return the module that an import lacked, if that is the last error of a program; or ""."""
    found = _MISSING.match(last_error(stderr))
    return found[1] if found else ""


def package_of(stderr: str) -> str:
    """Return the package that raised the last error of a program; "" if none did."""
    return next(iter(_INSTALLED.findall(stderr)[-1:]), "")


def _python_in(folder: Path) -> Python:
    try:
        return find_python(folder / "bin" / "python")
    except ValueError as error:
        user = "nobody (uid 65534)" if jail_user() else "that of the service"
        raise ValueError(
            f"--packages: the user of the jails, {user}, cannot use {folder.parent}; make it "
            "readable, or set XDG_CACHE_HOME to a folder that is"
        ) from error


def _make_folders(folder: Path) -> None:
    """Make a folder that everyone can read, whatever the umask is."""
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            each.mkdir(exist_ok=True)
            each.chmod(0o755)


def _installer(python: str) -> list[str]:
    """Return a command that installs packages for an interpreter, but runs no code of theirs."""
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        options = ["--no-input", "--quiet", "--only-binary", ":all:"]
        return [*pip, "install", *options, "--root-user-action", "ignore"]
    beside = f"{Path(sys.executable).parent}:{os.defpath}"
    uv = shutil.which("uv", path=beside) or shutil.which("uv")
    if uv is None:
        raise ValueError("--packages: neither pip nor uv is installed here")
    # Copies, as links would share the permissions of uv's cache.
    options = ["--quiet", "--no-build", "--link-mode", "copy", "--compile-bytecode"]
    return [uv, "pip", "install", *options, "--python", python]


def _run(command: Sequence[str], lock: int) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - requirements are validated by the settings
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            cwd="/",
            umask=0o022,  # the user of the jails reads it
            pass_fds=[lock],  # if this process is killed, the lock is held until the step has ended
            preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGKILL),
            timeout=_STEP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"--packages: {Path(command[0]).name} did not end within {_STEP_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        lines = done.stdout[-_MAX_OUTPUT:].decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower()]
        reason = (errors or lines or [f"exit status {done.returncode}"])[-1].strip()
        raise ValueError(f"--packages: {reason.removeprefix('ERROR: ')[:_MAX_REASON]}")
