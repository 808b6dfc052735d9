"""Run commands on this machine, and inside a container through its host."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.lines import Lines
from inventory.machine import Completed, Shell

CHUNK = 64 * 1024
TICK_S = 0.2
"""How often a silent command is looked at for its end."""
GRACE_S = 1.0
"""How long output is awaited after the command's end: a child may keep the stream open for ever."""
TERM_S = 2.0
"""Time between the request to end and the kill."""
PUSH_FOLDER = "/var/lib/gpuctl"
"""Where files wait on the host on their way into a container."""


class LocalShell:
    """A `Shell` on this machine; each command gets a session of its own, killed as a whole on its time limit."""

    @property
    def where(self) -> str:
        return "this machine"

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | Iterator[bytes] = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Shell.run`; `rc` is minus the signal's number for a killed command, 127 for an unknown program."""
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            # As a shell answers, so that callers need not tell local from remote.
            rc = 127 if isinstance(error, FileNotFoundError) else 126
            return Completed(rc, b"", f"{argv[0]}: {error.strerror}\n".encode())
        except ValueError as error:
            raise Failed(f"`{argv[0]}` can't be started: {error}") from None
        with process:
            try:
                return _Pump(process, stdin, on_line).run(argv[0], timeout_s)
            except BaseException:
                _end(process)
                raise

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        """See `Shell.put`."""
        target = Path(path)
        staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(fd, "wb") as file:
                    os.fchmod(file.fileno(), mode)
                    file.write(data)
                staging.replace(target)
            except BaseException:
                staging.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise Failed(f"{path} can't be written: {error.strerror}") from None

    def close(self) -> None:
        """Nothing is held open."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole session to end, then kill it."""
    for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, TERM_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class _Pump:
    """Moves stdin, stdout and stderr of one process in one thread, so that no pipe fills up unread."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: bytes | Iterator[bytes],
        on_line: Callable[[bytes], None] | None,
    ) -> None:
        self._process = process
        self._stdin = memoryview(stdin if isinstance(stdin, bytes) else b"")
        self._pieces = None if isinstance(stdin, bytes) else stdin
        self._lines = Lines(on_line) if on_line is not None else None
        self._out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._selector = selectors.DefaultSelector()

    def run(self, name: str, timeout_s: float) -> Completed:
        deadline = time.monotonic() + timeout_s
        assert self._process.stdin and self._process.stdout and self._process.stderr
        with self._selector:
            self._watch(self._process.stdout, selectors.EVENT_READ, "stdout")
            self._watch(self._process.stderr, selectors.EVENT_READ, "stderr")
            if self._pieces is not None:
                threading.Thread(target=self._feed, args=(self._process.stdin, self._pieces), daemon=True).start()
            elif self._stdin:
                self._watch(self._process.stdin, selectors.EVENT_WRITE, "stdin")
            else:
                self._process.stdin.close()
            self._loop(name, timeout_s, deadline)
        while True:
            try:
                self._process.wait(TICK_S)
                break
            except subprocess.TimeoutExpired:
                self._check(name, timeout_s, deadline)
        if self._lines is not None:
            self._lines.end()
        return Completed(self._process.returncode, b"".join(self._out["stdout"]), b"".join(self._out["stderr"]))

    def _watch(self, stream: IO[bytes], event: int, word: str) -> None:
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, event, word)

    def _check(self, name: str, timeout_s: float, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise CannotLook(f"`{name}` did not end within {timeout_s:g} s and was killed")

    def _loop(self, name: str, timeout_s: float, deadline: float) -> None:
        ended = None
        while self._selector.get_map():
            events = self._selector.select(TICK_S)
            for key, _ in events:
                if key.data == "stdin":
                    self._write(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._read(key.fileobj, key.data)  # type: ignore[arg-type]
            self._check(name, timeout_s, deadline)
            if self._process.poll() is None or events:
                ended = None
                continue
            ended = ended or time.monotonic()
            if time.monotonic() - ended > GRACE_S:
                return

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._stdin = self._stdin[os.write(stream.fileno(), self._stdin[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            # The command ended without reading all of it, which is its right.
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._selector.unregister(stream)
            stream.close()

    @staticmethod
    def _feed(stream: IO[bytes], pieces: Iterator[bytes]) -> None:
        # The command may end without reading all of it, which is its right.
        with contextlib.suppress(OSError, ValueError):
            for piece in pieces:
                stream.write(piece)
                stream.flush()
            stream.close()

    def _read(self, stream: IO[bytes], word: str) -> None:
        data = os.read(stream.fileno(), CHUNK)
        if not data:
            self._selector.unregister(stream)
        elif word == "stdout" and self._lines is not None:
            self._lines.feed(data)
        else:
            self._out[word].append(data)


class PctShell:
    """A `Shell` inside a container: `pct exec` and `pct push` on its Proxmox host."""

    def __init__(self, host: Shell, vmid: int) -> None:
        self._host = host
        self._vmid = vmid

    @property
    def where(self) -> str:
        return f"container {self._vmid}"

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | Iterator[bytes] = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """See `Shell.run`; raises `CannotLook` when `pct` itself can't get in (stopped, unknown, locked)."""
        command = ("pct", "exec", str(self._vmid), "--", *argv)
        done = self._host.run(command, stdin=stdin, timeout_s=timeout_s, on_line=on_line)
        self._judge(done)
        return done

    def _judge(self, done: Completed) -> None:
        said = done.stderr.decode("utf-8", "replace").strip()
        if done.rc == 127 and re.search(r"\bpct: (?:command )?not found|^pct: No such file", said):
            raise CannotLook(
                f"{self._host.where} has no `pct`, so it is no Proxmox VE node", detail=(said,) if said else ()
            )
        if done.rc not in (2, 255):
            return
        last = said.splitlines()[-1] if said else ""
        if f"{self._vmid} not running" in last:
            raise CannotLook(
                f"{self.where} on {self._host.where} is not running", hint=f"start it: `pct start {self._vmid}`"
            )
        if "Configuration file" in last and "does not exist" in last:
            raise CannotLook(
                f"{self._host.where} has no container {self._vmid}", hint="check vmid and host in the inventory"
            )

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        """See `Shell.put`. By way of a private file on the host and a staging name in the container."""
        folder, name = posixpath.split(path)
        mark = secrets.token_hex(4)
        waiting = f"{PUSH_FOLDER}/push-{self._vmid}-{mark}"
        staging = posixpath.join(folder, f".{name}.{mark}.tmp")
        self._host.put(data, waiting, mode=0o600)
        try:
            self._must(("mkdir", "-p", folder or "/"), path)
            push = ("pct", "push", str(self._vmid), waiting, staging, "--perms", f"{mode:04o}")
            done = self._host.run(push, timeout_s=120)
            self._judge(done)
            if done.rc != 0:
                raise self._cannot_write(path, done)
            self._must(("mv", "-f", "-T", staging, path), path)
        except BaseException:
            with contextlib.suppress(GpuctlError):
                self.run(("rm", "-f", staging))
            raise
        finally:
            with contextlib.suppress(GpuctlError):
                self._host.run(("rm", "-f", waiting))

    def _must(self, argv: tuple[str, ...], path: str) -> None:
        done = self.run(argv)
        if done.rc != 0:
            raise self._cannot_write(path, done)

    def _cannot_write(self, path: str, done: Completed) -> Failed:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return Failed(
            f"{self.where}: {path} can't be written: {lines[-1] if lines else f'exit status {done.rc}'}",
            detail=tuple(lines[-5:]),
        )

    def close(self) -> None:
        """The host's shell is closed by who opened it."""
