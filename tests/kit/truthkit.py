"""A server whose schedule is exact and written down: what it sent, and when, is the truth of a test."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

Step = tuple[float, bytes]
"""Seconds after the request was read, and the bytes to write then; `RESET` breaks the connection."""

RESET = b"\0reset"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED = HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")


def sse(data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def token(text: str, **more: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


def finish(reason: str, n: int) -> bytes:
    usage = {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": n + 9}
    end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return end + sse({"choices": [], "usage": usage}) + sse("[DONE]")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(status: str, body: bytes, kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Truth:
    """Answers every connection by `script(method, path, body)` and logs (time, bytes) of each write."""

    script: Callable[[str, str, Any], Sequence[Step]]
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    writes: list[tuple[float, bytes]] = field(default_factory=list)
    hold_s: float = 0.0
    """How long the connection stays open after the last step."""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._listener.close()
        # accept() of a closed listener does not return on Linux; the daemon thread ends with the tests.

    def _serve(self) -> None:
        while not self._ending.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer:
            try:
                self._answer(peer)
            except OSError:
                pass

    def _answer(self, peer: socket.socket) -> None:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(10)
        data = b""
        while b"\r\n\r\n" not in data:
            data += peer.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        self.heads.append(head.decode())
        words = head.decode().split("\r\n")
        length = next((int(line.split(":")[1]) for line in words if line.lower().startswith("content-length")), 0)
        while len(body) < length:
            body += peer.recv(65536)
        method, path = words[0].split(" ")[:2]
        parsed = json.loads(body) if body else None
        self.requests.append((method, path, parsed))
        began = time.monotonic()
        for after, piece in self.script(method, path, parsed):
            time.sleep(max(0.0, began + after - time.monotonic()))
            if piece == RESET:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            at = time.monotonic()
            peer.sendall(piece)
            self.writes.append((at, piece))
        if self.hold_s:
            self._ending.wait(self.hold_s)


@pytest.fixture
def serve() -> Iterator[Callable[..., Truth]]:
    """`serve(steps)` or `serve(script)` -> a running `Truth`."""
    made: list[Truth] = []

    def start(what: Sequence[Step] | Callable[[str, str, Any], Sequence[Step]], **more: Any) -> Truth:
        script = what if callable(what) else (lambda method, path, body: what)
        made.append(Truth(script, **more))
        return made[-1]

    yield start
    for truth in made:
        truth.close()


@pytest.fixture
def wire() -> Any:
    """The words of the stream protocol, for tests to build schedules of."""

    class Wire:
        pass

    names = {"RESET": RESET, "HEAD": HEAD, "CHUNKED": CHUNKED, "sse": sse, "token": token, "finish": finish}
    for name, value in {**names, "framed": framed, "answer": answer}.items():
        setattr(Wire, name, value if not callable(value) else staticmethod(value))
    return Wire
