"""Device nodes of a lab: files of one line in level 0, which needs no rights; made by mknod in level 1."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_NODE: Final = re.compile(r"lab-node ([cb]) (\d+):(\d+) mode=(0[0-7]{3}) uid=(\d+) gid=(\d+)\n")


@dataclass(frozen=True, slots=True)
class LabNode:
    """A lab device node: what mknod would have made."""

    major: int
    minor: int
    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    kind: str = "c"

    def line(self) -> str:
        """Content of its marker file."""
        return (
            f"lab-node {self.kind} {self.major}:{self.minor} mode={self.mode:04o} uid={self.uid} gid={self.gid}\n"
        )


class NodeFiles(Protocol):
    """How device nodes lie on disk."""

    def read(self, path: Path) -> LabNode | None:
        """The node at `path`, or None for anything else, also for a plain file."""
        ...

    def write(self, path: Path, node: LabNode) -> None:
        """Make a node, or replace what stands there; folders are made. Real ones of the same number stay."""
        ...


class Markers:
    """Regular files of exactly one line; the lab's driver makes Python processes see them as nodes."""

    def read(self, path: Path) -> LabNode | None:
        try:
            match = _NODE.fullmatch(path.read_text())
        except (OSError, UnicodeDecodeError):
            return None
        if match is None:
            return None
        kind, major, minor, mode, uid, gid = match.groups()
        return LabNode(int(major), int(minor), int(mode, 8), int(uid), int(gid), kind)

    def write(self, path: Path, node: LabNode) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(node.line())


class RealNodes:
    """What mknod makes; needs root and a file system that is not mounted `nodev`."""

    def read(self, path: Path) -> LabNode | None:
        try:
            found = path.stat()
        except OSError:
            return None
        if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            return None
        kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
        numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
        return LabNode(*numbers, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, kind)

    def write(self, path: Path, node: LabNode) -> None:
        there = None if path.is_symlink() else self.read(path)
        if there is None or (there.kind, there.major, there.minor) != (node.kind, node.major, node.minor):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            kind = stat.S_IFCHR if node.kind == "c" else stat.S_IFBLK
            os.mknod(path, kind | node.mode, os.makedev(node.major, node.minor))
        # As nvidia-modprobe does: a running container has this very node, and gets what is changed here.
        os.chown(path, node.uid, node.gid)
        path.chmod(node.mode)


MARKERS: Final = Markers()
REAL_NODES: Final = RealNodes()
