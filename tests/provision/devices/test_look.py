"""Reading one file or one node: what stands there is told apart, and nothing makes the reader wait."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from provision.devices.facts import NodeKind, State
from provision.devices.observe import look


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    (tmp_path / "dev").mkdir()
    return tmp_path


def test_absent_empty_and_unreadable_are_three_things(root: Path) -> None:
    (root / "empty").touch()
    (root / "folder").mkdir()
    assert (look.content("/empty").state, look.content("/empty").text) == (State.PRESENT, "")
    assert look.content("/missing").state is State.ABSENT
    assert look.content("/empty/below").state is State.ABSENT
    assert (look.content("/folder").state, look.content("/folder").why) == (State.UNREADABLE, "EISDIR")
    assert look.content("/with\0zero").state is State.UNREADABLE


def test_a_reader_never_waits_for_a_fifo(root: Path) -> None:
    os.mkfifo(root / "fifo")
    began = time.monotonic()
    assert (look.content("/fifo").state, look.content("/fifo").why) == (State.UNREADABLE, "not a file: other")
    assert look.node("/fifo").kind is NodeKind.OTHER
    assert time.monotonic() - began < 1


def test_every_byte_survives_and_a_huge_file_is_cut(root: Path) -> None:
    (root / "garbage").write_bytes(bytes(range(256)) * 4)
    assert look.content("/garbage").text.encode("latin-1") == bytes(range(256)) * 4
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert len(look.content("/huge").text) == look.LIMIT
    assert len(look.content("/huge", 10).text) == 10


def test_what_stands_in_place_of_a_node_is_told_apart(root: Path) -> None:
    (root / "dev/regular").touch()
    (root / "dev/folder").mkdir()
    (root / "dev/dangling").symlink_to("nowhere")
    (root / "dev/loop").symlink_to("loop")
    (root / "dev/good").symlink_to("regular")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "dev/socket"))
    kinds = {name: look.node(f"/dev/{name}").kind for name in ("regular", "folder", "socket", "missing", "good")}
    assert kinds == {
        "regular": NodeKind.REGULAR,
        "folder": NodeKind.DIRECTORY,
        "socket": NodeKind.OTHER,
        "missing": NodeKind.ABSENT,
        "good": NodeKind.SYMLINK,
    }
    assert look.node("/dev/good", follow=True).kind is NodeKind.REGULAR
    assert look.node("/dev/good", follow=True).why == "a link to regular"
    for name in ("dangling", "loop"):
        node = look.node(f"/dev/{name}", follow=True)
        assert node.kind is NodeKind.SYMLINK
        assert "leads to nothing" in node.why
    assert look.node("/dev/with\0zero").kind is NodeKind.UNREADABLE


@pytest.mark.root
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_numbers_mode_owner_and_time_of_a_real_node_are_read(root: Path) -> None:
    os.mknod(root / "dev/nvidia-uvm", 0o020000 | 0o600, os.makedev(509, 1))
    os.mknod(root / "dev/block", 0o060000 | 0o600, os.makedev(7, 200))
    (root / "dev/nvidia-uvm").chmod(0o640)
    os.chown(root / "dev/nvidia-uvm", 12, 34)
    node = look.node("/dev/nvidia-uvm")
    assert (node.kind, node.number, node.mode, node.uid, node.gid) == (NodeKind.CHAR, (509, 1), 0o640, 12, 34)
    assert abs(node.changed_s - time.time()) < 60
    assert node.opened is None
    assert (look.node("/dev/block").kind, look.node("/dev/block").number) == (NodeKind.BLOCK, (7, 200))


def test_only_the_two_folders_of_nodes_are_looked_into(root: Path) -> None:
    for path in ("nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0", "nvidia-other/x", "dri/card0"):
        (root / "dev" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / path).touch()
    (root / "dev/nvidia0").touch()
    assert [node.path for node in look.nvidia_nodes()] == [
        "/dev/nvidia-caps",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps-imex-channels",
        "/dev/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-other",
        "/dev/nvidia0",
    ]


def test_where_dev_cannot_be_listed_the_usual_nodes_are_asked_by_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "dev/nvidia-uvm").touch()
    real = os.listdir

    def listdir(path: str) -> list[str]:
        if path.endswith("/dev"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    kinds = {node.path: node.kind for node in look.nvidia_nodes()}
    assert kinds["/dev/nvidia-uvm"] is NodeKind.REGULAR
    assert kinds["/dev/nvidia7"] is NodeKind.ABSENT
