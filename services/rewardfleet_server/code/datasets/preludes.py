"""What the runners of data sets import and define for each program."""

import re

#: Modules that LiveCodeBench and APPS import for each program.
_MODULES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json"
)
PRELUDE = "".join(
    f"from {module} import *\n" for module in f"{_MODULES} builtins typing".split()
) + (f"import {_MODULES.replace(' ', ', ')}\nsys.setrecursionlimit(50000)\n")

#: The lists and trees of LeetCode, as the runners of LeetCodeDataset in code-r1 and DeepCoder
#: define them: constructors, conversions from lists (level by level), and comparisons.
_LEETCODE = """
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next


def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head


def is_same_list(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None


class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right


def tree_node(values):
    nodes = [None if value is None else TreeNode(value) for value in values]
    children = iter(nodes[1:])
    for node in nodes:
        if node is not None:
            node.left, node.right = next(children, None), next(children, None)
    return nodes[0] if nodes else None


def is_same_tree(a, b):
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if a is None or b is None or a.val != b.val:
            if a is not None or b is not None:
                return False
        else:
            pairs += [(a.left, b.left), (a.right, b.right)]
    return True
"""
_OF_LEETCODE = re.compile(
    r"\b(?:ListNode|list_node|is_same_list|TreeNode|tree_node|is_same_tree)\b"
)


def prelude_of(script: str) -> str:
    """Return what the runners of code-r1 and DeepCoder provide for a script of tests."""
    return PRELUDE + _LEETCODE if _OF_LEETCODE.search(script) else PRELUDE
