"""Names of things that are imported where they are used."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lazy:
    """What `module:attribute` names; it is imported when it is called."""

    target: str

    def load(self) -> Any:
        """Import it."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.load()(*args, **options)
