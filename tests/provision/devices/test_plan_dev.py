"""Turning NVIDIA's raw lines into dev[n], and choosing between the two for a container that has neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.devices.config import conf, edits
from provision.devices.consent import Style
from provision.devices.facts import Node, NodeKind
from provision.devices.planning import plan

NEW = "6.1.10"
NODES = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def _made(make: Any, text: str, version: str = NEW, **changes: Any) -> plan.ConfPlan:
    host = make.host(text, pve_container=version, **changes)
    return plan.conf_plan(conf.parse(text), host, make.container(1), prefer=Style.DEV)


def _after(make: Any, text: str, **changes: Any) -> str:
    made = _made(make, text, **changes)
    assert made.blocked is None, made.blocked
    return edits.edit(conf.parse(text), made.edits).render().decode("latin-1")


def _entries(*names: str, first: int = 0, more: str = ",mode=0666") -> str:
    return "".join(f"dev{first + n}: /dev/{name}{more}\n" for n, name in enumerate(names))


def test_mounts_and_rules_become_entries_with_the_mode_of_the_hosts_node(make: Any) -> None:
    made = _made(make, make.conf(195, 511))
    assert _after(make, make.conf(195, 511)) == make.base + _entries(*NODES)
    assert made.lines[0] == "remove `lxc.cgroup2.devices.allow: c 195:* rwm`: dev[n] needs no rule"
    assert "turn the mount of /dev/nvidia0 into `dev0: /dev/nvidia0,mode=0666`" in made.lines


def test_lines_of_other_devices_and_rules_that_they_need_stay(make: Any) -> None:
    others = (
        make.allow + "c 235:* rwm\n" + make.allow + "c 226:* rwm\n" + make.allow + "c 10:200 rwm\n"
        "lxc.mount.entry: /dev/kfd dev/kfd none bind,optional,create=file\nlxc.apparmor.profile: unconfined\n"
    )
    nodes = (*make.nodes(509), make.char("/dev/kfd", "235:0"))
    text = make.conf(195, 509) + others + "[snap]\n" + make.allow + "c 195:* rwm\n"
    done = _after(make, text, nodes=nodes)
    assert done.startswith(make.base)
    assert all(line in done for line in others.splitlines())
    assert done.endswith("[snap]\n" + make.allow + "c 195:* rwm\n")
    assert "c 195" not in done.partition("[snap]")[0]


@pytest.mark.parametrize("version", ["5.0.6", "4.4", ""])
def test_a_host_without_dev_entries_or_of_unknown_version_is_not_migrated(make: Any, version: str) -> None:
    made = _made(make, make.conf(195, 511), version=version)
    assert made.edits == ()
    assert made.blocked is not None
    assert made.blocked.kind == ("refused" if version else "unknown")
    assert "5.0.7" in made.blocked.hint


@pytest.mark.parametrize("version", ["5.0.7", "5.0.10", "5.1", "6.0.4-1", "10.0.0"])
def test_versions_are_compared_as_numbers(make: Any, version: str) -> None:
    assert _made(make, make.conf(195, 511), version=version).blocked is None


@pytest.mark.parametrize(
    ("head", "gid", "entry"),
    [
        ("", 44, "/dev/nvidia0,mode=0660,gid=44"),
        ("unprivileged: 1\n", 44, "/dev/nvidia0,mode=0660"),
        ("unprivileged: 1\n", 100044, "/dev/nvidia0,mode=0660,gid=44"),
        ("lxc.idmap: u 0 200000 65536\n", 100044, "/dev/nvidia0,mode=0660"),
    ],
)
def test_a_group_that_the_container_knows_keeps_its_access(make: Any, head: str, gid: int, entry: str) -> None:
    nodes = tuple(
        replace(node, mode=0o660, gid=gid) if node.path == "/dev/nvidia0" else node for node in make.nodes(509)
    )
    assert f"dev0: {entry}\n" in _after(make, head + make.conf(195, 509), nodes=nodes)


def test_an_entry_of_the_users_own_is_left_as_it_is(make: Any) -> None:
    text = make.conf(195, 509) + "dev3: /dev/nvidia0,gid=44\n"
    made = _made(make, text)
    assert "remove the mount of /dev/nvidia0, which a dev[n] brings in already" in made.lines
    assert "dev3: /dev/nvidia0,gid=44\n" in _after(make, text)


def test_numbers_that_a_pending_change_uses_or_deletes_are_not_taken(make: Any) -> None:
    text = make.conf(195, 509) + "dev1: /dev/net/tun\n[pve:pending]\ndelete: dev0 dev3\ndev2: /dev/net/tun\n"
    done = _after(make, text, nodes=(*make.nodes(509), make.char("/dev/net/tun", "10:200")))
    assert [line.key for line in conf.parse(done).lines if line.section == 0 and "nvidia" in line.value] == [
        "dev4", "dev5", "dev6", "dev7",
    ]  # fmt: skip


def test_a_mounted_folder_becomes_one_entry_for_each_node_in_it(make: Any) -> None:
    caps = "lxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir\n"
    nodes = (
        *make.nodes(509),
        Node("/dev/nvidia-caps", NodeKind.DIRECTORY),
        make.char("/dev/nvidia-caps/nvidia-cap1", "508:1", mode=0o400),
        make.char("/dev/nvidia-caps/nvidia-cap2", "508:2", mode=0o444),
    )
    text = make.conf(195, 509) + caps
    proc = replace(make.host(text).proc_devices, text=make.proc(nvidia_uvm=509, nvidia_caps=508))
    done = _after(make, text + make.allow + "c 508:* rwm\n", nodes=nodes, proc_devices=proc)
    assert done == make.base + _entries(*NODES) + (
        "dev4: /dev/nvidia-caps/nvidia-cap1,mode=0400\ndev5: /dev/nvidia-caps/nvidia-cap2,mode=0444\n"
    )


def test_a_node_that_is_not_wanted_and_not_there_is_not_made_an_obstacle_to_the_start(make: Any) -> None:
    text = make.conf(195, 509, names=(*NODES[1:], "nvidia-modeset"))
    assert _after(make, text) == make.base + _entries(*NODES)


def test_a_wanted_node_that_is_not_there_stops_the_migration(make: Any) -> None:
    made = _made(make, make.conf(195, 509), nodes=make.nodes(509)[:-1])
    assert "/dev/nvidia-uvm-tools can't become a dev[n]: /dev/nvidia-uvm-tools is absent" in str(made.blocked)
    assert made.edits == ()


def test_a_mount_at_another_path_stops_the_migration(make: Any) -> None:
    text = make.conf(195, 509) + "lxc.mount.entry: /dev/nvidia0 dev/gpu none bind,optional,create=file\n"
    assert "mounts /dev/nvidia0 at another path" in str(_made(make, text).blocked)


def test_an_unprivileged_container_is_migrated_with_its_useless_rules(make: Any) -> None:
    text = "unprivileged: 1\n" + make.conf(195, 511)
    assert _after(make, text) == "unprivileged: 1\n" + make.base + _entries(*NODES)


@pytest.mark.parametrize(
    ("version", "manner"), [(NEW, "dev0: /dev/nvidia0,mode=0666"), ("5.0.6", "lxc.mount.entry: /dev/nvidia0 ")]
)
def test_a_container_with_neither_gets_entries_where_the_host_knows_them(
    make: Any, version: str, manner: str
) -> None:
    host = make.host(make.base, pve_container=version)
    made = plan.conf_plan(conf.parse(make.base), host, make.container(1))
    assert made.blocked is None
    assert f"\n{manner}" in edits.edit(conf.parse(make.base), made.edits).render().decode()


def test_without_a_known_version_entries_are_used_and_the_doubt_is_said(make: Any) -> None:
    made = plan.conf_plan(conf.parse(make.base), make.host(make.base), make.container(1))
    assert len(made.edits) == 4
    assert "the version of pve-container isn't known" in made.warnings[0]
