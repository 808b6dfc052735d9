"""`pct set`, judged by what the file says: a program on PATH that behaves as Proxmox's, from the lab's parts."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, Failed, Refused
from inventory.machine import ignore
from provision.devices.change import change_job, conf_file, pct_set

REPOSITORY = Path(__file__).parents[3]

PCT = """#!{python}
import json, os, pathlib, sys
sys.path.insert(0, {repository!r})
from gpuctl.lab.pve.backend import DeviceStat, NodeKind
from gpuctl.lab.pve.fault import Fault
from gpuctl.lab.pve.guest import Guests
from gpuctl.lab.pve.memory import MemoryBackend
from gpuctl.lab.pve.store import Store

root = pathlib.Path(os.environ["GPUCTL_ROOT"])
class Backend(MemoryBackend):
    conf_dir = property(lambda self: root / "etc/pve/lxc")
    lock_dir = property(lambda self: root / "run/lock/lxc")

told = json.loads((root / "pct.json").read_text())
(root / "argv.json").write_text(json.dumps(sys.argv[1:]))
if told.get("sleep"):
    import time
    time.sleep(told["sleep"])
backend = Backend(root / "node", started={{200: 1.0}} if told["running"] else {{}})
for n, path in enumerate(told["nodes"]):
    backend.devices[path] = DeviceStat(NodeKind.CHAR, 195, n)
form = {{key.removeprefix("--"): value for key, value in zip(sys.argv[3::2], sys.argv[4::2])}}
try:
    Guests(backend, Store(backend, lock_timeout_s=0.3)).update(200, form)
except Fault as error:
    print(error.message, file=sys.stderr)
    sys.exit(255)
if told.get("late"):
    import time
    time.sleep(told["late"])
