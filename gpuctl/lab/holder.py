"""The first process of a lab machine: makes its namespaces, builds its root file system, then reaps orphans.

Started by `gpuctl.lab.namespaces` with one JSON argument. Ends, and with it everything inside, when its standard
input reaches end of file (the daemon is gone) or when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWTIME = 0x10000000, 0x20000000, 0x80
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = {"x86_64": (155, 442), "aarch64": (41, 442)}.get(
    os.uname().machine, (155, 442)
)
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_STATVFS_FLAGS = {2: MS_NOSUID, 4: MS_NODEV, 8: MS_NOEXEC, 1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError naming source and target."""
    words = (source.encode(), target.encode(), kind.encode() or None)
    result = _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    _check(result, f"mount {source} on {target}")


def make_read_only(target: str) -> None:
    """Make a bind mount and everything mounted below it read-only."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, attributes, 32)
    if result == 0:
        return
    # Before Linux 5.12: only this mount, keeping the flags that are locked in a user namespace.
    kept = sum(bit for flag, bit in _STATVFS_FLAGS.items() if os.statvfs(target).f_flag & flag)
    mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def _mount_point(path: Path, *, folder: bool) -> None:
    if folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch()


def _mount_one(root: str, entry: dict[str, Any]) -> None:
    target = root + entry["dst"]
    match entry["kind"]:
        case "bind":
            source = Path(f"/proc/self/fd/{entry['fd']}")
            _mount_point(Path(target), folder=source.is_dir())
            mount(str(source), target, flags=MS_BIND | MS_REC)
            if entry.get("ro"):
                make_read_only(target)
        case "proc":
            _mount_point(Path(target), folder=True)
            mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
            if entry.get("whole"):
                return
            # The lab may run as the real root: its processes must not turn the machine's own switches.
            for name in ("sys", "sysrq-trigger", "irq", "bus"):
                path = f"{target}/{name}"
                if Path(path).exists():
                    mount(path, path, flags=MS_BIND | MS_REC)
                    make_read_only(path)
        case kind:
            _mount_point(Path(target), folder=True)
            mount(
                kind, target, kind, MS_NOSUID | (MS_NODEV if kind == "tmpfs" else MS_NOEXEC), entry.get("data", "")
            )


def build_root(root: str, mounts: list[dict[str, Any]]) -> None:
    """Mount everything below `root` and make it the root; runs in the new namespaces as process 1."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    for entry in mounts:
        if entry["kind"] == "bind":
            # Opened now: what lies below the root's own proc and sys is covered by the real ones in a moment.
            with contextlib.suppress(FileNotFoundError):
                entry["fd"] = os.open(entry["src"], os.O_PATH | os.O_CLOEXEC)
    mount(root, root, flags=MS_BIND | MS_REC)
    for entry in mounts:
        try:
            _mount_one(root, entry)
        except (OSError, KeyError):
            if not entry.get("optional"):
                raise
    for entry in mounts:
        if "fd" in entry:
            os.close(entry["fd"])
    os.chdir(root)
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def enter_namespaces(boottime_offset_s: int | None, *, user: bool = True) -> None:
    """New mount, pid, UTS and IPC namespaces, with `user` a user namespace, with an offset a time namespace."""
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | (CLONE_NEWUSER if user else 0)
    if boottime_offset_s is not None:
        flags |= CLONE_NEWTIME
    _check(_libc.unshare(flags), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if boottime_offset_s is not None:
        Path("/proc/self/timens_offsets").write_text(f"boottime {boottime_offset_s} 0")


def remove_cgroup(folder: Path, *, limit_s: float = 5.0) -> None:
    """Remove a cgroup and those below it; waits for processes in it that are just ending."""
    end = time.monotonic() + limit_s
    while folder.is_dir():
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
        if time.monotonic() > end:
            return
        time.sleep(0.01)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _init(spec: dict[str, Any], ready: int) -> None:
    try:
        hostname = spec["hostname"].encode()
        _check(_libc.sethostname(hostname, len(hostname)), "sethostname")
        build_root(spec["root"], spec["mounts"])
    except Exception as error:
        os.write(ready, f"{error}\n".encode())
        os._exit(1)
    signal.signal(signal.SIGCHLD, _reap)
    os.write(ready, b"ready\n")
    os.close(ready)
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        poll.poll()
        if not os.read(0, 4096):
            os._exit(0)


def main(argv: list[str]) -> int:
    """Make the machine described by the JSON file `argv[0]`; prints one line: `PID` or `error: TEXT`."""
    spec = json.loads(Path(argv[0]).read_bytes())
    try:
        enter_namespaces(spec.get("boottime_offset_s"), user=not spec.get("cgroup"))
    except OSError as error:
        os.write(1, f"error: {error}\n".encode())
        return 1
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.setsid()
        _init(spec, writer)
    os.close(writer)
    os.close(0)
    with os.fdopen(reader, "rb") as answer:
        line = answer.readline().decode("utf-8", "replace").strip()
    os.write(1, f"{pid}\n".encode() if line == "ready" else f"error: {line}\n".encode())
    os.waitpid(pid, 0)
    if spec.get("cgroup"):
        # This process shares the machine's mounts, so it still sees the cgroups when everything else has ended.
        remove_cgroup(Path("/sys/fs/cgroup", spec["cgroup"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
