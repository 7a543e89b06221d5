"""The boundary between a program and its tests, which are in two processes.

A call from a test reaches the program as values, and its result is sent back as values. Arguments
that the program changes are changed in the test as well. What is not a value (a generator, an
instance of a class of the program, a function of the test) stays where it is, and is used from the
other side through a `Proxy`. An exception crosses as the names of its class and of the bases, with
its arguments.

The side of the program is not trusted: whatever it sends can only become values, proxies and
exceptions on the side of the tests.
"""

import array
import ast
import builtins
import collections
import contextlib
import enum
import pkgutil
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from json import dumps, loads  # which a test may replace in their modules
from typing import Any, ClassVar, NoReturn

from .arrays import without_items
from .builtin_types import (
    BASES,
    COLLECTIONS_BY_NAME,
    COMMON_TYPES,
    MAPPINGS,
    NAMESPACES,
    SEQUENCES,
    VALUES,
    base_of,
    import_numpy,
    is_known,
    known_type,
    nan_of,
    new_arguments,
    set_attributes,
)
from .encoder import Encoder, Variable, has_own_name
from .exceptions import Exceptions, fails_a_test
from .permissions import is_accessible, is_own, is_usable
from .proxies import ANONYMOUS, OF_TESTS, OPERATIONS, PROXIES, READERS, CallableProxy, is_proxy
from .replacements import Generators, Replacements, replaced, set_states
from .scripts import TestScript

_LENGTH = struct.Struct("!Q")
_MAX_MESSAGE_BYTES = 256 * 2**20
#: Objects that both sides remember, at most. Then both forget which of them are the same.
_MAX_SHARED = 50_000

#: Types of numbers, texts and times, as numpy writes them.
_NUMBERS = re.compile(r"[<>|=][biufcSUMm]\d{1,6}(?:\[\w{1,8}\])?")


class Gone(BaseException):
    """The process on the other side has ended; with arguments, it sent what is not valid."""


class ValueTooLarge(MemoryError):
    """A message is too large."""


