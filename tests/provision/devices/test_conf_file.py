"""Replacing the file: under Proxmox's lock, against its digest, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import CannotLook, ConfigError, Refused
from inventory.machine import ignore
from provision.devices.change import change_job, conf_file


def _conf(root: Path) -> Path:
    return root / "etc/pve/lxc/200.conf"


def _digest(root: Path) -> str:
    return hashlib.sha1(_conf(root).read_bytes()).hexdigest()


def _edit(root: Path, text: str, **changes: Any) -> Any:
    return change_job.edit_conf({"vmid": 200, "digest": _digest(root), "text": text, **changes}, ignore)


def test_the_file_is_replaced_and_the_old_bytes_are_kept(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    answer = _edit(conf_root, "memory: 1\n#\xfc\n")
    assert _conf(conf_root).read_bytes() == b"memory: 1\n#\xfc\n"
    assert answer["digest"] == _digest(conf_root)
    assert (conf_root / answer["backup"].lstrip("/")).read_bytes() == old
    assert answer["backup"].startswith("/var/lib/gpuctl/backups/200.conf.")
    assert list(_conf(conf_root).parent.glob("*.tmp.*")) == []


def test_a_file_that_changed_meanwhile_is_left_alone(conf_root: Path) -> None:
    digest = _digest(conf_root)
    _conf(conf_root).write_text("memory: 2\n")
    with pytest.raises(Refused, match="changed meanwhile"):
        _edit(conf_root, "memory: 1\n", digest=digest)
    assert _conf(conf_root).read_text() == "memory: 2\n"
    assert not (conf_root / "var/lib/gpuctl/backups").exists()


def test_a_container_with_a_lock_line_is_left_alone(conf_root: Path) -> None:
    _conf(conf_root).write_text("memory: 2\nlock: backup\n")
    with pytest.raises(Refused, match=r"CT 200 is locked \(backup\)"):
        _edit(conf_root, "memory: 1\n")
    assert "lock: backup" in _conf(conf_root).read_text()


HOLD = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def _holder(root: Path, seconds: float) -> subprocess.Popen[bytes]:
    lock = root / "run/lock/lxc/pve-config-200.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock), str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_the_lock_of_another_process_is_waited_for_and_then_respected(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    with _holder(conf_root, 30) as process:
        try:
            with pytest.raises(Refused, match="locked by another process"):
                conf_file.replace(200, _digest(conf_root), b"memory: 1\n", wait_s=0.3)
            assert _conf(conf_root).read_bytes() == old
        finally:
            process.kill()


def test_a_lock_that_is_given_back_in_time_only_delays(conf_root: Path) -> None:
    with _holder(conf_root, 0.5):
        conf_file.replace(200, _digest(conf_root), b"memory: 1\n", wait_s=10)
    assert _conf(conf_root).read_bytes() == b"memory: 1\n"


def test_the_lock_is_held_while_the_file_is_replaced(conf_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = os.replace

    def replace(source: str, target: str) -> None:
        handle = os.open(conf_root / "run/lock/lxc/pve-config-200.lock", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("free")
        except BlockingIOError:
            seen.append("held")
        finally:
            os.close(handle)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    _edit(conf_root, "memory: 1\n")
    assert set(seen) == {"held"}


def test_no_quorum_is_said_and_nothing_is_left_behind(conf_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, digest = os.open, _digest(conf_root)

    def read_only(path: Any, flags: int, *rest: Any) -> int:
        # pmxcfs without quorum: every open for writing below /etc/pve is refused, also to root.
        if "etc/pve" in str(path) and flags & (os.O_WRONLY | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(Refused, match="can't be written") as caught:
        conf_file.replace(200, digest, b"memory: 1\n")
    assert "quorum" in caught.value.hint


def test_a_container_without_a_file_is_told_apart(conf_root: Path) -> None:
    _conf(conf_root).unlink()
    with pytest.raises(CannotLook, match="no configuration"):
        conf_file.replace(200, "0" * 40, b"memory: 1\n")


@pytest.mark.parametrize("vmid", [None, "200", 99, True, 10**9, "../../etc/passwd"])
def test_what_is_no_vmid_never_becomes_a_path(vmid: Any) -> None:
    with pytest.raises(ConfigError):
        change_job.edit_conf({"vmid": vmid, "digest": "", "text": "x"}, ignore)


def test_the_wait_for_the_lock_is_bounded(conf_root: Path) -> None:
    with _holder(conf_root, 30) as process:
        try:
            began = time.monotonic()
            with pytest.raises(Refused), conf_file.locked(200, wait_s=0.2):
                pass
            assert time.monotonic() - began < 5
        finally:
            process.kill()
