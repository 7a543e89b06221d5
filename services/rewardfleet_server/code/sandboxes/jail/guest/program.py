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
import linecache
import marshal
import os
import re
import resource
import sys
import threading
import traceback
import types
from _thread import _count as count_threads
from collections.abc import Sequence
from typing import Any, NoReturn

from .answers import MAX_PLAIN_INT, Report, plain
from .boundary import ProgramSide
from .confinement import MAX_DESCRIPTORS, Confine, libc, limit
from .descriptors import ALL_SEALS, ORDER, Script, contents, read_script, write_all
from .nodes import ListNode, TreeNode, call_all
from .scripts import TestScript, UnsupportedTest

#: The program may replace these.
BUILTINS = dict(vars(builtins))
COMPILE, EVAL = compile, eval
#: The exit status of Python if its last output could not be written.
LOST_OUTPUT = 120
#: CPython optimizes a function after eight calls, and its instructions after some more.
_WARM_UPS = 30
NO_PROCESSES = "the jail does not allow new processes"
#: What the system and this jail say of what is refused.
_REFUSAL = re.compile("not permitted|denied|Read-only|the jail")


class Program:
    """The process of a program.

    It is prepared once, before the processes of all runs are made. Each page of memory that such a
    process changes is copied for it, which takes most of the time of a short run. So this uses few
    functions, and makes few objects besides those of the program.
    """

    def __init__(self) -> None:
        self.source = ""  #: the source code of the program, once that is read
        self.script = Script()  #: the code of the tests for this process
        self.out, self.err = sys.stdout, sys.stderr
        self.report_file, self.report_bytes = -1, 0  #: answers, and why the program failed
        linecache.cache["program.py"] = (lambda: self.source,)
        linecache.cache["setup.py"] = (lambda: self.script.setup,)
        sys.argv = ["program.py"]

    def run(self, confine: Confine, message: bytes, descriptors: Sequence[int]) -> NoReturn:
        """Run a program and its checks, and end; see `run_files.RunFiles` for the descriptors."""
        # Without an `Order`: its class is in more pages.
        _, tests_apart, has_script, prints_last, cpu_s, _, *sizes = ORDER.unpack(message)
        memory_bytes, output_bytes, report_bytes = sizes
        stdin, out, err, source, code_file, report, *others = descriptors
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if has_script:
            self.script = read_script(others.pop(0))
        if tests_apart:
            del others[1:]  # which leaves the connection to the process of the tests
        elif others:
            sys.argv += (f"/proc/self/fd/{file}" for file in others)
        self.report_file, self.report_bytes = report, report_bytes
        close_all_but(source, code_file, report, *others)
        confine(cpu_s, memory_bytes)
        code = self.compiled(source, code_file)
        checks = self.script.checks
        file_bytes = max(output_bytes, report_bytes) if checks else output_bytes
        limit(resource.RLIMIT_FSIZE, file_bytes + 1)
        is_module = bool(checks) or tests_apart  # tested programs are imported
        module = new_module("program" if is_module else "__main__")
        status = self.run_source(code, module.__dict__, others[0] if tests_apart else None)
        if is_module:
            if not status:
                module.__dict__["__builtins__"] = BUILTINS
                report_on = Report(report, report_bytes)
                for check in checks:
                    report_on.add(check["nonce"], self.answer(check, module.__dict__))
            self.flush()
            os._exit(status)
        del module, code  # or the program's objects would not be destroyed
        self.end(status, prints_last=prints_last)

    def end(self, status: int, *, prints_last: bool) -> NoReturn:
        """End as Python does: join threads, call exit functions, destroy the program's objects.

        Destroying a file writes what is left in it; `__del__` may print.
        """
        try:
            # `_threading_atexits` has what `concurrent.futures` registers.
            if count_threads() or threading._threading_atexits:  # type: ignore[attr-defined]
                threading._shutdown()  # type: ignore[attr-defined]
        except BaseException as error:
            show(error, self.err)
        atexit._run_exitfuncs()
        if not self.flush_streams():
            status = LOST_OUTPUT
        if prints_last:
            if gc.isenabled():
                gc.collect()  # as Python does; it puts files before the buffers below them
            sys.stdout, sys.stderr = self.out, self.err
            sys.modules.pop("__main__", None)
            gc.collect()
            libc.fflush(None)
        self.flush()
        os._exit(status)

    def compiled(self, source: int, file: int) -> types.CodeType:
        """Return the program's code. The first run compiles it into a file, which it seals."""
        code: types.CodeType
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) == ALL_SEALS:
            self.source, code = marshal.loads(contents(file))
        else:
            self.source = contents(source).decode(errors="surrogatepass")
            try:
                code = compile(self.source, "program.py", "exec", dont_inherit=True)
            except Exception as error:  # whatever the compiler raises
                self.fail("compile", error)
                os._exit(1)
            write_all(file, marshal.dumps((self.source, code)))
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, ALL_SEALS)
        os.close(source)
        os.close(file)
        return code

    def run_source(self, code: types.CodeType, namespace: dict[str, Any], link: int | None) -> int:
        """Run setup and program, and answer the tests at a link; return the exit status."""
        try:
            if any(check["signatures"] for check in self.script.checks):
                namespace.update(ListNode=ListNode, TreeNode=TreeNode)
            if self.script.setup:
                exec(compile(self.script.setup, "setup.py", "exec"), namespace)
                for check in self.script.checks:  # which calls what the program defines
                    name = check["source"] if check["kind"] == "call" else ""
                    if callable(namespace.get(name)):
                        namespace[name] = Given(namespace[name])
            side = None if link is None else ProgramSide(link, namespace, self.source)
            exec(code, namespace)
            if side is not None:
                side.serve()
        except SystemExit as exit_:
            if namespace["__name__"] != "__main__":
                self.fail("exit")
                return 1
            if exit_.code is None or isinstance(exit_.code, int):
                number = exit_.code or 0
                return number & 255 if -MAX_PLAIN_INT <= number < MAX_PLAIN_INT else 255
            print(exit_.code, file=self.err)
            return 1
        except BaseException as error:
            self.fail("memory" if isinstance(error, MemoryError) else "exception", error)
            return 1
        return 0

    def answer(self, check: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
        """Do one check; return the value that the program gave, or what happened instead."""
        kind, source = check["kind"], check["source"]
        try:
            if kind == "call":
                args = check["args"]
                if check["integer_keys"]:
                    args[0] = {int(key): each for key, each in args[0].items()}
                function = find(namespace, source)
                if signatures := check["signatures"]:
                    value = call_all(function, check["methods"], signatures, args)
                else:
                    value = function(*args)
            elif kind in {"eval", "value"}:
                value = EVAL(COMPILE(source, "test.py", "eval"), namespace)
            else:
                script = TestScript(namespace, check["entry_point"])
                script.run(ast.parse(source))
                return {"held": True, "checks": script.checks}
            return {"value": plain(value)}
        except UnsupportedTest as error:
            return {"raised": "UnsupportedTest", "message": str(error)[:300]}
        except BaseException as error:
            show(error, self.err)
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

    def fail(self, reason: str, error: BaseException | None = None) -> None:
        Report(self.report_file, self.report_bytes).fail(reason)
        if error is not None:
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
        if refused := refusal(error):
            error.add_note(f"refused by the jail: {refused}")
        traceback.print_exception(error, file=err)


def refusal(error: BaseException | None) -> str:
    """Return the path or the call that the jail refused, if a program failed for that; or ""."""
    while error is not None:
        if isinstance(error, OSError) and _REFUSAL.search(str(error.strerror)):
            frames = traceback.extract_tb(error.__traceback__)
            if any("/multiprocessing/" in each.filename for each in frames):
                return NO_PROCESSES  # before it makes one, it must make a lock or a socket
            is_call = error.strerror == os.strerror(error.errno or 0)
            reason = frames[-1].line if is_call and frames else error.strerror
            return str(error.filename or reason)
        error = error.__cause__ or error.__context__
    return ""


def new_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__="program.py")
    sys.modules[name] = module
    if name == "program":
        sys.modules["solution"] = sys.modules["__main__"] = module  # as tests import it
    return module


