"""Start, restart and wait for a container through the Proxmox API."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.machine import Emit
from provision.devices.doors import ct_name
from provision.devices.scout import Scout

POLL_S: Final = 1.0

READY_S: Final = 30.0
"""How long a container that was just started may take until a command runs in it."""


@dataclass(frozen=True, slots=True)
class Power:
    """Start or restart the container, or wait until Proxmox has started its guests."""

    action: str
    line: str


class PowerSwitch:
    """Makes the steps of `Power`; each wait is bounded by `limit_s`."""

    def __init__(self, scout: Scout, vmid: int, limit_s: float, grace_s: float) -> None:
        self._scout, self._vmid, self._limit_s, self._grace_s = scout, vmid, limit_s, grace_s
        self._ready_by = 0.0

    def still_starting(self) -> bool:
        """Whether a container that we started may still be on its way."""
        return time.monotonic() < self._ready_by

    def make(self, step: Power, emit: Emit) -> str:
        """Make the step and say what was done; raises with the task's own text."""
        try:
            return self._wait(emit) if step.action == "wait" else self._start(step, emit)
        finally:
            self._scout.forget()

    def _start(self, step: Power, emit: Emit) -> str:
        name, doors = ct_name(self._vmid), self._scout.doors
        if step.action == "restart":
            self._shut_down(emit)
        self._scout.outlived.clear()
        warnings = doors.api.start(doors.node, self._vmid, timeout_s=self._limit_s)
        self._await_running()
        self._ready_by = time.monotonic() + READY_S
        told = f" with warnings: {'; '.join(warnings)}" if warnings else ""
        return f"{name} was {'restarted' if step.action == 'restart' else 'started'}{told}"

    def _await_running(self) -> None:
        """The start task of a container under high availability ends before the container runs."""
        end = time.monotonic() + self._limit_s
        while (now := self._status()) != "running":
            if time.monotonic() >= end:
                raise Failed(f"{ct_name(self._vmid)} is {now} {self._limit_s:g} s after its start task ended")
            time.sleep(POLL_S)

    def _status(self) -> str:
        doors = self._scout.doors
        return doors.api.status(doors.node, self._vmid).status

    def _shut_down(self, emit: Emit) -> None:
        doors = self._scout.doors
        try:
            # The task's own limit is 5 s less than ours, so that its words are what is shown.
            doors.api.shutdown(doors.node, self._vmid, timeout_s=self._grace_s + 5)
        except CannotLook:
            raise
        except GpuctlError as error:
            if self._status() == "running":
                text = f"{ct_name(self._vmid)} did not shut down ({error.message}): stopping"
                emit({"type": "note", "text": text})
                doors.api.stop(doors.node, self._vmid, timeout_s=self._limit_s)

    def _wait(self, emit: Emit) -> str:
        doors, end = self._scout.doors, time.monotonic() + self._limit_s
        while any(task.kind == "startall" for task in doors.api.running_tasks(doors.node)):
            if time.monotonic() >= end:
                raise Failed(
                    f"Proxmox is still starting its guests after {self._limit_s:g} s",
                    hint="see the task startall in its log; raise thresholds.start_timeout_s if that is normal",
                )
            emit({"type": "note", "text": "Proxmox is still starting its guests"})
            time.sleep(POLL_S)
        return "Proxmox has started its guests"
