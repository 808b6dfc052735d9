"""Cut a stream of bytes into lines as they arrive."""

from __future__ import annotations

from collections.abc import Callable

LONGEST = 16 * 1024 * 1024
"""A longer line is handed over in pieces, so that a broken peer can't fill our memory."""


class Lines:
    """Calls `on_line` with each line, its newline removed; the last line may lack one."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        *complete, rest = data.split(b"\n")
        for piece in complete:
            line = b"".join((*self._parts, piece))
            self._parts, self._size = [], 0
            self._on_line(line)
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > LONGEST:
            self.end()

    def end(self) -> None:
        """The stream is over: hand over what is left."""
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        if line:
            self._on_line(line)
