"""Exceptions that cross the boundary: as the names of their classes, with a handle."""

import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .builtin_types import import_path, known_type
from .proxies import is_proxy, owned

if TYPE_CHECKING:
    from .encoder import Encoder

#: Top-level modules with exceptions that end tests.
_END_TESTS = {"unittest", "pytest", "_pytest", "hypothesis"}
#: Top-level modules whose exceptions both sides have.
_WITH_EXCEPTIONS = sys.stdlib_module_names - _END_TESTS | {"numpy"}
#: Types of what a program gets of an exception of a test.
_PLAIN = {str, int, float, bool, bytes}
#: Frames of the program that an exception names.
_MAX_FRAMES = 10
#: How many causes and contexts of an exception cross.
_MAX_LINKS = 5


class Exceptions:
    """What a side of the boundary does with exceptions."""

    is_trusted: ClassVar[bool]
    classes: dict[str, type]
    decode: Any  #: see `Side.decode`
    _exceptions: dict[str, type[BaseException]]

    def encoded_exception(
        self, error: BaseException, encoder: "Encoder", links: int = _MAX_LINKS
    ) -> list[Any]:
        """Return an exception as JSON: names, arguments, text, attributes, place, object, links."""
        known = vars(error).get("_p_object")
        handle = encoder.encode(known) if is_proxy(known) else encoder.remote(error)
        args, attributes, place, links_of = error.args, vars(error), "", []
        if self.is_trusted:  # a program gets no object of the test by an error
            args = tuple(each for each in args if type(each) in _PLAIN)
            attributes = {n: each for n, each in attributes.items() if type(each) in _PLAIN}
        else:
            described = {name: getattr(error, name, None) for name in _DESCRIBING}
            attributes = {**attributes, **{n: e for n, e in described.items() if e is not None}}
            frames = traceback.extract_tb(error.__traceback__)
            own_frames = [frame for frame in frames if frame.filename == "program.py"]
            place = "".join(traceback.format_list(own_frames[-_MAX_FRAMES:]))
            links_of = [error.__cause__, error.__context__] if links else []
        named = [[name, encoder.encode(value)] for name, value in attributes.items()]
        linked = [each and self.encoded_exception(each, encoder, links - 1) for each in links_of]
        names, sent = self.exception_names(type(error)), encoder.encode(tuple(args))
        return [names, sent, _text(error), named, place, handle, linked]

    def exception_names(self, kind: type) -> list[Any]:
        """Return the path or the name of a class, and those of its bases, unless all have it."""
        found = import_path(kind)
        path = "" if found is None else ".".join(found[1:])
        if path.partition(".")[0] in _WITH_EXCEPTIONS:
            return [path]
        bases = [each for each in kind.__bases__ if issubclass(each, BaseException)]
        return [path or kind.__name__, *map(self.exception_names, bases)]

    def exception_class(self, names: Sequence[Any], proxy: Any = None) -> type[BaseException]:
        """Return the class at this path, or one with this name and bases.

        Args:
            names: As `exception_names` returns them.
            proxy: The class of the other side, encoded, which constructs its instances.
        """
        path, *bases = names
        own = self.classes.get(path) or _known_exception(str(path))
        if own is not None and issubclass(own, BaseException):
            return own
        kind: Any = self._exceptions.get(repr(names))
        if kind is None:
            built = tuple(map(self.exception_class, bases)) or (Exception,)
            kind = type(str(path).rpartition(".")[2], built, {**_METHODS, "_p_class": None})
            self._exceptions[repr(names)] = kind
        if proxy is not None:
            kind._p_class = self.decode(proxy)
        return kind  # type: ignore[no-any-return] # it is one

    def exception(self, data: Sequence[Any]) -> BaseException:
        """Return an exception of the other side, or the own one that it raised again."""
        known = self.decode(data[5])
        is_own = not is_proxy(known) and isinstance(known, BaseException)
        if is_own and not isinstance(known, skips()):
            return known  # type: ignore[no-any-return] # it is one
        kind, args = self.exception_class(data[0]), self.decode(data[1])
        error = kind.__new__(kind, *args)
        error.args = args
        for built_in, field in ((SystemExit, "code"), (StopIteration, "value")):
            if isinstance(error, built_in):
                BaseException.__setattr__(error, field, args[0] if args else None)
        attributes = {str(name): self.decode(value) for name, value in data[3]}
        for name in attributes.keys() & _DESCRIBING:
            if hasattr(kind, name):
                setattr(error, name, attributes.pop(name))
        vars(error).update(attributes, _p_text=str(data[2]), _p_object=known)
        for name, linked in zip(("__cause__", "__context__"), data[6], strict=False):
            if linked is not None:
                setattr(error, name, self.exception(linked))
        if data[4]:
            error.add_note(f"In the program:\n{data[4]}")
        return error


#: What built-in exceptions keep beside their arguments.
_DESCRIBING = {"filename", "name"}


def fails_a_test(error: BaseException) -> bool:
    """Return whether a test has raised an exception to fail."""
    return isinstance(error, (AssertionError, _outcome("_pytest.outcomes", "Failed")))


def skips() -> tuple[type[BaseException], ...]:
    """Return what a test raises to end without a failure. A program's exception is another one."""
    of_pytest = (_outcome("_pytest.outcomes", name) for name in ("Skipped", "XFailed"))
    return tuple(filter(None, (_outcome("unittest.case", "SkipTest"), *of_pytest)))


def _outcome(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, ())


def _construct(error: Any, *args: Any, **named: Any) -> None:
    """Let the program construct its exception."""
    kind = type(error)._p_class
    if kind is not None:
        built = kind(*args, **named)
        error.args = built.args
        vars(error).update(vars(built), _p_object=owned(vars(built)["_p_object"]))


def _str(error: BaseException) -> str:
    return str(vars(error)["_p_text"]) if "_p_text" in vars(error) else BaseException.__str__(error)


def _attribute(error: BaseException, name: str) -> Any:
    known = vars(error).get("_p_object")
    if known is None:
        raise AttributeError(f"{type(error).__name__!r} object has no attribute {name!r}")
    return getattr(known, name)


def _eq(error: BaseException, other: Any) -> Any:
    """Let the program compare its exceptions."""
    known = [getattr(each, "__dict__", {}).get("_p_object") for each in (error, other)]
    return known[0] == known[1] if all(map(is_proxy, known)) else NotImplemented


_METHODS = {
    "__init__": _construct,
    "__str__": _str,
    "__getattr__": _attribute,
    "__eq__": _eq,
    "__hash__": BaseException.__hash__,
}


def _known_exception(path: str) -> type[BaseException] | None:
    """Return an exception of a module that is imported already. Nothing is imported for it."""
    module, _, name = path.rpartition(".")
    found: Any = known_type(module, name)
    homes = {each.partition(".")[0] for each in (module, found.__module__)}  # numpy has SkipTest
    is_common = issubclass(found, BaseException) and homes.isdisjoint(_END_TESTS)
    return found if is_common and not issubclass(found, skips()) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # whatever the program's own class raises
        return ""
