"""The Proxmox door against the lab's API server, which answers as recorded from a real node."""

from __future__ import annotations

import hashlib
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
            "root@pam": auth.User(
                password="x",
                tokens={"terraform": auth.Token("11111111-2222-3333-4444-555555555555", privsep=False)},
            ),
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


def test_case_27_a_task_that_ended_with_warnings_is_a_success_and_tells_them(lab: Lab) -> None:
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
    api = _by_token(lab, "low@pve", "tok")
    with pytest.raises(CannotLook) as caught:
        api.status("pve", 200)
    assert "needs VM.Audit on /vms/200" in caught.value.hint
    with pytest.raises(Refused) as refused:
        api.start("pve", 200, timeout_s=20)
    assert "needs VM.PowerMgmt on /vms/200" in refused.value.hint


def _by_token(lab: Lab, user: str, name: str) -> ProxmoxApi:
    config = Api(
        url=lab.config.url, user=user, token_name=name, token_value="env:TOKEN", fingerprint=lab.config.fingerprint
    )
    return ProxmoxApi.connect(config, base=lab.folder)


def _nodes(lab: Lab, *paths: str) -> None:
    from gpuctl.lab.pve.backend import DeviceStat, NodeKind

    for minor, path in enumerate(paths):
        lab.backend.devices[path] = DeviceStat(NodeKind.CHAR, 195, minor)


def _set(lab: Lab, *, delete: tuple[str, ...] = (), **values: str) -> Any:
    digest = lab.api.config("pve", 200).digest
    return lab.api.set_config("pve", 200, values, delete=delete, digest=digest)


def test_options_are_set_and_the_new_digest_is_the_file_s(lab: Lab) -> None:
    done = _set(lab, cores="8", onboot="1", delete=("net0",))
    assert (done.written, done.pending, done.text) == (True, (), "")
    assert done.digest == hashlib.sha1(lab.conf.read_bytes()).hexdigest()
    assert "cores: 8\n" in lab.conf.read_text()
    assert "net0" not in lab.conf.read_text()
    # The next change builds on it without another look.
    lab.api.set_config("pve", 200, {"memory": "8192"}, digest=done.digest)


def test_an_error_about_a_missing_node_is_no_proof_that_nothing_was_written(lab: Lab) -> None:
    lab.conf.write_text(CONF + "dev0: /dev/nvidia-uvm\n")
    done = _set(lab, cores="8")
    assert (done.written, done.text) == (True, "Device /dev/nvidia-uvm does not exist")
    assert "cores: 8\n" in lab.conf.read_text()
    with pytest.raises(Failed, match="setting dev1 failed: Device /dev/nvidia9 does not exist"):
        _set(lab, dev1="/dev/nvidia9")
    assert _set(lab, delete=("dev0",)).text == ""


def test_case_26_a_device_that_is_changed_under_a_running_container_waits(lab: Lab) -> None:
    _nodes(lab, "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    lab.conf.write_text(CONF + "dev0: /dev/nvidia0\ndev1: /dev/nvidiactl\n")
    lab.api.start("pve", 200, timeout_s=20)
    done = _set(lab, dev0="/dev/nvidia0,mode=0666", dev2="/dev/nvidia-uvm", delete=("dev1",))
    assert (done.written, done.pending) == (True, ("dev0", "dev1"))
    assert lab.api.config("pve", 200).values["dev0"] == "/dev/nvidia0"
    assert [entry.path for entry in lab.backend.plugged] == ["/dev/nvidia-uvm"]


def test_a_configuration_that_changed_meanwhile_or_is_locked_is_refused(lab: Lab) -> None:
    digest = lab.api.config("pve", 200).digest
    lab.conf.write_text(CONF + "onboot: 1\n")
    with pytest.raises(Refused, match="detected modified configuration"):
        lab.api.set_config("pve", 200, {"cores": "8"}, digest=digest)
    lab.conf.write_text(CONF + "lock: backup\n")
    with pytest.raises(Refused, match=r"CT is locked \(backup\)"):
        _set(lab, cores="8")
    assert "cores: 4\n" in lab.conf.read_text()


def test_case_20_even_a_token_of_root_with_all_its_rights_can_not_set_a_device(lab: Lab) -> None:
    _nodes(lab, "/dev/nvidia-uvm")
    api = _by_token(lab, "root@pam", "terraform")
    digest = api.config("pve", 200).digest
    with pytest.raises(Refused, match="configuring device passthrough is only allowed for root@pam") as caught:
        api.set_config("pve", 200, {"dev0": "/dev/nvidia-uvm"}, digest=digest)
    assert caught.value.hint == "a token can never do this; use SSH (pct set) or a root@pam password"
    assert lab.api.set_config("pve", 200, {"dev0": "/dev/nvidia-uvm"}, digest=digest).written
