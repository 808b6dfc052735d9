"""Reading files and device nodes on the machine where it runs; used by both jobs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from inventory.errors import CannotLook
from inventory.root import at
from provision.devices.facts import Content, Node, NodeKind, State

LIMIT = 2 << 20
"""Most bytes read of one file; a configuration has at most 1 MiB (pmxcfs)."""


def errno_name(error: OSError) -> str:
    """`EPERM`, or the number when it has no name."""
    return errno.errorcode.get(error.errno or 0, f"errno {error.errno}")


def content(path: str) -> Content:
    """The text of a file: present, absent or unreadable."""
    try:
        with open(at(path), "rb") as file:  # noqa: PTH123 - one door for all reads, as open() is what /proc needs
            return Content(State.PRESENT, file.read(LIMIT).decode("latin-1"))
    except (FileNotFoundError, NotADirectoryError):
        return Content(State.ABSENT)
    except OSError as error:
        return Content(State.UNREADABLE, why=errno_name(error))


def names(folder: str) -> tuple[str, ...]:
    """Names in a folder, sorted; an absent folder has none. Raises `CannotLook` for one that can't be read."""
    try:
        return tuple(sorted(os.listdir(at(folder))))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise CannotLook(f"{folder} can't be read: {os.strerror(error.errno or 0)}") from error


def _kind(mode: int) -> NodeKind:
    return {
        stat.S_IFCHR: NodeKind.CHAR,
        stat.S_IFBLK: NodeKind.BLOCK,
        stat.S_IFREG: NodeKind.REGULAR,
        stat.S_IFDIR: NodeKind.DIRECTORY,
        stat.S_IFLNK: NodeKind.SYMLINK,
    }.get(stat.S_IFMT(mode), NodeKind.OTHER)


def node(path: str, *, follow: bool = False, try_open: bool = False) -> Node:
    """What stands at `path`; with `try_open` a character device is opened read-write and closed again."""
    try:
        found = os.stat(at(path)) if follow else os.lstat(at(path))  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return Node(path, NodeKind.ABSENT)
    except (OSError, ValueError) as error:
        return Node(path, NodeKind.UNREADABLE, why=errno_name(error) if isinstance(error, OSError) else str(error))
    kind = _kind(found.st_mode)
    device = found.st_rdev if kind in (NodeKind.CHAR, NodeKind.BLOCK) else 0
    return Node(
        path,
        kind,
        os.major(device),
        os.minor(device),
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_ctime,
        _opened(path) if try_open and kind is NodeKind.CHAR else None,
    )


def _opened(path: str) -> str:
    # Without O_NONBLOCK: with it the driver answers before it has looked at the GPU.
    try:
        os.close(os.open(at(path), os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno_name(error)
    return ""


def nvidia_paths() -> tuple[str, ...]:
    """Every /dev/nvidia* and, one folder deeper, what nvidia-caps and its like hold."""
    found: list[str] = []
    for name in names("/dev"):
        if not name.startswith("nvidia"):
            continue
        path = f"/dev/{name}"
        found.append(path)
        if node(path).kind is NodeKind.DIRECTORY:
            found += [f"{path}/{inner}" for inner in names(path)[:256]]
    return tuple(found)


def nodes(paths: Iterable[str], *, follow: bool = False, try_open: bool = False) -> tuple[Node, ...]:
    """Each path once, in order."""
    return tuple(node(path, follow=follow, try_open=try_open) for path in dict.fromkeys(paths))
