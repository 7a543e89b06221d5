"""What a program may use so that its local names and line numbers are certainly unobservable.

Builtins, modules, base classes and attributes with underscores that are not listed here make a
program's key its text. A word that is missing costs cache hits; a word too many may cost a wrong
score. So an entry needs a reason: nothing that it gives access to shows the name of a local
variable or a line number, or makes a class with methods of computed names.
"""

import builtins
import types
from functools import cache
from importlib import import_module
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
#: Variables with two underscores that a program may read.
SPECIAL_NAMES = words("__name__")
#: Methods that a program may give to a class afterwards.
SETTABLE_METHODS = words("__eq__ __ge__ __gt__ __hash__ __le__ __lt__ __repr__ __str__")


def _public(module: ModuleType, but: str = "") -> frozenset[str]:
    names = getattr(module, "__all__", dir(module))  # those of C have no __all__, and no imports
    return frozenset(name for name in names if not name.startswith("_")) - words(but)


def _modules() -> dict[str, frozenset[str]]:
    """Return what a program may use of each module. A path like `os.path` is a module, too."""
    # ruff: noqa: PLC0415 - their attributes are listed, and the names are those of attributes
    import bisect
    import cmath
    import heapq
    import itertools
    import math
    import operator
    import random
    import statistics
    import string

    return {
        "__future__": words("""
            absolute_import annotations division generator_stop generators nested_scopes
            print_function unicode_literals with_statement
        """),
        "abc": words("ABC abstractmethod"),
        "array": words("array"),
        "ast": words("literal_eval"),
        "base64": words("b16decode b16encode b32decode b32encode b64decode b64encode b85decode"),
        "binascii": words("Error a2b_base64 b2a_base64 crc32 hexlify unhexlify"),
        "bisect": _public(bisect),
        "calendar": words("day_name isleap leapdays month_name monthrange weekday"),
        "cmath": _public(cmath),
        "collections": words("""
            ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque namedtuple
        """),
        "collections.abc": words("""
            Callable Collection Container Generator Hashable ItemsView Iterable Iterator KeysView
            Mapping MutableMapping MutableSequence MutableSet Reversible Sequence Set Sized
            ValuesView
        """),
        "contextlib": words("closing nullcontext redirect_stdout suppress"),
        "copy": words("copy deepcopy"),
        "csv": words("DictReader DictWriter QUOTE_ALL QUOTE_MINIMAL reader writer"),
        "dataclasses": words("FrozenInstanceError asdict astuple dataclass field"),
        "datetime": words("MAXYEAR MINYEAR UTC date datetime time timedelta timezone"),
        "decimal": words("""
            Context Decimal DivisionByZero InvalidOperation Overflow ROUND_CEILING ROUND_DOWN
            ROUND_FLOOR ROUND_HALF_DOWN ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP getcontext
            localcontext
        """),
        "fractions": words("Fraction"),
        "functools": words("""
            cache cached_property cmp_to_key lru_cache partial reduce total_ordering wraps
        """),
        "gc": words("disable enable freeze isenabled set_threshold"),
        "hashlib": words("blake2b blake2s md5 new sha1 sha224 sha256 sha384 sha512"),
        "heapq": _public(heapq),
        "io": words("BytesIO StringIO"),
        "itertools": _public(itertools),
        "json": words("JSONDecodeError dump dumps load loads"),
        "math": _public(math),
        "numbers": words("Complex Integral Number Rational Real"),
        "numpy": _NUMPY,
        "numpy.linalg": words("LinAlgError det eig eigh eigvals inv lstsq matrix_power norm solve"),
        "numpy.random": words("choice default_rng normal permutation rand randint randn seed"),
        "operator": _public(operator, but="attrgetter call methodcaller"),
        "os": words("_exit environ fspath fstat(0) getenv linesep read(0) sep urandom write"),
        "os.path": words("basename dirname exists isdir isfile join split splitext"),
        "pprint": words("pformat pprint"),
        "queue": words("Empty Full LifoQueue PriorityQueue Queue SimpleQueue"),
        "random": _public(random),
        "re": words("""
            A ASCII DOTALL I IGNORECASE M MULTILINE Match Pattern S VERBOSE X compile error escape
            findall finditer fullmatch match search split sub subn
        """),
        "secrets": words("choice randbelow randbits token_hex"),
        "sortedcontainers": words("SortedDict SortedKeyList SortedList SortedSet"),
        "statistics": _public(statistics),
        "string": _public(string, but="Formatter Template"),
        "struct": words("Struct calcsize error pack pack_into unpack unpack_from"),
        # Not `intern`: a string is interned already if a variable has its name.
        "sys": words("""
            __stdin__ __stdout__ argv byteorder exit float_info getrecursionlimit hash_info int_info
            maxsize maxunicode platform set_int_max_str_digits setrecursionlimit stderr stdin stdout
            version version_info
        """),
        # It has the interpreter's messages, so it is no value. Only `print` may have it.
        "sys.stderr": words("flush write"),
        "textwrap": words("dedent fill indent shorten wrap"),
        "threading": words("""
            Barrier BoundedSemaphore Condition Event Lock RLock Semaphore Thread stack_size
        """),
        "time": words("""
            monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns sleep
            strftime time time_ns
        """),
        "typing": words("""
            AbstractSet Any AnyStr Callable ClassVar Collection Container Counter DefaultDict Deque
            Dict Final FrozenSet Generator Generic Hashable Iterable Iterator KeysView List Literal
            Mapping MutableMapping MutableSequence MutableSet NamedTuple NewType NoReturn Optional
            OrderedDict Protocol Reversible Self Sequence Set Sized SupportsFloat SupportsInt
            TYPE_CHECKING Text Tuple Type TypeAlias TypeVar TypedDict Union ValuesView cast final
        """),
        "unicodedata": words(
            "bidirectional category combining east_asian_width name normalize numeric"
        ),
        "uuid": words("UUID uuid4"),
        "warnings": words("filterwarnings(ignore) simplefilter(ignore)"),
        "zlib": words("adler32 compress crc32 decompress"),
    }


#: Without what takes functions of the program, or looks at its caller.
_NUMPY = words("""
    abs absolute add all allclose amax amin any append arange arccos arcsin arctan arctan2 argmax
    argmin argsort argwhere around array array_equal array_split asarray average bincount
    bitwise_and bitwise_or bitwise_xor block bool_ broadcast_to c_ ceil clip column_stack complex128
    concatenate convolve copy cos count_nonzero cross cumprod cumsum deg2rad delete diag diagonal
    diff digitize divide dot dstack e einsum empty empty_like equal exp expand_dims eye
    fill_diagonal flatnonzero flip fliplr flipud float32 float64 floor floor_divide fmax fmin full
    full_like gcd gradient greater histogram hsplit hstack hypot identity iinfo inf inner
    insert int16 int32 int64 int8 intersect1d invert isclose isfinite isin isinf isnan kron lcm less
    lexsort linspace log log10 log1p log2 logical_and logical_not logical_or logical_xor logspace
    matmul maximum mean median meshgrid min minimum mod moveaxis max multiply nan nan_to_num nanmax
    nanmean nanmin nansum ndarray ndenumerate ndim ndindex newaxis nonzero not_equal ones ones_like
    outer pad percentile pi power prod ptp put_along_axis quantile rad2deg ravel reciprocal
    remainder repeat reshape roll rollaxis rot90 round searchsorted setdiff1d shape sign sin size
    sort split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan tanh
    tensordot tile trace transpose tri tril triu trunc uint16 uint32 uint64 uint8 union1d unique
    unravel_index var vdot vsplit vstack where zeros zeros_like
""")

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
