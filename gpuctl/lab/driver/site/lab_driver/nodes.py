"""Marker files that answer os.stat, os.lstat and os.open as character device nodes do.

A node is a regular file of exactly one line `lab-node c MAJOR:MINOR mode=0666 uid=0 gid=0`; any other file is
itself. The order of refusals is the kernel's (inode_permission: mode bits before the device cgroup; then the
driver lookup): ENOENT, EACCES, EPERM, ENXIO. Tried on a real kernel with mknod and the devices cgroup.
With GPUCTL_LAB_LEVEL=1 nodes are real ones and `real_nodes` takes the place of all this.

Files read below the root (`GPUCTL_ROOT`, else `/`):
  run/lab-device-rules  the container's device rules, one a line in cgroup syntax; absent: everything is allowed
  run/lab-uid-map       `INSIDE OUTSIDE COUNT` of an unprivileged container; absent: privileged
  proc/devices          which majors have a driver
"""

import errno
import os
import stat as stat_bits

_real_stat = os.stat
_real_lstat = os.lstat
_real_open = os.open

MARK = b"lab-node c "


class Node:
    """One device node: numbers, permission bits and the owner as the host sees it."""

    __slots__ = ("gid", "major", "minor", "mode", "uid")

    def __init__(self, major, minor, mode, uid, gid):
        self.major, self.minor, self.mode, self.uid, self.gid = major, minor, mode, uid, gid


def root():
    """The folder in front of every absolute path; empty for the real root."""
    return os.environ.get("GPUCTL_ROOT", "").rstrip("/")


