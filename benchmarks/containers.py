"""A thousand container configurations that differ as real ones do, the same at every run."""

from __future__ import annotations

import random
from dataclasses import dataclass

ALLOW = "lxc.cgroup2.devices.allow"
LEGACY = "lxc.cgroup.devices.allow"
UVM = 509
"""Major of nvidia-uvm at this boot."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The text of one /etc/pve/lxc/VMID.conf, and how many GPUs its container is to have."""

    vmid: int
    gpus: int
    text: str


def samples(count: int = 1000) -> tuple[Sample, ...]:
    """40 to 60 lines each; half with a stale major, a fourth by dev[n], half with a snapshot, some pending or v1."""
    chance = random.Random(20261130)
    return tuple(_sample(number, chance) for number in range(count))


def _sample(number: int, chance: random.Random) -> Sample:
    vmid, gpus = 100 + number, chance.choice((1, 2, 4, 8))
    uvm = chance.choice((508, 510, 511, 234, 238)) if number % 2 == 0 else UVM
    lines = _plain(vmid, number, chance)
    lines += _devices(number, gpus, uvm)
    if number % 14 == 1:
        lines += ["", "[pve:pending]", f"memory: {chance.choice((8192, 16384))}"]
    if number % 2:
        lines += _snapshot(vmid, number)
    while len(lines) < 42:
        lines.insert(2, f"#note {len(lines)} on {vmid}")
    return Sample(vmid, gpus, "\n".join(lines) + "\n")


def _plain(vmid: int, number: int, chance: random.Random) -> list[str]:
    mac = f"BC:24:11:{number >> 8:02X}:{number & 255:02X}:{chance.randrange(256):02X}"
    address = f"10.0.{number >> 8}.{number & 255}/24"
    return [
        f"#Container {vmid} of team {number % 17}",
        f"#made 2026-0{1 + number % 9}-1{number % 10} by hand",
        "arch: amd64",
        f"cores: {chance.choice((4, 8, 16, 32))}",
        "features: nesting=1",
        f"hostname: gpu-{vmid}.example.org",
        f"memory: {chance.choice((4096, 65536, 131072))}",
        f"mp0: /srv/models/{number},mp=/models,ro=1",
        "nameserver: 10.0.0.1",
        f"net0: name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,hwaddr={mac},ip={address},type=veth",
        "onboot: 1",
        "ostype: debian",
        f"rootfs: local-zfs:subvol-{vmid}-disk-0,size={chance.choice((16, 64, 128))}G",
        "searchdomain: example.org",
        "startup: order=2,up=30",
        "swap: 512",
        f"tags: gpu;team{number % 17}",
        "timezone: Europe/Vienna",
        *(["unprivileged: 1"] if number % 5 == 0 else []),
    ]


def _devices(number: int, gpus: int, uvm: int) -> list[str]:
    names = [f"nvidia{minor}" for minor in range(gpus)] + ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    names += ["nvidia-modeset"] if number % 3 == 0 else []
    if number % 4 == 3:
        return [f"dev{index}: /dev/{name},gid=44,mode=0666" for index, name in enumerate(names)]
    key = LEGACY if number % 11 == 0 else ALLOW
    return [
        *(f"{key}: c {major}:{minor} rwm" for major, minor in ((195, "*"), (uvm, "*"), (226, "*"), (10, 200))),
        *(f"lxc.mount.entry: /dev/{name} dev/{name} none bind,optional,create=file" for name in names),
        "lxc.mount.entry: /dev/net/tun dev/net/tun none bind,create=file",
        "lxc.apparmor.profile: unconfined",
    ]


def _snapshot(vmid: int, number: int) -> list[str]:
    return [
        "",
        f"[before_{number % 13}]",
        "#as it was",
        "arch: amd64",
        f"hostname: gpu-{vmid}.example.org",
        "memory: 4096",
        "ostype: debian",
        f"rootfs: local-zfs:subvol-{vmid}-disk-0,size=16G",
        f"snaptime: {1700000000 + number * 77}",
        "swap: 512",
        f"{ALLOW}: c 195:* rwm",
        f"{ALLOW}: c 511:* rwm",
    ]
