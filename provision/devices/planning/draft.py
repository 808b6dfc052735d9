"""A plan in the making: edits of the main section gathered line by line, and the section as it would be."""

from __future__ import annotations

import re
from typing import Final

from provision.devices import procdev, wanted
from provision.devices.config import conf, edits
from provision.devices.facts import HostFacts, Node

DEV_SINCE: Final = (5, 0, 7)
"""pve-container that brought `dev[n]` (commit ce1976b, Proxmox VE 8.1)."""
_IDMAP: Final = range(100000, 165536)
"""Ids on the host of an unprivileged container's 0 to 65535, unless it has a map of its own."""


class Draft:
    """Edits gathered so far, at most one per line; `lines` says each in one sentence."""

    def __init__(
        self,
        document: conf.Document,
        host: HostFacts,
        known: wanted.Drivers,
        items: tuple[wanted.Want, ...],
        first: wanted.Setup,
    ) -> None:
        """`items`: the wanted nodes; `first`: what the main section says before any edit."""
        self.document, self.host, self.known, self.items = document, host, known, items
        self.view, self.free, self.first = first.view, first.free, first
        self.changes: dict[int, edits.Change | edits.Remove] = {}
        self.inserts: list[edits.Insert] = []
        self.lines: list[str] = []
        self._now: wanted.Setup | None = first
        self._access: tuple[wanted.Access, ...] | None = None

    def all(self) -> tuple[edits.Edit, ...]:
        return (*self.changes.values(), *self.inserts)

    def change(self, line: conf.Line, key: str, value: str, said: str) -> None:
        self._add(said)
        self.changes[line.number] = edits.Change(line.number, key, value)

    def remove(self, line: conf.Line, said: str) -> None:
        self._add(said)
        self.changes[line.number] = edits.Remove(line.number)

    def insert(self, key: str, value: str, said: str) -> None:
        self._add(said)
        self.inserts.append(edits.Insert(key, value))

    def _add(self, said: str) -> None:
        self.lines.append(said)
        self._now = self._access = None

    def setup(self) -> wanted.Setup:
        """What the main section would say about devices."""
        if self._now is None:
            self._now = wanted.setup(edits.preview(self.view, self.all()))
        return self._now

    def now(self) -> conf.View:
        """The main section as it would be; the same as writing the edits and reading them again."""
        return self.setup().view

    def access(self) -> tuple[wanted.Access, ...]:
        """How the main section would treat each wanted node whose driver is loaded."""
        if self._access is None:
            self._access = self.setup().access(self.items, self.known, self.host)
        return self._access

    def has(self, key: str, value: str) -> bool:
        """Whether the main section would hold this raw line."""
        return any(line.key == key and line.value == value for line in self.now().raw)

    def hooks(self) -> bool:
        """A hook or an included file may make nodes that this can't see."""
        return any(line.key.startswith(("lxc.hook.", "lxc.include")) for line in self.view.raw)

    def free_dev(self) -> str:
        """The first `dev[n]` that neither the main section nor a pending change uses; "" when all are taken."""
        pending = self.document.pending
        used = {*self.now().values}
        if pending is not None:
            used |= {*pending.values, *conf.removed_at_start(pending)}
        return next((key for n in range(256) if (key := f"dev{n}") not in used), "")

    def dev_value(self, node: Node) -> str:
        """The `dev[n]` value that gives the container what the host's own node grants.

        Without a mode Proxmox makes the node 0660 for root; owners are kept where the container has such an id.
        """
        owners = "".join(
            f",{name}={inside}"
            for name, outside in (("uid", node.uid), ("gid", node.gid))
            if (inside := self._inside(outside)) > 0
        )
        return f"{node.path},mode={node.mode & 0o777:04o}{owners}"

    def _inside(self, number: int) -> int:
        if not self.free:
            return number
        own = any(line.key == "lxc.idmap" for line in self.view.raw)
        return number - _IDMAP.start if number in _IDMAP and not own else 0


def has_dev(host: HostFacts) -> bool | None:
    """Whether the host's Proxmox knows `dev[n]`; None when its version isn't known."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", host.pve_container, re.ASCII)
    return None if match is None else tuple(int(part or 0) for part in match.groups()) >= DEV_SINCE


def nvidia(path: str) -> bool:
    """Whether a path is one of NVIDIA's nodes or folders."""
    return path.startswith("/dev/nvidia")


def rule_majors(known: wanted.Drivers) -> frozenset[int]:
    """Every major that is NVIDIA's at this boot, the fixed one included."""
    return frozenset(known.majors.values()) | {procdev.NVIDIA}
