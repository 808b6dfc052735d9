"""The configuration LXC gets for a Proxmox one: recorded text, order included."""

from __future__ import annotations

import pytest

from gpuctl.lab import lxc_config
from gpuctl.lab.container import BASE_RULES
from gpuctl.lab.lxc_config import Place
from gpuctl.lab.pve.backend import DeviceStat, NodeKind, Passthrough
from gpuctl.lab.pve.conf import Conf, parse_conf

PLACE = Place(
    home="/var/lib/lxc/lab/200",
    cgroup="gpuctl-lab-0123",
    init="/sbin/init",
    binds=(("/usr", "/usr"), ("/a b/venv", "/opt/engine")),
    shm_mib=64,
    env={"GPUCTL_LAB": "0123"},
)
UVM = Passthrough(3, "/dev/nvidia-uvm", DeviceStat(NodeKind.CHAR, 509, 0), mode=0o600, uid=5)

HEAD = """\
lxc.uts.name = gpu
lxc.rootfs.path = dir:/var/lib/lxc/lab/200/rootfs
lxc.rootfs.mount = /var/lib/lxc/lab/200/mounted
lxc.init.cmd = /sbin/init
lxc.signal.halt = SIGTERM
lxc.net.0.type = none
lxc.tty.max = 0
lxc.pty.max = 1024
lxc.console.path = none
lxc.apparmor.profile = unconfined
lxc.cgroup.relative = 0
lxc.cgroup.dir.monitor = gpuctl-lab-0123/lxc.monitor/200
lxc.cgroup.dir.monitor.pivot = gpuctl-lab-0123/lxc.pivot
lxc.cgroup.dir.container = gpuctl-lab-0123/lxc/200
lxc.cgroup.dir.container.inner = ns
lxc.environment = GPUCTL_LAB=0123
"""
PRIVILEGED = """\
lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio
lxc.cgroup2.devices.deny = a
lxc.cgroup2.devices.allow = c *:* m
lxc.cgroup2.devices.allow = b *:* m
lxc.cgroup2.devices.allow = c 1:3 rwm
lxc.cgroup2.devices.allow = c 1:5 rwm
lxc.cgroup2.devices.allow = c 1:7 rwm
lxc.cgroup2.devices.allow = c 5:0 rwm
lxc.cgroup2.devices.allow = c 5:1 rwm
lxc.cgroup2.devices.allow = c 5:2 rwm
lxc.cgroup2.devices.allow = c 1:8 rwm
lxc.cgroup2.devices.allow = c 1:9 rwm
lxc.cgroup2.devices.allow = c 136:* rwm
lxc.cgroup2.devices.allow = c 10:229 rwm
"""
UNPRIVILEGED = """\
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536
lxc.cgroup2.devices.allow = a
"""
MOUNTS = """\
lxc.mount.auto = cgroup:mixed proc:mixed
lxc.mount.entry = /sys sys none rbind,ro 0 0
lxc.mount.entry = tmpfs sys/fs/cgroup tmpfs mode=755,size=64k 0 0
lxc.mount.entry = /usr usr none rbind,ro 0 0
lxc.mount.entry = /a\\040b/venv opt/engine none rbind,ro 0 0
lxc.mount.entry = /var/lib/lxc/lab/200/rootfs/proc/devices proc/devices none bind,ro 0 0
lxc.mount.entry = /var/lib/lxc/lab/200/rootfs/proc/driver proc/driver none bind,ro 0 0
lxc.mount.entry = /var/lib/lxc/lab/200/rootfs/sys/module sys/module none bind,ro,optional 0 0
lxc.mount.entry = tmpfs dev/shm tmpfs size=64m,mode=1777,create=dir 0 0
lxc.mount.entry = tmpfs run tmpfs mode=755 0 0
"""
PASSED = """\
lxc.cgroup2.devices.allow = c 509:0 rw
lxc.mount.entry = /var/lib/lxc/lab/200/passthrough/dev3 dev/nvidia-uvm none bind,create=file 0 0
"""


def _conf(text: str) -> Conf:
    return parse_conf(text.encode(), 200)


def test_a_privileged_container_has_the_base_rules_then_dev_n_then_the_raw_lines() -> None:
    conf = _conf(
        "hostname: gpu\nlxc.cgroup2.devices.allow: c 195:* rwm\ndev3: /dev/nvidia-uvm\nlxc.cap.keep = sys_nice\n"
        "[snap]\nlxc.cgroup2.devices.allow: c 511:* rwm\n"
    )

    assert lxc_config.text(conf, (UVM,), PLACE) == HEAD + PRIVILEGED + MOUNTS + PASSED + (
        "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cap.keep = sys_nice\n"
    )


def test_an_unprivileged_container_is_mapped_and_may_open_everything() -> None:
    conf = _conf("hostname: gpu\nunprivileged: 1\n")

    assert lxc_config.text(conf, (UVM,), PLACE) == HEAD + UNPRIVILEGED + MOUNTS + PASSED


def test_a_raw_map_takes_the_place_of_proxmoxs_own() -> None:
    raw = "lxc.idmap = u 0 200000 1000\nlxc.idmap = g 0 200000 1000\n"
    text = lxc_config.text(_conf(f"hostname: gpu\n{raw}"), (), PLACE)

    assert text == HEAD + "lxc.cgroup2.devices.allow = a\n" + MOUNTS + raw


def test_the_base_rules_are_those_of_level_0() -> None:
    assert [line.partition(" = ")[2] for line in PRIVILEGED.splitlines()[2:]] == list(BASE_RULES)


def test_dev_n_may_be_read_only() -> None:
    entry = Passthrough(0, "/dev/x/y", DeviceStat(NodeKind.BLOCK, 8, 1), deny_write=True)

    lines = lxc_config.text(_conf(""), (entry,), PLACE).splitlines()[-2:]

    assert lines == [
        "lxc.cgroup2.devices.allow = b 8:1 r",
        "lxc.mount.entry = /var/lib/lxc/lab/200/passthrough/dev0 dev/x/y none bind,create=file 0 0",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "number", "outside"),
    [
        ("", "u", 5, 5),
        ("unprivileged: 1\n", "u", 0, 100_000),
        ("unprivileged: 1\n", "g", 44, 100_044),
        ("unprivileged: 1\n", "g", 70_000, 70_000),
        ("lxc.idmap: u 0 200000 10\nlxc.idmap: g 0 300000 10\n", "g", 3, 300_003),
        ("lxc.idmap: b 0 200000 10\n", "u", 3, 200_003),
        ("lxc.idmap: nonsense\n", "u", 3, 3),
    ],
)
def test_owners_are_mapped_as_the_container_is(text: str, kind: str, number: int, outside: int) -> None:
    assert lxc_config.outside(_conf(text), kind, number) == outside


@pytest.mark.parametrize(
    ("text", "restricted"),
    [
        ("", True),
        ("lxc.cgroup2.devices.allow: c 195:* rwm\n", True),
        ("lxc.cgroup2.devices.allow: a\n", False),
        ("lxc.cgroup2.devices.allow: c *:* rwm\n", False),
        ("unprivileged: 1\n", False),
        ("[snap]\nlxc.cgroup2.devices.allow: a\n", True),
    ],
)
def test_rules_are_only_checked_where_there_are_any(text: str, restricted: bool) -> None:
    assert lxc_config.restricted(_conf(text)) is restricted
