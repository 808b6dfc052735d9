"""One command over an SSH channel: both streams, stdin, exit status and time limit, without deadlock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inventory.errors import CannotLook, ConnectionLost
from inventory.lines import Lines
from inventory.machine import Completed

if TYPE_CHECKING:
    import paramiko

CHUNK = 64 * 1024
TICK_S = 0.5
"""How often a silent command is looked at for its end."""
GRACE_S = 1.0
"""After a command's exit, output may still be on its way; a child that keeps the stream open is not waited for."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How long which command may take, and where, for the message when it does not hold."""

    where: str
    command: str
    deadline: float
    """On the monotonic clock."""
    timeout_s: float

    def check(self) -> None:
        """Raises `CannotLook` once the time is over."""
        if time.monotonic() > self.deadline:
            raise CannotLook(
                f"{self.where}: `{self.command}` did not end within {self.timeout_s:g} s",
                hint="it was hung up on; it may still be running there",
            )


def lost(where: str, what: str) -> ConnectionLost:
    """The error of a connection that dropped under a command."""
    return ConnectionLost(
        f"{where}: the connection dropped while `{what}` ran",
        hint="whether it finished is not known; run gpuctl again, it looks at the state first",
    )


def alive(transport: paramiko.Transport) -> bool:
    """False when the connection is gone. paramiko closes the channels a moment before it says so."""
    for _ in range(30):
        if not transport.is_active():
            return False
        time.sleep(0.01)
    return True


class Exchange:
    """One running command: stdin and stderr in threads of their own, so that no side waits for the other."""

    def __init__(
        self,
        transport: paramiko.Transport,
        channel: paramiko.Channel,
        limit: Limit,
        stdin: bytes | Iterator[bytes],
        on_line: Callable[[bytes], None] | None,
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._limit = limit
        self._stdin = iter((stdin,)) if isinstance(stdin, bytes) else stdin
        self._lines = Lines(on_line) if on_line is not None else None
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []
        self._last = time.monotonic()

    def run(self) -> Completed:
        self._channel.settimeout(TICK_S)
        threads = [
            threading.Thread(target=self._send, daemon=True),
            threading.Thread(target=self._errors, daemon=True),
        ]
        for thread in threads:
            thread.start()
        for data in self._chunks(self._channel.recv):
            if self._lines is not None:
                self._lines.feed(data)
            else:
                self._stdout.append(data)
        threads[1].join(max(0.0, self._limit.deadline - time.monotonic()) + TICK_S)
        while not self._channel.status_event.wait(TICK_S):
            self._limit.check()
        if self._lines is not None:
            self._lines.end()
        rc = self._channel.exit_status
        if rc == -1 and not alive(self._transport):
            raise lost(self._limit.where, self._limit.command)
        return Completed(rc, b"".join(self._stdout), b"".join(self._stderr))

    def _chunks(self, receive: Callable[[int], bytes]) -> Iterator[bytes]:
        """Data until end of file; ends early when the command is over and its stream stays silent."""
        over: float | None = None
        while True:
            try:
                data = receive(CHUNK)
            except TimeoutError:
                self._limit.check()
                if self._channel.status_event.is_set():
                    # Counted from when the end was seen: before it, a command may be silent as long as it likes.
                    over = over or time.monotonic()
                    if time.monotonic() - max(over, self._last) > GRACE_S:
                        return
                continue
            if not data:
                return
            self._last = time.monotonic()
            yield data
            self._limit.check()

    def _errors(self) -> None:
        # The main thread reports the limit; here it only ends the reading.
        with contextlib.suppress(CannotLook, OSError):
            for data in self._chunks(self._channel.recv_stderr):
                self._stderr.append(data)

    def _send(self) -> None:
        """Feed stdin; a command that ends without reading it all is no error."""
        with contextlib.suppress(OSError, EOFError):
            for piece in self._stdin:
                start = 0
                while start < len(piece):
                    try:
                        start += self._channel.send(piece[start : start + CHUNK])
                    except TimeoutError:
                        if self._channel.closed or time.monotonic() > self._limit.deadline:
                            return
            self._channel.shutdown_write()
