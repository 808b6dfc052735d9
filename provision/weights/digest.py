"""Digests of files: sha256 for all, and git's blob id for those that the Hub knows only by it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from provision.weights.model import RemoteFile

BLOCK = 4 * 1024 * 1024
"""Bytes of one read: large enough that hashing and copying run without the interpreter in the way."""


class Digest:
    """The running digest of one file's bytes, in order."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.restart()

    def restart(self) -> None:
        """Forget all bytes."""
        self.count = 0
        self._sha256 = hashlib.sha256()
        self._git = None
        if self._file.git_sha1:
            self._git = hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)

    def update(self, data: bytes | memoryview) -> None:
        self.count += len(data)
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def right(self) -> bool:
        """Whether the bytes seen are exactly the file that was listed."""
        if self.count != self._file.size:
            return False
        if self._git is not None and self._git.hexdigest() != self._file.git_sha1:
            return False
        return self._git is not None or self._sha256.hexdigest() == self._file.sha256


def read_blocks(path: Path, take: Callable[[memoryview], None], *, limit: int | None = None) -> int:
    """Hand the bytes of a file (the first `limit` of them) to `take` in blocks; returns their number.

    The pages read are given back to the kernel: a cache file's second copy in memory would
    compete with the weights in tmpfs. Raises OSError.
    """
    buffer = memoryview(bytearray(BLOCK))
    done = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while limit is None or done < limit:
            room = BLOCK if limit is None else min(BLOCK, limit - done)
            count = os.readv(fd, [buffer[:room]])
            if count == 0:
                break
            take(buffer[:count])
            os.posix_fadvise(fd, done, count, os.POSIX_FADV_DONTNEED)
            done += count
    finally:
        os.close(fd)
    return done


def of_file(path: Path, file: RemoteFile, look: Callable[[], None]) -> Digest:
    """Digest of a file on disk; `look` is called at every block and may raise to stop."""
    digest = Digest(file)

    def take(block: memoryview) -> None:
        look()
        digest.update(block)

    read_blocks(path, take)
    return digest
