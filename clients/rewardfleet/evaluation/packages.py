"""The packages of the extra `eval`."""

from importlib.util import find_spec

#: By the name of the module.
_PACKAGES = {
    "av": "av",
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}


def check_packages() -> None:
    """Check that the extra is installed, before anything is scored.

    Raises:
        ValueError: A package is missing.
    """
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} must be installed: pip install {' '.join(missing)}, or "
            "rewardfleet with its extra `eval`"
        )
