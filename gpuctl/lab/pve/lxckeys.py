"""Which raw `lxc.*` keys Proxmox's parser lets through, and the warning an old name gets."""

from __future__ import annotations

from typing import Final

_NAMES: Final = (
    "apparmor.profile apparmor.allow_incomplete apparmor.allow_nesting apparmor.raw selinux.context "
    "include arch uts.name signal.halt signal.reboot signal.stop init.cmd init.cwd init.uid init.gid "
    "init.groups pty.max console.path console.logfile tty.max devtty.dir autodev kmsg mount.fstab "
    "mount.entry mount.auto rootfs.mount cap.drop cap.keep seccomp.profile seccomp.notify.proxy "
    "seccomp.notify.cookie idmap log.level log.file start.auto start.delay start.order group "
    "environment environment.runtime environment.hooks hook.autodev hook.pre-start hook.pre-mount "
    "hook.mount hook.start hook.stop hook.post-stop hook.clone hook.destroy hook.version "
    "sysctl.fs.mqueue sysctl.kernel.msgmax sysctl.kernel.msgmnb sysctl.kernel.msgmni "
    "sysctl.kernel.sem sysctl.kernel.shmall sysctl.kernel.shmmax sysctl.kernel.shmmni "
    "sysctl.kernel.shm_rmid_forced "
)
_FIXED: Final = frozenset(f"lxc.{name}" for name in _NAMES.split())
_FAMILIES: Final = ("lxc.cgroup2.", "lxc.prlimit.", "lxc.net.")
_RENAMED: Final = {
    f"lxc.{old}": f"lxc.{new}"
    for old, new in (
        ("aa_profile", "apparmor.profile"),
        ("aa_allow_incomplete", "apparmor.allow_incomplete"),
        ("console", "console.path"),
        ("devttydir", "tty.dir"),
        ("haltsignal", "signal.halt"),
        ("rebootsignal", "signal.reboot"),
        ("stopsignal", "signal.stop"),
        ("id_map", "idmap"),
        ("init_cmd", "init.cmd"),
        ("loglevel", "log.level"),
        ("logfile", "log.file"),
        ("mount", "mount.fstab"),
        ("network.type", "net.INDEX.type"),
        ("network.flags", "net.INDEX.flags"),
        ("network.link", "net.INDEX.link"),
        ("network.mtu", "net.INDEX.mtu"),
        ("network.name", "net.INDEX.name"),
        ("network.hwaddr", "net.INDEX.hwaddr"),
        ("network.ipv4", "net.INDEX.ipv4.address"),
        ("network.ipv4.gateway", "net.INDEX.ipv4.gateway"),
        ("network.ipv6", "net.INDEX.ipv6.address"),
        ("network.ipv6.gateway", "net.INDEX.ipv6.gateway"),
        ("network.script.up", "net.INDEX.script.up"),
        ("network.script.down", "net.INDEX.script.down"),
        ("pts", "pty.max"),
        ("se_context", "selinux.context"),
        ("seccomp", "seccomp.profile"),
        ("tty", "tty.max"),
        ("utsname", "uts.name"),
    )
}


def judge(key: str) -> tuple[str, str]:
    """(verdict, warning): verdict `1` accepted, `0` rejected, else Proxmox's reason for rejecting."""
    if key.startswith("lxc.limit."):
        return "1", f"{key}: lxc.limit.* was renamed to lxc.prlimit.*"
    if key in _RENAMED:
        return "1", f"{key} is deprecated and was renamed to {_RENAMED[key]}"
    if key.startswith("lxc.cgroup."):
        return "1", f"{key} is deprecated, this will be a hard error in the future!"
    if key in ("lxc.rootfs.path", "lxc.rootfs.options"):
        return f"{key} is auto generated from rootfs", ""
    return ("1" if key in _FIXED or key.startswith(_FAMILIES) else "0"), ""
