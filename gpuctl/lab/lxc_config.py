"""Proxmox's configuration of a container, written out as the one LXC reads: pure, the text decides everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuctl.lab.container import BASE_RULES, passthrough_rule, unprivileged
from gpuctl.lab.pve.backend import Passthrough
from gpuctl.lab.pve.conf import Conf

FIRST_ID: Final = 100_000
"""What root of an unprivileged container is outside."""
_MAP: Final = tuple(("lxc.idmap", f"{kind} 0 {FIRST_ID} 65536") for kind in "ug")
_DROPPED: Final = "mac_admin mac_override sys_time sys_module sys_rawio"
"""Capabilities a privileged container does not get (lxc's common.conf)."""

Line = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a container lives. Paths are those of the host's view."""

    home: str
    """Folder of the container: its `rootfs`, where that is `mounted`, and the nodes of `dev[n]` in `passthrough`."""
    cgroup: str
    """Folder below the cgroup root that monitor and container get folders in."""
    init: str
    """First process, a path inside the container."""
    binds: tuple[tuple[str, str], ...] = ()
    """(source, place inside), shown read-only."""
    shm_mib: int = 512
    env: Mapping[str, str] = field(default_factory=dict)


def text(conf: Conf, entries: tuple[Passthrough, ...], place: Place) -> str:
    """The configuration for lxc-start. The order is Proxmox's: rules of `dev[n]` stand before the raw lines."""
    lines = [
        *_machine(conf, place),
        *_rights(conf),
        *_mounts(place),
        *(line for entry in entries for line in _passthrough(entry, place)),
        *conf.main.lxc,
    ]
    return "".join(f"{key} = {value}\n" for key, value in lines)


def idmap(conf: Conf) -> tuple[Line, ...]:
    """The `lxc.idmap` lines in force: the configuration's own, else Proxmox's of an unprivileged container."""
    own = tuple((key, value) for key, value in conf.main.lxc if key == "lxc.idmap")
    return own or (_MAP if unprivileged(conf) else ())


def outside(conf: Conf, kind: str, number: int) -> int:
    """The id on the host of user (`u`) or group (`g`) `number` of the container; itself where nothing maps it."""
    for _, value in idmap(conf):
        words = value.split()
        if len(words) == 4 and words[0] in {kind, "b"} and all(word.isdigit() for word in words[1:]):
            first, host, count = map(int, words[1:])
            if first <= number < first + count:
                return host + number - first
    return number


def restricted(conf: Conf) -> bool:
    """Whether some devices stay forbidden: not in an unprivileged container, nor where a raw line allows all."""
    allowed = [value for key, value in conf.main.lxc if key == "lxc.cgroup2.devices.allow"]
    return not unprivileged(conf) and not any(value.startswith(("a", "c *:*", "c 60:")) for value in allowed)


def passthrough_name(entry: Passthrough) -> str:
    """Name of the node of a `dev[n]` in the folder it is bound from."""
    return f"dev{entry.index}"


def cgroup_dirs(cgroup: str, vmid: int) -> tuple[str, str]:
    """Folders below the cgroup root of the monitor and of the container, whose processes are in `ns` below it."""
    return f"{cgroup}/lxc.monitor/{vmid}", f"{cgroup}/lxc/{vmid}"


def _machine(conf: Conf, place: Place) -> Iterable[Line]:
    monitor, payload = cgroup_dirs(place.cgroup, conf.vmid)
    yield "lxc.uts.name", str(conf.main.values.get("hostname") or f"CT{conf.vmid}")
    yield "lxc.rootfs.path", f"dir:{_escape(place.home)}/rootfs"
    # LXC's own place for it lies below /usr, which is shown inside: the container would see itself in there.
    yield "lxc.rootfs.mount", f"{_escape(place.home)}/mounted"
    yield "lxc.init.cmd", place.init
    # Ours, not systemd: any signal that ends it will do.
    yield "lxc.signal.halt", "SIGTERM"
    # API, Hub and engine are on the loopback of the machine.
    yield "lxc.net.0.type", "none"
    yield "lxc.tty.max", "0"
    yield "lxc.pty.max", "1024"
    yield "lxc.console.path", "none"
    yield "lxc.apparmor.profile", "unconfined"
    yield "lxc.cgroup.relative", "0"
    yield "lxc.cgroup.dir.monitor", monitor
    yield "lxc.cgroup.dir.monitor.pivot", f"{place.cgroup}/lxc.pivot"
    yield "lxc.cgroup.dir.container", payload
    yield "lxc.cgroup.dir.container.inner", "ns"
    for name, value in place.env.items():
        yield "lxc.environment", f"{name}={value}"


def _rights(conf: Conf) -> Iterable[Line]:
    if unprivileged(conf):
        if not any(key == "lxc.idmap" for key, _ in conf.main.lxc):
            yield from _MAP
        # Proxmox's userns.conf.d/01-pve.conf: LXC then skips every specific rule.
        yield "lxc.cgroup2.devices.allow", "a"
        return
    yield "lxc.cap.drop", _DROPPED
    yield "lxc.cgroup2.devices.deny", "a"
    for rule in BASE_RULES:
        yield "lxc.cgroup2.devices.allow", rule


def _mounts(place: Place) -> Iterable[Line]:
    yield "lxc.mount.auto", "cgroup:mixed proc:mixed"
    # A sysfs of its own needs a network namespace of its own. The host's cgroups are covered: LXC mounts its own there.
    yield _entry("/sys", "sys", "rbind,ro")
    yield _entry("tmpfs", "sys/fs/cgroup", "mode=755,size=64k", "tmpfs")
    for source, target in place.binds:
        yield _entry(source, target.lstrip("/"), "rbind,ro")
    for name in ("devices", "driver"):
        yield _entry(f"{place.home}/rootfs/proc/{name}", f"proc/{name}", "bind,ro")
    yield _entry(f"{place.home}/rootfs/sys/module", "sys/module", "bind,ro,optional")
    yield _entry("tmpfs", "dev/shm", f"size={place.shm_mib}m,mode=1777,create=dir", "tmpfs")
    yield _entry("tmpfs", "run", "mode=755", "tmpfs")


def _passthrough(entry: Passthrough, place: Place) -> Iterable[Line]:
    yield "lxc.cgroup2.devices.allow", passthrough_rule(entry)
    source = f"{place.home}/passthrough/{passthrough_name(entry)}"
    yield _entry(source, entry.path.lstrip("/"), "bind,create=file")


def _entry(source: str, target: str, options: str, kind: str = "none") -> Line:
    return "lxc.mount.entry", f"{_escape(source)} {_escape(target)} {kind} {options} 0 0"


def _escape(path: str) -> str:
    """Blanks as fstab writes them."""
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
