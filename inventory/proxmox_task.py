"""Proxmox tasks: wait for the end, judge the exit status, and find one again whose answer was lost."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from inventory.proxmox_wire import Wire

_WARNINGS = re.compile(r"WARNINGS: \d+\Z")
_LOCKED = re.compile(r"CT is locked \((?P<by>[\w-]+)\)")
_REFUSED = {
    "detected modified configuration": "someone changed it meanwhile; run this again: it is read and planned anew",
    "can't lock file": "another task is changing this container; run this again when it is done",
    "unable to open file '/etc/pve/": "the cluster has no quorum, so nothing can be written; see `pvecm status`",
}
"""Proxmox's words for "nothing was done", and what to do."""
LOG_TAIL = 10
"""Lines of a failed task's log that go into the error."""
UNKNOWN_GRACE_S = 5.0
"""A task that was just made may be unknown for a moment (400 `no such task`)."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A limit on the monotonic clock."""

    limit_s: float
    at: float

    @classmethod
    def after(cls, limit_s: float) -> Deadline:
        return cls(limit_s, time.monotonic() + limit_s)

    def over(self) -> bool:
        return time.monotonic() > self.at


def wait(
    wire: Wire, node: str, upid: str, what: str, deadline: Deadline, *, harmless: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Poll until the task ends; its warnings. Raises by its exit status: a failed task is a 200 for HTTP.

    `harmless`: exit statuses that mean that someone else has just done the same.
    """
    pause_s, began = 0.1, time.monotonic()
    while True:
        try:
            status = wire.get("nodes", node, "tasks", upid, "status")
        except CannotLook as error:
            if "no such task" not in error.message or time.monotonic() - began > UNKNOWN_GRACE_S:
                raise
            status = {"status": "running"}
        if status.get("status") == "stopped":
            exitstatus = str(status.get("exitstatus", ""))
            return () if exitstatus in harmless else _judge(wire, node, upid, what, exitstatus)
        if deadline.over():
            raise CannotLook(
                f"{what}: the task did not end within {deadline.limit_s:g} s",
                hint=f"it still runs on {node}; look at it in the Proxmox web interface ({upid})",
                detail=log_tail(wire, node, upid),
            )
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.5)


def _judge(wire: Wire, node: str, upid: str, what: str, exitstatus: str) -> tuple[str, ...]:
    if exitstatus == "OK":
        return ()
    if _WARNINGS.match(exitstatus):
        lines = log_tail(wire, node, upid, lines=0)
        found = tuple(line.removeprefix("WARN: ") for line in lines if line.startswith("WARN: "))
        return found or (exitstatus,)
    raise failure(what, exitstatus or "the task gave no exit status", detail=log_tail(wire, node, upid))


def failure(what: str, text: str, *, detail: tuple[str, ...] = ()) -> GpuctlError:
    """The error for Proxmox's own `text`, with the hint that fits it."""
    locked = _LOCKED.search(text)
    if locked:
        return Refused(
            f"{what}: {text}",
            hint=f"wait until the {locked['by']} has ended, then run this again; `pct unlock` only if none runs",
            detail=detail,
        )
    for words, advice in _REFUSED.items():
        if words in text:
            return Refused(f"{what}: {text}", hint=advice, detail=detail)
    hint = ""
    if "no quorum" in text:
        hint = "the cluster has no quorum: bring back the other nodes; nothing can be changed until then"
    elif re.search(r"Device \S+ does not exist|is not a device", text):
        hint = "the device node is missing on the host: load the driver there first (`nvidia-modprobe -u -c 0`)"
    return Failed(f"{what}: {text}", hint=hint, detail=detail)


def log_tail(wire: Wire, node: str, upid: str, *, lines: int = LOG_TAIL) -> tuple[str, ...]:
    """The task's last log lines (0: all); empty when the log can't be read, for it is only evidence."""
    try:
        entries = wire.get("nodes", node, "tasks", upid, "log", limit=0)
    except CannotLook:
        return ()
    text = tuple(str(entry.get("t", "")) for entry in entries if isinstance(entry, dict))
    return text[-lines:] if lines else text


def find(wire: Wire, node: str, vmid: int, kinds: tuple[str, ...], since_s: float) -> str | None:
    """UPID of a task of ours on this guest that began at or after `since_s` (the node's clock), newest first."""
    entries: list[dict[str, Any]] = wire.get("nodes", node, "tasks", vmid=vmid, source="all", limit=20)
    for entry in sorted(entries, key=lambda entry: float(entry.get("starttime", 0)), reverse=True):
        # Whole seconds on their side, and clocks are compared to about a second.
        if entry.get("type") in kinds and float(entry.get("starttime", 0)) >= since_s - 2.0:
            return str(entry["upid"])
    return None
