"""Arrays of prepared tasks in the user's cache folder, so that a library is decoded only once."""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from rewardfleet_server.cache.entry import source_version
from rewardfleet_server.video.settings import references_cache

log = logging.getLogger(__name__)

Arrays: TypeAlias = dict[str, NDArray[Any]]  #: arrays without objects, by name

#: Libraries that are kept, of up to 90 MB each: those that were used last.
_MAX_LIBRARIES = 4


def folder_of(fingerprint: str) -> Path:
    """Return the folder of a library; it has another name whenever its content would differ."""
    source = source_version(Path(__file__).parents[1])
    made_by = (fingerprint, source, av.__version__, cv2.__version__, np.__version__)
    return references_cache() / hashlib.sha256(repr(made_by).encode()).hexdigest()


def make_folder(folder: Path) -> None:
    """Create a folder, or note that it is used; delete those that were not used for longest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        folders = sorted(folder.parent.iterdir(), key=lambda each: each.stat().st_mtime)
        for old in folders[:-_MAX_LIBRARIES]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        log.info("prepared references are not kept: %s: %s", folder, error.strerror)


def kept(folder: Path, name: str, make: Callable[[], Arrays]) -> Arrays:
    """Return arrays that a folder keeps under a name; make them if it has none, or damaged ones."""
    file = folder / f"{hashlib.sha256(name.encode()).hexdigest()}.npz"
    try:
        with file.open("rb") as content, np.load(content) as arrays:  # it checks their CRC-32
            return dict(arrays)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except Exception as error:  # noqa: BLE001 - of a damaged file, any
        log.warning("%s cannot be read and is made again: %s", file, error)
    made = make()
    if folder.is_dir():
        part = file.with_suffix(f".{os.getpid()}")
        try:
            with part.open("wb") as written:
                np.savez(written, allow_pickle=False, **made)
            part.replace(file)  # it is complete before others see it
        except OSError as error:
            log.warning("%s cannot be written: %s", file, error.strerror)
            part.unlink(missing_ok=True)
    return made
