"""The lab's control socket: programs inside hand over their arguments and open files, and get an exit status."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_REQUEST_LIMIT: Final = 4 << 20
_REQUEST_WAIT_S: Final = 10.0


@dataclass(slots=True)
class Call:
    """One program that runs inside the lab and waits for us: its words, its open files, and its connection."""

    program: str
    words: tuple[str, ...]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    extra: int | None
    connection: socket.socket

    def out(self, text: str) -> None:
        _write(self.stdout, text)

    def error(self, text: str) -> None:
        _write(self.stderr, text)

    def gone(self) -> bool:
        """Whether the caller was killed."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)

    def run(
        self, argv: tuple[str, ...], env: Mapping[str, str], *, stdin: int | None = None, stdout: int | None = None
    ) -> int:
        """Run a command with the caller's files; killed with its group when the caller goes away.

        Returns the exit status, 128 + N for signal N.
        """
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=self.stdin if stdin is None else stdin,
                stdout=self.stdout if stdout is None else stdout,
                stderr=self.stderr,
                start_new_session=True,
                cwd="/",
            )
        except (FileNotFoundError, PermissionError) as error:
            self.error(f"failed to execute {argv[0]}: {error.strerror}\n")
            return 127 if isinstance(error, FileNotFoundError) else 126
        pidfd = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self.connection, select.POLLIN | select.POLLHUP)
            ready = [descriptor for descriptor, _ in poll.poll()]
            if pidfd not in ready:
                end_group(process)
        finally:
            os.close(pidfd)
        rc = process.wait()
        return 128 - rc if rc < 0 else rc


def end_group(process: subprocess.Popen[bytes], *, grace_s: float = 1.0) -> None:
    """Hang up, then kill, a command started in its own session; like sshd when a connection drops."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class ControlServer:
    """Listens on a unix socket; each call runs in its own thread."""

    def __init__(self, path: Path, handle: Callable[[Call], int]) -> None:
        self._handle = handle
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            # A socket address holds 107 bytes; a lab's folder may be deeper than that.
            self._socket.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Calls in progress end with their processes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(2)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        with connection, contextlib.suppress(OSError, ValueError):
            try:
                connection.settimeout(_REQUEST_WAIT_S)
                call = _receive(connection, descriptors)
                connection.settimeout(None)
                try:
                    rc = self._handle(call)
                except Exception as error:
                    call.error(f"{call.program}: {error}\n")
                    rc = 255
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            connection.sendall(json.dumps({"rc": rc}).encode() + b"\n")


def _receive(connection: socket.socket, descriptors: list[int]) -> Call:
    data, received, _, _ = socket.recv_fds(connection, 65536, 8, socket.MSG_CMSG_CLOEXEC)
    descriptors.extend(received)
    end = time.monotonic() + _REQUEST_WAIT_S
    while not data.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece or len(data) > _REQUEST_LIMIT or time.monotonic() > end:
            raise ValueError("incomplete request")
        data += piece
    request = json.loads(data)
    stdin, stdout, stderr, *extra = descriptors
    return Call(
        program=str(request["program"]),
        words=tuple(str(word) for word in request["words"]),
        cwd=str(request["cwd"]),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        extra=extra[0] if extra else None,
        connection=connection,
    )


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(descriptor, data) :]
