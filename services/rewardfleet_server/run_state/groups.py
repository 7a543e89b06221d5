"""What a store of groups is: members are added one by one, and a group is released once."""

import json
from typing import Annotated, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from rewardfleet.wire.errors import InvalidRequest, Overloaded

from .store import Scope

#: Number of the last steps of a run whose groups are stored, besides the newest. Trainers that
#: overlap rollouts with training are a few steps apart.
KEEP_GROUP_STEPS = 15

#: Groups are abandoned if nobody has requested them until so many seconds after their release was
#: due. Their members are then deleted.
ABANDONED_SECONDS = 3600.0


class GroupKey(NamedTuple):
    """The name of a group."""

    run: str
    step: int
    name: str

    @property
    def scope(self) -> Scope:
        """The scope that messages name."""
        return Scope(self.run, "groups")


class Rules(BaseModel):
    """What all members of a group must agree on.

    Attributes:
        size: Number of members of the complete group.
        options: How it is scored.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    size: Annotated[int, Field(ge=1)]
    options: JsonValue

    def dump(self) -> str:
        """Return them as JSON, equal text for equal rules."""
        return json.dumps(self.model_dump(), sort_keys=True)


class Release(BaseModel):
    """What is stored of a released group besides the result of each member.

    Attributes:
        missing: Members that had not arrived.
        group: Statistics of the group.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    missing: Annotated[int, Field(ge=0)]
    group: JsonValue = None


#: How a group ends that was abandoned.
ABANDONED = Release(missing=0).model_dump_json()


class NewMember(NamedTuple):
    """A member, and the group to open if it is the first.

    Attributes:
        uid: Names the member within the group.
        value: The member.
        rules: The rules that it was sent with.
        wait_s: Seconds after which an incomplete group is to be released.
        max_open: Limit on the open groups of the run.
        abandoned_s: At this limit, open groups are abandoned that were due so many seconds ago.
    """

    uid: str
    value: JsonValue
    rules: Rules
    wait_s: float
    max_open: int
    abandoned_s: float


class Group(NamedTuple):
    """A group as one of its members finds it.

    Attributes:
        rules: What the first member was sent with.
        remaining_s: Seconds until it is to be released, complete or not.
        arrived: Number of members that have arrived, of an open group.
        release: None while the group is open.
        result: The result of this member, of a released group.
    """

    rules: Rules
    remaining_s: float
    arrived: int
    release: Release | None
    result: JsonValue


class Groups(Protocol):
    """A store of groups. Its costs depend neither on the other open groups nor on other runs.

    Every method raises `Unavailable` if the store cannot be used now, or if what it stores is
    damaged.
    """

    async def add(self, key: GroupKey, member: NewMember) -> Group:
        """Add a member, once; return its group. The first value that was sent for a uid counts.

        Raises:
            InvalidRequest: The group is complete or was released without this member, its other
                members have other rules, or its step is so old that it was deleted.
            Overloaded: The run has too many open groups.
        """

    async def members(self, key: GroupKey) -> dict[str, JsonValue] | None:
        """Return the members of an open group by uid, sorted; None if it is not open."""

    async def release(self, key: GroupKey, release: Release, results: dict[str, JsonValue]) -> bool:
        """Replace the members of an open group by their results; delete members without one.

        Returns:
            False if the group was not open; then nothing changes.
        """


def late(key: GroupKey, uid: str, reason: str) -> InvalidRequest:
    """Return the error for a member that a group does not take any more."""
    return InvalidRequest(
        f"uid {uid[:60]!r} is late: group {key.name[:60]!r} of step {key.step} {reason}"
    )


def disagrees() -> InvalidRequest:
    """Return the error for a member with other rules."""
    return InvalidRequest("group_size, options: they differ from those of the first member")


def too_many(count: int) -> Overloaded:
    """Return the error for a group that cannot be opened."""
    return Overloaded(f"this run has {count} open groups already", retry_after=1)
