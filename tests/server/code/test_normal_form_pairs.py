"""Programs that observe their names or lines share no key with others, each way executed."""

from collections.abc import Iterator
from typing import Any

import pytest

from rewardfleet_server.code.normal_form import names_of_tests, normal_form

from .fuzz_normal_form import Runner

#: By class, programs in which `NAME` is one of two names, and `LINE` may be two empty lines.
#: Of others, `---` separates the two programs. After `===`, what unit tests evaluate.
TEMPLATES = {
    "class body": """
NAME = 1
class A:
    alpha += 1
print(A.alpha)
####
NAME = [1]
class A:
    alpha = alpha + [2]
print(A.alpha)
####
NAME = 1
class A:
    alpha -= 1
    beta = 5
print(A.alpha, A.beta)
####
NAME = 1
class A:
    if True:
        alpha = 2
        del alpha
    size = alpha
print(A.size)
####
NAME = 3
class A:
    for alpha in range(alpha):
        pass
print(A.alpha)
####
def f():
    alpha = 2
    class A:
        alpha = alpha
    return A.alpha
NAME = 1
print(f())
####
NAME = 2
class A:
    alpha = [alpha for beta in range(alpha)]
print(A.alpha)
####
NAME = 4
class A:
    def alpha(self, size=alpha):
        return size
print(A().alpha())
####
NAME = 4
class A:
    alpha: int = alpha
print(A.alpha)
####
NAME = 4
class A:
    (alpha := alpha + 1)
print(A.alpha)
####
NAME = {}
class A:
    try:
        raise ValueError
    except ValueError as alpha:
        pass
    size = len(alpha)
print(A.size)
####
NAME = [5]
class A:
    alpha.append(1)
    alpha = 2
print(A.alpha)
""",
    "star import": """
from math import *
NAME = 3
print(pi)
---
from math import *
pi = 3
print(pi)
####
alpha = 3
from math import *
print(alpha)
---
pi = 3
from math import *
print(pi)
####
from typing import *
List = 1
def f(x: List[int]): return x
print(f(1))
---
from typing import *
List = 1
def f(x): return x
print(f(1))
####
from typing import *
List: int = 1
def f(x: List[int]): return x
print(f(1))
---
from typing import *
List = 1
def f(x): return x
print(f(1))
####
from typing import List
from ast import *
def f(x: List[int]): return x
print(f(1))
---
from typing import List
from ast import *
def f(x): return x
print(f(1))
####
def g():
    global Dict
    Dict = 2
from typing import *
g()
def f(x: Dict[str, int]): return x
print(f(1))
---
def g():
    global Dict
    Dict = 2
from typing import *
g()
def f(x): return x
print(f(1))
####
from operator import *
def NAME(a, b): return 7
print(add(1, 2))
---
from operator import *
def add(a, b): return 7
print(add(1, 2))
####
from sys import *
try:LINE
    1 / 0
except ZeroDivisionError:
    print(exc_info()[2].tb_lineno)
####
def sqrt(NAME): return 1
from math import *
print(sqrt(4))
---
from math import *
def sqrt(NAME): return 1
print(sqrt(4))
####
from os import *
print(pread(2, 1, 0) if write(2, b"NAME") else 0, read(open("program.py", 0), 90).count(b"alpha"))
####
from builtins import *
alpha = 1
print(eval("NAME"))
""",
    "hints": """
def f():
    y: alpha = 1
    global alpha
print(1)
---
def f():
    y = 1
    global alpha
print(1)
####
def f():
    alpha: int
    global alpha
print(1)
---
def f():
    global alpha
print(1)
####
alpha: int = 1
def f():
    global alpha
    alpha: int = 2
print(1)
---
alpha = 1
def f():
    global alpha
    alpha = 2
print(1)
####
def f():
    y: alpha = 1
    nonlocal alpha
print(1)
---
def f():
    y = 1
print(1)
####
def f(x: print("hint")): return x
print(1)
---
def f(x): return x
print(1)
####
def f(x: (alpha := 3)): return x
print("alpha" in globals())
---
def f(x): return x
print("alpha" in globals())
####
x: print("hint") = 1
---
x = 1
####
alpha: int
def f(): return alpha
try: print(f())
except NameError: print(0)
---
alpha = int
def f(): return alpha
try: print(f())
except NameError: print(0)
####
def f():
    len: int
    return len
try: print(f())
except UnboundLocalError: print(0)
---
def f():
    return len
try: print(f())
except UnboundLocalError: print(0)
####
def f(x: int): return x
print(f.__annotations__)
---
def f(x): return x
print(f.__annotations__)
####
from functools import singledispatch
@singledispatch
def f(x): return 0
@f.register
def g(x: int): return 1
print(f(1))
---
from functools import singledispatch
@singledispatch
def f(x): return 0
@f.register
def g(x): return 1
print(f(1))
####
def f():
    x: (yield) = 1
print(f())
---
def f():
    x = 1
print(f())
""",
    "lines and names in output": """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")LINE
    warnings.warn("x")
print(caught[0].lineno)
####
import warnings
def f(): print(1)
warnings.showwarning = lambda m, c, f, lineno, *a: print(lineno)LINE
warnings.warn("x")
####
import warnings
warnings.filterwarnings("error", lineno=4)
try:LINE
    warnings.warn("x")
    print("no")
except UserWarning:
    print("yes")
####
import logging
class H(logging.Handler):
    def emit(self, record): print(record.lineno)
log = logging.getLogger()
log.addHandler(H())LINE
log.warning("x")
####
import logging
class H(logging.Handler):
    def emit(self, record): print(record.funcName)
log = logging.getLogger()
log.addHandler(H())
def NAME(): log.warning("x")
NAME()
####
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(line" + "no)d")LINE
logging.warning("x")
####
import logging
factory = logging.getLogRecordFactory()
def make(*args, **kwargs):
    record = factory(*args, **kwargs)
    print(vars(record)["line" + "no"])
    return record
logging.setLogRecordFactory(make)LINE
logging.warning("x")
####
import unittest, io
class T(unittest.TestCase):
    def test(self):LINE
        self.assertEqual(1, 2)
out = io.StringIO()
unittest.TextTestRunner(out).run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
print(out.getvalue().split("ran")[0].split("Ran")[0])
####
import unittest
class T(unittest.TestCase):
    def test(self):
        alpha = NAME
result = unittest.TestResult()
T("test").run(result)
print(len(result.errors[0][1]))
####
import contextlib, io, threading
out = io.StringIO()
def NAME(): 1 / 0
with contextlib.redirect_stderr(out):
    thread = threading.Thread(target=NAME)
    thread.start()
    thread.join()
print(len(out.getvalue()))
####
import io, sys, threading
out = io.StringIO()
setattr(sys, "stderr", out)
def NAME(): 1 / 0
thread = threading.Thread(target=NAME)
thread.start()
thread.join()
print("alpha" in out.getvalue())
####
import sys, io
sys.__dict__["stderr"] = out = io.StringIO()
import warningsLINE
warnings.warn("x")
print(out.getvalue())
####
import os, threading
def f():LINE
    1 / 0
thread = threading.Thread(target=f)
thread.start()
thread.join()
print(os.pread(2, 1000, 0))
####
import os, threading
def NAME(): 1 / 0
thread = threading.Thread(target=NAME)
thread.start()
thread.join()
print(os.fstat(2).st_size)
####
import threading
def f():
    1 / 0
print("start")
threading.excepthook = lambda args: print(args.exc_traceback.tb_next.tb_next.tb_lineno)LINE
def g():
    1 / 0
thread = threading.Thread(target=g)
thread.start()
thread.join()
####
import sys
def hook(kind, error, trace): print(trace.tb_lineno)
sys.excepthook = hookLINE
1 / 0
####
import sys
class A:
    def __del__(self): 1 / 0
sys.unraisablehook = lambda args: print(args.exc_traceback.tb_lineno)
a = 1LINE
class B:
    def __del__(self): 1 / 0
B()
####
try:LINE
    1 / 0
except ZeroDivisionError as e:
    print(e.__traceback__.tb_lineno)
####
try:
    alpha = 1LINE
    raise ValueError
except ValueError as e:
    frame = e.with_traceback(None) or e
    import sys
    print(sys.exc_info()[2] is None, sys._getframe().f_lineno)
####
from concurrent.futures import ThreadPoolExecutor
def NAME(): return 1
with ThreadPoolExecutor() as pool:
    future = pool.submit(NAME, 1)
print(future.exception())
####
def NAME(): return 1
try: NAME(1)
except TypeError as e: print(e)
####
def f():
    try: return NAME
    except NameError as e: return str(e)
    NAME = 1
print(f())
####
class Guard:
    def __enter__(self): pass
    def __exit__(self, *a):
        print(a[1])
        return True
with Guard():
    print(NAME)
####
from contextlib import contextmanager
@contextmanager
def guard():
    try: yield
    except Exception as e: print(e)
with guard():
    print(NAME)
####
import traceback
try:LINE
    1 / 0
except ZeroDivisionError:
    print(traceback.format_exc())
####
import inspect
def f(): pass
print(inspect.getsourcelines(f)[1])LINE
def g(): pass
print(inspect.getsourcelines(g)[1])
####
LINE
print(len(open("program.py").read()))
####
LINE
import linecache
print(linecache.getline("program.py", 1))
####
LINE
import tracemalloc
tracemalloc.start()
x = [0] * 1000
print(tracemalloc.take_snapshot().statistics("lineno")[0].traceback[0].lineno > 5)
####
def NAME(): print(x)
try: NAME()
except NameError as e: print(e.__traceback__.tb_next.tb_frame.f_code.co_name)
####
def f():
    def NAME(): yield
    return NAME()
print(f().gi_code.co_name)
####
def NAME(): yield
print(str(NAME())[:23])
####
def NAME():
    return (x for x in [1])
print(str(NAME())[:24])
####
def NAME():
    class A: pass
    return A()
print(str(NAME())[:15])
####
def NAME():
    return lambda: 0
print(NAME())
####
class NAME: pass
print(str(NAME())[:16])
####
class NAME:
    def f(self): pass
print(str(NAME().f)[:22])
####
def NAME(): pass
print({"f": NAME})
####
from collections import defaultdict
def NAME():
    return defaultdict(lambda: 0)
print(str(NAME())[:40])
####
import threading
def NAME(): pass
print(threading.Thread(target=NAME).name)
####
from functools import partial
def NAME(): pass
print(str(partial(NAME))[:32])
####
def f(g): return g
print(max([1], [2], key=lambda NAME: NAME[0]), (lambda NAME: 0).__code__.co_varnames)
####
def NAME(): yield 1
print(max(NAME(), key=id, default=0) if 0 else next(iter([]), NAME()))
####
def NAME(): yield 1
print(next(iter(()), NAME()))
####
class L(list):
    def sort(self, key=None): print(key)
def NAME(x): return x
L([1]).sort(key=NAME)
####
class O: pass
o = O()
o.map = lambda f, x: f
def NAME(x): return x
print(o.map(NAME, []))
####
from collections import namedtuple
P = namedtuple("P", "map")
def NAME(x): return x
print(P(lambda f, x: f).map(NAME, []))
####
class J(str):
    def join(self, x): return str(x)[:40]
def NAME():
    return J("").join(x for x in "ab")
print(NAME())
""",
    "keywords from a library": """
import copy
class A:
    def __new__(cls, NAME=1, **more):
        self = super().__new__(cls)
        print(NAME, sorted(more))
        return self
    def __getnewargs_ex__(self): return (), {"alpha": 2}
copy.copy(A())
####
import types
class A:
    def __init_subclass__(cls, NAME=1, **more): cls.value = NAME, sorted(more)
print(types.new_class("B", (A,), {"alpha": 2}).value)
####
import logging
class L(logging.Logger):
    def _log(self, level, message, args, NAME=None, **more): print(NAME, sorted(more))
L("x").warning("x", **dict([("alpha", 3)]))
####
import logging
class A(logging.LoggerAdapter):
    def process(self, message, kwargs): return message, {"alpha": 1}
class L:
    def isEnabledFor(self, level): return True
    def log(self, level, message, NAME=0, **more): print(NAME, sorted(more))
A(L(), {}).info("x")
####
import email
from email.message import Message
class M(Message):
    def __init__(self, policy=None, **more):
        super().__init__()
        print(policy is None)
email.message_from_string("a: b", M)
---
import email
from email.message import Message
class M(Message):
    def __init__(self, other=None, **more):
        super().__init__()
        print(other is None)
email.message_from_string("a: b", M)
####
from email.policy import EmailPolicy
class P(EmailPolicy):
    def header_store_parse(self, name, value): return name, value
def factory(NAME=0, **more): return NAME, sorted(more)
print(factory(**{"alpha": P().max_line_length}))
####
import json
class E:
    def __init__(self, NAME=1, **more): self.value = NAME, len(more)
    def encode(self, o): return repr(self.value)
print(json.dumps([1], cls=E))
---
import json
class E:
    def __init__(self, skipkeys=1, **more): self.value = skipkeys, len(more)
    def encode(self, o): return repr(self.value)
print(json.dumps([1], cls=E))
####
import json
class D:
    def __init__(self, parse_int=1, **more): self.value = parse_int is int
    def decode(self, o): return self.value
print(json.loads("1", cls=D, parse_int=int))
---
import json
class D:
    def __init__(self, hook=1, **more): self.value = hook is int
    def decode(self, o): return self.value
print(json.loads("1", cls=D, parse_int=int))
####
import threading
def f(NAME=0, **more): print(NAME, sorted(more))
thread = threading.Thread(None, f, None, (), {"alpha": 1})
thread.start()
thread.join()
####
from functools import partial
def f(NAME=0, **more): return NAME, sorted(more)
options = {"alpha": 1}
print(partial(f, **options)())
####
def f(NAME=0, **more): return NAME, sorted(more)
print(f(**{"alpha": 1}))
####
from string import Formatter
class F(Formatter):
    def get_value(self, key, args, kwargs): return sorted(kwargs)
def f(NAME=0, **more): return sorted(more)
print(f(**dict(zip(["alpha"], [1]))))
####
from operator import methodcaller
class A:
    def f(self, NAME=0, **more): return NAME, sorted(more)
print(methodcaller("f", **{"alpha": 1})(A()))
####
import argparse
class Action(argparse.Action):
    def __call__(self, parser, namespace, values, option=None): print(values)
    def __init__(self, NAME, option_strings=None, **more): print(NAME is None)
parser = argparse.ArgumentParser()
try: parser.add_argument("-x", action=Action)
except TypeError: print("error")
---
import argparse
class Action(argparse.Action):
    def __call__(self, parser, namespace, values, option=None): print(values)
    def __init__(self, dest, option_strings=None, **more): print(dest is None)
parser = argparse.ArgumentParser()
try: parser.add_argument("-x", action=Action)
except TypeError: print("error")
####
import configparser
class P(configparser.RawConfigParser):
    def optionxform(self, NAME): return NAME.upper()
p = P(**{"default_section": "alpha"})
print(p.default_section, P.optionxform.__code__.co_varnames)
####
from concurrent.futures import ThreadPoolExecutor
def f(NAME=0, **more): return NAME, sorted(more)
with ThreadPoolExecutor() as pool:
    print(pool.submit(f, **{"alpha": 1}).result())
####
class Meta(type):
    @classmethod
    def __prepare__(cls, name, bases, NAME=0, **more):
        print(NAME, sorted(more))
        return {}
    def __new__(cls, name, bases, d, **more): return super().__new__(cls, name, bases, d)
    def __init__(self, *a, **more): pass
class A(metaclass=Meta, alpha=1): pass
####
import dataclasses
def make(NAME=0, **more): return NAME, sorted(more)
@dataclasses.dataclass
class A:
    alpha: int = 1
print(make(**dataclasses.asdict(A())))
####
from functools import singledispatchmethod, partialmethod
class A:
    def f(self, NAME=0, **more): return NAME, sorted(more)
    g = partialmethod(f, **{"alpha": 5})
print(A().g())
####
from contextlib import ExitStack
def f(NAME=0, **more): print(NAME, sorted(more))
with ExitStack() as stack:
    stack.callback(f, **{"alpha": 1})
####
import atexit
def f(NAME=0, **more): print(NAME, sorted(more))
atexit.register(f, **{"alpha": 1})
####
import weakref
class A: pass
a = A()
def f(NAME=0, **more): print(NAME, sorted(more))
weakref.finalize(a, f, **{"alpha": 1})
del a
""",
    "dynamic access": """
import pickle
alpha = 1
def NAME(): return 2
try: print(pickle.loads(b"c__main__\\nalpha\\n."))
except AttributeError: print("error")
---
import pickle
def alpha(): return 2
beta = 1
print(callable(pickle.loads(b"c__main__\\nalpha\\n.")))
####
def NAME(): pass
print(getattr(NAME, "__co" + "de__").co_name)
####
def NAME(): pass
print("{0.__code__.co_name}".format(NAME))
####
def NAME(): pass
form = "{0.__co" + "de__.co_name}"
print(form.format(NAME))
####
def NAME(): pass
print("{x.__code__.co_name}".format_map({"x": NAME}))
####
def f(NAME): pass
print(str.format("{0.__code__.co_varnames}", f))
####
def f(NAME): pass
print(format(f.__code__.co_varnames))
####
def f(NAME): pass
form = "{:{x.__code__.co_varnames[0]}}"
print("{0.__code__.co_varnames}".format(f) or form.format(1, x=f))
####
alpha = beta = 1
NAME = 2
exec(bytes([112, 114, 105, 110, 116, 40, 97, 108, 112, 104, 97, 41]))
####
alpha = beta = 1
NAME = 2
print(eval("al" + "pha"))
####
alpha = beta = 1
NAME = 2
import builtins
print(builtins.eval("alpha"))
####
alpha = beta = 1
NAME = 2
print(print.__self__.eval("alpha"))
####
alpha = beta = 1
NAME = 2
print(__builtins__.eval("alpha"))
####
alpha = beta = 1
NAME = 2
print(globals()["alpha"])
####
def f():
    NAME = 2
    return list(locals())
print(f())
####
def f():
    NAME = 2
    return dir()
print(f())
####
NAME = 2
import __main__
print(hasattr(__main__, "alpha"))
####
NAME = 2
import sys
print("alpha" in vars(sys.modules["__main__"]))
####
from operator import attrgetter
def NAME(): pass
print(attrgetter("__name__", "__code__.co_name")(NAME))
####
def NAME(): pass
print(object.__getattribute__(NAME, "__code__").co_name)
####
import pickle
def NAME(): pass
print(pickle.dumps(NAME))
####
def f():
    NAME = 1
    return lambda: NAME
print(f().__code__.co_freevars)
####
def f():
    NAME = 1
    yield
g = f()
next(g)
print(list(g.gi_frame.f_locals))
####
import statistics
def f(NAME): return statistics.sys._getframe(0).f_locals
print(list(f(1)))
####
import string
def f(NAME): pass
print(string.Formatter().format("{0.__code__.co_varnames}", f))
####
def f(NAME): pass
match f:
    case object(__code__=code):
        print(code.co_varnames)
####
def f(NAME): pass
from abc import ABC
class A(ABC):
    __match_args__ = ("__code__",)
A.register(type(f))
match f:
    case A(code):
        print(code.co_varnames)
####
def f(NAME): pass
class A:
    code = property(type(f).__dict__["__code__"].__get__)
print(A.code.fget(f).co_varnames)
####
class A:
    code = "co_varnames"
def f(NAME): pass
print(getattr(f.__code__, A.code))
####
def f(NAME): pass
print(next(filter(None, map(getattr, [f], ["__code__"]))).co_varnames)
####
get = getattr
def f(NAME): pass
print(get(f, "__code__").co_varnames)
####
import gc
def f(NAME): pass
print([x.co_varnames for x in gc.get_referents(f) if type(x).__name__ == "code"])
####
import ctypes
NAME = 1
print("alpha" in ctypes.pythonapi.PyEval_GetGlobals.__name__ + str(sorted(globals())))
####
import symtable
print(symtable.symtable(open("program.py").read(), "x", "exec").get_symbols())
NAME = 1
####
class A:
    def __getattr__(self, name): return name
class B(A):
    def f(self): return self.__x
class NAME(A):
    def f(self): return self.__x
print(NAME().f())
####
class alpha:
    def __init__(self): self.__x = 1
class beta(alpha):
    def __init__(self): self.__x = 2
print(vars(NAME()))
####
_A__x = 1
__x = 2
class A:
    def f(self): return __x
print(A().f())
---
_A__x = 1
y = 2
class A:
    def f(self): return y
print(A().f())
####
import timeit
NAME = 1
try: print(timeit.timeit("alpha", number=1, globals=globals()) > 0)
except NameError: print("error")
####
import code
NAME = 1
code.InteractiveInterpreter(globals()).runsource("print('alpha' in globals())")
####
NAME = 3
print(f"{NAME=}")
####
import re
NAME = 3
print(re.sub("alpha|beta", lambda m: str(globals().get(m[0])), "alpha"))
####
import doctest
def f():
    '''
    >>> f()
    1
    '''
    return 1
print(doctest.testmod())
---
import doctest
def f():
    return 1
print(doctest.testmod())
####
class A:
    __slots__ = ("__doc__",)
print(1)
---
class A:
    "doc"
    __slots__ = ("__doc__",)
print(1)
####
class A:
    "doc"
    text = __doc__
print(A.text)
---
class A:
    "cod"
    text = __doc__
print(A.text)
""",
    "order of destruction": """
class A:
    def __init__(self, n): self.n = n
    def __del__(self): print(self.n)
def f():
    NAME = A(1)
    az = A(2)
    def g(): return NAME, az
f()
####
def g(n):
    try: yield
    except BaseException: print(n)
def f():
    NAME, az = g(1), g(2)
    next(NAME), next(az)
    return lambda: (NAME, az)
f()
####
class Guard:
    def __init__(self, n): self.n = n
    def __enter__(self): pass
    def __exit__(self, *a): print(self.n)
def g(n):
    with Guard(n): yield
def f():
    NAME, az = g(1), g(2)
    next(NAME), next(az)
    return lambda: (NAME, az)
f()
####
import weakref
class A: pass
def f():
    NAME, az = A(), A()
    weakref.finalize(NAME, print, 1)
    weakref.finalize(az, print, 2)
    return lambda: (NAME, az)
f()
####
import io
class W(io.RawIOBase):
    def __init__(self, n): self.n = n
    def close(self): print(self.n)
def f():
    NAME, az = W(1), W(2)
    return lambda: (NAME, az)
f()
""",
    "attacks": """
def f(NAME): pass
print(getattr("{0.__code__.co_" + "varnames}", "format")(f))
####
def f(NAME): pass
text = "{0._" + "_code_" + "_.co_varnames}"
print(getattr(text, "format")(f))
####
def f(NAME): pass
match "{0._" + "_code_" + "_.co_varnames}":
    case str(format=form): print(form(f))
####
dir = dir
NAME = 1
print("alpha" in dir())
####
NAME = 1
print("alpha" in dir())
dir = 1
####
dir = 1
del dir
NAME = 1
print("alpha" in dir())
####
dir = 1
NAME = 1
try: raise ValueError
except ValueError as dir: pass
print("alpha" in dir())
####
class A:
    alpha = 1
    del alpha
    try: size = alpha
    except NameError: size = 0
NAME = 5
print(A.size)
---
class A:
    alpha = 1
    del alpha
    size = 5
NAME = 5
print(A.size, 1)
####
alpha = 5
class A:
    alpha = 1
    del (alpha,)
    size = alpha
print(A.size)
---
beta = 5
class A:
    alpha = 1
    del (alpha,)
    try: size = alpha
    except NameError: size = 0
print(A.size)
####
alpha = 5
class A:
    alpha = 1
    del [alpha]
    print(alpha)
---
beta = 5
class A:
    alpha = 1
    del [alpha]
    print(alpha)
####
def map(f, xs): return f
import sys, io, threading
map(sys, []).stderr = out = io.StringIO()
def NAME(): 1 / 0
thread = threading.Thread(target=NAME)
thread.start()
thread.join()
print("alpha" in out.getvalue())
####
def isinstance(a, b): return b
import sys, io, threading
isinstance(1, (sys,))[0].stderr = out = io.StringIO()
def NAME(): 1 / 0
thread = threading.Thread(target=NAME)
thread.start()
thread.join()
print("alpha" in out.getvalue())
####
from sys import stderr
import threading
out = []
stderr.write = out.append
def f(NAME): return NAME()
thread = threading.Thread(target=f)
thread.start()
thread.join()
print(any("alpha" in each for each in out))
####
from sys import stderr
import threading
out = []
setattr(stderr, "write", out.append)
def f():LINE
    1 / 0
thread = threading.Thread(target=f)
thread.start()
thread.join()
print(out)
####
def map(f, xs): print(f)
try: alpha
except NameError as e: map(e, [])
alpha = 1
---
def map(f, xs): print(f)
try: beta
except NameError as e: map(e, [])
beta = 1
####
def show(self, *a):
    print(a[1])
    return True
class Guard:
    def __enter__(self): pass
    __exit__ = show
def f():
    with Guard(): return NAME
    NAME = 1
f()
####
class Guard:
    def __enter__(self): pass
    __exit__ = lambda self, *a: print(a[1]) or True
def f():
    with Guard(): return NAME
    NAME = 1
f()
####
def deco(f):
    def wrapper(*a):
        print(a[2])
        return True
    return wrapper
class Guard:
    def __enter__(self): pass
    @deco
    def __exit__(self, *a): pass
def f():
    with Guard(): return NAME
    NAME = 1
f()
####
def map(f, xs): print(f)
class Guard:
    def __enter__(self): pass
    def __exit__(self, kind, error, trace):
        map(error, [])
        return True
def f():
    with Guard(): return NAME
    NAME = 1
f()
####
class Guard:
    def __enter__(self): pass
    def __exit__(self, *a):
        def show(): print(a)
        show()
        return True
def f():
    with Guard(): return NAME
    NAME = 1
f()
####
class A:
    def __eq__(self, other):
        print(str(other)[:20])
        return True
def NAME():
    fs = [lambda: 0]
    return A() in fs
NAME()
####
def dataclass(c): return 5
@dataclass
class A: pass
def f(x: A | None): return x
print(1)
---
def dataclass(c): return 5
@dataclass
class A: pass
def f(x): return x
print(1)
####
from dataclasses import dataclass, replace
@dataclass(init=False)
class A:
    x: int
    def __init__(self, x=1, **more): self.x = x + len(more)
print(replace(A()).x)
---
from dataclasses import dataclass, replace
@dataclass(init=False)
class A:
    x: int
    def __init__(self, y=1, **more): self.x = y + len(more)
print(replace(A()).x)
####
import gc
gc.disable()
def g():
    def f(x: int): return f
for i in range(10): g()
print(gc.collect())
---
import gc
gc.disable()
def g():
    def f(x): return f
for i in range(10): g()
print(gc.collect())
####
class It:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self): return 1
    def close(self): print(self.n)
def g(n): yield from It(n)
def f():
    NAME, az = g(1), g(2)
    next(NAME), next(az)
    return lambda: (NAME, az)
f()
####
class A:
    @staticmethod
    def show(f): return f
show = A.show
def f():
    def NAME(): yield 1
    return sum(NAME()) and show(NAME())
print(f())
####
def sum(x): return x
def NAME(): yield 1
print(sum(NAME()))
####
def f():
    def NAME(): yield 1
    return "".join(str(x) for x in NAME()), max(NAME(), NAME(), key=id)
print(f()[1])
####
class A:
    def join(self, x): return x
def NAME(): yield "1"
print(A().join(NAME()))
####
class A: pass
a = A()
a.update = lambda x: x
def NAME(): yield "1"
print(a.update(NAME()))
####
a = type("A", (), {})()
setattr(a, "extend", lambda x: x)
def NAME(): yield "1"
print(a.extend(NAME()))
####
def NAME(): yield 1
a, = [NAME()]
print(a)
####
def NAME(): yield 1
print(f"{NAME()}")
####
def NAME():
    return [(lambda: 0) for x in [1]][0]
print(NAME())
####
def NAME():
    return {(lambda: 0): 1}
print(NAME())
####
def NAME():
    fs = [lambda x: x]
    for f in fs: print(f)
NAME()
####
def NAME():
    fs = {"a": lambda x: x}
    print(*fs.values())
NAME()
####
def NAME():
    f = lambda: 0
    g = f
    return g
print(NAME())
####
class A:
    def f(self): return 1
def NAME():
    class B(A):
        pass
    return B().f
print(NAME())
####
from functools import lru_cache
@lru_cache(None)
def NAME(): return 1
print(NAME)
print(NAME.__name__)
####
from functools import wraps
def NAME(): return 1
@wraps(NAME)
def f(): return 2
print(f)
####
from functools import cmp_to_key
def NAME(a, b): return 0
k = cmp_to_key(NAME)
print(sorted([2, 1], key=k), NAME)
####
from functools import reduce as sorted
def NAME(a, b): return a
print(sorted(lambda a, b: a, [NAME, 1]))
####
from itertools import accumulate
def NAME(a, b): return a
print(list(accumulate([NAME, 1], lambda a, b: a)))
####
from functools import partial
def f(g, *a, **k): return g(**k)
def g(NAME=0, **more): return NAME, len(more)
print(f(g, alpha=1))
####
def f(g, **k): return g(**k)
print(f(lambda NAME=0, **more: (NAME, len(more)), alpha=1))
####
class A:
    def __init__(self, NAME=0, **more): self.x = NAME, len(more)
print(A(alpha=1).x)
####
class A:
    def __call__(self, NAME=0, **more): return NAME, len(more)
print(A()(alpha=1))
####
class A:
    def __init_subclass__(cls, NAME=0, **more): cls.x = NAME, len(more)
class B(A, alpha=1): pass
print(B.x)
####
def f(g): return g(alpha=1)
print(max([1], key=lambda NAME=0, **more: NAME if more else -1), f(lambda NAME=0, **m: len(m)))
####
class A:
    def __class_getitem__(cls, x): return x
def f(x: A[print("hint")]): return x
---
class A:
    def __class_getitem__(cls, x): return x
def f(x): return x
####
from typing import List
del List
def f(x: List[int]): return x
print(1)
---
from typing import List
del List
def f(x): return x
print(1)
####
def f(x: int | "str"): return x
print(1)
---
def f(x): return x
print(1)
####
from typing import Optional
def f(x: Optional[1, 2]): return x
print(1)
---
from typing import Optional
def f(x): return x
print(1)
####
int = 5
def f(x: int | None): return x
print(1)
---
int = 5
def f(x): return x
print(1)
####
def g():
    global list
    list = 3
g()
def f(x: list[str]): return x
print(1)
---
def g():
    global list
    list = 3
g()
def f(x): return x
print(1)
####
from dataclasses import dataclass
import typing as NAME
@dataclass
class A:
    x: "alpha.ClassVar[int]" = 1
print(A())
####
from dataclasses import dataclass
from typing import ClassVar as NAME
@dataclass
class A:
    x: "alpha[int]" = 1
    y: "alpha" = 2
print(A())
####
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar as NAME
@dataclass
class A:
    x: alpha[int] = 1
print(A())
####
from __future__ import annotations
import typing as NAME
from dataclasses import dataclass
@dataclass
class A:
    x: alpha.ClassVar[int] = 1
print(A())
####
from __future__ import annotations
import typing
from dataclasses import dataclass
def f():
    alpha = int
    @dataclass
    class A:
        x: alpha = 1
    return A()
NAME = typing.ClassVar
print(f())
####
from __future__ import annotations
import typing
from dataclasses import dataclass
f = NAME = typing.ClassVar
@dataclass
class A:
    x: f"{int}" = 1
    y: list[alpha] = 2
    z: alpha = 3
print(A())
####
from __future__ import annotations
import typing
from dataclasses import dataclass
@dataclass
class A:
    x: f"{int}" = 1
print(A())
---
from __future__ import annotations
import typing
from dataclasses import dataclass
f = typing.ClassVar
@dataclass
class A:
    x: f"{int}" = 1
print(A())
####
from __future__ import annotations
import typing
from dataclasses import dataclass
@dataclass
class A:
    f: int = 5
    x: f"{int}" = 1
f = 2
print(A())
---
from __future__ import annotations
import typing
from dataclasses import dataclass
f = typing.ClassVar
@dataclass
class A:
    f: int = 5
    x: f"{int}" = 1
print(A())
####
import typing
from dataclasses import dataclass
NAME = typing.ClassVar
@dataclass
class A:
    x: "al" "pha" = 1
    y: "al" + "pha" = 2
print(A())
####
import typing
from dataclasses import dataclass
NAME = typing.ClassVar
@dataclass
class A:
    y: "".join(["al", "pha"]) = 2
print(A())
####
class A:
    def __setitem__(self, key, value): print(key, value)
a = A()
a[(lambda NAME: 1).__name__] = lambda: 0
class B(dict):
    def __setitem__(self, key, value): print(key)
def NAME(): pass
B()[str(NAME)[:14]] = 1
####
from functools import partial
from abc import ABCMeta
class A(metaclass=ABCMeta):
    def f(self, NAME=0): return NAME
print(partial(A().f, **{"alpha": 1})() if True else 0)
####
class ABCMeta(type):
    def __call__(cls, *args): return cls.f(None, **{"alpha": 1})
class A(metaclass=ABCMeta):
    def f(self, NAME=0, **_): return NAME
print(A())
####
from abc import ABCMeta
class A(metaclass=ABCMeta):
    def f(self, NAME=0, **_): return NAME
print(A().f(alpha=1))
####
import numpy
from abc import ABCMeta
class A(metaclass=ABCMeta):
    def sum(self, NAME=0, out=5, **_): return NAME
print(numpy.sum(A(), alpha=1) if False else A().sum(**dict(alpha=2)))
####
from enum import Enum
class C(Enum):
    alpha = 1
    NAME = 1
print(list(C), C(1))
---
from enum import Enum
class C(Enum):
    beta = 1
    alpha = 1
print(list(C), C(1))
####
from typing import NamedTuple
class P(NamedTuple):
    NAME: int = 1
print(P())
####
from collections import namedtuple
NAME = "alpha"
P = namedtuple("P", NAME)
print(P(1))
---
from collections import namedtuple
beta = "beta"
P = namedtuple("P", beta)
print(P(1))
####
def f():
    print(len)
    len = 1
try: f()
except UnboundLocalError: print(0)
---
def f():
    print(len)
    x = 1
try: f()
except UnboundLocalError: print(0)
####
x = 5
def f():
    x = [x for x in range(3)]
    return x
print(f())
---
x = 5
def f():
    y = [x for y in range(3)]
    return y
print(f())
####
def f(a=[]):
    a.append(1)
    b = a
    return a
print(f(), f())
---
def f(a=[]):
    b = [1]
    b = a
    return a
print(f(), f())
####
print([alpha for alpha in range(3) if (beta := alpha)], beta)
---
print([beta for beta in range(3) if (alpha := beta)], 2 if alpha else 0, 1)
####
def f():
    for alpha in range(3): pass
    beta = 7
    return alpha
print(f())
---
def f():
    for alpha in range(3): pass
    beta = 7
    return beta
print(f())
####
class A:
    x = 1
    def f(self): return x
x = 2
print(A().f())
---
class A:
    y = 1
    def f(self): return y
try: print(A().f())
except NameError: print("none")
####
def f(x):
    match x:
        case NAME: return NAME
print(f(3))
---
alpha = 4
def f(x):
    match x:
        case (alpha, ): return alpha
print(f(3))
####
try:
    raise KeyError("k")
except (KeyError, NameError) as e:
    print(e)
try:
    alpha
except (KeyError, NameError) as e:
    print(e)
---
try:
    raise KeyError("k")
except (KeyError, NameError) as e:
    print(e)
try:
    beta
except (KeyError, NameError) as e:
    print(e)
####
class E(NameError): pass
try:
    raise E("alpha")
except E as e:
    print(e)
---
class E(NameError): pass
try:
    raise E("beta")
except E as e:
    print(e)
####
def f():
    try: return NAME
    except UnboundLocalError as e: raise ValueError(e)
    NAME = 1
try: f()
except ValueError as e: print(e)
####
def f():
    try: return NAME
    except UnboundLocalError as e: raise
    NAME = 1
try: f()
except Exception as e: print(e)
####
import numpy as np
class A:
    def sum(self, NAME=0, out=None, **more): return NAME is None, len(more)
print(np.sum(A()))
---
import numpy as np
class A:
    def sum(self, axis=0, out=None, **more): return axis is None, len(more)
print(np.sum(A()))
####
import numpy as np
def NAME(): yield 1
print(np.max(NAME()))
####
from numpy import max
def NAME(): yield 1
print(max(NAME()))
""",
    "further attacks": """
class A:
    def f(self, NAME=0, **m): return NAME, len(m)
A.g = lambda self, h: h(alpha=1)
print(A().g(A().f))
####
def NAME(): return 1
print(sorted([3, 1], key=lambda x: (print(NAME) or x)))
####
def NAME(): return 1
x = [NAME]
print(x.index(NAME), x)
####
def f(*a): return a
def NAME(): yield 1
print(f(*NAME()), f(NAME()))
####
def NAME():
    def g(): return 1
    return g
h = NAME()
print(h)
####
def NAME():
    def g(): return 1
    return g()
print(NAME(), NAME)
####
def NAME(f): return f
@NAME
def g(): pass
print(g, NAME.__name__)
####
def deco(f):
    def NAME(*a): return f(*a)
    return NAME
@deco
def g(): pass
print(g)
####
def deco(f):
    def NAME(*a): return f(*a)
    return NAME
@deco
def g(): return 3
print(g(), g.__name__)
####
from functools import cached_property
class A:
    @cached_property
    def NAME(self): return 1
print(A().alpha if hasattr(A(), "alpha") else None)
####
class A:
    @property
    def NAME(self): return 1
print(hasattr(A(), "alpha"))
####
def f():
    global NAME
    NAME = 3
f()
class A:
    beta = 1
    alpha = 2
    print(alpha, beta)
try: print(alpha)
except NameError: print(0)
---
def f():
    global beta
    beta = 3
f()
class A:
    beta = 1
    alpha = 2
    print(alpha, beta)
try: print(alpha)
except NameError: print(1)
####
x = 1
def f():
    x = 2
    class A:
        print(x)
        x = 3
f()
---
x = 1
def f():
    y = 2
    class A:
        print(y)
        x = 3
f()
####
def f(n):
    if n: return f
    return 1
print(f(1))
---
def g(n):
    if n: return g
    return 1
print(g(1))
####
from typing import NamedTuple
class P(NamedTuple):
    a: int
    def NAME(self): return 1
print(P(1).alpha if hasattr(P(1), "alpha") else None, P.NAME)
####
def NAME(): return [x for x in "ab"], (y for y in "ab")
print(NAME())
####
def NAME():
    yield from (x for x in "ab")
a = NAME()
print(a)
####
import itertools
def NAME(): yield 1
print(itertools.chain(NAME()), itertools.tee(NAME()))
print([type(x) for x in itertools.repeat(NAME(), 2)], list(itertools.repeat(NAME(), 1)))
####
def NAME(): yield 1
print(list(enumerate([NAME()])))
####
def NAME(): yield 1
print(list(zip([NAME()])), dict(a=NAME()))
####
def NAME(): yield 1
print(set([NAME()]), tuple({NAME(): 1}))
####
def NAME(): yield 1
print(list(map(lambda x: x, [NAME()])))
####
def NAME(): yield 1
print((lambda: NAME())())
####
def NAME(): yield 1
def g(): return NAME()
print(g())
####
def NAME(): yield 1
x = NAME() if 1 else 0
print(x)
####
def NAME(): yield 1
x = NAME() or 0
print(x)
####
def NAME(): yield 1
with open(0) as f: pass
print([(y := NAME()) for _ in "a"])
####
def NAME(): yield 1
for x in [NAME()]: print(x)
####
def NAME(): yield 1
for x, in zip([NAME()]): print(x)
####
def NAME(): yield (yield)
g = NAME()
print(next(g), g)
####
class A:
    def NAME(self): yield 1
    def run(self): return self.NAME()
print(A().run())
####
def NAME():
    class A:
        def __iter__(self): yield 1
    return iter(A())
print(NAME())
####
def NAME():
    class A:
        def __repr__(self): return "A"
    return A.__qualname__
print(NAME())
####
def NAME():
    def g(): pass
    return g.__qualname__
print(NAME())
####
def NAME():
    return (lambda: 0).__qualname__
print(NAME())
####
def f(g): return g.__qualname__
def NAME(): return f(lambda: 0)
print(NAME())
####
def NAME(): return max([lambda: 0], key=lambda h: h.__qualname__)
print(NAME().__qualname__)
####
def NAME(): return sorted([1], key=lambda h: print((lambda: 0).__qualname__))
NAME()
####
from collections import namedtuple
P = namedtuple("P", "key")
def NAME(): return P(lambda: 0).key
print(NAME())
####
def f(key): return key
def NAME(): return f(key=lambda: 0)
print(NAME())
####
class O:
    def sort(self, key): return key
def NAME(): return O().sort(key=lambda: 0)
print(NAME())
####
class O:
    def reduce(self, key, x): return key
def NAME(): return O().reduce(lambda: 0, 1)
print(NAME())
####
def reduce(key, x): return key
def NAME(): return reduce(lambda: 0, 1)
print(NAME())
####
class O:
    def __init__(self): self.reduce = lambda f, x: f
def NAME(): return O().reduce(lambda: 0, 1)
print(NAME())
####
def f(sorted): return sorted([1], key=NAME)
def NAME(x): return x
print(f(lambda x, key: key))
####
def f(map=lambda f, x: f): return map(NAME, [])
def NAME(x): return x
print(f())
####
def f(x):
    for map in [lambda f, x: f]: return map(NAME, [])
def NAME(x): return x
print(f(1))
####
def f(x):
    from operator import getitem as map
    return map([NAME], 0)
def NAME(x): return x
print(f(1))
####
def f(x, *map): return map[0](NAME, [])
def NAME(x): return x
print(f(1, lambda f, x: f))
####
def f(x, **map): return map["map"](NAME, [])
def NAME(x): return x
print(f(1, map=lambda f, x: f))
####
match (lambda f, x: f):
    case map: pass
def NAME(x): return x
print(map(NAME, []))
####
import operator as map
def NAME(x): return x
print(map.getitem([NAME], 0))
####
def f():
    nums = [3, 1]
    NAME = nums
    del nums
    return NAME
print(f())
---
def f():
    nums = [3, 1]
    NAME = nums
    del NAME
    return NAME
try: print(f())
except UnboundLocalError: print(0)
####
def f(x, y): return x - y
print(f(y=1, x=2))
---
def f(y, x): return y - x
print(f(y=1, x=2))
####
def f(x, /, y): return x - y
print(f(1, y=2))
---
def f(x, y, /): return x - y
try: print(f(1, y=2))
except TypeError: print(0)
####
def f(x, **k): return k
print(f(1, x2=2))
---
def f(x2, **k): return k
try: print(f(1, x2=2))
except TypeError: print(0)
####
import threading
def NAME(): print(threading.current_thread().name)
t = threading.Thread(target=NAME); t.start(); t.join()
####
import json
class NAME: pass
try: json.dumps(NAME())
except TypeError as e: print(e)
####
import json
class A: pass
print(json.dumps(A(), default=lambda o: type(o).__name__), json.dumps([1], default=str))
NAME = 1
print(json.dumps({"a": A}, default=str))
---
import json
class B: pass
print(json.dumps(B(), default=lambda o: type(o).__name__), json.dumps([1], default=str))
NAME = 1
print(json.dumps({"a": B}, default=str))
####
from decimal import Decimal, Context
def f(NAME=1, **m): return NAME, len(m)
print(f(**{"alpha": 1}), Context(prec=3))
####
import sys
class W:
    def __init__(self): self.t = []
    def write(self, s): self.t.append(s)
    def flush(self): pass
old = sys.stdout
sys.stdout = W()
def NAME(): pass
print(NAME)
w, sys.stdout = sys.stdout, old
print(w.t[0][:15])
####
import sys
print("a", file=sys.stderr)
sys.stderr.write("x")
sys.stdout = sys.stderr
print("x")
---
import sys
print("a", file=sys.stderr)
sys.stderr.write("x")
print("x")
####
import sys
e = sys.stderr
e.write = lambda s: print(s)
import threading
def NAME(): 1/0
t = threading.Thread(target=NAME); t.start(); t.join()
####
import sys
class E:
    write = print
    flush = id
sys.stdin, sys.stderr = 0, E()
import threading
def NAME(): 1/0
t = threading.Thread(target=NAME); t.start(); t.join()
####
import sys
for sys.stderr in [sys.stdout]: pass
import threading
def NAME(): 1/0
t = threading.Thread(target=NAME); t.start(); t.join()
####
import sys
with open(0) as sys.stderr: pass
sys.stderr = sys.stdout
def NAME(): 1/0
import threading
t = threading.Thread(target=NAME); t.start(); t.join()
####
import sys as s
(s.stderr) = s.stdout
def NAME(): 1/0
import threading
t = threading.Thread(target=NAME); t.start(); t.join()
####
from contextlib import redirect_stdout
import io, sys
out = io.StringIO()
with redirect_stdout(out):
    def NAME(): pass
    print(NAME)
print(out.getvalue()[:14])
####
from contextlib import redirect_stdout
import threading
class R(redirect_stdout):
    _stream = "stderr"
out = []
class W:
    def write(self, s): out.append(s)
    def flush(self): pass
def NAME(): 1/0
with R(W()):
    t = threading.Thread(target=NAME); t.start(); t.join()
print(any("alpha" in s for s in out))
####
from contextlib import redirect_stdout
import threading
out = []
class W:
    def write(self, s): out.append(s)
    def flush(self): pass
def NAME(): 1/0
r = redirect_stdout(W())
r._stream = "stderr"
with r:
    t = threading.Thread(target=NAME); t.start(); t.join()
print(any("alpha" in s for s in out))
####
import threading
class T(threading.Thread):
    def run(self): 1/0
    def _invoke_excepthook(self, *a): print("called")
t = T()
t._invoke_excepthook = lambda x: print(x.name[:3])
t.start(); t.join()
def NAME(): pass
print(NAME)
####
import sys
sys.stdout.reconfigure(encoding="ascii", errors="backslashreplace")
def NAME(): pass
print(NAME)
####
import numpy as np
print(np.array([lambda NAME: 1]), np.array([1]).dot([2]))
def NAME(): pass
print(np.array([NAME]))
####
import numpy as np
class A:
    def sqrt(self, NAME=0, **m): return len(m)
print(np.sqrt(np.array([A()], dtype=object)))
class B:
    def clip(self, NAME=0, max=0, **m): return NAME, len(m)
print(np.clip(B(), 1, 2))
---
import numpy as np
class A:
    def sqrt(self, NAME=0, **m): return len(m)
print(np.sqrt(np.array([A()], dtype=object)))
class B:
    def clip(self, min=0, max=0, **m): return min, len(m), "m"
print(np.clip(B(), 1, 2))
####
from enum import Enum
class C(Enum):
    def _generate_next_value_(NAME, start, count, last): return NAME
    A = 1
print(C.A)
NAME = C
print(C.NAME if hasattr(C, "NAME") else NAME)
x = [C]
def NAME(): pass
print(NAME, x)
####
def f():
    "doc"
    return 1
print(f.__doc__)
---
def f():
    "cod"
    return 1
print(f.__doc__)
####
class A:
    "doc"
a = A()
print(a.__doc__)
---
class A:
    "cod"
a = A()
print(a.__doc__)
####
"doc"
print(__doc__)
---
"cod"
print(__doc__)
####
from functools import wraps
def f(g):
    @wraps(g)
    def NAME(): return 1
    return NAME
print(f(lambda: 0))
print(f(len).__wrapped__)
def NAME(): pass
print(f(NAME))
####
from dataclasses import dataclass
@dataclass
class A:
    "doc"
    x: int
print(A.__doc__)
---
from dataclasses import dataclass
@dataclass
class A:
    x: int
print(A.__doc__)
####
from typing import TypedDict
class A(TypedDict):
    NAME: int
print(A(alpha=1), A.__annotations__)
####
def f(x: int = 1): return x
print(f.__defaults__, f.__annotations__)
---
def f(x=1): return x
print(f.__defaults__, f.__annotations__)
####
from functools import partial
class A:
    def f(self, NAME=0, **m): return NAME, len(m)
k = {"alpha": 2}
p = partial(A().f, 1)
p.keywords.update(k)
try: print(p())
except TypeError: print("two")
####
from functools import partial
def f(NAME=0, **m): return NAME, len(m)
p = partial(f)
p.keywords["alpha"] = 3
print(p())
####
from functools import partial
class A:
    def f(self, NAME=0, **m): return NAME, len(m)
p = partial(A().f)
p.keywords["alpha"] = 3
print(p())
####
from functools import partial
class A:
    def __init__(self, NAME=0, **m): self.v = NAME, len(m)
p = partial(A)
p.keywords["alpha"] = 3
print(p().v)
####
from functools import partial
class A:
    def __init__(self, NAME=0, **m): self.v = NAME, len(m)
p = partial(type(A()))
p.keywords["alpha"] = 3
print(p().v)
####
from functools import partial
class A:
    def __init__(self, NAME=0, **m): self.v = NAME, len(m)
p = partial(A().__class__)
p.keywords["alpha"] = 3
print(p().v)
####
from functools import partial
class A:
    def __call__(self, NAME=0, **m): return NAME, len(m)
p = partial(A())
p.keywords["alpha"] = 3
print(p())
####
import threading
class A:
    def __call__(self, NAME=0, **m): print(NAME, len(m))
t = threading.Thread(None, A(), None, (), {"alpha": 1}); t.start(); t.join()
####
import threading
class A:
    def __init__(self, NAME=0, **m): print(NAME, len(m))
t = threading.Thread(None, type(A()), None, (), {"alpha": 1}); t.start(); t.join()
####
import threading
class A:
    @classmethod
    def make(cls): return threading.Thread(None, cls, None, (), {"alpha": 1})
    def __init__(self, NAME=0, **m): print(NAME, len(m))
t = A.make(); t.start(); t.join()
####
import threading
class A:
    def __new__(cls, NAME=0, **m):
        print(NAME, len(m))
        return super().__new__(cls)
    def go(self):
        t = threading.Thread(None, type(self), None, (), {"alpha": 1}); t.start(); t.join()
A().go()
""",
    "scopes, hints and imports": """
class A:
    alpha = 1
    class B:
        print(NAME if 0 else "x")
        alpha = [NAME]
NAME = 3
---
NAME = 3
class A:
    alpha = 1
    class B:
        print(NAME)
####
NAME = 7
class A:
    for alpha in [1]: pass
    size = [alpha for x in [alpha]]
print(A.size)
####
NAME = 7
class A:
    if 0: alpha = 1
    def f(self, n=alpha): return n
print(A().f())
####
NAME = 7
class A:
    if 0: alpha = 1
    f = lambda self, n=alpha: n
print(A().f())
####
NAME = lambda g: g
class A:
    if 0: alpha = 1
    @alpha
    def f(self): return 1
print(A().f())
####
NAME = 7
class A:
    if 0: alpha = 1
    size = f"{alpha}"
print(A.size)
####
NAME = 7
class A:
    if 0: alpha = 1
    size = {alpha: 1 for x in range(alpha)}
print(A.size)
####
NAME = 7
class A:
    if 0: alpha = 1
    class B:
        size = 1
        if alpha if 0 else 1: pass
    x: alpha = 2
print(A.x)
####
NAME = 7
class A:
    if 0: alpha = 1
    match alpha:
        case 7: size = 2
print(A.size)
####
NAME = 7
class A:
    if 0: alpha = 1
    assert alpha == 7
    print(alpha)
####
NAME = 7
class A:
    if 0: alpha = 1
    with open(0) as f: print(alpha)
####
NAME = 7
class A:
    if 0: alpha = 1
    x = yy = alpha
print(A.x)
####
NAME = 7
class A:
    if 0: alpha = 1
    print(isinstance(alpha, int))
####
NAME = int
class A:
    if 0: alpha = 1
    print(isinstance(7, alpha))
####
NAME = int
class A:
    if 0: alpha = 1
    print(list(map(alpha, "12")))
####
NAME = int
class A:
    if 0: alpha = 1
    print(isinstance(7, (str, alpha)))
####
NAME = ValueError
class A:
    if 0: alpha = 1
    try: raise ValueError
    except alpha: print("yes")
####
NAME = ValueError
class A:
    if 0: alpha = 1
    try: raise ValueError
    except (KeyError, alpha): print("yes")
####
NAME = ValueError("x")
class A:
    if 0: alpha = 1
    try: raise alpha
    except ValueError as e: print(e)
####
NAME = [3]
class A:
    if 0: alpha = 1
    print(3 in alpha)
####
NAME = [len]
class A:
    if 0: alpha = 1
    print(alpha[0]("abc"))
####
NAME = object
class A:
    if 0: alpha = 1
    class B(alpha): pass
    print(B)
####
NAME = 1
class A:
    global alpha
    alpha = 5
print(NAME)
####
def f():
    NAME = 1
    class A:
        nonlocal alpha
        alpha = 5
    return NAME
print(f())
---
def f():
    alpha = 1
    beta = 2
    class A:
        nonlocal alpha
        alpha = 5
    return beta
print(f())
####
def f():
    NAME = 1
    class A:
        if 0: alpha = 2
        print(alpha)
    return A
alpha = 9
f()
---
def f():
    beta = 1
    class A:
        if 0: alpha = 2
        print(alpha)
    return A
beta = 9
try: f()
except NameError: print(0)
####
NAME = 3
class A:
    alpha, beta = 1, 2
    del alpha, beta
    try: print(alpha)
    except NameError: print("no")
####
x = 10
class A:
    x = x
    def f(self): return x
print(A().f(), A.x)
---
y = 10
class A:
    x = 10
    def f(self): return y
print(A().f() + 1, A.x)
####
from math import *
from cmath import *
NAME = 1
print(sqrt(-1) if alpha == 1 else 0)
alpha = 2
---
from cmath import *
from math import *
NAME = 1
alpha = 1
try: print(sqrt(-1))
except ValueError: print("no")
####
from random import *
def NAME(x): return 4
print(choice([1]))
---
from random import *
def choice(x): return 4
print(choice([1]))
####
from heapq import *
from collections import *
def NAME(h, x): print("mine")
heappush([], 1)
---
from heapq import *
from collections import *
def heappush(h, x): print("mine")
heappush([], 1)
####
def f():
    from math import pi as NAME
    return pi if 0 else NAME
pi = 2
print(f())
---
def f():
    from math import pi as pi
    return pi if 0 else alpha
alpha = 2
print(f())
####
import math
def f(math): return math
print(f(2))
---
import math
def f(x): return math.pi
print(f(2))
####
import os.path as NAME
import os as alpha
print(alpha.sep if hasattr(str, "x") else NAME.join("a", "b"))
---
import os.path as alpha
import os as beta
print(beta.sep if hasattr(str, "x") else alpha.join("a", "c"))
####
from typing import Union, List
def f(x: Union[int, List]): return x
print(f(1))
NAME = f
print(NAME)
---
from typing import Union, List
def f(x: Union[int, 5]): return x
print(f(1))
####
from typing import Dict
def f(x: Dict[int]): return x
print(1)
---
from typing import Dict
def f(x): return x
print(1)
####
def f(x: "int" | None): return x
print(1)
---
def f(x): return x
print(1)
####
class A: pass
def f(x: A[int]): return x
print(1)
---
class A: pass
def f(x): return x
print(1)
####
def f(x: dict[str, missing]): return x
print(1)
---
def f(x): return x
print(1)
####
def g():
    def f(x: missing): return x
    return 1
try: print(g())
except NameError: print(0)
---
def g():
    def f(x): return x
    return 1
try: print(g())
except NameError: print(0)
####
def f(x: A): return x
class A: pass
print(1)
---
def f(x): return x
class A: pass
print(1)
####
if 0:
    class A: pass
def f(x: A): return x
print(1)
---
if 0:
    class A: pass
def f(x): return x
print(1)
####
x: missing
print(1)
---
print(1)
####
def f():
    x: missing
    return 1
print(f())
---
def f():
    return 2
print(f())
####
def f():
    x.y: int
    return 1
try: print(f())
except NameError: print(0)
---
def f():
    return 1
try: print(f())
except NameError: print(0)
####
def f():
    x[print(3)]: int
    return 1
x = [1]
try: print(f())
except TypeError: print(0)
---
def f():
    return 1
x = [1]
try: print(f())
except TypeError: print(0)
####
def f():
    x: [y for y in print("a") or []] = 1
    return x
def g(x: [y for y in [print("b")]]): return x
print(f())
---
def f():
    x = 1
    return x
def g(x): return x
print(f())
####
def f(x: lambda: (yield)): return x
print(f(1), NAME if 0 else 1)
f.__annotations__ and print("has")
---
def f(x): return x
print(f(1), 1)
f.__annotations__ and print("has")
####
from dataclasses import dataclass
@dataclass
class A:
    x: int = 1
    y = 2
print(A())
---
from dataclasses import dataclass
@dataclass
class A:
    x: int = 1
    y: int = 2
print(A())
####
from dataclasses import dataclass, field
@dataclass
class A:
    x: list = field(default_factory=lambda: [NAME])
NAME = 5
alpha = 6
print(A())
####
from functools import lru_cache
calls = []
@lru_cache(maxsize=None)
def f(x):
    calls.append(x)
    return x
print(f(1), f(x=1), f(1), len(calls), f.cache_info())
---
from functools import lru_cache
calls = []
@lru_cache(maxsize=None)
def f(y):
    calls.append(y)
    return y
print(f(1), f(y=1), f(1), len(calls) + 1, f.cache_info())
####
def f(x, y=1, *z, w=2, **k): return x, y, z, w, k
print(f(1, 2, 3, w=4, v=5))
---
def f(x, y=1, *z, v=2, **k): return x, y, z, v, k
print(f(1, 2, 3, w=4, v=5))
####
def f():
    try: return 1
    finally: print("f")
print(f())
---
def f():
    try: return 1
    except Exception: print("f")
print(f())
####
for i in range(3):
    if i == 5: break
else: print("else")
---
for i in range(3):
    if i == 5: break
print("no")
####
while True:
    try: break
    finally: print(1)
---
while True:
    try: pass
    finally: break
print(2)
####
x = 1
x = yield_ = 2
print(x)
def g():
    NAME = x
    print(NAME, alpha)
alpha = 8
try: g()
except NameError: print(0)
####
def outer():
    NAME = 1
    def inner():
        print(alpha)
    try: inner()
    except NameError: print("unbound")
outer()
####
def f(n):
    def NAME(k): return k + 1
    def alpha_(k): return NAME(k) * 2
    return alpha_(n)
print(f(3), f)
def NAME(): pass
print(NAME)
####
print(sorted(["NAME", "b"], key=str.lower), "NAME".title())
####
d = {}
d["NAME"] = 1
class alpha: pass
print(d)
####
def f(): return NAME
NAME = 1
print(f())
del NAME
try: f()
except NameError as e: print(e)
####
try:
    import NAME_
except ImportError as e: print(e)
####
try:
    from math import NAME
except ImportError as e: print(e)
####
import math
try: math.NAME
except AttributeError as e: print(e)
####
class A: pass
try: A().NAME
except AttributeError as e: print(e)
####
try: [].NAME
except Exception as e: print(type(e), e.name)
####
a = [1, 2]
try: NAME, beta_, c = a
except ValueError as e: print(e)
try: alpha
except NameError: print("none")
try: NAME(1)
except Exception as e: print(e)
""",
    "library objects": r"""
def deco(c): return NameError
@deco
class E(Exception): pass
def f():
    print(NAME)
    NAME = 1
try: f()
except E as e: print(e)
####
class A:
    class NameError(Exception): pass
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError as e: print(e)
####
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError as e: print(e)
class NameError(Exception): pass
####
def g():
    class TypeError(Exception): pass
def NAME(): pass
try: NAME(1)
except TypeError as e: print(e)
####
from abc import ABCMeta
d = "_" + "_"
def f(NAME): pass
hook = {d + "subclasshook" + d: classmethod(lambda c, x: True)}
A = ABCMeta("A", (), {**hook, d + "match_args" + d: (d + "code" + d,)})
B = ABCMeta("B", (), {**hook, d + "match_args" + d: ("co_" + "varnames",)})
match f:
    case A(B(names)): print(names)
####
d = "_" + "_"
T = type(int)
def f(NAME): pass
def show(self): print(self.n)
def make(n):
    x = C()
    x.n = n
    return x
C = T("C", (), {d + "del" + d: show})
def g():
    NAME, b = make(1), make(2)
    return lambda: (NAME, b)
g()
---
d = "_" + "_"
T = type(int)
def f(c): pass
def show(self): print(self.n)
def make(n):
    x = C()
    x.n = n
    return x
C = T("C", (), {d + "del" + d: show})
def g():
    c, b = make(1), make(2)
    return lambda: (c, b)
g()
####
T = int.__class__
def show(self, key): print(key)
C = T("C", (), {"so" + "rt": show})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", ["so" + "rt"])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from typing import NamedTuple
P = NamedTuple("P", [("so" + "rt", int)])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
import sys
s = "".join(["al", "pha"])
print(sys.intern(s) is s)
NAME = 1
####
from sys import intern
s = "".join(["al", "pha"])
def f(NAME): return NAME
print(intern(s) is s)
####
from collections import namedtuple
s = "".join(["al", "pha"])
NAME = 1
P = namedtuple("P", [s])
print(P._fields[0] is s)
####
from collections import namedtuple
s = "".join(["al", "pha"])
NAME = 1
P = namedtuple(s, "a")
print(P.__name__ is s)
####
import sys
from threading import Thread
sys.stderr.__init__(sys.stdout.buffer)
def NAME(): 1 / 0
t = Thread(target=NAME)
t.start()
t.join()
####
import sys
from threading import Thread
sys.stderr.__init__(sys.stdout.buffer)
def f():LINE
    1 / 0
t = Thread(target=f)
t.start()
t.join()
####
from contextlib import redirect_stdout
from io import StringIO
from threading import Thread
redirect_stdout._stream = "stderr"
out = StringIO()
def f():LINE
    1 / 0
with redirect_stdout(out):
    t = Thread(target=f)
    t.start()
    t.join()
print(out.getvalue())
####
from contextlib import redirect_stdout
from io import StringIO
from threading import Thread
out = StringIO()
r = redirect_stdout(out)
r._stream = "stderr"
def f():LINE
    1 / 0
with r:
    t = Thread(target=f)
    t.start()
    t.join()
print(out.getvalue())
####
from threading import Thread
def f(NAME=0, **more): print(NAME, more)
t = Thread(target=f)
t._kwargs = {"alpha": 1}
t.start()
t.join()
####
from threading import Thread
def f(NAME=0, **more): print(NAME, more)
def g(): pass
t = Thread(target=g)
t.__init__(None, f, None, (), {"alpha": 1})
t.start()
t.join()
####
import threading
def f(NAME=0, **more): print(NAME, more)
def g(): pass
t = threading.Thread(target=g)
threading.Thread.__init__(t, None, f, None, (), {"alpha": 1})
t.start()
t.join()
####
from threading import Thread
def f(NAME=0, **more): print(NAME, more)
def g(): pass
t = Thread(target=g).__class__(None, f, None, (), {"alpha": 1})
t.start()
t.join()
####
from threading import Thread
def f(NAME=0, **more): print(NAME, more)
def g(): pass
t = Thread(target=g)
t = t.__class__(None, f, None, (), {"alpha": 1})
t.start()
t.join()
####
import sys
from threading import Thread
def f():
    raise ValueError(len("NAME"))
def NAME_longer(): f()
t = Thread(target=f)
t.start()
t.join()
print(sys.stderr.tell())
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
e = sys.stderr
print(e.tell())
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(sys.stderr.buffer.tell())
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(sys.stderr.seek(0, 1))
####
class A:
    def __enter__(self): pass
    def __exit__(self, *a): return True
def g(self, kind, error, trace):
    print(error)
    return True
A.__exit__ = g
def f():
    print(NAME)
    NAME = 1
with A(): f()
####
def NAME(x): yield x
print(*map(NAME, [1]))
####
from functools import reduce
def NAME(x, y): yield x
print(reduce(NAME, [1, 2]))
####
from itertools import starmap
def NAME(x, y): yield x
print(list(starmap(NAME, [(1, 2)])))
####
from itertools import accumulate
def NAME(x, y): yield x
print(list(accumulate([1, 2], NAME)))
####
from itertools import groupby
def NAME(x): yield x
for k, g in groupby([1], NAME): print(k)
####
def NAME():
    d = {"a": lambda: (yield 1)}
    return d["a"]()
print(NAME())
####
def NAME():
    d = {"a": lambda: (yield 1)}
    return str(d["a"]())
print(NAME())
####
def NAME():
    f = lambda: (x for x in [1])
    return f()
print(NAME())
####
def NAME():
    return list(map(lambda x: (y for y in x), [[1]]))
print(NAME())
####
def NAME():
    return [lambda: 0]
print(NAME())
####
import sys
W = type(sys.stdout)
class B:
    closed = False
    def __init__(self, n): self.n = n
    def readable(self): return False
    def writable(self): return True
    def seekable(self): return False
    def flush(self): pass
    def close(self): print(self.n)
    def write(self, x): return len(x)
def f():
    NAME, b = W(B(1)), W(B(2))
    return lambda: (NAME, b)
f()
---
import sys
W = type(sys.stdout)
class B:
    closed = False
    def __init__(self, n): self.n = n
    def readable(self): return False
    def writable(self): return True
    def seekable(self): return False
    def flush(self): pass
    def close(self): print(self.n)
    def write(self, x): return len(x)
def f():
    c, b = W(B(1)), W(B(2))
    return lambda: (c, b)
f()
####
import sys
W = sys.stdout.__class__
class B:
    closed = False
    def __init__(self, n): self.n = n
    def readable(self): return False
    def writable(self): return True
    def seekable(self): return False
    def flush(self): pass
    def close(self): print(self.n)
    def write(self, x): return len(x)
def f():
    a, b = W(B(1)), W(B(2))
    return lambda: (a, b)
f()
---
import sys
W = sys.stdout.__class__
class B:
    closed = False
    def __init__(self, n): self.n = n
    def readable(self): return False
    def writable(self): return True
    def seekable(self): return False
    def flush(self): pass
    def close(self): print(self.n)
    def write(self, x): return len(x)
def f():
    c, b = W(B(1)), W(B(2))
    return lambda: (c, b)
f()
####
from functools import cached_property
class A: pass
cp = cached_property(lambda self: (lambda key: print(key)))
cp.__set_name__(A, "so" + "rt")
A.x = cp
a = A()
a.x
def NAME(x): return x
a.sort(key=NAME)
####
from functools import cached_property
class A:
    @cached_property
    def x(self): return lambda key: print(key)
A.x.attrname = "so" + "rt"
a = A()
a.x
def NAME(x): return x
a.sort(key=NAME)
####
from enum import Enum
d = "_" + "_"
E = Enum("E", {"a": 5, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
e = E(5)
e.sort(key=NAME)
####
from enum import Enum
d = "_" + "_"
leave = lambda self, k, e, t: print(e) or True
E = Enum("E", {"a": 5, d + "exit" + d: leave, d + "enter" + d: lambda self: 1})
def f():
    print(NAME)
    NAME = 1
with E(5): f()
""",
    "values and errors": r'''
import re
from threading import Thread
class A:
    def m(self, NAME=0, **more): print(NAME, more)
a = A()
t = Thread(target=a.m, kwargs=dict([("alpha", 1)]))
t.start()
t.join()
####
def NAME(): yield 1
g = NAME
print(g())
####
def f():
    def NAME(): yield 1
    return [NAME()]
print(f())
####
def f():
    def NAME(): yield 1
    x = NAME() if 1 else 0
    return str(x)
print(f())
####
def f():
    def NAME(): yield 1
    return f"{NAME()}"
print(f())
####
def f():
    def NAME(): yield 1
    return "%s" % NAME()
print(f())
####
def f():
    def NAME(): yield 1
    match NAME():
        case x: return repr(x)
print(f())
####
def f():
    def NAME(): yield 1
    return {NAME(): 1}
print(f())
####
def f():
    def NAME(): yield 1
    a = {}
    a["x"] = a["y"] = NAME()
    return a["y"]
print(f())
####
def f():
    def NAME(): yield 1
    x = y = NAME()
    return str(y)
print(f())
####
def f():
    def NAME(): yield 1
    return (lambda: NAME())()
print(f())
####
def f():
    def NAME(): yield 1
    def g(): return NAME()
    return g()
print(f())
####
def f(x=None):
    def NAME(): yield 1
    return NAME() or x
print(f())
####
def f():
    def NAME(): yield 1
    assert not NAME(), NAME()
try: f()
except AssertionError as e: print(e)
####
def f():
    def NAME(): yield 1
    raise KeyError(NAME())
try: f()
except KeyError as e: print(e)
####
def f():
    def NAME(): yield 1
    def h(): return (yield NAME())
    return list(h())
print(f())
####
def f():
    def NAME(): yield 1
    def h():
        x = yield from NAME()
        return x
    return list(h())
print(f(), [n for n in ["NAME"]])
####
def f():
    def NAME(): yield 1
    return next(iter([]), *[NAME()])
print(f())
####
def f():
    def NAME(): yield 1
    return list(zip([NAME()]))
print(f())
####
def f():
    def NAME(): yield 1
    return NAME().__name__
print(f())
####
def f():
    def NAME(): yield 1
    return NAME().__repr__()
print(f())
####
def f():
    def NAME(): return 1
    def g(x): return x
    return g(x=NAME)
print(f())
####
def f():
    def NAME(x): return 1
    return sorted([1], key=NAME) and NAME
print(f())
####
def f():
    def NAME(x): return 1
    map = lambda f, x: f
    return map(NAME, [1])
print(f())
####
def map(f, x): return f
def NAME(x): return 1
print(map(NAME, [1]))
####
def f(map):
    def NAME(x): return 1
    return map(NAME, [1])
print(f(lambda g, x: g))
####
import heapq
def f():
    def NAME(x): return 1
    return heapq.nlargest(1, [NAME])
print(f())
####
import functools
def f():
    def NAME(x): return 1
    return functools.partial(NAME)
print(f())
####
import functools
def f():
    def NAME(x): return 1
    return functools.partial(NAME).func
print(f())
####
import functools
def f():
    @functools.cache
    def NAME(x): return 1
    return NAME.__wrapped__
print(f())
####
import functools
@functools.lru_cache
def NAME(x): return 1
print(NAME.__name__)
####
import functools
def deco(f):
    @functools.wraps(f)
    def NAME(*a): return f(*a)
    return NAME
@deco
def g(x): return x
print(g, g(1))
---
import functools
def deco(f):
    def NAME(*a): return f(*a)
    return NAME
@deco
def g(x): return x
print(g, g(1))
####
def deco(f): return f
@deco
def NAME(x): return x
print(deco(NAME))
####
def deco(f):
    print(f.__name__)
    return f
@deco
def NAME(x): return x
NAME(1)
####
registry = []
def deco(f):
    registry.append(f)
    return f
@deco
def NAME(x): return x
print(registry)
####
from collections import defaultdict
def NAME(): return 1
d = defaultdict(NAME)
print(d)
####
from dataclasses import dataclass, field
def NAME(): return 1
@dataclass
class A:
    x: object = field(default_factory=NAME)
    y: object = field(default=NAME)
print(A())
####
from dataclasses import dataclass, field
def NAME(): return 1
f = field(default_factory=NAME)
print(f.default_factory)
####
class A:
    pass
def f():
    def NAME(self): return 1
    A.g = NAME
f()
print(A.g)
####
def f():
    class A:
        def NAME(self): return 1
    return A.NAME
print(f())
####
def f():
    class A:
        def g(self):
            def NAME(): return 1
            return NAME
    return A().g()
print(f())
####
def NAME():
    class A:
        def g(self):
            return (x for x in [])
    return A().g()
print(NAME())
####
def NAME():
    class A:
        x = lambda self: 0
    return A.x
print(NAME())
####
def NAME():
    from collections import namedtuple
    return namedtuple("P", "x")(lambda: 0)
print(NAME())
####
def NAME():
    from typing import NamedTuple
    class E(NamedTuple):
        A: int
    return E, E(1)
print(NAME())
####
def NAME():
    from dataclasses import dataclass
    @dataclass
    class E:
        A: int
    return E(1)
print(NAME())
####
def NAME(): return 1
class A:
    f = NAME
print(A.f)
####
def NAME(): return 1
class A:
    f = staticmethod(NAME)
print(A.f)
####
def NAME(self): return 1
class A:
    f = property(NAME)
print(A.f.fget)
####
def f():
    x = [lambda NAME: NAME]
    return x[0](alpha=1)
try: print(f())
except TypeError: print("error")
####
def f(NAME): return NAME
g = f
try: print(g(alpha=1))
except TypeError: print("error")
####
def f(NAME): return NAME
d = {"f": f}
try: print(d["f"](alpha=1))
except TypeError: print("error")
####
class A:
    def __call__(self, NAME): return NAME
try: print(A()(alpha=1))
except TypeError: print("error")
####
class A:
    def __init__(self, NAME): pass
try: print(A(**{"alpha": 1}) and 1)
except TypeError: print("error")
####
class A:
    def __init__(self, NAME): pass
try: print(A(**dict(zip(["al" + "pha"], [1]))) and 1)
except TypeError: print("error")
####
class M:
    def __getitem__(self, k): return 1
    def keys(self): return ["alpha"]
def f(NAME=0, **k): return NAME
print(f(**M()))
####
class A:
    def __class_getitem__(cls, NAME): return NAME
print(A["x"], A.__class_getitem__(alpha=1) if "NAME" == "alpha" else 0)
####
class A:
    def f(self, NAME): return NAME
print(A().f.__call__(**{"alpha": 1}) if "NAME" == "alpha" else 0)
####
import json
def NAME(o): return 1
try: print(json.dumps(object, default=NAME))
except Exception: print(0)
print(json.dumps({"f": str(NAME)}))
####
import re
def NAME(m): return "x"
print(re.sub("a", NAME, "a"), str(NAME))
####
import re
def f():
    def NAME(m): return "x"
    try: return re.sub("a", NAME, 5)
    except Exception as e: return str(e)
print(f(), "NAME")
####
try:
    def NAME(): pass
    raise ValueError(NAME)
except ValueError as e: print(e)
####
try:
    def NAME(): pass
    raise ValueError(NAME)
except* ValueError as e: print(e.exceptions)
####
def NAME(): pass
class E(Exception): pass
try: raise E(NAME)
except E as e: print(e)
####
def f():
    print(NAME)
    NAME = 1
class E(NameError): pass
try: f()
except E as e: print(e)
except NameError: print("NAME")
####
import sys
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError: print(sys.exc_info()[1])
####
import sys
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError: print(sys.exception())
####
def f():
    print(NAME)
    NAME = 1
def g():
    try: f()
    except NameError as e: return e
print(g())
####
def f():
    print(NAME)
    NAME = 1
try: f()
except (NameError, ValueError) as e: print(e)
####
def f():
    print(NAME)
    NAME = 1
E = NameError
try: f()
except E as e: print(e)
####
def f():
    print(NAME)
    NAME = 1
ValueError = NameError
try: f()
except ValueError as e: print(e)
####
def f(ValueError):
    def g():
        print(NAME)
        NAME = 1
    try: g()
    except ValueError as e: print(e)
f(NameError)
####
def f():
    print(NAME)
    NAME = 1
try: f()
except BaseException as e: print(e.args)
####
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError as e:
    match e:
        case NameError(args=a): print(a)
####
def f():
    print(NAME)
    NAME = 1
try: f()
except NameError as e:
    errors = [e]
    print(errors)
####
def f():
    print(NAME)
    NAME = 1
try:
    try: f()
    except NameError as e: raise ValueError("x") from e
except ValueError as v: print(v.__cause__)
####
def f():
    print(NAME)
    NAME = 1
try:
    try: f()
    finally: raise ValueError("x")
except ValueError as v: print(v.__context__)
####
def f():
    print(NAME)
    NAME = 1
def g():
    try: yield
    except ValueError as v: print(v)
h = g()
next(h)
try: f()
except NameError as e:
    try: h.throw(e)
    except NameError as z: print(z)
####
from contextlib import suppress
def f():
    print(NAME)
    NAME = 1
s = suppress(NameError)
with s: f()
print(s.__exit__, "NAME")
####
from contextlib import nullcontext
class N:
    def __enter__(self): return self
    def show(self, kind, e, t): print(e) or 1
    __exit__ = show
def f():
    print(NAME)
    NAME = 1
try:
    with N(): f()
except NameError: pass
####
class N:
    def __enter__(self): return self
    def __exit__(self, *NAME):
        for x in NAME: print(str(x)[:0])
        return True
def f():
    print(NAME)
    NAME = 1
with N(): f()
print("NAME")
####
class N:
    def __enter__(self): return self
    def __exit__(self, kind, e, t, x=[]):
        x.append(lambda: e)
        for g in x: print(g())
        return True
def f():
    print(NAME)
    NAME = 1
with N(): f()
####
class B:
    def __exit__(self, kind, e, t): return self.show(e)
class N(B):
    def __enter__(self): return self
    def show(self, e):
        print(e)
        return True
def f():
    print(NAME)
    NAME = 1
with N(): f()
####
class N:
    def __enter__(self): return self
    for __exit__ in [lambda self, k, e, t: print(e) or True]: pass
def f():
    print(NAME)
    NAME = 1
with N(): f()
####
class N:
    def __enter__(self): return self
    __exit__: object = lambda self, k, e, t: print(e) or True
def f():
    print(NAME)
    NAME = 1
with N(): f()
####
class N:
    def __enter__(self): return self
    def __exit__(self, k, e, t): return True
    def __init_subclass__(cls): cls.__exit__ = lambda self, k, e, t: print(e) or True
class M(N): pass
def f():
    print(NAME)
    NAME = 1
with M(): f()
####
class D:
    def __set_name__(self, owner, name):
        setattr(owner, "show", lambda self, k, e, t: print(e) or True)
    def __get__(self, o, t=None): return o.show
class N:
    def __enter__(self): return self
    __exit__ = D()
def f():
    print(NAME)
    NAME = 1
with N(): f()
####
from dataclasses import dataclass
@dataclass
class N:
    x: int
    def __enter__(self): return self
    def __exit__(self, k, e, t): return True
def f():
    print(NAME)
    NAME = 1
N.__exit__ = lambda self, k, e, t: print(e) or True
with N(1): f()
####
from threading import Thread
def f():
    print(NAME)
    NAME = 1
class T(Thread):
    def __init__(self):
        super().__init__()
        self._invoke_excepthook = self.show
    def run(self): f()
    def show(self, t):
        try: raise
        except Exception as e: print(e)
t = T()
t.start()
t.join()
####
def f():
    print(NAME)
    NAME = 1
def g():
    try: raise
    except ValueError as e: print(e)
try: f()
except NameError:
    try: g()
    except NameError as e: print(e)
####
from types import FunctionType
def f(NAME): return NAME
g = FunctionType(f.__code__, {})
print(g(alpha=1))
####
import random
s = random.Random(1)
def NAME(): return 1
print(s.sample([NAME], 1))
####
import statistics
def NAME(): return 1
print(statistics.mode([NAME]))
####
import itertools
def NAME(): return 1
print(list(itertools.chain([NAME])))
####
import itertools
def NAME(x): return 1
print(itertools.groupby([1], NAME))
print(list(itertools.repeat(NAME, 1)))
####
import operator
def NAME(x): return 1
print(operator.itemgetter(0)([NAME]))
####
import operator
def NAME(x): return 1
a = [0]
operator.setitem(a, 0, NAME)
print(a)
####
import copy
def NAME(x): return 1
print(copy.copy(NAME))
####
from functools import cmp_to_key
def NAME(a, b): return 0
print(cmp_to_key(NAME)(1), str(NAME))
####
from functools import total_ordering
try:
    @total_ordering
    class NAME: pass
except ValueError as e: print(e, NAME if 0 else "NAME")
####
from functools import cached_property
class A:
    @cached_property
    def NAME(self): return 1
print(hasattr(A, "alpha"))
####
class A:
    @property
    def NAME(self): return 1
print(hasattr(A, "alpha"))
####
class A:
    __slots__ = ("NAME",)
try: A().alpha = 1
except AttributeError: print("error")
else: print("none")
####
class A:
    def __init__(self): self.NAME = 1
print(getattr(A(), "alpha", 0))
####
class A:
    def __init__(self): self.NAME = 1
match A():
    case A(alpha=1): print("yes")
    case _: print("no")
####
from collections import namedtuple
P = namedtuple("P", "NAME")
print(P(1))
####
from enum import Enum
class E(Enum):
    NAME = 1
print(E(1))
####
from typing import TypedDict
class E(TypedDict):
    NAME: int
print(E(alpha=1), E.__required_keys__)
####
from string import Template
NAME = 1
print(Template("$alpha").safe_substitute(**{"NAME": 1}))
####
def f(**k): return k
print(f(NAME=1))
####
NAME = 5
print(f"{NAME=}")
####
def f(NAME=5): return f"{NAME = }"
print(f())
####
def f(NAME=5): return f"{NAME!r:>{NAME}=}" if 0 else f"{NAME + 1=}"
print(f())
####
assert (NAME := 1)
print([NAME for x in [1] if (beta := x)], "beta" in vars() if 0 else 1, dir())
####
def f():
    """alpha"""
    return f.__doc__
print(f())
---
def f():
    """beta"""
    return f.__doc__
print(f())
####
"""alpha"""
print(__doc__)
---
"""beta"""
print(__doc__)
####
from functools import wraps
class A: pass
def f():
    """NAME"""
a = A()
wraps(f)(a)
print(a.__doc__)
####
from functools import wraps
class A:
    d = {}
def f():
    """NAME"""
a, b = A(), A()
a.d = {}
wraps(f, assigned=(), updated=["d"])(b) if 0 else 0
print(a.d, f.__doc__)
####
import sys
sys.setrecursionlimit(60)
def f(n):
    "doc"
    return 0 if n == 0 else f(n - 1) + 1
try: print(f(48), sys._getframe().f_lineno)LINE
except RecursionError: print("deep")
print(sys._getframe().f_lineno)
####
a = 1
def f():
    global a
    a: int = 2
print(1)
---
a = 1
def f():
    global a
    a = 2
print(1)
####
class A:
    x: int
    def f(self): return "x" in self.__annotations__
print(A().f())
---
class A:
    x = int
    def f(self): return "x" in self.__annotations__
print(A().f())
####
class A:
    print("body")
    def f(self): pass
    pass
print(A.f.__code__.co_firstlineno)
---
class A:
    print("body")

    def f(self): pass
print(A.f.__code__.co_firstlineno)
####
x = 1,
print(x)
---
x = 1
print(x)
####
print("a" "b")
---
print("a", "b")
####
print(1 < 2 == True)
---
print((1 < 2) == True)
####
print(not 1 in [2])
---
print((not 1) in [2])
####
print(-2 ** 2)
---
print((-2) ** 2)
####
print(0.0)
---
print(-0.0)
####
print({1: 2, 1.0: 3})
---
print({1.0: 2, 1: 3})
####
print(*{True: 1, 1: 2})
---
print(*{1: 1, True: 2})
####
print(b"a")
---
print("a")
####
x = [1, 2, 3]
del x[0], x[1]
print(x)
---
x = [1, 2, 3]
del x[0:2]
print(x)
####
for i in 1, 2: print(i)
---
for i in (1, 2),: print(i)
####
with open(0) as f, open(0) as g: print(1)
---
with open(0) as f:
    with open(0) as g: print(1, 2)
####
def f(a, /, b): return a, b
print(f(1, b=2))
try: print(f(a=1, b=2))
except TypeError: print(0)
---
def f(a, b): return a, b
print(f(1, b=2))
try: print(f(a=1, b=2))
except TypeError: print(0)
####
from __future__ import annotations
def f(x: print(1)): return x
print(f(2))
---
def f(x: print(1)): return x
print(f(2))
####
print(1) if 1 else print(2)
---
if 1: print(1)
else: print(2)
print()
####
i: int = 0
while i < 2:
    i += 1
else:
    print("x")
---
i: int = 0
while i < 2:
    i += 1
    break
else:
    print("x")
####
try: pass
except: print(1)
else: print(2)
---
try: pass
except: print(1)
finally: print(3)
####
print("\N{DIGIT ONE}", "é")
---
print("\N{DIGIT ONE}", "e\u0301")
####
ﬁ = 1
print(fi)
class A: ﬁ = 2
print(getattr(A, "ﬁ", 0))
---
fi = 1
print(fi)
class A: fi = 2
print(getattr(A, "fi", 0))
''',
    "classes and standard error": r"""
s = super
class A:
    def m(self): return 1
class B(A):
    def m(self):
        x: super = 1
        return s().m()
try: print(B().m())
except RuntimeError: print("no")
---
s = super
class A:
    def m(self): return 1
class B(A):
    def m(self):
        x = 1
        return s().m()
try: print(B().m())
except RuntimeError: print("no")
####
from enum import Enum
class E(Enum): pass
F = E("F", {"a": 1, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
f = F(1)
f.sort(key=NAME)
####
from enum import IntEnum
class E(IntEnum):
    def show(self): return 1
F = E("F", ["so" + "rt"])
def NAME(x): return x
print(F.sort(key=NAME) if 0 else str(NAME))
####
from enum import Enum
class E(Enum):
    _ignore_ = ["x"]
    x = 1
F = E("F", {"a": 1, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
f = F(1)
f.sort(key=NAME)
####
from enum import Enum
class E(Enum):
    x = lambda self: 1
F = E("F", {"a": 1, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
f = F(1)
f.sort(key=NAME)
####
from enum import Enum
class E(Enum):
    if 0:
        x = 1
F = E("F", {"a": 1, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
f = F(1)
f.sort(key=NAME)
####
from enum import Enum, EnumMeta
class E(Enum, metaclass=EnumMeta): pass
F = E("F", {"a": 1, "so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
f = F(1)
f.sort(key=NAME)
####
import collections
make = collections.namedtuple
P = make("P", ["so" + "rt"])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple as make
P = make("P", ["so" + "rt"])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple(*["P", ["so" + "rt"]])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple(typename="P", field_names="so" + "rt")
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", "xsortx".split("x")[1:2])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", "soXrt".split("z")) if 0 else namedtuple("P", "xsort".strip("x"))
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", "1sort2".split("1")[1].split("2")[:1])
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", "asortb asortb".split("b asortb")[0][1:].split())
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple("P", "q_sort".split("_"))
def NAME(x): return x
p = P(1, lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
for P in map(namedtuple, ["P"], ["so" + "rt"]): pass
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
from functools import partial
P = partial(namedtuple, "P")("so" + "rt")
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
P = namedtuple.__call__("P", "so" + "rt")
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
from collections import namedtuple
make = [namedtuple]
P = make[0]("P", "so" + "rt")
def NAME(x): return x
p = P(lambda key: print(key))
p.sort(key=NAME)
####
class A:
    def m(self): return self.__class__
T = A.m(int)
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
class A:
    def m(self): return type(self)
T = A.m(int)
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
class A:
    def m(self, *a): return type(self)(*a)
C = A.m(int, "C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
match int:
    case object(__class__=T): pass
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
class Q:
    def __eq__(self, other):
        global T
        T = other
        return True
type(int) == Q()
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
class Q:
    def __eq__(self, other):
        global T
        T = other
        return True
int.__class__ in [Q()]
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
class Q:
    def __contains__(self, other):
        global T
        T = other
        return True
q = Q()
type(int) in q
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
def print_(x):
    global T
    T = x
def f(print):
    print(type(int))
f(print_)
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
T = dict
for T in [type(int)]: pass
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
import abc
class B(metaclass=abc.ABCMeta): pass
T = abc.ABCMeta
C = T("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
import abc
C = abc.ABCMeta("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from abc import ABCMeta as M
C = M("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from abc import ABCMeta
C = ABCMeta.__call__(ABCMeta, "C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from abc import ABCMeta
C = [*map(ABCMeta, ["C"], [()], [{"so" + "rt": lambda self, key: print(key)}])][0]
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from abc import ABCMeta
C = (ABCMeta if 1 else 0)("C", (), {"so" + "rt": lambda self, key: print(key)})
def NAME(x): return x
c = C()
c.sort(key=NAME)
####
from abc import ABCMeta
class B(m := ABCMeta if 0 else object): pass
def NAME(x): return x
print(m, NAME)
####
from functools import wraps
class S: pass
class T: pass
s, t = S(), T()
s.sort_ = 1
w = wraps(s, ["so" + "rt_"])(t)
print(w.sort_, "NAME")
####
from functools import wraps
class S: pass
s, t, u = S(), S(), S()
key = "so" + "rt"
d = {}
def NAME(x): return x
w = wraps
w(NAME, [], [])(t)
print(t, str(NAME))
####
import sys
from threading import Thread
class A:
    def m(self): return self.tell()
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(A.m(sys.stderr) if 0 else sys.stderr.buffer.tell())
####
from sys import stderr
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(stderr.buffer.tell())
####
import sys as s
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(s.stderr.buffer.tell())
####
from sys import *
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(stderr.buffer.tell())
####
import sys
from threading import Thread
def tell(*a, file): print(file.buffer.tell())
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
tell(file=sys.stderr)
####
import sys
from threading import Thread
show = print
def print(*a, file): show(file.buffer.tell())
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(file=sys.stderr)
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
match sys:
    case object(stderr=e): print(e.buffer.tell())
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
print(getattr(sys, "stderr").buffer.tell())
####
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
with sys.stderr as e: print(e.buffer.tell())
####
from contextlib import redirect_stdout, closing
import sys
from threading import Thread
def f(): NAME()
def NAME(): 1 / 0
t = Thread(target=f)
t.start()
t.join()
out = sys.stdout
with redirect_stdout(sys.stderr) as e: out.write(str(e.buffer.tell()))
####
import sys
from threading import Thread
sys.stderr = sys.stdout
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
####
import sys
from threading import Thread
sys.stdout, sys.stderr = sys.stdout, sys.stdout
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
####
import sys
from threading import Thread
for sys.stderr in [sys.stdout]: pass
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
####
import sys
from threading import Thread
with open(0) as sys.stderr: pass
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
print("NAME")
####
import os
from threading import Thread
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
print(os.fstat(2).st_size)
####
import os
from threading import Thread
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
os.lseek(2, 0, 0)
print(os.read(2, 1000))
####
import os
os.dup2(1, 2)
from threading import Thread
def NAME(): 1 / 0
t = Thread(target=lambda: NAME())
t.start()
t.join()
####
print(open(2, "r").read() if 0 else open("program.py").read())
NAME = 1
####
import io
print(io.open("program.py").read())
NAME = 1
####
import io
print(io.FileIO("program.py").read())
NAME = 1
####
from pathlib import Path
print(Path("program.py").read_text())
NAME = 1
####
import numpy as np
print(np.fromfile("program.py", dtype="u1").sum())
NAME = 1
####
import array
a = array.array("B")
a.fromfile(open("program.py", "rb"), 10)
print(a, "NAME")
####
import csv
print(list(csv.reader(open("program.py"))))
NAME = 1
####
import sys
print(open(sys.argv[0]).read())
NAME = 1
####
import os
print(os.path.getsize("program.py"))
NAME_ = 1
####
import sys
class R:
    def write(self, x): sys.__stdout__.write(str(NAME))
    def flush(self): pass
def NAME(): pass
sys.stdout = R()
print(1)
####
import sys
class R:
    def readline(self, NAME=-1): return "NAME"
sys.stdin = R()
print(input())
####
class A:
    def __format__(self, NAME): return f"{NAME}NAME"
print(f"{A():x}")
####
class A:
    def __missing__(self, k): return k
class D(dict):
    def __missing__(self, k): return k
print("%(NAME)s" % D())
####
print("{NAME}".format(**{"alpha": 1, "beta": 2}))
####
print("{0[NAME]}".format({"alpha": 1, "beta": 2}))
####
import gc
class A: pass
def f():
    NAME = A()
    return len(gc.get_referrers(NAME))
print(f(), gc.get_objects()[0] and "NAME")
####
import sys
def f(NAME):
    return sys.getrefcount(NAME), sys._getframe().f_code.co_varnames
print(f([]))
####
import sys
print(sys.getsizeof(lambda: 0), sys.getsizeof("NAME"))
####
import sys
def t(frame, event, arg): print(frame.f_lineno)
sys.settrace(t)LINE
def f(): return 1
f()
####
import sys
print([*sys._current_frames().values()][0].f_lineno)LINE
print([*sys._current_frames().values()][0].f_lineno)
####
import threading
threading.settrace(lambda *a: print(a[0].f_code.co_name))
def NAME(): pass
t = threading.Thread(target=lambda: NAME())
t.start()
t.join()
####
import threading
def NAME(): pass
t = threading.Thread(target=NAME)
print(t)
####
import threading
class NAME(threading.Thread): pass
print(NAME())
####
import time
def NAME(): pass
print(time.strftime(NAME.__name__))
####
import re
print(re.match("(?P<NAME>a)", "a").groupdict())
####
import typing
def f(x: "alpha"): return x
class alpha: pass
print(typing.get_type_hints(f))
class beta: pass
---
import typing
def f(x: "beta"): return x
class alpha: pass
print(typing.get_type_hints(f))
class beta: pass
####
from typing import TypeVar, NewType
T = TypeVar("NAME")
print(T, NewType("NAME", int))
####
import asyncio
async def NAME(): return 1
print(NAME)
####
async def NAME(): return 1
c = NAME()
print(c)
c.close()
####
def f():
    NAME = 1
    def g():
        nonlocal NAME
        NAME += 1
        return g.__closure__[0].cell_contents, g.__code__.co_freevars
    return g()
print(f())
####
x = 5
def f():
    NAME = 1
    def g():
        global x
        x = 2
        return NAME, alpha
    alpha = 3
    return g()
print(f())
####
def f():
    for NAME in range(2): pass
    try: return alpha
    except NameError: return "no"
print(f())
####
def f(alpha=7):
    return [NAME for NAME in range(2)], alpha
print(f())
---
def f(alpha=7):
    return [alpha for alpha in range(2)], alpha + 1
print(f())
####
class A:
    alpha = 1
    beta = [alpha for _ in range(1)] if 0 else NAME
    NAME = 2
try: print(A.beta)
except NameError: print("no")
####
NAME = 3
class A:
    alpha = 1
    x = [alpha for _ in range(2)]
print(A.x)
####
NAME = 3
class A:
    alpha = 1
    x = lambda self: alpha
print(A().x())
####
alpha = 3
class A:
    def f(self, x=1):
        return NAME
    beta = 2
try: print(A().f())
except NameError: print("no")
####
def f(n):
    if n: NAME = 1
    return NAME if n else alpha
alpha = 4
try: print(f(0))
except UnboundLocalError: print("no")
####
def outer():
    alpha = 1
    def g():
        NAME = 2
        return alpha
    return g()
try: print(outer())
except UnboundLocalError: print("no")
####
import heapq
class A:
    def __init__(self, NAME): self.x = NAME
    def __lt__(self, NAME): return self.x < NAME.x
A.__lt__ = lambda self, o: print("NAME") or True
heapq.heapify([A(1), A(2)])
####
x = lambda: (yield)
def NAME(): return x()
print(NAME)
####
def f():
    return [x for x in (lambda: (yield NAME))()]
NAME = 1
print(f(), "NAME")
####
def f():
    g = {"a": NAME}
    return g["a"]
def NAME(): return 0
print(f())
####
def f():
    g = {"a": NAME}
    return g.get("a")
def NAME(): return 0
print(f())
####
ops = {"+": lambda NAME: NAME}
print(ops["+"].__code__.co_varnames)
####
ops = [lambda NAME: NAME]
for o in ops:
    try: print(o(alpha=1))
    except TypeError: print("no")
####
from functools import reduce
print(reduce(lambda NAME, f: f, [1, lambda alpha: 0]))
def NAME(): print(reduce(lambda a, f: f, [1, lambda: 0]))
NAME()
####
def NAME(): return max([1, 2], key=lambda x: print(lambda: 0) or 1)
print(NAME())
""",
    "names of builtins": r"""
def format(NAME=0, **k): return NAME, k
print(format(**{"alpha": 1}))
####
def dict(NAME=0, **k): return NAME, k
print(dict(**{"alpha": 1}))
####
class A:
    def __init__(self, dict): self.v = dict(**{"alpha": 1})
def f(NAME=0, **k): return NAME, k
print(A(f).v)
####
class R:
    def sub(self, f, g): return g
re = R()
def NAME(m): return "x"
print(re.sub("a", NAME))
####
import re
class R:
    def sub(self, f, g): return g
def h(re):
    def NAME(m): return "x"
    return re.sub("a", NAME)
print(h(R()))
####
import operator as re
class R:
    def __sub__(self, g): return g
def NAME(m): return "x"
print(re.sub(R(), NAME))
####
import re
def NAME(m): yield "x"
try: print(re.sub("a", NAME, "a"))
except Exception as e: print(e, str(NAME))
####
import re
re.sub = lambda p, f, s: f
def NAME(m): return "x"
print(re.sub("a", NAME, "a"))
####
def f():
    print(NAME)
    NAME = 1
try: f()
except Exception as e: print(type(e).__name__, e)
####
def NAME(): pass
type = lambda x: x
print(type(NAME).__name__)
####
def f(type):
    def NAME(): pass
    return type(NAME).__name__
print(f(lambda x: x))
####
class A:
    __class__ = property(lambda self: int)
def NAME(): pass
print(A().__class__.__name__, NAME)
####
class A: pass
def NAME(): pass
a = A()
a.__class__ = NAME.__class__ if 0 else A
print(NAME)
####
class alpha: pass
class beta: pass
class C(NAME):
    def m(self): return self.__class__.__name__, type(self).__qualname__
print(C().m(), C.__mro__)
####
class A: pass
x = A() if "alpha" == "NAME" else 3
print(type(x) == A, type(x) is int, x.__class__.__name__)
####
def f():
    class NAME: pass
    return type(NAME()).__name__, f"{type(NAME())}"
print(f())
####
def NAME(): pass
print(f"{NAME.__name__:>9}", f"{NAME.__class__}")
####
def NAME(): yield
print(NAME().__class__.__name__, "%s" % NAME())
####
from threading import Thread
def f(x=0, **k): print(x, k)
class A:
    def m(self, NAME=0, **k): print(NAME, k)
a = A()
t = Thread(target=f)
u = Thread(target=a.m)
t.start.__call__()
u.__init__(None, a.m, None, (), {"alpha": 1})
u.start()
u.join()
t.join()
####
from threading import Thread
class A:
    def m(self, NAME=0, **k): print(NAME, k)
class T(Thread):
    def __init__(self, *a): super().__init__(*a)
a = A()
t = T(None, a.m, None, (), {"alpha": 1})
t.start()
t.join()
####
class math:
    def prod(x): return str(x)
def NAME(): yield 1
print(math.prod(NAME()))
####
import math
math.prod = str
def NAME(): yield 1
print(math.prod(NAME()))
####
def f(math):
    def NAME(): yield 1
    return math.prod(NAME())
class P:
    def prod(self, x): return str(x)
print(f(P()))
####
from collections import namedtuple
math = namedtuple("P", "prod")(str)
def NAME(): yield 1
print(math.prod(NAME()))
""",
    "callables, threads and star imports": """
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    print(wrapper.__name__)
    return wrapper
@deco
def NAME(x): return x
print(NAME(1))
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    return wrapper
@deco
def NAME(x): return x
print(str(NAME)[:20])
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    return wrapper
@deco
def NAME(x): return x
print([NAME][0].__name__)
####
from functools import wraps
def deco(func):
    def wrapper(*args): return func(*args)
    def other(): pass
    print(wraps(func)(other).__name__)
    return wrapper
@deco
def NAME(x): return x
print(NAME(1))
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    return wrapper
@deco
def NAME(x): return x
g = deco(NAME)
print(g.__name__)
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return wrapper
    return wrapper
@deco
def NAME(x): return x
print(NAME(1).__name__)
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func
    return wrapper
@deco
def NAME(x): return x
print(NAME(1).__name__)
####
seen = []
def deco(func):
    seen.append(func)
    def wrapper(*args): return func(*args)
    return wrapper
@deco
def NAME(x): return x
print(seen[0].__name__)
####
def deco(func):
    def wrapper(x): return func(x)
    return wrapper
@deco
def f(NAME, **k): return NAME, k
def deco2(func):
    def wrapper2(*args, **kwargs):
        kwargs["alpha"] = 1
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        kwargs.update(alpha=1)
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        kwargs.setdefault("alpha", 1)
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        kwargs |= {"alpha": 1}
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        kwargs = {"alpha": 1}
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        for kwargs in [{"alpha": 1}]: pass
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def deco2(func):
    def wrapper2(*args, **kwargs):
        def change(d): d["alpha"] = 1
        change(kwargs)
        return func(*args, **kwargs)
    return wrapper2
@deco2
def g(NAME=0, **k): return NAME, k
print(g())
####
def w(*args, **kwargs): return g(*args, **kwargs)
def g(NAME=0, **k): return NAME, k
d = {"alpha": 1}
print(w(**d))
####
def w(*args, **kwargs): return g(*args, **kwargs)
def g(NAME=0, **k): return NAME, k
print(w(alpha=1))
####
def w(**kwargs): return lambda: g(**kwargs)
def g(NAME=0, **k): return NAME, k
print(w(alpha=1)())
####
def w(**kwargs):
    def inner():
        nonlocal kwargs
        kwargs = dict([("alpha", 1)])
    inner()
    return g(**kwargs)
def g(NAME=0, **k): return NAME, k
print(w())
####
class A:
    def __init__(self, **kwargs): self.v = g(**kwargs)
def g(NAME=0, **k): return NAME, k
print(A(alpha=1).v)
####
class A:
    def __init_subclass__(cls, **kwargs): cls.v = g(**kwargs)
def g(NAME=0, **k): return NAME, k
class B(A, alpha=1): pass
print(B.v)
####
from functools import partial
def w(**kwargs): return g(**kwargs)
def g(NAME=0, **k): return NAME, k
print(partial(w, alpha=1)())
####
def check(candidate):
    print(candidate.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate):
    return candidate
def NAME(): pass
print(check(NAME).__name__)
####
def check(candidate):
    c = candidate
    print(c.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate):
    def inner(): print(candidate.__name__)
    inner()
def NAME(): pass
check(NAME)
####
def check(*candidate):
    print(candidate[0].__name__)
def NAME(): pass
check(NAME)
####
def check(candidate): show(candidate)
def show(f): print(f.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate): candidate()
def check(candidate): print(candidate.__name__)
def NAME(): pass
check(NAME)
####
check = lambda candidate: print(candidate.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate): candidate()
check = print
def NAME(): pass
check(str(NAME)[:15])
####
def check(candidate): print(candidate())
def NAME(): yield 1
check(NAME)
####
def check(candidate): return candidate()
def NAME(): yield 1
print(check(NAME))
####
def check(candidate): print(candidate(alpha=1))
def f(NAME=0, **k): return NAME, k
check(f)
####
def check(candidate, d): print(candidate(**d))
def f(NAME=0, **k): return NAME, k
check(f, {"alpha": 1})
####
def check(candidate):
    class A:
        f = candidate
    print(A.f.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate): print({candidate: 1})
def NAME(): pass
check(NAME)
####
def check(candidate): print(f"{candidate}"[:16])
def NAME(): pass
check(NAME)
####
def check(candidate): yield candidate
def NAME(): pass
print(next(check(NAME)).__name__)
####
def check(candidate):
    global saved
    saved = candidate
def NAME(): pass
check(NAME)
print(saved.__name__)
####
def check(candidate, x=None): print(x.__name__)
def NAME(): pass
check(1, NAME)
####
def check(candidate):
    match candidate:
        case other: print(other.__name__)
def NAME(): pass
check(NAME)
####
def check(candidate):
    print((lambda g=candidate: g.__name__)())
def NAME(): pass
check(NAME)
####
def deco(func): return print
@deco
def check(candidate): candidate()
def NAME(): pass
check(str(NAME)[:16])
####
class C:
    def check(self, candidate): print(candidate.__name__)
check = C().check
def NAME(): pass
check(NAME)
####
def outer():
    def check(candidate): candidate()
    return check
def check(candidate): print(candidate.__name__)
def NAME(): pass
check(NAME)
####
import threading
def NAME(): pass
t = threading.Thread(target=NAME)
print(t.name)
####
import threading
def NAME(): pass
t = threading.Thread(target=NAME)
print(str(t)[:20])
####
import threading
def NAME(): pass
t = threading.Thread(target=NAME)
for x in [t]: print(x.name)
####
from threading import Thread
def NAME(): pass
t = Thread(target=NAME)
print(f"{t}"[:20])
####
from threading import Thread
def NAME(): pass
t = Thread(target=NAME)
s = t.start
print(str(s)[:60])
####
from threading import Thread
def NAME(): pass
Thread.start = lambda self: print(self.name)
Thread(target=NAME).start()
####
import threading
def NAME(): pass
threading.Thread.join = lambda self: print(self.name)
t = threading.Thread(target=NAME)
t.start()
t.join()
####
from threading import Thread
def NAME(): print("x")
class T(Thread):
    def run(self): print(self.name)
t = T(target=NAME)
t.start()
t.join()
####
from threading import Thread as T
def NAME(): print("x")
t = T(target=NAME)
t.start()
t.join()
print(t.getName())
####
import threading
class threading2:
    def Thread(target): print(target.__name__)
def NAME(): pass
threading2.Thread(target=NAME)
####
class Thread:
    def __init__(self, target): print(target.__name__)
    def start(self): pass
def NAME(): pass
t = Thread(target=NAME)
t.start()
####
def Thread(target):
    print(target.__name__)
    return 1
def NAME(): pass
t = Thread(target=NAME)
####
from threading import Thread
def NAME(): pass
t = u = Thread(target=NAME)
print(u.name)
####
from threading import Thread
def f():
    def NAME(): pass
    t = Thread(target=NAME)
    return t
print(f().name)
####
from threading import Thread
def f(NAME=0, **k): print(NAME, k)
t = Thread(target=f, kwargs={"alpha": 1})
t.start()
t.join()
####
from threading import Thread
def NAME(): pass
t = Thread(target=NAME)
print(getattr(t, "name"))
####
from threading import Thread
def NAME(): pass
t = Thread(target=NAME)
class A: x = t
print(A.x.name)
####
from threading import Thread
def NAME(): pass
def g():
    global t
    t = Thread(target=NAME)
g()
print(t.name)
####
from threading import Thread
def NAME(): pass
t = Thread(target=NAME)
def show(x): print(x.name)
show(t)
####
from threading import Thread
def NAME(): pass
def make():
    t = Thread(target=NAME)
    def again(): return t
    return again
print(make()().name)
####
alpha = 3
from math import *
NAME = 2.5
print(e)
---
alpha = 3
from math import *
e = 2.5
print(e)
####
pi = 3
from math import *
print(pi)
---
api = 3
from math import *
print(api)
####
from math import *
def f(): return tau
x = 1
print(f())
---
from math import *
def f(): return tau
tau = 1
print(f())
####
def get_type_hints(x): return 1
from typing import *
def f(NAME: int): pass
print(get_type_hints(f))
####
from typing import *
def f(NAME: int): pass
print(get_type_hints(f))
####
from functools import *
@singledispatch
def NAME(x): return 1
print(NAME.__name__)
####
def f():
    print(NAME)
    NAME = 1
try: f()
except Exception as e: print(e)
####
def f(NAME): pass
try: f()
except Exception as e: print(f"Error: {e}")
####
def f(NAME): pass
def deco(g):
    def w(): return g()
    return w
f = deco(f)
try: f()
except TypeError as e: print(e)
####
def check(candidate): candidate()
def f(NAME): pass
try: check(f)
except TypeError as e: print(e)
####
def f(x): x.NAME
try: f(1)
except Exception as e: print(e)
####
def NAME(): raise RuntimeError("x")
def g():
    try: NAME()
    except RuntimeError as e: print(e.__traceback__.tb_next.tb_frame.f_code.co_name)
g()
####
def f():
    def NAME(): yield 1
    x = NAME()
    next(x)
    raise RuntimeError(x)
try: f()
except RuntimeError as e: print(str(e)[:35])
####
class P:
    def __init__(self, NAME=0, **k): self.v = NAME, k
import json
print(json.loads('{"alpha": 1}', object_hook=lambda d: P(**d)).v)
####
class P:
    def __init__(self, NAME=0, **k): self.v = NAME, k
def make(cls, pairs): return cls(**dict(pairs))
print(make(P, [("alpha", 1)]).v)
####
from collections import Counter
class C(Counter):
    def update(self, iterable=None, NAME=0, **k): print(NAME, k)
C(alpha=1)
####
from dataclasses import dataclass, field
TEXT = {"x": "ClassVar"}
@dataclass
class A:
    NAME: TEXT["x"] = 1
    y: int = 2
print(A(5))
####
import random
class R(random.Random):
    def random(self, NAME=0): return 0.5
print(R().shuffle([1, 2]))
---
import random
class R(random.Random):
    def random(self, NAME=0): return 0.75
print(R().random())
####
from collections import deque
class D:
    pass
collections = D()
collections.deque = str
def NAME(): yield 1
print(collections.deque(NAME())[:25])
####
import collections
def NAME(): yield 1
x = collections.deque
print(str(NAME())[:24])
####
def NAME(): yield 1
def f(g): return g
print(str(f(NAME()))[:24])
####
def f(g): g.x()
class A:
    def x(self): print(str(NAME)[:16])
def NAME(): pass
f(A())
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    wrapper.calls = 0
    return wrapper
@deco
def NAME(x): return x
NAME.calls += 1
print(NAME.calls, NAME.__name__)
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    wrapper.me = wrapper
    return wrapper
@deco
def NAME(x): return x
print(NAME.me.__name__)
####
from functools import wraps
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args), wrapper.__name__
    return wrapper
@deco
def NAME(x): return x
print(NAME(1))
####
def deco(func):
    @wraps(func)
    def wrapper(*args): return func(*args)
    return wrapper
def wraps(f):
    print(f.__name__)
    return lambda g: g
@deco
def NAME(x): return x
NAME(1)
####
def deco(func):
    def wrapper(*args): return func(*args)
    return wrapper
class A:
    @deco
    def NAME(self): return 1
print(A().alpha() if hasattr(A, "alpha") else 0)
####
def deco(func):
    def wrapper(): yield func()
    return wrapper
@deco
def f(): return 1
print(str(f())[:30])
def NAME(): pass
print(NAME)
####
def NAME(func):
    def wrapper(): yield func()
    return wrapper
@NAME
def f(): return 1
print(str(f())[:33])
####
def NAME(func):
    def wrapper(): return (x for x in [func()])
    return wrapper
@NAME
def f(): return 1
print(str(f())[:33])
####
def NAME(func):
    def wrapper(): return lambda: func()
    return wrapper
@NAME
def f(): return 1
print(f().__qualname__)
####
def NAME(func):
    def wrapper():
        class A: pass
        return A
    return wrapper
@NAME
def f(): return 1
print(f().__qualname__)
####
def outer():
    def deco(func):
        def wrapper():
            def inner(): return func()
            return inner
        return wrapper
    @deco
    def NAME(): return 1
    return NAME
print(outer()().__qualname__, outer().__name__)
def NAME(): pass
print(NAME.__name__)
####
def deco(func):
    if func: return func
    def wrapper(): return 1
    return wrapper
@deco
def NAME(): return 1
print(str(NAME)[:15])
####
def deco(func):
    global saved
    def wrapper(): return func()
    saved = func
    return wrapper
@deco
def NAME(): return 0
print(saved.__name__)
####
def deco(func, seen=[]):
    seen += [func]
    def wrapper(): return seen[0].__name__
    return wrapper
@deco
def NAME(): return 0
print(NAME())
####
def deco(func):
    def wrapper(): return inner(func)
    def inner(g): return g.__name__
    return wrapper
@deco
def NAME(): return 0
print(NAME())
####
def deco(func):
    def wrapper(f=func): return f.__name__
    return wrapper
@deco
def NAME(): return 0
print(NAME())
####
def deco(func):
    def wrapper(): return [f.__name__ for f in (func,)]
    return wrapper
@deco
def NAME(): return 0
print(NAME())
####
def deco(func):
    def wrapper(): return func()
    return wrapper
@deco
def NAME(): return 0
def show(f): return f.__name__
print(show(deco))
@deco
def g(): return NAME
print(g().__name__)
def h(): return NAME
def alpha(): pass
print([x.__name__ for x in (h, NAME)])
####
def show(f): print(f.__name__)
def run(f): f(run)
def NAME(): pass
def alpha1(g): show(NAME)
run(alpha1)
####
def run(f, *args): f(*args)
def NAME(): pass
run(print, str(NAME)[:15])
run(lambda g: print(g.__name__), NAME)
####
def run(f, x): f(x)
def NAME(): pass
def show(f): print(f.__name__)
run(show, NAME)
####
def run(f): f.me = 1; print(f.__name__)
def NAME(): pass
run(NAME)
####
def run(f): return f if f else 1
def NAME(): pass
print(run(NAME).__name__)
####
def run(f): return (f, 1)
def NAME(): pass
print(run(NAME)[0].__name__)
####
def run(f):
    def inner(): return f
    return inner
def NAME(): pass
print(run(NAME)().__name__)
####
def run(f):
    try: raise ValueError(f)
    except ValueError as e: return e.args[0]
def NAME(): pass
print(run(NAME).__name__)
####
def run(f):
    del f
def run2(f):
    with open(0) as g: print(f)
def NAME(): pass
run(NAME); run2(str(NAME)[:14])
####
def run(f): print(f == NAME, f in [str], type(f).__name__)
def NAME(): pass
run(NAME); print(NAME.__name__)
####
def run(f, /): return str(f)[:15]
def NAME(): pass
print(run(NAME))
####
def run(a, /, f): return f.__name__
def NAME(): pass
print(run(1, NAME))
####
def run(f, g): return g.__name__
def NAME(): pass
def x(): pass
print(run(x, NAME))
####
def run(f): f()
run = [print][0]
def NAME(): pass
run(NAME.__name__)
####
def run(f): f()
def other():
    def run(f): print(f.__name__)
    run(NAME)
def NAME(): pass
other()
####
def other():
    global run
    def run(f): print(f.__name__)
def run(f): f()
other()
def NAME(): pass
run(NAME)
####
def run(f): f()
for run in [lambda f: print(f.__name__)]: pass
def NAME(): pass
run(NAME)
####
def run(f): f()
import sys
from functools import partial as run2
def NAME(): pass
run2(print, NAME.__name__)()
####
def run(f): f()
class run:
    def __init__(self, f): print(f.__name__)
def NAME(): pass
run(NAME)
####
def run(f): f()
try: 1 / 0
except ZeroDivisionError as run: pass
def run(f): print(f.__name__)
def NAME(): pass
run(NAME)
####
def h(**kw): return g(**kw)
def g(NAME=0, **k): return NAME, k
def call(f, d): return f(**d)
print(call(h, {"alpha": 1}))
####
def h(**kw): return g(**kw)
def g(NAME=0, **k): return NAME, k
import json
print(h(**json.loads('{"alpha": 1}')))
####
def h(**kw):
    m = kw.update
    m(alpha=1)
    return g(**kw)
def g(NAME=0, **k): return NAME, k
print(h())
####
def h(**kw):
    kw.get.__self__["alpha"] = 1
    return g(**kw)
def g(NAME=0, **k): return NAME, k
print(h())
####
def h(**kw):
    kw2 = kw
    kw2["alpha"] = 1
    return g(**kw)
def g(NAME=0, **k): return NAME, k
print(h())
####
def h(**kw):
    def set_():
        kw["alpha"] = 1
    set_()
    return g(**kw)
def g(NAME=0, **k): return NAME, k
print(h())
####
def h(**kw):
    dict.update(kw, alpha=1)
    return g(**kw)
def g(NAME=0, **k): return NAME, k
print(h())
####
class A(dict):
    def m(self, **kw): return g(**kw)
def g(NAME=0, **k): return NAME, k
x = A(alpha=1)
print(A.m(x, **x))
####
def g(NAME=0, **k): return NAME, k
from collections import namedtuple
P = namedtuple("P", "alpha")
print(g(**P(1)._asdict()))
####
def g(NAME=0, **k): return NAME, k
print(g(**dict(zip(["alpha"], [1]))))
####
def g(NAME=0, **k): return NAME, k
def h(**kw):
    match kw:
        case {"x": _, **kw}: pass
    return g(**kw)
print(h(x=1, y=2), g(alpha=2))
####
from dataclasses import dataclass
@dataclass
class P:
    alpha: int
def g(NAME=0, **k): return NAME, k
from dataclasses import asdict
print(asdict(P(1), dict_factory=lambda kv: g(**dict(kv))))
####
from functools import reduce
def f(NAME, acc=0, **k): return NAME
g = lambda d: (lambda NAME=0, **k: NAME)(**d)
print(reduce(f, [1, 2]), list(map(g, [{"alpha": 5}])))
####
from itertools import starmap
from functools import partial
def f(NAME=0, **k): return NAME
p = partial(f, alpha=4)
print(p())
####
import re
def f(NAME=0, **k): return str(NAME)
print(re.sub("(?P<alpha>a)", lambda m: f(**m.groupdict()), "a"))
""",
}

