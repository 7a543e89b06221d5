"""What a program may use so that its names and line numbers are certainly unobservable.

Everything that is not listed here makes a program's key that of its text. A word that is missing
costs cache hits; a word too many may cost a wrong score. So an entry needs a reason: nothing that
it gives access to shows the name of a variable or a line number, and it calls functions of the
program by position, or by keywords that are written in the program.
"""

import builtins
import types
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

#: Builtins without access to names. A class's name is in the text of its instances, and a
#: function's in its own: such names are kept, so conversions to text are no matter.
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

#: Attributes with two underscores that a program may read. They show names that are kept.
#: `__class__` and `__init__` are checked by the writer: they lead to the class of a library's
#: object, and open it again. `__set_name__` makes an attribute of a computed name.
SPECIAL_ATTRIBUTES = (SPECIAL_METHODS - words("__init__ __set_name__")) | words(
    "__name__ __qualname__"
)
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
        "abc": words("ABC ABCMeta abstractmethod"),
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
        "enum": words("Enum Flag IntEnum IntFlag StrEnum auto unique"),
        "fractions": words("Fraction"),
        "functools": words("""
            cache cached_property cmp_to_key lru_cache partial reduce total_ordering wraps
        """),
        "gc": words("disable enable freeze isenabled set_threshold"),
        "hashlib": words("blake2b blake2s md5 new sha1 sha224 sha256 sha384 sha512"),
        "heapq": _public(heapq),
        "io": words("BytesIO IOBase StringIO"),
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
        # It has the interpreter's messages, so it is no value. The writer allows `print(file=)`.
        "sys.stderr": words("flush write"),
        "textwrap": words("dedent fill indent shorten wrap"),
        "threading": words("""
            Barrier BoundedSemaphore Condition Event Lock RLock Semaphore Thread stack_size
        """),
        "time": words("""
            monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns sleep
            strftime time time_ns
        """),
        "types": words("FunctionType GeneratorType LambdaType MappingProxyType"),
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

#: What a star import of a module binds, also with versions of Python other than this one.
STAR_NAMES = {
    name: _public(import_module(name)) | words(more)
    for name, more in {
        **dict.fromkeys(words("bisect cmath collections fractions string time"), ""),
        "copy": "replace",
        "decimal": "IEEEContext IEEE_CONTEXT_MAX_BITS",
        "functools": "Placeholder",
        "heapq": "heapify_max heappop_max heappush_max heappushpop_max heapreplace_max",
        "itertools": "batched pairwise",
        "math": """
            cbrt exp2 fma fmax fmin integer isnormal issubnormal lcm nextafter signbit sumprod ulp
        """,
        "queue": "ShutDown",
        "random": "binomialvariate randbytes",
        "statistics": "kde kde_random",
        "typing": """
            ByteString NoDefault NoExtraItems ReadOnly TypeAliasType TypeForm TypeIs disjoint_base
            evaluate_forward_ref get_protocol_members is_protocol override
        """,
    }.items()
}


def _objects(module: str, more: str = "") -> frozenset[str]:
    """Return what a star import gives that is not allowed, and more than a constant."""
    constants = (int, float, str, tuple, list, frozenset)
    values = import_module(module)
    objects = {name for name in _public(values) if not isinstance(getattr(values, name), constants)}
    return frozenset(objects | words(more)) - MODULES[module]


#: What a star import in the setup of tests gives to programs that is not allowed. Datasets have
#: such setups.
STAR_NAMES_OF_TESTS = {
    **{name: names - MODULES[name] for name, names in STAR_NAMES.items()},
    **{name: _objects(name) for name in words("datetime io json operator re")},
    "builtins": frozenset[str](),
    "sys": _objects("sys", "activate_stack_trampoline monitoring remote_exec"),
}

#: Names that this analysis may take for those of libraries.
LIBRARY_NAMES = frozenset(MODULES).union(*MODULES.values())

#: Attributes of any object: those of builtin types and of what the modules above give. The writer
#: checks `format`.
ATTRIBUTES = frozenset().union(
    *(
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (
            *(str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex),
            *(range, slice, memoryview, BaseException, OSError),
        )
    ),
    words("""
        _asdict _fields _make _replace acquire appendleft args as_integer_ratio as_tuple astype
        buffer cache_clear cache_info clear close closed compare compile copy count currsize data
        date day days default_factory deleter denominator difference digest dot dtype elements empty
        end endpos errno exp extend extendleft fget fill find findall finditer flags flatten flush
        from_float from_iterable fromisoformat fromkeys fromordinal fromtimestamp fset fullmatch
        func get get_nowait getbuffer getter getrandbits getvalue group groupdict groupindex groups
        hexdigest hits hour identity imag is_alive is_integer is_set isatty isoformat item items
        join joinall keys keywords lastgroup lastindex left limit_denominator line_buffering ln
        locked log10 match maxlen maxsize mean microsecond minute misses mode month most_common
        move_to_end name ndim neighbors new_child next nonzero notify notify_all now numerator
        parent parents pattern peekitem popitem popleft pos prec put put_nowait qsize quantize
        random randint randrange read read1 readable readall readinto readline readlines ravel real
        reconfigure regs release replace reshape right rotate rounding run sample search second
        seconds seek seekable send set setdefault setter shape shuffle size span sqrt st_size start
        string sub subn subtract sum task_done tell throw time timestamp to_integral_value today
        toordinal total total_seconds transpose truncate uniform union update utcnow val value wait
        weekday wrap writable write writelines year T children islice std var max min any all argmax
        argmin argsort cumsum prod round repeat clip trace tolist tofile fromlist itemsize typecode
        frombytes tobytes bisect_left bisect_right bisect bisect_key bisect_key_left irange add
        discard strftime strptime isocalendar isoweekday combine adjusted is_nan is_zero is_infinite
        is_finite is_signed normalize conjugate choice choices seed gauss values dequeue rstrip stop
        step
    """),
) - {"format_map"}

