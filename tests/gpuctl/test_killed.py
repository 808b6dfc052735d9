"""Kill `recover` at every stage, at its boundary and in the middle of its changes: the next run goes on and arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from labkit import Lab

from gpuctl import dirs
from provision.pipeline import StageName

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]

CHANGING = (
    StageName.HOST,
    StageName.DEVICES,
    StageName.CONTAINER,
    StageName.WEIGHTS,
    StageName.ENGINE,
    StageName.BENCH,
)
"""Stages that change something; connect and preflight only look."""


def kill_when(lab: Lab, inventory: Path, stage: StageName, phase: str, delay_s: float = 0.0) -> str:
    """Run recover until its journal says `phase` of `stage`, then SIGKILL; what it said when it ended before that."""
    story = lab.folder / "story"
    journals = dirs.state() / "journal" / "ct200"
    known = set(journals.glob("*.jsonl")) if journals.exists() else set()
    with story.open("w") as file:
        process = subprocess.Popen(
            lab.command("recover", "ct200", "--yes"),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | {"GPUCTL_INVENTORY": str(inventory)},
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end:
            for path in set(journals.glob("*.jsonl")) - known:
                if f'"stage":"{stage}","phase":"{phase}"' in path.read_text():
                    time.sleep(delay_s)
                    os.killpg(process.pid, signal.SIGKILL)
                    return "" if process.wait(10) == -signal.SIGKILL else story.read_text()
            time.sleep(0.005)
        return f"not reached: {story.read_text()}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def leftovers(lab: Lab) -> list[str]:
    """Staging names that no finished run may leave behind."""
    conf = [path.name for path in lab.conf.parent.iterdir() if path.name != lab.conf.name]
    shm = lab.run("devices", "facts", "ct200")
    assert shm.returncode == 0, shm.stderr
    return conf


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    return lab.variant("quick.yaml", ("max_tokens: [16]", "max_tokens: [8]"), ("repeats: 3", "repeats: 1"))


def reboot(lab: Lab) -> None:
    """A reboot after which devices are wrong whatever an earlier test left: the container was right for this boot."""
    done = lab.run("recover", "ct200", "--yes", "--until", "container")
    assert done.returncode == 0, done.stderr
    lab.lab("reboot")


def converge(lab: Lab, inventory: Path) -> None:
    done = lab.run("recover", "ct200", "--yes", inventory=inventory)
    assert done.returncode in (0, 1), done.stderr  # 1: a warning about a slower baseline on a busy machine
    again = lab.run("recover", "ct200", "--json", inventory=inventory)
    assert again.returncode in (0, 1), again.stderr
    assert json.loads(again.stdout)["outcome"] == "already"
    assert lab.run("preflight", "--level", "full", "--quiet").returncode == 0


def test_killed_at_the_boundary_of_every_stage_the_next_run_goes_on(lab: Lab, inventory: Path) -> None:
    reboot(lab)
    for stage in StageName:
        assert kill_when(lab, inventory, stage, "started") == ""
    told = lab.run("recover", "ct200", "--yes", inventory=inventory)
    assert "did not finish (it was in stage bench)" in told.stderr
    converge(lab, inventory)
    assert leftovers(lab) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.15], ids=["at once", "later"])
def test_killed_in_the_middle_of_every_change_the_next_run_mends_it(
    lab: Lab, inventory: Path, delay_s: float
) -> None:
    reboot(lab)
    for stage in CHANGING:
        said = kill_when(lab, inventory, stage, "changing", delay_s)
        # With a delay a short change may be over before the kill comes; at once it never is.
        assert said == "" or delay_s
    converge(lab, inventory)
    assert leftovers(lab) == []
