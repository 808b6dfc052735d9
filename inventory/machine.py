"""What "run a job on that machine" means: the protocol, its events, and the JSON-lines wire format.

A job is a named function of `gpuctl.agent` with JSON arguments. It runs in this process (`LocalMachine`
in `gpuctl.remote`) or in our zip application on a host or in a container; both look the same from here.

Wire: a line of JSON on stdin for each job, `{"job": NAME, "args": {...}}`; on stdout, a line of JSON each,
`{"type": "began"}`, then `{"type": "progress"|"note"|..., ...}` any number of times, then exactly one
`{"type": "result", "value": ...}` or `{"type": "error", ...GpuctlError.to_json()}`. End of file on stdin ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inventory.errors import ConnectionLost, GpuctlError

Event = Mapping[str, Any]
Emit = Callable[[Event], None]
"""Receives progress events while a job runs: plain JSON objects with a `type` key."""


def ignore(event: Event) -> None:
    """An `Emit` that drops every event."""


class Machine(Protocol):
    """A place where jobs run: this process, a Proxmox host, or a container."""

    @property
    def where(self) -> str:
        """For messages: `this machine`, `host pve1`, `ct200`."""
        ...

    def call(
        self, job: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        """Run one job and return its JSON value.

        Raises the job's own `GpuctlError`, `ConnectionLost` when the connection dropped, and
        `CannotLook` when the machine cannot be reached or gave no answer within `timeout_s` seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command; `rc` is -1 when it was killed by a signal and the number is not known."""

    rc: int
    stdout: bytes
    stderr: bytes

    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


class Shell(Protocol):
    """Runs argv lists somewhere. Quoting happens once, inside the implementation that needs it."""

    @property
    def where(self) -> str: ...

    def run(
        self,
        argv: tuple[str, ...],
        *,
        stdin: bytes | Iterator[bytes] = b"",
        timeout_s: float = 60.0,
        on_line: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run to the end. `on_line` gets each stdout line as it arrives (stdout is then empty in the result).

        An iterator as `stdin` is read in a thread and sent piece by piece; its end is the end of file.

        Raises `ConnectionLost` when the connection drops, `CannotLook` on the time limit or when the
        machine cannot be reached. A command that ran and failed is a `Completed` with its `rc`.
        """
        ...

    def put(self, data: bytes, path: str, *, mode: int = 0o644) -> None:
        """Write a file: staging name in the same folder, then rename. The folder is made when absent."""
        ...


class Answer:
    """Collects the lines of one job's stdout into events and a final value."""

    def __init__(self, where: str, emit: Emit) -> None:
        self._where = where
        self._emit = emit
        self._value: Any = None
        self._error: GpuctlError | None = None
        self._noise: list[str] = []
        self.began = False
        """The other side has taken the job; before that it is safe to ask again."""
        self.complete = False
        """The result or the error is here."""

    def feed(self, line: bytes) -> None:
        """Take one line; lines that are not our JSON are kept as evidence, never an exception."""
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or "type" not in event:
            if line.strip() and len(self._noise) < 20:
                self._noise.append(line.decode("utf-8", "replace").rstrip())
            return
        match event["type"]:
            case "began":
                self.began = True
            case "result":
                self.complete, self._value = True, event.get("value")
            case "error":
                self.complete, self._error = True, GpuctlError.from_json(event)
            case _:
                self._emit(event)

    def value(self) -> Any:
        """The job's value; raises its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def lost(self, completed: Completed) -> ConnectionLost:
        """The error of a job whose process ended without an answer, with what was seen of it."""
        stderr = completed.stderr.decode("utf-8", "replace").strip().splitlines()[-8:]
        return ConnectionLost(
            f"{self._where}: the job ended with exit status {completed.rc} and gave no answer",
            hint="run the command again; if it repeats, the lines below say why",
            detail=tuple(self._noise + stderr),
        )
