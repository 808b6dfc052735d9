"""The NVIDIA driver on the host: its modules, loaded and on disk, DKMS, Secure Boot, and its GPUs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from inventory.root import at
from provision.devices.facts import Content, Gpu, Module, NodeKind, State
from provision.devices.observe import look, program

ALWAYS: Final = ("nvidia", "nvidia_uvm")
WHEN_LOADED: Final = ("nvidia_modeset", "nvidia_drm", "nouveau")

_FILE: Final = re.compile(
    # Debian installs nvidia.ko as nvidia-current.ko or nvidia-current-open.ko, nvidia-uvm.ko as nvidia-current-uvm.ko;
    # the module inside keeps its name. nvidiafb and nvidia-wmi-ec-backlight are other drivers.
    r"(?P<base>nvidia|nouveau)(?:_(?:current|tesla|legacy|open|[0-9]+(?:xx)?))*(?P<part>_(?:uvm|modeset|drm))?\Z"
)
_FLAVOURS: Final = {"Dual MIT/GPL": "open", "NVIDIA": "proprietary"}
"""License of nvidia.ko (README of the driver, chapter on open modules)."""
_TOLD_BY: Final = ("nvidia", "nvidia_modeset")
"""Modules whose license differs between the flavours: nvidia_uvm and nvidia_drm are Dual MIT/GPL in both."""


def modules(kernel: str) -> tuple[Module, ...]:
    """`ALWAYS`, and `WHEN_LOADED` where they are. modinfo is asked once, for those that have a file."""
    folder = f"/lib/modules/{kernel}"
    dependencies = look.content(f"{folder}/modules.dep", 16 << 20)
    files = files_on_disk(dependencies.text)
    loaded = {name for name in (*ALWAYS, *WHEN_LOADED) if _loaded(name)}
    names = [name for name in (*ALWAYS, *WHEN_LOADED) if name in ALWAYS or name in loaded]
    paths = {name: posixpath.join(folder, files[name]) for name in names if name in files and name != "nouveau"}
    told = program.output(("modinfo", *map(at, paths.values()))) if paths else None
    about = modinfo(told[1]) if told else {}
    found = []
    for name in names:
        fields = about.get(at(paths[name]), {}) if name in paths else {}
        found.append(
            Module(
                name,
                name in loaded,
                look.word(f"/sys/module/{name}/version"),
                name in files if dependencies.state is State.PRESENT else None,
                fields.get("version", ""),
                _FLAVOURS.get(fields.get("license", ""), "") if name in _TOLD_BY else "",
            )
        )
    return tuple(found)


def _loaded(name: str) -> bool:
    return look.node(f"/sys/module/{name}", follow=True).kind is NodeKind.DIRECTORY


def files_on_disk(text: str) -> Mapping[str, str]:
    """Module name -> file below /lib/modules/KERNEL, from modules.dep; a plain name goes before a distribution's."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if "nv" not in line and "nouveau" not in line:
            continue
        path, colon, _ = line.partition(":")
        stem, dot, _ = posixpath.basename(path).partition(".ko")
        match = _FILE.match(stem.replace("-", "_")) if colon and dot else None
        if match is None:
            continue
        name = match["base"] + (match["part"] or "")
        if name not in found or stem.replace("-", "_") == name:
            found[name] = path
    return found


def modinfo(text: str) -> Mapping[str, Mapping[str, str]]:
    """File name -> the first value of each field, from modinfo's output for any number of modules."""
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if not colon or not key.isalnum():
            continue
        if key == "filename":
            fields = found.setdefault(value.strip(), {})
        fields.setdefault(key, value.strip())
    return found