#: Programs, and tests that look at their names or lines, after `>>>`.
TESTS = """
def f(x):
    NAME = 1
    return x
>>>
print(f.__code__.co_varnames)
####
def f(x):
    def NAME(): return x
    return NAME
>>>
print(f(1).__name__)
####
def f(x):
    def NAME(): return x
    return NAME
>>>
g = f(1)
print(repr(g)[:30])
####
def _f(NAME=0, **k): return NAME, k
>>>
print(_f(alpha=1))
####
class A:
    def _m(self, NAME=0, **k): return NAME, k
>>>
print(A()._m(alpha=1))
####
class A:
    def _m(self, NAME=0, **k): return NAME, k
>>>
print(getattr(A(), "_m")(alpha=1))
####
class A:
    def _m(self, NAME=0, **k): return NAME, k
>>>
from operator import methodcaller
print(methodcaller("_m", alpha=1)(A()))
####
def f(x):
    print(NAME)
    NAME = 1
>>>
try: f(1)
except Exception as e: print(e)
####
def f(x):
    print(NAME)
    NAME = 1
>>>
try: f(1)
except NameError as e: print(e.args)
####
def f(x):
    LINE
    return 1 / x
>>>
import traceback
try: f(0)
except ZeroDivisionError as e: print(traceback.extract_tb(e.__traceback__)[-1].lineno)
####
def f(x):
    LINE
    return 1 / x
>>>
try: f(0)
except ZeroDivisionError as e: print(e.__traceback__.tb_next.tb_lineno)
####
import sys as s
def f(x):
    LINE
    return 1 / x
>>>
try: f(0)
except ZeroDivisionError: print(s.exc_info()[2].tb_next.tb_lineno)
####
import sys as s
def f(x):
    LINE
    return 1 / x
>>>
try: f(0)
except ZeroDivisionError: print(s._getframe(0), s.exc_info()[2].tb_next.tb_frame.f_lineno)
####
def f(x):
    'NAME'
    return x
>>>
print(f.__doc__)
####
def f(x: "NAME"):
    return x
>>>
print(f.__annotations__)
####
def f(x: "NAME"):
    return x
>>>
import typing
try: print(typing.get_type_hints(f))
except NameError as e: print(e)
####
ValueError = Exception
def f(x):
    print(NAME)
    NAME = 1
>>>
try: f(1)
except ValueError as e: print(e)
####
class ValueError(NameError): pass
IndexError = UnboundLocalError
def f(x):
    print(NAME)
    NAME = 1
>>>
try: f(1)
except IndexError as e: print(e)
####
def f(x):
    def NAME(): yield x
    return NAME()
>>>
print(str(f(1))[:30])
####
def f(x):
    return (NAME for NAME in [x])
>>>
g = f(1)
print(g.gi_code.co_varnames)
####
def f(x):
    NAME = 3
    yield x
    yield x
>>>
g = f(1); next(g)
print(g.gi_frame.f_locals)
####
def f(g):
    NAME = 3
    return g()
>>>
print(sorted(f(vars)))
####
def f(g):
    NAME = 3
    return g()
>>>
print(sorted(f(locals)))
####
def f(g):
    NAME = 3
    return g()
>>>
import sys
print(sorted(f(lambda: sys._getframe(1).f_locals)))
####
def f(g):
    NAME = 3
    return g()
>>>
print(sorted(f(dir)))
####
def f(x):
    NAME = lambda: x
    return {"k": NAME}
>>>
print(f(1)["k"].__qualname__, f.__code__.co_varnames)
####
def deco(func):
    def NAME(*a): return func(*a)
    return NAME
@deco
def f(x): return x
>>>
print(f.__name__)
####
def deco(func):
    def wrapper(*a, **kwargs): return func(*a, **kwargs)
    return wrapper
def outer():
    @deco
    def g(NAME=0, **k): return NAME, k
    return g
>>>
print(outer()(alpha=1))
####
def outer():
    def g(NAME=0, **k): return NAME, k
    def h(**kwargs): return g(**kwargs)
    return h
>>>
print(outer()(alpha=1))
####
def outer():
    def g(NAME=0, **k): return NAME, k
    class A:
        def m(self, **kwargs): return g(**kwargs)
    return A()
>>>
print(outer().m(alpha=1))
####
def outer():
    def g(NAME=0, **k): return NAME, k
    return g
def run(c): return c()
>>>
print(outer()(alpha=1), run(outer()))
####
def run(c):
    def NAME(): return c()
    return apply(NAME)
def apply(g): return g()
>>>
def apply(g): return g.__name__
print(run(lambda: 1))
####
def run(c):
    def NAME(x=0, **k): return x
    return apply(NAME)
def apply(g): return g()
>>>
apply = lambda g: g.__name__
print(run(lambda: 1))
####
def run(c):
    def g(NAME=0, **k): return NAME
    return apply(g)
def apply(g): return g()
>>>
def apply(g): return g(alpha=1)
print(run(lambda: 1))
####
from threading import Thread
def run(c):
    def NAME(): return c()
    t = Thread(target=NAME)
    t.start()
    t.join()
>>>
import threading
run(lambda: print(threading.current_thread().name))
####
def run(c):
    def NAME(x): return x
    return list(map(NAME, [1]))
>>>
def map(f, x): return [f.__name__]
print(run(1))
####
def run(c):
    def NAME(x): return x
    return sorted([1], key=NAME)
>>>
import builtins
builtins.sorted = lambda x, key: key.__name__
print(run(1))
####
def run(c):
    def f(NAME=0, **k): return NAME, k
    return max([1], key=f)
>>>
max = lambda x, key: key(alpha=1)
print(run(1))
####
class A:
    def go(self, c):
        def NAME(): pass
        return self.use(NAME)
    def use(self, f): return f
>>>
A.use = lambda self, f: f.__name__
print(A().go(1))
####
def f(x):
    try:
        return NAME
    except ValueError as e:
        return e
    NAME = 1
>>>
ValueError = NameError
print(f(1))
####
def f(x):
    try:
        return NAME
    except ValueError as e:
        return str(e)
    NAME = 1
>>>
ValueError = Exception
print(f(1))
####
def f(x):
    return isinstance(x, int)
def g():
    def NAME(): pass
    return isinstance(NAME, int)
>>>
isinstance = lambda a, b: a.__name__
print(g())
####
def run(c):
    def NAME(): return c()
    return go(NAME)
def go(g): return g()
>>>
def show(): return 1
go2 = go
class go:
    def __new__(cls, g): return g.__name__
print(run(show))
####
class go:
    def __init__(self, g): self.g = g
def run(c):
    def NAME(): return c
    return go(NAME)
>>>
print(run(1).g.__name__)
####
def run(xs):
    def NAME(): yield 1
    xs.extend(NAME())
    return xs
>>>
class X:
    def extend(self, g): self.s = str(g)[:36]
print(run(X()).s)
####
def run(xs):
    def NAME(x): return 1
    xs.sort(key=NAME)
    return xs
>>>
class X:
    def sort(self, key): self.s = key.__name__
print(run(X()).s)
####
def run(xs):
    def NAME(x): return 1
    xs.sort(key=NAME)
    return xs
>>>
from types import FunctionType
class X: pass
x = X()
x.sort = lambda key: print(key.__name__)
run(x)
####
def run(xs):
    def f(NAME=0, **k): return NAME
    xs.sort(key=f)
>>>
class X:
    def sort(self, key): print(key(alpha=1))
run(X())
####
from functools import reduce
def run(xs):
    def NAME(a, b): return 1
    return reduce(NAME, xs)
>>>
def reduce(f, xs): return f.__name__
print(run([1, 2]))
####
from functools import *
def run(xs):
    def NAME(a, b): return 1
    return reduce(NAME, xs)
>>>
reduce = lambda f, xs: f.__name__
print(run([1, 2]))
####
def run(xs):
    def NAME(a, b): return 1
    return reduce(NAME, xs)
>>>
def reduce(f, xs): return f.__name__
print(run([1, 2]))
####
def run(xs):
    def NAME(): yield 1
    return sum(NAME())
>>>
for sum in [lambda g: str(g)[:32]]: print(run(1))
####
def run(xs):
    def NAME(): yield 1
    return any(NAME())
>>>
import builtins as b
print(b.__dict__.update(any=lambda g: str(g)[:32]) or run(1))
####
import math as m
def run(xs):
    def NAME(): yield 1
    return m.prod(NAME())
>>>
class m:
    prod = staticmethod(lambda g: str(g)[:33])
print(run(1))
####
class E(Exception): pass
def run():
    try: return NAME
    except E as e: return str(e)
    NAME = 1
>>>
E = NameError
print(run())
####
class E(Exception): pass
def run():
    try: return NAME
    except E as e: return str(e)
    NAME = 1
>>>
from builtins import NameError as E
print(run())
####
class A:
    def go(self, _x=0): return _x
class Thread:
    def m(self):
        def NAME(): pass
        return use(NAME)
def use(f): return f()
>>>
def g():
    global use
    def use(f): return f.__name__
g()
print(Thread().m())
"""


