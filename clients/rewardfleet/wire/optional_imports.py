"""Optional dependencies, and how to install them."""

import importlib.util


def install_command(extra: str) -> str:
    """Return the command that installs an extra, in a checkout; see docs/install.md."""
    return f"pip install '.[{extra}]'"


def missing_modules(*modules: str) -> list[str]:
    """Return the modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


def require(extra: str, what: str, *modules: str) -> None:
    """Raise a `ValueError` that says how to install an extra if one of its modules is missing."""
    if missing := missing_modules(*modules):
        raise ValueError(
            f"{what} needs {', '.join(missing)}, not installed here: {install_command(extra)}"
        )
