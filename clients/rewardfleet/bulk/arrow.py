"""PyArrow, which reads and writes column stores, and is optional."""

from typing import Any


def pyarrow() -> Any:
    """Import pyarrow, with `pyarrow.parquet`.

    Raises:
        ValueError: It is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise ValueError(
            "Parquet and Arrow files need pyarrow: pip install pyarrow; or use JSONL, with "
            "--format jsonl"
        ) from None
    return pyarrow
