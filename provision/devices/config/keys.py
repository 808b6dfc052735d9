"""Which raw `lxc.*` keys the configuration parser of Proxmox VE accepts (pve-container 6.1.10)."""

from __future__ import annotations

from typing import Final

_PLAIN: Final = frozenset(
    f"lxc.{name}"
    for name in [
        "apparmor.allow_incomplete",
        "apparmor.allow_nesting",
        "apparmor.profile",
        "apparmor.raw",
        "arch",
        "autodev",
        "cap.drop",
        "cap.keep",
        "console.logfile",
        "console.path",
        "devtty.dir",
        "environment",
        "environment.hooks",
        "environment.runtime",
        "group",
        "hook.autodev",
        "hook.clone",
        "hook.destroy",
        "hook.mount",
        "hook.post-stop",
        "hook.pre-mount",
        "hook.pre-start",
        "hook.start",
        "hook.stop",
        "hook.version",
        "idmap",
        "include",
        "init.cmd",
        "init.cwd",
        "init.gid",
        "init.groups",
        "init.uid",
        "kmsg",
        "log.file",
        "log.level",
        "mount.auto",
        "mount.entry",
        "mount.fstab",
        "pty.max",
        "rootfs.mount",
        "seccomp.notify.cookie",
        "seccomp.notify.proxy",
        "seccomp.profile",
        "selinux.context",
        "signal.halt",
        "signal.reboot",
        "signal.stop",
        "start.auto",
        "start.delay",
        "start.order",
        "sysctl.fs.mqueue",
        "sysctl.kernel.msgmax",
        "sysctl.kernel.msgmnb",
        "sysctl.kernel.msgmni",
        "sysctl.kernel.sem",
        "sysctl.kernel.shm_rmid_forced",
        "sysctl.kernel.shmall",
        "sysctl.kernel.shmmax",
        "sysctl.kernel.shmmni",
        "tty.max",
        "uts.name",
    ]
)
_RENAMED: Final = frozenset(
    f"lxc.{name}"
    for name in [
        "aa_allow_incomplete",
        "aa_profile",
        "console",
        "devttydir",
        "haltsignal",
        "id_map",
        "init_cmd",
        "logfile",
        "loglevel",
        "mount",
        "network.flags",
        "network.hwaddr",
        "network.ipv4",
        "network.ipv4.gateway",
        "network.ipv6",
        "network.ipv6.gateway",
        "network.link",
        "network.mtu",
        "network.name",
        "network.script.down",
        "network.script.up",
        "network.type",
        "pts",
        "rebootsignal",
        "se_context",
        "seccomp",
        "stopsignal",
        "tty",
        "utsname",
    ]
)
_FAMILIES: Final = ("lxc.cgroup.", "lxc.cgroup2.", "lxc.prlimit.", "lxc.net.", "lxc.limit.")


def accepted(key: str) -> bool:
    """True when the parser keeps a line with this raw key; others it warns about and drops on the next write."""
    return key in _PLAIN or key in _RENAMED or key.startswith(_FAMILIES)


def deprecated(key: str) -> bool:
    """True when the key is kept but warned about: old names, and cgroup v1, which a cgroup2 host ignores."""
    return key in _RENAMED or key.startswith(("lxc.cgroup.", "lxc.limit."))
