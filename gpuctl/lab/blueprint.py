"""What a lab machine is made of, and the mounts that turn its folder into a root file system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

TOOLS: Final = "/opt/gpuctl-lab/bin"
SITE: Final = "/opt/gpuctl-lab/site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a machine is made of. Paths are the daemon's own."""

    name: str
    rootfs: Path
    """Folder that is the machine's root (namespaces) or its GPUCTL_ROOT (plain)."""
    site: Path
    """Folder put on PYTHONPATH: the stand-in for the driver."""
    token: str
    shm_mib: int = 512
    binds: tuple[tuple[str, str], ...] = ()
    """(source, place inside) pairs, mounted read-only."""
    shared: tuple[tuple[str, str], ...] = ()
    """The same, writable; only with namespaces."""
    uptime_s: float = 0.0
    """How long the machine is said to be up at this moment."""
    env: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""
    """Level 1: the machine's folder below /sys/fs/cgroup; it is then the real root's, in no user namespace."""


def mounts(blueprint: Blueprint) -> list[dict[str, Any]]:
    """The mounts that turn a rootfs folder into a machine, in order."""
    rootfs = blueprint.rootfs
    entries = [_bind(source, place) for source, place in shown(blueprint)]
    entries += [
        {"kind": "proc", "dst": "/proc"},
        # Every kernel makes the empty folder /proc/driver, so there is always something to mount on.
        *(
            _bind(str(rootfs / "proc" / name), f"/proc/{name}")
            for name in ("devices", "driver", "sys/kernel/random/boot_id")
        ),
        _bind("/sys", "/sys"),
        _bind(str(rootfs / "sys" / "module"), "/sys/module") | {"optional": True},
        *(_bind(f"/dev/{name}", f"/dev/{name}") | {"ro": False} for name in _DEV if Path(f"/dev/{name}").exists()),
        {"kind": "tmpfs", "dst": "/dev/shm", "data": f"mode=1777,size={blueprint.shm_mib}m"},
        {"kind": "devpts", "dst": "/dev/pts", "data": "newinstance,ptmxmode=0666,mode=620", "optional": True},
        *(_bind(source, place) | {"ro": False} for source, place in blueprint.shared),
        *(_FOR_LXC if blueprint.cgroup else ()),
    ]
    return entries


def shown(blueprint: Blueprint) -> tuple[tuple[str, str], ...]:
    """What a machine sees of the real one, read-only, as (source, place inside): its system and the binds."""
    folders = ((folder, folder) for folder in _system_folders(blueprint.rootfs))
    files = ((f"/etc/{name}", f"/etc/{name}") for name in _ETC if Path(f"/etc/{name}").exists())
    return (*folders, *files, *blueprint.binds)


_FOR_LXC: Final[tuple[dict[str, Any], ...]] = (
    # A kernel refuses to mount cgroup2 right on top of cgroup2, so something else goes between.
    {"kind": "tmpfs", "dst": "/sys/fs/cgroup", "data": "mode=755,size=64k"},
    {"kind": "cgroup2", "dst": "/sys/fs/cgroup"},
    # A user namespace may mount a proc of its own only where it sees one that nothing is mounted over.
    {"kind": "proc", "dst": "/var/lib/lxc/.proc", "whole": True},
)
"""As on a pure cgroup2 host: LXC loads the device program only where it finds that layout."""


_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "mime.types", "nsswitch.conf", "pki", "protocols", "resolv.conf", "services", "ssl",
)  # fmt: skip
_DEV: Final = ("null", "zero", "full", "random", "urandom", "tty")


def _bind(source: str, place: str) -> dict[str, Any]:
    return {"kind": "bind", "src": source, "dst": place, "ro": True}


def _system_folders(rootfs: Path) -> list[str]:
    """Folders of the machine's own system to show inside; links such as /bin -> usr/bin are copied as links."""
    found = []
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix"):
        real, shown = Path("/", name), rootfs / name
        if real.is_symlink():
            if not shown.is_symlink():
                shown.symlink_to(real.readlink())
        elif real.is_dir():
            found.append(str(real))
    return found
