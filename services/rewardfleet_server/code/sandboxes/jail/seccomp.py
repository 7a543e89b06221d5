"""The system calls that a program may make: a list of what is allowed.

Among what is refused: creating processes, running other programs, signaling or tracing processes,
opening sockets, changing namespaces or mounts, changing what Landlock does not cover (modes, owners
and times of files), and leaving objects in the kernel that outlive the program. A call that is on
no list fails with ENOSYS, as on an older kernel.

No call of a program makes the kernel end it with SIGKILL. So if that happens, it came from outside.
"""

import errno
import os
import resource
import tempfile
from dataclasses import dataclass
from typing import Any

from .guest.descriptors import LISTENER_REQUESTS

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek sendfile
copy_file_range fadvise64 readahead fallocate ftruncate fsync fdatasync flock
creat close close_range dup dup2 dup3 pipe pipe2 umask
stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat
renameat2 link linkat symlink symlinkat
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4
sendto recvfrom recvmsg shutdown getsockopt getsockname getpeername
mmap munmap mprotect mremap madvise mincore msync mlock mlock2 munlock brk
arch_prctl set_tid_address set_robust_list get_robust_list futex futex_waitv rseq membarrier
exit exit_group wait4 waitid restart_syscall
getpid gettid getppid getpgrp getpgid getsid getuid geteuid getgid getegid getgroups getresuid
getresgid capget uname sysinfo times getrusage getrlimit setrlimit getpriority getcpu getrandom
sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max
sched_get_priority_min
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time alarm pause getitimer
setitimer
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack
"""

#: Calls that only the supervisor and the zygote may make. Each run inherits their large filter, and
#: adds a small one that refuses them: the kernel is slow to load a large filter.
_SUPERVISOR = """
fork vfork kill pidfd_open memfd_create sendmsg seccomp
"""

#: Refused with EPERM, which is clearer in a traceback than ENOSYS.
_REFUSED = """
execve execveat tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo
pidfd_getfd pidfd_send_signal ptrace process_vm_readv process_vm_writev kcmp
socket connect bind listen accept accept4 sendmmsg
unshare setns mount umount2 pivot_root chroot bpf perf_event_open userfaultfd keyctl add_key
request_key io_uring_setup memfd_secret shmget semget msgget mq_open
chown fchown lchown fchownat mknod mknodat setxattr lsetxattr fsetxattr timer_create
truncate setuid setgid setreuid
setregid setresuid setresgid setgroups capset setsid setpgid setpriority sched_setaffinity
sched_setscheduler sched_setattr sched_setparam ioprio_set migrate_pages move_pages
"""

#: Calls that do nothing, and return as if they had succeeded: programs copy files together with
#: their modes and times. Landlock does not cover these, and a folder of another mode might stay.
_IGNORED = "chmod fchmod fchmodat fchmodat2"
#: Ignored as well where other files than those of the jail could be named.
_TIMES = "utime utimes utimensat futimesat"

#: Masks and values of the flags of open: for reading without truncation, and for writing.
_OPEN_TO_READ = (os.O_ACCMODE | os.O_TRUNC, os.O_RDONLY)
_OPEN_TO_WRITE = ((os.O_ACCMODE, os.O_WRONLY), (os.O_ACCMODE, os.O_RDWR))
#: Commands of fcntl: copies, flags, queries of locks, the size of a pipe and seals. None that names
#: a process.
_FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032, 1033, 1034)
#: Those that lock a range of a file are ignored, because locks take unlimited memory of the kernel.
#: There is no other process to lock a file for.
_IGNORED_FCNTL = (6, 7, 37, 38)
#: It sets the size of a pipe. The kernel limits the sum over all pipes of a user, so one program
#: could leave the programs of other jails with pipes of one page.
_SET_PIPE_SIZE = 1031
#: Requests of ioctl: whether it is a terminal, its size, bytes that can be read, flags; answers to
#: calls of programs, for which only the supervisor has a descriptor.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, *LISTENER_REQUESTS)
#: Options of prctl: names of threads and of memory, and harmless queries.
_PRCTL = (3, 15, 16, 39, 0x53564D41)
#: Options of prctl for the supervisor and the zygote: to end with its parent, to be dumpable.
_SUPERVISOR_PRCTL = (1, 4)

_CLONE_THREAD = 0x00010000
#: Flags of clone, in its first argument, that make namespaces.
_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX, _SOCK_STREAM = 1, 1


@dataclass(frozen=True)
class Filters:
    """The filters, as BPF programs, in the order in which a supervisor takes them."""

    supervisor: bytes  #: for the supervisor and the zygote, inherited by each run
    run: bytes  #: for each run, in addition
    asking: bytes = b""  #: for the zygote instead, if the supervisor decides what can be read


def compiled_filters(*, sets_times: bool) -> Filters:
    """Compile the filters, by which programs may set the times of files or not.

    Raises:
        RuntimeError: libseccomp is not installed.
        ImportError: pyseccomp is not installed.
    """
    # The import fails if the C library is missing.
    import pyseccomp as seccomp  # type: ignore[import-untyped] # noqa: PLC0415

    actions = (seccomp.ALLOW, seccomp.NOTIFY)
    supervisor, asking = (_supervisor_filter(seccomp, sets_times, each) for each in actions)
    return Filters(supervisor, _run_filter(seccomp), asking)


def _run_filter(seccomp: Any) -> bytes:
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    refused = seccomp.ERRNO(errno.EPERM)
    for name in _known(seccomp, _SUPERVISOR):
        rules.add_rule(refused, name)
    for value in _SUPERVISOR_PRCTL:
        rules.add_rule(refused, "prctl", seccomp.Arg(0, seccomp.EQ, value))
    process = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, 0)
    rules.add_rule(refused, "clone", process)
    # The one on CPU time would send SIGKILL, that on core dumps prevents them. 32 bits are read.
    for name, index in (("setrlimit", 0), ("prlimit64", 1)):
        changes = (seccomp.Arg(2, seccomp.NE, 0),) if name == "prlimit64" else ()
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_CORE):
            is_kind = seccomp.Arg(index, seccomp.MASKED_EQ, 0xFFFFFFFF, kind)
            rules.add_rule(refused, name, is_kind, *changes)
    return _exported(rules)


def _supervisor_filter(seccomp: Any, sets_times: bool, reading: Any) -> bytes:
    def equals(index: int, value: int) -> Any:
        return seccomp.Arg(index, seccomp.EQ, value)

    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    # A search tree, because every call runs the filter.
    rules.set_attr(seccomp.Attr.CTL_OPTIMIZE, 2)
    refused, ignored = seccomp.ERRNO(errno.EPERM), seccomp.ERRNO(0)
    for action, names in (
        (seccomp.ALLOW, _ALLOWED + _SUPERVISOR),
        (refused, _REFUSED),
        (ignored, _IGNORED),
        (seccomp.ALLOW if sets_times else ignored, _TIMES),
    ):
        for name in _known(seccomp, names):
            rules.add_rule(action, name)
    # Old versions of Landlock do not prevent truncation by opening a file for reading.
    for name, index in (("open", 1), ("openat", 2)):
        for known in _known(seccomp, name):
            action = reading if name == "openat" else seccomp.ALLOW  # C libraries use no other
            rules.add_rule(action, known, seccomp.Arg(index, seccomp.MASKED_EQ, *_OPEN_TO_READ))
            for mask, value in _OPEN_TO_WRITE:
                flags = seccomp.Arg(index, seccomp.MASKED_EQ, mask, value)
                rules.add_rule(seccomp.ALLOW, known, flags)
    for action, name, index, values in (
        (ignored, "fcntl", 1, _IGNORED_FCNTL),
        (seccomp.ALLOW, "fcntl", 1, _FCNTL),
        (refused, "fcntl", 1, (_SET_PIPE_SIZE,)),
        (seccomp.ALLOW, "ioctl", 1, _IOCTL),
        (seccomp.ALLOW, "prctl", 0, _PRCTL + _SUPERVISOR_PRCTL),
        (seccomp.ALLOW, "prlimit64", 0, (0,)),  # its own limits only
    ):
        for value in values:
            rules.add_rule(action, name, equals(index, value))
    # Only pairs, which asyncio needs, of the one kind that cannot send to another address.
    stream = seccomp.Arg(1, seccomp.MASKED_EQ, 0xF, _SOCK_STREAM)
    rules.add_rule(seccomp.ALLOW, "socketpair", equals(0, _AF_UNIX), stream)
    same_namespaces = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_NAMESPACES, 0)
    rules.add_rule(seccomp.ALLOW, "clone", same_namespaces)
    return _exported(rules)


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _known(seccomp: Any, names: str) -> list[str]:
    """Return the names that exist on this machine's architecture."""
    arch = seccomp.system_arch()
    return [name for name in names.split() if seccomp.resolve_syscall(arch, name) >= 0]
