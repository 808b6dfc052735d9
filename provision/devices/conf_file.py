"""Replace the file of a container's configuration so that no reader or writer ever meets half of it.

pmxcfs (pve-cluster): the mode is fixed, so no chmod and no chown; truncating shows an empty file, which means
a container without a disk; only a temporary file in the same folder and a rename is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from inventory.root import at
from provision.devices import conf

LOCK_WAIT_S = 10.0
"""As long as Proxmox itself waits for the same lock (lock_config)."""
LARGEST = 1_000_000
"""Bytes; above 1 MiB - 24 the API can't read the file, and the node's whole container list fails with it."""


def vmid_of(args: Mapping[str, Any]) -> int:
    """The VMID among a job's arguments; raises `ConfigError`."""
    value = args.get("vmid")
    if isinstance(value, bool) or not isinstance(value, int) or not 100 <= value <= 999_999_999:
        raise ConfigError(f"{value!r} is no VMID: a number from 100 to 999999999 is")
    return value


def path_of(vmid: int) -> str:
    """Path of the configuration on the node that owns the container (a link to its folder in /etc/pve/nodes)."""
    return f"/etc/pve/lxc/{vmid}.conf"


@contextlib.contextmanager
def locked(vmid: int, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock that Proxmox takes for every change of this configuration; raises `Refused` after `wait_s`."""
    path = Path(at(f"/run/lock/lxc/pve-config-{vmid}.lock"))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise Refused(
                        f"container {vmid}: its configuration is locked by another process for {wait_s:g} s now",
                        hint="a task of Proxmox is changing it; run this again when it is done",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def replace(vmid: int, digest: str, new: bytes, *, wait_s: float = LOCK_WAIT_S) -> tuple[str, str]:
    """Put `new` in place of the configuration whose SHA-1 is `digest`; gives the new SHA-1 and the backup."""
    path = path_of(vmid)
    if not new.strip() or len(new) > LARGEST:
        raise Refused(f"container {vmid}: a configuration of {len(new)} bytes is not written")
    try:
        with locked(vmid, wait_s):
            old = Path(at(path)).read_bytes()
            _check(vmid, conf.parse(old), digest)
            backup = _backup(vmid, old, digest)
            _rename_over(at(path), new)
    except OSError as error:
        raise _explained(vmid, path, error) from error
    return conf.parse(new).digest, backup


def _check(vmid: int, now: conf.Document, digest: str) -> None:
    if now.digest != digest:
        raise Refused(
            f"container {vmid}: its configuration changed meanwhile ({digest[:8]} is now {now.digest[:8]})",
            hint="run this again: it is read and planned anew",
        )
    if now.lock:
        raise Refused(
            f"CT {vmid} is locked ({now.lock})",
            hint=f"wait for that task to end; a lock left over by a crash is removed by `pct unlock {vmid}`",
        )


def _backup(vmid: int, old: bytes, digest: str) -> str:
    folder = "/var/lib/gpuctl/backups"
    Path(at(folder)).mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = f"{folder}/{vmid}.conf.{stamp}.{digest[:8]}"
    _rename_over(at(path), old)
    return path


def _rename_over(path: str, data: bytes) -> None:
    folder, temporary = Path(path).parent, f"{path}.tmp.{os.getpid()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _explained(vmid: int, path: str, error: OSError) -> GpuctlError:
    if error.errno == errno.ENOENT and error.filename in (at(path), Path(at(path))):
        return CannotLook(f"container {vmid} has no configuration at {path} on this node")
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return Refused(
            f"{path} can't be written: {os.strerror(error.errno)}",
            hint="the cluster has no quorum (see `pvecm status`), or this isn't root",
        )
    return Failed(f"{path} can't be replaced: {error}")
