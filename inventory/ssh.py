"""Run commands and write files on another machine over one SSH connection."""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from inventory.machine import Completed
from inventory.model import Ssh
from inventory.ssh_connect import close, connect
from inventory.ssh_exchange import Exchange, Limit, alive, lost
from inventory.ssh_target import Target, load_paramiko, route

if TYPE_CHECKING:
    import paramiko

CHUNK = 32 * 1024
TRANSFER_S = 60.0
"""Limit for each step of a file transfer without progress."""


class SshShell:
    """A `Shell` over paramiko. A connection that dropped while idle is opened again by the next call."""

    def __init__(self, hops: tuple[Target, ...], *, where: str = "") -> None:
        self._hops = hops
        self._where = where or hops[-1].where
        self._clients: list[paramiko.SSHClient] = []
        self._lock = threading.Lock()
        self._error: GpuctlError | None = None

    @classmethod
    def to(cls, ssh: Ssh, *, base: Path, where: str = "") -> SshShell:
        """Find the way; the first use logs in. `base`: folder for relative paths of keys and known_hosts.

        Raises `ConfigError` for a key or a `~/.ssh/config` that can't be used.
        """
        return cls(route(ssh, base=base), where=where)

    @classmethod
    def connect(cls, ssh: Ssh, *, base: Path, where: str = "") -> SshShell:
        """The same, logged in at once; raises `CannotLook`, too."""
        shell = cls.to(ssh, base=base, where=where)
        shell._transport()
        return shell

    @property
    def where(self) -> str:
        return self._where

    def close(self) -> None:
        """Hang up; the shell can be used again and then connects anew."""
        with self._lock:
            clients, self._clients = self._clients, []
        close(clients)

    def __enter__(self) -> SshShell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def dial(self) -> None:
        """Begin to log in; whoever uses the shell first waits for the login and gets its error."""
        self._lock.acquire()

        def work() -> None:
            try:
                self._login()
            except GpuctlError as error:
                self._error = error
            finally:
                self._lock.release()

        threading.Thread(target=work, daemon=True).start()
        # In this thread: two that import beside each other take longer than one after the other.
        load_paramiko()

    def _client(self) -> paramiko.SSHClient:
        with self._lock:
            error, self._error = self._error, None
            if error is not None:
                raise error
            return self._login()

    def _login(self) -> paramiko.SSHClient:
        transport = self._clients[-1].get_transport() if self._clients else None
        if transport is None or not transport.is_active():
            close(self._clients)
            self._clients = []
            self._clients = connect(self._hops)
        return self._clients[-1]

    def _transport(self) -> paramiko.Transport:
        transport = self._client().get_transport()
        assert transport is not None
        return transport

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | Iterator[bytes] = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Shell.run`. The time limit closes the channel: the far side gets end of file and a broken pipe."""
        deadline = time.monotonic() + timeout_s
        transport, channel = self._start(argv, timeout_s)
        try:
            limit = Limit(self._where, argv[0], deadline, timeout_s)
            return Exchange(transport, channel, limit, stdin, on_line).run()
        finally:
            channel.close()

    def _start(self, argv: tuple[str, ...], timeout_s: float) -> tuple[paramiko.Transport, paramiko.Channel]:
        import paramiko

        transport = self._transport()
        channel: paramiko.Channel | None = None
        try:
            channel = transport.open_session(timeout=min(timeout_s, self._hops[-1].timeout_s))
            channel.settimeout(min(timeout_s, self._hops[-1].timeout_s))
            channel.exec_command(shlex.join(argv))
        except (paramiko.SSHException, EOFError, OSError) as error:
            if channel is not None:
                channel.close()
            if not alive(transport):
                raise lost(self._where, argv[0]) from None
            said = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise CannotLook(f"{self._where} does not start `{argv[0]}`: {said}") from None
        return transport, channel

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        """See `Shell.put`. On a file system that fixes modes (/etc/pve) a narrower mode than asked is accepted."""
        import paramiko

        transport = self._transport()
        try:
            with contextlib.closing(self._client().open_sftp()) as sftp:
                channel = sftp.get_channel()
                assert channel is not None
                channel.settimeout(TRANSFER_S)
                self._put(sftp, data, path, mode)
        except TimeoutError:
            raise CannotLook(f"{self._where}: writing {path} made no progress for {TRANSFER_S:g} s") from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not alive(transport):
                raise lost(self._where, f"writing {path}") from None
            self._cannot_write(path, error)

    def _cannot_write(self, path: str, error: Exception) -> NoReturn:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        # SFTP version 3 has no code for "no space left": it is a bare "Failure".
        hint = "is the disk full, or the folder read-only?" if said == "Failure" else ""
        raise Failed(f"{self._where}: {path} can't be written: {said}", hint=hint) from None

    def _put(self, sftp: paramiko.SFTPClient, data: bytes, path: str, mode: int) -> None:
        folder, name = posixpath.split(path)
        _make_folder(sftp, folder)
        staging = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        try:
            with sftp.open(staging, "wx") as file:
                _set_mode(file, staging, mode)
                file.set_pipelined(True)
                for start in range(0, len(data), CHUNK):
                    file.write(data[start : start + CHUNK])
            size = sftp.stat(staging).st_size
            if size != len(data):
                raise Failed(f"{self._where}: {staging} has {size} bytes after writing {len(data)}")
            sftp.posix_rename(staging, path)
        except BaseException:
            with contextlib.suppress(Exception):
                sftp.remove(staging)
            raise


def _set_mode(file: paramiko.SFTPFile, path: str, mode: int) -> None:
    try:
        file.chmod(mode)
    except OSError:
        # pmxcfs refuses any chmod; what it gives is fine unless others may read what should be private.
        given = stat.S_IMODE(file.stat().st_mode or 0)
        if given & ~mode & 0o077:
            raise Refused(f"{path} can't be made private: its file system fixes the mode to {given:04o}") from None


def _make_folder(sftp: paramiko.SFTPClient, folder: str) -> None:
    missing = []
    while folder not in ("", "/"):
        try:
            sftp.stat(folder)
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = posixpath.dirname(folder)
    for part in reversed(missing):
        try:
            sftp.mkdir(part, 0o755)
        except OSError:
            # Someone else may have made it meanwhile.
            sftp.stat(part)
