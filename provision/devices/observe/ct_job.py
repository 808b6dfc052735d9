"""The job inside the container: each device node as the container's processes meet it, and the driver's libraries."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from inventory.errors import CannotLook
from inventory.machine import Emit
from provision.devices.facts import CtFacts
from provision.devices.observe import ct_open, look

_LIBRARY: Final = re.compile(r"lib(nvidia-ml|cuda)\.so\.[0-9]+\.[0-9]+(\.[0-9]+)*")
_STEMS: Final = ("libcuda.so.", "libnvidia-ml.so.")
_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/nvidia/current",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
)


def facts(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Facts of this container. args: `nodes`, names below /dev or paths to look at besides /dev/nvidia*.

    A symbolic link counts as what it leads to, since that is what a process opens.
    """
    wanted = [name if name.startswith("/") else f"/dev/{name}" for name in map(str, args.get("nodes", ()))]
    listed = look.nvidia_nodes(follow=True)
    known = {node.path for node in listed}
    more = look.nodes((path for path in wanted if path not in known), follow=True)
    return CtFacts(
        boot_id=look.word("/proc/sys/kernel/random/boot_id"),
        nodes=ct_open.opened((*more, *listed)),
        proc_devices=look.content("/proc/devices"),
        uid_map=look.content("/proc/self/uid_map"),
        libraries=libraries(),
    ).to_json()


def libraries() -> tuple[str, ...]:
    """File names of libcuda and libnvidia-ml that the loader can find and that carry a full version.

    Where a folder's libX.so.1 leads to such a file, another version beside it is a leftover and isn't listed.
    """
    cached = cached_folders(look.content("/etc/ld.so.cache", 16 << 20).text.encode("latin-1"))
    found: set[str] = set()
    for folder in dict.fromkeys((*_FOLDERS, *cached)):
        try:
            listed = look.names(folder)
        except CannotLook:
            continue
        full = [name for name in listed if name.startswith(_STEMS) and _LIBRARY.fullmatch(name)]
        for stem in _STEMS if full else ():
            same = [name for name in full if name.startswith(stem)]
            used = _last_name(f"{folder}/{stem}1")
            found.update([used] if used in same else same)
    return tuple(sorted(found))


def cached_folders(cache: bytes) -> tuple[str, ...]:
    """Folders of the two libraries in /etc/ld.so.cache (glibc: a table of zero-terminated paths).

    CUDA's compatibility package is left out: its libcuda is meant to be newer than the driver.
    """
    folders: dict[str, None] = {}
    for stem in _STEMS:
        name = f"/{stem}".encode()
        place = cache.find(name)
        while place >= 0:
            folders[cache[cache.rfind(b"\0", 0, place) + 1 : place].decode("latin-1")] = None
            place = cache.find(name, place + 1)
    return tuple(f for f in folders if f.startswith("/") and len(f) < 4096 and posixpath.basename(f) != "compat")


def _last_name(path: str) -> str:
    """The file name at the end of a chain of symbolic links."""
    for _ in range(8):
        target = look.link(path)
        if not target:
            break
        path = posixpath.join(posixpath.dirname(path), target)
    return posixpath.basename(path)
