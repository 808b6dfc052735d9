"""The backups of container configurations: one file and one note for each edit, the newest 20 kept.

The note (NAME.json) is written before the configuration is replaced. It says which bytes the edit writes
(`after`), so that a later undo can tell whether someone else has changed the file since.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from inventory.root import at
from provision.devices.change import whole_file
from provision.devices.facts import Backup

FOLDER = "/var/lib/gpuctl/backups"
KEEP = 20
"""Backups of each container."""
_NAME = re.compile(r"([0-9]+)\.conf\.([0-9]{8}T[0-9]{6}(?:\.[0-9]{6})?Z)\.[0-9a-f]{8}")
_STEP_S = 1e-5
"""Edits are told apart by time, so two never have the same: also when the clock was set back between them."""


def digest_of(data: bytes) -> str:
    """SHA-1 as Proxmox calls a configuration's `digest`."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def backups(vmid: int) -> tuple[Backup, ...]:
    """Backups of a container's configuration, the newest first; none when the folder is absent or unreadable."""
    found = []
    for name in _names(vmid):
        with contextlib.suppress(OSError):
            found.append(_read(name))
    return tuple(sorted(found, key=lambda backup: (backup.made_s, backup.path), reverse=True))


def _names(vmid: int) -> list[str]:
    try:
        listed = os.listdir(at(FOLDER))  # noqa: PTH208
    except OSError:
        return []
    return [name for name in listed if (match := _NAME.fullmatch(name)) and match[1] == str(vmid)]


def _read(name: str) -> Backup:
    path = f"{FOLDER}/{name}"
    data = Path(at(path)).read_bytes()
    try:
        note = json.loads(Path(at(f"{path}.json")).read_bytes())
        return Backup(path, float(note["made_s"]), str(note["before"]), str(note["after"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Of an older version, or the edit was killed before its note was written, so it changed nothing.
        return Backup(path, _time_in(name), digest_of(data))


def _time_in(name: str) -> float:
    match = _NAME.fullmatch(name)
    stamp = match[2] if match else ""
    form = "%Y%m%dT%H%M%S.%fZ" if "." in stamp else "%Y%m%dT%H%M%SZ"
    try:
        return datetime.strptime(stamp, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def keep(vmid: int, old: bytes, after: str) -> str:
    """Store the bytes that an edit is about to replace by bytes of SHA-1 `after`; gives the backup's path.

    `after` is "" where Proxmox makes the edit: see `settle`. Call it with the container's lock held.
    Raises `OSError`; then the configuration must not be touched.
    """
    Path(at(FOLDER)).mkdir(parents=True, exist_ok=True, mode=0o700)
    whole_file.clear_leftovers(FOLDER, f"{vmid}.conf")
    known = backups(vmid)
    made_s = max(time.time(), known[0].made_s + _STEP_S if known else 0.0)
    before = digest_of(old)
    stamp = datetime.fromtimestamp(made_s, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = f"{FOLDER}/{vmid}.conf.{stamp}.{before[:8]}"
    whole_file.write(path, old, mode=0o600)
    _note(Backup(path, made_s, before, after))
    return path


def _note(backup: Backup) -> None:
    note = {"made_s": backup.made_s, "before": backup.before, "after": backup.after}
    whole_file.write(f"{backup.path}.json", json.dumps(note).encode(), mode=0o600)


def settle(vmid: int, path: str, after: str) -> None:
    """Note what an edit made by Proxmox wrote; a backup of an edit that wrote nothing is removed."""
    for backup in backups(vmid):
        if backup.path == path and backup.before == after:
            _remove(path)
        elif backup.path == path:
            _note(replace(backup, after=after))


def _remove(path: str) -> None:
    for name in (path, f"{path}.json"):
        with contextlib.suppress(OSError):
            os.unlink(at(name))  # noqa: PTH108


def drop_old(vmid: int) -> None:
    """Remove all but the newest 20, and notes without their backup; a file that can't be removed is left."""
    for backup in backups(vmid)[KEEP:]:
        _remove(backup.path)
    with contextlib.suppress(OSError):
        present = set(os.listdir(at(FOLDER)))  # noqa: PTH208
        for name in present:
            stem = name.removesuffix(".json")
            match = _NAME.fullmatch(stem)
            if stem not in present and match and match[1] == str(vmid):
                _remove(f"{FOLDER}/{stem}")
