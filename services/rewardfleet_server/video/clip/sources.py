"""The sources of a clip: each is checked, identified by its content, and decoded."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from rewardfleet.wire.errors import Forbidden, InvalidRequest, NotFound
from rewardfleet.wire.frames import Frames
from rewardfleet_server.system.anonymous_file import AnonymousFile

from .containers import ACCEPTED, check_container
from .frames import (
    Clip,
    Cost,
    DecodeSpec,
    as_mp4,
    decode_images,
    decode_video,
    images_cost,
    plain_copy,
    select_frames,
    video_cost,
)
from .video_reader import TimeRange

#: The digest of a file that changed more recently is not stored: the file may change again within
#: the resolution of its time stamp.
_SETTLED_SECONDS = 2.0
_MAX_DIGESTS = 4096
#: Images of this size are hashed in a tenth of a millisecond, so on the event loop.
_MAX_INLINE_BYTES = 64 * 1024
_LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}

#: Failures of this machine, not of the file that the caller named.
_INTERNAL_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ENOSPC}

#: Device, inode, size and times of the last change; equal only for an unchanged file.
_Identity = tuple[int, ...]


class Source(Protocol):
    """A clip before it is decoded. All methods block that do not say otherwise."""

    has_quick_cost: ClassVar[bool] = False  #: whether `cost` reads one header at most, from memory

    def cached_sha256(self) -> str | None:
        """Return `sha256` if that takes well under a millisecond, else None. Does not block."""
        return None

    def sha256(self) -> str:
        """Check the source, see `VideoFiles.open`; return the SHA-256 of its content, in hex."""

    def digest_of(self, sha256: str) -> str:
        """Return what identifies the source, given the SHA-256 of its content."""
        return sha256

    def cost(self, part: TimeRange | None) -> Cost:
        """Return what decoding the part of a file, or all, takes; see `frames.video_cost`."""

    def is_decoded(self, spec: DecodeSpec) -> bool:  # noqa: ARG002 - for those that are
        """Return whether `clip` takes microseconds and no memory. This does not block."""
        return False

    def clip(self, spec: DecodeSpec, sha256: str) -> Clip:
        """Decode frames.

        Args:
            sha256: The result of `sha256`; the content must not have changed since.

        Raises:
            RewardFleetError: See `frames.decode_video` and `frames.decode_images`.
            InvalidRequest: The file has changed.
            TimeoutError: `spec.stop` was set.
        """

    def file(self, spec: DecodeSpec, sha256: str) -> contextlib.AbstractContextManager[str]:
        """Give the path of a video file for the block; entering it raises the errors of `clip`."""
        is_whole = spec.part is None and not (spec.recording and spec.recording.trims)
        return (self._whole_file if is_whole else self._file_of_frames)(spec, sha256)

    @contextlib.contextmanager
    def _file_of_frames(self, spec: DecodeSpec, sha256: str) -> Iterator[str]:
        with as_mp4(self.clip(spec, sha256)) as path:
            yield str(path)

    def _whole_file(self, spec: DecodeSpec, sha256: str) -> contextlib.AbstractContextManager[str]:
        return self._file_of_frames(spec, sha256)


class VideoFiles:
    """Opens files that callers name by path: only regular files, only under the given folders."""

    def __init__(self, roots: Sequence[Path], *, max_bytes: int) -> None:
        self._roots = [os.path.realpath(root) for root in roots]  # if there are none, no path
        self._max_bytes = max_bytes
        # By path: the file's identity, and its digest.
        self._digests: dict[str, tuple[_Identity, str]] = {}
        self._local_devices = _local_devices()
        self._all_local = all(os.stat(root).st_dev in self._local_devices for root in self._roots)

    def cached_digest(self, path: str) -> str | None:
        """Return the stored digest of a file that has not changed; None if that takes long.

        It takes one `stat` on a local disk. Network file systems can block.
        """
        if not self._all_local:
            return None
        identity, digest = self._digests.get(path, ((), None))
        if not identity or identity[0] not in self._local_devices:
            return None
        for root in self._roots:
            try:
                found = _identity(os.stat(os.path.join(root, path)))
            except (OSError, ValueError):
                continue
            return digest if found == identity else None
        return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[tuple[str, str]]:
        """Open and check the file that a caller names. Blocks.

        It stays open for the block, which gets a path that opens it even if its name changes, and
        the SHA-256 of its content, in hex.

        Raises:
            Forbidden: It is outside the folders, or the service may not read it.
            NotFound: There is no such file under the folders.
            InvalidRequest: It is not a regular file, or not a complete video container.
            TooLarge: It has more than `max_bytes`.
        """
        with self.open_unread(path) as fd:
            status = os.fstat(fd)
            check_container(fd, f"video_path {path!r}", max_bytes=self._max_bytes)
            digest = _sha256(_path_of(fd))
            self._store(path, status, digest)
            yield _path_of(fd), digest

    @contextlib.contextmanager
    def open_unread(self, path: str) -> Iterator[int]:
        """Open the file, without reading it; see `open`."""
        fd = _open(self._resolve(path), path)
        try:
            # Symlinks may have changed since the path was resolved: check the open file itself.
            if not self._is_inside(os.readlink(_path_of(fd))):
                raise self._outside(path)
            _check_regular(os.fstat(fd), path)
            yield fd
        finally:
            os.close(fd)

    def _resolve(self, path: str) -> str:
        if "\0" in path:
            raise InvalidRequest("video_path contains a NUL character; give a plain path")
        if not self._roots:
            raise Forbidden(
                "video_path is not accepted: the service was started without --video-root; "
                "send frames_base64 or video_base64"
            )
        candidates = [os.path.realpath(os.path.join(root, path)) for root in self._roots]
        inside = [candidate for candidate in candidates if self._is_inside(candidate)]
        if not inside:
            raise self._outside(path)
        return next((candidate for candidate in inside if os.path.lexists(candidate)), inside[0])

    def _is_inside(self, real: str) -> bool:
        return any(real.startswith(os.path.join(root, "")) for root in self._roots)

    @staticmethod
    def _outside(path: str) -> Forbidden:
        # The same message whether the file exists or not: callers must not learn which.
        return Forbidden(
            f"video_path {path!r} is outside the folders that this service reads (--video-root)"
        )

    def _store(self, path: str, status: os.stat_result, digest: str) -> None:
        """Store a digest, unless the file changed too recently."""
        if time.time() - max(status.st_mtime, status.st_ctime) < _SETTLED_SECONDS:
            return
        if len(self._digests) >= _MAX_DIGESTS:
            self._digests.clear()
        self._digests[path] = _identity(status), digest


def _local_devices() -> frozenset[int]:
    """Return the devices of mounted local file systems; any other device counts as remote."""
    devices = set()
    with open("/proc/self/mountinfo") as mounts:
        for mount in mounts:
            location, _, kind = mount.partition(" - ")
            if kind.split(" ", 1)[0] in _LOCAL_FILE_SYSTEMS:
                major, _, minor = location.split(" ")[2].partition(":")
                devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True)
class PathSource(Source):
    files: VideoFiles  #: opens the file
    path: str  #: as the caller wrote it, absolute or relative to a root

    def cached_sha256(self) -> str | None:
        return self.files.cached_digest(self.path)

    def sha256(self) -> str:
        with self.files.open(self.path) as (_, sha256):
            return sha256

    def cost(self, part: TimeRange | None) -> Cost:
        with self.files.open_unread(self.path) as fd:
            return video_cost(_path_of(fd), part)

    def clip(self, spec: DecodeSpec, sha256: str) -> Clip:
        with self._unchanged(sha256) as path:
            return decode_video(path, spec)

    @contextlib.contextmanager
    def _whole_file(self, spec: DecodeSpec, sha256: str) -> Iterator[str]:
        with self._unchanged(sha256) as path, plain_copy(path, spec) as copy:
            # A path that other processes can open as well.
            yield os.readlink(path) if copy is None else str(copy)

    @contextlib.contextmanager
    def _unchanged(self, sha256: str) -> Iterator[str]:
        with self.files.open(self.path) as (path, found):
            if found != sha256:
                raise InvalidRequest(f"video_path {self.path!r} changed while it was being scored")
            yield path


@dataclass(frozen=True)
class AnonymousSource(Source):
    video: AnonymousFile  #: uploaded or fetched
    label: str  #: how error messages call it
    max_bytes: int  #: the largest file accepted

    def sha256(self) -> str:
        check_container(self.video.fd, self.label, max_bytes=self.max_bytes)
        return _sha256(self.video.path)

    def cost(self, part: TimeRange | None) -> Cost:
        return video_cost(self.video.path, part)

    def clip(self, spec: DecodeSpec, sha256: str) -> Clip:  # noqa: ARG002 - it cannot change
        return decode_video(self.video.path, spec)

    @contextlib.contextmanager
    def _whole_file(self, spec: DecodeSpec, sha256: str) -> Iterator[str]:  # noqa: ARG002
        with (
            plain_copy(self.video.path, spec) as copy,
            tempfile.NamedTemporaryFile(prefix="rewardfleet-", suffix=".mp4") as file,
        ):
            if copy is None:
                shutil.copyfile(self.video.path, file.name)
            yield str(copy or file.name)


@dataclass(frozen=True)
class _SentFrames(Source):
    """Frames in the request itself."""

    has_quick_cost = True
    parts: Sequence[Any]  #: their bytes, or views of these
    fps: float | None  #: frames per second, or None if unknown

    def cached_sha256(self) -> str | None:
        return self.sha256() if sum(map(len, self.parts)) <= _MAX_INLINE_BYTES else None

    def sha256(self) -> str:
        content = hashlib.sha256()
        for part in self.parts:
            content.update(part)
        return content.hexdigest()

    def digest_of(self, sha256: str) -> str:
        return hashlib.sha256(repr([self.fps, *self._layout, sha256]).encode()).hexdigest()

    @property
    def _layout(self) -> tuple[object, ...]:
        """How frames are divided in their bytes: otherwise, others would have the same digest."""
        return ([*map(len, self.parts)],)


class ImagesSource(_SentFrames):
    """Frames that the caller sent as JPEG or PNG images, one per part, in order."""

    def cost(self, part: TimeRange | None) -> Cost:  # noqa: ARG002 - of video files only
        return images_cost(self.parts)

    def clip(self, spec: DecodeSpec, sha256: str) -> Clip:  # noqa: ARG002 - they cannot change
        return decode_images(self.parts, self.fps, spec)


@dataclass(frozen=True)
class FramesSource(_SentFrames):
    """Frames that the caller sent as raw pixels, uint8, in one part."""

    frames: Frames  #: their shape

    @property
    def _layout(self) -> tuple[object, ...]:
        return self.frames.shape, self.frames.order

    def cost(self, part: TimeRange | None) -> Cost:  # noqa: ARG002 - of video files only
        return Cost(0, len(self.parts[0]) // 3)

    def is_decoded(self, spec: DecodeSpec) -> bool:
        _, height, width, _ = self.frames.shape
        return self.frames.order == "THWC" and height * width <= spec.max_pixels

    def clip(self, spec: DecodeSpec, sha256: str) -> Clip:  # noqa: ARG002 - they cannot change
        frames = np.frombuffer(self.parts[0], np.uint8).reshape(self.frames.shape)
        return select_frames(frames, self.fps, spec, is_planar=self.frames.order == "TCHW")


def _path_of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _open(real: str, path: str) -> int:
    try:
        # Checked before opening, because opening a device or a FIFO can have side effects.
        _check_regular(os.lstat(real), path)
        return os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"video_path {path!r} does not exist") from None
    except PermissionError:
        raise Forbidden(f"video_path {path!r} may not be read by the service") from None
    except OSError as error:
        if error.errno in _INTERNAL_ERRNOS:
            raise
        raise InvalidRequest(f"video_path {path!r} cannot be opened: {error.strerror}") from None


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InvalidRequest(f"video_path {path!r} is a folder; {ACCEPTED}")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(f"video_path {path!r} is not a regular file; {ACCEPTED}")


def _sha256(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
