"""Worker tasks: UPIDs, their log with paging, and an end that shows only in the exit status."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuctl.lab.pve.backend import TaskFailed, TaskLog
from gpuctl.lab.pve.fault import Fault, bad_parameters

_UPID: Final = re.compile(
    r"UPID:([A-Za-z0-9.-]+):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):"
)
_KEPT: Final = 1000


@dataclass(slots=True)
class Task:
    """One worker. `exit_status` is None while it runs; success is `OK` or `WARNINGS: n`."""

    upid: str
    node: str
    pid: int
    pstart: int
    starttime: int
    kind: str
    id: str
    user: str
    lines: list[str] = field(default_factory=list)
    warnings: int = 0
    exit_status: str | None = None
    endtime: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, text: str) -> None:
        self.lines.extend(text.rstrip("\n").split("\n"))

    def warn(self, text: str) -> None:
        """Add `WARN: text` and count it."""
        self.warnings += 1
        self(f"WARN: {text}")

    def owned_by(self, who: str) -> bool:
        """Whether `who` started it, or a token of `who` did."""
        return self.user == who or self.user.partition("!")[0] == who

    def identity(self) -> dict[str, Any]:
        """What a UPID says, spelled out."""
        return {
            "upid": self.upid,
            "node": self.node,
            "pid": self.pid,
            "pstart": self.pstart,
            "starttime": self.starttime,
            "type": self.kind,
            "id": self.id,
            "user": self.user,
        }

    def status(self) -> dict[str, Any]:
        """The answer of GET .../tasks/{upid}/status."""
        if self.exit_status is None:
            return self.identity() | {"status": "running"}
        return self.identity() | {"status": "stopped", "exitstatus": self.exit_status}

    def entry(self) -> dict[str, Any]:
        """The task's line in a task list."""
        if self.exit_status is None:
            return self.identity()
        return self.identity() | {"endtime": self.endtime, "status": self.exit_status}


class Tasks:
    """The tasks of a node, newest first. `uptime_s` is where the start counter in a UPID comes from."""

    def __init__(self, node: str, uptime_s: Callable[[], float]) -> None:
        self._node = node
        self._uptime_s = uptime_s
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._pids = itertools.count(1000)

    def start(self, kind: str, identity: str, user: str, work: Callable[[TaskLog], None]) -> Task:
        """Run `work` in its own thread; returns at once."""
        task = self._new(kind, identity, user)
        threading.Thread(target=_run, args=(task, work), name=task.upid, daemon=True).start()
        return task

    def _new(self, kind: str, identity: str, user: str) -> Task:
        with self._lock:
            pid, pstart, now = next(self._pids), int(self._uptime_s() * 100), int(time.time())
            upid = f"UPID:{self._node}:{pid:08X}:{pstart:08X}:{now:08X}:{kind}:{identity}:{user}:"
            task = Task(upid, self._node, pid, pstart, now, kind, identity, user)
            self._tasks[upid] = task
            for old in list(self._tasks)[:-_KEPT]:
                if self._tasks[old].exit_status is not None:
                    del self._tasks[old]
        return task

    def get(self, upid: str) -> Task | None:
        """The task, None when this node has no such task; raises a 400 `Fault` when it is no UPID."""
        if not _UPID.fullmatch(upid):
            raise bad_parameters({"upid": "unable to parse worker upid"})
        with self._lock:
            return self._tasks.get(upid)

    def status(self, upid: str) -> dict[str, Any]:
        """Status of a task; raises the 400 of an unknown one."""
        task = self.get(upid)
        if task is None:
            raise bad_parameters({"upid": "no such task"})
        return task.status()

    def newest(self) -> list[Task]:
        """All tasks, newest first."""
        with self._lock:
            return list(reversed(self._tasks.values()))

    def clear(self) -> None:
        """Forget all tasks that have ended (a reboot keeps its archive; tests start clean)."""
        with self._lock:
            self._tasks = {key: task for key, task in self._tasks.items() if task.exit_status is None}


def _run(task: Task, work: Callable[[TaskLog], None]) -> None:
    failure = ""
    try:
        work(task)
    except (TaskFailed, Fault) as error:
        failure = str(error).strip() or "unknown error"
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    if failure:
        task(f"TASK ERROR: {failure}")
        status = failure.split("\n")[0]
    elif task.warnings:
        status = f"WARNINGS: {task.warnings}"
        task(f"TASK {status}")
    else:
        status = "OK"
        task("TASK OK")
    task.endtime = int(time.time())
    task.exit_status = status
    task.done.set()


def log_page(task: Task | None, start: int, limit: int) -> tuple[list[Mapping[str, Any]], int]:
    """(lines, total) of a log from line `start` on; `limit` 0 is everything."""
    if task is None:
        return [{"n": 1, "t": "unable to open file - No such file or directory"}], 1
    lines = list(task.lines)
    if not lines:
        return [{"n": 1, "t": "no content"}], 1
    chosen = lines[start : start + limit] if limit else lines[start:]
    return [{"n": start + index, "t": text} for index, text in enumerate(chosen, 1)], len(lines)
