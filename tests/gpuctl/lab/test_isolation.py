"""What namespaces give a lab machine: its own shared memory, processes, clock, and a system it cannot change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuctl.lab import manage, namespaces, processes, rootfs
from gpuctl.lab.blueprint import Blueprint
from gpuctl.lab.kernel import Kernel
from gpuctl.lab.machine import Node
from gpuctl.lab.state import VMID, LabDir, open_dir
from gpuctl.lab.way import Simulated
from inventory.errors import Failed

pytestmark = pytest.mark.lab


@pytest.fixture
def inside(isolated_lab: LabDir, connect: Any) -> Iterator[Any]:
    """A connection to the lab in namespaces."""
    yield connect(isolated_lab)


@pytest.mark.slow
def test_shared_memory_is_a_tmpfs_that_gets_full(inside: Any) -> None:
    for prefix in ("", "pct exec 200 -- "):
        ran = inside.run(f"{prefix}sh -c 'dd if=/dev/zero of=/dev/shm/big bs=1M count=600 2>&1; rm /dev/shm/big'")
        assert "No space left on device" in ran.out
        assert inside.ok(f"{prefix}stat -f -c %T /dev/shm") == "tmpfs\n"
        assert inside.ok(f"{prefix}df -m --output=size /dev/shm").split()[-1] == "512"


def test_host_and_container_have_their_own_shared_memory(inside: Any) -> None:
    inside.ok("touch /dev/shm/of-the-host")

    assert "of-the-host" not in inside.ok("pct exec 200 -- ls /dev/shm")


def test_each_machine_sees_its_own_name_and_processes(inside: Any) -> None:
    assert inside.ok("hostname; pct exec 200 -- hostname").split() == ["pve", "ct200"]
    assert str(os.getpid()) not in inside.ok("ls /proc").split()
    assert len([word for word in inside.ok("pct exec 200 -- ls /proc").split() if word.isdigit()]) < 5


def test_the_machines_own_system_cannot_be_changed_from_inside(inside: Any) -> None:
    for path in ("/usr/of-the-lab", "/etc/ssl/of-the-lab", "/opt/engine/of-the-lab", "/proc/sys/kernel/hostname"):
        prefix = "pct exec 200 -- "
        assert inside.run(f"{prefix}sh -c 'echo x > {path}'").rc != 0, path
    assert not Path("/usr/of-the-lab").exists()


def test_the_real_paths_show_the_labs_kernel(inside: Any, isolated_lab: LabDir) -> None:
    info = manage.running(isolated_lab)

    for prefix in ("", "pct exec 200 -- "):
        assert inside.ok(f"{prefix}cat /proc/sys/kernel/random/boot_id").strip() == info.boot_id
        assert "195 nvidia\n" in inside.ok(f"{prefix}cat /proc/devices")
        assert len(inside.ok(f"{prefix}ls /proc/driver/nvidia/gpus").split()) == 8
        assert inside.ok(f"{prefix}cat /sys/module/nvidia/version") == "595.45.04\n"
        assert len(json.loads(inside.ok(f"{prefix}cat /etc/gpuctl-lab/gpus.json"))) == 8


def test_sftp_cannot_leave_the_view_by_a_link(inside: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the real machine")
    inside.ok(f"ln -sfn {secret} /root/out; ln -sfn {'../' * 12}{secret} /root/up")
    sftp = inside.ssh.open_sftp()

    for name in ("/root/out", "/root/up", f"/{'../' * 12}{secret}"):
        with pytest.raises(FileNotFoundError):
            sftp.open(name, "rb")


def test_a_host_command_cannot_see_the_labs_secrets(inside: Any, isolated_lab: LabDir) -> None:
    assert inside.run(f"cat {isolated_lab.password}").rc != 0


@pytest.mark.slow
def test_a_killed_daemon_takes_every_process_with_it(start_lab: Any, connect: Any) -> None:
    lab = start_lab("killed")
    token = manage.running(lab).token.encode()
    connect(lab).ok("pct exec 200 -- sh -c 'setsid sleep 300 > /dev/null 2>&1 < /dev/null &'")
    assert processes.marked(b"GPUCTL_LAB=" + token)

    os.kill(manage.running(lab).pid, 9)

    end = time.monotonic() + 10
    while processes.marked(b"GPUCTL_LAB=" + token) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes.marked(b"GPUCTL_LAB=" + token) == []


def test_the_way_of_isolation_can_be_chosen_by_the_environment() -> None:
    assert namespaces.isolation({"GPUCTL_LAB_ISOLATION": "plain"}) == "plain"
    assert namespaces.isolation({"GPUCTL_LAB_ISOLATION": "nonsense"}) in {"plain", "namespaces"}


def test_a_kernel_that_refuses_namespaces_after_all_gets_a_plain_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = open_dir(tmp_path / "state")
    kernel = Kernel(lab.kernel, lab.host_rootfs, {VMID: lab.ct_rootfs()}, "0123456789")
    rootfs.install(lab, kernel.token)
    begin = namespaces.start

    def refuse(kind: str, blueprint: Blueprint) -> namespaces.View:
        if kind == "namespaces":
            raise Failed("cannot start the lab machine pve: mount: Operation not permitted")
        return begin(kind, blueprint)

    monkeypatch.setattr(namespaces, "start", refuse)
    node = Node(lab, kernel, Simulated(lab, "namespaces"), may_fall_back=True)
    try:
        node.power_on()
        assert node.isolation == "plain"
        assert node.host.root == lab.host_rootfs
    finally:
        node.power_off()
    with pytest.raises(Failed, match="not permitted"):
        Node(lab, kernel, Simulated(lab, "namespaces")).power_on()


_READABLE_PYTHON = "/usr/bin/python3"
_USER = 23456


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0, reason="needs root to become another user; other users run every test as such"
)
@pytest.mark.parametrize("isolation", ["namespaces", "plain"])
def test_an_ordinary_user_can_run_a_lab(isolation: str, project: Path) -> None:
    site = next(path for path in sys.path if path.endswith("site-packages"))
    home = Path(f"/tmp/gpuctl-lab-user-{os.getpid()}-{isolation}")
    program = "import sys; from gpuctl.cli import main; main(sys.argv[1:])"
    drop = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "PYTHONPATH": f"{project}:{site}",
        "GPUCTL_LAB_ISOLATION": isolation,
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*drop, _READABLE_PYTHON, "-c", program, *words]
        return subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, timeout=90)

    home.mkdir()
    os.chown(home, _USER, _USER)
    try:
        usable = subprocess.run([*drop, _READABLE_PYTHON, "-c", "import gpuctl, asyncssh"], env=env, cwd=home)
        if usable.returncode:
            pytest.skip(f"another user cannot import gpuctl with {_READABLE_PYTHON}")
        up = run("lab", "up", "--json")
        assert up.returncode == 0, up.stderr
        said = json.loads(up.stdout)
        assert said["isolation"] == isolation
        assert run("lab", "reboot").returncode == 0
        assert run("lab", "status", "--json").returncode == 0
        assert run("lab", "down", "--purge").returncode == 0
        # Whoever adopted the daemon may not have collected it yet; then it has no command line any more.
        left = Path(f"/proc/{said['pid']}/cmdline")
        assert not left.exists() or left.read_bytes() == b""
    finally:
        run("lab", "down")
        shutil.rmtree(home)
