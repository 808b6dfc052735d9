"""Case 18 as a kind: killed at any step, or with others at the file at once, nobody ever meets half a file."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import Failed, Refused
from provision.devices.change import backup, conf_file

REPOSITORY = Path(__file__).parents[3]


def _conf(root: Path) -> Path:
    return root / "etc/pve/lxc/200.conf"


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "GPUCTL_ROOT": str(root)}


def _python(root: Path, code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=_environment(root)
    )


KILLED = """
import fcntl, json, os, pathlib, shutil, signal, sys
from provision.devices.change import backup, conf_file
root, action = pathlib.Path(os.environ["GPUCTL_ROOT"]), sys.argv[1]
conf = root / "etc/pve/lxc/200.conf"
first = conf.read_bytes()

def prepare():
    shutil.rmtree(root / "var", ignore_errors=True)
    for left in conf.parent.glob("*.tmp.*"):
        left.unlink()
    conf.write_bytes(first)
    if action == "undo":
        conf_file.replace(200, backup.digest_of(first), b"memory: 2\\n" * 500)

def act(new):
    if action == "undo":
        conf_file.undo(200)
    else:
        conf_file.replace(200, backup.digest_of(conf.read_bytes()), new)

def killed_at(step):
    # The child ends by SIGKILL just before its os-call number `step`; a write is also cut in its middle.
    calls = [0]
    def door(module, name):
        real = getattr(module, name)
        def call(*args, **more):
            calls[0] += 1
            if calls[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "write":
                calls[0] += 1
                if calls[0] == step:
                    real(args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)
        setattr(module, name, call)
    for name in ("open", "write", "fsync", "close", "replace", "unlink", "listdir", "mkdir"):
        door(os, name)
    door(fcntl, "flock")
    act(b"memory: 1\\n" * 500)
    os._exit(0)

seen = []
for step in range(1, 200):
    prepare()
    before = conf.read_bytes()
    child = os.fork()
    if child == 0:
        killed_at(step)
    ended = os.waitpid(child, 0)[1]
    now = conf.read_bytes()
    new = first if action == "undo" else b"memory: 1\\n" * 500
    kept = [one for one in conf_file.backups(200) if one.before == backup.digest_of(before)]
    intact = [one for one in kept if (pathlib.Path(str(root) + one.path)).read_bytes() == before]
    state = "old" if now == before else "new" if now == new else "broken"
    noted = any(one.after == backup.digest_of(new) for one in intact)
    conf_file.replace(200, backup.digest_of(now), b"memory: 3\\n")  # the next run
    left = [str(path) for path in (*conf.parent.iterdir(), *(root / "var/lib/gpuctl/backups").iterdir())
            if ".tmp." in path.name]
    seen.append({"step": step, "state": state, "noted": noted, "left": left, "whole": ended == 0})
    if ended == 0:
        break
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("action", ["replace", "undo"])
def test_case_18_kill_9_before_every_step_leaves_old_or_new_bytes_and_a_backup(
    conf_root: Path, action: str
) -> None:
    out, _ = (process := _python(conf_root, KILLED, action)).communicate(timeout=120)
    assert process.returncode == 0
    seen = json.loads(out)
    assert seen[-1]["whole"] and len(seen) > 20
    assert {one["state"] for one in seen} == {"old", "new"}
    assert [one for one in seen if one["left"]] == []
    # Once the file is new, the backup and its note are there: what was done can be undone.
    assert [one for one in seen if one["state"] == "new" and not one["noted"]] == []
    # "new" appears once and stays: there is one moment of change.
    states = [one["state"] for one in seen]
    assert states == sorted(states, reverse=True)


GPUCTL = """
import os, pathlib, sys
from inventory.errors import Refused
from provision.devices.change import backup, conf_file
conf, key, rounds = pathlib.Path(os.environ["GPUCTL_ROOT"]) / "etc/pve/lxc/200.conf", sys.argv[1], int(sys.argv[2])
done = refused = 0
while done < rounds:
    data = conf.read_bytes()
    lines = data.decode().splitlines()
    new = [f"{key}: {done + 1}" if line.startswith(key) else line for line in lines]
    try:
        conf_file.replace(200, backup.digest_of(data), ("\\n".join(new) + "\\n").encode(), wait_s=60)
        done += 1
    except Refused as error:
        assert "changed meanwhile" in error.message, error
        refused += 1
print(refused)
"""

PROXMOX = """
import fcntl, os, sys, time
root, rounds = os.environ["GPUCTL_ROOT"], int(sys.argv[1])
path, lock = f"{root}/etc/pve/lxc/200.conf", f"{root}/run/lock/lxc/pve-config-200.lock"
os.makedirs(os.path.dirname(lock), exist_ok=True)
for n in range(1, rounds + 1):
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with open(path) as file:
        lines = file.read().splitlines()
    temporary = f"{path}.tmp.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write("".join((f"cores: {n}" if line.startswith("cores") else line) + "\\n" for line in lines))
    os.rename(temporary, path)
    os.close(handle)
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_two_gpuctl_runs_and_proxmox_at_once_lose_nothing(conf_root: Path) -> None:
    rounds = 120
    _conf(conf_root).write_text("cores: 0\nmemory: 0\nswap: 0\n")
    ours = [_python(conf_root, GPUCTL, key, str(rounds)) for key in ("memory", "swap")]
    writers = [*ours, _python(conf_root, PROXMOX, str(rounds))]
    over, bad = threading.Event(), []

    def read() -> None:
        while not over.wait(0.001):
            keys = [line.partition(":")[0] for line in _conf(conf_root).read_text().splitlines()]
            if keys != ["cores", "memory", "swap"]:
                bad.append(keys)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        answers = [process.communicate(timeout=100)[0] for process in writers]
    finally:
        over.set()
        reader.join(10)
        for process in writers:
            process.kill()
    assert [process.returncode for process in writers] == [0, 0, 0]
    assert bad == []
    assert _conf(conf_root).read_text() == f"cores: {rounds}\nmemory: {rounds}\nswap: {rounds}\n"
    assert sum(int(answer) for answer in answers[:2]) > 0, "they never met, so nothing was tested"
    assert len(conf_file.backups(200)) == backup.KEEP


def test_a_lock_held_for_long_is_refused_and_nothing_is_written(conf_root: Path) -> None:
    lock = conf_root / "run/lock/lxc/pve-config-200.lock"
    lock.parent.mkdir(parents=True)
    old = _conf(conf_root).read_bytes()
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for act in (
            lambda: conf_file.replace(200, backup.digest_of(old), b"memory: 1\n", wait_s=0.2),
            lambda: conf_file.undo(200, wait_s=0.2),
        ):
            with pytest.raises(Refused, match=r"locked by another process for 0\.2 s"):
                act()
    finally:
        os.close(handle)
    assert _conf(conf_root).read_bytes() == old
    assert not (conf_root / "var").exists()


READ_ONLY = """
import sys
from inventory.errors import Refused
from provision.devices.change import backup, conf_file
try:
    conf_file.replace(200, sys.argv[1], b"memory: 1\\n")
except Refused as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a folder read-only")
def test_a_read_only_folder_as_without_quorum_is_refused(conf_root: Path) -> None:
    old, folder = _conf(conf_root).read_bytes(), _conf(conf_root).parent
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh", str(folder)]
    done = subprocess.run(
        [*argv, sys.executable, "-c", READ_ONLY, backup.digest_of(old)],
        env=_environment(conf_root), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "mount" in done.stderr:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    assert done.stdout.startswith("/etc/pve/lxc/200.conf can't be written: Read-only file system | "), done
    assert "no quorum" in done.stdout
    assert _conf(conf_root).read_bytes() == old


@pytest.mark.parametrize("code", [errno.EFBIG, errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_leaves_the_old_file_and_no_leftover(
    conf_root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    old, real = _conf(conf_root).read_bytes(), os.write

    def full(handle: int, data: Any) -> int:
        if "etc/pve" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(code, os.strerror(code))
        return real(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Failed, match=os.strerror(code)):
        conf_file.replace(200, backup.digest_of(old), b"memory: 1\n")
    assert [path.name for path in _conf(conf_root).parent.iterdir()] == ["200.conf"]
    assert _conf(conf_root).read_bytes() == old


def test_without_a_place_for_the_backup_nothing_is_changed(
    conf_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, real = _conf(conf_root).read_bytes(), os.open

    def refuse(path: Any, flags: int, *rest: Any) -> int:
        if "backups" in str(path) and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        Refused, match=r"^/var/lib/gpuctl/backups/.* can't be written: Permission denied"
    ) as caught:
        conf_file.replace(200, backup.digest_of(old), b"memory: 1\n")
    assert "quorum" not in caught.value.hint
    assert _conf(conf_root).read_bytes() == old


def test_a_file_beyond_a_megabyte_is_not_written_but_can_be_made_small_again(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    with pytest.raises(Refused, match="a configuration of 1000010 bytes is not written"):
        conf_file.replace(200, backup.digest_of(old), b"#" * 1_000_009 + b"\n")
    assert _conf(conf_root).read_bytes() == old
    huge = b"#" * 1_048_600 + b"\n" + old
    _conf(conf_root).write_bytes(huge)
    conf_file.replace(200, backup.digest_of(huge), old)
    assert _conf(conf_root).read_bytes() == old
    with pytest.raises(Refused, match="is not written"):
        conf_file.undo(200)


@pytest.mark.parametrize("new", [b"", b"\n", b" \r\n\t\n"])
def test_case_18_an_empty_file_is_never_written(conf_root: Path, new: bytes) -> None:
    old = _conf(conf_root).read_bytes()
    with pytest.raises(Refused, match="bytes is not written"):
        conf_file.replace(200, backup.digest_of(old), new)
    assert _conf(conf_root).read_bytes() == old
