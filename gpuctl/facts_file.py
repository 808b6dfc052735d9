"""Everything that was read of one container, as a JSON document without secrets that can be planned from anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuctl import __version__
from inventory.errors import CannotLook, ConfigError
from inventory.model import Container, Devices, Gpus
from provision.devices import redact
from provision.devices.facts import CtFacts, GuestFacts, HostFacts
from provision.devices.scout import RecordedScout, Scout

LARGEST: Final = 16 << 20
"""Bytes of a file that is still read."""


@dataclass(frozen=True, slots=True)
class Record:
    """A facts file: what it says, and about which container."""

    name: str
    lab: bool
    container: Container
    scout: RecordedScout


def record(name: str, scout: Scout, container: Container, *, lab: bool) -> dict[str, Any]:
    """The document; a container that can't be looked into says why in `inside.unreadable`.

    Raises `CannotLook` when API or host can't be read.
    """
    guest, host = scout.guest(), redact.host(scout.host())
    inside: dict[str, Any] | None
    try:
        seen = scout.inside()
        inside = seen.to_json() if seen is not None else None
    except CannotLook as error:
        inside = {"unreadable": error.message}
    return {
        "gpuctl": __version__,
        "container": name,
        "vmid": container.vmid,
        "lab": lab,
        "wanted": {"gpus": container.gpus.count, "devices": list(container.devices.wanted)},
        "proxmox": guest.to_json(),
        "host": host.to_json(),
        "inside": inside,
    }


def read(path: Path) -> Record:
    """A document that `record` made, from a file or (`-`) stdin; raises `ConfigError` for anything else."""
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}", hint="give a file, or - for stdin") from error
    try:
        if len(data) > LARGEST:
            raise ValueError(f"more than {LARGEST} bytes")
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__} instead of an object")
        return _record(found)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, CannotLook) as error:
        told = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{path} is no facts file: {told}", hint="write one with: gpuctl devices facts CT > facts.json"
        ) from error


def _record(found: Mapping[str, Any]) -> Record:
    wanted, inside = found["wanted"], found["inside"]
    host = HostFacts.from_json(found["host"])
    gpus, vmid = int(wanted["gpus"]), int(found["vmid"])
    if gpus < 0 or vmid < 100:
        raise ValueError(f"VMID {vmid} with {gpus} GPUs")
    container = Container(
        host="recorded",
        vmid=vmid,
        gpus=Gpus(count=gpus),
        devices=Devices(wanted=tuple(str(name) for name in wanted["devices"])),
    )
    why = str(inside.get("unreadable", "")) if inside else ""
    seen = CtFacts.from_json(inside) if inside and not why else None
    scout = RecordedScout(host, GuestFacts.from_json(found["proxmox"]), seen, why)
    return Record(str(found["container"]), bool(found.get("lab", False)), container, scout)
