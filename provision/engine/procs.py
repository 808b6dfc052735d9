"""Processes, sessions and listening ports of this machine, read from the kernel's own /proc.

`inventory.root.at` is not used here: a fixture tree has no living processes, and what is asked is
always about processes that this kernel runs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat (proc(5)): state letter, parent, session, start in clock ticks since boot."""

    pid: int
    state: str
    ppid: int
    session: int
    start_ticks: int


def stat(pid: int) -> Stat | None:
    """None when there is no such process (any more)."""
    try:
        text = Path(f"{PROC}/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name in parentheses may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process still runs; a zombie does not run."""
    found = stat(pid)
    return found is not None and found.start_ticks == start_ticks and found.state not in "ZX"


def up_s(start_ticks: int) -> float:
    """Seconds since a process with this start time was started."""
    # Not /proc/uptime: lxcfs shows the container's there, while start times count from the host's boot.
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK"))


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):  # noqa: PTH208
        if name.isdigit():
            yield int(name)


def session(leader: int) -> tuple[Stat, ...]:
    """The living members of a session."""
    found = (stat(pid) for pid in _pids())
    return tuple(one for one in found if one is not None and one.session == leader and one.state not in "ZX")


def port_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"{PROC}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def holder(port: int) -> int | None:
    """The pid that listens on `port`; None when nobody does or it can't be seen from here."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for pid in _pids():
        try:
            for fd in os.listdir(f"{PROC}/{pid}/fd"):  # noqa: PTH208
                if os.readlink(f"{PROC}/{pid}/fd/{fd}") in inodes:  # noqa: PTH115
                    return pid
        except OSError:
            continue
    return None


def name(pid: int) -> str:
    """The command line of a process, shortened to its first words."""
    try:
        words = Path(f"{PROC}/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "unknown"
    return " ".join(word for word in words if word)[:80] or "unknown"


def has_environment(pid: int, variable: str) -> bool:
    """Whether a process was started with this environment variable; False when that can't be read."""
    try:
        return f"\0{variable}=".encode() in b"\0" + Path(f"{PROC}/{pid}/environ").read_bytes()
    except OSError:
        return False


def belongs(pid: int, leader: int) -> bool:
    """Whether `pid` is `leader`, in its session, or descends from it."""
    seen = 0
    found = stat(pid)
    while found is not None and seen < 64:
        if leader in (found.pid, found.session):
            return True
        found, seen = stat(found.ppid), seen + 1
    return False


def who(port: int) -> str:
    """Who listens on `port`, in words."""
    pid = holder(port)
    if pid is None:
        return "a process that cannot be seen from here"
    return f"pid {pid} ({name(pid)})"
