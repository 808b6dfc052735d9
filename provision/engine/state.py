"""What is remembered of the engine between runs: one file written by rename, a lock, a log."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from inventory.errors import CannotLook, Refused
from inventory.machine import Emit
from inventory.root import at
from provision.engine import procs

FOLDER: Final = "/var/lib/gpuctl/engine"
SCHEMA_VERSION: Final = 1


def folder() -> Path:
    """The real place of the engine's runtime folder."""
    return Path(at(FOLDER))


def log_path() -> Path:
    """The engine's stdout and stderr since its start."""
    return folder() / "engine.log"


def boot_id() -> str:
    """The kernel's boot id; raises `CannotLook` when it can't be read."""
    path = at("/proc/sys/kernel/random/boot_id")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise CannotLook(f"the boot id in {path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class EngineState:
    """The engine process we started last, whether or not it still lives."""

    pid: int
    start_ticks: int
    boot_id: str
    key: str
    url: str
    ready_path: str
    kind: str
    method: str
    tp: int
    model: str
    served: str
    model_id: str
    """Fingerprint of the model's files at the start: a replaced model means another engine."""
    argv: tuple[str, ...]
    ready: bool = False
    """Whether it has ever answered."""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def alive(self) -> bool:
        """Whether this very process runs: same boot, same pid, same start time."""
        return self.boot_id == boot_id() and procs.alive(self.pid, self.start_ticks)


def model_id(path: str) -> str:
    """Inode, size and mtime of a model file (of each file in a model's folder); empty when absent."""
    root = Path(at(path))
    try:
        files = sorted(one for one in root.iterdir() if one.is_file()) if root.is_dir() else [root]
        found = [(one.name, one.stat()) for one in files]
    except OSError:
        return ""
    return ";".join(f"{name}:{mark.st_ino}:{mark.st_size}:{mark.st_mtime_ns}" for name, mark in found)


def read() -> EngineState | None:
    """None when there is none, or when the file is not one of ours (an older layout counts as none)."""
    try:
        data: Any = json.loads((folder() / "state.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return None
    except OSError as error:
        raise CannotLook(f"the engine's state in {folder()} cannot be read: {error.strerror}") from error
    if not isinstance(data, Mapping) or data.get("schema_version") != SCHEMA_VERSION:
        return None
    fields = {name: data[name] for name in EngineState.__dataclass_fields__ if name in data}
    try:
        return EngineState(**{**fields, "argv": tuple(fields["argv"])})
    except (KeyError, TypeError):
        return None


def write(state: EngineState) -> None:
    """Staging name, then rename: a reader sees the old state or the new one."""
    target = folder() / "state.json"
    staging = target.with_suffix(".new")
    staging.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **asdict(state)}))
    staging.replace(target)


def forget() -> None:
    """No engine of ours any more."""
    (folder() / "state.json").unlink(missing_ok=True)


@contextmanager
def lock(emit: Emit, *, timeout_s: float = 60.0) -> Iterator[None]:
    """Only one run starts or stops the engine. Says when it waits; raises `Refused` after `timeout_s`."""
    folder().mkdir(parents=True, exist_ok=True)
    fd = os.open(folder() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline, told = time.monotonic() + timeout_s, False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    emit(
                        {
                            "type": "note",
                            "what": "engine",
                            "line": "another run starts or stops the engine: waiting",
                        }
                    )
                    told = True
                if time.monotonic() > deadline:
                    raise Refused(
                        f"another run has been starting or stopping the engine for {timeout_s:.0f} s",
                        hint="let it finish, or end it, and run this again",
                    ) from None
                time.sleep(0.2)
        yield
    finally:
        os.close(fd)
