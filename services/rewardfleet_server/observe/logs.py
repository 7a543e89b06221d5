"""Logging: JSON lines, or plain lines on a terminal."""

import atexit
import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime

import orjson

from .telemetry import REQUEST

#: What is written to standard error outside of Python. It is logged at any `log_level`.
_native = logging.getLogger(f"{__name__}.stderr")
_native.setLevel(logging.INFO)
#: What every record has. Anything else was given as `extra`.
_OF_ALL_RECORDS = {*vars(logging.makeLogRecord({})), "message", "color_message"}
#: Seconds for the last of these lines when the process ends.
_FLUSH_SECONDS = 0.2


def add_request_id(record: logging.LogRecord) -> bool:
    """Add its id to a line that is written while a request is handled; keep every line."""
    request = REQUEST.get(None)
    if request is not None:
        record.request_id = request.request_id
    return True


class _JsonFormatter(logging.Formatter):
    """Formats a line as JSON, with its `extra`. It is short, as each request waits for it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        line |= {name: each for name, each in vars(record).items() if name not in _OF_ALL_RECORDS}
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack_info"] = record.stack_info
        try:
            return orjson.dumps(line, default=str).decode()
        except orjson.JSONEncodeError:  # half of a surrogate pair, or a number of over 64 bits
            return json.dumps(line, default=str)


class _TerminalFormatter(logging.Formatter):
    """Formats a line as `12:30:01 WARNING message  key=value`."""

    default_time_format = "%H:%M:%S"
    default_msec_format = ""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        shown = ("path", "status", "kind", "detail", "items", "cached", "failed", "total_ms")
        extra = {name: getattr(record, name, None) for name in shown}
        pairs = " ".join(f"{name}={value}" for name, value in extra.items() if value)
        head, newline, traceback = line.partition("\n")
        return f"{head}  {pairs}{newline}{traceback}" if pairs else line


def capture_native_output() -> None:
    """Log what libraries such as libpng, and child processes, write to standard error.

    Each of their lines becomes one of the log, which programs can parse as JSON. Python's own
    output, as of a crash, still goes to standard error itself. Does nothing on a terminal, or if
    standard error has been replaced.
    """
    if sys.stderr.isatty() or sys.stderr is not sys.__stderr__:
        return
    stderr = os.dup(2)
    sys.stderr = os.fdopen(stderr, "w", buffering=1, errors="backslashreplace")
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def log_lines() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="backslashreplace") as lines:
            for line in lines:
                if text := line.strip():
                    _native.warning("%s", text)

    reader = threading.Thread(target=log_lines, name="stderr", daemon=True)
    reader.start()

    def flush() -> None:
        os.dup2(stderr, 2)  # closes the pipe, which ends the thread
        reader.join(_FLUSH_SECONDS)

    atexit.register(flush)


def configure_logging(level: str) -> None:
    """Write log lines from a level on, e.g. `info`, to standard error: as JSON, or as text."""
    logging.captureWarnings(True)
    # By default these are determined for every line, and they are not written.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - as its documentation says
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(add_request_id)
    handler.setFormatter(_JsonFormatter())
    if sys.stderr.isatty():
        handler.setFormatter(_TerminalFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The lines of serve.py have more information than uvicorn's own.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
