"""Groups in a SQLite file: a row per group and one per member."""

import math
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue, ValidationError

from .groups import (
    ABANDONED,
    ABANDONED_SECONDS,
    KEEP_GROUP_STEPS,
    Group,
    GroupKey,
    NewMember,
    Release,
    Rules,
    disagrees,
    late,
    too_many,
)
from .sqlite_clock import FileClock
from .sqlite_tables import enter_step
from .store import Damaged, Scope, dump, load

T = TypeVar("T")


class _Call(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection], T], /) -> Awaitable[T]: ...


class SqliteGroups:
    """Groups in a SQLite file.

    Args:
        call: Runs a function on the thread of the file, as one transaction.
        begin: Begins to write on behalf of a run.
        clock: Of the file.
    """

    def __init__(
        self, call: _Call, begin: Callable[[sqlite3.Connection, str], None], clock: FileClock
    ) -> None:
        self._call = call
        self._begin = begin
        self._clock = clock

    async def add(self, key: GroupKey, member: NewMember) -> Group:
        def work(db: sqlite3.Connection) -> Group:
            row, now = _find(db, key), self._clock.read(db)
            known = _known(db, key, row, member.uid, now)
            if known is not None:  # most calls ask for a group that is not complete yet
                return known
            self._begin(db, key.run)
            row, now = _find(db, key), self._clock.read(db)
            known = _known(db, key, row, member.uid, now)
            if known is not None:
                return known
            if row is None:
                row = _opened(db, key, member, now)
                self._clock.note(db, now)
            if row.rules != member.rules:
                raise disagrees()
            count = _count(db, row)
            if count >= row.rules.size:
                raise late(key, member.uid, "is complete")
            value = (row.id, member.uid, dump(member.value))
            db.execute("INSERT INTO members VALUES (?, ?, ?)", value)
            return Group(row.rules, row.until - now, count + 1, None, None)

        return await self._call(work)

    async def members(self, key: GroupKey) -> dict[str, JsonValue] | None:
        def work(db: sqlite3.Connection) -> dict[str, JsonValue] | None:
            row = _find(db, key)
            if row is None or row.release is not None:
                return None
            query = "SELECT uid, value FROM members WHERE id = ? ORDER BY uid"
            members = db.execute(query, (row.id,))
            return {uid: load(key.scope, value) for uid, value in members}

        return await self._call(work)

    async def release(self, key: GroupKey, release: Release, results: dict[str, JsonValue]) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            self._begin(db, key.run)
            row = _find(db, key)
            if row is None or row.release is not None:
                return False
            db.execute("DELETE FROM members WHERE id = ?", (row.id,))
            rows = [(row.id, uid, dump(result)) for uid, result in results.items()]
            db.executemany("INSERT INTO members VALUES (?, ?, ?)", rows)
            query = "UPDATE groups SET release = ? WHERE id = ?"
            db.execute(query, (release.model_dump_json(), row.id))
            return True

        return await self._call(work)


class _Row(NamedTuple):
    """A row of the table of groups."""

    id: int
    rules: Rules
    until: float
    release: Release | None


def _find(db: sqlite3.Connection, key: GroupKey) -> _Row | None:
    query = "SELECT id, rules, until, release FROM groups WHERE run = ? AND step = ? AND name = ?"
    row = db.execute(query, key).fetchone()
    return None if row is None else _row(key.scope, row)


def _row(scope: Scope, row: tuple[Any, ...]) -> _Row:
    number, rules, until, release = row
    try:
        if not (isinstance(until, float) and math.isfinite(until)):
            raise Damaged(scope)
        return _Row(
            number,
            Rules.model_validate_json(rules),
            until,
            None if release is None else Release.model_validate_json(release),
        )
    except ValidationError as error:
        raise Damaged(scope) from error


def _known(
    db: sqlite3.Connection, key: GroupKey, row: _Row | None, uid: str, now: float
) -> Group | None:
    """Return the group of a member that has been added before; None if it is new.

    Raises:
        InvalidRequest: The group was released without this member.
    """
    if row is None:
        return None
    query = "SELECT value FROM members WHERE id = ? AND uid = ?"
    found = db.execute(query, (row.id, uid)).fetchone()
    if row.release is not None:
        if found is None:
            raise late(key, uid, "was released without it")
        return Group(row.rules, row.until - now, 0, row.release, load(key.scope, found[0]))
    return None if found is None else Group(row.rules, row.until - now, _count(db, row), None, None)


def _count(db: sqlite3.Connection, row: _Row) -> int:
    query = "SELECT count(*) FROM members WHERE id = ?"
    count: int
    (count,) = db.execute(query, (row.id,)).fetchone()
    return count


def _opened(db: sqlite3.Connection, key: GroupKey, member: NewMember, now: float) -> _Row:
    """Open a group."""
    deleted = enter_step(db, key.scope, key.step, KEEP_GROUP_STEPS)
    if _open_groups(db, key.run) >= member.max_open:
        _abandon(db, "run = ? AND until < ?", (key.run, now - member.abandoned_s))
        if (count := _open_groups(db, key.run)) >= member.max_open:
            raise too_many(count)
    for step in deleted:
        where = "run = ? AND step = ?"
        query = f"DELETE FROM members WHERE id IN (SELECT id FROM groups WHERE {where})"  # noqa: S608 - a constant
        db.execute(query, (key.run, step))
        db.execute(f"DELETE FROM groups WHERE {where}", (key.run, step))  # noqa: S608 - a constant
    query = "INSERT INTO groups (run, step, name, rules, until) VALUES (?, ?, ?, ?, ?)"
    until = now + member.wait_s
    row = (*key, member.rules.dump(), until)
    number = db.execute(query, row).lastrowid
    assert number is not None  # noqa: S101 - a row was inserted
    return _Row(number, member.rules, until, None)


def _open_groups(db: sqlite3.Connection, run: str) -> int:
    query = "SELECT count(*) FROM groups WHERE run = ? AND release IS NULL"
    count: int
    (count,) = db.execute(query, (run,)).fetchone()
    return count


def abandon_groups(db: sqlite3.Connection, now: float) -> None:
    """End the open groups that nobody has requested for long."""
    _abandon(db, "until < ?", (now - ABANDONED_SECONDS,))


def _abandon(db: sqlite3.Connection, where: str, values: tuple[str | float, ...]) -> None:
    where = f"release IS NULL AND {where}"
    query = f"DELETE FROM members WHERE id IN (SELECT id FROM groups WHERE {where})"  # noqa: S608 - a constant
    db.execute(query, values)
    query = f"UPDATE groups SET release = ? WHERE {where}"  # noqa: S608 - a constant
    db.execute(query, (ABANDONED, *values))


def check_groups(db: sqlite3.Connection) -> None:
    """Check all that is stored of groups.

    Raises:
        Unavailable: It is damaged.
    """
    for run, *row in db.execute("SELECT run, id, rules, until, release FROM groups"):
        _row(Scope(run, "groups"), tuple(row))
    query = "SELECT run FROM groups WHERE run NOT IN (SELECT run FROM steps WHERE name = 'groups')"
    for (run,) in db.execute(query):
        raise Damaged(Scope(run, "groups"))
    query = (
        "SELECT coalesce(run, '') FROM members LEFT JOIN groups USING (id) "
        "WHERE run IS NULL OR NOT json_valid(value) LIMIT 1"
    )
    for (run,) in db.execute(query):
        raise Damaged(Scope(run, "groups"))
