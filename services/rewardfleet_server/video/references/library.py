"""A library of labeled rollouts: a folder with `manifest.jsonl` and video files."""

import hashlib
import os
import re
from collections import Counter
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.validation import format_validation_error, read_lines
from rewardfleet_server.video.clip.containers import check_container
from rewardfleet_server.video.clip.frames import DecodeSpec, decode_video

from .matcher import DecodedReference, Library, Reference, normalize_task
from .thumbnail import Thumbnails, change, shrink

#: The library in the package: rollouts of 14 LIBERO tasks, see its NOTICE.md.
SHIPPED = Path(__file__).parent / "libero"

MANIFEST = "manifest.jsonl"  #: name of the manifest, one `ManifestEntry` per line

_FRAMES = 24  #: frames per reference, evenly spread
#: Frames become thumbnails after decoding, so this limits only the memory of decoding.
_MAX_PIXELS = 1_605_632
_MAX_BYTES = 2**30


class ManifestEntry(BaseModel):
    """One line of the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    file: str = Field(min_length=1)  #: path of the video file, relative to the library
    task_text: str  #: the task; case and punctuation do not matter
    success: bool  #: whether the task was done at the end of the clip
    #: Index of the first frame that shows the success; it improves the judge.
    success_frame: NonNegativeInt | None = None
    sha256: str | None = None  #: of the file, in hex; a changed file is refused

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        path = PurePath(self.file)
        if path.is_absolute() or ".." in path.parts or "\0" in self.file:
            raise ValueError("a file must be inside the library")
        if not normalize_task(self.task_text):
            raise ValueError("a task's text must contain a word")
        if self.success_frame is not None and not self.success:
            raise ValueError("success_frame goes with success: true only")
        return self


def load_library(folder: Path) -> Library:
    """Read a library; ValueError if its manifest is damaged, or a file is missing or changed.

    Its files are decoded when they are needed, which notices damage.
    """
    digest = hashlib.sha256()
    references = []
    for line, entry in _entries(folder):
        sha256 = _sha256(folder / entry.file)
        if entry.sha256 not in {None, sha256}:
            raise ValueError(f"{line}: {entry.file} has changed: its sha256 is {sha256}")
        hashed = entry.model_copy(update={"sha256": sha256})
        digest.update(hashed.model_dump_json().encode())
        labels = entry.task_text, entry.success, entry.success_frame
        references.append(Reference(entry.file, *labels, cache(partial(_decode, folder, entry))))
    return Library(tuple(references), digest.hexdigest())


def count_references(folder: Path) -> dict[str, Counter[bool]]:
    """Return how many successes (True) and failures of each task are in a manifest."""
    counts: dict[str, Counter[bool]] = {}
    for _, entry in _entries(folder):
        counts.setdefault(normalize_task(entry.task_text), Counter())[entry.success] += 1
    return dict(sorted(counts.items()))


def add_reference(
    folder: Path, clip: Path, task_text: str, *, success: bool, success_frame: int | None = None
) -> ManifestEntry:
    """Copy a clip into a library, which need not exist, and append it to the manifest.

    Labels are those of `ManifestEntry`.

    Raises:
        ValueError: The clip is not a video or already in the library, or the library is damaged.
        OSError: A file cannot be read or written.
    """
    content = clip.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", clip.stem)[:100]
    name = f"{stem}-{sha256[:8]}{clip.suffix}"
    labels = {"task_text": task_text, "success": success, "success_frame": success_frame}
    try:
        entry = ManifestEntry.model_validate({"file": name, **labels, "sha256": sha256})
    except ValidationError as error:
        raise ValueError(format_validation_error(error, ManifestEntry)) from None
    existing = _entries(folder) if (folder / MANIFEST).exists() else []
    for _, other in existing:
        if other.sha256 == sha256:
            raise ValueError(f"{clip.name} is already in the library, as {other.file}")
    _decode(clip.parent, entry.model_copy(update={"file": clip.name}))
    folder.mkdir(parents=True, exist_ok=True)
    # The file is complete before the manifest names it, so a crash leaves a valid library.
    part = folder / f".{name}.part"
    part.write_bytes(content)
    part.replace(folder / name)
    with (folder / MANIFEST).open("a+b") as file:
        file.seek(0)
        text = file.read()
        newline = b"" if not text or text.endswith(b"\n") else b"\n"
        file.write(newline + entry.model_dump_json(exclude_none=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return entry


def _entries(folder: Path) -> list[tuple[str, ManifestEntry]]:
    """Read the manifest; each entry comes with its line, for messages."""
    entries = []
    try:
        for number, entry in read_lines(folder / MANIFEST, ManifestEntry):
            line = f"{MANIFEST}, line {number}"
            if isinstance(entry, str):
                raise ValueError(f"{line}: {entry}")  # noqa: TRY004 - of a value
            entries.append((line, entry))
    except OSError as error:
        raise ValueError(f"not a library: {MANIFEST}: {error.strerror}") from error
    if not entries:
        raise ValueError(f"an empty library: {MANIFEST} has no line")
    return entries


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"{path.name} of the library cannot be read: {error.strerror}") from error


def _decode(folder: Path, entry: ManifestEntry) -> DecodedReference:
    path = folder / entry.file
    try:
        with path.open("rb") as file:
            check_container(file.fileno(), entry.file, max_bytes=_MAX_BYTES)
        clip = decode_video(str(path), DecodeSpec(_FRAMES, _MAX_PIXELS))
    except RewardFleetError as error:
        raise ValueError(f"{entry.file}: {error.detail}") from None
    if entry.success_frame is not None and entry.success_frame >= clip.total:
        raise ValueError(f"{entry.file}: success_frame is past its {clip.total} frames")
    pixels = shrink(clip.frames)
    touched = change(Thumbnails.of(pixels[:1]), Thumbnails.of(pixels))
    return DecodedReference(pixels, touched, clip.total)
