"""The lab's second level: real device nodes and real LXC, so that the kernel itself refuses or lets in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuctl.lab import lxc, lxc_config, namespaces
from gpuctl.lab.blueprint import Blueprint, shown
from gpuctl.lab.container import passthrough_rule, unprivileged
from gpuctl.lab.driver import native
from gpuctl.lab.holder import remove_cgroup
from gpuctl.lab.kernel import UVM_MAJORS
from gpuctl.lab.nodes import REAL_NODES, LabNode, NodeFiles
from gpuctl.lab.pve.backend import NodeKind, Passthrough, TaskLog
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.state import VMID, LabDir
from gpuctl.lab.way import Order, Simulated, Way
from inventory.errors import Refused

ISOLATION: Final = "lxc"
PROGRAMS: Final = ("lxc-start", "lxc-attach", "lxc-stop", "lxc-cgroup", "nsenter")
CPUID: Final = 203
"""Major of the processor's cpuid driver: the one pair of minors 0 and 1 that opens on an ordinary machine."""
_INIT: Final = "/opt/gpuctl-lab/bin/init"
_IDS: Final = f"root:{lxc_config.FIRST_ID}:65536\n"


def require() -> None:
    """Raises `Refused` with the first thing this machine lacks for level 1."""
    if os.geteuid() != 0:
        raise Refused(
            "level 1 of the lab needs root: it makes real device nodes", hint="run it as root, or use level 0"
        )
    absent = [name for name in (*PROGRAMS, "cc") if shutil.which(name) is None]
    if absent:
        raise Refused(
            f"level 1 of the lab needs {', '.join(absent)}", hint="apt install lxc uidmap gcc libc6-dev util-linux"
        )


def cgroup_name(token: str) -> str:
    """A lab's folder below the root of the cgroups."""
    return f"gpuctl-lab-{token[:12]}"


def remove_cgroups(token: str) -> None:
    """Remove what a lab left of its cgroups. Its host does that at its end, unless it was killed too."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            remove_cgroup(Path(place) / cgroup_name(token))


@dataclass(frozen=True, slots=True)
class Real:
    """Level 1. The host is a process tree of the real root in namespaces of its own; containers are LXC's."""

    lab: LabDir
    token: str
    uvm_majors: tuple[int, int]
    notes: tuple[str, ...]
    isolation: str = ISOLATION
    level: int = 1
    nodes: NodeFiles = REAL_NODES

    @property
    def env(self) -> Mapping[str, str]:
        return {"GPUCTL_LAB_LEVEL": "1", "GPUCTL_LAB_NATIVE": native.PLACE}

    @property
    def cgroup(self) -> str:
        return cgroup_name(self.token)

    @property
    def lxcpath(self) -> str:
        """LXC's command sockets have their names from it, and labs share the network: so each has its own."""
        return f"/var/lib/lxc/lab-{self.token[:12]}"

    def install(self) -> None:
        etc = self.lab.host_rootfs / "etc"
        # With these the plain lxc-* programs work on the lab host as on a Proxmox host.
        for name, text in (
            ("lxc/lxc.conf", f"lxc.lxcpath = {self.lxcpath}\n"),
            ("subuid", _IDS),
            ("subgid", _IDS),
        ):
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)
        # The real program is there.
        (self.lab.host_rootfs / "opt/gpuctl-lab/bin/lxc-cgroup").unlink(missing_ok=True)
        init = self.lab.ct_rootfs() / _INIT.lstrip("/")
        source = (Path(__file__).parent / "bin" / "init.py").read_text()
        init.write_text(f"#!{namespaces.tools_python()} -IS\n{source}")
        init.chmod(0o755)
        library = native.build(self.lab.ct_rootfs() / native.PLACE.lstrip("/"))
        place = self.lab.host_rootfs / native.PLACE.lstrip("/") / library.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, place)
        for name in ("rootfs", "mounted", "passthrough"):
            (self._home(VMID) / name).mkdir(parents=True, exist_ok=True)

    def start_host(self, blueprint: Blueprint) -> namespaces.View:
        shared = (str(self.lab.ct_rootfs()), f"{self.lxcpath}/{VMID}/rootfs")
        return namespaces.start(
            "namespaces", replace(blueprint, cgroup=self.cgroup, shared=(*blueprint.shared, shared))
        )

    def start_container(self, host: namespaces.View, order: Order, log: TaskLog) -> namespaces.View:
        conf, blueprint = order.conf, order.blueprint
        home, env = self._home(conf.vmid), namespaces.environment(blueprint)
        binds = shown(blueprint)
        _mount_points(blueprint.rootfs, binds)
        _give(blueprint.rootfs, lxc_config.outside(conf, "u", 0), lxc_config.outside(conf, "g", 0))
        shutil.rmtree(home / "passthrough", ignore_errors=True)
        for entry in order.entries:
            self._make_node(conf, entry)
        place = lxc_config.Place(
            home=f"{self.lxcpath}/{conf.vmid}",
            cgroup=self.cgroup,
            init=_INIT,
            binds=binds,
            shm_mib=blueprint.shm_mib,
            env=env,
        )
        (home / "config").write_text(lxc_config.text(conf, order.entries, place), encoding="latin-1")
        made = lxc.start(lxc.Tools(host, self.lxcpath, conf.vmid), self.cgroup, env, log)
        if lxc_config.restricted(conf):
            try:
                lxc.require_enforced(made)
            except BaseException:
                made.kill()
                raise
        return made

    def shutdown(self, view: namespaces.View, timeout_s: float) -> None:
        assert isinstance(view, lxc.Container)
        view.shutdown(timeout_s)

    def hotplug(self, view: namespaces.View, conf: Conf, entry: Passthrough) -> None:
        assert isinstance(view, lxc.Container)
        node = self._make_node(conf, entry)
        view.pass_in(node, entry.path)
        if not unprivileged(conf):
            view.allow(passthrough_rule(entry))

    def _home(self, vmid: int) -> Path:
        return self.lab.host_rootfs / self.lxcpath.lstrip("/") / str(vmid)

    def _make_node(self, conf: Conf, entry: Passthrough) -> Path:
        path = self._home(conf.vmid) / "passthrough" / lxc_config.passthrough_name(entry)
        owner = lxc_config.outside(conf, "u", entry.uid), lxc_config.outside(conf, "g", entry.gid)
        kind = "b" if entry.device.kind is NodeKind.BLOCK else "c"
        self.nodes.write(path, LabNode(entry.device.major, entry.device.minor, entry.mode, *owner, kind))
        return path


