"""Groups of episodes, which are scored as a whole, wherever their rows are."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from rewardfleet.wire.episode import MAX_EPISODES

from .arrow import json_text
from .lines import Lines
from .requests import Item, RequestBuilder, group_of
from .rows import Row


def in_groups(read: Callable[[], Iterator[Row]], builder: RequestBuilder) -> Iterator[Item]:
    """Return items so that those of a group follow one another, groups as their first items do.

    They are read as they are if they do so already, else from a temporary file. Some 60 bytes of
    memory are taken for each.

    Args:
        read: Returns the rows; called twice.
    """
    hashes = (hash(group_of(row) or (index,)) for index, row in enumerate(read()))
    groups = np.fromiter(hashes, np.int64)
    _, firsts, codes = np.unique(groups, return_index=True, return_inverse=True)
    first = firsts[codes]  # of its group, for each item
    if (first[1:] >= first[:-1]).all():
        return builder.items(read())
    lines = Lines()
    for item in builder.items(read()):
        values = (item.uid, item.error, item.group, item.row.place, item.row.fields)
        lines.put([(item.index, json_text(values).encode() + b"\n")])
    return (_item(index, lines.get(index) or b"") for index in np.argsort(first, kind="stable"))


def _item(index: int, line: bytes) -> Item:
    uid, error, group, place, fields = json.loads(line)
    return Item(int(index), Row(place, fields), uid=uid, error=error, group=group)


def groups_of(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield groups whose items follow one another; an item without a group is one by itself.

    A group that no request can have becomes single items, with an error.
    """
    for group, members in itertools.groupby(items, lambda item: item.group):
        if group is None:
            yield from ([item] for item in members)
            continue
        found = [*itertools.islice(members, MAX_EPISODES + 1)]
        if len(found) <= MAX_EPISODES:
            yield found
            continue
        for item in itertools.chain(found, members):
            item.error = f"the group {group[:60]} has more than {MAX_EPISODES:,} episodes"
            yield [item]
