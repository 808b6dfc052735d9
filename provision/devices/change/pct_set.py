"""Set or delete `dev[n]` by Proxmox's own `pct set`, which also plugs a new one into a running container.

`pct set` may fail and have written all the same: while any configured node is missing on the host, every call ends
with exit status 255 after the file was written (pve-container 6.1.10). So the file decides, not the exit status.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from inventory.errors import ConfigError, Failed, GpuctlError, Refused
from provision.devices.change import backup, conf_file, tool
from provision.devices.config import conf, rules

LIMIT_S: Final = 60.0
_KEY: Final = re.compile(r"dev(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])")
_DIGEST: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Asked:
    """New values by key, and keys to delete."""

    values: Mapping[str, str]
    delete: tuple[str, ...] = ()

    def argv(self, vmid: int, digest: str) -> tuple[str, ...]:
        words = [word for key, value in self.values.items() for word in (f"--{key}", value)]
        if self.delete:
            words += ["--delete", ",".join(self.delete)]
        return ("pct", "set", str(vmid), "--digest", digest, *words)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the file says of what was asked; `pending`: keys that wait for the next start."""

    missing: tuple[str, ...]
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The file after a call that did what was asked; `text` is what Proxmox said, an error included."""

    digest: str
    pending: tuple[str, ...]
    text: str
    backup: str


def asked(values: Mapping[str, str], delete: Iterable[str]) -> Asked:
    """Checked arguments; raises `ConfigError` for anything but well-formed `dev0` to `dev255`."""
    made = Asked(dict(values), tuple(delete))
    keys = (*made.values, *made.delete)
    for key in keys:
        if not _KEY.fullmatch(key):
            hint = "raw lxc keys can only be edited in the file" if key.startswith("lxc") else ""
            raise ConfigError(f"{key!r} is not set by `pct set`: only dev0 to dev255 are", hint=hint)
    if not keys or len(set(keys)) != len(keys):
        raise ConfigError(f"nothing to set, or a key twice: {', '.join(keys) or 'no key'}")
    for key, value in made.values.items():
        try:
            rules.parse_device(value)
        except rules.BadDevice as error:
            raise ConfigError(f"{key}: {value!r} is no device: {' '.join(str(error).split())}") from error
    return made


def judge(document: conf.Document, wanted: Asked) -> Outcome:
    """Which keys the file has as asked, in the main section or waiting in `[pve:pending]`."""
    main = document.main.values
    waiting = document.pending.values if document.pending is not None else {}
    deleted = {key.removeprefix("!") for key in re.split(r"[,;\s]+", waiting.get("delete", ""))}
    missing, pending = [], []
    for key, value in wanted.values.items():
        if _same(waiting.get(key), value):
            pending.append(key)
        elif not _same(main.get(key), value) or key in waiting or key in deleted:
            missing.append(key)
    for key in wanted.delete:
        if key in main and key in deleted:
            pending.append(key)
        elif key in main or key in waiting:
            missing.append(key)
    return Outcome(tuple(missing), tuple(pending))


def _same(there: str | None, value: str) -> bool:
    try:
        return there is not None and rules.parse_device(there) == rules.parse_device(value)
    except rules.BadDevice:
        return False


def run(vmid: int, digest: str, wanted: Asked) -> Written:
    """Call `pct set` on the file whose SHA-1 is `digest`, then read the file and judge.

    Raises `Refused` (changed meanwhile, locked, no quorum) and `Failed` with Proxmox's own text in `detail`, each
    only when the file does not say what was asked.
    """
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{digest!r} is no SHA-1 of a configuration")
    with conf_file.explaining(vmid), conf_file.locked(vmid):
        kept = backup.keep(vmid, conf_file.checked(vmid, digest), "")
    late = f"see `pct config {vmid}` and the task list of the node"
    ran: tool.Ran | None = None
    error: GpuctlError | None = None
    try:
        ran = tool.run(wanted.argv(vmid, digest), LIMIT_S, missing="is this a Proxmox VE host?", late=late)
    except Failed as failure:
        error = failure
    with conf_file.explaining(vmid), conf_file.locked(vmid):
        now = conf.parse(conf_file.read(vmid))
        with contextlib.suppress(OSError):  # then an undo refuses: it doesn't know what was written
            backup.settle(vmid, kept, now.digest)
        backup.drop_old(vmid)
    found = judge(now, wanted)
    if found.missing:
        raise error or _failure(vmid, ran, found)
    text = ran.stderr.strip() if ran is not None else str(error)
    return Written(now.digest, found.pending, text, kept if now.digest != digest else "")


def _failure(vmid: int, ran: tool.Ran | None, found: Outcome) -> GpuctlError:
    rc, words = (ran.rc, ran.words) if ran is not None else (-1, ())
    text = " ".join(words)
    if "detected modified configuration" in text:
        return Refused(
            f"container {vmid}: its configuration changed meanwhile",
            hint="run this again: it is read and planned anew",
            detail=words,
        )
    if match := re.search(r"CT is locked \([\w-]+\)", text):
        return Refused(f"container {vmid}: {match[0]}", hint="wait for that task to end", detail=words)
    if "can't lock file" in text:
        return Refused(f"container {vmid}: its configuration is locked by another process", detail=words)
    if "/etc/pve" in text and "Permission denied" in text:
        return Refused(
            f"container {vmid}: the configuration can't be written",
            hint="the cluster has no quorum (see `pvecm status`), or this isn't root",
            detail=words,
        )
    return Failed(
        f"pct set {vmid} ended with exit status {rc} and did not write {', '.join(found.missing)}", detail=words
    )
