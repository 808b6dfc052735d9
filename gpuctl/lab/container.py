"""What a container start does with its configuration: mount entries, passed-through devices, device rules."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuctl.lab import plain
from gpuctl.lab.kernel import LabNode, read_node, write_node
from gpuctl.lab.pve.backend import DeviceStat, NodeKind, Passthrough, TaskFailed, TaskLog

RULES: Final = "run/lab-device-rules"
"""Below the container's root: one allow rule a line in cgroup syntax; `a` allows everything."""

BASE_RULES: Final = (
    "c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm", "c 1:8 rwm",
    "c 1:9 rwm", "c 136:* rwm", "c 10:229 rwm",
)  # fmt: skip
"""What every privileged container may open (lxc's common.conf)."""

_DEV: Final = re.compile(r"dev(\d{1,3})")
_RULE: Final = re.compile(r"a|[abc] (?:\d+|\*):(?:\d+|\*) [rwm]+")
_SIZE: Final = re.compile(r"(?:^|,)size=(\d+)([kmg]?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The main section of N.conf as a start needs it."""

    vmid: int
    values: Mapping[str, Any]
    raw: tuple[tuple[str, str], ...]

    @property
    def unprivileged(self) -> bool:
        """Also with a raw `lxc.idmap`, which Proxmox treats the same."""
        mapped = any(key == "lxc.idmap" for key, _ in self.raw)
        return mapped or str(self.values.get("unprivileged", "0")) in {"1", "yes", "on", "true"}

    def refuse_lock(self, *, tolerated: tuple[str, ...] = ("mounted",)) -> None:
        """Raises `TaskFailed` when the container is locked."""
        lock = str(self.values.get("lock", ""))
        if lock and lock not in tolerated:
            raise TaskFailed(f"CT is locked ({lock})")


def read(path: Path, vmid: int) -> StartPlan:
    """Read N.conf. Raises `TaskFailed` in Proxmox's words when there is none."""
    from gpuctl.lab.pve.conf import ConfError, parse_conf

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise TaskFailed(f"Configuration file 'nodes/pve/lxc/{vmid}.conf' does not exist") from None
    except OSError as error:
        raise TaskFailed(f"unable to open file '/etc/pve/nodes/pve/lxc/{vmid}.conf' - {error.strerror}") from None
    try:
        conf = parse_conf(raw, vmid)
    except ConfError as error:
        raise TaskFailed(str(error)) from None
    return StartPlan(vmid, conf.main.values, tuple(conf.main.lxc))


def prepare(plan: StartPlan, host: Path, rootfs: Path, log: TaskLog) -> tuple[int, tuple[tuple[str, str], ...]]:
    """Empty /dev and /run, then apply the configuration. `host` is the host's rootfs folder, `rootfs` the container's.

    Returns the size of /dev/shm in MiB (0: not said) and folders to share as (source, place inside).
    Raises `TaskFailed`.
    """
    plan.refuse_lock()
    entries = tuple(passthroughs(plan, host))
    plain.remove_shm(rootfs)
    for name in ("dev", "run"):
        shutil.rmtree(rootfs / name, ignore_errors=True)
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    shm_mib, shared = 0, list[tuple[str, str]]()
    for key, value in plan.raw:
        if key == "lxc.mount.entry":
            found = _mount_entry(plan.vmid, value, host, rootfs)
            shm_mib = found if isinstance(found, int) and found else shm_mib
            if isinstance(found, tuple):
                shared.append(found)
        elif key.startswith("lxc.cgroup.devices."):
            log.warn(f"vm {plan.vmid} - {key} is deprecated, this will be a hard error in the future!")
    for entry in entries:
        write_node(rootfs / entry.path.lstrip("/"), passthrough_node(entry))
    (rootfs / RULES).write_text("".join(f"{rule}\n" for rule in device_rules(plan, entries)))
    return shm_mib, tuple(shared)


def device_rules(plan: StartPlan, entries: tuple[Passthrough, ...]) -> tuple[str, ...]:
    """Allow rules in force: in an unprivileged container everything, whatever the file says."""
    if plan.unprivileged:
        return ("a",)
    rules = [*BASE_RULES, *(passthrough_rule(entry) for entry in entries)]
    for key, value in plan.raw:
        action, rule = key.removeprefix("lxc.cgroup2.devices."), value.strip()
        if action not in {"allow", "deny"} or action == key:
            continue
        if not _RULE.fullmatch(rule):
            raise TaskFailed(f"startup for container '{plan.vmid}' failed")
        if rule == "a":
            rules = ["a"] if action == "allow" else []
        elif action == "deny":
            rules = [known for known in rules if known != rule]
        elif rule not in rules and rules != ["a"]:
            rules.append(rule)
    return tuple(rules)


def passthroughs(plan: StartPlan, host: Path) -> list[Passthrough]:
    """`dev[n]` entries, resolved against the host's nodes now. Raises `TaskFailed` for one that is missing."""
    found = []
    for key, value in plan.values.items():
        match = _DEV.fullmatch(key)
        if match is None:
            continue
        options = {name: text for name, text in (_option(part) for part in str(value).split(","))}
        path = options.get("path", "")
        place = host / path.lstrip("/")
        node = read_node(place)
        if node is None:
            raise TaskFailed(f"{path} is not a device" if place.exists() else f"Device {path} does not exist")
        found.append(
            Passthrough(
                index=int(match.group(1)),
                path=path,
                device=DeviceStat(NodeKind.CHAR if node.kind == "c" else NodeKind.BLOCK, node.major, node.minor),
                mode=int(options.get("mode", "0660"), 8),
                uid=int(options.get("uid", "0")),
                gid=int(options.get("gid", "0")),
                deny_write=options.get("deny-write", "0") == "1",
            )
        )
    return sorted(found, key=lambda entry: entry.index)


def _option(part: str) -> tuple[str, str]:
    name, separator, text = part.partition("=")
    return (name, text) if separator else ("path", part)


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
    node = read_node(origin)
    if node is not None:
        write_node(target, node)
        return 0
    if "create=file" in options:
        # lxc makes the mount point first: when the source is missing an empty file is what remains.
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    elif "create=dir" in options:
        target.mkdir(parents=True, exist_ok=True)
    if origin.exists():
        return (str(origin), f"/{place}") if target.exists() else 0
    if "optional" not in options:
        raise TaskFailed(f"startup for container '{vmid}' failed")
    return 0


def _tmpfs_mib(options: str) -> int:
    match = _SIZE.search(options)
    if match is None:
        return 0
    number, unit = int(match.group(1)), match.group(2).lower()
    return max(1, number * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[unit] >> 20)
