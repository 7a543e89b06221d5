"""Python's parser, for one thread at a time."""

import ast
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()


@contextmanager
def exclusive_parser() -> Iterator[None]:
    """Let no other thread parse source code meanwhile, and ignore warnings about that code.

    The filters of warnings are those of all threads. Before Python 3.11.8 and 3.12.2, so is the
    depth of the parser: of two threads that parse, one may get a SystemError (gh-106905).
    """
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse_source(source: str) -> ast.Module:
    """Parse source code while no other thread does; nested too deeply, it is a SyntaxError, too."""
    try:
        with exclusive_parser():
            return ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:  # a null character, or its depth
        raise SyntaxError(str(error)) from None
