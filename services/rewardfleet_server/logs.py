"""Logging: JSON lines, or plain lines on a terminal."""

import logging
import logging.config
import sys

from pythonjsonlogger.core import RESERVED_ATTRS

from .extras import require
from .telemetry import REQUEST_ID


class RequestIdFilter(logging.Filter):
    """Adds the request id to the lines that are written while a request is handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set `request_id`, if there is one; keep every line."""
        request_id = REQUEST_ID.get(None)
        if request_id is not None:
            record.request_id = request_id
        return True


class _TerminalFormatter(logging.Formatter):
    """Formats a line as `12:30:01 WARNING message  key=value`."""

    default_time_format = "%H:%M:%S"
    default_msec_format = ""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        shown = ("path", "status", "kind", "detail", "items", "cached", "total_ms")
        extra = {name: getattr(record, name, None) for name in shown}
        pairs = " ".join(f"{name}={value}" for name, value in extra.items() if value)
        head, newline, traceback = line.partition("\n")
        return f"{head}  {pairs}{newline}{traceback}" if pairs else line


def configure_logging(level: str) -> None:
    """Write every log line to standard error: as JSON, or as plain text on a terminal.

    Args:
        level: The least severe level to write, e.g. `info`.

    Raises:
        ValueError: The package that writes JSON is not installed.
    """
    require("server", "the log", "orjson")
    logging.captureWarnings(True)
    # By default these are determined for every line, and they are not written.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    json_format = {
        "()": "pythonjsonlogger.orjson.OrjsonFormatter",
        "format": "{levelname}{name}{message}",
        "style": "{",
        "timestamp": "time",
        "rename_fields": {"levelname": "level", "name": "logger"},
        "reserved_attrs": [*RESERVED_ATTRS, "color_message"],
    }
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": json_format, "terminal": {"()": _TerminalFormatter}},
            "filters": {"request": {"()": RequestIdFilter}},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "filters": ["request"],
                    "formatter": "terminal" if sys.stderr.isatty() else "json",
                    "stream": sys.stderr,
                }
            },
            # The lines of serve.py have more information than uvicorn's own.
            "loggers": {"uvicorn": {"level": "WARNING"}},
            "root": {"level": level.upper(), "handlers": ["stderr"]},
        }
    )
