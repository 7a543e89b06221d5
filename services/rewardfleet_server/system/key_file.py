"""Files of keys."""

from pathlib import Path


def read_keys(path: Path, flag: str) -> list[str]:
    """Return the keys in a file, of which there is at least one.

    Args:
        path: A file with one key per line; empty lines and those that start with `#` are ignored.
        flag: The setting that names the file, for messages.

    Raises:
        ValueError: The file contains no key.
        OSError: The file cannot be read.
    """
    source = f"{flag} {path}"
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not a text file") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ValueError(f"{source}: a key is not plain ASCII")
    if not keys:
        raise ValueError(f"{source}: no key in it; write one key per line")
    return keys
