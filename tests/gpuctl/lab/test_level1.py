"""The lab's second level: what is real about it, what it refuses, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuctl.lab import lxc, manage, processes, real
from gpuctl.lab.state import ERROR_LINE, TOLD, LabDir, LabInfo, open_dir, write_json
from gpuctl.lab.way import Unfit
from inventory.errors import Failed, Refused


@pytest.fixture(scope="module")
def level1(tmp_path_factory: pytest.TempPathFactory, start_in: Callable[[Path, str], LabDir]) -> Iterator[LabDir]:
    """A running level-1 lab in a deep folder that only root may enter, with a blank in its name."""
    top = tmp_path_factory.mktemp("level1")
    top.chmod(0o700)
    folder = top / ("deep" * 20) / ("er" * 30) / "a lab"
    try:
        yield start_in(folder, "lxc")
    finally:
        manage.down(open_dir(folder), purge=True)
        assert not folder.exists()


@pytest.fixture
def inside(level1: LabDir, connect: Any) -> Any:
    return connect(level1)


def _left(token: str) -> list[str]:
    """What is there of a lab: processes, cgroups, mounts."""
    found = [f"process {pid}" for pid in processes.marked(f"GPUCTL_LAB={token}".encode())]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        place = line.split()[1]
        if token[:12] in place:
            found.append(f"mount {place}")
        if line.split()[2] == "cgroup2":
            found += [f"cgroup {path}" for path in Path(place).glob(f"*{token[:12]}*")]
    return found


def _nothing_left(token: str) -> None:
    end = time.monotonic() + 10
    while _left(token) and time.monotonic() < end:
        time.sleep(0.05)
    assert _left(token) == []


# --- what it is --------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.lab
def test_every_process_knows_the_level(level1: LabDir, inside: Any) -> None:
    info = manage.running(level1)
    wanted = {"GPUCTL_LAB_LEVEL=1", f"GPUCTL_LAB={info.token}"}

    assert (info.level, info.isolation, sorted(info.pids)) == (1, "lxc", ["ct200", "pve"])
    for line in ("env", "pct exec 200 -- env", "pct exec 200 -- cat /proc/1/environ"):
        assert wanted <= set(inside.ok(line).replace("\0", "\n").splitlines()), line


@pytest.mark.root
@pytest.mark.lab
def test_its_nodes_are_the_kernels_and_there_are_no_others(inside: Any, level1: LabDir) -> None:
    mine = ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl", *(f"nvidia{number}" for number in range(8)))
    plain = ("null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "kmsg")

    assert sorted(inside.ok("ls /dev").split()) == sorted((*mine, *plain))
    assert inside.ok("stat -c '%F %Hr:%Lr %a %U' /dev/nvidia3") == "character special file 195:3 666 root\n"
    assert inside.ok("pct exec 200 -- stat -c '%F %Hr:%Lr' /dev/nvidia3") == "character special file 195:3\n"
    assert "cpu" not in inside.ok("pct exec 200 -- cat /proc/devices")
    # No Python and no stand-in: nothing can register 195, so what the rule lets through has no driver.
    assert inside.run("pct exec 200 -- sh -c ': <> /dev/nvidia0'").err.endswith("No such device or address\n")


@pytest.mark.root
@pytest.mark.lab
def test_the_container_cannot_leave_its_rules_behind(inside: Any) -> None:
    made = "mknod -m 666 /tmp/kmsg c 1 11; "
    for way_out in ("", "echo 0 > /sys/fs/cgroup/cgroup.procs; ", "echo 0 > /sys/fs/cgroup/../cgroup.procs; "):
        ran = inside.run(f"pct exec 200 -- sh -c '{made}{way_out}: < /tmp/kmsg'")
        assert ran.err.endswith("Operation not permitted\n"), ran
    assert "lxc.monitor" not in inside.ok("pct exec 200 -- find /sys/fs/cgroup -maxdepth 3")
    for path in ("/usr/x", "/proc/sys/kernel/hostname", "/proc/devices", "/opt/engine/x", "/sys/module/nvidia/x"):
        assert inside.run(f"pct exec 200 -- sh -c 'echo x > {path}'").rc != 0, path


@pytest.mark.root
@pytest.mark.lab
def test_a_mode_set_right_on_the_host_is_right_in_the_running_container(inside: Any) -> None:
    inside.ok("chmod 0600 /dev/nvidia-uvm")
    assert inside.ok("pct exec 200 -- stat -c %a /dev/nvidia-uvm") == "600\n"

    inside.ok("nvidia-modprobe -u -c 0")

    assert inside.ok("pct exec 200 -- stat -c %a /dev/nvidia-uvm") == "666\n"


@pytest.mark.root
@pytest.mark.lab
def test_lxcs_own_programs_work_on_the_host_as_on_a_real_one(inside: Any) -> None:
    assert inside.ok("lxc-info -n 200 -s -H") == "RUNNING\n"
    assert inside.ok("lxc-attach -n 200 -- hostname") == "ct200\n"


@pytest.mark.root
@pytest.mark.lab
def test_an_unprivileged_container_is_mapped_and_its_files_come_back(inside: Any, level1: LabDir) -> None:
    inside.ok("pct exec 200 -- sh -c 'echo mine > /root/mine'; cp -f /etc/pve/lxc/200.conf /root/saved")
    extra = r"1i unprivileged: 1\ndev0: /dev/nvidia-uvm,uid=5,gid=44,mode=0640"
    inside.ok(f"pct stop 200; sed -i '{extra}' /etc/pve/lxc/200.conf; pct start 200")
    try:
        assert inside.ok("pct exec 200 -- cat /proc/self/uid_map").split() == ["0", "100000", "65536"]
        assert inside.ok("pct exec 200 -- stat -c '%a %u:%g' /dev/nvidia-uvm /root/mine") == "640 5:44\n644 0:0\n"
        inside.ok("pct exec 200 -- sh -c 'echo more >> /root/mine && touch /dev/shm/x /run/x /tmp/x'")
        assert (level1.ct_rootfs() / "root/mine").stat().st_uid == 100_000
        inside.ok("nvidia-modprobe -m; pct set 200 --dev1 /dev/nvidia-modeset,mode=0666,uid=7")
        assert inside.ok("pct exec 200 -- stat -c '%Hr:%Lr %a %u' /dev/nvidia-modeset") == "195:254 666 7\n"
        # Made by a user namespace it could not be opened at all; this one is bound in.
        ran = inside.run("pct exec 200 -- sh -c ': <> /dev/nvidia-modeset'")
        assert ran.err.endswith("No such device or address\n")
    finally:
        inside.ok(
            "pct stop 200; cp -f /root/saved /etc/pve/lxc/200.conf; rm -f /dev/nvidia-modeset; pct start 200"
        )
    assert (level1.ct_rootfs() / "root/mine").stat().st_uid == 0
    assert inside.ok("pct exec 200 -- cat /root/mine") == "mine\nmore\n"


@pytest.mark.root
@pytest.mark.lab
def test_what_lxc_says_of_a_failed_start_is_in_the_task(inside: Any) -> None:
    inside.ok("pct stop 200; cp -f /etc/pve/lxc/200.conf /root/saved")
    inside.ok(r"sed -i '1i lxc.mount.entry: /dev/absent dev/absent none bind,create=file' /etc/pve/lxc/200.conf")
    try:
        ran = inside.run("pct start 200")
        assert (ran.rc, ran.err) == (255, "startup for container '200' failed\n")
        assert "/dev/absent" in ran.out
    finally:
        inside.ok("cp -f /root/saved /etc/pve/lxc/200.conf; pct start 200")


@pytest.mark.root
@pytest.mark.lab
def test_a_container_that_ends_by_itself_is_stopped_and_starts_again(inside: Any) -> None:
    inside.run("pct exec 200 -- kill -TERM 1")
    end = time.monotonic() + 10
    while inside.ok("pct status 200") != "status: stopped\n" and time.monotonic() < end:
        time.sleep(0.05)

    inside.ok("pct start 200")

    assert inside.ok("pct status 200") == "status: running\n"


# --- what stays --------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.lab
@pytest.mark.slow
def test_two_labs_run_side_by_side_and_leave_nothing(start_lab: Any, connect: Any) -> None:
    first, second = start_lab("first", "lxc"), start_lab("second", "lxc")
    tokens = [manage.running(lab).token for lab in (first, second)]
    connect(first).ok("pct stop 200")
    kept = connect(second)
    assert kept.ok("pct exec 200 -- hostname") == "ct200\n"
    detached = "setsid sleep 300 > /dev/null 2>&1 < /dev/null &"
    kept.ok(f"{detached} pct exec 200 -- sh -c '{detached}'")

    manage.down(first, purge=True)

    assert not first.root.exists()
    _nothing_left(tokens[0])
    assert kept.ok("pct exec 200 -- hostname") == "ct200\n"
    os.kill(manage.running(second).pid, 9)
    _nothing_left(tokens[1])
    again = manage.up(second).info
    assert (again.level, again.boot_count) == (1, 2)
    assert connect(second).look("nvidia-uvm") == ["file"]


# --- what it refuses ---------------------------------------------------------------------------------------------


def test_it_needs_root_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(Refused, match="level 1 of the lab needs root"):
        real.require()


def test_it_names_the_programs_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name in {"lxc-start", "cc"} else f"/usr/bin/{name}")

    with pytest.raises(Refused, match="needs lxc-start, cc") as caught:
        real.require()

    assert "apt install lxc" in caught.value.hint


@pytest.mark.parametrize(("there", "wanted"), [(0, 1), (1, 0)])
def test_a_folder_keeps_the_level_it_has(tmp_path: Path, there: int, wanted: int) -> None:
    lab = open_dir(tmp_path / "lab")
    info = LabInfo(
        pid=0,
        isolation="any",
        boot_id="",
        boot_count=1,
        ports={},
        token="t",
        fingerprint="",
        dir=str(lab.root),
        level=there,
    )
    write_json(lab.info, info.to_json())

    with pytest.raises(Refused, match=f"holds a lab of level {there}, not {wanted}"):
        manage.up(lab, level=wanted)


@pytest.mark.parametrize(
    ("said", "unfit"),
    [
        ("sh: 1: cannot open /dev/x: Operation not permitted", False),
        ("mknod: /dev/x: Operation not permitted", False),
        ("sh: 1: cannot open /dev/x: No such device or address", True),
        ("", True),
    ],
)
def test_a_kernel_that_ignores_the_rules_cannot_carry_it(said: str, unfit: bool) -> None:
    container: Any = SimpleNamespace(
        argv=lambda words: ("/bin/sh", "-c", 'echo "$1" >&2', "sh", said), env=lambda: {}
    )
    if not unfit:
        lxc.require_enforced(container)
        return
    with pytest.raises(Unfit, match="device rules are not enforced"):
        lxc.require_enforced(container)


@pytest.mark.root
def test_a_driver_that_opens_is_taken_for_nvidia_uvm_or_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to make device nodes")
    monkeypatch.setattr(real, "CPUID", 60)

    majors, notes = real.uvm_majors(tmp_path)

    assert majors == (511, 509)
    assert "60:0" in notes[0]
    assert list(tmp_path.iterdir()) == []


def test_a_lab_that_cannot_be_carried_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = open_dir(tmp_path / "state")
    lab.root.mkdir()
    error = Unfit("LXC's device rules are not enforced on this machine: tried", hint="take level 0")
    said = f"{ERROR_LINE}{json.dumps(error.to_json())}"
    argv = ["/bin/sh", "-c", 'echo "$1" >&2; exit "$2"', "sh", said, str(TOLD)]
    monkeypatch.setattr(manage, "command", lambda *_: argv)
    monkeypatch.setattr(manage, "_require_packages", lambda: None)

    with pytest.raises(Failed, match="rules are not enforced on this machine: tried") as caught:
        manage.up(lab)

    assert caught.value.hint == "take level 0"
