"""How lab machines are kept apart: real namespaces where the kernel allows them, else an environment variable."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Protocol

from gpuctl.lab import plain
from gpuctl.lab.blueprint import SITE, TOOLS, Blueprint, mounts
from gpuctl.lab.processes import TOKEN, kill_marked
from inventory.errors import Failed
from inventory.reentry import command

_PATH: Final = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_LIMIT_S: Final = 20.0


class View(Protocol):
    """A running machine, as the daemon starts processes in it and looks at its files."""

    @property
    def pid(self) -> int:
        """Its first process (plain mode: the daemon)."""
        ...

    @property
    def root(self) -> Path:
        """Where its `/` can be read and written from the daemon."""
        ...

    def argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """What the daemon must execute so that `words` run inside."""
        ...

    def shell(self, line: str) -> tuple[str, ...]:
        """What the daemon must execute so that `/bin/sh` runs `line` inside, from the home folder."""
        ...

    def env(self) -> dict[str, str]:
        """The whole environment of a process inside."""
        ...

    def alive(self) -> bool: ...

    def kill(self) -> None:
        """End every process inside and wait for it (at most 10 s)."""
        ...


def isolation(environ: Mapping[str, str]) -> str:
    """`namespaces` when this user may make them, else `plain`; GPUCTL_LAB_ISOLATION overrides, also with `lxc`."""
    wanted = environ.get("GPUCTL_LAB_ISOLATION", "")
    if wanted in {"namespaces", "plain", "lxc"}:
        return wanted
    unshare, enter = shutil.which("unshare"), shutil.which("nsenter")
    if not unshare or not enter:
        return "plain"
    try:
        probe = subprocess.run(
            [unshare, "-Urmpfui", "--mount-proc", "true"],
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "plain"
    return "namespaces" if probe.returncode == 0 else "plain"


def start(kind: str, blueprint: Blueprint) -> View:
    """Start a machine. Raises `Failed` with the kernel's reason."""
    return _Namespaces(blueprint) if kind == "namespaces" else _Plain(blueprint)


class _Namespaces:
    """A machine in its own mount, pid, UTS, IPC and, where possible, time namespace; in level 0 also a user one."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._nsenter = shutil.which("nsenter") or "nsenter"
        self._time = Path("/proc/self/timens_offsets").exists()
        spec = {
            "root": str(blueprint.rootfs),
            "hostname": blueprint.name,
            "mounts": mounts(blueprint),
            "boottime_offset_s": int(blueprint.uptime_s - _boottime()) if self._time else None,
            "cgroup": blueprint.cgroup,
        }
        path = blueprint.rootfs.parent / "namespace.json"
        path.write_text(json.dumps(spec, indent=1))
        self._holder = subprocess.Popen(
            command("gpuctl.lab.holder", str(path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env={"PATH": _PATH, TOKEN: blueprint.token},
            start_new_session=True,
        )
        try:
            line = _first_line(self._holder.stdout, _START_LIMIT_S)
            if not line.isdigit():
                raise Failed(f"cannot start the lab machine {blueprint.name}: {line or 'its first process ended'}")
        except BaseException:
            self._release()
            raise
        self._pid = int(line)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self._pid}/root")

    def argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        kinds = ["-m", "-p", "-u", "-i", *(["-T"] if self._time else [])]
        if not self._blueprint.cgroup:
            kinds += ["-U", "--preserve-credentials"]
        return (self._nsenter, "-t", str(self._pid), *kinds, "--", *words)

    def shell(self, line: str) -> tuple[str, ...]:
        return self.argv(("/bin/sh", "-c", 'cd "$HOME"; eval "$1"', "sh", line))

    def env(self) -> dict[str, str]:
        return environment(self._blueprint)

    def alive(self) -> bool:
        return self._holder.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # The holder waits for its child, so this number cannot have been given to another process.
            if self._holder.poll() is None:
                os.kill(self._pid, signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        if self._holder.stdin:
            self._holder.stdin.close()
        try:
            self._holder.wait(10)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait(5)
        if self._holder.stdout:
            self._holder.stdout.close()


class _Plain:
    """No namespaces: processes see the machine's files only through GPUCTL_ROOT."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._mark = f"{blueprint.token}:{blueprint.name}"
        self._alive = True
        plain.prepare(blueprint.rootfs)
        plain.fresh_shm(blueprint.rootfs, blueprint.token, blueprint.name)
        plain.show_uptime(blueprint.rootfs, blueprint.uptime_s)

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def root(self) -> Path:
        return self._blueprint.rootfs

    def argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        return plain.translate_words(words, self._blueprint.rootfs)

    def shell(self, line: str) -> tuple[str, ...]:
        line = plain.translate_line(line, self._blueprint.rootfs)
        return ("/bin/sh", "-c", 'cd "$HOME"; eval "$1"', "sh", line)

    def env(self) -> dict[str, str]:
        rootfs = self._blueprint.rootfs
        return {
            "PATH": f"{rootfs}{TOOLS}:{_PATH.partition(':')[2]}",
            "PYTHONPATH": str(self._blueprint.site),
            "HOME": f"{rootfs}/root",
            "TMPDIR": f"{rootfs}/tmp",
            "GPUCTL_ROOT": str(rootfs),
            "GPUCTL_LAB_SOCKET": f"{rootfs}/run/gpuctl-lab/control.sock",
            plain.MARK: self._mark,
            **_env(self._blueprint),
        }

    def alive(self) -> bool:
        return self._alive

    def kill(self) -> None:
        self._alive = False
        kill_marked(f"{plain.MARK}={self._mark}")
        plain.remove_shm(self._blueprint.rootfs)


def environment(blueprint: Blueprint) -> dict[str, str]:
    """The whole environment of a process of a machine that has its own root folder."""
    return {
        "PATH": _PATH,
        "PYTHONPATH": SITE,
        "HOME": "/root",
        "GPUCTL_LAB_SOCKET": "/run/gpuctl-lab/control.sock",
        **_env(blueprint),
    }


def _env(blueprint: Blueprint) -> dict[str, str]:
    return {
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        TOKEN: blueprint.token,
        **blueprint.env,
    }


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _first_line(stream: IO[bytes] | None, limit_s: float) -> str:
    assert stream is not None
    if not select.select([stream], [], [], limit_s)[0]:
        raise Failed(f"a lab machine did not start within {limit_s:g} s")
    return stream.readline().decode("utf-8", "replace").strip()


def tools_python() -> str:
    """The interpreter lab machines get as python3: the one below a virtual environment, without its packages."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
