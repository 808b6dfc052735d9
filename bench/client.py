"""The one HTTP client of the benchmark: raw socket reads, each with its time, and a deadline for everything.

Written on sockets because what is measured is when bytes arrive: no buffer of a library stands in between.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from bench.chunk import error_text
from bench.sse import Event, Parser

READ: Final = 65536
CONNECT_S: Final = 10.0
MAX_BODY: Final = 65536


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    """Prefix before `/v1/...`, without a slash at its end."""

    @staticmethod
    def of(url: str) -> Address:
        """From `http(s)://host[:port][/prefix]`, a trailing `/v1` left out; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http address: {url}")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return Address(parts.hostname, parts.port or (443 if tls else 80), tls, path)

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no answer: `kind` is connect, tls, status, redirect, not-a-stream, timeout or reset."""

    kind: str
    message: str
    status: int = 0
    body: str = ""


@dataclass(slots=True)
class Exchange:
    """One streamed request: its events and its times on the monotonic clock."""

    sent_at: float
    ended_at: float = 0.0
    status: int = 0
    events: list[Event] = field(default_factory=list)
    comments: int = 0
    failure: Failure | None = None


OnEvents = Callable[[int], None]
"""Gets the number of events so far after each read that completed any."""


def _message(status: int, body: str) -> str:
    try:
        text = error_text(json.loads(body))
    except (ValueError, AttributeError):
        text = ""
    words = text or re.sub(r"<[^>]*>|\s+", " ", body).strip()[:160]
    return f"HTTP {status}: {words}" if words else f"HTTP {status}"


def _connect(address: Address, deadline: float) -> socket.socket:
    left = max(0.001, min(CONNECT_S, deadline - time.monotonic()))
    sock = socket.create_connection((address.host, address.port), timeout=left)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.tls:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
    return sock


class _Body:
    """Takes the transfer coding off: chunked, a length, or until the connection closes."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        self.left = int(length) if length.isdigit() and not self.chunked else None
        self.ended = self.left == 0
        self._rest = b""
        self._in_chunk = 0
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Body bytes in `data`. Raises ValueError when the chunk framing is broken."""
        if not self.chunked:
            if self.left is None:
                return data
            data = data[: self.left]
            self.left -= len(data)
            self.ended = self.left == 0
            return data
        buffer, out = self._rest + data, []
        at = 0
        while at < len(buffer) and not self.ended:
            if self._in_chunk > 0:
                piece = buffer[at : at + self._in_chunk]
                out.append(piece)
                at += len(piece)
                self._in_chunk -= len(piece)
                if self._in_chunk == 0:
                    self._in_chunk = -1
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line, at = buffer[at:end], end + 2
            if self._in_chunk == -1:
                self._in_chunk = 0
            elif self._trailer:
                self.ended = not line
            else:
                self._in_chunk = int(line.split(b";")[0], 16)
                self._trailer = self._in_chunk == 0
        self._rest = buffer[at:]
        return b"".join(out)


def _head(sock: socket.socket, deadline: float) -> tuple[int, dict[str, str], bytes, float]:
    """Status, headers in lower case, the first body bytes, and when they came. Skips 1xx answers."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            data = _recv(sock, deadline)
            if not data:
                raise ConnectionResetError("the server closed the connection without an answer")
            buffer += data
            if len(buffer) > MAX_BODY:
                raise ValueError("the answer's head is longer than 64 KiB")
        head, _, rest = buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        match = re.match(r"HTTP/1\.[01] (\d{3})", lines[0])
        if match is None:
            raise ValueError(f"not an HTTP answer: {lines[0][:60]!r}")
        status = int(match.group(1))
        if status >= 200:
            break
        buffer = rest
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers, rest, time.monotonic()


