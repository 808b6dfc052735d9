"""Level 1: device nodes made by mknod, judged by the kernel; only a driver that cannot be there is stood in for.

`os.stat` and `os.lstat` stay the real ones, and so does every refusal of open(2): ENOENT (no node), EACCES (mode,
owner, a mount without devices), EPERM (device rules of the cgroup). Nothing can register NVIDIA's numbers with a
kernel without its module, so a node that all of these let through ends with ENXIO. In just that case, and while
/proc/devices as this machine shows it lists the node's number under a name of NVIDIA's, the stand-in opens
/dev/null in its place. A number that is not listed keeps its ENXIO: that is what a module that is not loaded gives.

A scenario's "open" errors come after the kernel's own answer, as from the driver's own open function.
"""

import errno
import os
import stat as stat_bits

from lab_driver import nodes

_real_open = os.open


def listed(major):
    """Whether the character section of proc/devices gives this number to NVIDIA's driver."""
    section = (nodes.read("/proc/devices") or b"").partition(b"Block devices")[0]
    return any(
        words[0] == b"%d" % major and words[1].startswith(b"nvidia")
        for words in map(bytes.split, section.splitlines())
        if len(words) == 2
    )


def is_device(path, dir_fd=None):
    """Whether a path names a node of NVIDIA's driver, whatever opening it says."""
    try:
        found = os.stat(path, dir_fd=dir_fd)
    except OSError:
        return False
    return stat_bits.S_ISCHR(found.st_mode) and listed(os.major(found.st_rdev))


def _scenario_errno(path, dir_fd):
    """The errno a scenario wants for a node below /dev, or 0."""
    if dir_fd is not None or not os.path.abspath(os.fsdecode(os.fspath(path))).startswith(nodes.root() + "/dev/"):
        return 0
    return nodes.scenario_errno(path) if is_device(path) else 0


def kernel_open(path, flags, mode=0o777, *, dir_fd=None):
    """os.open; ENXIO of a node whose driver cannot exist here becomes a descriptor of /dev/null."""
    opened = -1
    try:
        opened = _real_open(path, flags, mode, dir_fd=dir_fd)
    except OSError as problem:
        if problem.errno != errno.ENXIO or not is_device(path, dir_fd):
            raise
    code = _scenario_errno(path, dir_fd)
    if code:
        if opened >= 0:
            os.close(opened)
        raise OSError(code, os.strerror(code), path)
    if opened >= 0:
        return opened
    return _real_open("/dev/null", flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC))


def install():
    """Replace os.open; `os.open in os.supports_dir_fd` keeps its meaning."""
    if _real_open in os.supports_dir_fd:
        os.supports_dir_fd.add(kernel_open)
    os.open = kernel_open
