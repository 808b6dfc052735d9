"""Whether a container will start, told from its configuration and the host's nodes before it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from provision.devices.config import conf, lines, rules
from provision.devices.facts import HostFacts, NodeKind


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the next start would fail; `path` and `line` say what it is about, "" and 0 when nothing of the kind."""

    text: str
    path: str = ""
    line: int = 0


def obstacles(document: conf.Document, host: HostFacts) -> tuple[str, ...]:
    """Why the next start would fail; empty when nothing is seen that would stop it."""
    return tuple(found.text for found in found_obstacles(document, host))


def found_obstacles(document: conf.Document, host: HostFacts) -> tuple[Obstacle, ...]:
    """The same with what each is about.

    Texts follow Proxmox's own (LXC::Tools get_device_mode_and_rdev, pve-container 6.1.10, read in source and
    reproduced) and LXC's (conf.c mount_entry, cgfsng.c bpf_device_cgroup_prepare, 6.0.5, read in source).
    """
    view = document.next_start
    return (*_entries(view, host), *_mounts(view, host), *_rules(view, host))


def _entries(view: conf.View, host: HostFacts) -> Iterator[Obstacle]:
    seen: dict[str, str] = {}
    for device in conf.devices(view):
        name = f"dev{device.index}"
        if device.spec is None:
            yield Obstacle(f"{name}: {device.problem.splitlines()[-1]} (`{device.value}`)")
            continue
        path = device.spec.path
        if path in seen:
            # PVE::LXC create_passthrough_device_node makes the node twice: "failed to mknod ...: File exists".
            yield Obstacle(f"{name} {path} is there already as {seen[path]}", path)
            continue
        seen[path] = name
        node = host.node(path)
        if node.kind is NodeKind.ABSENT:
            yield Obstacle(f"{name} {path} does not exist on the host", path)
        elif node.kind in (NodeKind.REGULAR, NodeKind.DIRECTORY, NodeKind.OTHER):
            yield Obstacle(f"{name} {path} is not a device on the host: it is {_a(node.kind)}", path)


def _mounts(view: conf.View, host: HostFacts) -> Iterator[Obstacle]:
    for line, mount in lines.mounts(view):
        if mount.optional or not mount.source.startswith("/"):
            continue
        node = host.node(mount.source)
        where = f"line {line.number} mounts {mount.source}"
        if node.kind is NodeKind.ABSENT:
            yield Obstacle(f"{where}, which does not exist, without `optional`", mount.source, line.number)
        elif node.kind is NodeKind.CHAR and "create=dir" in mount.options:
            yield Obstacle(f"{where}, a device, on a folder (create=dir)", mount.source, line.number)
        elif node.kind is NodeKind.DIRECTORY and "create=file" in mount.options:
            yield Obstacle(f"{where}, a folder, on a file (create=file)", mount.source, line.number)
        elif lines.without_target(view, mount):
            yield Obstacle(f"{where} on {mount.target} without `create=file`", mount.source, line.number)


def _rules(view: conf.View, host: HostFacts) -> Iterator[Obstacle]:
    for line in view.raw:
        if why := lines.bad_rule(line):
            yield Obstacle(
                f"LXC can't read line {line.number}, `{line.key}: {line.value}`: {why}", "", line.number
            )
        path = lines.path_rule(line)
        if path and host.node(path).kind is NodeKind.ABSENT:
            yield Obstacle(
                f"line {line.number} allows {path}, which does not exist on the host", path, line.number
            )
        meant = lines.misspelt(line)
        if meant and line.key.startswith("lxc.cgroup2.") and not lines.acts_as_deny(line):
            text = f"LXC knows no {line.key} (line {line.number}); {meant} is meant"
            yield Obstacle(text, "", line.number)
        elif meant and line.key.startswith("lxc.cgroup2.") and not rules.readable(line.key, line.value):
            yield Obstacle(f"LXC can't read line {line.number}, `{line.key}: {line.value}`", "", line.number)


def _a(kind: NodeKind) -> str:
    return {"regular": "a regular file", "directory": "a directory"}.get(kind.value, f"a {kind.value}")
