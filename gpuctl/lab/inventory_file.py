"""The inventory of a running lab: the shipped inventory/lab.yaml with its ports and fingerprint."""

from __future__ import annotations

import re
from pathlib import Path

import inventory
from gpuctl.lab.state import LabDir, LabInfo, write_file

_FINGERPRINT = re.compile(r"(?:[0-9A-F]{2}:){31}[0-9A-F]{2}")


def write(lab: LabDir, info: LabInfo) -> None:
    """Write DIR/gpuctl.yaml; its relative paths are relative to DIR."""
    write_file(lab.inventory, fill(template(), info).encode())


def template() -> str:
    """Text of the shipped example."""
    return (Path(str(inventory.__file__)).parent / "lab.yaml").read_text()


def fill(text: str, info: LabInfo) -> str:
    """The example with the addresses of one lab."""
    ports = info.ports
    text = text.replace("https://127.0.0.1:18006", f"https://127.0.0.1:{ports['api']}")
    text = text.replace("port: 18022", f"port: {ports['ssh']}")
    text = text.replace("http://127.0.0.1:18080", f"http://127.0.0.1:{ports['hub']}")
    text = text.replace("port: 18200", f"port: {ports['engine']}")
    return _FINGERPRINT.sub(info.fingerprint, text)
