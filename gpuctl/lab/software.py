"""What is installed on the lab host: the driver as DKMS keeps it, Proxmox's packages, and the programs that tell."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from gpuctl.lab.control import Call
from gpuctl.lab.kernel import DRIVER
from gpuctl.lab.machine import Node

PACKAGES: Final = {"pve-manager": "9.2.11", "pve-container": "6.1.10"}
_DKMS: Final = "var/lib/dkms"
_STATUS: Final = "var/lib/dpkg/status"
_LOG: Final = "dev/kmsg"
_MODULES: Final = {"nvidia": "nvidia", "nvidia_uvm": "nvidia-uvm", "nvidia_modeset": "nvidia-modeset"}
_LICENSE: Final = "Dual MIT/GPL"
"""Of the open kernel modules; those without source say NVIDIA."""


def install(host: Path) -> None:
    """The files other programs read too. What is there already stays, so that a story can change it."""
    status = host / _STATUS
    if not status.exists():
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text("".join(_stanza(name, version) for name, version in PACKAGES.items()))
    tree, kernel = host / _DKMS / "nvidia", f"{os.uname().release}/{os.uname().machine}"
    if not tree.exists():
        built = tree / DRIVER / kernel / "module"
        built.mkdir(parents=True)
        (built / "nvidia.ko").touch()
        (tree / DRIVER / "source").mkdir()
        (tree / f"kernel-{kernel.replace('/', '-')}").symlink_to(f"{DRIVER}/{kernel}")
    # Not the real one: what the real kernel logs is not about the lab.
    (host / _LOG).touch()


def dkms(call: Call, node: Node) -> int:
    """`dkms status`: the tree as it is."""
    if call.words[:1] != ("status",):
        call.error("Error! Unknown action specified.\n")
        return 4
    tree = node.lab.host_rootfs / _DKMS
    for built in sorted(tree.glob("*/*/*/*/module")):
        name, version, kernel, arch = built.relative_to(tree).parts[:4]
        link = tree / name / f"kernel-{kernel}-{arch}"
        state = "installed" if link.is_symlink() and link.resolve() == built.parent.resolve() else "built"
        call.out(f"{name}/{version}, {kernel}, {arch}: {state}\n")
    return 0


def modinfo(call: Call, node: Node) -> int:
    """`modinfo [-k KERNEL] [-F FIELD] MODULE`: of the modules that DKMS has installed for that kernel."""
    options, names = _split(
        call.words, {"-k": "kernel", "--set-version": "kernel", "-F": "field", "--field": "field"}
    )
    kernel, field = options.get("kernel", os.uname().release), options.get("field", "")
    rc = 0
    for name in names:
        file = _MODULES.get(name.replace("-", "_"))
        if file is None or not any((node.lab.host_rootfs / _DKMS / "nvidia").glob(f"kernel-{kernel}-*")):
            call.error(f"modinfo: ERROR: Module {name} not found.\n")
            rc = 1
            continue
        values = {
            "filename": f"/lib/modules/{kernel}/updates/dkms/{file}.ko",
            "version": DRIVER,
            "license": _LICENSE,
            "name": file.replace("-", "_"),
            "vermagic": f"{kernel} SMP preempt mod_unload modversions ",
        }
        if field:
            call.out(f"{values[field]}\n" if field in values else "")
        else:
            call.out("".join(f"{key + ':':<16}{value}\n" for key, value in values.items()))
    return rc


def dmesg(call: Call, node: Node) -> int:
    """The texts of the lab host's log, empty unless a story wrote one: records as /dev/kmsg has them."""
    try:
        lines = (node.lab.host_rootfs / _LOG).read_text(errors="replace").splitlines()
    except OSError as error:
        call.error(f"dmesg: read kernel buffer failed: {error.strerror}\n")
        return 1
    call.out("".join(f"{line.partition(';')[2] or line}\n" for line in lines))
    return 0


def dpkg_query(call: Call, node: Node) -> int:
    """`dpkg-query -W [-f FORMAT] PACKAGE...`."""
    names = {"-f": "format", "--showformat": "format"}
    options, words = _split(tuple(word for word in call.words if word not in ("-W", "--show")), names)
    shown = options.get("format", "${Package}\t${Version}\n").replace("\\n", "\n").replace("\\t", "\t")
    try:
        known = _stanzas((node.lab.host_rootfs / _STATUS).read_text())
    except OSError:
        known = {}
    rc = 0
    for name in words:
        if name in known:
            fields = known[name] | {"db:Status-Status": known[name].get("Status", "").rpartition(" ")[2]}
            call.out(re.sub(r"\$\{([^};]+)(?:;-?\d+)?\}", lambda match: fields.get(match[1], ""), shown))  # noqa: B023
        else:
            call.error(f"dpkg-query: no packages found matching {name}\n")
            rc = 1
    return rc


def _stanza(name: str, version: str) -> str:
    return (
        f"Package: {name}\nStatus: install ok installed\nPriority: optional\nSection: admin\n"
        f"Architecture: all\nVersion: {version}\nDescription: of the lab\n\n"
    )


def _stanzas(text: str) -> dict[str, dict[str, str]]:
    found = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", stanza, re.MULTILINE))
        if "Package" in fields:
            found[fields["Package"]] = fields
    return found


def _split(words: tuple[str, ...], names: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Options that have a value, by their meaning, and the other words; an option that is not known is left out."""
    options, plain, rest = dict[str, str](), list[str](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        short = word[:2]
        if name in names:
            options[names[name]] = value if equals else (rest.pop(0) if rest else "")
        elif short in names and not word.startswith("--"):
            options[names[short]] = word[2:].removeprefix("=")
        elif not word.startswith("-"):
            plain.append(word)
    return options, plain
