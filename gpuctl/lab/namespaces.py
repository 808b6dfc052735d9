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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

from gpuctl.lab import plain
from inventory.errors import Failed
from inventory.reentry import command

TOKEN: Final = "GPUCTL_LAB"
TOOLS: Final = "/opt/gpuctl-lab/bin"
SITE: Final = "/opt/gpuctl-lab/site"
_PATH: Final = f"{TOOLS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a machine is made of. Paths are the daemon's own."""

    name: str
    rootfs: Path
    """Folder that is the machine's root (namespaces) or its GPUCTL_ROOT (plain)."""
    site: Path
    """Folder put on PYTHONPATH: the stand-in for the driver."""
    token: str
    shm_mib: int = 512
    binds: tuple[tuple[str, str], ...] = ()
    """(source, place inside) pairs, mounted read-only."""
    shared: tuple[tuple[str, str], ...] = ()
    """The same, writable; only with namespaces."""
    caller: Path | None = None
    """Plain mode: root folder of the machine from which commands come (for a container, its host)."""
    uptime_s: float = 0.0
    """How long the machine is said to be up at this moment."""
    env: Mapping[str, str] = field(default_factory=dict)


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
    """`namespaces` when this user may make them, else `plain`; GPUCTL_LAB_ISOLATION overrides."""
    wanted = environ.get("GPUCTL_LAB_ISOLATION", "")
    if wanted in {"namespaces", "plain"}:
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
    """A machine in its own user, mount, pid, UTS, IPC and, where possible, time namespace."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._nsenter = shutil.which("nsenter") or "nsenter"
        self._time = Path("/proc/self/timens_offsets").exists()
        spec = {
            "root": str(blueprint.rootfs),
            "hostname": blueprint.name,
            "mounts": _mounts(blueprint),
            "boottime_offset_s": int(blueprint.uptime_s - _boottime()) if self._time else None,
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
        kinds = ["-U", "-m", "-p", "-u", "-i", *(["-T"] if self._time else [])]
        return (self._nsenter, "-t", str(self._pid), *kinds, "--preserve-credentials", "--", *words)

    def shell(self, line: str) -> tuple[str, ...]:
        return self.argv(("/bin/sh", "-c", 'cd "$HOME"; eval "$1"', "sh", line))

    def env(self) -> dict[str, str]:
        return {
            "PATH": _PATH,
            "PYTHONPATH": SITE,
            "HOME": "/root",
            "GPUCTL_LAB_SOCKET": "/run/gpuctl-lab/control.sock",
            **_env(self._blueprint),
        }

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
        return plain.translate_words(words, self._blueprint.rootfs, self._blueprint.caller)

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


def _mounts(blueprint: Blueprint) -> list[dict[str, Any]]:
    """The mounts that turn a rootfs folder into a machine, in order."""
    rootfs = blueprint.rootfs
    entries = [_bind(folder, folder) for folder in _system_folders(rootfs)]
    entries += [_bind(f"/etc/{name}", f"/etc/{name}") for name in _ETC if Path(f"/etc/{name}").exists()]
    entries += [_bind(source, place) for source, place in blueprint.binds]
    entries += [
        {"kind": "proc", "dst": "/proc"},
        # Every kernel makes the empty folder /proc/driver, so there is always something to mount on.
        *(
            _bind(str(rootfs / "proc" / name), f"/proc/{name}")
            for name in ("devices", "driver", "sys/kernel/random/boot_id")
        ),
        _bind("/sys", "/sys"),
        _bind(str(rootfs / "sys" / "module"), "/sys/module") | {"optional": True},
        *(_bind(f"/dev/{name}", f"/dev/{name}") | {"ro": False} for name in _DEV if Path(f"/dev/{name}").exists()),
        {"kind": "tmpfs", "dst": "/dev/shm", "data": f"mode=1777,size={blueprint.shm_mib}m"},
        {"kind": "devpts", "dst": "/dev/pts", "data": "newinstance,ptmxmode=0666,mode=620", "optional": True},
        *(_bind(source, place) | {"ro": False} for source, place in blueprint.shared),
    ]
    return entries


_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "mime.types", "nsswitch.conf", "pki", "protocols", "resolv.conf", "services", "ssl",
)  # fmt: skip
_DEV: Final = ("null", "zero", "full", "random", "urandom", "tty")


def _bind(source: str, place: str) -> dict[str, Any]:
    return {"kind": "bind", "src": source, "dst": place, "ro": True}


def _system_folders(rootfs: Path) -> list[str]:
    """Folders of the machine's own system to show inside; links such as /bin -> usr/bin are copied as links."""
    found = []
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix"):
        real, shown = Path("/", name), rootfs / name
        if real.is_symlink():
            if not shown.is_symlink():
                shown.symlink_to(real.readlink())
        elif real.is_dir():
            found.append(str(real))
    return found


def kill_marked(entry: str, *, limit_s: float = 10.0) -> int:
    """Kill every process of this user whose environment holds `NAME=value`; returns how many were found."""
    wanted, found, end = entry.encode(), set[int](), time.monotonic() + limit_s
    while time.monotonic() < end:
        alive = [pid for pid in marked(wanted) if pid != os.getpid()]
        if not alive:
            break
        found.update(alive)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return len(found)


def marked(entry: bytes) -> list[int]:
    """Processes of this user whose environment holds exactly `entry`; zombies have none and do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def tools_python() -> str:
    """The interpreter lab machines get as python3: the one below a virtual environment, without its packages."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
