"""The incident, replayed on a real kernel: a reboot, NVML well, CUDA 999; recover; CUDA initialises."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from level1kit import UVM, Level1

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

QUICK = (("max_tokens: [16]", "max_tokens: [8]"), ("repeats: 3", "repeats: 1"))
"""The same job with fewer tokens."""


def test_the_incident(ct: Level1) -> None:
    healthy = ct.inside()
    assert (healthy["cuda"], healthy[UVM]["opened"], ct.nvml()) == (0, "ENXIO", "8")
    old = ct.major
    inventory = ct.lab.variant("quick.yaml", *QUICK)

    ct.lab.lab("reboot")
    ct.reconnect()

    # What the evening began with: the GPUs are all there, and CUDA does not start.
    sick = ct.inside()
    assert (sick["cuda"], ct.nvml()) == (999, "8")
    report = json.loads(ct.lab.run("preflight", "ct200", "--json").stdout)
    status = {check["id"]: check["status"] for check in report["checks"]}
    assert status["nvml.init"] == "ok"
    assert status["cuda.init"] != "ok"

    done = _recover(ct, inventory)
    assert done.returncode in (0, 1), done.stderr
    assert re.search(rf"nvidia-uvm moved from {old} to {ct.major} at this boot; .*CUDA gets EPERM", done.stderr)
    assert "ct200 was restarted" in done.stderr

    well = ct.inside()
    assert (well["cuda"], well[UVM]["kind"], well[UVM]["number"]) == (0, "char", f"{ct.major}:0")
    conf, process = ct.conf, ct.process()

    again = _recover(ct, inventory)
    assert again.returncode == done.returncode, again.stderr
    assert "nothing had to be changed" in again.stdout
    assert (ct.conf, ct.process()) == (conf, process)


def _recover(ct: Level1, inventory: Path) -> subprocess.CompletedProcess[str]:
    return ct.lab.run("recover", "ct200", "--yes", timeout=240, inventory=inventory)
