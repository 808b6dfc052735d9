"""The files of a freshly installed lab node and its container, laid out on disk."""

from __future__ import annotations

import compileall
import json
import shutil
import sys
from pathlib import Path
from typing import Final

import gpuctl
import gpuctl.lab
from gpuctl.lab import kernel, namespaces
from gpuctl.lab.blueprint import SITE
from gpuctl.lab.state import NODE, VMID, LabDir

_PROGRAMS: Final = (
    "pct", "nvidia-modprobe", "modprobe", "lsmod", "pveversion", "reboot", "lxc-cgroup", "dkms", "modinfo", "dmesg",
    "dpkg-query", "systemctl",
)  # fmt: skip
_PACKAGES: Final = ("gpuctl", "provision", "checks", "bench", "inventory")
_PASSWD: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_RELEASE: Final = (
    'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nNAME="Debian GNU/Linux"\nVERSION_ID="13"\nID=debian\n'
)

_CONF_HEAD: Final = f"""#GPU container of the lab
#engine and weights are gpuctl's
arch: amd64
cores: 16
hostname: ct{VMID}
memory: 65536
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:4C:AB:00,ip=dhcp,type=veth
onboot: 1
ostype: debian
rootfs: local-lvm:vm-{VMID}-disk-0,size=64G
swap: 0
"""
_RULES: Final = "lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 511:* rwm\n"
_SNAPSHOT: Final = f"""
[fresh]
#right after the driver was installed
arch: amd64
cores: 16
hostname: ct{VMID}
memory: 32768
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:4C:AB:00,ip=dhcp,type=veth
ostype: debian
rootfs: local-lvm:vm-{VMID}-disk-0,size=64G
snaptime: 1764000000
swap: 0
{_RULES}"""


def container_conf() -> str:
    """200.conf of a node set up by hand for the majors of the first boot, with a snapshot after the main section."""
    nodes = (*(f"nvidia{index}" for index in range(kernel.GPUS)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    entries = "".join(
        f"lxc.mount.entry: /dev/{name} dev/{name} none bind,optional,create=file\n" for name in nodes
    )
    return _CONF_HEAD + _RULES + entries + _SNAPSHOT


def install(lab: LabDir, token: str) -> None:
    """Lay out host and container. Files that are there already stay, so a later start keeps what a user changed."""
    # Lab processes write no bytecode (their view is read-only), so the stand-in's is made here; without write
    # access to our own folder it costs each of them some 10 ms more.
    compileall.compile_dir(str(site_folder()), quiet=2)
    for rootfs, name in ((lab.host_rootfs, NODE), (lab.ct_rootfs(), f"ct{VMID}")):
        _install_machine(rootfs, name, token)
    host = lab.host_rootfs
    lab.conf_dir.mkdir(parents=True, exist_ok=True)
    _link(host / "etc/pve/lxc", f"nodes/{NODE}/lxc")
    _link(host / "etc/pve/local", f"nodes/{NODE}")
    conf = lab.conf_dir / f"{VMID}.conf"
    if not conf.exists():
        conf.write_text(container_conf())
        conf.chmod(0o640)
    for folder in ("run/lock/lxc", "etc/systemd/system"):
        (host / folder).mkdir(parents=True, exist_ok=True)


def _install_machine(rootfs: Path, name: str, token: str) -> None:
    for folder in (
        "dev", "proc", "root", "run", "sys/module", "tmp", "var/lib/gpuctl", "var/cache/gpuctl", "var/log", "var/tmp",
        "usr", "opt/gpuctl-lab/bin", "etc/gpuctl-lab",
    ):  # fmt: skip
        (rootfs / folder).mkdir(parents=True, exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    gpu_list = kernel.gpus(token)
    texts = {
        "etc/hostname": f"{name}\n",
        "etc/hosts": f"127.0.0.1 localhost {name}\n",
        "etc/passwd": _PASSWD,
        "etc/group": "root:x:0:\nwww-data:x:33:\nvideo:x:44:\nnogroup:x:65534:\n",
        "etc/os-release": _RELEASE,
        "etc/gpuctl-lab/gpus.json": json.dumps(gpu_list, indent=1) + "\n",
        **{f"proc/driver/nvidia/{path}": text for path, text in kernel.driver_files(gpu_list).items()},
    }
    for path, text in texts.items():
        if not (rootfs / path).exists():
            (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
            (rootfs / path).write_text(text)
    _install_tools(rootfs, host=name == NODE)


def _install_tools(rootfs: Path, *, host: bool) -> None:
    """python3 for the machine; on the host also the programs of a Proxmox node. Renewed at every start."""
    folder = rootfs / "opt/gpuctl-lab/bin"
    python = namespaces.tools_python()
    for name in ("python3", "python"):
        _link(folder / name, python)
    if not host:
        return
    source = (Path(__file__).parent / "bin" / "client.py").read_text()
    program = folder / "client.py"
    # -I and -S: these programs need nothing but the standard library, and start in half the time.
    program.write_text(f"#!{python} -IS\n{source}")
    program.chmod(0o755)
    for name in _PROGRAMS:
        _link(folder / name, "client.py")


def place_engine(ct: Path, isolation: str) -> None:
    """/opt/engine: in namespaces a mount point, in plain mode a link to the virtual environment this runs from."""
    place = ct / "opt/engine"
    if isolation == "plain":
        _link(place, sys.prefix)
        return
    if place.is_symlink():
        place.unlink()
    place.mkdir(parents=True, exist_ok=True)


def site_folder() -> Path:
    """The folder with the stand-in's sitecustomize.py."""
    return Path(str(gpuctl.lab.__file__)).parent / "driver" / "site"


def binds(*, container: bool) -> tuple[tuple[str, str], ...]:
    """What a machine in namespaces sees of this installation: interpreters, our sources, the stand-in, the engine."""
    found = []
    folders = {sys.base_prefix, str(Path(namespaces.tools_python()).parent.parent), sys.prefix}
    home = Path(str(gpuctl.__file__)).parent.parent
    folders.update(str(home / name) for name in _PACKAGES if (home / name).is_dir())
    system = tuple(f"/{name}" for name in ("usr", "bin", "sbin", "lib", "lib64", "nix"))
    for folder in sorted(folders):
        if folder not in {"/", *system} and not folder.startswith(tuple(f"{name}/" for name in system)):
            found.append((folder, folder))
    if site_folder().is_dir():
        found.append((str(site_folder()), SITE))
    if container:
        found.append((sys.prefix, "/opt/engine"))
    return tuple(found)


def _link(place: Path, target: str) -> None:
    if place.is_symlink() and str(place.readlink()) == target:
        return
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    place.symlink_to(target)
