"""Which limit is the least, from recorded files of the kernel, and what the refusal says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from inventory.errors import Refused
from provision.weights.room import (
    BUFFERS,
    Limit,
    Room,
    cgroup_folders,
    cgroup_limit,
    check,
    look,
    mount_of,
    parse_available,
    parse_mounts,
)

MIB = 1024 * 1024
MOUNTS_V2 = """\
22 1 0:20 / / rw,relatime - ext4 /dev/vda rw
24 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:26 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=8388608k
31 22 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
32 22 0:28 / /mnt/two\\040words rw - tmpfs tmpfs rw
33 32 0:29 / /mnt/two\\040words rw shared:3 master:1 - xfs /dev/sdb rw
"""
MOUNTS_V1 = """\
22 1 0:20 / / rw - ext4 /dev/vda rw
31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
32 22 0:28 /lxc/200 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
"""


def test_the_mount_of_a_path_is_the_innermost_and_the_last_one() -> None:
    mounts = parse_mounts(MOUNTS_V2)
    kinds = {
        path: getattr(mount_of(path, mounts), "kind", None) for path in ("/dev/shm/models", "/dev/shmx", "/srv")
    }
    assert kinds == {"/dev/shm/models": "tmpfs", "/dev/shmx": "ext4", "/srv": "ext4"}
    hidden = mount_of("/mnt/two words/x", mounts)
    assert hidden is not None
    assert hidden.kind == "xfs"


def test_lines_that_are_no_mounts_are_passed_over() -> None:
    assert parse_mounts("garbage\n\n1 2 3 - \n") == ()


def test_version_2_walks_all_ancestors_innermost_first() -> None:
    assert cgroup_folders("0::/a/b\n", parse_mounts(MOUNTS_V2)) == (
        ("/sys/fs/cgroup/a/b", 2),
        ("/sys/fs/cgroup/a", 2),
        ("/sys/fs/cgroup", 2),
    )


def test_version_1_takes_the_memory_controller_and_the_mount_s_root() -> None:
    cgroup = "5:cpu:/x\n4:memory:/lxc/200/inner\n0::/\n"
    assert cgroup_folders(cgroup, parse_mounts(MOUNTS_V1)) == (
        ("/sys/fs/cgroup/memory/inner", 1),
        ("/sys/fs/cgroup/memory", 1),
    )


def reader(files: Mapping[str, str]) -> object:
    return lambda path: files.get(path.rsplit("/", 1)[1])


@pytest.mark.parametrize(
    ("version", "files", "free"),
    [
        (2, {"memory.max": "max\n", "memory.current": "5\n"}, None),
        (2, {"memory.current": "5\n"}, None),
        (1, {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5\n"}, None),
        (2, {"memory.max": f"{300 * MIB}\n", "memory.current": f"{100 * MIB}\n"}, 200 * MIB - BUFFERS),
        (
            2,
            {
                "memory.max": f"{300 * MIB}",
                "memory.current": f"{280 * MIB}",
                "memory.stat": f"anon 5\ninactive_file {90 * MIB}\n",
            },
            110 * MIB - BUFFERS,
        ),
        (
            1,
            {
                "memory.limit_in_bytes": f"{300 * MIB}",
                "memory.usage_in_bytes": f"{290 * MIB}",
                "memory.stat": f"inactive_file 1\ntotal_inactive_file {80 * MIB}\n",
            },
            90 * MIB - BUFFERS,
        ),
        (2, {"memory.max": "1000", "memory.current": "5000"}, 0),
    ],
)
def test_what_a_cgroup_still_allows(version: int, files: Mapping[str, str], free: int | None) -> None:
    limit = cgroup_limit("/g", version, reader(files))  # type: ignore[arg-type]
    assert (limit.free if limit else None) == free


def test_available_memory_is_read_in_bytes() -> None:
    assert parse_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n") == 2 * MIB
    assert parse_available("MemTotal: 9 kB\n") is None


def test_the_refusal_names_the_least_limit_and_by_how_much() -> None:
    room = Room("/dev/shm/m", True, 1, (Limit("the sea", 900, "drink"), Limit("the cup", 500, "a larger cup")))
    check("lab/tiny", 500, room)
    with pytest.raises(Refused, match="the cup leaves 500 B, 1 B too little") as error:
        check("lab/tiny", 501, room)
    assert error.value.hint == "a larger cup"


def test_room_promised_to_another_model_is_not_given_twice() -> None:
    room = Room("/dev/shm/m", True, 1, (Limit("the cup", 500, "a larger cup"),))
    with pytest.raises(Refused, match="beside 300 B for the other weights"):
        check("lab/tiny", 300, room, taken=300)


def tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with /dev/shm, a memory limit of 1 GiB on an ancestor, and 8 GiB available."""
    files = {
        "proc/self/mountinfo": MOUNTS_V2,
        "proc/self/cgroup": "0::/lxc/inner\n",
        "proc/meminfo": f"MemAvailable: {8 * 1024 * 1024} kB\n",
        "sys/fs/cgroup/lxc/memory.max": f"{1024 * MIB}\n",
        "sys/fs/cgroup/lxc/memory.current": f"{24 * MIB}\n",
        "sys/fs/cgroup/lxc/inner/memory.max": "max\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "dev/shm").mkdir(parents=True)
    monkeypatch.setenv("GPUCTL_ROOT", str(root))


def test_an_ancestor_s_limit_counts_and_what_df_shows_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, monkeypatch)
    room = look("/dev/shm/models/new")
    assert room.in_memory is True
    assert room.least is not None
    assert room.least.free == 1000 * MIB - BUFFERS
    assert "/sys/fs/cgroup/lxc)" in room.least.name


def test_a_disk_is_bounded_by_its_own_room_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, monkeypatch)
    room = look("/srv/models")
    assert room.in_memory is False
    assert [limit.name for limit in room.limits] == ["the free room of / (ext4)"]


def test_what_could_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_ROOT", str(tmp_path))
    room = look("/dev/shm/models")
    assert room.in_memory is None
    assert len(room.unknown) == 2
