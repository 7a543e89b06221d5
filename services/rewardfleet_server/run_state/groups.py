"""Groups: members are added one by one, and a group is released once."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, Json, JsonValue, TypeAdapter

from rewardfleet.wire.errors import InvalidRequest, Overloaded
from rewardfleet.wire.score import Step

from .store import Call, Damaged, Scope, Transaction
from .values import WHOLE, digest, dump, enter_step, load, same, split

if TYPE_CHECKING:  # it imports this module
    from .state import RunState

T = TypeVar("T")

#: The feature whose outcomes are groups. Its state is when its open groups are due.
GROUPS = "groups"
#: What the version before stored as a time of the store's clock, with the clock's name.
_EarlierTime = tuple[str, FiniteFloat]
_OPEN: TypeAdapter[Any] = TypeAdapter(
    list[tuple[Step, str, FiniteFloat]] | dict[Json[tuple[Step, str]], _EarlierTime]
)

#: Number of the last steps of a run whose groups are stored, besides the newest. Trainers that
#: overlap rollouts with training are a few steps apart.
KEEP_GROUP_STEPS = 15
#: Limit on the open groups of a run.
MAX_OPEN = 1024
#: At that limit, groups are abandoned that nobody has requested until so many seconds after they
#: were due. Their members are then deleted.
ABANDONED_SECONDS = 60.0

#: The most seconds that a group has waited from one call to the next, as the store's clock may
#: jump: members call every second.
_MAX_PASSED = 10.0
#: The most seconds that a group may wait: `GroupMemberRequest.wait_s`.
_MAX_WAIT = 3600.0
#: How many seconds of waiting are not stored, so that most calls write nothing.
_NOT_STORED = 2.0


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


class Group(BaseModel):
    """A group."""

    model_config = ConfigDict(extra="forbid", strict=True)

    #: Number of members of the complete group. All members agree on it.
    size: Annotated[int, Field(ge=1)]
    options: JsonValue  #: how it is scored; they agree on that, too
    left_s: FiniteFloat  #: seconds until it is to be released, complete or not, when it was seen
    seen: FiniteFloat | _EarlierTime = 0.0  #: when that was
    arrived: Annotated[int, Field(ge=0)] = 0  #: number of members that have arrived
    #: Members that had not arrived when it was released; None while it is open.
    missing: Annotated[int, Field(ge=0)] | None = None
    stats: JsonValue = None  #: statistics of the released group

    def wait(self, tx: Transaction) -> bool:
        """Subtract the seconds since the group was seen; return whether to store that."""
        seen = self.seen[1] if isinstance(self.seen, tuple) else self.seen
        passed = tx.seconds_since(seen, _MAX_PASSED)
        self.left_s, self.seen = self.left_s - passed, tx.now
        return passed > _NOT_STORED or tx.now < seen


_GROUP = TypeAdapter(Group)
#: How a group ends that was abandoned.
_ABANDONED = Group(size=1, options=None, left_s=0.0, missing=0)


#: Scores a group, given the values of its members by uid, sorted. Returns their results in this
#: order, the statistics of the group, and what the call that releases it gets. It is called again
#: if another process changed the group in the meantime: it must have no side effects.
Score = Callable[[Group, Sequence[JsonValue]], tuple[Sequence[JsonValue], JsonValue, T]]


async def add_to_group(
    state: "RunState",
    key: GroupKey,
    uid: str,
    value: JsonValue,
    new: Group,
    *,
    score: Score[T],
    attempt: str | None = None,
) -> tuple[Group, JsonValue, T | None]:
    """Add a member, once; release its group if that is complete or has waited long enough.

    It costs the same however many groups are open.

    Args:
        uid: Names the member within the group.
        new: The group as this member would open it: its size, its options and its wait.
        attempt: The attempt of the run; see `enter_attempt`.

    Returns:
        Its group, its result if that is released, and what `score` adds for the call that
        releases it.

    Raises:
        Conflict: The uid was sent with another value before, or the attempt has ended.
        InvalidRequest: The group was released without this member, its other members have
            another size or other options, or its step is so old that it was deleted.
        Overloaded: The run has too many open groups.
        Unavailable: See `Store.transact`.
    """
    members, field = key.members, f":{uid}"
    sent = digest([new.size, new.options, value])

    def work(tx: Transaction) -> tuple[Group, JsonValue, T | None]:
        text = tx.get(members, WHOLE)
        group = _opened(tx, key, new) if text is None else load(key.scope, text, _GROUP)
        stored = tx.get(members, field)
        known = stored and same(key.scope, stored, sent, f"uid {uid[:60]!r}")
        if group.missing is not None:
            if known is None:
                raise InvalidRequest(
                    f"uid {uid[:60]!r} is late: group {key.name[:60]!r} of step {key.step} "
                    "was released without it"
                )
            return group, load(key.scope, known), None
        is_changed = group.wait(tx) or known is None
        if known is None:
            if (group.size, group.options) != (new.size, new.options):
                raise InvalidRequest(
                    "group_size, options: they differ from those of the first member"
                )
            group.arrived += 1
            tx.put(members, field, sent + dump(value))
        if group.arrived >= group.size or group.left_s <= 0:
            results, released = _release(tx, key, group, score)
            return group, results[uid], released
        if is_changed:
            _store(tx, key, group)
        return group, None, None

    expected = [(members, WHOLE), (members, field)]
    return await state.change(key.scope, expected, work, Call(attempt, key.step))


def _release(
    tx: Transaction, key: GroupKey, group: Group, score: Score[T]
) -> tuple[dict[str, JsonValue], T]:
    """Replace the members of an open group by their results; return those by uid."""
    tx.expect((key.members, None), (key.scope.key, GROUPS))
    members = sorted(each for each in tx.fields(key.members).items() if each[0] != WHOLE)
    if len(members) != group.arrived:
        raise Damaged(key.scope)  # e.g. because the server evicted some
    sent, values = zip(*(split(key.scope, text) for _, text in members), strict=True)
    results, group.stats, released = score(group, [load(key.scope, each) for each in values])
    group.missing = group.size - len(members)
    tx.drop(key.members)
    _store(tx, key, group)
    for (field, _), stamp, result in zip(members, sent, results, strict=True):
        tx.put(key.members, field, stamp + dump(result))
    _store_open(tx, key.scope, _open_groups(tx, key.scope), closed=[key])
    uids = (field[1:] for field, _ in members)
    return dict(zip(uids, results, strict=True)), released


def drop_steps(tx: Transaction, scope: Scope, steps: list[int]) -> None:
    """Delete the outcomes of some steps. Those of groups are groups."""
    if scope.name == GROUPS and steps:
        tx.expect(*((scope.step_key(step), None) for step in steps))
        keys = [
            GroupKey(scope.run, step, field[1:])
            for step in steps
            for field in tx.fields(scope.step_key(step)).keys() - {WHOLE}
        ]
        for key in keys:
            tx.drop(key.members)
        _store_open(tx, scope, _open_groups(tx, scope), closed=keys)
    for step in steps:
        tx.drop(scope.step_key(step))


def _opened(tx: Transaction, key: GroupKey, new: Group) -> Group:
    """Open a group."""
    scope, run, step = key.scope, key.scope.key, key.scope.step_key(key.step)
    listed = f":{key.name}"
    tx.expect((run, scope.steps_field), (run, GROUPS), (step, WHOLE), (step, listed))
    if tx.get(step, listed) is not None:
        raise Damaged(scope)
    _, old = enter_step(tx, scope, key.step, KEEP_GROUP_STEPS)
    drop_steps(tx, scope, old)
    still_open = _open_groups(tx, scope)
    abandoned: list[GroupKey] = []
    if len(still_open) >= MAX_OPEN:
        # Due later than any group: the machine was started again since.
        earliest, latest = tx.now - ABANDONED_SECONDS, tx.now + _MAX_WAIT
        abandoned = [each for each, due in still_open.items() if not earliest <= due <= latest]
    for each in abandoned:
        tx.drop(each.members)
        _store(tx, each, _ABANDONED)
    if (count := len(still_open) - len(abandoned)) >= MAX_OPEN:
        raise Overloaded(f"this run has {count} open groups already", retry_after=1)
    _store_open(tx, scope, still_open | {key: tx.now + new.left_s}, closed=abandoned)
    tx.put(step, listed, b"1")
    return new.model_copy(update={"seen": tx.now})


def _store(tx: Transaction, key: GroupKey, group: Group) -> None:
    tx.put(key.members, WHOLE, dump(group, _GROUP))


def _open_groups(tx: Transaction, scope: Scope) -> dict[GroupKey, float]:
    """Return when the open groups of a run are due."""
    text = tx.get(scope.key, GROUPS)
    listed = [] if text is None else load(scope, text, _OPEN)
    if isinstance(listed, dict):
        listed = [(*place, due) for place, (_, due) in listed.items()]
    return {GroupKey(scope.run, step, name): due for step, name, due in listed}


def _store_open(
    tx: Transaction, scope: Scope, still_open: Mapping[GroupKey, float], closed: list[GroupKey]
) -> None:
    rest = still_open.keys() - closed
    listed = [(key.step, key.name, due) for key, due in still_open.items() if key in rest]
    tx.put(scope.key, GROUPS, dump(listed, _OPEN))
