"""What a store of run state is: keys with fields of bytes, changed in transactions.

The two stores know nothing of steps and groups: those are written once, on top.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec
from pydantic import TypeAdapter

from rewardfleet.wire.errors import Unavailable

T = TypeVar("T")

#: A key and one of its fields, or all of them: None.
Entry = tuple[str, str | None]
#: What is stored there: bytes, or the fields of the key; None if the field is not there.
Found = bytes | dict[str, bytes] | None

#: Seconds in which a transaction must be over, while other processes change the same entries.
BUSY_SECONDS = 5.0


class Shape(NamedTuple):
    """What a feature stores, and how transitions get and return it. Anything else is damaged."""

    #: The state of its scopes; None for any JSON.
    state: TypeAdapter[Any] | None = None
    #: The outcomes of its transitions; None for any JSON.
    outcome: TypeAdapter[Any] | None = None
    #: Fields of the state that no step changes, and that stay when its steps are discarded.
    kept: tuple[str, ...] = ()


class Scope(NamedTuple):
    """The part of a run's state that one feature owns."""

    run: str  #: the training run, as callers name it
    name: str  #: the feature, e.g. `running_stats`
    shape: Shape = Shape()

    @property
    def key(self) -> str:
        """The key of the run."""
        return msgspec.json.encode([self.run]).decode()

    @property
    def steps_field(self) -> str:
        """The field of the run with the steps of the feature."""
        return f"{self.name} steps"

    def step_key(self, step: int) -> str:
        """Return the key of the outcomes of a step."""
        return msgspec.json.encode([self.run, self.name, step]).decode()


class Call(NamedTuple):
    """The call of a trainer that a transaction serves."""

    attempt: str | None = None
    step: int | None = None  #: None if it belongs to none
    #: The feature whose state it sets, which needs no earlier state.
    sets: str | None = None


class Damaged(Unavailable):
    """The error for stored values that no transaction has written."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(
            f"the run state of run {scope.run[:100]!r} ({scope.name}) is damaged; restore the "
            "store from a backup, or continue under a new name of the run"
        )


class Transaction:
    """What a transaction has read, and what it writes. All writes are stored, or none.

    Args:
        look_up: Returns what is stored in entries.
        now: The time of the store's clock, in seconds.
    """

    def __init__(self, look_up: Callable[[Sequence[Entry]], Sequence[Found]], now: float) -> None:
        self._look_up = look_up
        self.now = now
        self.found: dict[Entry, Found] = {}  #: what was looked up
        #: Keys of which all fields are deleted before others are written.
        self.dropped: set[str] = set()
        #: The new values of fields, by key; None deletes a field.
        self.written: dict[str, dict[str, bytes | None]] = {}

    @property
    def has_writes(self) -> bool:
        """Whether anything is written."""
        return bool(self.written or self.dropped)

    def seconds_since(self, earlier: float, at_most: float) -> float:
        """Return the seconds since a time of the store's clock, 0 to `at_most`.

        It may have jumped: that of a server is a wall clock, and that of a file begins with the
        start of the machine.
        """
        return min(max(self.now - earlier, 0.0), at_most)

    def expect(self, *entries: Entry) -> None:
        """Read entries together, as each may take a round trip otherwise."""
        self.found.update(zip(entries, self._look_up(entries), strict=True))

    def get(self, key: str, field: str) -> bytes | None:
        """Return the value of a field, or None."""
        if key in self.written and field in self.written[key]:
            return self.written[key][field]
        return None if key in self.dropped else cast("bytes | None", self._get((key, field)))

    def fields(self, key: str) -> dict[str, bytes]:
        """Return all fields of a key."""
        stored = {} if key in self.dropped else cast("dict[str, bytes]", self._get((key, None)))
        changed = {**stored, **self.written.get(key, {})}
        return {field: value for field, value in changed.items() if value is not None}

    def put(self, key: str, field: str, value: bytes | None) -> None:
        """Write a field; None deletes it."""
        self.written.setdefault(key, {})[field] = value

    def drop(self, key: str) -> None:
        """Delete all fields of a key."""
        self.written.pop(key, None)
        self.dropped.add(key)

    def _get(self, entry: Entry) -> Found:
        if entry not in self.found:
            (self.found[entry],) = self._look_up([entry])
        return self.found[entry]


#: Reads and writes. It is called again if another process changed what it read in the meantime: it
#: must have no side effects.
Work = Callable[[Transaction], T]


class Store(Protocol):
    """Keys with fields of bytes."""

    @property
    def failure(self) -> str | None:
        """Why the store can never be used again, or None."""

    async def transact(self, scope: Scope, expected: Sequence[Entry], work: Work[T]) -> T:
        """Read and write as if nothing else changed the run at the same time, in a thread.

        Args:
            expected: What `work` is going to read. Other entries take a round trip each. The first
                one is what matters most: what a process last saw of it is tried first.
            work: A function without side effects. Nothing is written if it raises.

        Raises:
            Unavailable: The store cannot be used now, or what it stores is damaged. Nothing is
                changed then, unless only the store's response was lost.
        """

    async def aclose(self) -> None:
        """Release files, connections and threads."""
