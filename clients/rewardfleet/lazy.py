"""Names of things that are imported where they are used."""

import functools
import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lazy:
    """What `module:attribute` names; it is imported when it is called."""

    target: str

    def load(self) -> Any:
        """Import it."""
        return _loaded(self.target)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _loaded(self.target)(*args, **options)


@functools.cache
def _loaded(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
