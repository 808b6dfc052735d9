"""Taking an edit back: only when nobody else has touched the file since, and never for good."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from inventory.errors import Refused
from inventory.machine import ignore
from provision.devices.change import backup, change_job, conf_file

FOLDER = "var/lib/gpuctl/backups"


def _conf(root: Path) -> Path:
    return root / "etc/pve/lxc/200.conf"


def _edit(root: Path, text: str) -> str:
    digest = hashlib.sha1(_conf(root).read_bytes()).hexdigest()
    return str(change_job.edit_conf({"vmid": 200, "digest": digest, "text": text}, ignore)["backup"])


def _undo(**more: Any) -> Any:
    return change_job.undo_conf({"vmid": 200, **more}, ignore)


def test_an_edit_is_taken_back_to_the_byte_and_the_undo_too(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    made = _edit(conf_root, "memory: 1\n#\xfc\n")
    answer = _undo()
    assert _conf(conf_root).read_bytes() == old
    assert answer["restored"] == made
    assert answer["digest"] == hashlib.sha1(old).hexdigest()
    again = _undo()
    assert again["restored"] == answer["backup"]
    assert _conf(conf_root).read_bytes() == b"memory: 1\n#\xfc\n"


def test_a_file_that_someone_else_changed_since_is_left_alone(conf_root: Path) -> None:
    made = _edit(conf_root, "memory: 1\n")
    _conf(conf_root).write_text("cores: 4\nmemory: 1\n")
    with pytest.raises(Refused, match="was changed by someone else after the backup of") as caught:
        _undo()
    assert caught.value.hint.endswith(f"diff {made} /etc/pve/lxc/200.conf")
    assert _conf(conf_root).read_text() == "cores: 4\nmemory: 1\n"


def test_what_is_as_before_already_is_said(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    _edit(conf_root, "memory: 1\n")
    _conf(conf_root).write_bytes(old)
    with pytest.raises(Refused, match="is as it was before that change already"):
        _undo()


def test_without_a_backup_there_is_nothing_to_undo(conf_root: Path) -> None:
    with pytest.raises(Refused, match="no backup in /var/lib/gpuctl/backups"):
        _undo()


def test_a_container_with_a_lock_line_is_left_alone(conf_root: Path) -> None:
    _edit(conf_root, "memory: 1\n")
    _conf(conf_root).write_text("lock: backup\nmemory: 1\n")
    with pytest.raises(Refused, match=r"CT 200 is locked \(backup\)"):
        _undo()
    assert _conf(conf_root).read_text() == "lock: backup\nmemory: 1\n"


def test_an_older_backup_can_be_named_when_all_changes_since_are_ours(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    first = _edit(conf_root, "memory: 1\n")
    _edit(conf_root, "memory: 2\n")
    _edit(conf_root, "memory: 3\n")
    assert _undo(backup=first)["restored"] == first
    assert _conf(conf_root).read_bytes() == old
    _undo()
    assert _conf(conf_root).read_text() == "memory: 3\n"


def test_a_named_backup_never_drops_an_edit_of_proxmox_in_between(conf_root: Path) -> None:
    first = _edit(conf_root, "memory: 1\n")
    _conf(conf_root).write_text("cores: 4\nmemory: 1\n")
    second = _edit(conf_root, "cores: 4\nmemory: 2\n")
    with pytest.raises(Refused, match="changed by someone else"):
        _undo(backup=first)
    assert _undo(backup=second)["restored"] == second
    assert _conf(conf_root).read_text() == "cores: 4\nmemory: 1\n"


@pytest.mark.parametrize("path", ["/etc/shadow", "../../etc/passwd", "/var/lib/gpuctl/backups/201.conf.x"])
def test_only_a_backup_of_this_container_can_be_named(conf_root: Path, path: str) -> None:
    _edit(conf_root, "memory: 1\n")
    with pytest.raises(Refused, match="has no backup"):
        _undo(backup=path)


def test_a_damaged_backup_is_not_put_back(conf_root: Path) -> None:
    made = _edit(conf_root, "memory: 1\n")
    (conf_root / made.lstrip("/")).write_text("memory")
    with pytest.raises(Refused, match="is damaged"):
        _undo()
    assert _conf(conf_root).read_text() == "memory: 1\n"


def test_several_edits_within_one_second_keep_a_backup_each(conf_root: Path) -> None:
    made = [_edit(conf_root, f"memory: {n % 2}\n") for n in range(6)]
    assert len(set(made)) == 6
    assert [one.path for one in conf_file.backups(200)] == made[::-1]


def test_a_clock_that_was_set_back_does_not_change_which_is_the_newest(
    conf_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _edit(conf_root, "memory: 1\n")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    second = _edit(conf_root, "memory: 2\n")
    assert conf_file.backups(200)[0].path == second
    assert _undo()["restored"] == second


def test_the_newest_twenty_are_kept_for_each_container(conf_root: Path) -> None:
    other = conf_root / FOLDER / "2001.conf.20200101T000000Z.00000000"
    other.parent.mkdir(parents=True)
    other.write_text("memory: 1\n")
    made = [_edit(conf_root, f"memory: {n}\n") for n in range(25)]
    assert [one.path for one in conf_file.backups(200)] == made[:4:-1]
    assert len(list(other.parent.glob("200.conf.*"))) == 2 * backup.KEEP
    assert other.exists()


def test_a_note_says_what_the_edit_writes(conf_root: Path) -> None:
    made = _edit(conf_root, "memory: 1\n")
    note = json.loads((conf_root / f"{made}.json".lstrip("/")).read_text())
    assert note["after"] == hashlib.sha1(b"memory: 1\n").hexdigest()
    assert abs(note["made_s"] - time.time()) < 60
    assert (conf_root / made.lstrip("/")).stat().st_mode & 0o077 == 0


def test_backups_of_an_older_version_are_listed_without_knowing_their_edit(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    folder = conf_root / FOLDER
    folder.mkdir(parents=True)
    name = "200.conf.20261101T120000Z." + hashlib.sha1(old).hexdigest()[:8]
    (folder / name).write_bytes(old)
    (found,) = conf_file.backups(200)
    assert (found.made_s, found.before, found.after) == (1793534400.0, hashlib.sha1(old).hexdigest(), "")
    _conf(conf_root).write_text("memory: 1\n")
    with pytest.raises(Refused, match="changed by someone else"):
        _undo()


def test_an_edit_that_was_killed_before_it_wrote_does_not_stand_in_the_way(conf_root: Path) -> None:
    old = _conf(conf_root).read_bytes()
    first = _edit(conf_root, "memory: 1\n")
    backup.keep(200, b"memory: 1\n", "f" * 40)  # and then it was killed
    with pytest.raises(Refused, match="as it was before") as caught:
        _undo()
    assert first in caught.value.hint
    assert _undo(backup=first)["restored"] == first
    assert _conf(conf_root).read_bytes() == old


def test_leftovers_of_killed_runs_of_ours_are_removed_and_nothing_else(conf_root: Path) -> None:
    folder, backups = _conf(conf_root).parent, conf_root / FOLDER
    backups.mkdir(parents=True)
    dead = 2**22 + 12345  # above the largest pid of Linux
    ours = [
        folder / f"200.conf.tmp.gpuctl-{dead}",
        backups / f"200.conf.20261101T120000Z.00000000.tmp.gpuctl-{dead}",
    ]
    others = [
        folder / f"200.conf.tmp.{dead}",
        folder / f"2001.conf.tmp.gpuctl-{dead}",
        folder / f"201.conf.tmp.gpuctl-{dead}",
        folder / f"200.conf.tmp.gpuctl-{os.getpid()}x",
        folder / "200.conf.tmp.gpuctl-1",
    ]
    for path in (*ours, *others):
        path.write_text("x")
    _edit(conf_root, "memory: 1\n")
    assert [path for path in ours if path.exists()] == []
    assert [path for path in others if not path.exists()] == []