def open_way(lab: LabDir, isolation: str, token: str) -> Way:
    """The way a lab of this isolation makes its machines. Raises `Refused` when this machine lacks something."""
    if isolation != ISOLATION:
        return Simulated(lab, isolation)
    require()
    require_nodes(lab.root)
    majors, notes = uvm_majors(lab.root)
    return Real(lab, token, majors, notes)


def uvm_majors(folder: Path) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Majors that nvidia-uvm gets in odd and even boots, and a note when none of them can be opened.

    The second one belongs to a driver that really opens minors 0 and 1: success is then the kernel's own.
    """
    if all(_opens(folder, CPUID, minor) for minor in (0, 1)):
        return (UVM_MAJORS[0], CPUID), ()
    note = f"the driver cpuid ({CPUID}:0 and 1) does not open here, so no node of nvidia-uvm can really be opened"
    return UVM_MAJORS, (note,)


def require_nodes(folder: Path) -> None:
    """Raises `Refused` when device nodes in `folder` cannot be opened, as on a file system mounted nodev."""
    if not _opens(folder, 1, 3):
        raise Refused(f"device nodes in {folder} cannot be opened", hint="take a folder that is not mounted nodev")


def _opens(folder: Path, major: int, minor: int) -> bool:
    path = folder / f".node-{os.getpid()}"
    try:
        REAL_NODES.write(path, LabNode(major, minor))
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _mount_points(root: Path, binds: tuple[tuple[str, str], ...]) -> None:
    for source, target in binds:
        place = root / target.lstrip("/")
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()


def _give(root: Path, uid: int, gid: int) -> None:
    """Give the files of the container's root to it: those of another start may have been shifted otherwise."""
    for folder, names, files in os.walk(root):
        for path in (folder, *(f"{folder}/{name}" for name in (*names, *files))):
            found = os.lstat(path)
            owner = uid + found.st_uid % lxc_config.FIRST_ID, gid + found.st_gid % lxc_config.FIRST_ID
            if owner != (found.st_uid, found.st_gid):
                os.chown(path, *owner, follow_symlinks=False)
