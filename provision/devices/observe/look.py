"""Reading files and device nodes on the machine where it runs; used by both jobs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import Final

from inventory.errors import CannotLook
from inventory.root import at
from provision.devices.facts import Content, Node, NodeKind, State

LIMIT: Final = 2 << 20
"""Most bytes read of one file; a configuration has at most 1 MiB (pmxcfs)."""

FOLDERS: Final = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
"""Folders of device nodes (nvidia-modprobe: nvidia-caps for MIG and the like, channels for IMEX)."""

USUAL: Final = (
    *(f"/dev/nvidia{name}" for name in ("ctl", "-uvm", "-uvm-tools", "-modeset", "-nvswitchctl", *range(32))),
    *FOLDERS,
)
"""Looked for by name where /dev can't be listed."""


def errno_name(error: OSError) -> str:
    """`EPERM`, or the number when it has no name."""
    return errno.errorcode.get(error.errno or 0, f"errno {error.errno}")


def content(path: str, limit: int = LIMIT) -> Content:
    """The text of a file, at most its first `limit` bytes: present, absent or unreadable; never waits for a writer."""
    try:
        # O_NONBLOCK: a FIFO in the place of a file would stop the whole job until somebody writes to it.
        handle = os.open(at(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return Content(State.ABSENT)
    except (OSError, ValueError) as error:
        return Content(State.UNREADABLE, why=_why(error))
    try:
        kind = _kind(os.fstat(handle).st_mode)
        if kind not in (NodeKind.REGULAR, NodeKind.DIRECTORY):
            return Content(State.UNREADABLE, why=f"not a file: {kind}")
        parts, left = [], limit
        while left > 0 and (part := os.read(handle, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
        return Content(State.PRESENT, b"".join(parts).decode("latin-1"))
    except OSError as error:
        return Content(State.UNREADABLE, why=errno_name(error))
    finally:
        os.close(handle)


def word(path: str) -> str:
    """The short text of a file without the blanks around it; "" when there is none to read."""
    return content(path, 4096).text.strip()


def _why(error: Exception) -> str:
    return errno_name(error) if isinstance(error, OSError) else str(error)


def names(folder: str) -> tuple[str, ...]:
    """Names in a folder, sorted; an absent folder has none. Raises `CannotLook` for one that can't be read."""
    try:
        return tuple(sorted(os.listdir(at(folder))))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise CannotLook(f"{folder} can't be read: {os.strerror(error.errno or 0)}") from error


def link(path: str) -> str:
    """Where a symbolic link leads, as it is written; "" when there is none."""
    try:
        return os.readlink(at(path))  # noqa: PTH115
    except (OSError, ValueError):
        return ""


def _kind(mode: int) -> NodeKind:
    return {
        stat.S_IFCHR: NodeKind.CHAR,
        stat.S_IFBLK: NodeKind.BLOCK,
        stat.S_IFREG: NodeKind.REGULAR,
        stat.S_IFDIR: NodeKind.DIRECTORY,
        stat.S_IFLNK: NodeKind.SYMLINK,
    }.get(stat.S_IFMT(mode), NodeKind.OTHER)


def node(path: str, *, follow: bool = False) -> Node:
    """What stands at `path`. With `follow` what a symbolic link leads to; it stays SYMLINK when that is nothing."""
    try:
        found, why = os.lstat(at(path)), ""
        if stat.S_ISLNK(found.st_mode):
            why = f"a link to {link(path)}"
            if follow:
                found, why = _behind(path, found, why)
    except (FileNotFoundError, NotADirectoryError):
        return Node(path, NodeKind.ABSENT)
    except (OSError, ValueError) as error:
        return Node(path, NodeKind.UNREADABLE, why=_why(error))
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
        why=why,
    )


def _behind(path: str, found: os.stat_result, why: str) -> tuple[os.stat_result, str]:
    try:
        return os.stat(at(path)), why  # noqa: PTH116
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return found, f"{why}, which leads to nothing"


def nvidia_nodes(*, follow: bool = False) -> tuple[Node, ...]:
    """Every /dev/nvidia* and what the two folders hold; unreadable ones are named, never left out.

    When /dev itself can't be listed, the usual names are looked at one by one.
    """
    found: list[Node] = []
    try:
        listed = tuple(f"/dev/{name}" for name in names("/dev") if name.startswith("nvidia"))
    except CannotLook:
        listed = USUAL
    for path in listed:
        seen = node(path, follow=follow)
        found.append(seen)
        if seen.path in FOLDERS and seen.kind is NodeKind.DIRECTORY:
            try:
                inner = names(seen.path)[:1024]
            except CannotLook as error:
                found[-1] = Node(seen.path, NodeKind.UNREADABLE, why=str(error))
                continue
            found += [node(f"{seen.path}/{name}", follow=follow) for name in inner]
    return tuple(found)


def nodes(paths: Iterable[str], *, follow: bool = False) -> tuple[Node, ...]:
    """Each path once, in order."""
    return tuple(node(path, follow=follow) for path in dict.fromkeys(paths))
