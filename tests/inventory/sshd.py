"""A real SSH server (asyncssh) on loopback in a thread: every command is a real process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import asyncssh


class Sshd:
    """Up once constructed; `close()` ends it. `chmod_fails`: SFTP behaves as on /etc/pve."""

    def __init__(self, *, authorized: Path, kind: str = "ssh-ed25519", chmod_fails: bool = False) -> None:
        self.key = asyncssh.generate_private_key(kind)
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.logins: list[str] = []
        self.forwarded: list[tuple[str, int]] = []
        self._authorized = str(authorized)
        self._chmod_fails = chmod_fails
        self._processes: dict[int, asyncio.Task[None] | None] = {}
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._up.wait(20)

    @property
    def port(self) -> int:
        return self._port

    @property
    def public(self) -> str:
        """`ssh-ed25519 AAAA...`"""
        return " ".join(self.key.export_public_key().decode().split()[:2])

    @property
    def line(self) -> str:
        """Its line for known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.public}"

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._up.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        outer = self

        class Server(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                outer.connections.append(conn)

            def begin_auth(self, username: str) -> bool:
                outer.logins.append(username)
                return True

            def connection_requested(self, host: str, port: int, *origin: Any) -> bool:
                outer.forwarded.append((host, port))
                return True

        class FixedModes(asyncssh.SFTPServer):
            def fsetstat(self, file_obj: Any, attrs: asyncssh.SFTPAttrs) -> None:
                raise PermissionError("Operation not permitted")

        self._server = await asyncssh.create_server(
            Server,
            "127.0.0.1",
            0,
            server_host_keys=[self.key],
            authorized_client_keys=self._authorized,
            process_factory=self._process,
            sftp_factory=FixedModes if self._chmod_fails else asyncssh.SFTPServer,
            encoding=None,
        )
        self._port = self._server.get_port()

    async def _process(self, process: Any) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._processes[child.pid] = asyncio.current_task()

        async def feed() -> None:
            assert child.stdin is not None
            with contextlib.suppress(Exception):
                while data := await process.stdin.read(65536):
                    child.stdin.write(data)
                    await child.stdin.drain()
            child.stdin.close()

        async def pump(source: asyncio.StreamReader, sink: Any) -> None:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()

        feeding = asyncio.create_task(feed())
        try:
            assert child.stdout is not None and child.stderr is not None
            await asyncio.gather(pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
            rc = await child.wait()
            if rc < 0:
                process.exit_with_signal(signal.Signals(-rc).name.removeprefix("SIG"), False, "")
            else:
                process.exit(rc)
        except (asyncssh.Error, OSError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
        finally:
            feeding.cancel()
            self._processes.pop(child.pid)
            # Else its pipes are closed by the garbage collector, after the loop has ended.
            child._transport.close()

    def drop(self) -> None:
        """Cut all connections without a word, as a power failure does."""

        def cut() -> None:
            for connection in self.connections:
                connection.abort()
            self.connections.clear()

        self._loop.call_soon_threadsafe(cut)

    def close(self) -> None:
        self.drop()

        async def stop() -> None:
            self._server.close()
            tasks = [task for task in self._processes.values() if task is not None]
            for pid in list(self._processes):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            if tasks:
                _, stuck = await asyncio.wait(tasks, timeout=0.2)
                for task in stuck:
                    # Waits for room in a channel that nobody reads any more.
                    task.cancel()
                if stuck:
                    await asyncio.wait(stuck, timeout=3)
            await asyncio.sleep(0.02)

        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
