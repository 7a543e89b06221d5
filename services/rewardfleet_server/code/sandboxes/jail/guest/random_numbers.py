"""Generators of random numbers that a test may seed, for the program to draw the same numbers."""

import contextlib
import importlib
import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from types import ModuleType
from typing import Any

_MODULES = ("random", "numpy.random")


class Generators:
    """The generators of the process of the tests.

    The program gets their states. It sends none: it could choose what a test draws next.
    """

    def __init__(self) -> None:
        #: The states that the program has, until the test seeds a generator again.
        self._sent: dict[str, Any] = {}
        self._watched: dict[str, ModuleType] = {}

    def watch(self, packages: AbstractSet[str]) -> None:
        """Notice when a test seeds a generator, before it imports the function that does.

        Args:
            packages: What the test imports.
        """
        for name in _MODULES:
            if name not in self._watched and name.partition(".")[0] in packages:
                with contextlib.suppress(ImportError):  # which the test gets as well
                    module = self._watched[name] = importlib.import_module(name)
                    module.__dict__["seed"] = self._noticed(name, module.__dict__["seed"])

    def changed(self) -> dict[str, Any]:
        """Return the states that have changed since the last call, as values of JSON."""
        changed = {}
        for name, module in self._watched.items():
            state = _state(module)
            if state != self._sent.get(name):
                self._sent[name] = changed[name] = state
        return changed

    def _noticed(self, name: str, seed: Callable[..., None]) -> Callable[..., None]:
        def noticed(*args: Any, **kwargs: Any) -> None:
            self._sent.pop(name, None)
            seed(*args, **kwargs)

        return noticed


def set_states(states: Mapping[str, Any]) -> None:
    """Set the generators of the program's process to such states."""
    for name, state in states.items():
        module = importlib.import_module(name)
        if module is random:
            random.setstate((state[0], tuple(state[1]), state[2]))
        else:
            module.set_state(tuple(state))


def _state(module: ModuleType) -> list[Any]:
    state = module.getstate() if module is random else module.get_state()
    name, numbers, *rest = state
    return [name, [*map(int, numbers)], *rest]
