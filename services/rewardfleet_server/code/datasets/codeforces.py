"""Rows of open-r1/codeforces, run and compared as its worker does.

That is the script `packages/codeforces/1.0.0/run` of guipenedo/piston (commit 7a38da2).
"""

from typing import Any

from rewardfleet.wire.errors import InvalidRequest

from .columns import Row, list_of

#: Lets a checker decide by what it prints, `1` or `100`. Its arguments are the input, the expected
#: output, and the output, which it reads without empty lines.
_CHECKER = """
import builtins, contextlib, io, sys
given, output, answer = sys.argv[1:]
opened = io.open
with opened(output, "rb") as file:
    content = b"".join(line for line in file if line != b"\\n")
def open_file(file, mode="r", *args, **options):
    if file != output:
        return opened(file, mode, *args, **options)
    return io.BytesIO(content) if "b" in mode else io.StringIO(content.decode(), None)
builtins.open = io.open = open_file
sys.argv = ["checker.py", given, answer, output]
printed, status = io.TextIOWrapper(io.BytesIO(), "utf-8", "replace", write_through=True), None
with contextlib.redirect_stdout(printed):
    try:
        exec(compile(SOURCE, "checker.py", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code
decision = "".join(printed.buffer.getvalue().decode().split())
print(decision)
sys.exit(0 if not status and decision in {"1", "100"} else 1)
"""
#: Lets a program read `input.txt` and write `output.txt`; the standard streams are not its own.
_FILES = """
def _use_files():
    import builtins, io, os, sys
    opened, files = io.open, {"input.txt": os.dup(0), "output.txt": os.dup(1)}
    def open_file(file, *args, **options):
        name = os.path.normpath(file) if isinstance(file, (str, os.PathLike)) else file
        if name == "input.txt":
            os.lseek(files[name], 0, os.SEEK_SET)
        return opened(os.dup(files[name]) if name in files else file, *args, **options)
    builtins.open = io.open = open_file
    sys.stdin, sys.stdout = io.StringIO(), io.StringIO()
_use_files()
del _use_files
"""


def read_codeforces(row: Row) -> dict[str, Any]:
    """Return the fields of `StdioTests`; raise InvalidRequest if the row cannot be read."""
    if row.get("interaction_format"):
        raise InvalidRequest("interaction_format: interactive problems are not supported")
    if (mode := row.get("input_mode") or "stdio") not in {"stdio", "file"}:
        raise InvalidRequest(f"input_mode: must be 'stdio' or 'file' (got {str(mode)[:40]!r})")
    cases = []
    for index, test in enumerate(list_of(row.get("official_tests"), "official_tests")):
        match test:
            case {"input": str(given), "output": str(expected)}:
                lines = filter(None, expected.replace("\r\n", "\n").split("\n"))
                stdin = given.replace("\r\n", "\n")
                cases.append({"stdin": stdin, "stdout": "".join(f"{line}\n" for line in lines)})
            case _:
                raise InvalidRequest(f"official_tests.{index}: must have `input` and `output`")
    fields: dict[str, Any] = {"kind": "stdio", "cases": cases, "checker": "codeforces"}
    if mode == "file":
        fields["setup"] = _FILES
    if source := row.get("generated_checker"):
        program = f"SOURCE = {source!r}{_CHECKER}"
        fields |= {
            "checker": "tokens",
            "checker_program": {"language": "python", "source": program},
        }
    return fields
