"""What each way a device node can fail means, and what to do about it; errno meanings from the kernel module's nv.c."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from checks.facts import Facts, Node

UVM_REMEDY: Final = (
    "on the host: `modprobe nvidia-uvm && nvidia-modprobe -u -c 0`, before the containers start; "
    "then restart this container"
)

DRIVER_SAYS: Final = {
    "EIO": "the card could not be initialised (firmware, power or VBIOS)",
    "ENODEV": "there is no card behind this node, or it is lost",
    "EBUSY": "the card is set aside for a reset",
    "EINVAL": "the card's power state could not be taken",
    "EAGAIN": "the driver is suspending",
}

Words = tuple[str, str]
"""(summary, remedy)."""


def paths(names: Iterable[str]) -> str:
    """`/dev/nvidia-uvm`, `/dev/nvidia0-7`, joined by commas."""
    names = list(names)
    cards = sorted(int(name[6:]) for name in names if name[6:].isdigit())
    others = [f"/dev/{name}" for name in names if not name[6:].isdigit()]
    if len(cards) > 2 and cards == list(range(cards[0], cards[-1] + 1)):
        return ", ".join([*others, f"/dev/nvidia{cards[0]}-{cards[-1]}"])
    return ", ".join([*others, *(f"/dev/nvidia{card}" for card in cards)])


def words(facts: Facts, symptom: str, group: list[Node]) -> Words:
    """Summary and remedy for nodes that fail alike; `symptom` is an errno name or `not a device (KIND)`."""
    if symptom.startswith("not a device"):
        return _not_a_device(group)
    known = _WORDS.get(symptom)
    if known is not None:
        return known(facts, group)
    return (
        f"{paths(n.name for n in group)}: open fails with {symptom}: {DRIVER_SAYS.get(symptom, 'the driver refuses')}",
        "look at the host's kernel log for NVRM lines",
    )


def _majors(group: list[Node]) -> list[int]:
    return sorted({node.major for node in group if node.major is not None})


def _denied(facts: Facts, group: list[Node]) -> Words:
    where, majors = paths(node.name for node in group), _majors(group)
    which = f"major {majors[0]}" if len(majors) == 1 else f"majors {', '.join(map(str, majors))}"
    rules = " and ".join(f"`c {number}:* rwm`" for number in majors)
    if len({node.driver for node in group}) > 1:
        return (
            f"device access revoked: every NVIDIA node is refused (EPERM), the device rules for {which} are missing",
            f"restart the container; if it repeats, its configuration must allow {rules} or list the nodes as `dev[n]`",
        )
    others_open = any(node.is_card and node.open == "ok" for node in facts.nodes())
    if all(node.is_card for node in group) and others_open:
        return (
            f"{where}: open is refused (EPERM) while other cards open: excluded on the host, or no rule for this minor",
            f"check NVreg_ExcludedGpus on the host and the container's device rules for {where}",
        )
    return (
        f"{where}: open is refused (EPERM): the container's device rule for {which} is missing",
        f"`pct set CT --devN /dev/{group[0].name}` as root@pam (or allow {rules}), then restart the container",
    )


def _no_driver(_facts: Facts, group: list[Node]) -> Words:
    where, majors = paths(node.name for node in group), _majors(group)
    uvm = any(node.driver == "nvidia-uvm" for node in group)
    return (
        f"{where}: no driver answers for major {majors[0]} (ENXIO): module not loaded, or a stale node",
        UVM_REMEDY if uvm else "load the NVIDIA driver on the host, then restart the container",
    )


def _mode(_facts: Facts, group: list[Node]) -> Words:
    return (
        f"{paths(node.name for node in group)}: open is refused (EACCES): mode, owner or a nodev mount",
        f"give the node mode 0666 or the right owner (`dev[n]: /dev/{group[0].name},mode=0666`); see if /dev is nodev",
    )


def _absent(_facts: Facts, group: list[Node]) -> Words:
    return (
        f"{paths(node.name for node in group)} {'is' if len(group) == 1 else 'are'} not there",
        f"list it as `dev[n]: /dev/{group[0].name}` in the container's configuration; "
        "the host needs the node before the container starts",
    )


def _not_a_device(group: list[Node]) -> Words:
    where, kind = paths(node.name for node in group), group[0].kind
    article = f"is a {kind} file" if len(group) == 1 else f"are {kind} files"
    return (
        f"{where} {article}, not a device: the container started before the host's node existed",
        "make the node on the host (`nvidia-modprobe -c 0 -u`), restart the container, and prefer "
        f"`dev[n]: /dev/{group[0].name}` over a mount entry with create=file",
    )


_WORDS: Final[dict[str, Callable[[Facts, list[Node]], Words]]] = {
    "EPERM": _denied,
    "ENXIO": _no_driver,
    "EACCES": _mode,
    "ENOENT": _absent,
}
