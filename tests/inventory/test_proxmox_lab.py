"""The Proxmox door against the lab's API server, which answers as recorded from a real node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, Failed, Refused
from inventory.model import Api
from inventory.proxmox import ProxmoxApi

CONF = """\
# a comment
arch: amd64
cores: 4
hostname: ct200
memory: 4096
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:02:00,ip=dhcp,type=veth
ostype: debian
rootfs: local-zfs:subvol-200-disk-0,size=16G
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 511:* rwm
"""


@dataclass
class Lab:
    api: ProxmoxApi
    backend: Any
    config: Api
    folder: Path

    @property
    def conf(self) -> Path:
        return Path(self.backend.conf_dir) / "200.conf"


@pytest.fixture
def lab(good_certificate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    auth = pytest.importorskip("gpuctl.lab.pve.auth")
    from gpuctl.lab.pve.memory import MemoryBackend
    from gpuctl.lab.pve.server import serve

    users = auth.Users(
        users={
            "root@pam": auth.User(password="x"),
            "low@pve": auth.User(
                tokens={"tok": auth.Token("11111111-2222-3333-4444-555555555555", privsep=False)}
            ),
        },
        grants=(),
    )
    backend = MemoryBackend(tmp_path / "node")
    server = serve(backend, cert=good_certificate.pem, key=good_certificate.key, users=users, lock_timeout_s=0.3)
    (tmp_path / "node" / "lxc" / "200.conf").write_text(CONF)
    monkeypatch.setenv("PW", "x")
    monkeypatch.setenv("TOKEN", "11111111-2222-3333-4444-555555555555")
    config = Api(
        url=f"https://127.0.0.1:{server.port}",
        user="root@pam",
        password="env:PW",
        fingerprint=good_certificate.fingerprint,
    )
    yield Lab(ProxmoxApi.connect(config, base=tmp_path), backend, config, tmp_path)
    server.close()


def test_a_container_is_found_started_and_shut_down(lab: Lab) -> None:
    assert lab.api.nodes() == ("pve",)
    guest = lab.api.locate(200)
    assert (guest.node, guest.kind, guest.status) == ("pve", "lxc", "stopped")
    assert lab.api.start("pve", 200, timeout_s=20) == ()
    assert lab.api.status("pve", 200).status == "running"
    assert lab.api.start("pve", 200, timeout_s=20) == ()
    assert lab.api.shutdown("pve", 200, timeout_s=20) == ()
    assert lab.api.status("pve", 200).status == "stopped"
    assert lab.api.stop("pve", 200, timeout_s=20) == ()


def test_the_configuration_keeps_raw_keys_apart(lab: Lab) -> None:
    view = lab.api.config("pve", 200)
    assert [value for _, value in view.raw] == ["c 195:* rwm", "c 511:* rwm"]
    assert view.values["memory"] == "4096"
    assert len(view.digest) == 40
    assert {entry["key"] for entry in lab.api.pending("pve", 200)} >= {"memory", "cores"}


def test_node_version_tasks_and_quorum_are_read(lab: Lab) -> None:
    assert lab.api.version()
    assert lab.api.node_status("pve").uptime_s > 1000
    assert lab.api.running_tasks("pve") == ()
    assert lab.api.quorate() is None
    lab.backend.cluster = False
    assert lab.api.quorate() is False


def test_a_missing_node_fails_the_start_with_proxmox_text(lab: Lab) -> None:
    lab.conf.write_text(CONF + "dev0: /dev/nvidia-uvm\n")
    with pytest.raises(Failed, match="start failed: Device /dev/nvidia-uvm does not exist") as caught:
        lab.api.start("pve", 200, timeout_s=20)
    assert any("TASK ERROR" in line for line in caught.value.detail)
    assert lab.api.status("pve", 200).status == "stopped"


def test_warnings_come_back(lab: Lab) -> None:
    lab.backend.start_warnings = ("old cgroup key",)
    assert lab.api.start("pve", 200, timeout_s=20) == ("old cgroup key",)


def test_a_lock_is_a_refusal(lab: Lab) -> None:
    lab.conf.write_text(CONF + "lock: backup\n")
    assert lab.api.status("pve", 200).lock == "backup"
    with pytest.raises(Refused, match=r"CT is locked \(backup\)"):
        lab.api.start("pve", 200, timeout_s=20)


def test_a_container_that_does_not_stop_is_a_failure(lab: Lab) -> None:
    lab.api.start("pve", 200, timeout_s=20)
    lab.backend.stubborn = True
    with pytest.raises(Failed, match="container did not stop"):
        lab.api.shutdown("pve", 200, timeout_s=20)


def test_an_unknown_vmid_and_a_virtual_machine_are_told(lab: Lab) -> None:
    lab.backend.machines = {300: "win"}
    with pytest.raises(Failed, match="knows no container 999; it knows 200"):
        lab.api.locate(999)
    with pytest.raises(Failed, match=r"VMID 300 \(win\) on node pve is a virtual machine"):
        lab.api.locate(300)


def test_a_wrong_password_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "wrong")
    with pytest.raises(CannotLook, match="refuses the password of root@pam"):
        ProxmoxApi.connect(lab.config, base=lab.folder)


def test_a_token_without_rights_is_told_what_it_needs(lab: Lab) -> None:
    config = Api(
        url=lab.config.url,
        user="low@pve",
        token_name="tok",
        token_value="env:TOKEN",
        fingerprint=lab.config.fingerprint,
    )
    api = ProxmoxApi.connect(config, base=lab.folder)
    with pytest.raises(CannotLook) as caught:
        api.status("pve", 200)
    assert "needs VM.Audit on /vms/200" in caught.value.hint
    with pytest.raises(Refused) as refused:
        api.start("pve", 200, timeout_s=20)
    assert "needs VM.PowerMgmt on /vms/200" in refused.value.hint