#: Attributes with which the interpreter writes to standard error. Who sets them, sees tracebacks.
OF_STDERR = words("buffer encoding errors fileno flush isatty write")

#: Attributes with which objects of libraries look up a name, or pass on keywords.
OF_LIBRARIES = words("_kwargs _stream attrname")

#: Attributes that lead from objects to code, frames and names, whoever else has them.
INTROSPECTIVE = frozenset().union(
    *(
        {name for name in dir(kind) if not name.startswith("_")}
        for kind in (
            *(types.FrameType, types.CodeType, types.TracebackType, types.GeneratorType),
            *(types.CoroutineType, types.AsyncGeneratorType, type),
        )
    )
) - words("close send throw clear replace")

#: Builtin classes and those of libraries that a class may extend. They call its methods by
#: position, and no method of theirs runs when an object is destroyed.
BASES = _ERRORS | words("""
    ABC Counter Enum Flag Generic IntEnum IntFlag NamedTuple OrderedDict Protocol StrEnum Thread
    TypedDict UserDict UserList bytes defaultdict deque dict float frozenset int list object set str
    tuple
""")
METACLASSES = words("ABCMeta")
#: Builtin types with which the type of an object may be compared.
TYPES = words("""
    bool bytearray bytes complex dict float frozenset int list object set str tuple
""")
#: Callables that show the type of an object to nobody, but as text.
TYPE_CONSUMERS = words("isinstance issubclass print repr str")
#: Of these, the ones that call no methods at all.
PLAIN_BASES = _ERRORS | words("ABC Generic Protocol object")

#: Callables that call a function by position, and give it to nobody, by its places among the
#: arguments; "key": as `key=`.
HIGHER_ORDER: dict[str, tuple[int | str, ...]] = {
    "accumulate": (1, "func"),
    "cmp_to_key": (0,),
    "dropwhile": (0,),
    "filter": (0,),
    "filterfalse": (0,),
    "groupby": (1, "key"),
    "isinstance": (1,),
    "issubclass": (1,),
    "map": (0,),
    "max": ("key",),
    "merge": ("key",),
    "min": ("key",),
    "nlargest": ("key",),
    "nsmallest": ("key",),
    "re.sub": (1, "repl"),
    "re.subn": (1, "repl"),
    "reduce": (0,),
    "sort": ("key",),
    "sorted": ("key",),
    "starmap": (0,),
    "takewhile": (0,),
}

#: Attributes of a thread that show its name, and so that of its target, to no one.
OF_THREADS = words("daemon= is_alive join start")

#: Methods of a dictionary of keywords that add none to it.
OF_KEYWORDS = words("get items keys pop values")

#: Callables that use up a generator that is their only argument, and never show it; those of
#: many use up any argument.
CONSUMERS = words("""
    Counter all any bytearray bytes deque dict enumerate extend filter frozenset intersection join
    list map max min next set sorted starmap sum tuple union update writelines zip
""")
MODULE_CONSUMERS = words("""
    collections.Counter collections.deque math.fsum math.prod statistics.fmean statistics.mean
    statistics.median
""")
METHOD_CONSUMERS = words("extend intersection join union update writelines")
#: Methods that are taken for those of builtin types.
KNOWN_METHODS = METHOD_CONSUMERS | words("close sort")
CONSUMERS_OF_MANY = words("enumerate filter map starmap zip")

#: What makes classes whose attributes are named by strings. An enumeration without members does.
ENUMS = words("Enum Flag IntEnum IntFlag StrEnum")
FIELD_MAKERS = ENUMS | words("NamedTuple TypedDict namedtuple")

#: Callables that are only called, or extended, in ways that the writer has checked: others make
#: attributes of computed names.
#: As code of `IOBase` runs when its objects are destroyed, it is only imported.
CHECKED_ONLY = FIELD_MAKERS | METACLASSES | words("IOBase wraps")

#: Decorators whose function is still called in the same ways, and shows its name to no one.
WRAPPERS = words("cache lru_cache wraps")
METHOD_WRAPPERS = WRAPPERS | words("abstractmethod classmethod property setter staticmethod")
CLASS_WRAPPERS = words("dataclass total_ordering unique")

#: Attributes of what these make.
OF_WRAPPERS = words("cache_clear cache_info")

#: Errors of which the interpreter's text never names a variable or a function.
NAMELESS_ERRORS = words("""
    ArithmeticError AssertionError BlockingIOError BrokenPipeError BufferError ConnectionError
    EOFError FileExistsError FileNotFoundError FloatingPointError IndexError InterruptedError
    IOError IsADirectoryError KeyboardInterrupt KeyError LookupError MemoryError NotADirectoryError
    NotImplementedError OSError OverflowError PermissionError RecursionError RuntimeError
    StopAsyncIteration StopIteration TimeoutError UnicodeDecodeError UnicodeEncodeError UnicodeError
    ValueError ZeroDivisionError
""")
