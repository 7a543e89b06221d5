"""Optional dependencies, and how to install them into this environment."""

import importlib.metadata
import importlib.util
import re
import shlex
import sys

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def install_command(extra: str) -> str:
    """Return a shell command that installs what is missing of an extra.

    It names the packages themselves, so that it works for an editable install as well.
    """
    marker = f'extra == "{extra}"'
    requirements = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("rewardfleet") or []
        if marker in requirement.replace("'", '"')
    ]
    missing = [requirement for requirement in requirements if not _is_installed(requirement)]
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", *missing]
    else:  # environments made by uv
        command = ["uv", "pip", "install", "--python", sys.executable, *missing]
    return shlex.join(command)


def require(extra: str, what: str, *modules: str) -> None:
    """Check that the modules of an extra can be imported.

    Raises:
        ValueError: One is missing. The message says what needs it and how to install it.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
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
