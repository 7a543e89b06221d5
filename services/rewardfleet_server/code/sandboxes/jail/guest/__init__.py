"""What runs inside a jail: the supervisor, the zygote, programs and tests.

It imports the standard library only, and gets its source code by a pipe, so that a jail needs no
files of this package.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
#: The modules of this package, each after those that it imports.
_MODULES = """
descriptors confinement machine names arrays builtin_types proxies answers exceptions scripts
encoder replacements permissions boundary nodes program tester zygote processes supervisor
"""

#: Digits of the longest integer that programs and tests can read and write, as in LiveCodeBench's
#: runner. Python's own limit is 4300.
MAX_INTEGER_DIGITS = 50_000

_LOADER = """
import sys, types
package = sys.modules["rewardfleet_guest"] = types.ModuleType("rewardfleet_guest")
package.__path__ = []
for name, source in SOURCES.items():
    module = types.ModuleType("rewardfleet_guest." + name)
    module.__package__ = "rewardfleet_guest"
    sys.modules[module.__name__] = module
    exec(compile(source, name + ".py", "exec", optimize=2), module.__dict__)
    setattr(package, name, module)
del SOURCES, source
"""


def loader(module: str) -> str:
    """Return a program that loads a module, and those before it, as `rewardfleet_guest.NAME`."""
    names = _MODULES.split()
    names = names[: names.index(module) + 1]
    sources = {name: (_FOLDER / f"{name}.py").read_text() for name in names}
    limit = f"import sys; sys.set_int_max_str_digits({MAX_INTEGER_DIGITS})\n"
    return f"{limit}SOURCES = {sources!r}{_LOADER}"
