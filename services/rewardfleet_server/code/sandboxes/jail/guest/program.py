"""The process of a run that becomes the program.

It takes its limits and its seccomp filter before the first line of the program. It cannot make
processes or send signals, so nothing of it is left after its end.
"""

import ast
import atexit
import builtins
import contextlib
import fcntl
import functools
import gc
import itertools
import linecache
import marshal
import os
import resource
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .answers import MAX_PLAIN_INT, Report, plain
from .boundary import ProgramSide
from .confinement import MAX_DESCRIPTORS, Confinement, libc, limit
from .descriptors import ALL_SEALS, ORDER, Order, Script, read_all, read_script, write_all
from .scripts import TestScript, UnsupportedTest, unsupported

#: The program may replace these.
BUILTINS = dict(vars(builtins))
COMPILE, EVAL = compile, eval
#: The exit status of Python if its last output could not be written.
LOST_OUTPUT = 120
#: CPython optimizes a function after eight calls, and its instructions after some more.
_WARM_UPS = 30
NO_PROCESSES = "the jail does not allow new processes"


class GuestFiles(NamedTuple):
    """Descriptors of the files of a run."""

    source: int  #: the source code of the program, which cannot be changed
    code: int  #: the compiled program, which cannot be changed once it is sealed; -1 for none
    stdin: int
    out: int
    err: int
    report: int  #: answers to the checks, and why the program failed
    link: int  #: the connection to the process of the tests; -1 if there is none
    arguments: tuple[int, ...]  #: files for the program to read


def run_program(confinement: Confinement, order: Order, descriptors: tuple[int, ...]) -> NoReturn:
    """Become the program; see `run_files.RunFiles` for the descriptors."""
    stdin, out, err, source, code, report, *others = descriptors
    script = read_script(others.pop(0)) if order.has_script else Script()
    link = others[0] if order.tests_apart else -1
    arguments = () if order.tests_apart else tuple(others)
    files = GuestFiles(source, code, stdin, out, err, report, link, arguments)
    confine = functools.partial(confinement.apply, order.cpu_s, order.memory_bytes)
    Program(order, script, files, confine).run()


def warm_up() -> None:
    """Run code of all runs so often that the interpreter has optimized it.

    Otherwise each run would do so again, and copy the pages of memory that this changes.
    """
    code = os.memfd_create("code", os.MFD_ALLOW_SEALING)
    write_all(code, marshal.dumps(("pass", compile("pass", "program.py", "exec"))))
    fcntl.fcntl(code, fcntl.F_ADD_SEALS, ALL_SEALS)
    message = ORDER.pack(*Order(0, False, False, False, 1.0, 1.0, 1, 1, 1))
    for _ in range(_WARM_UPS):
        files = GuestFiles(os.dup(code), os.dup(code), 0, 1, 2, -1, -1, ())
        order = Order._make(ORDER.unpack(message))
        program = Program(order, Script(), files, lambda: None)
        module = program.module()
        program.run_source(program.compiled(), module.__dict__, None)
        program.flush()
    del sys.modules["program"], sys.modules["solution"]
    linecache.clearcache()
    os.close(code)


