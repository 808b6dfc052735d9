"""Container configuration files as Proxmox VE reads and writes them: lossy in the same places, with the same warnings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Section:
    """One section of a file: plain options, raw `lxc.*` lines in order, and the comment text."""

    values: dict[str, Any] = field(default_factory=dict)
    lxc: list[tuple[str, str]] = field(default_factory=list)
    description: str | None = None


@dataclass(slots=True)
class Conf:
    """A parsed configuration: main section, pending changes, snapshots, warnings in order, digest (sha1 of the bytes)."""

    vmid: int
    main: Section
    pending: Section
    snapshots: Mapping[str, Section]
    warnings: tuple[str, ...]
    digest: str


def parse_conf(raw: bytes, vmid: int) -> Conf:
    """Parse N.conf; never raises for lines Proxmox would only warn about."""
    raise NotImplementedError


def write_conf(conf: Conf) -> bytes:
    """The file Proxmox would write for `conf`."""
    raise NotImplementedError
