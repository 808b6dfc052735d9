"""Files under staging names: room reserved, written in order, renamed when right; folders swapped in whole."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from inventory.errors import Refused
from provision.weights.digest import read_blocks
from provision.weights.model import size_text

_KEEP_SIZE = 1
_AT_FDCWD, _EXCHANGE = -100, 2


def _libc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None


def reserve(fd: int, size: int) -> None:
    """Have the file system set `size` bytes aside for `fd`, its length unchanged.

    Not posix_fallocate: that sets the length, and the length is what says how far a resumable part came.
    Where the file system or the C library cannot, writing finds out later. Raises OSError (ENOSPC).
    """
    fallocate = _libc("fallocate")
    if fallocate is None or size <= 0:
        return
    off_t = ctypes.c_int64
    if fallocate(ctypes.c_int(fd), ctypes.c_int(_KEEP_SIZE), off_t(0), off_t(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise OSError(code, os.strerror(code))


def no_room(error: OSError, path: Path, size: int) -> Exception:
    """ENOSPC as a sentence; any other OSError as it is."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return Refused(
        f"the file system of {path.parent} has no room left for {size_text(size)}: {error.strerror}",
        hint="something else filled it meanwhile; free room, or mount it larger, and run again",
    )


class Sink:
    """One file being written under a staging name.

    With `keep`, bytes of an earlier run stay and writing goes on after them.
    """

    def __init__(self, path: Path, size: int, *, keep: bool = False) -> None:
        self.path = path
        self.size = size
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags | (0 if keep else os.O_TRUNC), 0o644)
        try:
            self.length = os.fstat(self._fd).st_size
            if self.length > size:
                self.length = 0
                os.ftruncate(self._fd, 0)
            os.lseek(self._fd, self.length, os.SEEK_SET)
            reserve(self._fd, size)
        except OSError as error:
            os.close(self._fd)
            raise no_room(error, path, size) from error

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                count = os.write(self._fd, view)
                self.length += count
                view = view[count:]
        except OSError as error:
            raise no_room(error, self.path, self.size) from error

    def restart(self) -> None:
        """Throw the bytes away and begin again."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.length = 0
        try:
            reserve(self._fd, self.size)
        except OSError as error:
            raise no_room(error, self.path, self.size) from error

    def replay(self, take: Callable[[memoryview], None]) -> None:
        """Hand the bytes that are already there to `take`."""
        read_blocks(self.path, take, limit=self.length)

    def commit(self, final: Path, *, durable: bool) -> None:
        """Give the finished file its name; `durable` has the disk hold its bytes first."""
        os.fchmod(self._fd, 0o644)
        if durable:
            os.fdatasync(self._fd)
        final.parent.mkdir(parents=True, exist_ok=True)
        self.path.rename(final)
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def write_json(path: Path, data: Any, *, durable: bool = False) -> None:
    """Write a small file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.rename(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None when it is absent or not JSON. Raises other OSErrors."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def used(path: Path) -> int:
    """Bytes of storage a file holds, reserved ones included; 0 when it is absent."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


class Staging:
    """The folder beside a target in which it is put together."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.gpuctl-staging")
        self.old = target.with_name(f".{target.name}.gpuctl-old")
        self.lock = target.with_name(f".{target.name}.gpuctl-lock")
        self.parts = self.folder / ".gpuctl-parts"

    def publish(self) -> None:
        """Make the folder the target, in one step where the kernel can; what was there before is removed."""
        shutil.rmtree(self.parts, ignore_errors=True)
        shutil.rmtree(self.old, ignore_errors=True)
        if not os.path.lexists(self.target):
            self.folder.rename(self.target)
            return
        if exchange(self.folder, self.target):
            self.folder.rename(self.old)
        else:
            self.target.rename(self.old)
            self.folder.rename(self.target)
        shutil.rmtree(self.old)

    def leftovers(self) -> bool:
        """Whether an interrupted run left anything beside the target."""
        return os.path.lexists(self.folder) or os.path.lexists(self.old)

    def clear(self) -> None:
        """Remove all leftovers; the target itself stays."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.old, ignore_errors=True)

    def prune(self) -> None:
        """Remove folders that hold nothing any more."""
        for root, _, _ in os.walk(self.folder, topdown=False):
            with suppress(OSError):
                Path(root).rmdir()

    def sweep(self, files: frozenset[str], parts: frozenset[str]) -> None:
        """Remove what an earlier run left in the folder that this selection does not need."""
        for root, _, names in os.walk(self.folder):
            for name in names:
                path = Path(root, name)
                if path.parent == self.parts:
                    known = name in parts
                else:
                    known = str(path.relative_to(self.folder)) in files
                if not known:
                    path.unlink()


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; False where kernel or file system cannot (renameat2, Linux 3.15)."""
    renameat2 = _libc("renameat2")
    if renameat2 is None:
        return False
    at = ctypes.c_int(_AT_FDCWD)
    done = renameat2(at, os.fsencode(one), at, os.fsencode(other), ctypes.c_uint(_EXCHANGE))
    return bool(done == 0)
