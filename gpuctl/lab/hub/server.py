"""The Hub's HTTP server: threads, keep-alive, ranges, redirects to a second origin when asked."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuctl.lab.hub.answer import Answer, answer
from gpuctl.lab.hub.faults import Faults
from gpuctl.lab.hub.repo import HubRepo, Snapshot
from gpuctl.lab.hub.send import send


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it was answered."""

    method: str
    path: str
    range: str
    authorized: bool
    """It carried an Authorization header."""
    status: int
    cdn: bool = False


class Content:
    """What is served: every pushed commit of every repository, and the valid tokens."""

    def __init__(self, repos: tuple[HubRepo, ...], faults: Faults, tokens: tuple[str, ...]) -> None:
        self.faults = faults
        self.tokens = frozenset(tokens) | {token for repo in repos for token in repo.readers}
        self.url = ""
        self.cdn_url = ""
        self._lock = threading.Lock()
        self._latest: dict[str, Snapshot] = {}
        self._refs: dict[tuple[str, str], Snapshot] = {}
        for repo in repos:
            self.push(repo)

    def push(self, repo: HubRepo) -> str:
        snapshot = Snapshot.of(repo)
        with self._lock:
            self._latest[repo.name] = snapshot
            self.tokens |= set(repo.readers)
            for ref in (*repo.refs, snapshot.commit):
                self._refs[repo.name, ref] = snapshot
        return snapshot.commit

    def latest(self, name: str) -> Snapshot | None:
        with self._lock:
            return self._latest.get(name)

    def at(self, name: str, revision: str) -> Snapshot | None:
        with self._lock:
            return self._refs.get((name, revision))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    content: Content
    log: list[Seen]
    is_cdn = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests, not news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Requests are kept in the log of the server, not written to stderr."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        given = answer(
            self.server.content, self.command, self.path, dict(self.headers.items()), cdn=self.server.is_cdn
        )
        self.server.log.append(
            Seen(
                self.command,
                self.path,
                self.headers.get("Range", ""),
                "Authorization" in self.headers,
                given.status,
                self.server.is_cdn,
            )
        )
        self._send(given)

    def _send(self, given: Answer) -> None:
        self.send_response(given.status)
        for name, value in given.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and not send(given, self.connection, self.wfile.write):
            self.close_connection = True


def _start(
    content: Content, log: list[Seen], host: str, port: int, *, cdn: bool
) -> tuple[_Server, threading.Thread]:
    server = _Server((host, port), _Handler)
    server.content, server.log, server.is_cdn = content, log, cdn
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True, name="hub")
    thread.start()
    return server, thread


class RunningHub:
    """A Hub that answers until `close()`; also a context manager."""

    def __init__(
        self, content: Content, servers: tuple[tuple[_Server, threading.Thread], ...], log: list[Seen]
    ) -> None:
        self._content = content
        self._servers = servers
        self.requests = log
        """Every request answered so far, in order of arrival."""

    @property
    def port(self) -> int:
        return int(self._servers[0][0].server_address[1])

    @property
    def url(self) -> str:
        return self._content.url

    @property
    def faults(self) -> Faults:
        return self._content.faults

    def push(self, repo: HubRepo) -> str:
        """Add a commit: refs move to it, older commits stay reachable by their id. Returns the commit."""
        return self._content.push(repo)

    def commit(self, name: str, revision: str = "main") -> str:
        """The commit that `revision` means now; KeyError when there is none."""
        snapshot = self._content.at(name, revision)
        if snapshot is None:
            raise KeyError(f"{name}@{revision}")
        return snapshot.commit

    def close(self) -> None:
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> None:
        """Block until so many requests were answered; TimeoutError when they do not come."""
        end = time.monotonic() + timeout_s
        while len(self.requests) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.requests)} of {count} requests after {timeout_s} s")
            time.sleep(0.005)

    def __enter__(self) -> RunningHub:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(
    repos: tuple[HubRepo, ...],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: Faults | None = None,
    tokens: tuple[str, ...] = (),
    cdn: bool = False,
) -> RunningHub:
    """Serve `repos` at once, in threads of this process.

    `tokens`: valid access tokens beyond the repositories' readers. `cdn`: LFS files are redirected to a
    second origin, as the real Hub does. Raises OSError when the port is taken.
    """
    content = Content(repos, faults or Faults(), tokens)
    log: list[Seen] = []
    servers = [_start(content, log, host, port, cdn=False)]
    content.url = f"http://{host}:{servers[0][0].server_address[1]}"
    if cdn:
        servers.append(_start(content, log, host, 0, cdn=True))
        content.cdn_url = f"http://{host}:{servers[1][0].server_address[1]}"
    return RunningHub(content, tuple(servers), log)
