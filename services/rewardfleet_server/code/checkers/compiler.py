"""Compiling checkers in C++, isolated like a program, once for all requests."""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from typing import cast, get_args

from rewardfleet.wire.digest import digest_of
from rewardfleet.wire.errors import InvalidRequest, Unavailable
from rewardfleet_server.cache.single_flight import Memo
from rewardfleet_server.code.sandboxes.jail import isolation as jails
from rewardfleet_server.code.sandboxes.jail.guest import loader
from rewardfleet_server.code.settings import CodeSettings, checkers_folder
from rewardfleet_server.system.threads import usable_cores

_COMPILERS = ("g++", "clang++")
#: `-Bsymbolic`: the checker's own functions come before those of the process that loads it.
#: `_FORTIFY_SOURCE`: an output that is used as a format cannot write to memory with `%n`.
#: `PC_BASE_EXIT_CODE`: else `quitf(_pc(0))` of testlib exits with 0, although it gives no points.
_FLAGS = (
    "-std=c++17", "-O2", "-w", "-pipe", "-s", "-shared", "-fPIC", "-Wl,-Bsymbolic",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-DPC_BASE_EXIT_CODE=50",
)  # fmt: skip
_TESTLIB = re.compile(r'^\s*#\s*include\s*["<]testlib\.h', re.MULTILINE)
#: Limits of the compiler: seconds of CPU and wall time; bytes of memory and of the library.
_CPU_S, _WALL_S = 60, 120.0
_MEMORY_BYTES, _LIBRARY_BYTES = 2 << 30, 32 << 20
_MAX_MESSAGE = 1_000  #: characters of the compiler's messages that an error shows
_MAX_CACHED = 20_000  #: checkers in the cache folder: the newest
#: Bytes of libraries, and of the errors of sources that do not compile, in memory.
_MAX_BYTES = 8 << 20

#: Compiles `ORDER["source"]`; exits with the compiler's status, and prints the library or messages.
_GUEST = """
import os, resource, subprocess, sys
from rewardfleet_guest import confinement
os.chdir(ORDER["folder"])
for name in ("testlib.h", "checker.cpp"):
    with open(name, "wb") as file:
        file.write(ORDER[name])
if confinement.libc.prctl(confinement.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
    raise OSError("no_new_privs")
if ORDER["landlock"]:
    confinement.restrict_files(ORDER["readable"], ORDER["writable"], may_execute=True)
for name, amount in ORDER["limits"].items():
    confinement.limit(getattr(resource, name), amount)
done = subprocess.run(
    [*ORDER["command"], "-I.", "checker.cpp", "-o", "checker.so"],
    env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": "."},
    stdin=subprocess.DEVNULL,
    capture_output=True,
)
if done.returncode:
    output = done.stderr
else:
    with open("checker.so", "rb") as file:
        output = file.read()
sys.stdout.buffer.write(output)
sys.exit(1 if done.returncode else 0)
"""


def find_compiler() -> str | None:
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


