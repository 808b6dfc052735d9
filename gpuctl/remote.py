"""Machines on which jobs run: this process, or our zip application at the other end of a shell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuctl.agent import run_job
from gpuctl.bundle import Bundle
from inventory.errors import CannotLook
from inventory.machine import Answer, Completed, Emit, Shell, ignore

FOLDER: Final = "/var/cache/gpuctl"
"""Where the zip application is put on the other side."""


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
        """Run the job here."""
        return run_job(job, dict(args or {}), emit)


class RemoteMachine:
    """Jobs run over a shell with the zip application, which is pushed when it is not there yet."""

    def __init__(self, shell: Shell, bundle: Callable[[], Bundle], *, python: str = "python3") -> None:
        self._shell = shell
        self._bundle = bundle
        self._python = python

    @property
    def where(self) -> str:
        return self._shell.where

    def call(
        self, job: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        """Run the job there; see `inventory.machine.Machine`."""
        bundle = self._bundle()
        path = f"{FOLDER}/{bundle.name}"
        request = json.dumps({"job": job, "args": dict(args or {})}).encode()
        answer, completed = self._run(path, request, emit, timeout_s)
        if _is_absent(completed, path):
            self._shell.put(bundle.path.read_bytes(), path)
            answer, completed = self._run(path, request, emit, timeout_s)
        if completed.rc in (126, 127):
            raise CannotLook(
                f"{self.where}: {self._python} cannot be run there (exit status {completed.rc})",
                hint="install it on that machine, for example: apt install python3",
                detail=tuple(completed.stderr.decode("utf-8", "replace").splitlines()[-3:]),
            )
        return answer.value(completed)

    def _run(self, path: str, request: bytes, emit: Emit, timeout_s: float) -> tuple[Answer, Completed]:
        answer = Answer(self.where, emit)
        # -I keeps that machine's PYTHON* variables out; the lab's driver stand-in comes in by PYTHONPATH,
        # so only the user site folder is left out here.
        argv = (self._python, "-s", path)
        completed = self._shell.run(argv, stdin=request, timeout_s=timeout_s, on_line=answer.feed)
        return answer, completed


def _is_absent(completed: Completed, path: str) -> bool:
    """Python's own words for a script that is not there (exit status 2), so no extra round trip is needed."""
    return completed.rc == 2 and b"can't open file" in completed.stderr and path.encode() in completed.stderr
