"""The environment variables that verl reads when it is imported, and TensorBoard's."""

import os
from collections.abc import MutableMapping
from pathlib import Path

#: Name of the platform without accelerators, and of its device.
CPU = "cpu"

_PLATFORM = "VERL_PLATFORM"


def choose_cpu(environment: MutableMapping[str, str] | None = None) -> None:
    """Set the variables with which verl, imported later, runs on the CPU.

    Args:
        environment: Where; None: in that of this process.
    """
    environment = os.environ if environment is None else environment
    environment[_PLATFORM] = CPU
    environment["VERL_USE_EXTERNAL_MODULES"] = f"{__package__}.cpu"
    # Compilation takes longer than it saves.
    environment["TORCHDYNAMO_DISABLE"] = "1"


def is_cpu_chosen() -> bool:
    """Return whether verl runs on the CPU in this process."""
    return os.environ.get(_PLATFORM) == CPU


def tensorboard_folder(default: Path) -> Path:
    """Return where TensorBoard's files go: what `TENSORBOARD_DIR` says, else `default`."""
    return Path(os.environ.get("TENSORBOARD_DIR", default)).absolute()
