"""One parser for server-sent events, on bytes: every legal line ending, split and field form.

Follows the WHATWG HTML standard, section "Server-sent events", with one addition: an event that the end of
the stream leaves without its blank line is given out by `close`, since several servers end that way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_LINE: Final = 32 * 1024 * 1024
"""Longest line in bytes that is kept; a peer that sends more sends no events."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event and when the read that completed it returned (seconds, monotonic clock)."""

    at: float
    data: bytes
    """Data lines joined by LF; UTF-8 that may have been split over reads is whole again."""
    name: str = ""
    """The `event:` field; empty for the usual message."""


class Parser:
    """Bytes in, events out. Keeps what a read left unfinished."""

    def __init__(self) -> None:
        self.comments = 0
        """Comment lines seen (keep-alives)."""
        self._rest = b""
        self._after_cr = False
        self._first = True
        self._data: list[bytes] = []
        self._name = ""

    def feed(self, data: bytes, at: float) -> list[Event]:
        """Events completed by this read. Raises ValueError when a line exceeds `MAX_LINE`."""
        if not data:
            return []
        if self._after_cr and data.startswith(b"\n"):
            # The LF of a CRLF that was split over two reads ended its line already.
            data = data[1:]
        self._after_cr = data.endswith(b"\r") if data else False
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE:
            raise ValueError(f"a line of over {MAX_LINE} bytes")
        events: list[Event] = []
        for line in lines:
            self._line(line, at, events)
        return events

    def close(self, at: float) -> list[Event]:
        """The event that the end of the stream left open, if any."""
        events: list[Event] = []
        if self._rest:
            self._line(self._rest, at, events)
            self._rest = b""
        self._line(b"", at, events)
        return events

    def _line(self, line: bytes, at: float, events: list[Event]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(Event(at, b"\n".join(self._data), self._name))
            self._data, self._name = [], ""
            return
        if line.startswith(b":"):
            self.comments += 1
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
