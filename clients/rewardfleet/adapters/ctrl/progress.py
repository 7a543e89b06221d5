"""A progress bar, where tqdm is installed."""

from typing import Any


class ProgressBar:
    """A progress bar; nothing if tqdm is not installed.

    Args:
        text: What is shown before it.
        total: Number of steps; of 0, nothing is shown.
        shown: Whether to show it.
    """

    def __init__(self, text: str, total: int, *, shown: bool) -> None:
        self._bar: Any = None
        if not (shown and total):
            return
        try:
            from tqdm import tqdm  # noqa: PLC0415 - optional
        except ModuleNotFoundError:
            return
        self._bar = tqdm(desc=text, total=total)

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
