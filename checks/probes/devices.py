"""Probe: the kernel's side of the driver and what open(2) says about every NVIDIA device node."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

from checks.probes import environment
from checks.probes.writer import Writer, run
from inventory.root import at

CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/run/opengl-driver/lib",
)

_KINDS: Final = (
    (stat.S_ISCHR, "char"),
    (stat.S_ISREG, "regular"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISBLK, "block"),
)


def main(argv: list[str]) -> int:
    return run(body, argv)


def body(out: Writer, _words: tuple[str, ...]) -> None:
    """Files first: they cannot hang on a GPU; then the nodes one by one."""
    environment.read(out)
    for key, path in (
        ("proc_devices", "/proc/devices"),
        ("driver_version", "/proc/driver/nvidia/version"),
        ("module_version", "/sys/module/nvidia/version"),
        ("uid_map", "/proc/self/uid_map"),
    ):
        _text(out, key, path)
    out.result("uvm_module", value=Path(at("/sys/module/nvidia_uvm")).is_dir())
    out.calling("read /proc/driver/nvidia/gpus")
    cards = _cards()
    out.result("cards", value=cards)
    out.result("libraries", value=_libraries())
    minors = {card["minor"] for card in cards if card["minor"] is not None} | _minors_in_dev()
    names = (*CONTROL, *(f"nvidia{minor}" for minor in sorted(minors)))
    out.result("names", value=list(names))
    for name in names:
        out.calling(f"open /dev/{name}")
        out.result(f"node:{name}", value=node(f"/dev/{name}"))


def _text(out: Writer, key: str, path: str) -> None:
    try:
        out.result(key, value=Path(at(path)).read_bytes()[:65536].decode("utf-8", "replace"))
    except OSError as problem:
        out.result(key, rc=problem.errno or errno.EIO, text=_name(problem))


def _name(problem: OSError) -> str:
    return errno.errorcode.get(problem.errno or 0, str(problem.errno))


def node(path: str) -> dict[str, Any]:
    """stat and open of one node: {kind, major, minor, mode, uid, gid, size, open}; `open` is "ok" or an errno name.

    Opened blocking: with O_NONBLOCK the driver puts the real open off and success means nothing (nv.c).
    """
    try:
        found = os.stat(at(path))  # noqa: PTH116 - the os attribute is the door (also the lab's)
    except OSError as problem:
        return {"kind": "absent" if problem.errno == errno.ENOENT else "unreadable", "open": _name(problem)}
    kind = next((word for test, word in _KINDS if test(found.st_mode)), "other")
    seen: dict[str, Any] = {
        "kind": kind,
        "major": os.major(found.st_rdev) if kind == "char" else None,
        "minor": os.minor(found.st_rdev) if kind == "char" else None,
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "size": found.st_size,
    }
    if kind != "char":
        return {**seen, "open": "not tried"}
    try:
        os.close(os.open(at(path), os.O_RDWR | os.O_CLOEXEC))
    except OSError as problem:
        return {**seen, "open": _name(problem)}
    return {**seen, "open": "ok"}


def _minors_in_dev() -> set[int]:
    try:
        names = os.listdir(at("/dev"))  # noqa: PTH208
    except OSError:
        return set()
    return {int(name[6:]) for name in names if re.fullmatch(r"nvidia\d{1,4}", name)}


def _cards() -> list[dict[str, Any]]:
    """[{bus_id, minor, uuid, model}] of every card the kernel driver owns, also those not given to this container."""
    folder = Path(at("/proc/driver/nvidia/gpus"))
    cards = []
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    for name in names:
        try:
            text = (folder / name / "information").read_text("utf-8", "replace")
        except OSError:
            text = ""
        fields = {
            key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
        }
        minor = fields.get("Device Minor", "")
        cards.append(
            {
                "bus_id": name,
                "minor": int(minor) if minor.isdigit() else None,
                "uuid": fields.get("GPU UUID", ""),
                "model": fields.get("Model", ""),
            }
        )
    return cards


def _libraries() -> dict[str, list[str]]:
    """Versions of the driver's user space libraries by file name: {"libcuda.so": ["595.45.04"], ...}."""
    versions: dict[str, set[str]] = {}
    for folder in LIBRARY_FOLDERS:
        for name in ("libcuda.so", "libnvidia-ml.so"):
            for path in Path(at(folder)).glob(f"{name}.*.*"):
                version = path.name[len(name) + 1 :]
                if re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
                    versions.setdefault(name, set()).add(version)
    return {name: sorted(found) for name, found in versions.items()}
