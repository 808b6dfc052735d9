"""A small https server that answers from recorded exchanges of a real Proxmox VE node, in the order a test says."""

from __future__ import annotations

import datetime
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

RECORDED = {
    entry["name"]: entry["response"]
    for line in (Path(__file__).parents[1] / "data" / "pve" / "api-transcripts.jsonl").read_text().splitlines()
    for entry in [json.loads(line)]
}


@dataclass(frozen=True)
class Certificate:
    """Self-signed, so it is its own CA file."""

    pem: Path
    key: Path
    fingerprint: str


def certificate(folder: Path, *, days: tuple[float, float] = (-1, 30), address: str = "127.0.0.1") -> Certificate:
    """Valid from now + days[0] to now + days[1]."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    pem, key_file = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    digest = hashlib.sha256(built.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return Certificate(pem, key_file, ":".join(digest[i : i + 2] for i in range(0, 64, 2)))


@dataclass(frozen=True)
class Reply:
    """One answer. `drop`: close the connection instead of answering; `wait_s`: answer late."""

    status: int = 200
    reason: str = "OK"
    body: str = ""
    drop: bool = False
    wait_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


def recorded(name: str) -> Reply:
    entry = RECORDED[name]
    return Reply(entry["status"], entry["reason"], entry["body"] or "")


def data(value: Any) -> Reply:
    return Reply(body=json.dumps({"data": value}))


DROP = Reply(drop=True)


@dataclass
class Request:
    method: str
    path: str
    query: str
    body: str
    headers: dict[str, str]


@dataclass
class Api:
    """`on(method, path, reply, ...)`: the replies in turn; the last one is kept for all that follow."""

    cert: Certificate
    requests: list[Request] = field(default_factory=list)
    _script: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)

    def on(self, method: str, path: str, *replies: Reply | str) -> Api:
        self._script[method, path] = [recorded(reply) if isinstance(reply, str) else reply for reply in replies]
        return self

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        replies = self._script.get((request.method, request.path))
        if not replies:
            return Reply(501, f"Method '{request.method} {request.path}' not implemented")
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def start(self) -> Api:
        self.on("POST", "/access/ticket", "login-good/01-root")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.answer))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert.pem, self.cert.key)
        # The handshake belongs into the connection's thread, so that a refused one does not stop the server.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(answer: Callable[[Request], Reply]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10
        wbufsize = -1

        def log_message(self, *args: Any) -> None:
            return

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            parts = urlsplit(self.path)
            path = unquote(parts.path).removeprefix("/api2/json")
            reply = answer(Request(self.command, path, parts.query, body, dict(self.headers)))
            time.sleep(reply.wait_s)
            if reply.drop:
                self.close_connection = True
                return
            content = reply.body.encode()
            self.send_response(reply.status, reply.reason)
            for key, value in reply.headers:
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _do  # noqa: N815

    return Handler
