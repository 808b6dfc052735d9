"""Start, stop, reboot and look at a lab from outside its daemon."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuctl.lab import plain, processes, real
from gpuctl.lab.state import ERROR_LINE, TOLD, VMID, LabDir, LabInfo, read_info
from inventory.errors import CannotLook, Failed, GpuctlError, Refused
from inventory.reentry import command

UP_LIMIT_S: Final = 60.0
DOWN_LIMIT_S: Final = 20.0
_LOG_LINES: Final = 12
_ISOLATION: Final = "GPUCTL_LAB_ISOLATION"


@dataclass(frozen=True, slots=True)
class Started:
    """Result of `up`: the running lab, and whether this call started it."""

    info: LabInfo
    started: bool


def up(lab: LabDir, ports: dict[str, int] | None = None, *, level: int | None = None) -> Started:
    """Start the lab unless it runs. `level` None: that of the folder's lab, 0 for a new one.

    Raises `Failed` with the daemon's last words, `Refused` when the folder or the machine is not fit for the level.
    """
    _require_packages()
    env = _environment(lab, level)
    lab.root.mkdir(parents=True, exist_ok=True)
    child = None
    if daemon_pid(lab) is None:
        words = [f"{name}={port}" for name, port in (ports or {}).items()]
        with lab.log.open("ab") as log:
            child = subprocess.Popen(
                command("gpuctl.lab.daemon", str(lab.root), *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=env,
                start_new_session=True,
            )
    end = time.monotonic() + UP_LIMIT_S
    while time.monotonic() < end:
        info = read_info(lab)
        pid = daemon_pid(lab)
        if info is not None and pid is not None and info.pid == pid and _answers(info.ports["ssh"]):
            return Started(info, child is not None and child.pid == pid)
        if child is not None and child.poll() == TOLD:
            raise _told(lab)
        # 3: another labd took the folder in this very moment; that one is waited for.
        if child is not None and child.poll() not in (None, 3):
            raise Failed(f"the lab in {lab.root} did not start", hint=f"see {lab.log}", detail=_last_lines(lab))
        time.sleep(0.03)
    raise Failed(
        f"the lab in {lab.root} was not ready within {UP_LIMIT_S:g} s",
        hint=f"see {lab.log}",
        detail=_last_lines(lab),
    )


def _environment(lab: LabDir, level: int | None) -> dict[str, str]:
    """The daemon's environment, which says how machines are to be kept apart."""
    before, env = read_info(lab), dict(os.environ)
    named = 1 if env.get(_ISOLATION) == real.ISOLATION else None
    wanted = next((number for number in (level, named, before.level if before else None) if number is not None), 0)
    if before is not None and before.level != wanted:
        raise Refused(
            f"{lab.root} holds a lab of level {before.level}, not {wanted}",
            hint="take another folder with --dir, or remove that one: gpuctl lab down --purge",
        )
    if wanted == 1:
        real.require()
        env[_ISOLATION] = real.ISOLATION
    elif named:
        del env[_ISOLATION]
    return env


def down(lab: LabDir, *, purge: bool = False) -> bool:
    """Stop the daemon and every process of the lab; True when it ran. `purge` removes the folder too."""
    if not lab.root.exists():
        return False
    info = read_info(lab)
    pid = daemon_pid(lab)
    if pid is not None:
        _end_daemon(lab, pid)
    if info is not None:
        # What outlived its daemon: without namespaces a killed labd takes nothing with it.
        processes.kill_marked(f"{processes.TOKEN}={info.token}")
        if info.level == 1:
            real.remove_cgroups(info.token)
    for rootfs in (lab.host_rootfs, lab.ct_rootfs(VMID)):
        if (rootfs / "dev" / "shm").is_symlink():
            plain.remove_shm(rootfs)
    if purge:
        _purge(lab)
    return pid is not None


def reboot(lab: LabDir) -> LabInfo:
    """Reboot the lab's host; returns when it is up again. Raises `Failed`, `CannotLook`."""
    running(lab)
    answer = _ask(lab, "lab-reboot")
    if answer != 0:
        raise Failed("the lab's host did not come up again", hint=f"see {lab.log}", detail=_last_lines(lab))
    return running(lab)


def running(lab: LabDir) -> LabInfo:
    """The running lab. Raises `Refused` when none runs."""
    info = read_info(lab)
    pid = daemon_pid(lab)
    if info is None or pid is None or info.pid != pid:
        raise Refused(f"no lab runs in {lab.root}", hint=f"start it: gpuctl lab up --dir {lab.root}")
    return info


def daemon_pid(lab: LabDir) -> int | None:
    """labd's process id, None when none holds the folder's lock."""
    try:
        descriptor = os.open(lab.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode().strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def _end_daemon(lab: LabDir, pid: int) -> None:
    for number, limit_s in ((signal.SIGTERM, DOWN_LIMIT_S), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if daemon_pid(lab) is None:
                return
            time.sleep(0.02)
    raise Failed(f"labd (process {pid}) of {lab.root} does not end", hint=f"see {lab.log}")


def _purge(lab: LabDir) -> None:
    if not lab.lock.exists():
        raise Refused(f"{lab.root} is not a lab's folder, so it is not removed", hint="check --dir")
    shutil.rmtree(lab.root)


def _ask(lab: LabDir, program: str, *, limit_s: float = 60.0) -> int:
    """Send one request to the daemon's control socket."""
    folder = os.open(lab.socket.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, Path(os.devnull).open("r+b") as null:
            client.settimeout(limit_s)
            client.connect(f"/proc/self/fd/{folder}/{lab.socket.name}")
            request = json.dumps({"program": program, "words": [], "cwd": "/"}).encode() + b"\n"
            socket.send_fds(client, [request], [null.fileno()] * 3)
            answer: dict[str, Any] = json.loads(client.makefile("rb").readline() or b"{}")
    except (OSError, ValueError) as error:
        raise CannotLook(f"the lab in {lab.root} does not answer: {error}", hint=f"see {lab.log}") from error
    finally:
        os.close(folder)
    return int(answer.get("rc", 255))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _last_lines(lab: LabDir) -> tuple[str, ...]:
    try:
        return tuple(lab.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    except OSError:
        return ()


def _told(lab: LabDir) -> GpuctlError:
    """The error that labd left as its last words."""
    line = next((line for line in reversed(_last_lines(lab)) if line.startswith(ERROR_LINE)), f"{ERROR_LINE}{{}}")
    return GpuctlError.from_json(json.loads(line.removeprefix(ERROR_LINE)))


def _require_packages() -> None:
    absent = [name for name in ("asyncssh", "cryptography") if importlib.util.find_spec(name) is None]
    if absent:
        raise Refused(f"the lab needs {' and '.join(absent)}", hint="they are in requirements/lab.lock")