class Side(Exceptions):
    """One side of the boundary. Each request waits for its reply, and may be nested in another."""

    is_trusted: ClassVar[bool]  #: whether this is the side of the tests

    def __init__(self, link: int) -> None:
        #: Classes that both sides have, by name: those of the setup.
        self.classes: dict[str, type] = {}
        self.class_names: dict[type, str] = {}
        self.decided_by: set[str] = set()  #: classes of the other side that decided a comparison
        self.uses: set[tuple[int, str]] = set()  #: operations on each object of the other side
        #: Names of classes of the other side that the current test constructs.
        self.constructs: AbstractSet[str] = frozenset()
        #: Whether the current test is about objects of the other side. Otherwise, these have no
        #: operations but those of functions and iterators.
        self.uses_objects = True
        #: Names of the entry point and of methods of `Solution()`, which may be those of methods of
        #: a built-in type.
        self.entry_names: AbstractSet[str] = frozenset()
        self.predicates: AbstractSet[str] = frozenset()  #: see `Names`
        self.refused = False  #: whether an operation of the current test was refused
        self.looked_up: set[str] = set()  #: names that the current test has from the program
        #: Answers of objects of the other side that the current test did not construct.
        self.answers: dict[tuple[Any, ...], Any] = {}
        self.lengths: dict[int, int] = {}  #: of such objects, by handle
        self._socket = socket.socket(fileno=link)  # to the other side
        self._incoming = self._socket.makefile("rb")
        self._lock = threading.RLock()
        self._exported: list[Any] = []
        self._handles: dict[int, int] = {}
        self._exceptions: dict[str, type[BaseException]] = {}
        self._subclasses: dict[tuple[type, str], type] = {}
        self._forget()

    def _forget(self) -> None:
        #: Mutable objects that both sides have, by number, with a digest of their last content.
        self._shared: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        #: Objects that are being filled: to fill a set, the other side may have to hash its items.
        self._incomplete: set[int] = set()

    def share_class(self, name: str, value: Any) -> None:
        """Note a variable that both sides have, if its value is a class of the setup or program."""
        # `isinstance` would ask an object such as Django's settings for its class, which may fail.
        if issubclass(type(value), type) and value.__module__ == "program":
            self.classes[name] = value
            self.class_names[value] = name

    # Messages

    def send(self, message: dict[str, Any]) -> None:
        text = dumps(message).encode()
        if len(text) > _MAX_MESSAGE_BYTES:
            raise ValueTooLarge("a value is too large to be sent")
        try:
            self._socket.sendall(b"".join((_LENGTH.pack(len(text)), text)))
        except OSError:
            raise Gone from None

    def receive(self) -> dict[str, Any]:
        """Wait for a message, and raise Gone if there is none, or it is not valid."""
        (size,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))
        if size > _MAX_MESSAGE_BYTES:
            raise Gone("the message is too large")
        try:
            message = loads(self._receive_exactly(size))
        except (ValueError, RecursionError) as error:
            raise Gone(str(error)) from None
        if not isinstance(message, dict):
            raise Gone("the message is not an object")
        return message

    def _receive_exactly(self, size: int) -> bytes:
        try:
            content = self._incoming.read(size)
        except OSError:
            raise Gone from None
        if len(content) < size:
            raise Gone
        return content

    def request(
        self, message: dict[str, Any], *, may_stop: bool = False, given: Sequence[Any] = ()
    ) -> Any:
        """Send a request and return its result, or raise what it raised on the other side.

        Args:
            may_stop: Whether it may raise StopIteration, which would end a loop of a test.
            given: The arguments, one of which may be the result.
        """
        reply = self.exchange(message)
        self._take_objects(reply)
        if "raised" not in reply:
            same = reply.get("same")
            return self.decode(reply["result"]) if same is None else given[same]
        error = self.exception(reply["raised"])
        cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", StopIteration)
        ends_loops = isinstance(error, (StopIteration, StopAsyncIteration, cancelled))
        if self.is_trusted and ends_loops and not may_stop:  # a test would not fail
            raise RuntimeError(f"the program raised {type(error).__name__}") from error
        raise error

    def exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply; answer the other side's requests until then."""
        with self._lock:  # for programs that call functions of a test from several threads
            self.send(message)
            while True:
                reply = self.receive()
                if "result" in reply or "raised" in reply:
                    return reply
                self.answer(reply)

    def answer(self, message: dict[str, Any]) -> None:
        """Do what a request asks for, and send the reply."""
        encoder = Encoder(self, by_handle=message.get("by_handle", ()))
        roots: list[Any] = []
        try:
            if message.get("forget"):
                self._forget()
            self._take_objects(message)
            result = self.do(message, roots)
            reply = {"result": encoder.encode(result)}
            same = [number for number, root in enumerate(roots) if root is result]
            if same and type(result) in {tuple, frozenset, str, bytes}:  # what has no number
                reply["same"] = same[0]
        except Gone:
            raise
        except BaseException as error:
            if self.is_trusted and fails_a_test(error):
                self.decided_by.add("a failed assert that the program caught")
            encoder = Encoder(self)
            reply = {"raised": self.encoded_exception(error, encoder)}
        try:
            for root in roots:  # arguments may have been changed
                encoder.encode(root)
            reply["objects"] = encoder.objects()
            self.send(reply)
        except (MemoryError, RecursionError) as error:
            self.send({"raised": self.encoded_exception(error, Encoder(self))})

    def do(self, message: dict[str, Any], roots: list[Any]) -> Any:
        """Return the result of a request; add the values that it may change to `roots`."""
        target, args, kwargs = message["call"]
        roots += [self.decode(arg) for arg in args]
        named = {str(name): self.decode(value) for name, value in kwargs}
        positional = tuple(roots)
        roots += named.values()
        self.check_access(target, args, positional)
        function = OPERATIONS[target[1]] if target[0] == "op" else self.decode(target)
        return function(*positional, **named)

    def check_access(self, target: list[Any], args: list[Any], values: tuple[Any, ...]) -> None:
        """Raise PermissionError if a program may not call this of the tests."""

    def call(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the other side, or the operation of this name."""
        encoder = Encoder(self)
        message: dict[str, Any] = {}
        if len(self._shared) > _MAX_SHARED:
            self._forget()
            message["forget"] = True
        message["call"] = [
            ["op", target] if isinstance(target, str) else encoder.encode(target),
            [encoder.encode(arg) for arg in args],
            [[name, encoder.encode(value)] for name, value in kwargs.items()],
        ]
        is_value = type(target) is str and target == "itself"
        if not is_value and any(is_proxy(each) and each._p_is_own for each in (target, *args)):
            message["by_handle"] = [*self.constructs]
        message |= self.context(encoder)
        message["objects"] = encoder.objects()
        may_stop = target == "next" if isinstance(target, str) else target._p_stops()
        return self.request(message, may_stop=may_stop, given=[*args, *kwargs.values()])

    def refuse(self, reason: str) -> NoReturn:
        """Refuse an operation, which fails the test whatever the program's process would do."""
        self.refused = True
        raise TypeError(reason)

    def context(self, encoder: Encoder) -> dict[str, Any]:  # noqa: ARG002 - of the tests
        """Return what a call takes place in, besides its arguments."""
        return {}

    # Values

    def export(self, value: Any) -> int:
        """Return the handle by which the other side uses an object."""
        handle = self._handles.get(id(value))
        if handle is None:
            handle = self._handles[id(value)] = len(self._exported)
            self._exported.append(value)
        return handle

    def decode(self, data: Any) -> Any:
        """Return an encoded value."""
        if not isinstance(data, list):
            return data
        tag, *parts = data
        if tag == "tuple":  # these two may be nested deeply
            return tuple(map(self.decode, parts))
        if tag == "subclass":
            return self._subclass_instance(self.decode(parts[0]), *parts[1:])
        decoder = _DECODERS.get(str(tag))
        if decoder is None:
            raise Gone(f"unknown kind {tag!r}")
        return decoder(self, *parts)

    def proxy(self, handle: int, kind: str, number: int, base: Any = None) -> Any:
        """Return a proxy of an object of the other side.

        Args:
            handle: What the other side knows it by.
            kind: The name of its class.
            number: That of its class in `PROXIES`.
            base: Where both sides can import the first base of its class; None for `object`.
        """
        proxy = object.__new__(PROXIES[number])
        kind = str(kind).encode(errors="replace").decode() or "?"  # half of a surrogate pair
        fields = {"_p_side": self, "_p_handle": int(handle), "_p_kind": kind, "_p_name": ANONYMOUS}
        fields |= {"_p_is_own": False, "_p_items": None, "_p_owner": None}
        fields["_p_base"] = base and known_type(*base[1:])
        for name, value in fields.items():
            object.__setattr__(proxy, name, value)
        return proxy

    def imported(self, module: str, name: str) -> Any:
        """Return what both sides can import."""
        return pkgutil.resolve_name(f"{module}:{name}")

    def _subclass_instance(self, value: Any, handle: int, kind: str, path: Any) -> Any:
        """Return a value of a built-in type, whose other attributes are on the other side.

        Of a class of a library, it is a tuple with names, or the member of an enumeration.
        """
        known = object if path is None else known_type(*path[1:])
        if issubclass(known, enum.Enum):
            return known(value)
        if issubclass(known, tuple) and hasattr(known, "_fields"):
            return tuple.__new__(known, value)
        base: Any = type(value)
        if base not in BASES:
            raise TypeError(f"the program answered with a subclass of {base.__name__}")
        if (base, kind) not in self._subclasses:
            attributes = {
                "__getattr__": lambda own, name: getattr(vars(own)["_p_proxy"], name),
                "__str__": lambda own: str(vars(own)["_p_proxy"]),
                "__repr__": lambda own: repr(vars(own)["_p_proxy"]),
                "__format__": lambda own, form: format(vars(own)["_p_proxy"], form),
            }
            if base is dict:
                attributes["__missing__"] = lambda own, key: vars(own)["_p_proxy"][key]
            self._subclasses[base, kind] = type(kind, (base,), attributes)
        instance = base.__new__(self._subclasses[base, kind], *new_arguments(value))
        if base in {list, set, bytearray, dict}:
            base.__init__(instance, value)
        instance.__dict__["_p_proxy"] = self.proxy(handle, kind, 0)
        return instance

    def _take_objects(self, message: dict[str, Any]) -> None:
        """Create the new objects of a message, and update the others."""
        objects = {int(number): entry for number, entry in message.get("objects", {}).items()}
        new = objects.keys() - self._shared.keys()
        # Sets and keys of dictionaries are hashed, for which their own content must be there.
        hashed = {"set", *MAPPINGS}
        encoder = Encoder(self)
        try:
            for number in new:
                tag, meta, _ = objects[number]
                self._share(number, self._empty(tag, meta))
            self._incomplete |= objects.keys()
            for number, entry in sorted(objects.items(), key=lambda item: item[1][0] in hashed):
                self._fill(self._shared[number], entry[0], entry[2])
            for number in objects:  # as this side would send them
                self._synced[number] = hash(repr(encoder.entry(self._shared[number])))
        except BaseException:
            for number in new:  # one that is not complete is never used
                self._shared.pop(number, None)
            raise
        finally:
            self._incomplete -= objects.keys()

    def _share(self, number: int, value: Any) -> None:
        self._shared[number] = value
        self._numbers[id(value)] = number

    def _empty(self, tag: str, meta: Any) -> Any:
        match tag:
            case "deque":
                return collections.deque(maxlen=meta)
            case "defaultdict":
                factory = self.decode(meta)
                if isinstance(factory, CallableProxy):
                    object.__setattr__(factory, "_p_name", "__missing__")
                return collections.defaultdict(factory)
            case "object":
                kind = self.classes[meta[0]]
                base = None if meta[1] is None else self.decode(meta[1])
                return base_of(kind).__new__(kind, *(() if base is None else new_arguments(base)))
            case "array":
                if not _NUMBERS.fullmatch(meta[0]):
                    raise TypeError(f"the program answered with an array of {meta[0]}")
                zeros = import_numpy().zeros(meta[1], meta[0])
                return zeros.view(without_items()) if self.is_trusted and not zeros.size else zeros
            case "numbers":
                return array.array(str(meta))
        kind = COLLECTIONS_BY_NAME[tag]
        return kind.__new__(kind)

    def _fill(self, value: Any, tag: str, content: Any) -> None:
        if tag in SEQUENCES:
            value.clear()
            value.extend(map(self.decode, content) if list in map(type, content) else content)
        elif tag == "set":
            value.clear()
            value.update(map(self.decode, content))
        elif tag in MAPPINGS:
            value.clear()
            for key, item in content:
                value[self.decode(key)] = self.decode(item)
        elif tag == "bytearray":
            value[:] = bytes.fromhex(content)
        elif tag == "numbers":
            value[:] = array.array(value.typecode, bytes.fromhex(content))
        elif tag in NAMESPACES:
            vars(value).clear()
            for name, item in content:
                vars(value)[str(self.decode(name))] = self.decode(item)
        elif tag == "array":
            numbers = import_numpy().frombuffer(bytes.fromhex(content), value.dtype)
            value[...] = numbers.reshape(value.shape)
        else:
            attributes = {str(name): self.decode(item) for name, item in content[0]}
            # A program does not replace methods of a class of the tests.
            set_attributes(value, attributes, keeps_methods=self.is_trusted)
            if (base := base_of(type(value))) in {list, dict, set}:
                self._fill(value, base.__name__, content[1])


def _scalar(_: Side, kind: str, content: str) -> Any:
    if not _NUMBERS.fullmatch(kind):
        raise TypeError(f"the program answered with {kind}")
    return import_numpy().frombuffer(bytes.fromhex(content), kind)[0]


#: By the kind of an encoded value: the value of its parts.
_DECODERS: dict[str, Callable[..., Any]] = {
    "int": lambda _, digits: int(digits, 16),
    "float": lambda _, text, module: nan_of(module) if module else float(text),
    "ref": lambda side, number: side._shared[number],
    "text": lambda _, content: bytes.fromhex(content).decode(errors="surrogatepass"),
    "frozenset": lambda side, *items: frozenset(map(side.decode, items)),
    "value": lambda side, module, name, *parts: VALUES[module, name][1](*map(side.decode, parts)),
    "error": lambda side, error: side.exception(error),
    "scalar": _scalar,
    "enum": lambda side, kind, name: side.classes[kind][name],
    "member": lambda _, path, name: known_type(*path[1:])[str(name)],  # type: ignore[index]
    "class": lambda side, name: side.classes[name],
    "exception": lambda side, *names: side.exception_class(*names),
    "import": lambda side, *path: side.imported(*path),
    "yours": lambda side, handle: side._exported[handle],
    "mine": lambda side, *parts: side.proxy(*parts),
}


class ProgramSide(Side):
    """The side of the program, which is made once its setup has run."""

    is_trusted = False

    def __init__(self, link: int, namespace: dict[str, Any], source: str) -> None:
        super().__init__(link)
        self._namespace = namespace
        self._source = source
        self._setup = dict(namespace)
        self._builtins = dict(vars(builtins))
        for name, value in self._setup.items():
            self.share_class(name, value)

    def exception_class(self, names: Sequence[Any], *proxy: Any) -> type[BaseException]:
        """Return a class of the program, if it has one with this name and these bases."""
        own: Any = self._namespace.get(names[0])
        is_exception = isinstance(own, type) and issubclass(own, BaseException)
        if is_exception and self.exception_names(own) == [*names]:
            return own  # type: ignore[no-any-return] # it is one
        return super().exception_class(names, *proxy)

    def serve(self) -> None:
        """Report what the program defined, and answer requests until the tests end."""
        own = [n for n, value in self._namespace.items() if self._setup.get(n, self) is not value]
        for name in self.classes:  # the program may repeat a class of the setup
            self.share_class(name, self._namespace.get(name))
        with contextlib.suppress(Gone):
            self.send({"names": own})
            while True:
                self.answer(self.receive())

    def do(self, message: dict[str, Any], roots: list[Any]) -> Any:
        """See `Side.do`; also look up names, and evaluate tests that look into the program."""
        if "name" in message:
            name = message["name"]
            if name not in self._namespace:
                raise NameError(f"name {name!r} is not defined")
            return Variable(name, self._namespace[name])
        if "imports" in message:
            return self._take_imports(message["imports"])
        if "inside" in message:
            variables = {**self._namespace, "__builtins__": self._builtins}
            script = TestScript(variables, message["entry_point"])
            script.run(ast.parse(message["inside"]))
            return script.checks
        set_states(message.get("generators", {}))
        given = message.get("replaced", ())
        with replaced((path, name, self.decode(value)) for path, name, value in given):
            return super().do(message, roots)

    def _take_imports(self, imports: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Import what the program uses and only its tests import, as if both were one file."""
        for statement, names in imports:
            lacking = [n for n in names if n in self._source and n not in self._namespace]
            found: dict[str, Any] = {}
            with contextlib.suppress(Exception):
                exec(statement if lacking else "", found)
            self._namespace.update({name: found[name] for name in lacking if name in found})


class TestSide(Side):
    is_trusted = True

    def __init__(self, link: int) -> None:
        super().__init__(link)
        READERS.append(self)
        #: The generators of random numbers that tests seed.
        self.generators = Generators()
        self.replacements = Replacements()

    def begin_test(self) -> None:
        """Forget what the last test did."""
        for each in (self.decided_by, self.uses, self.looked_up, self.answers, self.lengths):
            each.clear()
        self.refused = False

    def look_up(self, name: str) -> Any:
        """Return a variable of the program. What it imported under its own name is imported."""
        reply = self.exchange({"name": name})
        if "raised" in reply:
            raise NameError(f"name {name!r} is not defined")
        data = reply.get("result")
        self._take_objects(reply)
        if isinstance(data, list) and data[:1] == ["import"]:
            module, path = map(str, data[1:])
            if has_own_name(name, module, path) and path in {"", name} and is_known(module, path):
                return super().imported(module, path)
            raise NameError(f"the program's {name!r} is not the test's")
        self.looked_up.add(name)
        value = self.decode(data)
        if type(value) is CallableProxy:
            object.__setattr__(value, "_p_is_own", name in self.constructs)
            object.__setattr__(value, "_p_name", "")
        return value

    def check_access(self, target: list[Any], args: list[Any], values: tuple[Any, ...]) -> None:
        """Let a program call functions of the test, and use instances of its classes."""
        operation = target[1] if target[0] == "op" else ""
        used = [value for raw, value in zip(args, values, strict=True) if is_own(raw)]
        if not operation:
            used = [self.decode(target)] if is_own(target) else []
        allowed = bool(used) and is_usable(used[0]) and operation not in OF_TESTS
        if operation in {"getattr", "setattr", "delattr", "dir"}:
            allowed = allowed and is_own(args[0]) and is_accessible(operation, values)
        if not allowed:
            kind = AttributeError if operation == "getattr" else PermissionError
            raise kind("a program cannot use this object of the test")

    def context(self, encoder: Encoder) -> dict[str, Any]:
        """Return what the test has replaced, and generators of random numbers that it has used."""
        replaced = [(*at, encoder.encode(value)) for *at, value in self.replacements.current()]
        found = {"replaced": replaced, "generators": self.generators.changed()}
        return {name: each for name, each in found.items() if each}

    def imported(self, module: str, name: str) -> Any:
        """Return a built-in type. Nothing is imported at the request of the program."""
        if (module, name) not in COMMON_TYPES:
            raise TypeError(f"the program answered with {module}.{name}")
        return COMMON_TYPES[module, name]
