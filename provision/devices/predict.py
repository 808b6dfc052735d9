"""Whether a container will start, told from its configuration and the host's nodes before it is tried."""

from __future__ import annotations

from provision.devices import conf, rules
from provision.devices.facts import HostFacts, NodeKind


def obstacles(document: conf.Document, host: HostFacts) -> tuple[str, ...]:
    """Why the next start would fail; empty when nothing is seen that would stop it.

    Texts follow Proxmox's own (LXC::Tools get_device_mode_and_rdev) and LXC's mount handling.
    """
    found: list[str] = []
    view = document.next_start
    for device in conf.devices(view):
        name = f"dev{device.index}"
        if device.spec is None:
            found.append(f"{name}: {device.problem.splitlines()[-1]}")
            continue
        node = host.node(device.spec.path)
        if node.kind is NodeKind.ABSENT:
            found.append(f"{name} {device.spec.path} does not exist on the host")
        elif node.kind in (NodeKind.REGULAR, NodeKind.DIRECTORY, NodeKind.OTHER):
            found.append(f"{name} {device.spec.path} is not a device on the host: it is {_a(node.kind)}")
    for line in view.raw:
        mount = rules.parse_mount(line.value) if line.key == rules.MOUNT else None
        if mount is None or not mount.bind or mount.optional or not mount.source.startswith("/"):
            continue
        if host.node(mount.source).kind is NodeKind.ABSENT:
            found.append(f"line {line.number} mounts {mount.source}, which does not exist, without `optional`")
    return tuple(found)


def _a(kind: NodeKind) -> str:
    return {"regular": "a regular file", "directory": "a directory"}.get(kind.value, f"a {kind.value}")
