"""The Proxmox node as its own files tell it: name, quorum, who owns a container, package versions."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from provision.devices.facts import Content, NodeKind, State
from provision.devices.observe import look


def nodename(members: Content) -> str:
    """This node's name: from the link /etc/pve/local, else what pmxcfs says, else the first part of the hostname."""
    name = posixpath.basename(look.link("/etc/pve/local"))
    if not name:
        said = _object(members.text).get("nodename")
        name = said if isinstance(said, str) else ""
    return name or look.word("/etc/hostname").partition(".")[0]


def quorate(members: Content) -> bool | None:
    """Whether /etc/pve can be written: what the cluster says; without one only a refusal is certain.

    pmxcfs without quorum takes the write bits off everything it shows (cfs-plug-memdb.c), also when corosync isn't
    running, which its file `.members` can't tell from a single node.
    """
    told = cluster_quorate(members.text)
    if told is None and members.state is State.PRESENT:
        folder = look.node("/etc/pve/nodes", follow=True)
        if folder.kind is NodeKind.DIRECTORY and not folder.mode & 0o200:
            return False
    return told


def cluster_quorate(text: str) -> bool | None:
    """`cluster.quorate` of /etc/pve/.members (pmxcfs, status.c); a single node has no such entry: None."""
    cluster = _object(text).get("cluster")
    said = cluster.get("quorate") if isinstance(cluster, dict) else None
    return bool(said) if isinstance(said, int) else None


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def owners(vmid: int) -> tuple[str, ...]:
    """Nodes of the cluster whose folder holds this container's configuration: one, or none."""
    nodes = "/etc/pve/nodes"
    return tuple(
        name
        for name in look.names(nodes)
        if look.node(f"{nodes}/{name}/lxc/{vmid}.conf").kind not in (NodeKind.ABSENT, NodeKind.UNREADABLE)
    )


def packages() -> Content:
    """dpkg's list of packages: one read of about 1 MB, where dpkg-query parses the same file in a process."""
    return look.content("/var/lib/dpkg/status", 64 << 20)


def version(status: str, package: str) -> str:
    """Version of an installed package from dpkg's list; "" when only its configuration is left, or it isn't there."""
    start = f"\n{status}".find(f"\nPackage: {package}\n")
    if start < 0:
        return ""
    stanza = status[start:].partition("\n\n")[0]
    state = re.search(r"^Status: \S+ \S+ (\S+)", stanza, re.MULTILINE)
    found = re.search(r"^Version: (\S+)", stanza, re.MULTILINE)
    if found is None or state is None or state[1] in ("config-files", "not-installed"):
        return ""
    return found[1]
