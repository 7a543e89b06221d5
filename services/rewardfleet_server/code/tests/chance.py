"""Sources of chance and time: what a verdict may depend on besides the program and the tests."""

import ast
import re
from collections.abc import Iterator

from rewardfleet.text.python import parse_source
from rewardfleet_server.code.sandboxes.jail.guest.names import imports_of, path_of

#: What gives another value each time, by module.
_SOURCES = {
    "random": "betavariate choice choices expovariate gammavariate gauss getrandbits "
    "lognormvariate normalvariate paretovariate randbytes randint random randrange sample shuffle "
    "triangular uniform vonmisesvariate weibullvariate SystemRandom",
    "numpy.random": "beta binomial choice exponential gamma integers normal permutation poisson "
    "rand randint randn random random_sample sample shuffle standard_normal uniform",
    "secrets": "choice randbelow randbits token_bytes token_hex token_urlsafe SystemRandom",
    "os": "urandom getrandom getpid getppid times",
    "resource": "getrusage",
    "threading": "get_ident get_native_id",
    "uuid": "uuid1 uuid4",
    "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time "
    "process_time_ns thread_time",
    "datetime.datetime": "now utcnow today",
    "datetime.date": "today",
}
_PATHS = {f"{module}.{name}" for module, names in _SOURCES.items() for name in names.split()}
#: What does so without this argument, by its number.
_WITHOUT_ARGUMENT = {
    "random.Random": 1, "numpy.random.default_rng": 1, "numpy.random.RandomState": 1,
    "time.localtime": 1, "time.gmtime": 1, "time.ctime": 1, "time.asctime": 1, "time.strftime": 2,
}  # fmt: skip
_SEEDED = {"random", "numpy.random"}
#: A program without one of these words has none of them.
MENTIONS = re.compile(
    r"random|secrets|urandom|uuid|times?\b|datetime|date\b|getp?pid|getrusage|get_ident|get_native_id"
)
#: Names under which modules are usual, also where nothing imports them.
_USUAL = {"np": "numpy", **{each.partition(".")[0]: each.partition(".")[0] for each in _SOURCES}}


def chance_in(*sources: str) -> str:
    """Return a source of chance or time that source code uses; "" if there is none.

    Generators of random numbers are none if something seeds them. Syntax errors hide what is used.
    """
    if not any(map(MENTIONS.search, sources)):
        return ""
    found: list[str] = []
    is_seeded = False
    for source in sources:
        try:
            tree = parse_source(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        nodes = [*ast.walk(tree)]
        is_seeded |= any(map(_seeds, nodes))
        found += _found(nodes)
    kept = (each for each in found if not (is_seeded and each.rpartition(".")[0] in _SEEDED))
    return next(kept, "")


def _seeds(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="seed") | ast.Name(id="seed"), args=[_, *_]):
            return True
    return False


def _found(nodes: list[ast.AST]) -> Iterator[str]:
    names = dict(_USUAL)
    for name, path in imports_of(nodes):
        if name == "*":
            names |= {each: path[:-1] + each for each in _SOURCES.get(path[:-2], "").split()}
        elif name != path:  # another function may import the module itself
            names[name] = path
    for node in nodes:
        if isinstance(node, ast.Call):
            path = path_of(node.func, names)
            if len(node.args) + len(node.keywords) < _WITHOUT_ARGUMENT.get(path, 0):
                yield path
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            path = path_of(node, names)
            if path in _PATHS:
                yield path
