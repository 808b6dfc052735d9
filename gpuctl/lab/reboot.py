"""What a boot of the lab host does to its state, and what it leaves lying about."""

from __future__ import annotations

import json
import time
import uuid
from typing import Final

from gpuctl.lab import units
from gpuctl.lab.machine import Node
from gpuctl.lab.state import write_file

RESULTS: Final = "var/lib/gpuctl/results"
LEFTOVER: Final = "bench_old.json"
DOWN_S: Final = 0.2
"""How long the host is away."""


def first_boot(node: Node) -> None:
    """A freshly installed machine, everything set up by hand for the majors of this boot."""
    node.power_on()
    node.kernel.load_uvm()
    node.kernel.make_uvm_nodes()


def boot(node: Node) -> None:
    """Power on. Proxmox then starts containers (`Node.startall`) before anything has loaded nvidia-uvm."""
    leave_result(node, node.kernel.boot_id)
    node.power_on()
    units.run_enabled(node)


def reboot(node: Node) -> None:
    """Cut the power, wait, boot again. Connections must have been dropped already."""
    node.power_off()
    time.sleep(DOWN_S)
    boot(node)


def leave_result(node: Node, boot_id: str) -> None:
    """An old result in the container, unless a real one of an earlier boot lies there."""
    folder = node.lab.ct_rootfs() / RESULTS
    if any(folder.glob("*/result.json")) or (folder / LEFTOVER).exists():
        return
    leftover = {
        "lab": True,
        "schema_version": 1,
        "note": "left over from an earlier boot by the lab; the number is made up and measures nothing",
        "run": f"leftover-{uuid.uuid4().hex[:8]}",
        "boot_id": boot_id,
        "method": "auto",
        "tokens_per_s": 1234.5,
    }
    write_file(folder / LEFTOVER, (json.dumps(leftover, indent=2) + "\n").encode())