"""

UVM = "/dev/nvidia-uvm"


@pytest.fixture
def root(conf_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (conf_root / "bin").mkdir()
    program = conf_root / "bin/pct"
    program.write_text(PCT.format(python=sys.executable, repository=str(REPOSITORY)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{conf_root}/bin:{os.environ['PATH']}")
    (conf_root / "run/lock/lxc").mkdir(parents=True)
    _tell(conf_root)
    return conf_root


def _tell(root: Path, *nodes: str, running: bool = False, **more: Any) -> None:
    (root / "pct.json").write_text(json.dumps({"nodes": nodes, "running": running, **more}))


def _conf(root: Path, text: str | None = None) -> str:
    path = root / "etc/pve/lxc/200.conf"
    if text is not None:
        path.write_text(text)
    return path.read_text()


def _set(root: Path, *, delete: tuple[str, ...] = (), digest: str = "", **values: str) -> Any:
    now = hashlib.sha1(_conf(root).encode()).hexdigest()
    args = {"vmid": 200, "digest": digest or now, "set": values, "delete": list(delete)}
    return change_job.pct_set(args, ignore)


BASE = "arch: amd64\nhostname: ct200\nmemory: 1024\nostype: debian\nrootfs: local:subvol-200-disk-0,size=64G\n"


def test_a_device_of_a_stopped_container_is_set_at_once(root: Path) -> None:
    _conf(root, BASE)
    _tell(root, UVM)
    answer = _set(root, dev0=f"{UVM},mode=0666")
    assert (answer["written"], answer["pending"], answer["text"]) == (True, [], "")
    assert f"dev0: {UVM},mode=0666\n" in _conf(root)
    assert answer["digest"] == hashlib.sha1(_conf(root).encode()).hexdigest()


def test_what_pct_set_did_can_be_undone(root: Path) -> None:
    _conf(root, "# kept\n" + BASE)
    _tell(root, UVM)
    answer = _set(root, dev0=UVM)
    assert change_job.undo_conf({"vmid": 200}, ignore)["restored"] == answer["backup"]
    assert _conf(root) == "# kept\n" + BASE


def test_case_26_a_changed_device_of_a_running_container_waits_for_the_next_start(root: Path) -> None:
    _conf(root, BASE + "dev0: /dev/nvidia0\ndev1: /dev/nvidiactl\n")
    _tell(root, "/dev/nvidia0", "/dev/nvidiactl", UVM, running=True)
    answer = _set(root, dev0="/dev/nvidia0,mode=0666", dev2=UVM, delete=("dev1",))
    assert (answer["written"], answer["pending"]) == (True, ["dev0", "dev1"])
    assert "[pve:pending]" in _conf(root)


def test_an_error_about_another_node_is_no_failure_when_it_was_written(root: Path) -> None:
    _conf(root, BASE + "dev0: /dev/nvidia9\n")
    _tell(root, UVM)
    answer = _set(root, dev1=UVM)
    assert (answer["written"], answer["text"]) == (True, "Device /dev/nvidia9 does not exist")
    assert f"dev1: {UVM}\n" in _conf(root)
    assert answer["backup"] == conf_file.backups(200)[0].path
    assert conf_file.backups(200)[0].after == answer["digest"]


def test_a_node_that_does_not_exist_fails_with_proxmox_own_text(root: Path) -> None:
    old = _conf(root, BASE)
    with pytest.raises(Failed, match=r"exit status 255 and did not write dev0") as caught:
        _set(root, dev0=UVM)
    assert caught.value.detail == (f"Device {UVM} does not exist",)
    assert _conf(root) == old
    assert conf_file.backups(200) == ()


def test_a_file_that_changed_meanwhile_is_refused_before_pct_is_called(root: Path) -> None:
    with pytest.raises(Refused, match="changed meanwhile"):
        _set(root, dev0=UVM, digest="0" * 40)
    assert not (root / "argv.json").exists()


def test_the_digest_goes_to_proxmox_too(root: Path) -> None:
    _conf(root, BASE)
    _tell(root, UVM)
    digest = hashlib.sha1(BASE.encode()).hexdigest()
    _set(root, dev0=UVM)
    assert (root / "argv.json").read_text().startswith(f'["set", "200", "--digest", "{digest}", "--dev0"')


def test_a_change_between_our_look_and_proxmox_own_is_a_refusal(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _conf(root, BASE)
    _tell(root, UVM)
    real = pct_set.tool.run

    def meanwhile(*args: Any, **more: Any) -> Any:
        _conf(root, BASE + "cores: 2\n")
        return real(*args, **more)

    monkeypatch.setattr(pct_set.tool, "run", meanwhile)
    with pytest.raises(Refused, match="changed meanwhile") as caught:
        _set(root, dev0=UVM)
    assert "detected modified configuration" in caught.value.detail[0]
    assert _conf(root) == BASE + "cores: 2\n"


def test_a_locked_container_is_refused(root: Path) -> None:
    _conf(root, BASE + "lock: backup\n")
    with pytest.raises(Refused, match=r"CT 200 is locked \(backup\)"):
        _set(root, dev0=UVM)


@pytest.mark.slow
def test_a_call_that_hangs_after_writing_is_judged_by_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pct_set, "LIMIT_S", 2.0)
    _conf(root, BASE)
    _tell(root, UVM, late=60)
    answer = _set(root, dev0=UVM)
    assert answer["written"]
    assert "did not end within 2 s" in answer["text"]
    _tell(root, UVM, sleep=60)
    with pytest.raises(Failed, match="did not end within"):
        _set(root, dev1=UVM)


def test_a_host_without_pct_and_a_container_without_a_file_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "bin/pct").unlink()
    monkeypatch.setenv("PATH", str(root / "bin"))
    with pytest.raises(Failed, match="pct is not installed"):
        _set(root, dev0=UVM)
    (root / "etc/pve/lxc/200.conf").unlink()
    with pytest.raises(CannotLook, match="has no configuration"):
        change_job.pct_set({"vmid": 200, "digest": "0" * 40, "set": {"dev0": UVM}}, ignore)


@pytest.mark.parametrize(
    ("values", "delete"),
    [
        ({"lxc.cgroup2.devices.allow": "c 511:* rwm"}, []),
        ({"memory": "1"}, []),
        ({"dev256": UVM}, []),
        ({"dev01": UVM}, []),
        ({"dev0": "--delete"}, []),
        ({"dev0": "mode=0666"}, []),
        ({"dev0": f"{UVM},mode=666"}, []),
        ({"dev0": UVM}, ["dev0"]),
        ({}, ["rootfs"]),
        ({}, []),
    ],
)
def test_only_well_formed_devices_reach_pct(root: Path, values: dict[str, str], delete: list[str]) -> None:
    args = {"vmid": 200, "digest": "0" * 40, "set": values, "delete": delete}
    with pytest.raises(ConfigError):
        change_job.pct_set(args, ignore)
    assert not (root / "argv.json").exists()


@pytest.mark.parametrize("digest", ["", "A" * 40, "x"])
def test_without_a_digest_proxmox_would_not_check_so_nothing_is_sent(root: Path, digest: str) -> None:
    with pytest.raises(ConfigError, match="no SHA-1"):
        change_job.pct_set({"vmid": 200, "digest": digest, "set": {"dev0": UVM}}, ignore)
    assert not (root / "argv.json").exists()


@pytest.mark.parametrize(
    ("body", "written"),
    [('echo "Plugin X is implementing an older storage API" >&2; exit 0', True), ("exit 255", False)],
)
def test_case_30_words_on_stderr_are_no_failure_and_silence_is_no_success(
    root: Path, body: str, written: bool
) -> None:
    _conf(root, BASE)
    change = f'echo "dev0: {UVM}" >> "$GPUCTL_ROOT/etc/pve/lxc/200.conf"\n' if written else ""
    (root / "bin/pct").write_text(f"#!/bin/sh\n{change}{body}\n")
    if written:
        assert _set(root, dev0=UVM)["text"] == "Plugin X is implementing an older storage API"
    else:
        with pytest.raises(Failed, match="exit status 255 and did not write dev0"):
            _set(root, dev0=UVM)
