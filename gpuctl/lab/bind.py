"""Bind a device node into the mounts of a running container, as Proxmox does when it hot-plugs one."""

from __future__ import annotations

import ctypes
import os
import sys

SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
AT_FDCWD, CLONE_NEWNS = -100, 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def main(argv: list[str]) -> int:
    """argv: process id, the node here, the file inside that it is to cover. Prints what failed, returns 1 then."""
    pid, source, target = argv
    try:
        flags = OPEN_TREE_CLONE | os.O_CLOEXEC
        tree = _check(_libc.syscall(SYS_OPEN_TREE, AT_FDCWD, source.encode(), flags), source)
        view = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        _check(_libc.setns(view, CLONE_NEWNS), "setns")
        words = (tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH)
        _check(_libc.syscall(SYS_MOVE_MOUNT, *words), target)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
