"""Switches that make the local Hub misbehave in the ways real ones were reported to."""

from __future__ import annotations

import fnmatch
import threading
from dataclasses import dataclass, replace
from enum import StrEnum


class FaultKind(StrEnum):
    """What goes wrong."""

    FLIP = "flip"
    """The bit 0 of byte `at` of the file is flipped on the wire."""
    CLOSE = "close"
    """The connection is closed cleanly once byte `at` of the file was reached."""
    RESET = "reset"
    """The connection is reset (RST) once byte `at` of the file was reached."""
    STALL = "stall"
    """Nothing more is sent for `seconds` once byte `at` of the file was reached."""
    SLOW = "slow"
    """`rate` bytes a second."""
    IGNORE_RANGE = "ignore-range"
    """A ranged request gets 200 and the whole file."""
    WRONG_OFFSET = "wrong-offset"
    """A ranged request gets 206 with bytes, and an honest Content-Range, from elsewhere."""
    WRONG_BYTES = "wrong-bytes"
    """A ranged request gets 206 with the right Content-Range and bytes from elsewhere."""
    STATUS = "status"
    """The answer is `status`, with `retry_after` as its Retry-After when set."""
    SHORT = "short"
    """The body, and its honest Content-Length, end `at` bytes early."""
    LONG = "long"
    """The body, and its honest Content-Length, have `at` bytes too many."""
    HTML = "html"
    """200 and a page of HTML (a captive portal)."""
    CHUNKED = "chunked"
    """No Content-Length: chunked transfer."""
    WRONG_ETAG = "wrong-etag"
    """The answer's ETag is another one each time."""
    SIZE_LIE = "size-lie"
    """The listing's size is `at` bytes too large."""
    HASH_LIE = "hash-lie"
    """The listing's digests are wrong."""
    MISSING = "missing"
    """A file of the listing answers 404 EntryNotFound."""
    BARE = "bare"
    """A mirror that leaves the Hub's own headers out."""


class Route(StrEnum):
    """Which part of the protocol a fault hits."""

    INFO = "info"
    TREE = "tree"
    FILE = "file"
    CDN = "cdn"


@dataclass(frozen=True, slots=True)
class Fault:
    """One switch. `path` is a glob over file names (of the repository name for INFO and TREE)."""

    kind: FaultKind
    path: str = "*"
    route: Route = Route.FILE
    times: int | None = 1
    """How many answers are hit; None: all."""
    skip: int = 0
    """How many answers are spared first."""
    at: int = 0
    status: int = 503
    retry_after: str = ""
    seconds: float = 0.0
    rate: int = 1_000_000


class Faults:
    """The switches in force; may be changed while the server runs."""

    def __init__(self, *faults: Fault) -> None:
        self._lock = threading.Lock()
        self._faults = list(faults)

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._faults.extend(faults)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def peek(self, route: Route, path: str, *kinds: FaultKind) -> Fault | None:
        """The first fault of `kinds` in force here, not used up by looking."""
        with self._lock:
            return next((fault for fault in self._matching(route, path, kinds) if not fault.skip), None)

    def take(self, route: Route, path: str, *kinds: FaultKind) -> Fault | None:
        """The first fault of `kinds` in force here; counts one use."""
        with self._lock:
            for fault in self._matching(route, path, kinds):
                index = self._faults.index(fault)
                if fault.skip:
                    self._faults[index] = replace(fault, skip=fault.skip - 1)
                    continue
                if fault.times is not None:
                    self._faults[index] = replace(fault, times=fault.times - 1)
                return fault
            return None

    def _matching(self, route: Route, path: str, kinds: tuple[FaultKind, ...]) -> list[Fault]:
        return [
            fault
            for fault in self._faults
            if fault.kind in kinds
            and fault.route is route
            and (fault.times is None or fault.times > 0)
            and fnmatch.fnmatchcase(path, fault.path)
        ]