def dkms() -> Content:
    """What `dkms status` says, from the tree of links that it reads itself.

    The program compares every module file with the installed one, which took 0.8 s here for two small modules;
    it is asked only where its tree lies elsewhere (`dkms_tree` in framework.conf).
    """
    tree = "/var/lib/dkms"
    kind = look.node(tree, follow=True).kind
    if kind is NodeKind.DIRECTORY:
        lines = [line for name in look.names(tree) for line in _dkms_lines(tree, name)]
        return Content(State.PRESENT, "".join(f"{line}\n" for line in lines))
    told = program.output(("dkms", "status"))
    if told is None:
        absent = kind is NodeKind.ABSENT and not program.installed("dkms")
        return Content() if absent else Content(State.UNREADABLE, why="`dkms status` gave no answer")
    status, text = told
    if status != 0:
        return Content(State.UNREADABLE, why=f"`dkms status` ended with exit status {status}")
    return Content(State.PRESENT, text[:65536])


def _dkms_lines(tree: str, name: str) -> list[str]:
    """Lines of one module: TREE/NAME/VERSION/KERNEL/ARCH/module is built, TREE/NAME/kernel-KERNEL-ARCH installed."""
    top = f"{tree}/{name}"
    inner = look.names(top)
    # The link is relative; older versions of dkms wrote the whole path.
    installed = {
        posixpath.normpath(posixpath.join(top, look.link(f"{top}/{entry}")))
        for entry in inner
        if entry.startswith("kernel-")
    }
    lines = []
    for version in inner:
        if look.node(f"{top}/{version}/source", follow=True).kind is not NodeKind.DIRECTORY:
            continue
        built = [
            f"{kernel}/{arch}"
            for kernel in look.names(f"{top}/{version}")
            if re.match(r"[0-9]+\.", kernel)
            for arch in look.names(f"{top}/{version}/{kernel}")
            if look.names(f"{top}/{version}/{kernel}/{arch}/module")
        ]
        for place in built:
            kernel, arch = place.split("/")
            state = "installed" if f"{top}/{version}/{place}" in installed else "built"
            lines.append(f"{name}/{version}, {kernel}, {arch}: {state}")
        if not built:
            lines.append(f"{name}/{version}: added")
    return lines


def headers(kernel: str) -> bool | None:
    """Whether /lib/modules/KERNEL/build leads to a folder; without one DKMS can't build."""
    kind = look.node(f"/lib/modules/{kernel}/build", follow=True).kind
    return None if kind is NodeKind.UNREADABLE else kind is NodeKind.DIRECTORY


def secure_boot() -> bool | None:
    """Whether the firmware checks signatures; None when its variables can't be read."""
    if look.node("/sys/firmware/efi").kind is NodeKind.ABSENT:
        return False
    folder = "/sys/firmware/efi/efivars"
    said = look.content(f"{folder}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", 64)
    if said.state is State.ABSENT:
        # A firmware that doesn't know Secure Boot has no such variable; efivarfs that isn't mounted has none at all.
        return False if look.names(folder) else None
    return secure_boot_is_on(said.text) if said.state is State.PRESENT else None


def secure_boot_is_on(text: str) -> bool | None:
    """The variable: four bytes of attributes, then one byte (UEFI specification, 3.3)."""
    return {"\0": False, "\1": True}.get(text[4:5])


def gpus() -> tuple[Gpu, ...]:
    """The GPUs the driver knows; one whose file can't be read is listed without its minor."""
    folder = "/proc/driver/nvidia/gpus"
    return tuple(gpu(bus, look.content(f"{folder}/{bus}/information", 65536).text) for bus in look.names(folder))


def gpu(bus: str, text: str) -> Gpu:
    """One information file. Older drivers wrote `Blacklisted` for `GPU Excluded` (nv-procfs.c)."""
    fields: dict[str, str] = dict(re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
    minor = fields.get("Device Minor", "")
    excluded = fields.get("GPU Excluded", fields.get("Blacklisted", "No")).lower() == "yes"
    known = re.fullmatch(r"[0-9]{1,7}", minor) is not None
    return Gpu(bus, int(minor) if known else None, fields.get("Model", ""), excluded)