class Compiler:
    """Compiles checkers to shared libraries, and stores them in the user's cache folder."""

    def __init__(self, isolation: str, settings: CodeSettings) -> None:
        self._isolation = isolation
        self._settings = settings
        self._command = find_compiler()
        self._folder = checkers_folder()
        self._compiled: Memo[bytes | str] = Memo(_MAX_BYTES, len)
        self._permits = asyncio.Semaphore(max(1, usable_cores() // 2))

    async def compile(self, source: str) -> bytes:
        """Return a checker as a shared library with a function `main`.

        Raises:
            InvalidRequest: It does not compile, or there is no compiler.
            Unavailable: The compiler cannot be run now.
        """
        if self._isolation not in get_args(jails.IsolationLevel):
            raise InvalidRequest("a checker program in C++ requires jails, so no --fusion-url")
        if self._command is None:
            raise InvalidRequest(
                "a checker program in C++ requires a compiler where the service runs, e.g. g++"
            )
        if self._settings.testlib_path is None and _TESTLIB.search(source):
            raise InvalidRequest(
                "the checker program includes testlib.h, which the service does not have: start it "
                "with --set testlib_path=FILE, see docs/code-service.md"
            )
        key = digest_of(f"{await self.version()} {source}")
        compiled = await self._compiled.get(key, lambda: self._library_or_error(key, source))
        if isinstance(compiled, str):
            raise InvalidRequest(compiled)
        return compiled

    async def _library_or_error(self, key: str, source: str) -> bytes | str:
        file = self._folder / f"{key}.so"
        with contextlib.suppress(OSError):
            return await asyncio.to_thread(file.read_bytes)
        async with self._permits:
            try:
                library = await asyncio.to_thread(self._compile, source)
            except InvalidRequest as error:
                return str(error)
        await asyncio.to_thread(_store, file, library)
        return library

    async def version(self) -> str:
        """Return a digest of the compiler and of testlib.h; empty without a compiler."""
        return await asyncio.to_thread(lambda: self._version)

    @cached_property
    def _header(self) -> bytes:
        testlib = self._settings.testlib_path
        return b"" if testlib is None else testlib.read_bytes()

    @cached_property
    def _version(self) -> str:
        if self._command is None:
            return ""
        done = subprocess.run(  # noqa: S603 - a compiler of the system
            [self._command, "--version"], capture_output=True, check=False, timeout=_WALL_S
        )
        parts = (done.stdout, self._header, repr(_FLAGS).encode())
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    @cached_property
    def _spec(self) -> jails.IsolationSpec:
        level = cast(jails.IsolationLevel, self._isolation)
        return jails.isolation_spec(
            level, jails.find_python(self._settings.python), self._settings.workers
        )

    def _compile(self, source: str) -> bytes:
        if self._spec.level == "bubblewrap":  # which has a folder of its own
            return self._compile_in(self._spec.writable[0], source)
        with tempfile.TemporaryDirectory(prefix="rewardfleet-checker-") as folder:
            if (user := jails.jail_user()) is not None:
                os.chown(folder, user, user)
            return self._compile_in(folder, source)

    def _compile_in(self, folder: str, source: str) -> bytes:
        spec = self._spec
        order = {
            "testlib.h": self._header,
            "checker.cpp": source.encode(errors="surrogatepass"),
            "folder": folder,
            "command": [self._command, *_FLAGS],
            "landlock": spec.landlock,
            "readable": spec.readable,
            "writable": (*spec.writable, folder),
            "limits": {
                "RLIMIT_CPU": _CPU_S,
                "RLIMIT_AS": _MEMORY_BYTES,
                "RLIMIT_FSIZE": _LIBRARY_BYTES,
                "RLIMIT_CORE": 0,
                "RLIMIT_NPROC": spec.processes,
            },
        }
        process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - from `isolation_spec`
            spec.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=jails.ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            **jails.as_jail_user(),
        )
        try:
            output, errors = process.communicate(
                f"{loader('confinement')}\nORDER = {order!r}{_GUEST}".encode(), _WALL_S
            )
        except subprocess.TimeoutExpired:
            raise Unavailable("the compiler did not end in time", retry_after=1) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and output:
            return output
        if errors:
            why = errors.decode(errors="replace").strip()[-_MAX_MESSAGE:]
            raise Unavailable(f"the compiler cannot be run: {why}", retry_after=1)
        why = output.decode(errors="replace").strip()
        if "fatal error: Killed" in why:  # by its limit on CPU, or for lack of memory
            raise Unavailable("the compiler was ended by the kernel", retry_after=1)
        first = why[: why.find("error")].rpartition("\n")[0]  # notes precede the first error
        why = why[len(first) :].strip()[:_MAX_MESSAGE]
        raise InvalidRequest(f"the checker program does not compile: {why or 'out of limits'}")


def _store(file: Path, library: bytes) -> None:
    """Store a library under its name at once, and remove the oldest ones."""
    with contextlib.suppress(OSError):  # it is then compiled again next time
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            temporary = Path(folder, file.name)
            temporary.write_bytes(library)
            temporary.replace(file)
        stored = [*file.parent.glob("*.so")]
        if len(stored) > _MAX_CACHED:
            stored.sort(key=lambda each: each.stat().st_mtime, reverse=True)
            for each in stored[_MAX_CACHED:]:
                each.unlink(missing_ok=True)
