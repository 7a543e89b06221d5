"""Asserts are evaluated in a process of their own, which the program cannot reach."""

import pytest

from .conftest import SHORT_LIMITS, Service, asserts, sample

pytestmark = [pytest.mark.slow, pytest.mark.protocol]

TREE = """
from math import *
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
    def __eq__(self, other):
        return isinstance(other, TreeNode) and (
            (self.val, self.left, self.right) == (other.val, other.left, other.right))
def build(*values):
    return TreeNode(values[0], *(build(*v) if v else None for v in values[1:]))
def to_list(node):
    return node and [node.val, to_list(node.left), to_list(node.right)]
"""
INVERT = """
def invert(node):
    if node:
        node.left, node.right = invert(node.right), invert(node.left)
    return node
"""

#: Programs and cases whose values cross the boundary, so that the program decides nothing.
OUTSIDE = {
    "a computed constant": ("def f(): return 10**20 + 1", "assert f() == 10**20 + 1"),
    "a tolerance": ("def f(x): return x / 3", "assert abs(f(1) - 1 / 3) < 1e-9"),
    "math.isclose": (
        "def f(x): return x / 3",
        "import math\nassert math.isclose(f(1), 0.3333333333)",
    ),
    "membership": ("def f(): return 3", "assert f() in (3, 4)"),
    "not": ("def f(): return []", "assert not f()"),
    "a chain": ("def f(): return 3", "assert 1 < f() <= 3"),
    "sorted": ("def f(): return {3, 1}", "assert sorted(f()) == [1, 3]"),
    "isinstance": ("def f(): return [1]", "assert isinstance(f(), list)"),
    "type": ("def f(): return (1,)", "assert type(f()) is tuple"),
    "all": ("def f(n): return n % 2", "assert all(f(n) == n % 2 for n in range(20))"),
    "a script": (
        "def f(x): return 2 * x",
        "def check(candidate):\n  assert candidate(1) == 2\n"
        "  assert candidate('a') == 'aa'\ncheck(f)",
    ),
    "keyword arguments": ("def f(a, *, b=1): return a - b", "assert f(3, b=2) + 0 == 1"),
    "a method": (
        "class Solution:\n  def f(self, x): return x + 1",
        "s = Solution()\nassert s.f(1) == 2",
    ),
    "state in an object": (
        "class Stack:\n  def __init__(self): self.items = []\n"
        "  def push(self, x): self.items.append(x)\n  def pop(self): return self.items.pop()\n"
        "  def __len__(self): return len(self.items)",
        "s = Stack()\ns.push(1)\ns.push([2])\nassert len(s) == 2\nassert s.pop() == [2]\n"
        "assert s.items == [1]",
    ),
    "lists of plain values, and of others": (
        "def f(x): return x[::-1]",
        "for x in ([], [1, 2.5], ['a', 'b'], ['\\u00e9', '\\ud800'], [1, 2**60, 10**400],"
        " [1.5, 1e308], [float('inf'), 2], [True, 1], [None, 1], [1, 'a'], [(1,), 2], [[1], 2],"
        " [-0.0, 0]):\n"
        "  y = f(x)\n  assert list(map(repr, y)) == list(map(repr, reversed(x)))\n"
        "  assert [*map(type, y)] == [*map(type, reversed(x))]",
    ),
    "lists too large to be compared at each call": (
        "def f(n): return [n] * n",
        "held = [f(200_000) for _ in range(3)]\n"
        "assert [f(n)[-1] for n in range(1, 50)] == list(range(1, 50))\n"
        "assert held == [[200_000] * 200_000] * 3",
    ),
    "a mutated list": (
        "def f(x):\n  x.sort()\n  x.append([1])",
        "a = [3, 1]\nassert f(a) is None\nassert a == [1, 3, [1]]",
    ),
    "a mutated nested dict": (
        "def f(d): d['a']['b'].add(2)",
        "d = {'a': {'b': {1}}}\nf(d)\nassert d == {'a': {'b': {1, 2}}}",
    ),
    "the argument is returned": (
        "def f(x):\n  x[0] = 5\n  return x",
        "a = [1]\nassert f(a) is a\nassert a == [5]",
    ),
    "aliases": (
        "def f(x, y):\n  x.append(1)\n  return x is y, y",
        "a = []\nsame, b = f(a, a)\nassert same and b is a and a == [1]",
    ),
    "an alias inside": (
        "def f(rows):\n  rows[0].append(7)\n  return rows",
        "row = [1]\nrows = f([row, row])\nassert rows[1] == [1, 7] and rows[0] is rows[1] is row",
    ),
    "a list that contains itself": (
        "def f(x): return x[0] is x",
        "a = []\na.append(a)\nassert f(a) is True",
    ),
    "a generator": (
        "def f(n):\n  for i in range(n): yield i * i",
        "assert list(f(4)) == [0, 1, 4, 9]\nassert sum(f(3)) == 5\ng = f(2)\nassert next(g) == 0",
    ),
    "an import that the program replaces": (
        "class math:\n  floor = staticmethod(lambda x: 2)\ndef f(): return 2.5",
        "assert math.floor(f()) == 2",
    ),
    "a coroutine": (
        "async def f(): return 1", "import asyncio\nassert asyncio.run(f()) == 1"
    ),
    "a closure": (
        "def adder(n):\n  def add(x): return x + n\n  return add",
        "assert adder(2)(3) == 5",
    ),
    "a callback": (
        "def f(items, key): return sorted(items, key=key)",
        "assert f([3, -1, 2], key=lambda x: -x) == [3, 2, -1]",
    ),
    "a callback that raises": (
        "def f(g):\n  try: g()\n  except ValueError as e: return str(e)",
        "def g(): raise ValueError('mine')\nassert f(g) == 'mine'",
    ),
    "a function of Python": (
        "from functools import reduce\ndef f(g, xs): return reduce(g, xs)",
        "import operator\nassert f(operator.mul, [2, 3, 4]) == 24\nassert f(max, [1, 3]) == 3",
    ),
    "types as arguments": ("def f(t, x): return t(x)", "assert f(int, '5') == 5"),
    "a generator as an argument": (
        "def f(xs): return sum(xs)",
        "assert f(x * x for x in range(4)) == 14",
    ),
    "an iterator as an argument": (
        "def f(xs): return next(xs), list(xs)",
        "assert f(iter([1, 2, 3])) == (1, [2, 3])",
    ),
    "an object of the test": (
        "def f(o):\n  o.x += 1\n  return o.double()",
        "class O:\n  x = 1\n  def double(self): return 2 * self.x\no = O()\n"
        "assert f(o) == 4 and o.x == 2",
    ),
    "an exception": (
        "def f(x):\n  if x < 0: raise ValueError('negative', x)\n  return x",
        "try:\n  f(-1)\n  assert False\nexcept ValueError as e:\n"
        "  assert e.args == ('negative', -1)\n",
    ),
    "an exception with a message": (
        "def f(): raise KeyError('k')",
        "try:\n  f()\nexcept LookupError as e:\n  assert str(e) == \"'k'\"\nelse:\n  assert 0",
    ),
    "an exception of the program": (
        "class Empty(IndexError):\n  def __init__(self, n):\n    super().__init__(f'empty {n}')\n"
        "    self.n = n\ndef f(): raise Empty(3)",
        "try:\n  f()\n  raise SystemError\nexcept Empty as e:\n"
        "  assert str(e) == 'empty 3' and e.n == 3\n",
    ),
    "a base of an exception of the program": (
        "class A(Exception): pass\nclass B(A): pass\ndef f(): raise B",
        "try:\n  f()\n  raise SystemError\nexcept A:\n  assert True",
    ),
    "unittest": (
        "def f(x): return 1 // x",
        "import unittest\nclass T(unittest.TestCase):\n"
        "  def test(self):\n    self.assertEqual(f(1), 1)\n"
        "    with self.assertRaises(ZeroDivisionError): f(0)\n"
        "r = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\n"
        "assert r.wasSuccessful()",
    ),
    "an imported name of the program": (
        "from collections import Counter\nimport math\ndef f(s): return s",
        "assert Counter(f('aab')) == {'a': 2, 'b': 1}\nassert math.floor(f(2.5)) == 2",
    ),
    "collections": (
        "from collections import *\ndef f(): return Counter('aab'), OrderedDict(a=1), deque([1])",
        "c, o, d = f()\nassert c.most_common(1) == [('a', 2)]\n"
        "assert type(o).__name__ == 'OrderedDict'\n"
        "assert d.popleft() == 1",
    ),
    "a defaultdict": (
        "from collections import defaultdict\ndef f():\n  d = defaultdict(list)\n  d[1].append(2)\n"
        "  return d",
        "d = f()\nassert d[1] == [2] and d[5] == []",
    ),
    "a named tuple of the program": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "p = f()\nassert p.x == 1 and p == (1, 2) and len(p) == 2",
    ),
    "a data class of the program": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\ndef f(): return P(4)",
        "assert f().x == 4",
    ),
    "an enumeration of the program": (
        "from enum import Enum\nclass C(Enum):\n  RED = 1\ndef f(): return C.RED",
        "assert f().name == 'RED' and f().value == 1",
    ),
    "numbers": (
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "def f(): return [Fraction(1, 3), Decimal('0.1'), 1 + 2j, 10**30, float('inf'), b'x']",
        "a = f()\nassert a[0] * 3 == 1 and a[1] * 10 == 1 and a[2].imag == 2\n"
        "assert a[3] == 10**30 and a[4] > 1e308 and a[5] == b'x'",
    ),
    "dates": (
        "import datetime\ndef f(): return datetime.date(2024, 2, 28) + datetime.timedelta(days=2)",
        "import datetime\nassert f() == datetime.date(2024, 3, 1)",
    ),
    "strings with surrogates": ("def f(s): return s + '\\udfff'", "assert len(f('\\ud800')) == 2"),
    "a set of tuples": ("def f(): return {(1, 'a')}", "assert f() - {(1, 'a')} == set()"),
    "a range": ("def f(): return range(3)", "assert list(f()) == [0, 1, 2]"),
    "a deep list": (
        "def f(n):\n  x = []\n  for _ in range(n): x = [x]\n  return x",
        "x, n = f(3000), 0\nwhile x: x, n = x[0], n + 1\nassert n == 3000",
    ),
    "output that the test captures": (
        "def f(): print('hello')",
        "import io, contextlib\no = io.StringIO()\nwith contextlib.redirect_stdout(o): f()\n"
        "assert o.getvalue() == 'hello\\n'",
    ),
    "input that the test gives": (
        "import sys\ndef f(): return input() + sys.stdin.readline()",
        "import io, sys\nsys.stdin = io.StringIO('a\\nb\\n')\nassert f() == 'ab\\n'",
    ),
    "an input function of the test": (
        "def f(): return int(input('?')) + 1",
        "import builtins\nbuiltins.input = lambda prompt: '4'\nassert f() == 5",
    ),
    "the program as a module": (
        "x = 5\ndef f(): return 1",
        "import program\nfrom program import f as g\nassert program.f() + g() == 2",
    ),
    "names by string": (
        "def f(): return 1",
        "assert globals()['f']() + 0 == 1\nassert globals().get('missing') is None\n"
        "assert eval('f() + 1') == 2",
    ),
    "a context manager": (
        "class C:\n  def __enter__(self): return 5\n  def __exit__(self, *a): pass\n",
        "with C() as x:\n  assert x == 5",
    ),
    "arithmetic of the program": (
        "class V:\n  def __init__(self, x): self.x = x\n"
        "  def __add__(self, o): return V(self.x + o.x)\n"
        "  def __rmul__(self, n): return V(n * self.x)\n"
        "  def __getitem__(self, i): return self.x + i\n"
        "  def __str__(self): return f'V{self.x}'\n  def __iter__(self): return iter([self.x])",
        "v = V(1) + V(2)\nassert v.x == 3 and v[1] == 4 and str(v) == 'V3'\n"
        "assert list(v) == [3] and f'{v}' == 'V3'",
    ),
    "attributes": (
        "class A:\n  n = 1\ndef f(): pass\n",
        "a = A()\na.n = 7\nassert a.n == 7 and A.n == 1\n"
        "assert hasattr(a, 'n') and not hasattr(a, 'm')\n"
        "assert f.__name__ == 'f' and callable(f)",
    ),
    "a function with the name of a built-in one": (
        "def sum(a, b): return a * 10 + b",
        "x = 1\nassert sum(x, 2) in (12,)",
    ),
    "a generator that is sent values": (
        "def f():\n  x = yield 1\n  yield x",
        "g = f()\nassert next(g) == 1 and g.send(5) == 5\ntry:\n  g.send(0)\n  assert False\n"
        "except StopIteration:\n  pass",
    ),
    "a context manager that fails": (
        "class C:\n  def __enter__(self): pass\n  def __exit__(self, kind, *a): self.kind = kind",
        "c = C()\ntry:\n  with c: raise KeyError\nexcept KeyError:\n"
        "  assert c.kind.__name__ == 'KeyError'",
    ),
    "identity of a text": ("def f(x): return x", "x = 'ab' * 50\nassert f(x) is x"),
    "types": (
        "class A: pass",
        "from collections.abc import Sized\nassert not isinstance(A(), Sized)",
    ),
    "methods of an exception": (
        "class E(Exception):\n  def __init__(s, n): s.n = n\n  def twice(s): return 2 * s.n\n"
        "def f(): raise E(2)",
        "try:\n  f()\n  raise SystemError\nexcept E as e:\n  assert e.twice() == 4",
    ),
    "a list with methods": (
        "class S(list):\n  def push(s, x): s.append(x)", "s = S()\ns.push(1)\nassert s.pop() == 1"
    ),
    "a look at the source": (
        "def f(a, b): return 1",
        "import inspect\nassert list(inspect.signature(f).parameters) == ['a', 'b']",
    ),
    "a path as text": (
        "import pathlib\ndef f(): return pathlib.PurePosixPath('a/b')", "assert str(f()) == 'a/b'"
    ),
    "an address": (
        "import ipaddress\ndef f(): return ipaddress.ip_address('1.2.3.4')",
        "assert f().is_private is False and str(f()) == '1.2.3.4'",
    ),
    "a data class as text": (
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n  x: int\ndef f(): return P(1)",
        "assert str(f()) == 'P(x=1)'",
    ),
    "a data class as a dictionary": (
        "import dataclasses\n@dataclasses.dataclass\nclass P:\n  x: int\ndef f(): return P(1)",
        "import dataclasses\nassert dataclasses.asdict(f()) == {'x': 1}",
    ),
    "a match": ("import re\ndef f(): return re.match('a', 'ab')", "assert f()[0] == 'a'"),
    "views and arrays": (
        "import array, collections, types\ndef f():\n"
        "  return array.array('i', [1]), types.MappingProxyType({1: 2}), memoryview(b'ab'),"
        " collections.ChainMap({1: 2})",
        "a, b, c, d = f()\nassert (a[0], b[1], bytes(c), d[1]) == (1, 2, b'ab', 2)",
    ),
    "a dictionary with a default of its own": (
        "class D(dict):\n  def __missing__(self, key): return 7\ndef f(): return D(a=1)",
        "d = f()\nassert d == {'a': 1} and d['b'] == 7",
    ),
    "a time zone": (
        "import datetime as d\n"
        "def f(): return d.datetime(2024, 1, 1, tzinfo=d.timezone(d.timedelta(hours=2)))",
        "assert f().isoformat() == '2024-01-01T00:00:00+02:00'",
    ),
    "numbers of an enumeration": (
        "import enum\nclass L(enum.IntEnum):\n  A = 1\ndef f(): return [L.A]", "assert f() == [1]"
    ),
    "a mock as an argument": (
        "def f(send): send('x')",
        "from unittest.mock import MagicMock\nm = MagicMock()\nf(m)\n"
        "m.assert_called_once_with('x')\nassert m.called",
    ),
}  # fmt: skip

