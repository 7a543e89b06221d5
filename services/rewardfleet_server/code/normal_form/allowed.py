"""What a program may use so that its local names and line numbers are certainly unobservable.

A word that is missing costs cache hits; a word too many may cost a wrong score. So an entry needs a
reason: nothing that it gives access to shows the name of a local variable or a line number, or
makes a class with methods of computed names.
"""

import builtins
import configparser
import types
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


ALL_BUILTINS = frozenset(dir(builtins)) | words("copyright credits exit license quit")

_ERRORS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)

#: Builtins without access to local names. Those of classes and functions are kept.
BUILTINS = _ERRORS | words("""
    Ellipsis NotImplemented __name__ abs all any ascii bin bool bytearray bytes callable chr
    classmethod complex delattr dict divmod enumerate exit filter float format frozenset getattr
    hasattr hash hex id input int isinstance issubclass iter len list map max memoryview min next
    object oct open ord pow print property quit range repr reversed round set setattr slice sorted
    staticmethod str sum super tuple type zip
""")

OTHER_BUILTINS = ALL_BUILTINS - BUILTINS

#: Builtins that are only allowed in calls that the writer has checked.
CALLED_ONLY = words("delattr getattr hasattr open setattr type")

#: Methods that Python calls by position, and that get neither names nor errors. `__exit__` gets an
#: error, and is checked. `__del__` is not here: the order of destruction depends on names.
SPECIAL_METHODS = frozenset(
    f"__{name}__"
    for name in words("""
    abs add and bool bytes call ceil class_getitem complex contains copy deepcopy delitem divmod
    enter eq exit float floor floordiv format ge get getitem gt hash iadd iand ifloordiv ilshift
    imatmul imod imul index init init_subclass int invert ior ipow irshift isub iter itruediv ixor
    le len length_hint lshift lt matmul missing mod mul ne neg new next or pos post_init pow radd
    rand rdivmod repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift
    rsub rtruediv rxor set set_name setitem str sub truediv trunc xor
    """)
)

#: Attributes with two underscores that a program may read. `__init__` is checked: it opens the
#: file of a library's object again. `__set_name__` makes an attribute of a computed name.
SPECIAL_ATTRIBUTES = (SPECIAL_METHODS - words("__set_name__")) | words("__name__ __qualname__")
SPECIAL_NAMES = words("__name__")  #: variables with two underscores that a program may read
#: Methods that a program may give to a class afterwards.
SETTABLE_METHODS = words("__eq__ __ge__ __gt__ __hash__ __le__ __lt__ __repr__ __str__")


def _public(module: ModuleType) -> frozenset[str]:
    names = getattr(module, "__all__", dir(module))  # those of C have no __all__, and no imports
    return frozenset(name for name in names if not name.startswith("_"))


def _modules() -> dict[str, frozenset[str]]:
    """Return what a program may use of each module, as `allowed.ini` lists it."""
    tables = configparser.ConfigParser()
    tables.read(Path(__file__).with_suffix(".ini"), encoding="utf-8")
    found = {name: words(listed) for name, listed in tables["only"].items()}
    for name, left_out in tables["all but"].items():
        found[name] = _public(import_module(name)) - words(left_out)
    return found


MODULES = _modules()

#: Modules all of whose names a program may import. Setups of data sets do.
STAR_MODULES = words("""
    bisect builtins cmath collections copy datetime decimal fractions functools heapq io itertools
    json math operator queue random re statistics string sys time typing
""")


def star_names(module: str) -> frozenset[str]:
    """Return what a program may use of the names that a star import binds."""
    if module == "builtins":
        return BUILTINS
    return frozenset(
        name for name in MODULES[module] if "(" not in name and f"{module}.{name}" not in MODULES
    )


@cache
def unlisted_names(module: str) -> frozenset[str]:
    """Return what a star import binds that a program may not use, and more than constants."""
    constants = (int, float, str, tuple, list, frozenset)
    values = import_module(module)
    names = {name for name in _public(values) if not isinstance(getattr(values, name), constants)}
    return frozenset(names) - star_names(module)


#: Private attributes of the classes that `namedtuple` makes.
PRIVATE_ATTRIBUTES = words("_asdict _fields _make _replace")

#: Attributes with which the interpreter writes to standard error, or `redirect_stdout` finds it.
#: Who sets them, sees tracebacks.
OF_STDERR = words("_stream buffer encoding errors fileno flush isatty write")

#: Attributes that lead from objects to code, frames and names, whoever else has them; and
#: `format_map`, whose text may name such an attribute, and those with which numpy opens memory.
INTROSPECTIVE = frozenset().union(
    *(
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (
            *(types.FrameType, types.CodeType, types.TracebackType, types.GeneratorType),
            *(types.CoroutineType, types.AsyncGeneratorType, type),
        )
    )
) - words("close send throw clear replace") | words("cffi ctypes format_map")

#: Builtin classes and those of libraries that a class may extend. They call its methods by
#: position, and no method of theirs runs when an object is destroyed.
BASES = _ERRORS | words("""
    ABC Counter Generic NamedTuple OrderedDict Protocol Thread TypedDict UserDict UserList bytes
    defaultdict deque dict float frozenset int list object set str tuple
""")
#: Builtin types with which the type of an object may be compared.
TYPES = words("""
    bool bytearray bytes complex dict float frozenset int list object set str tuple
""")
#: Callables that show the type of an object to nobody, but as text.
TYPE_CONSUMERS = words("isinstance issubclass print repr str")
#: Decorators that return the class that they get.
CLASS_WRAPPERS = words("dataclass total_ordering")

#: Errors whose texts never name a local variable. Those of functions and parameters are kept.
NAMELESS_ERRORS = _ERRORS - words("""
    BaseException BaseExceptionGroup Exception ExceptionGroup NameError UnboundLocalError
""")

#: Errors that do not end a generator.
ORDINARY_ERRORS = NAMELESS_ERRORS - words("GeneratorExit") | words("Exception NameError")

#: Kinds of nodes that are asynchronous, or newer than this analysis.
OTHER_NODES = words("""
    AsyncFor AsyncFunctionDef AsyncWith Await Interpolation ParamSpec TemplateStr TypeAlias TypeVar
    TypeVarTuple
""")
