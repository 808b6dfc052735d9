"""The Proxmox node as its own files tell it: name, quorum, owner of a container, package versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.devices.facts import Content, State
from provision.devices.observe import host_job, host_pve

DATA = Path(__file__).parent / "data"
CLUSTER = (DATA / "members-cluster.json").read_text()
SINGLE = (DATA / "members-single.json").read_text()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    (tmp_path / "etc/pve").mkdir(parents=True)
    return tmp_path


def _members(text: str) -> Content:
    return Content(State.PRESENT, text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (CLUSTER, True),
        (CLUSTER.replace('"quorate": 1', '"quorate": 0'), False),
        (SINGLE, None),
        ("", None),
        ("[]", None),
        ("[" * 100_000, None),
        ('{"cluster": 1}', None),
        ('{"cluster": {"quorate": "1"}}', None),
        (CLUSTER[:80], None),
        ("\xff\0", None),
    ],
)
def test_quorum_is_what_the_cluster_says(root: Path, text: str, answer: bool | None) -> None:
    assert host_pve.cluster_quorate(text) is answer
    assert host_pve.quorate(_members(text)) is answer


def test_without_corosync_pmxcfs_shows_that_nothing_can_be_written(root: Path) -> None:
    (root / "etc/pve/nodes").mkdir()
    assert host_pve.quorate(_members(SINGLE)) is None
    (root / "etc/pve/nodes").chmod(0o555)
    assert host_pve.quorate(_members(SINGLE)) is False
    assert host_pve.quorate(_members(CLUSTER)) is True
    assert host_pve.quorate(Content()) is None  # not pmxcfs at all


def test_the_nodes_name_comes_from_the_link_then_pmxcfs_then_the_hostname(root: Path) -> None:
    assert host_pve.nodename(Content()) == ""
    (root / "etc/hostname").write_text("pve9.example.org\n")
    assert host_pve.nodename(Content()) == "pve9"
    assert host_pve.nodename(_members(SINGLE)) == "pve"
    assert host_pve.nodename(_members('{"nodename": 5}')) == "pve9"
    (root / "etc/pve/local").symlink_to("nodes/pve1")
    assert host_pve.nodename(_members(SINGLE)) == "pve1"


def test_the_owner_of_a_container_is_the_node_that_holds_its_file(root: Path) -> None:
    assert host_pve.owners(200) == ()
    for node, vmid in (("pve1", 2000), ("pve2", 200), ("pve3", 201)):
        (root / f"etc/pve/nodes/{node}/lxc").mkdir(parents=True)
        (root / f"etc/pve/nodes/{node}/lxc/{vmid}.conf").touch()
    (root / "etc/pve/nodes/gone").mkdir()
    (root / "etc/pve/nodes/pve3/lxc/300.conf.tmp.17").touch()
    assert host_pve.owners(200) == ("pve2",)
    assert host_pve.owners(300) == ()


def test_package_versions_are_dpkgs_and_only_of_what_is_installed() -> None:
    status = (DATA / "dpkg-status.txt").read_text()
    assert host_pve.version(status, "pve-container") == "6.0.18"
    assert host_pve.version(status, "pve-manager") == "9.2.11"
    assert host_pve.version(status, "libpve-common-perl") == "9.1.1"
    assert host_pve.version(status, "pve-firewall") == ""  # removed, its configuration is left
    assert host_pve.version(status, "pve") == ""
    assert host_pve.version(status, "manager") == ""
    for broken in ("", "Package: pve-manager\n", "Package: pve-manager\nVersion: 1\n", "\xff\0\n\nPackage: \n"):
        assert host_pve.version(broken, "pve-manager") == ""


@pytest.mark.skipif(not Path("/var/lib/dpkg/status").exists(), reason="this machine is not Debian")
def test_dpkgs_real_list_of_this_machine_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCTL_ROOT", raising=False)
    assert host_pve.version(host_pve.packages().text, "dpkg").startswith("1.")


def test_a_list_of_packages_that_blocks_or_is_missing_gives_no_versions(root: Path) -> None:
    (root / "var/lib/dpkg").mkdir(parents=True)
    found: dict[str, object] = {}
    host_job._packages(found)
    assert found == {"pve_manager": "", "pve_container": ""}
    os.mkfifo(root / "var/lib/dpkg/status")
    host_job._packages(found)
    assert found == {"pve_manager": "", "pve_container": ""}
