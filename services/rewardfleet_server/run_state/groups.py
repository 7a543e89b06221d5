"""Groups: members are added one by one, and a group is released once."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, TypeAdapter

from rewardfleet.wire.errors import InvalidRequest, Overloaded

from .steps import enter_step
from .store import Damaged, Moment, Scope, Transaction
from .values import (
    WHOLE,
    Call,
    digest,
    digest_of,
    dump,
    load,
    run_key,
    same,
    step_key,
    steps_field,
    unstamped,
)

if TYPE_CHECKING:  # it imports this module
    from .state import RunState

#: The feature whose outcomes are groups. Its state is when its open groups are due.
GROUPS = "groups"
OPEN = TypeAdapter(dict[str, Moment])

#: Number of the last steps of a run whose groups are stored, besides the newest. Trainers that
#: overlap rollouts with training are a few steps apart.
KEEP_GROUP_STEPS = 15
#: Limit on the open groups of a run.
MAX_OPEN = 1024
#: Groups are abandoned if nobody has requested them until so many seconds after they were due: at
#: that limit, and otherwise. Their members are then deleted.
ABANDONED_AT_LIMIT_SECONDS, ABANDONED_SECONDS = 60.0, 3600.0

#: The most seconds that a group has waited from one call to the next, if the store's clock may
#: jump: members call every second.
_MAX_PASSED = 10.0
#: How many of them are not stored, so that most calls write nothing.
_NOT_STORED = 2.0
#: Larger groups take milliseconds, in a thread.
_FEW = 64


class GroupKey(NamedTuple):
    """The name of a group."""

    run: str
    step: int
    name: str

    @property
    def scope(self) -> Scope:
        """The scope that messages name."""
        return Scope(self.run, GROUPS)

    @property
    def members(self) -> str:
        """The key of its members."""
        return msgspec.json.encode([self.run, GROUPS, self.step, self.name]).decode()

    @property
    def place(self) -> str:
        """Its name among the open groups."""
        return msgspec.json.encode([self.step, self.name]).decode()


class Group(BaseModel):
    """A group."""

    model_config = ConfigDict(extra="forbid", strict=True)

    #: Number of members of the complete group. All members agree on it.
    size: Annotated[int, Field(ge=1)]
    options: JsonValue  #: how it is scored; they agree on that, too
    left_s: FiniteFloat  #: seconds until it is to be released, complete or not, when it was seen
    seen: Moment = Moment("", 0.0)  #: when that was
    arrived: Annotated[int, Field(ge=0)] = 0  #: number of members that have arrived
    #: Members that had not arrived when it was released; None while it is open.
    missing: Annotated[int, Field(ge=0)] | None = None
    stats: JsonValue = None  #: statistics of the released group

    def wait(self, now: Moment) -> bool:
        """Subtract the seconds since the group was seen; return whether to store that."""
        passed = now.since(self.seen, _MAX_PASSED)
        is_later = now.clock == self.seen.clock and now.seconds >= self.seen.seconds
        self.left_s, self.seen = self.left_s - passed, now
        return passed > _NOT_STORED or not is_later


GROUP = TypeAdapter(Group)
#: How a group ends that was abandoned.
_ABANDONED = Group(size=1, options=None, left_s=0.0, missing=0)


class Member(NamedTuple):
    """A member of a group, or its result."""

    sent: bytes  #: the digest of what was sent
    value: JsonValue


class Groups:
    """The groups of training runs. A member costs the same however many groups are open.

    For errors of every method see `Store`.
    """

    def __init__(self, state: "RunState") -> None:
        self._state = state

    async def add(
        self, key: GroupKey, uid: str, value: JsonValue, new: Group, attempt: str | None = None
    ) -> tuple[Group, JsonValue]:
        """Add a member, once.

        Args:
            uid: Names the member within the group.
            new: The group as this member would open it: its size, its options and its wait.
            attempt: The attempt of the run; see `enter_attempt`.

        Returns:
            Its group, and its result if that is released.

        Raises:
            Conflict: The uid was sent with another value before, or the attempt has ended.
            InvalidRequest: The group is complete or was released without this member, its other
                members have another size or other options, or its step is so old that it was
                deleted.
            Overloaded: The run has too many open groups.
        """
        members, field = key.members, f":{uid}"
        sent = digest([new.size, new.options, value])

        def work(tx: Transaction) -> tuple[Group, JsonValue]:
            group = _find(tx, key) or _opened(tx, key, new)
            stored = tx.get(members, field)
            known = stored and same(key.scope, stored, sent, f"uid {uid[:60]!r}")
            if group.missing is not None:
                if known is None:
                    raise _late(key, uid, "was released without it")
                return group, load(key.scope, known)
            is_changed = group.wait(tx.now) or known is None
            if known is None:
                if (group.size, group.options) != (new.size, new.options):
                    raise InvalidRequest(
                        "group_size, options: they differ from those of the first member"
                    )
                if group.arrived >= group.size:
                    raise _late(key, uid, "is complete")
                group.arrived += 1
                tx.put(members, field, sent + dump(value))
            if is_changed:
                _store(tx, key, group)
            return group, None

        expected = [(members, WHOLE), (members, field)]
        call = Call(attempt, key.step)
        return await self._state.change(key.scope, expected, work, call)

    async def members(self, key: GroupKey) -> dict[str, Member] | None:
        """Return the members of an open group by uid, sorted; None if it is not open.

        Raises:
            Unavailable: Some are missing, e.g. because the server evicted them.
        """
        fields = await self._state.read_entry(key.scope, (key.members, None))

        def parsed() -> dict[str, Member] | None:
            text = fields.pop(WHOLE, None)
            group = None if text is None else load(key.scope, text, GROUP)
            if group is None or group.missing is not None:
                return None
            if len(fields) != group.arrived:
                raise Damaged(key.scope)
            return {
                field[1:]: Member(digest_of(text), load(key.scope, unstamped(text)))
                for field, text in sorted(fields.items())
            }

        return await asyncio.to_thread(parsed) if len(fields) > _FEW else parsed()

    async def release(
        self,
        key: GroupKey,
        missing: int,
        stats: JsonValue,
        results: dict[str, Member],
        attempt: str | None = None,
    ) -> bool:
        """Replace the members of an open group by their results; delete members without one.

        Args:
            missing: Members that had not arrived.
            results: By uid, in place of what was sent.
            attempt: That of the members, which another one may have replaced in the meantime.

        Returns:
            False if the group was not open; then nothing changes.

        Raises:
            Conflict: The attempt has ended.
        """

        def work(tx: Transaction) -> bool:
            group = _find(tx, key)
            if group is None or group.missing is not None:
                return False
            group.missing, group.stats = missing, stats
            tx.drop(key.members)
            _store(tx, key, group)
            for uid, result in results.items():
                tx.put(key.members, f":{uid}", result.sent + dump(result.value))
            still_open = open_groups(tx, key.scope)
            still_open.pop(key.place, None)
            _store_open(tx, key.scope, still_open)
            return True

        expected = [(key.members, WHOLE), (run_key(key.run), GROUPS)]
        call, is_slow = Call(attempt, key.step), len(results) > _FEW
        return await self._state.change(key.scope, expected, work, call, is_slow=is_slow)


def open_groups(tx: Transaction, scope: Scope) -> dict[str, Moment]:
    """Return when the open groups of a run are due, by their places."""
    text = tx.get(run_key(scope.run), GROUPS)
    found: dict[str, Moment] = {} if text is None else load(scope, text, OPEN)
    return found


def abandon_groups(tx: Transaction, scope: Scope, after_s: float) -> None:
    """End the open groups of a run that were due so many seconds ago."""
    still_open = open_groups(tx, scope)
    # After a restart of the machine, it is unknown when they were due.
    still_open |= {place: tx.now for place, at in still_open.items() if at.clock != tx.now.clock}
    due = [place for place, at in still_open.items() if tx.now.seconds - at.seconds > after_s]
    for place in due:
        key = GroupKey(scope.run, *json.loads(place))
        tx.drop(key.members)
        _store(tx, key, _ABANDONED)
        del still_open[place]
    if still_open != open_groups(tx, scope):
        _store_open(tx, scope, still_open)


def drop_steps(tx: Transaction, scope: Scope, steps: list[int]) -> None:
    """Delete the outcomes of some steps. Those of groups are groups."""
    if scope.name == GROUPS and steps:
        tx.expect(*((step_key(scope, step), None) for step in steps))
        still_open = open_groups(tx, scope)
        for step in steps:
            for field in tx.fields(step_key(scope, step)).keys() - {WHOLE}:
                key = GroupKey(scope.run, step, field[1:])
                still_open.pop(key.place, None)
                tx.drop(key.members)
        _store_open(tx, scope, still_open)
    for step in steps:
        tx.drop(step_key(scope, step))


def _opened(tx: Transaction, key: GroupKey, new: Group) -> Group:
    """Open a group."""
    scope, run, step = key.scope, run_key(key.run), step_key(key.scope, key.step)
    listed = f":{key.name}"
    tx.expect((run, steps_field(GROUPS)), (run, GROUPS), (step, WHOLE), (step, listed))
    if tx.get(step, listed) is not None:
        raise Damaged(scope)
    _, old = enter_step(tx, scope, key.step, KEEP_GROUP_STEPS)
    drop_steps(tx, scope, old)
    if len(open_groups(tx, scope)) >= MAX_OPEN:
        abandon_groups(tx, scope, ABANDONED_AT_LIMIT_SECONDS)
    still_open = open_groups(tx, scope)
    if len(still_open) >= MAX_OPEN:
        raise Overloaded(f"this run has {len(still_open)} open groups already", retry_after=1)
    still_open[key.place] = Moment(tx.now.clock, tx.now.seconds + new.left_s)
    _store_open(tx, scope, still_open)
    tx.put(step, listed, b"1")
    return new.model_copy(update={"seen": tx.now})


def _find(tx: Transaction, key: GroupKey) -> Group | None:
    text = tx.get(key.members, WHOLE)
    return None if text is None else load(key.scope, text, GROUP)


def _store(tx: Transaction, key: GroupKey, group: Group) -> None:
    tx.put(key.members, WHOLE, group.model_dump_json().encode())


def _store_open(tx: Transaction, scope: Scope, still_open: dict[str, Moment]) -> None:
    tx.put(run_key(scope.run), GROUPS, OPEN.dump_json(still_open))


def _late(key: GroupKey, uid: str, reason: str) -> InvalidRequest:
    """Return the error for a member that a group does not take any more."""
    return InvalidRequest(
        f"uid {uid[:60]!r} is late: group {key.name[:60]!r} of step {key.step} {reason}"
    )
