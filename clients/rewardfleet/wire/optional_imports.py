"""Optional dependencies, and how to install them into this environment."""

import importlib.metadata
import importlib.util
import re
import shlex
import sys

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def install_command(extra: str) -> str:
    """Return a shell command that installs the missing packages of an extra.

    It names the packages themselves, so that it works for an editable installation as well. If
    none is missing, one is damaged, and the command installs all of them again.
    """
    marker = f'extra == "{extra}"'
    requirements = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("rewardfleet") or []
        if marker in requirement.replace("'", '"') and not requirement.startswith("rewardfleet")
    ]
    missing = [requirement for requirement in requirements if not _is_installed(requirement)]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install"]
    else:  # environments made by uv
        command = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*command, *(missing or ["--force-reinstall", *requirements])])


def missing_modules(*modules: str) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


def require(extra: str, what: str, *modules: str) -> None:
    """Check that the modules of an extra can be imported.

    Raises:
        ValueError: One is missing. The message says what needs it and how to install it.
    """
    if missing := missing_modules(*modules):
        raise ValueError(
            f"{what} needs {', '.join(missing)}, not installed here: {install_command(extra)}"
        )


def _is_installed(requirement: str) -> bool:
    name = _NAME.match(requirement)
    try:
        importlib.metadata.version(name[0] if name else requirement)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
