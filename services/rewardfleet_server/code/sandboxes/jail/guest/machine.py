"""The machine that programs see: its files, besides those of Python, and its names.

The kernel asks the supervisor before a process of a run opens a file for reading. Some files have
fixed contents, so that packages work, and work alike on all machines; no others exist. What is left
to the kernel, Landlock may still refuse. So nothing shows the host or another process.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import re
import socket
import struct
from typing import BinaryIO

from .descriptors import ALL_SEALS, ANSWER, GIVE, RECEIVE

_HOST = "jail"
_USER = (os.getenv("USER"), "x", os.getuid(), os.getgid(), "", os.getenv("HOME"), "/bin/sh")
_CPU_FILES = "online possible present cpu0/topology/core_id cpu0/topology/physical_package_id"
_FILES = {f"/sys/devices/system/cpu/{name}": "0\n" for name in _CPU_FILES.split()} | {
    "/sys/fs/cgroup/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "/etc/group": f"{_USER[0]}:x:{os.getgid()}:\n",
    "/etc/mime.types": "",
    "/etc/passwd": ":".join(map(str, _USER)) + "\n",
    "/etc/timezone": "UTC\n",
    "/proc/cpuinfo": "processor\t: 0\nmodel name\t: CPU\ncpu MHz\t\t: 2000.000\n"
    "cache size\t: 1024 KB\nphysical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\n\n",
    "/proc/loadavg": "0.00 0.00 0.00 1/1 1\n",
    "/proc/meminfo": "MemTotal: 4194304 kB\nMemFree: 3145728 kB\nMemAvailable: 3670016 kB\n"
    "Buffers: 0 kB\nCached: 524288 kB\nActive: 262144 kB\nInactive: 262144 kB\nShmem: 0 kB\n"
    "Slab: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "/proc/stat": "cpu  9 0 9 99 0 0 0\ncpu0 9 0 9 99 0 0 0\n"
    "intr 0\nctxt 0\nbtime 1700000000\nsoftirq 0\n",
    "/proc/vmstat": "pswpin 0\npswpout 0\n",
    "/proc/self/cgroup": "0::/\n",
    "/proc/self/cmdline": "python\0program.py\0",
}
#: What the kernel says of a process, which only that process can read.
_OWN_FILES = {f"/proc/self/{name}" for name in ("maps", "stat", "statm", "status")}
_PROCESS = re.compile(r"/proc/(?:self|thread-self|(\d+))(?=/)")
#: Folders that are left to the kernel, besides those of Python.
_LEFT = ("/dev", "/bin", "/sbin", "/proc/self/fd")

#: The kernel's `struct seccomp_notif`, `seccomp_notif_resp` and `seccomp_notif_addfd`.
_CALLED, _ANSWERED, _GIVEN = "=QIIiIQ6Q", "=QqiI", "=QIIII"
_CONTINUE, _GIVE_AND_ANSWER = 1, 2


def give_names() -> None:
    """Give the user of the programs and their host the same names on all machines."""
    user = pwd.struct_passwd(_USER)
    by_key = {user.pw_name: user, user.pw_uid: user}
    vars(pwd).update(getpwnam=by_key.__getitem__, getpwuid=by_key.__getitem__)
    system, _, *version = os.uname()
    host = os.uname_result((system, _HOST, *version))
    vars(os)["uname"], vars(socket)["gethostname"] = (lambda: host), (lambda: _HOST)


class Machine:
    """Decides which files the processes of runs read, beside the folders that Landlock permits."""

    def __init__(self, listener: int, folders: list[str]) -> None:
        self.listener = listener  #: the descriptor by which the kernel asks
        folders = [*folders, *map(os.path.realpath, folders), *_LEFT]
        self._left = tuple(f"{folder}/" for folder in folders)

    def answer(self) -> None:
        """Answer a call. No answer is needed if its process has ended, or was interrupted."""
        called = bytearray(struct.calcsize(_CALLED))
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.listener, RECEIVE, called)
            number, pid, _, _, _, _, _, address, mode, *_ = struct.unpack(_CALLED, called)
            error, flags = 0, _CONTINUE
            try:
                if (file := self._file(pid, address, mode)) is not None:
                    with file:
                        given = (number, _GIVE_AND_ANSWER, file.fileno(), 0, os.O_CLOEXEC)
                        fcntl.ioctl(self.listener, GIVE, struct.pack(_GIVEN, *given))
                        return
            except OSError as refused:  # by the line above if the process has too many files
                error, flags = refused.errno or errno.ENOENT, 0
            answer = struct.pack(_ANSWERED, number, 0, -error, flags)
            fcntl.ioctl(self.listener, ANSWER, answer)

    def _file(self, pid: int, address: int, mode: int) -> BinaryIO | None:
        """Return the file at a path in the memory of a thread; None if the kernel shall open it."""
        try:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                path = os.fsdecode(os.pread(memory.fileno(), 4096, address).partition(b"\0")[0])
        except (OSError, OverflowError):  # nothing is there
            return None
        if not path.startswith("/") or mode & os.O_CREAT:
            return None
        path = os.path.normpath("/" + path.lstrip("/"))
        found = _PROCESS.match(path)
        if found and (not found[1] or os.path.exists(f"/proc/{pid}/task/{found[1]}")):
            path = "/proc/self" + path[found.end() :]
        if path in _OWN_FILES:
            return open(path.replace("self", str(pid)), "rb")
        if path in _FILES:
            file = open(os.memfd_create("file", os.MFD_ALLOW_SEALING), "w+b", buffering=0)
            file.write(_FILES[path].encode())
            file.seek(0)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, ALL_SEALS)  # no limit would count what it gets
            return file
        if f"{path}/".startswith(self._left):
            return None
        raise FileNotFoundError(errno.ENOENT, path)
