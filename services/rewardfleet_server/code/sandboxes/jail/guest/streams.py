"""The standard streams of the processes in a jail."""

import os
import sys
from typing import Any


def open_streams() -> None:
    """Open the standard streams once for all runs, each of which puts its own files below them."""
    for number in range(3):
        os.dup2(os.memfd_create("none"), number)
    options: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = open(0, errors="surrogateescape", **options)
    sys.stdout = open(1, "w", errors="surrogateescape", newline="\n", **options)
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, **options)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
