"""The lab host's SSH server: real processes in the host's view, SFTP below its root, forwarding to loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import asyncssh

from gpuctl.lab.machine import Node
from gpuctl.lab.pve.backend import TaskFailed
from gpuctl.lab.state import LabDir

_BLOCK: Final = 128 << 10
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_log = logging.getLogger(__name__)


class SshServer:
    """Listens on loopback. Every method belongs to the event loop that started it."""

    def __init__(self, lab: LabDir, node: Node) -> None:
        self._lab = lab
        self._node = node
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._listener: asyncssh.SSHAcceptor | None = None

    async def listen(self, port: int) -> int:
        """Start to listen; 0 takes a free port. Returns the port."""
        key = asyncssh.read_public_key(str(self._lab.ssh / "client_key.pub"))
        password = self._lab.password.read_text().strip()
        self._listener = await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=lambda: _Login(self._connections, key, password),
            server_host_keys=[str(self._lab.ssh / "host_key")],
            process_factory=self._session,
            sftp_factory=lambda channel: _Files(channel, self._node),
            encoding=None,
            line_editor=False,
            allow_scp=False,
            reuse_address=True,
            keepalive_interval=30,
        )
        return int(self._listener.get_port())

    async def drop(self) -> None:
        """Stop listening and cut every connection, without a goodbye, as a host does that loses power."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _session(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        try:
            view = self._node.host
        except TaskFailed:
            process.exit(255)
            return
        self._node.show_members()
        command = process.command
        argv = view.shell(command) if command else view.argv(("/bin/sh",))
        child = await asyncio.create_subprocess_exec(
            *argv,
            env={**view.env(), **_safe(process.env)},
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            await _serve(process, child)
        finally:
            if child.returncode is None:
                await _end(child)


def _safe(env: Mapping[str, str]) -> dict[str, str]:
    """What a client may set, as sshd's default AcceptEnv."""
    return {name: value for name, value in env.items() if name == "LANG" or name.startswith("LC_")}


async def _serve(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    assert child.stdin and child.stdout and child.stderr
    feeding = asyncio.create_task(_feed(process, child))
    outputs = asyncio.gather(
        _pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr), child.wait()
    )
    gone = asyncio.create_task(process.wait_closed())
    try:
        watched: set[asyncio.Future[Any]] = {outputs, gone}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not outputs.done():
            outputs.cancel()
            return
        with contextlib.suppress(OSError, asyncssh.Error):
            outputs.result()
        code = child.returncode or 0
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)
    finally:
        for task in (feeding, gone):
            task.cancel()
        await asyncio.gather(feeding, gone, outputs, return_exceptions=True)


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    assert child.stdin
    while True:
        try:
            data = await process.stdin.read(_BLOCK)
        except asyncssh.SignalReceived as request:
            with contextlib.suppress(ProcessLookupError, PermissionError, ValueError):
                os.killpg(child.pid, signal.Signals[f"SIG{request.signal}"])
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        if not data:
            break
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.stdin.write(data)
            await child.stdin.drain()
    with contextlib.suppress(OSError):
        child.stdin.close()


async def _pump(source: asyncio.StreamReader, sink: Any) -> None:
    while data := await source.read(_BLOCK):
        sink.write(data)
        await sink.drain()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Hang up, then kill: what sshd's children get when the connection drops."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.wait(), 1.0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


class _Login(asyncssh.SSHServer):
    """Only root may log in, by the lab's client key or by the password of root@pam."""

    def __init__(
        self, connections: set[asyncssh.SSHServerConnection], key: asyncssh.SSHKey, password: str
    ) -> None:
        self._connections = connections
        self._key = key
        self._password = password
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return username == "root" and hmac.compare_digest(password.encode(), self._password.encode())

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and key.public_data == self._key.public_data

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        # A jump host of the lab leads to the lab (and to what else listens on loopback), nowhere else.
        return dest_host in _LOOPBACK


class _Resolved(bytes):
    """A path that is the daemon's own already."""


class _Files(asyncssh.SFTPServer):
    """SFTP on the files as a process of the host sees them."""

    def __init__(self, channel: Any, node: Node) -> None:
        super().__init__(channel)
        self._root = node.host.root
        # Without namespaces the lab's own links (dev/shm, opt/engine) lead out of the folder on purpose.
        self._contained = node.isolation != "plain"

    def _place(self, path: bytes, *, follow_last: bool) -> str:
        return resolve(self._root, os.fsdecode(path), follow_last=follow_last, contained=self._contained)

    def map_path(self, path: bytes) -> bytes:
        if isinstance(path, _Resolved):
            return path
        return os.fsencode(self._place(path, follow_last=False))

    def reverse_map_path(self, path: bytes) -> bytes:
        root = os.fsencode(self._root)
        return (path.removeprefix(root) or b"/") if path.startswith(root) else path

    def realpath(self, path: bytes) -> bytes:
        return self.reverse_map_path(os.fsencode(self._place(path, follow_last=True)))

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        return super().open(_Resolved(os.fsencode(self._place(path, follow_last=True))), pflags, attrs)

    def stat(self, path: bytes) -> Any:
        return os.stat(self._place(path, follow_last=True))  # noqa: PTH116


def resolve(root: Path, path: str, *, follow_last: bool, contained: bool = True) -> str:
    """The daemon's own path for `path` inside a view: links are followed inside `root`, never out of it.

    A relative path starts in /root, the home folder. Raises `asyncssh.SFTPFailure` for a loop of links.
    """
    pending = [part for part in (path if path.startswith("/") else f"/root/{path}").split("/") if part]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part in {".", ".."}:
            done = done[:-1] if part == ".." else done
            continue
        here = Path(root, *done, part)
        try:
            is_link = stat.S_ISLNK(here.lstat().st_mode)
        except OSError:
            is_link = False
        if is_link and (pending or follow_last):
            links += 1
            if links > 40:
                raise asyncssh.SFTPFailure("too many levels of symbolic links")
            target = str(here.readlink())
            if target.startswith("/") and not contained:
                return str(Path(target, *pending))
            done = [] if target.startswith("/") else done
            pending[:0] = [piece for piece in target.split("/") if piece]
        else:
            done.append(part)
    return str(Path(root, *done))
