"""The HTTPS server of the lab's Proxmox API: one thread per connection, keep-alive, TLS."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from gpuctl.lab.pve.api import Answer, Api, Site
from gpuctl.lab.pve.auth import Authority, Users
from gpuctl.lab.pve.backend import Backend
from gpuctl.lab.pve.calls import CALLS
from gpuctl.lab.pve.fault import Fault
from gpuctl.lab.pve.guest import Guests
from gpuctl.lab.pve.store import Store
from gpuctl.lab.pve.tasks import Tasks

_PREFIX: Final = "/api2/json"
_BODY_LIMIT: Final = 512 * 1024
_DRAIN_LIMIT: Final = 16 << 20
_IDLE_S: Final = 30.0
_ANYEVENT: Final = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm line 934."


class PlainFault(Exception):
    """An answer of the HTTP layer itself: a status and a text body, no JSON."""

    def __init__(self, status: int, text: str, body: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.body = text if body is None else body


class RunningServer:
    """A server that listens in its own thread. `site` is what the API stands on, for `pct` and for tests."""

    def __init__(self, server: _Server, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_address[1]
        self.site: Site = server.site

    def close(self) -> None:
        """Stop listening, cut the open connections and wait for the thread to end (at most 5 s)."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut()
        self._thread.join(5)