class Program:
    """The process of a program.

    Args:
        script: The code of the tests for this process.
        confine: Takes the limits on CPU time and memory.
    """

    def __init__(
        self, order: Order, script: Script, files: GuestFiles, confine: Callable[[], None]
    ) -> None:
        self.order = order
        self.script = script
        self.source = ""  #: the source code of the program, once that is read
        self.files = files
        self.confine = confine
        self.out, self.err = sys.stdout, sys.stderr
        self.report = Report(files.report, order.report_bytes)

    def run(self) -> NoReturn:
        """Run the program and its checks, and end."""
        take_files(self.files)
        self.confine()
        code = self.compiled()
        checks = self.script.checks
        is_module = bool(checks) or self.files.link >= 0  # tested programs are imported
        report_bytes = self.order.report_bytes if checks else 0
        limit(resource.RLIMIT_FSIZE, max(self.order.output_bytes, report_bytes) + 1)
        module = self.module("program" if is_module else "__main__")
        side = ProgramSide(self.files.link, module.__dict__) if self.files.link >= 0 else None
        status = self.run_source(code, module.__dict__, side)
        if is_module:
            if not status and side is not None:
                status = self.serve(side)
            elif not status:
                module.__dict__["__builtins__"] = BUILTINS
                for check in checks:
                    self.report.add(check["nonce"], self.answer(check, module.__dict__))
            self.flush()
            os._exit(status)
        del module, code  # or the program's objects would not be destroyed
        self.end(status)

    def module(self, name: str = "program") -> types.ModuleType:
        """Return the module of the program."""
        module = types.ModuleType(name)
        module.__dict__.update(__builtins__=builtins, __file__="program.py")
        sys.modules[name] = module
        if name == "program":
            sys.modules["solution"] = module  # as tests import it
        linecache.cache["program.py"] = (lambda: self.source,)
        linecache.cache["setup.py"] = (lambda: self.script.setup,)
        sys.argv = ["program.py", *(f"/proc/self/fd/{file}" for file in self.files.arguments)]
        return module

    def end(self, status: int) -> NoReturn:
        """End as Python does: join threads, call exit functions, destroy the program's objects.

        Destroying a file writes what is left in it; `__del__` may print.
        """
        try:
            # `_threading_atexits` has what `concurrent.futures` registers.
            if threading.active_count() > 1 or threading._threading_atexits:  # type: ignore[attr-defined]
                threading._shutdown()  # type: ignore[attr-defined]
        except BaseException as error:
            self.show(error)
        atexit._run_exitfuncs()
        if not self.flush_streams():
            status = LOST_OUTPUT
        if self.order.prints_last:
            if gc.isenabled():
                gc.collect()  # as Python does; it puts files before the buffers below them
            sys.stdout, sys.stderr = self.out, self.err
            sys.modules.pop("__main__", None)
            gc.collect()
            libc.fflush(None)
        self.flush()
        os._exit(status)

    def serve(self, side: ProgramSide) -> int:
        """Answer the tests; return the exit status."""
        try:
            side.serve()
        except MemoryError as error:
            self.report.fail("memory")
            self.show(error)
            return 1
        return 0

    def compiled(self) -> types.CodeType:
        """Return the program's code. The first run compiles it, and seals it for the others."""
        file = self.files.code
        code: types.CodeType
        if file >= 0 and fcntl.fcntl(file, fcntl.F_GET_SEALS) == ALL_SEALS:
            self.source, code = marshal.loads(read_all(file))
            os.close(self.files.source)
            os.close(file)
            return code
        self.source = read_all(self.files.source).decode(errors="surrogatepass")
        os.close(self.files.source)
        try:
            code = compile(self.source, "program.py", "exec", dont_inherit=True)
        except Exception as error:  # whatever the compiler raises
            self.report.fail("compile")
            self.show(error)
            os._exit(1)
        if file >= 0:
            write_all(file, marshal.dumps((self.source, code)))
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, ALL_SEALS)
            os.close(file)
        return code

    def run_source(
        self, code: types.CodeType, namespace: dict[str, Any], side: ProgramSide | None
    ) -> int:
        """Run setup and program; return the exit status."""
        try:
            if self.script.setup:
                exec(compile(self.script.setup, "setup.py", "exec"), namespace)
                for check in self.script.checks:
                    mark_as_given(namespace, check.get("call", ""))
            if side is not None:
                side.remember_setup()
            exec(code, namespace)
        except SystemExit as exit_:
            if namespace["__name__"] != "__main__":
                self.report.fail("exit")
                return 1
            if exit_.code is None or isinstance(exit_.code, int):
                number = exit_.code or 0
                return number & 255 if -MAX_PLAIN_INT <= number < MAX_PLAIN_INT else 255
            print(exit_.code, file=self.err)
            return 1
        except BaseException as error:
            self.report.fail("memory" if isinstance(error, MemoryError) else "exception")
            self.show(error)
            return 1
        return 0

    def answer(self, check: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        """Do one check; return the value that the program gave, or what happened instead."""
        try:
            if "call" in check:
                value = find(namespace, check["call"])(*check["args"])
            elif (source := check.get("eval") or check.get("value")) is not None:
                value = EVAL(COMPILE(source, "test.py", "eval"), namespace)
            else:
                entry = check["entry_point"]
                script = TestScript(namespace, (lambda: EVAL(entry, namespace)) if entry else None)
                script.run(ast.parse(check.get("assert") or check["inside"]))
                return {"held": True, "checks": script.checks}
            return {"value": plain(value)}
        except UnsupportedTest as error:
            return unsupported(error)
        except BaseException as error:
            self.show(error)
            return {"raised": type(error).__name__}

    def flush(self) -> None:
        """Flush the standard streams, and what the program put in their place."""
        self.flush_streams()
        sys.stdout, sys.stderr = self.out, self.err
        self.flush_streams()

    def flush_streams(self) -> bool:
        """Return whether nothing was lost."""
        is_written = True
        for name in ("stdout", "stderr"):
            stream = vars(sys).get(name)
            try:
                if stream is not None and not getattr(stream, "closed", False):
                    stream.flush()
            except BaseException:
                is_written = False
        return is_written

    def show(self, error: BaseException) -> None:
        """Print a traceback that begins with the first line of the program."""
        show(error, self.err)


def show(error: BaseException, err: Any) -> None:
    """Print the traceback of an error without the frame that caught it."""
    with contextlib.suppress(BaseException):
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:  # without those of the boundary
            if frame.tb_next.tb_frame.f_code.co_filename == "boundary.py":
                frame.tb_next = None
            frame = frame.tb_next
        if isinstance(error, PermissionError) and "multiprocessing" in sys.modules:
            # It fails before it makes a process, where it must make a lock or a socket.
            error.add_note(NO_PROCESSES)
        traceback.print_exception(error, file=err)


def take_files(files: GuestFiles) -> None:
    """Make the standard streams those of the run, and close all other descriptors."""
    for number, file in enumerate((files.stdin, files.out, files.err)):
        os.dup2(file, number)
    given = (files.source, files.code, files.report, files.link, *files.arguments)
    close_others(file for file in given if file >= 0)


def close_others(used: Any) -> None:
    """Close all descriptors except the standard streams and these."""
    for before, after in itertools.pairwise((2, *sorted(used), 2 * MAX_DESCRIPTORS)):
        os.closerange(before + 1, after)


class Given(functools.partial[Any]):
    """A function of the setup: the program may use it, but has not defined it."""


def mark_as_given(namespace: dict[str, Any], name: str) -> None:
    """Distinguish what the setup brought from what the program defines, which a check calls."""
    if callable(namespace.get(name)):
        namespace[name] = Given(namespace[name])


def find(namespace: dict[str, Any], name: str) -> Any:
    """Return a method of `Solution`, or a function. Others of its name may be the setup's."""
    solution = namespace.get("Solution")
    if hasattr(solution, name):
        return getattr(namespace["Solution"](), name)
    if not isinstance(namespace.get(name, Given(print)), Given):
        return namespace[name]
    raise NameError(f"the program defines no {name!r}")
