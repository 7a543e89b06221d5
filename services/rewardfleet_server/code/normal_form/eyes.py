"""The words with which a program looks at its own names, docstrings, hints, lines or text.

Every list is of what the standard library and the best known packages hold. Where a word is on one
by accident (a method called `query`), a program only loses a chance to share its key.
"""

import re


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Names, attributes and modules that lead to the source, to its lines, or to any local by name.
TEXT = words("""
    ag_code ag_frame argv asyncio bdb __cached__ __code__ cProfile cr_code cr_frame _current_frames
    dis dup2 exc_info excepthook f_back f_code f_globals f_lineno f_locals faulthandler __file__
    __firstlineno__ format_exc formatwarning funcName get_objects get_referents get_referrers
    _getframe _getframemodulename gi_code gi_frame glob iglob importlib inspect iterdir linecache
    lineno listdir __loader__ modulefinder orig_argv pdb pkgutil print_exc print_exception profile
    pyclbr rglob runpy scandir setprofile settrace showwarning __spec__ stack_info symtable tb_frame
    tb_lineno tb_next TestResult TextTestResult TextTestRunner tokenize trace __traceback__
    traceback tracemalloc unraisablehook zipimport
""")

#: Likewise, of these modules alone.
TEXT_OF_MODULES = {"os": words("fwalk walk")}

#: A string that may be the path of a program, and one with which logging writes lines and names.
PATH = re.compile(r"\.pyw?\b|/proc/")
LOG_FORMAT = re.compile(r"[%{$][({]?(?:filename|funcName|lineno|module|pathname)\b")

#: The same anywhere, where a program is too odd to be read closely: it may run any string.
TEXT_ANYWHERE = re.compile(
    rf"\b(?:{'|'.join(sorted(TEXT))}|doctest|logging)\b|{PATH.pattern}|{LOG_FORMAT.pattern}"
)

#: Builtins that look at names, where the program has no variable of its own so called.
NAMES = words("""
    __annotations__ breakpoint __builtins__ compile dir eval exec execfile globals help __import__
    locals reload vars
""")

#: Attributes, or things imported, that look at names.
NAMES_OF = words("""
    __annotate__ __annotations__ __builtins__ __cause__ __closure__ __context__ __dir__ displayhook
    exception get_annotations get_overloads get_type_hints __getattribute__
    __globals__ __import__ __kwdefaults__ modules __prepare__ return_exceptions __signature__
    signature singledispatch singledispatchmethod __text_signature__ __type_params__
""")

#: The same, of modules that look at their caller's names: numpy.bmat("A B"), frame.query("a > @b").
NAMES_OF_MODULES = {
    "numpy": words("bmat who"),
    "pandas": words("eval query"),
    "contextlib": words("push push_async_exit"),  # a callback is given the error
    "multiprocessing": words("error_callback"),
    "unittest": words("assertRaisesRegex"),
}

#: What takes an attribute by a word.
GETTERS = words("attrgetter getattr methodcaller")

#: What shows the names of functions and classes, but of nothing else.
DEFINITIONS = words("""
    ascii __base__ __bases__ __class__ concurrent __dict__ __format__ __func__ __mro__ mro
    multiprocessing __name__ __objclass__ pickle pprint __qualname__ __reduce__ __reduce_ex__
    __repr__ repr reprlib __self__ shelve __str__ __subclasses__
""")
DEFINITIONS_IN_STRINGS = re.compile(r"%[-#0 +\d.]*[ra]|![ra]")

#: What shows docstrings. (A doctest also shows lines; only to those who see what is printed.)
DOCSTRINGS = words("__dict__ __doc__ doctest unittest")

#: Callables that call by keywords which are not written as such, and keywords that name some.
KEYWORDS = words("""
    argparse enter enterabs kw kwargs kwds matplotlib multiprocessing networkx numpy pandas Process
    scipy seaborn sklearn Thread Timer tqdm unittest
""")

#: What turns things to text that the program may then look at.
MAKES_TEXT = words("StringIO file format getvalue redirect_stdout str")

#: Modules of which I know that only the words above look at names. Any other may look.
MODULES = words("""
    abc argparse array ast atexit base64 binascii bisect bs4 bz2 calendar cmath codecs collections
    colorsys concurrent configparser contextlib contextvars copy csv dataclasses datetime decimal
    difflib doctest email enum errno fnmatch fractions functools __future__ getpass gzip hashlib
    heapq hmac html http io ipaddress itertools json keyword locale logging lzma math matplotlib
    multiprocessing numbers numpy operator os pandas pathlib pickle platform pprint queue random re
    reprlib requests sched scipy secrets select selectors shutil signal sklearn socket socketserver
    sqlite3 ssl stat statistics string struct subprocess sys tarfile tempfile textwrap threading
    time types typing typing_extensions unicodedata unittest urllib uuid warnings weakref xml
    zipfile zlib zoneinfo
""")

#: Where callables take a function that they call by position and give to nobody; -1: as `key=`.
BORROWERS = {
    "accumulate": 1,
    "dropwhile": 0,
    "filter": 0,
    "filterfalse": 0,
    "groupby": 1,
    "isinstance": 1,
    "issubclass": 1,
    "map": 0,
    "max": -1,
    "merge": -1,
    "min": -1,
    "nlargest": -1,
    "nsmallest": -1,
    "reduce": 0,
    "sort": -1,
    "sorted": -1,
    "starmap": 0,
    "takewhile": 0,
}

#: Decorators whose function is still called in the same ways, and shows its name to no one.
WRAPPERS = words("cache lru_cache wraps")
METHOD_WRAPPERS = WRAPPERS | words("abstractmethod classmethod property setter staticmethod")

#: Attributes of what these make.
OF_WRAPPERS = words("cache_clear cache_info")

#: Errors of which the interpreter's text never names a variable, a function or a class.
NAMELESS_ERRORS = words("""
    ArithmeticError AssertionError BlockingIOError BrokenPipeError BufferError ConnectionError
    EOFError FileExistsError FileNotFoundError FloatingPointError IndexError InterruptedError
    IOError IsADirectoryError KeyboardInterrupt KeyError LookupError MemoryError NotADirectoryError
    NotImplementedError OSError OverflowError PermissionError RecursionError StopAsyncIteration
    StopIteration TimeoutError UnicodeDecodeError UnicodeEncodeError UnicodeError ValueError
    ZeroDivisionError
""")
