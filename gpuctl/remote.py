"""Machines on which jobs run: this process, or our zip application at the other end of a shell."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpuctl.agent import run_job
from gpuctl.bundle import Bundle
from inventory.errors import CannotLook, GpuctlError
from inventory.machine import Answer, Completed, Emit, Shell, ignore

FOLDER: Final = "/var/cache/gpuctl"
"""Where the zip application is put on the other side."""

SESSION_S: Final = 7 * 24 * 3600.0
"""Limit of a session as a whole; each job in it has its own."""

END_S: Final = 2.0
"""How long the other side is given to end once its input has ended."""


class LocalMachine:
    """Jobs run in this process: gpuctl inside the container, or on a machine without inventory."""

    where = "this machine"

    def call(
        self,
        job: str,
        args: Mapping[str, Any] | None = None,
        *,
        emit: Emit = ignore,
        timeout_s: float = 60.0,
    ) -> Any:
        """Run the job here; each job bounds its own waits."""
        return run_job(job, dict(args or {}), emit)


class Session:
    """One running zip application that takes job after job: a new interpreter for each would cost most of its time."""

    def __init__(self, shell: Shell, argv: tuple[str, ...]) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._completed = Completed(-1, b"", b"")
        self._error: GpuctlError | None = None
        self.over = False
        self._thread = threading.Thread(target=self._run, args=(shell, argv), daemon=True)
        self._thread.start()

    def _run(self, shell: Shell, argv: tuple[str, ...]) -> None:
        try:
            stdin: Iterator[bytes] = iter(self._requests.get, None)
            self._completed = shell.run(argv, stdin=stdin, timeout_s=SESSION_S, on_line=self._lines.put)
        except GpuctlError as error:
            self._error = error
        finally:
            self._lines.put(None)
            # Whoever still waits for the next request, waits no more.
            self._requests.put(None)

    def ask(self, request: bytes, answer: Answer, timeout_s: float, what: str, where: str) -> None:
        """Send a job and feed its lines to `answer` until it is complete or the other side has ended (`over`)."""
        self._requests.put(request + b"\n")
        deadline = time.monotonic() + timeout_s
        while not answer.complete:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.over = True
                self._requests.put(None)
                raise CannotLook(
                    f"{where}: job {what} gave no answer within {timeout_s:g} s",
                    hint="it may still be running there; look again before you repeat it",
                ) from None
            if line is None:
                self.over = True
                return
            answer.feed(line)

    def outcome(self) -> Completed:
        """How the other side ended; raises the shell's own error. Only once `over`."""
        self._thread.join(END_S)
        if self._error is not None:
            raise self._error
        return self._completed

    def close(self) -> None:
        """End the input: the other side ends by itself when it has done what it was asked. Nothing is waited for."""
        self._requests.put(None)
        self.over = True


class RemoteMachine:
    """Jobs run over a shell with the zip application, which is pushed when it is not there yet."""

    def __init__(self, shell: Shell, bundle: Callable[[], Bundle], *, python: str = "python3") -> None:
        self._shell = shell
        self._bundle = bundle
        self._python = python
        self._session: Session | None = None
        self._one_job = threading.Lock()

    @property
    def where(self) -> str:
        return self._shell.where

    def call(
        self, job: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        """Run the job there; see `inventory.machine.Machine`.

        A session that has ended since the last job (the container was restarted) is opened again; a job that the
        other side had begun is never repeated. Calls from several threads are made one after the other.
        """
        with self._one_job:
            return self._call(job, args, emit, timeout_s)

    def _call(self, job: str, args: Mapping[str, Any] | None, emit: Emit, timeout_s: float) -> Any:
        request = json.dumps({"job": job, "args": dict(args or {})}).encode()
        kept = self._session is not None and not self._session.over
        answer, completed = self._ask(request, job, emit, timeout_s)
        if completed is not None and not answer.began and kept:
            answer, completed = self._ask(request, job, emit, timeout_s)
        if completed is not None and not answer.began and self._is_absent(completed):
            bundle = self._bundle()
            self._shell.put(bundle.path.read_bytes(), self._path(bundle))
            answer, completed = self._ask(request, job, emit, timeout_s)
        if completed is None:
            return answer.value()
        if completed.rc in (126, 127):
            raise CannotLook(
                f"{self.where}: {self._python} cannot be run there (exit status {completed.rc})",
                hint="install it on that machine, for example: apt install python3",
                detail=tuple(completed.stderr.decode("utf-8", "replace").splitlines()[-3:]),
            )
        raise answer.lost(completed)

    def _ask(self, request: bytes, job: str, emit: Emit, timeout_s: float) -> tuple[Answer, Completed | None]:
        """One try; the second value tells how the other side ended when it gave no complete answer."""
        if self._session is None or self._session.over:
            # -s: the user's own packages there are none of ours.
            self._session = Session(self._shell, (self._python, "-s", self._path(self._bundle())))
        answer = Answer(self.where, emit)
        self._session.ask(request, answer, timeout_s, job, self.where)
        return answer, None if answer.complete else self._session.outcome()

    def _path(self, bundle: Bundle) -> str:
        return f"{FOLDER}/{bundle.name}"

    def _is_absent(self, completed: Completed) -> bool:
        """Python's own words for a script that is not there (exit status 2): no round trip to look for it."""
        path = self._path(self._bundle()).encode()
        return completed.rc == 2 and b"can't open file" in completed.stderr and path in completed.stderr

    def close(self) -> None:
        """End the session."""
        if self._session is not None and not self._session.over:
            self._session.close()