def pairs() -> Iterator[Any]:
    """Yield two programs each, with the class of the pair."""
    for kind, text in TEMPLATES.items():
        for number, block in enumerate(text.strip("\n").split("\n####\n")):
            if "\n---\n" in block:
                first, second = block.split("\n---\n")
                first = first.replace("NAME", "alpha")
                second = second.replace("NAME", "beta")
            else:
                first = block.replace("NAME", "alpha").replace("LINE", "")
                second = block.replace("NAME", "beta").replace("LINE", "\n\n")
            name = f"{kind}-{number}".replace(" ", "-")
            yield pytest.param(first.strip("\n") + "\n", second.rstrip("\n") + "\n", id=name)


def pairs_with_tests() -> Iterator[tuple[str, str, str]]:
    """Yield two programs each, with their tests."""
    for block in TESTS.strip("\n").split("\n####\n"):
        program, tests = block.split("\n>>>\n")
        first = program.replace("NAME", "alpha").replace("LINE", "pass")
        second = program.replace("NAME", "beta").replace("LINE", "pass\n\n\n")
        yield first + "\n", second + "\n", tests + "\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.mark.parametrize("level", ["stdin", "unit"])
@pytest.mark.parametrize(("first", "second"), list(pairs()))
def test_programs_that_behave_differently_have_different_keys(first: str, second: str, level: Any):
    assert normal_form(first, level=level) != normal_form(second, level=level)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(pairs()))
def test_these_programs_behave_differently(first: str, second: str, runner: Runner):
    assert runner.behavior(first) != runner.behavior(second), "the pair proves nothing"


@pytest.mark.parametrize(("first", "second", "tests"), list(pairs_with_tests()))
def test_programs_that_tests_distinguish_have_different_keys(first: str, second: str, tests: str):
    names = names_of_tests("", [tests])
    if names is not None:
        keys = {normal_form(each, level="unit", tests=names) for each in (first, second)}
        assert len(keys) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "tests"), list(pairs_with_tests()))
def test_tests_distinguish_these_programs(first: str, second: str, tests: str, runner: Runner):
    assert runner.behavior(first + tests) != runner.behavior(second + tests)