def _recv(sock: socket.socket, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
    return sock.recv(READ)


def _request(address: Address, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"POST {address.path}{path} HTTP/1.1",
        f"Host: {address.netloc}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def stream(
    address: Address,
    path: str,
    payload: Mapping[str, Any],
    *,
    deadline_s: float,
    headers: Mapping[str, str] | None = None,
    on_events: OnEvents | None = None,
) -> Exchange:
    """POST and read the event stream to its end. Never raises for what the peer does: see `Exchange.failure`."""
    body = json.dumps(payload).encode()
    deadline = time.monotonic() + deadline_s
    exchange = Exchange(sent_at=time.monotonic())
    sock: socket.socket | None = None
    try:
        sock = _connect(address, deadline)
        exchange.sent_at = time.monotonic()
        sock.sendall(_request(address, path, body, headers or {}))
        _read(sock, exchange, deadline, on_events)
    except ssl.SSLError as error:
        exchange.failure = Failure("tls", f"TLS with {address.netloc} failed: {error}")
    except TimeoutError:
        if sock is None:
            exchange.failure = Failure("connect", f"no connection to {address.netloc} within {CONNECT_S:.0f} s")
        else:
            exchange.failure = Failure("timeout", f"no end after {deadline_s:.0f} s", exchange.status)
    except (OSError, ValueError) as error:
        if sock is None:
            exchange.failure = Failure("connect", f"no connection to {address.netloc}: {error}")
        else:
            exchange.failure = Failure("reset", f"the connection broke: {error}", exchange.status)
    finally:
        exchange.ended_at = time.monotonic()
        if sock is not None:
            sock.close()
    return exchange


def _read(sock: socket.socket, exchange: Exchange, deadline: float, on_events: OnEvents | None) -> None:
    status, headers, data, at = _head(sock, deadline)
    exchange.status = status
    body = _Body(headers)
    if status != 200 or "text/event-stream" not in headers.get("content-type", "text/event-stream"):
        exchange.failure = _refusal(sock, deadline, status, headers, body, data)
        return
    parser = Parser()
    while True:
        found = parser.feed(body.feed(data), at) if data else []
        if found:
            exchange.events += found
            if on_events is not None:
                on_events(len(exchange.events))
        exchange.comments = parser.comments
        # Some servers keep the connection open after their last event.
        if body.ended or any(event.data == b"[DONE]" for event in found):
            break
        data = _recv(sock, deadline)
        at = time.monotonic()
        if not data:
            if body.chunked or body.left is not None:
                exchange.failure = Failure("reset", "the connection closed before the answer's end", status)
            break
    exchange.events += parser.close(at)


def _refusal(
    sock: socket.socket, deadline: float, status: int, headers: Mapping[str, str], body: _Body, data: bytes
) -> Failure:
    """What an answer that is no event stream says."""
    text = body.feed(data)
    try:
        while (
            not body.ended and len(text) < MAX_BODY and (data := _recv(sock, min(deadline, time.monotonic() + 5)))
        ):
            text += body.feed(data)
    except (OSError, ValueError):
        # The status is the news; a body cut short only shortens the message.
        pass
    shown = text.decode("utf-8", "replace")
    if 300 <= status < 400:
        where = headers.get("location", "an unnamed place")
        return Failure("redirect", f"HTTP {status}: redirected to {where}; use that address", status, shown)
    if status != 200:
        return Failure("status", _message(status, shown), status, shown)
    kind = headers.get("content-type", "nothing")
    return Failure("not-a-stream", f"expected an event stream, got {kind}: {shown[:80].strip()}", status, shown)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole (not streamed) answer; `status` 0: none came, and `text` says why."""

    status: int
    text: str

    def json(self) -> Any:
        """The parsed body of a 200 answer; None when it is not JSON."""
        try:
            return json.loads(self.text) if self.status == 200 else None
        except ValueError:
            return None


def get(
    address: Address, path: str, *, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None
) -> Answer:
    """GET a small resource; never raises for what the peer does."""
    kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", address.path + path, headers=dict(headers or {}))
        response = connection.getresponse()
        return Answer(response.status, response.read(8 * 1024 * 1024).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(error) or type(error).__name__)
    finally:
        connection.close()