def serve(
    backend: Backend,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    cert: Path,
    key: Path,
    users: Users,
    auth_delay_s: float = 0,
    lock_timeout_s: float = 10,
    statistics: Callable[[], bool] = lambda: True,
) -> RunningServer:
    """Start the API for `backend`; `port` 0 takes a free one.

    A real node delays every 401 by 3 s (`auth_delay_s`) and waits 10 s for a container's lock file.
    `statistics` says whether the status daemon has reported since boot; before, guests are `unknown`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    store = Store(backend, lock_timeout_s=lock_timeout_s)
    site = Site(
        backend=backend,
        users=users,
        authority=Authority(users),
        store=store,
        guests=Guests(backend, store),
        tasks=Tasks(backend.node, backend.uptime_s),
        fingerprint=fingerprint(cert),
        statistics=statistics,
    )
    server = _Server((host, port), context, site, auth_delay_s)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="pve-api", daemon=True)
    thread.start()
    return RunningServer(server, thread)


def fingerprint(cert: Path) -> str:
    """SHA-256 of a PEM certificate as Proxmox shows it, `AA:BB:...`."""
    der = ssl.PEM_cert_to_DER_cert(cert.read_text(encoding="ascii"))
    return ":".join(f"{byte:02X}" for byte in hashlib.sha256(der).digest())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, site: Site, auth_delay_s: float) -> None:
        super().__init__(address, _Handler)
        self.site = site
        self.api = Api(site, CALLS)
        self.auth_delay_s = auth_delay_s
        self._context = context
        self._open: set[ssl.SSLSocket] = set()
        self._lock = threading.Lock()

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The handshake happens here, in the connection's own thread, so a silent client blocks nobody.
        request.settimeout(_IDLE_S)
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._context.wrap_socket(request, server_side=True) as secure:
            with self._lock:
                self._open.add(secure)
            try:
                super().finish_request(secure, client_address)
            finally:
                with self._lock:
                    self._open.discard(secure)

    def cut(self) -> None:
        """End the connections that are still open: a machine that went down answers nobody."""
        with self._lock:
            for secure in self._open:
                with contextlib.suppress(OSError):
                    # The plain shutdown: the TLS one would take the state away from the thread that uses it.
                    socket.socket.shutdown(secure, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection or handshake is the client's affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the library never prints."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        try:
            self._answer(self._call())
        except PlainFault as fault:
            self._send(fault.status, fault.text, fault.body.encode(), kind=None, closing=True)
        except Fault as fault:
            self._refuse(fault)
        except Exception as error:
            self._refuse(Fault(500, f"{type(error).__name__}: {error}"))

    def _call(self) -> Answer:
        url = urlsplit(self.path)
        body = self._body()
        if not url.path.startswith(_PREFIX + "/"):
            raise PlainFault(501, f"Method '{self.command} {url.path}' not implemented")
        parameters = _collect([*_pairs(url.query), *body])
        headers = {name: self.headers.get(name, "") for name in ("Authorization", "Cookie", "CSRFPreventionToken")}
        return self.server.api.answer(self.command, url.path.removeprefix(_PREFIX), headers, parameters)

    def _body(self) -> list[tuple[str, Any]]:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _BODY_LIMIT:
            # Closing with unread data would reset the connection before the client has read the answer.
            for _ in range(0, min(length, _DRAIN_LIMIT), _BODY_LIMIT):
                self.rfile.read(min(length, _BODY_LIMIT))
                length -= _BODY_LIMIT
            raise PlainFault(501, "for data too large")
        raw = self.rfile.read(length)
        kind = self.headers.get("Content-Type", "application/x-www-form-urlencoded").partition(";")[0].strip()
        if not raw:
            return []
        if kind == "application/json":
            return _json_pairs(raw)
        if kind != "application/x-www-form-urlencoded":
            raise PlainFault(506, f"upload 'Content-Type '{kind}' not implemented")
        return list(_pairs(raw.decode("utf-8", "replace")))

    def _answer(self, answer: Answer) -> None:
        body: dict[str, Any] = {"data": answer.data}
        if answer.total is not None:
            body["total"] = answer.total
        self._send(200, "OK", _dump(body), closing=False, inner=answer.protected)

    def _refuse(self, fault: Fault) -> None:
        if fault.status == 401:
            time.sleep(self.server.auth_delay_s)
        if fault.bodiless:
            self._send(fault.status, fault.message.strip(), b"", kind=None, closing=True)
            return
        body: dict[str, Any] = {"data": None, "message": fault.message}
        if fault.errors:
            body["errors"] = fault.errors
        self._send(fault.status, fault.message.split("\n")[0], _dump(body), closing=True)

    def _send(
        self,
        status: int,
        reason: str,
        body: bytes,
        *,
        kind: str | None = "application/json;charset=UTF-8",
        closing: bool,
        inner: bool = False,
    ) -> None:
        self.close_connection = closing
        # send_response would add its own Server and Date and refuses no reason, so the line is built here.
        self.send_response_only(status, reason.encode("utf-8", "replace").decode("latin-1").replace("\r", " "))
        now = formatdate(usegmt=True)
        self.send_header("Cache-Control", "max-age=0")
        # An answer of the inner daemon carries that daemon's own header too, although the connection stays.
        for word in ("close",) if closing else (("close", "Keep-Alive") if inner else ("Keep-Alive",)):
            self.send_header("Connection", word)
            self.close_connection = closing
        self.send_header("Date", now)
        self.send_header("Pragma", "no-cache")
        self.send_header("Server", "pve-api-daemon/3.0")
        if body or kind:
            self.send_header("Content-Length", str(len(body)))
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Expires", now)
        self.send_header("X-Gpuctl-Lab", "1")
        self.end_headers()
        self.wfile.write(body)


def _dump(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _pairs(text: str) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in parse_qsl(text, keep_blank_values=True, separator="&")]


def _json_pairs(raw: bytes) -> list[tuple[str, Any]]:
    text = raw.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :] or "(end of string)"
        what = "malformed JSON string, neither tag, array, object, number, string or atom"
        line = f'{what}, at character offset {error.pos} (before "{rest}") at {_ANYEVENT}'
        raise PlainFault(500, line, line + "\n") from error
    if not isinstance(data, dict):
        return []
    return [(key, _scalar(value)) for key, value in data.items() if value is not None]


def _scalar(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return value
    return str(int(value)) if isinstance(value, bool) else str(value)


def _collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parameters by name; one given more than once becomes a list."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key not in found:
            found[key] = value
        elif isinstance(found[key], list):
            found[key].append(value)
        else:
            found[key] = [found[key], value]
    return found