def close_all_but(*used: int) -> None:
    """Close all descriptors except the standard streams and these, in ascending order."""
    first = 3
    for descriptor in used:
        if first < descriptor:
            os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 2 * MAX_DESCRIPTORS)


def prepare() -> Program:
    """Prepare the process of a program, and run its code until the interpreter has optimized it.

    Otherwise each run would do so again, and copy the pages of memory that this changes.
    """
    code = os.memfd_create("code", os.MFD_ALLOW_SEALING)
    write_all(code, marshal.dumps(("pass", compile("pass", "program.py", "exec"))))
    fcntl.fcntl(code, fcntl.F_ADD_SEALS, ALL_SEALS)
    tried, main = Program(), sys.modules["__main__"]
    for _ in range(_WARM_UPS):
        module = new_module("program")
        tried.run_source(tried.compiled(os.dup(code), os.dup(code)), module.__dict__, None)
        tried.flush()
    del sys.modules["program"], sys.modules["solution"]
    sys.modules["__main__"] = main
    os.close(code)
    return Program()


class Given(functools.partial[Any]):
    """A function of the setup: the program may use it, but has not defined it."""


def find(namespace: dict[str, Any], name: str) -> Any:
    """Return a method of `Solution`, or a function. Others of its name may be the setup's."""
    solution = namespace.get("Solution")
    if hasattr(solution, name):
        return getattr(namespace["Solution"](), name)
    if not isinstance(namespace.get(name, Given(print)), Given):
        return namespace[name]
    raise NameError(f"the program defines no {name!r}")
