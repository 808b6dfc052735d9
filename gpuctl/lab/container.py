"""What a container start does with its configuration: mount entries, passed-through devices, device rules."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from gpuctl.lab import plain
from gpuctl.lab.nodes import MARKERS, LabNode
from gpuctl.lab.pve.backend import NodeKind, Passthrough, TaskFailed, TaskLog
from gpuctl.lab.pve.conf import Conf

RULES: Final = "run/lab-device-rules"
"""Below the container's root: one allow rule a line in cgroup syntax; `a` allows everything."""

BASE_RULES: Final = (
    "c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm", "c 1:8 rwm",
    "c 1:9 rwm", "c 136:* rwm", "c 10:229 rwm",
)  # fmt: skip
"""What every privileged container may open (lxc's common.conf)."""

_RULE: Final = re.compile(r"a|[abc] (?:\d+|\*):(?:\d+|\*) [rwm]+")
_SIZE: Final = re.compile(r"(?:^|,)size=(\d+)([kmg]?)", re.IGNORECASE)


def unprivileged(conf: Conf) -> bool:
    """Also with a raw `lxc.idmap`, which Proxmox treats the same."""
    mapped = any(key == "lxc.idmap" for key, _ in conf.main.lxc)
    return mapped or str(conf.main.values.get("unprivileged", "0")) in {"1", "yes", "on", "true"}


def prepare(
    conf: Conf, entries: tuple[Passthrough, ...], host: Path, rootfs: Path, log: TaskLog
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Empty /dev and /run, then apply the configuration. `host` is the host's rootfs folder, `rootfs` the container's.

    Returns the size of /dev/shm in MiB (0: not said) and folders to share as (source, place inside).
    Raises `TaskFailed`.
    """
    plain.remove_shm(rootfs)
    for name in ("dev", "run"):
        shutil.rmtree(rootfs / name, ignore_errors=True)
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    shm_mib, shared = 0, list[tuple[str, str]]()
    for key, value in conf.main.lxc:
        if key == "lxc.mount.entry":
            found = _mount_entry(conf.vmid, value, host, rootfs)
            shm_mib = found if isinstance(found, int) and found else shm_mib
            if isinstance(found, tuple):
                shared.append(found)
        elif key.startswith("lxc.cgroup.devices."):
            log.warn(f"vm {conf.vmid} - {key} is deprecated, this will be a hard error in the future!")
    for entry in entries:
        MARKERS.write(rootfs / entry.path.lstrip("/"), passthrough_node(entry))
    (rootfs / RULES).write_text("".join(f"{rule}\n" for rule in device_rules(conf, entries)))
    return shm_mib, tuple(shared)


def device_rules(conf: Conf, entries: tuple[Passthrough, ...]) -> tuple[str, ...]:
    """Allow rules in force: in an unprivileged container everything, whatever the file says."""
    if unprivileged(conf):
        return ("a",)
    rules: tuple[str, ...] = (*BASE_RULES, *(passthrough_rule(entry) for entry in entries))
    for key, value in conf.main.lxc:
        action, rule = key.removeprefix("lxc.cgroup2.devices."), value.strip()
        if action not in {"allow", "deny"}:
            continue
        if not _RULE.fullmatch(rule):
            raise TaskFailed(f"startup for container '{conf.vmid}' failed")
        rules = changed(rules, action, rule)
    return rules


def changed(rules: tuple[str, ...], action: str, rule: str) -> tuple[str, ...]:
    """The allow rules after one more `allow` or `deny`, as LXC keeps its list."""
    if rule == "a":
        return ("a",) if action == "allow" else ()
    if action == "deny":
        return tuple(known for known in rules if known != rule)
    return rules if rule in rules or rules == ("a",) else (*rules, rule)


def live_rule(rootfs: Path, action: str, rule: str) -> bool:
    """Change the rules of a running container; False for a rule LXC cannot parse."""
    if not _RULE.fullmatch(rule):
        return False
    file = rootfs / RULES
    rules = changed(tuple(file.read_text().splitlines()), action, rule)
    file.write_text("".join(f"{line}\n" for line in rules))
    return True


def hotplug(rootfs: Path, entry: Passthrough) -> None:
    """Node and rule for a container that runs."""
    MARKERS.write(rootfs / entry.path.lstrip("/"), passthrough_node(entry))
    live_rule(rootfs, "allow", passthrough_rule(entry))


def passthrough_node(entry: Passthrough) -> LabNode:
    """The node made in the container for a `dev[n]`."""
    kind = "b" if entry.device.kind is NodeKind.BLOCK else "c"
    return LabNode(entry.device.major, entry.device.minor, entry.mode, entry.uid, entry.gid, kind)


def passthrough_rule(entry: Passthrough) -> str:
    """The device rule Proxmox adds for a `dev[n]`."""
    kind = "b" if entry.device.kind is NodeKind.BLOCK else "c"
    return f"{kind} {entry.device.major}:{entry.device.minor} {'r' if entry.deny_write else 'rw'}"


def _mount_entry(vmid: int, value: str, host: Path, rootfs: Path) -> int | tuple[str, str]:
    """Apply one raw mount entry; returns a /dev/shm size in MiB, a folder to share, or 0."""
    words = value.split()
    if len(words) < 4:
        raise TaskFailed(f"startup for container '{vmid}' failed")
    source, place, kind, options = words[0], words[1].lstrip("/"), words[2], words[3].split(",")
    if kind == "tmpfs":
        return _tmpfs_mib(words[3]) if place == "dev/shm" else 0
    origin, target = host / source.lstrip("/"), rootfs / place
    node = MARKERS.read(origin)
    if "create=file" in options:
        # lxc makes the mount point first: when the source is missing an empty file is what remains.
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    elif "create=dir" in options:
        target.mkdir(parents=True, exist_ok=True)
    if origin.exists() and target.exists():
        if node is None:
            return str(origin), f"/{place}"
        MARKERS.write(target, node)
    elif "optional" not in options:
        raise TaskFailed(f"startup for container '{vmid}' failed")
    return 0


def _tmpfs_mib(options: str) -> int:
    match = _SIZE.search(options)
    if match is None:
        return 0
    number, unit = int(match.group(1)), match.group(2).lower()
    return max(1, number * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[unit] >> 20)