def read(path):
    """Bytes of a file below the root, or None when it cannot be read."""
    try:
        fd = _real_open(root() + path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse(text):
    """A `Node`, or None when the bytes are not exactly one marker line."""
    if not text.startswith(MARK) or text.count(b"\n") != 1 or not text.endswith(b"\n"):
        return None
    try:
        numbers, mode, uid, gid = text[len(MARK) :].decode("ascii").split()
        major, minor = numbers.split(":")
        if not (mode.startswith("mode=") and uid.startswith("uid=") and gid.startswith("gid=")):
            return None
        return Node(int(major), int(minor), int(mode[5:], 8), int(uid[4:]), int(gid[4:]))
    except ValueError:
        return None


def node_at(path, dir_fd=None):
    """The node a path names, or None; a path outside a /dev folder is never looked into."""
    try:
        text = os.fspath(path)
    except TypeError:
        return None
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if dir_fd is not None or not os.path.abspath(text).startswith(root() + "/dev/"):
        return None
    try:
        found = _real_stat(text)
        if not stat_bits.S_ISREG(found.st_mode) or not 0 < found.st_size < 200:
            return None
        fd = _real_open(text, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse(os.read(fd, 256))
    finally:
        os.close(fd)


def _as_device(found, node):
    fields = list(found)[:10]
    owner, group = _inside(node.uid), _inside(node.gid)
    fields[0] = stat_bits.S_IFCHR | (node.mode & 0o7777)
    fields[4], fields[5], fields[6] = owner, group, 0
    named = {
        name: getattr(found, name)
        for name in ("st_atime", "st_mtime", "st_ctime", "st_atime_ns", "st_mtime_ns", "st_ctime_ns")
    }
    named.update(st_rdev=os.makedev(node.major, node.minor), st_blksize=found.st_blksize, st_blocks=0)
    return os.stat_result(fields, named)


def lab_stat(path, *, dir_fd=None, follow_symlinks=True):
    """os.stat, with device nodes."""
    found = _real_stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    if stat_bits.S_ISREG(found.st_mode) and not isinstance(path, int):
        node = node_at(path, dir_fd)
        if node is not None:
            return _as_device(found, node)
    return found


def lab_lstat(path, *, dir_fd=None):
    """os.lstat, with device nodes."""
    return lab_stat(path, dir_fd=dir_fd, follow_symlinks=False)


def _uid_map():
    """(outside, count) of an unprivileged container, or None."""
    text = read("/run/lab-uid-map")
    try:
        _, outside, count = (int(word) for word in (text or b"").split()[:3])
    except ValueError:
        return None
    return outside, count


def _inside(number):
    """A host uid or gid as the container sees it; not mapped: the overflow id 65534."""
    mapped = _uid_map()
    if mapped is None:
        return number
    outside, count = mapped
    return number - outside if outside <= number < outside + count else 65534


def _mode_allows(node, wanted):
    """Mode bits for the container's root: full rights only over owners its map holds, as for capabilities."""
    mapped = _uid_map()
    if mapped is None:
        return True
    outside, count = mapped
    ours = outside <= node.uid < outside + count
    if ours and outside <= node.gid < outside + count:
        return True
    bits = node.mode >> 6 if node.uid == outside else node.mode >> 3 if node.gid == outside else node.mode
    need = (4 if "r" in wanted else 0) | (2 if "w" in wanted else 0)
    return bits & need == need


def rules_allow(text, node, wanted):
    """Whether one line of the cgroup rules allows all `wanted` letters on a character device."""
    for line in text.decode("utf-8", "replace").splitlines():
        words = line.split()
        if not words or words[0] not in ("a", "c"):
            continue
        if words[0] == "a" and len(words) == 1:
            return True
        if len(words) < 3 or ":" not in words[1]:
            continue
        major, minor = words[1].split(":", 1)
        if major in ("*", str(node.major)) and minor in ("*", str(node.minor)) and set(wanted) <= set(words[2]):
            return True
    return False


def registered(major):
    """Whether proc/devices lists a character driver with this major."""
    section = (read("/proc/devices") or b"").partition(b"Block devices")[0]
    return any(line.split()[:1] == [b"%d" % major] for line in section.splitlines())


def refusal(node, flags):
    """The errno with which open(2) refuses the node, or 0."""
    access = flags & os.O_ACCMODE
    wanted = "r" if access == os.O_RDONLY else "w" if access == os.O_WRONLY else "rw"
    if not _mode_allows(node, wanted):
        return errno.EACCES
    rules = read("/run/lab-device-rules")
    if rules is not None and not rules_allow(rules, node, wanted):
        return errno.EPERM
    if not registered(node.major):
        return errno.ENXIO
    return 0


def scenario_errno(path):
    """The errno a scenario wants for opening this node, or 0; hangs when it says so."""
    if read("/etc/gpuctl-lab/scenario.json") is None:
        return 0  # before anything is imported: most processes have no scenario
    from lab_driver import state

    node = os.path.basename(os.fspath(path))
    state.interfere(f"open {node}")
    name = state.scenario().get("open", {}).get(node)
    return getattr(errno, str(name), 0) if name else 0


def lab_open(path, flags, mode=0o777, *, dir_fd=None):
    """os.open, with device nodes; success is a descriptor of /dev/null."""
    node = None if isinstance(path, int) else node_at(path, dir_fd)
    if node is None:
        return _real_open(path, flags, mode, dir_fd=dir_fd)
    code = refusal(node, flags) or scenario_errno(path)
    if code:
        raise OSError(code, os.strerror(code), path)
    return _real_open("/dev/null", flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))


def level():
    """1 where device nodes are real, else 0."""
    return 1 if os.environ.get("GPUCTL_LAB_LEVEL") == "1" else 0


def is_device(path):
    """Whether a path names a device node of the lab, whatever opening it says."""
    return node_at(path) is not None


def install():
    """Replace the three functions in the os module; `os.stat in os.supports_...` sets keep their meaning."""
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        for real, ours in ((_real_stat, lab_stat), (_real_open, lab_open), (_real_lstat, lab_lstat)):
            if real in supported:
                supported.add(ours)
    os.stat, os.lstat, os.open = lab_stat, lab_lstat, lab_open
