"""The cgroups of this process, which limit what it may use of its machine."""

from collections.abc import Iterator
from pathlib import Path, PurePath


def cgroups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Return the folders of this process's cgroups for a controller, and of those they are in."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounted_at = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    mounts = [line.split() for line in mounted_at]
    for _, names, path in (line.split(":", 2) for line in groups):
        controllers = names.split(",")  # in version 2 there is one cgroup, without names
        for mount in mounts:
            kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
            is_v1 = kind == "cgroup" and controller in controllers and controller in options
            if not (is_v1 or (kind == "cgroup2" and not names)):
                continue
            mounted, top = mount[3], root / mount[4].lstrip("/")
            folder = top
            if PurePath(path).is_relative_to(mounted):  # else it is that of another namespace
                folder = top / PurePath(path).relative_to(mounted)
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(top))


def cpu_quotas(root: Path = Path("/")) -> Iterator[float]:
    """Return the limits on how many cores this process may use on average, as in containers."""
    for folder in cgroups("cpu", root):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                quota, period = " ".join((folder / name).read_text() for name in files).split()
                if int(quota) > 0:  # in version 1, -1 is no limit
                    yield int(quota) / int(period)
            except (OSError, ValueError):  # there is none, or it is `max`
                continue
