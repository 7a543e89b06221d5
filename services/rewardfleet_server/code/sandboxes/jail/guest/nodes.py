"""Calls as LeetCode makes them: on linked lists and trees, in place, of the methods of a class.

A kind says what a value of JSON stands for: "ListNode", the list of its values; "TreeNode", its
values level by level, with null for a missing child; a list with a kind, a list of such; null,
itself. Of results, "value" is the value of a returned node, and "nothing" is always null.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

#: Nodes of a list or tree that a program returns.
_MAX_NODES = 1_000_000
#: The attributes that lead to other nodes, by the kind of node.
NODES = {"ListNode": ("next",), "TreeNode": ("left", "right")}


class Signature(NamedTuple):
    """What a function takes and returns."""

    kinds: Sequence[Any]  #: of its arguments
    result: Any = None  #: the kind of its result
    changed: int | None = None  #: the argument that is its answer, as it changes that in place


class ListNode:
    """LeetCode's linked list."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:  # noqa: A002 - LeetCode's name
        self.val, self.next = val, next


class TreeNode:
    """LeetCode's binary tree."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


def call_all(
    function: Callable[..., Any],
    methods: Sequence[str],
    signatures: Iterable[Sequence[Any]],
    args: Sequence[Any],
) -> Any:
    """Return what a call returns; or of a class, as a list, what its methods return in turn."""
    first, *others = (Signature(*each) for each in signatures)
    if not methods:
        return _call(function, first, args)
    given = args[1]
    instance = function(*built(first.kinds, given[0]))
    called = zip(methods[1:], others, given[1:], strict=True)
    return [None, *(_call(getattr(instance, name), *each) for name, *each in called)]


def _call(function: Callable[..., Any], signature: Signature, args: Sequence[Any]) -> Any:
    given = built(signature.kinds, args)
    value = function(*given)
    if signature.changed is not None:
        return flat(signature.kinds[signature.changed], given[signature.changed])
    return flat(signature.result, value)


def built(kinds: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return arguments as a function takes them.

    A scalar for a tree is its node with that value, in the tree that an argument before it is.

    Raises:
        ValueError: A value is not one of its kind.
    """
    found: list[Any] = []
    for kind, value in zip(kinds, values, strict=True):
        if kind == "TreeNode" and isinstance(value, int | str):
            roots = [root for root in found if isinstance(root, TreeNode)]
            nodes = [node for root in roots for node in _by_level(kind, root)]
            node = next((each for each in nodes if each and each.val == value), None)
            if node is None:
                raise ValueError(f"no node of a tree before it has the value {value!r}")
            found.append(node)
        else:
            found.append(build(kind, value))
    return found


def build(kind: Any, value: Any) -> Any:
    """Return what a value of JSON stands for; see `built` for what it raises."""
    if kind is None:
        return value
    if isinstance(kind, list) and isinstance(value, list):
        return [build(kind[0], each) for each in value]
    if not isinstance(value, list | None) or any(isinstance(v, list | dict) for v in value or ()):
        raise ValueError(f"a {kind if isinstance(kind, str) else 'list of nodes'} must be a list")
    values: list[Any] = value or []
    if kind == "ListNode":
        head = None
        for each in reversed(values):
            head = ListNode(each, head)
        return head
    nodes = [None if each is None else TreeNode(each) for each in values]
    count = 1
    for place, node in enumerate(nodes):
        if place >= count:
            raise ValueError("a TreeNode has a value without a parent")
        if node is not None:
            node.left, node.right = (*nodes[count : count + 2], None, None)[:2]
            count += 2
    return nodes[0] if nodes else None


def flat(kind: Any, value: Any) -> Any:
    """Return a result as JSON has it; raise ValueError if it has too many nodes, or a cycle."""
    if kind is None or kind == "nothing":
        return value if kind is None else None
    if kind == "value":
        return None if value is None else value.val
    if isinstance(kind, list):
        return [flat(kind[0], each) for each in value]
    found = [None if node is None else node.val for node in _by_level(kind, value)]
    while found and found[-1] is None:
        found.pop()
    return found


def _by_level(kind: str, root: Any) -> list[Any]:
    nodes = [root]
    for node in nodes:  # which grows
        if node is not None:
            nodes += [getattr(node, name) for name in NODES[kind]]
        if len(nodes) > _MAX_NODES:
            raise ValueError(f"a {kind} has a cycle, or more than {_MAX_NODES:,} nodes")
    return nodes