#: The same with a setup.
WITH_SETUP = {
    "an instance of a class of the setup": (
        INVERT,
        "assert to_list(invert(build(1, [2], [3]))) == [1, [3, None, None], [2, None, None]]",
    ),
    "the program repeats the class": (
        TREE.split("    def __eq__", maxsplit=1)[0] + INVERT,
        "assert invert(build(1, [2], None)) == build(1, None, [2])",
    ),
    "the program keeps the node": (
        INVERT, "root = build(1, [2], [3])\nleft = root.left\nassert invert(root) is root\n"
        "assert root.right is left",
    ),
    "a long list of nodes": (
        "def f(n):\n  node = None\n  for i in range(n): node = TreeNode(i, node)\n  return node",
        "node, n = f(2000), 0\nwhile node: node, n = node.left, n + 1\nassert n == 2000",
    ),
    "the class as an argument": ("def f(cls): return cls(3)", "assert f(TreeNode).val == 3"),
    "a function with a name that the setup imports": (
        "def gcd(a, b): return a - b", "assert gcd(10, 4) + 0 == 6"
    ),
}  # fmt: skip

#: Tests in which the program takes part in the decision.
INSIDE = {
    "a class of the program compares": (
        "class V:\n  def __init__(s, x): s.x = x\n  def __eq__(s, o): return s.x == o.x\n",
        "assert V(1) == V(1)",
    ),
    "an order of the program": (
        "import functools\n@functools.total_ordering\nclass V:\n  def __init__(s, x): s.x = x\n"
        "  def __lt__(s, o): return s.x < o.x\n  def __eq__(s, o): return s.x == o.x",
        "assert V(1) < V(2) and sorted([V(2), V(1)])[0].x == 1",
    ),
    "truth": ("class V: pass\ndef f(): return V()", "assert f()"),
    "membership": (
        "class V:\n  def __contains__(s, x): return x == 3\n",
        "assert 3 in V()\nassert 4 not in V()",
    ),
    "isinstance of a class of the program": (
        "class A: pass\nclass B(A): pass\ndef f(): return B()", "assert isinstance(f(), A)"
    ),
    "arithmetic with a number of the test": (
        "class V:\n  def __init__(s, x): s.x = x\n  def __mul__(s, n): return V(s.x * n)\n",
        "assert (V(2) * 3).x == 6",
    ),
    "a context that suppresses an error": (
        "class C:\n  def __enter__(self): pass\n  def __exit__(self, *a): return True",
        "with C(): raise KeyError\nx = 1\nassert x == 1",
    ),
    "a class of the program as a base": (
        "class A:\n  def f(self): return 1", "class B(A): pass\nassert B().f() in (1,)"
    ),
    "state of the setup": ("def f(): log.append(1)", "f()\nassert log == [1]"),
    "a function of a module": (
        "import time\ndef f(): time.sleep(99)\n", "time.sleep = lambda s: 5\nassert f() is None"
    ),
    "two functions": (
        "def enc(s): return s[::-1]\ndef dec(s): return s[::-1]",
        "assert dec(enc('abc')) == 'abc'",
    ),
    "identity over calls": (
        "seen = []\ndef add(x): seen.append(x)\ndef has(x): return any(x is s for s in seen)",
        "a, b = [1], [1]\nadd(a)\nassert has(a) and not has(b)",
    ),
    "a change that is noticed by a later call": (
        "kept = []\ndef add(x): kept.append(x)\ndef total(): return sum(map(sum, kept))",
        "a = [1]\nadd(a)\na.append(5)\nadd(a)\nassert total() == 12",
    ),
    "a global variable": (
        "count = 0\ndef f():\n  global count\n  count += 1",
        "f()\nf()\nassert count == 2",
    ),
    "a callback that calls back": (
        "def apply(g, n): return g(n)\ndef double(n): return 2 * n",
        "assert apply(lambda n: double(n) + 1, 4) == 9",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def service(level_service: Service) -> Service:
    return level_service


@pytest.mark.parametrize(("program", "case"), OUTSIDE.values(), ids=OUTSIDE)
def test_a_correct_program_is_accepted_by_the_process_of_the_tests(service, program, case):
    score = service.score(program, asserts(case, strict=True))
    (verdict,) = score["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "service"), verdict
    assert score["suspicions"] == []


@pytest.mark.parametrize(("program", "case"), WITH_SETUP.values(), ids=WITH_SETUP)
def test_classes_of_the_setup_are_on_both_sides(service, program, case):
    score = service.score(program, asserts(case, setup=TREE, strict=True))
    (verdict,) = score["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "service"), verdict


@pytest.mark.parametrize(("program", "case"), INSIDE.values(), ids=INSIDE)
def test_what_the_program_decides_is_reported(service, program, case):
    (verdict,) = service.score(program, asserts(case, setup="log = []"))["verdicts"]
    assert (verdict["verdict"], verdict["verdict_by"]) == ("accepted", "jail"), verdict
    response = service.post(program, asserts("assert 1", case, strict=True, setup="log = []"))
    if response.status_code == 200:
        assert response.json()["verdicts"][1]["verdict"] in {"wrong_answer", "runtime_error"}
    else:
        assert response.status_code == 422
        assert response.json()["detail"].startswith("tests.cases.1: it looks into the program's")


#: Cases that no program can pass without the right value, and a wrong value.
CASES = [
    "assert f(3) == 10**20 + 1",
    "assert f(3) in (3,)",
    "assert abs(f(3) - 3) < 1e-9",
    "import math\nassert math.isclose(f(3), 3.5)",
    "assert isinstance(f(3), tuple)",
    "assert sorted(f(3)) == [1, 1 + 1]",
    "assert not f(3) != 3 + 0.5",
    "assert all(f(x) == x**x for x in range(3, 9))",
    "def check(candidate):\n    expected = [4, 5]\n    assert candidate(3) == expected\ncheck(f)",
    "assert max(f(3), key=lambda x: -x) == -7",
    "def g(x): return x\nassert f(g) == [g]",
    "assert (f(3) == 2 + 2) is True",
    "import program\nassert abs(program.f(3) - 2.71) < 1e-9",
    "from program import f as g\nassert sorted(g(3)) == [1, 1 + 1]",
    "assert abs(run(3) - 2.71) < 1e-9",
    "assert all(run(n) == n**n for n in range(9))",
    "assert isclose(f(3), 2.71) and m.isclose(f(3), 2.71)",
    "assert f(3).equals(Node(10**20 + 5))",
    "assert f(3) & {10**20 + 1} == {10**20 + 1} or f(3).issubset({10**20}) and f(3)",
    "with f(3) as c:\n    assert c.value() == 10**20 + 77",
    "assert all(map(lambda x: f(x) == x**x + 7, range(9)))",
    "for got, want in zip(map(f, [1, 2]), [10**20, 7], strict=True): assert got == want",
    "import math\ndef same(a, b): return math.isclose(a, b)\nassert same(f(3), 3.25)",
    "assert all(map(lambda x: abs(float(f(x)) - x**9.5) < 1e-9, [1, 2]))",
    "for got, want in zip(map(str, map(f, [1, 2])), ['x1', 'y2']): assert got == want",
    "assert f(3).union({10**20}) == {10**20}",
    "assert f(3).count(10**20) == 1 and f(3)",
    "r = f(3)\nassert len(r) == 3 and all(a == b for a, b in zip(r, [10**20, 3, 10**9]))",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(f(3), 10**20 + 1)\n        assert f(4) == 7**20\nunittest.main()",
]
CASES_SETUP = """
import math as m
from math import isclose
class Node:
    def __init__(self, v): self.v = v
    def equals(self, other): return self.v == other.v
def run(x): return f(x)
"""
LIAR = """
class L({base}):
    __eq__ = __ge__ = __le__ = __gt__ = __lt__ = __contains__ = lambda *_: True
    __ne__ = __bool__ = lambda *_: False
    __hash__ = object.__hash__
    __abs__ = __sub__ = __rsub__ = __neg__ = lambda s, *_: s
    __iter__ = lambda s: iter([s])
    __getattr__ = lambda s, n: s
def f(x): return L({value})
"""
#: Programs that return a wrong value, and tamper with what decides.
TAMPERING = {
    "an int that equals everything": LIAR.format(base="int", value="0"),
    "a float that equals everything": LIAR.format(base="float", value="0"),
    "a list that equals everything": LIAR.format(base="list", value="[0]"),
    "a str that equals everything": LIAR.format(base="str", value="'x'"),
    "exec is replaced": "import builtins\nbuiltins.exec = builtins.eval = lambda *_: None\n"
    "def f(x): return 0",
    "compile is replaced": "import builtins\nreal = compile\n"
    "builtins.compile = lambda *a, **k: real('1', 'x', 'exec')\ndef f(x): return 0",
    "math is replaced": "import math, sys\nmath.isclose = lambda *_, **__: True\n"
    "class math:\n  isclose = staticmethod(lambda *_, **__: True)\n"
    "sys.modules['math'] = math\ndef f(x): return 0",
    "functions of the tests": "def isinstance(*_): return True\ndef sorted(x): return [1, 2]\n"
    "def abs(x): return 0\ndef all(x): return True\ndef max(*_, **__): return -7\n"
    "def check(*_): pass\ndef f(x): return 0",
    "all built-in functions": "import builtins\nfor n in dir(builtins):\n"
    "  if n.islower() and n not in ('print', 'repr'): setattr(builtins, n, lambda *_, **__: 1)\n"
    "def f(x): return 0",
    "special methods of the frames": "import sys\ndef f(x):\n  g = sys._getframe()\n"
    "  while g:\n    for n, v in list(g.f_locals.items()) + list(g.f_globals.items()):\n"
    "      if n in ('expected', 'candidate', 'cases', 'literal'): return v\n    g = g.f_back\n"
    "  return 0",
    "it exits": "import os\ndef f(x): os._exit(0)",
    "it exits at once": "import os\nos._exit(0)",
    "SystemExit": "def f(x): raise SystemExit(0)",
    "it closes all files": "import os\ndef f(x): os.closerange(0, 300)",
    "AssertionError is replaced": "import builtins\nclass A(Exception): pass\n"
    "builtins.AssertionError = A\ndef f(x): return 0",
    "a class without a name": LIAR.format(base="object", value="").replace(
        "def f", "L.__name__ = ''\ndef f"
    ),
    "arithmetic": "class L:\n  __sub__ = __rsub__ = lambda *_: 0.0\n"
    "  __and__ = __rand__ = lambda *_: set()\n  issubset = lambda *_: True\n"
    "def f(x): return L()",
    "it claims to define nothing": "import sys\nside = sys._getframe(1).f_locals['side']\n"
    "def f(x): return 0\ndef abs(x): return 0\ndef sorted(x): return [1, 2]\n"
    "def isinstance(*_): return True\ndef all(x): return True\nside._setup['f'] = f",
    "StopIteration": "def f(x): raise StopIteration",
    "a context": "class C:\n  __enter__ = lambda s: s\n  __exit__ = lambda *_: True\n"
    "  value = lambda s: 0\n  __iter__ = lambda s: iter([])\ndef f(x): return C()",
    "StopIteration from operations": "class Z:\n  def stop(s, *a): raise StopIteration\n"
    "  __float__ = __abs__ = __getitem__ = __str__ = __iter__ = __sub__ = stop\n"
    "  value = property(stop)\ndef f(x): return Z()",
    "a test that is skipped": "import unittest\ndef f(x): raise unittest.SkipTest('x')\n"
    "def setUpModule(): raise unittest.SkipTest('x')\ndef load_tests(*a): return 0",
    "methods of built-in types": "class S:\n  union = __init__ = lambda s, o=(): o\n"
    "  count = lambda s, o: 1\ndef f(x): return S.__new__(S)",
    "an object whose loop is empty": "class S:\n  __len__ = lambda s: 3\n"
    "  __iter__ = lambda s: iter([])\ndef f(x): return S()",
    "methods and attributes": "def f(x):\n  try:\n    n = type(x)(0)\n  except Exception:\n"
    "    n = Node(0)\n  n.equals = n.__eq__ = lambda o: True\n  return n",
    "the class of the result": "class M(type):\n  __eq__ = lambda *_: True\n"
    "  __hash__ = type.__hash__\n"
    "  __instancecheck__ = __subclasscheck__ = lambda *_: True\n"
    "class C(int, metaclass=M):\n  __class__ = tuple\n  __eq__ = lambda *_: True\n"
    "def f(x): return C(0)",
}  # fmt: skip
#: What a program sends instead of its replies.
FORGED = """
import sys
boundary = sys.modules["rewardfleet_guest.boundary"]
class Forger:
    def forge(self, message):
        for forged in FORGED:
            self.send(forged)
boundary.ProgramSide.answer = Forger.forge
def f(x): return 0
"""
FORGERIES = {
    "an object that equals everything": [{"result": ["import", "unittest.mock", "ANY"]}],
    "its class": [{"result": ["import", "unittest.mock", "_ANY"]}],
    "a function of Python": [{"result": ["import", "os", "_exit"]}],
    "a type": [{"result": ["import", "builtins", "object"]}],
    "the end": [{"call": [["import", "os", "_exit"], [0], []]}],
    "the end as a result": [{"result": True}, {"result": True}, {"held": True}],
    "a call of exec": [{"call": [["import", "builtins", "exec"], ["import os; os._exit(0)"], []]}],
    "an operation on an object of the tests": [
        {"call": [["op", "getattr"], [["yours", 0], "__globals__"], []]},
        {"call": [["op", "setattr"], [["yours", 0], "__code__", None], []]},
        {"result": 0},
    ],
    "an object that was never sent": [{"result": ["yours", 99]}, {"result": ["ref", 99]}],
    "an exception whose module runs tests": [
        {"raised": [["unittest.__main__.X"], ["tuple"], "", [], ""]}
    ],
    "an exception whose module exits": [
        {"raised": [["numpy.f2py.__main__.X"], ["tuple"], "", [], ""]}
    ],
    "a variable of another module": [{"result": ["import", "unittest.__main__", "f"]}],
    "a module by another name": [{"result": ["import", "f", ""]}],
    "an array that is not filled": [
        {"objects": {"1": ["array", ["<u2", [500]], "zz"]}, "result": 0},
        {"result": ["ref", 1]},
    ],
    "an unknown kind": [{"result": ["evil", 1]}, {"result": ["atom", "evil", []]}],
    "a class that is not there": [{"result": ["class", "Evil"]}],
    "an instance of it": [{"objects": {"1": ["object", ["Evil", None], [[], None]]}, "result": 0}],
    "no message": [{}, [], 5, {"raised": []}, {"result": ["tuple"]}],
    "an exception": [{"raised": [["StopIteration"], ["tuple"], "", [], ""]}] * 9,
    "the end of the process": [{"raised": [["SystemExit"], ["tuple", 0], "", [], ""]}],
    "an inside request": [{"inside": "import os; os._exit(0)"}, {"result": 0}],
    "a large integer": [{"result": ["int", "f" * 10_000_000]}],
    "other builtins": [{"names": ["check", "abs", "f"]}, {"result": 1}],
    "an array of objects": [
        {"objects": {"1": ["array", ["|O", [1]], "00" * 8]}, "result": ["ref", 1]}
    ],
}  # fmt: skip


@pytest.mark.parametrize("program", [*TAMPERING.values()][::9], ids=[*TAMPERING][::9])
def test_no_program_without_the_right_value_passes(service: Service, program: str):
    """With `strict`. The next test tries all of them."""
    tests = asserts(*CASES, strict=True, setup=CASES_SETUP)
    score = service.score(program, tests, limits=SHORT_LIMITS)
    for case, verdict in zip(CASES, score["verdicts"], strict=True):
        assert verdict["verdict"] != "accepted", (case, verdict)


@pytest.mark.parametrize("program", sample(TAMPERING, 3))
def test_nothing_is_accepted_as_decided_outside(service: Service, program: str):
    """Without `strict`, a class of the program may decide, which is reported."""
    score = service.score(program, asserts(*CASES, setup=CASES_SETUP), limits=SHORT_LIMITS)
    for case, verdict in zip(CASES, score["verdicts"], strict=True):
        outcome = verdict["verdict"], verdict["verdict_by"]
        assert outcome != ("accepted", "service"), (case, verdict)


@pytest.mark.parametrize("forged", sample(FORGERIES, 3))
def test_what_a_program_sends_instead_of_its_replies_is_no_right_value(service, forged):
    program = f"FORGED = {forged!r}\n{FORGED}"
    score = service.score(program, asserts(*CASES[:3], setup=CASES_SETUP), limits=SHORT_LIMITS)
    for case, verdict in zip(CASES[:3], score["verdicts"], strict=True):
        assert verdict["verdict"] != "accepted", (case, verdict)


#: Requests of a program while a test waits for it: `H` is a function of the test.
REQUESTS = {
    "the variables of a function": {"call": [["op", "getattr"], ["H", "__globals__"], []]},
    "an attribute of a method": {"call": [["op", "getattr"], ["H", "gi_frame"], []]},
    "the code of a function": {"call": [["op", "setattr"], ["H", "__code__", None], []]},
    "a method of a text": {"call": [["op", "getattr"], ["{0.x.__globals__}", "format"], []]},
    "a type": {"call": [["import", "builtins", "type"], ["H"], []]},
    "exec": {"call": [["import", "builtins", "exec"], ["1"], []]},
    "a class by its path": {
        "call": [["op", "len"], [["import", "builtins", "help.__class__"]], []]
    },
    "a module": {"call": [["op", "len"], [["import", "os", ""]], []]},
    "a dictionary with a factory": {
        "objects": {"7777": ["defaultdict", ["import", "numpy", "f2py.crackfortran.string"], []]},
        "call": [["op", "getitem"], [["ref", 7777], 0], []],
    },
    "an attribute of a list": {"call": [["op", "getattr"], [["ref", 1], "append"], []]},
    "an operation on a function": {"call": [["op", "mul"], [["ref", 1], "H"], []]},
    "an inside test": {"inside": "import os; os._exit(0)"},
    "a name": {"name": "f"},
    "streams": {
        "call": [["op", "len"], ["x"], []],
        "streams": {"stdout": 5, "stderr": ["ref", 99999]},
    },
}  # fmt: skip
REQUESTING = """
import sys
boundary = sys.modules["rewardfleet_guest.boundary"]
side = sys._getframe(1).f_locals["side"]
def f(h, values):
    handle = object.__getattribute__(h, "_handle")
    target, args, kwargs = REQUEST.get("call", [None, [], []])
    args = [["yours", handle] if arg == "H" else arg for arg in args]
    reply = side.exchange({**REQUEST, **({"call": [target, args, kwargs]} if target else {})})
    return str(reply)
"""


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_program_can_only_call_what_a_test_passes_to_it(service: Service, request_):
    case = (
        "import sys\nsecret = 10**20 + 5\nout = sys.stdout\n"
        "got = f(lambda: secret, [1])\nassert got.startswith(\"{'raised'\"), got\n"
        "assert str(secret) not in got and sys.stdout is out"
    )
    program = f"REQUEST = {request_!r}\n{REQUESTING}"
    (verdict,) = service.score(program, asserts(case, strict=True))["verdicts"]
    if verdict["verdict"] != "accepted":  # or the tests ended at the request
        assert (verdict["verdict"], verdict["stderr"]) == ("exited_early", ""), verdict


def test_a_test_that_a_program_makes_wait_ends(service: Service):
    for program in ("def f(x):\n  while True: pass", "import time\ndef f(x): time.sleep(99)"):
        score = service.score(
            program, asserts("assert f(1) in (1,)"), limits={"wall_s": 1, "cpu_s": 1}
        )
        assert score["verdicts"][0]["verdict"] == "time_limit"
    # The tests end, and the program goes on.
    program = """
import os, threading
def f(x):
    def loop():
        while True: pass
    threading.Thread(target=loop).start()
    return 1
"""
    assert service.verdict(program, asserts("assert f(1) in (1,)")) == "accepted"


#: Wrong programs that would pass if the tests overlooked the boundary.
WRONG = {
    "a list that is not copied": (
        "class S:\n  def __init__(s): s.items = []\n  def add(s, x): s.items.append(x); return s",
        "a = S()\nold = a.items\nb = a.add(1)\nassert old == []",
    ),
    "a copy that is none": ("def clone(x): return x", "t = (1, 2)\nassert clone(t) is not t"),
    "no special method": ("class P: pass", "assert hasattr(P(), '__len__')"),
    "an exception of the same name": (
        "class KeyError(Exception): pass\ndef f(): raise KeyError",
        "try: f()\nexcept LookupError: assert True",
    ),
    "a mutated view": (
        "def f(a): a.T[0, 1] = 9",
        "import numpy as np\na = np.zeros((2, 2))\nf(a)\nassert not a.any()",
    ),
    "no test": (
        "def f(x): return 7",
        "import unittest\nclass T(unittest.TestCase):\n  def test(self):\n    r = f(1)\n"
        "    assert r == 1\nunittest.main()",
    ),
    "state of the setup": ("def f(): log.append(1)", "f()\nassert log == []"),
}  # fmt: skip


@pytest.mark.parametrize(("program", "case"), WRONG.values(), ids=WRONG)
def test_a_wrong_program_is_rejected(service: Service, program: str, case: str):
    assert service.verdict(program, asserts(case, setup="log = []")) != "accepted"


def test_unittest_main_runs_the_tests(service: Service):
    case = WRONG["no test"][1]
    assert service.verdict("def f(x): return x", asserts(case, strict=True)) == "accepted"


def test_only_what_crossed_is_evaluated_again(service: Service):
    """So a wrong value is a wrong answer, whatever else the program does."""
    program = "import math\nmath.isclose = lambda *_, **__: True\ndef f(x): return 0"
    cases = (
        "import math\nassert math.isclose(f(1), 2)",
        "assert f(1) is not None and f(1) == 1 + 1",
    )
    score = service.score(program, asserts(*cases))
    assert [each["verdict"] for each in score["verdicts"]] == ["wrong_answer"] * 2
    assert {each["verdict_by"] for each in score["verdicts"]} == {"service"}


def test_several_asserts_of_a_run_share_its_state(service: Service):
    program = "n = 0\ndef f():\n  global n\n  n += 1\n  return n"
    cases = ("assert f() == 1", "assert f() in (2,)", "assert f() == 4 - 1", "x = n\nassert x == 3")
    score = service.score(program, asserts(*cases, "assert x + f() == 7", single_run=True))
    assert [each["verdict"] for each in score["verdicts"]] == ["accepted"] * 5
    assert {each["verdict_by"] for each in score["verdicts"]} == {"service"}


def test_a_tolerance_applies_to_an_expression_that_the_tests_evaluate(service: Service):
    tests = asserts("assert round(f(1), 9) == 0.3333", tolerance=1e-3)
    assert service.verdict("def f(x): return x / 3", tests) == "accepted"
    assert service.verdict("def f(x): return x / 2", tests) == "wrong_answer"
