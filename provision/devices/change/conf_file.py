"""Replace the file of a container's configuration, or take the last replacement back, under Proxmox's own lock.

pmxcfs (pve-cluster): the mode is fixed, so no chmod and no chown; truncating shows an empty file, which means
a container without a disk; only a temporary file in the same folder and a rename is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from inventory.root import at
from provision.devices.change import backup, whole_file
from provision.devices.config import conf
from provision.devices.facts import Backup

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
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(whole_file.held(f"/run/lock/lxc/pve-config-{vmid}.lock", wait_s))
        except TimeoutError:
            raise Refused(
                f"container {vmid}: its configuration is locked by another process for {wait_s:g} s now",
                hint="a task of Proxmox is changing it; run this again when it is done",
            ) from None
        yield


def backups(vmid: int) -> tuple[Backup, ...]:
    """Backups of this container's configuration, the newest first."""
    return backup.backups(vmid)


def replace(vmid: int, digest: str, new: bytes, *, wait_s: float = LOCK_WAIT_S) -> tuple[str, str]:
    """Put `new` in place of the configuration whose SHA-1 is `digest`; gives the new SHA-1 and the backup.

    Raises `Refused` (changed meanwhile, `lock:` set, lock held by another process, no quorum, an empty or too
    large text), `CannotLook` (no such file), `Failed`.
    """
    _check_size(vmid, new)
    with explaining(vmid), locked(vmid, wait_s):
        return _put(vmid, checked(vmid, digest), new)


def checked(vmid: int, digest: str) -> bytes:
    """The file's bytes, with the lock held. Raises `Refused` when its SHA-1 isn't `digest` or it has a `lock:`."""
    old = read(vmid)
    now = conf.parse(old)
    if now.digest != digest:
        raise Refused(
            f"container {vmid}: its configuration changed meanwhile ({digest[:8]} is now {now.digest[:8]})",
            hint="run this again: it is read and planned anew",
        )
    _check_lock(vmid, now)
    return old


def undo(vmid: int, path: str = "", *, wait_s: float = LOCK_WAIT_S) -> tuple[str, Backup, str]:
    """Put the newest backup back, or the one at `path`; gives the new SHA-1, what was restored, the new backup.

    Raises `Refused` when the file is not what our newest edit wrote, when another program changed it between the
    edits to be undone, when it is as before already, when there is no backup, and where `replace` does.
    """
    with explaining(vmid), locked(vmid, wait_s):
        old = read(vmid)
        now = conf.parse(old)
        _check_lock(vmid, now)
        target = _to_restore(vmid, now.digest, path)
        new = Path(at(target.path)).read_bytes()
        if backup.digest_of(new) != target.before:
            raise Refused(
                f"the backup {target.path} is damaged: its SHA-1 is not the one noted when it was made",
                hint=f"look at both: diff {target.path} {path_of(vmid)}",
            )
        _check_size(vmid, new)
        digest, kept = _put(vmid, old, new)
        return digest, target, kept


def _to_restore(vmid: int, now: str, path: str) -> Backup:
    """The backup to put back, if the file `now` is still what our edits since then made of it."""
    known = backup.backups(vmid)
    if not known:
        raise Refused(
            f"container {vmid}: there is no backup in {backup.FOLDER}, so nothing can be undone",
            hint="gpuctl makes one on this host before each change of the configuration",
        )
    places = [place for place, one in enumerate(known) if one.path == path] if path else [0]
    if not places:
        raise Refused(
            f"container {vmid} has no backup {path}", hint="it has " + ", ".join(one.path for one in known[:3])
        )
    target, since = known[places[0]], known[: places[0] + 1]
    if now == target.before:
        older = f"; to go further back, name it: {known[places[0] + 1].path}" if len(known) > places[0] + 1 else ""
        raise Refused(
            f"container {vmid}: its configuration is as it was before that change already",
            hint=f"the backup is {target.path}{older}",
        )
    if not _ours(now, since):
        when = datetime.fromtimestamp(target.made_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise Refused(
            f"container {vmid}: {path_of(vmid)} was changed by someone else after the backup of {when} was made",
            hint=f"look at both and copy by hand what you want back: diff {target.path} {path_of(vmid)}",
        )
    return target


def _ours(now: str, since: tuple[Backup, ...]) -> bool:
    """Whether the edits `since`, the newest first, and nothing else lead from the last one's backup to `now`."""
    for edit in since:
        if edit.after == now:
            now = edit.before
        elif edit.before != now:  # equal: that edit was killed before it replaced the file
            return False
    return now == since[-1].before


def read(vmid: int) -> bytes:
    """The file's bytes; raises `OSError`."""
    return Path(at(path_of(vmid))).read_bytes()


def _check_size(vmid: int, new: bytes) -> None:
    if not new.strip() or len(new) > LARGEST:
        raise Refused(
            f"container {vmid}: a configuration of {len(new)} bytes is not written",
            hint="Proxmox takes an empty one for a container without a disk, and can't read one above 1 MiB",
        )


def _check_lock(vmid: int, now: conf.Document) -> None:
    if now.lock:
        raise Refused(
            f"CT {vmid} is locked ({now.lock})",
            hint=f"wait for that task to end; a lock left over by a crash is removed by `pct unlock {vmid}`",
        )


def _put(vmid: int, old: bytes, new: bytes) -> tuple[str, str]:
    """With the lock held: note and backup first, then the file; gives its new SHA-1 and the backup's path."""
    path = path_of(vmid)
    whole_file.clear_leftovers(str(Path(path).parent), Path(path).name)
    after = backup.digest_of(new)
    kept = backup.keep(vmid, old, after)
    whole_file.write(path, new)
    backup.drop_old(vmid)
    return after, kept


@contextlib.contextmanager
def explaining(vmid: int) -> Iterator[None]:
    """Turn an `OSError` about this container's files into an error of ours."""
    try:
        yield
    except OSError as error:
        raise _explained(vmid, error) from error


def _explained(vmid: int, error: OSError) -> GpuctlError:
    path = path_of(vmid)
    named = os.fspath(error.filename or "") if not isinstance(error.filename, int) else ""
    named = named.decode() if isinstance(named, bytes) else named
    if error.errno == errno.ENOENT and named == at(path):
        return CannotLook(f"container {vmid} has no configuration at {path} on this node")
    in_pve = not named or named.startswith(at("/etc/pve"))
    where = path if in_pve else named.removeprefix(at("/").removesuffix("/"))
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        quorum = "the cluster has no quorum (see `pvecm status`), or this isn't root"
        return Refused(
            f"{where} can't be written: {os.strerror(error.errno)}",
            hint=quorum if in_pve else "gpuctl needs root on the host, and changes nothing without a backup",
        )
    return Failed(f"{where} can't be replaced: {error}", hint=f"{path} is as it was, or new as a whole")
