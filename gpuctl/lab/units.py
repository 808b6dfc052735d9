"""systemd on the lab host as far as one oneshot unit needs it: enable, disable, and what runs at a boot."""

from __future__ import annotations

import logging
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuctl.lab.control import Call
from gpuctl.lab.machine import Node

FOLDER: Final = "etc/systemd/system"
_GUESTS: Final = "pve-guests.service"
_LIMIT_S: Final = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unit:
    """What of a unit file counts here."""

    commands: tuple[tuple[str, ...], ...]
    """ExecStart lines; one that begins with `-` may fail."""
    before: frozenset[str]
    wanted_by: tuple[str, ...]


def parse(text: str) -> Unit:
    """A unit file's ExecStart, Before and WantedBy; continued lines are joined, comments left out."""
    values: dict[str, list[str]] = {"ExecStart": [], "Before": [], "WantedBy": []}
    for line in text.replace("\\\n", " ").splitlines():
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(.*?)\s*", line)
        if match and match[1] in values:
            values[match[1]].append(match[2])
    return Unit(
        tuple(tuple(shlex.split(line)) for line in values["ExecStart"] if line),
        frozenset(" ".join(values["Before"]).split()),
        tuple(" ".join(values["WantedBy"]).split()),
    )


def systemctl(call: Call, node: Node) -> int:
    """`systemctl enable|disable|is-enabled UNIT` and `daemon-reload`; what else systemd can do is refused."""
    words = [word for word in call.words if not word.startswith("-")]
    verb, names = (words[0] if words else ""), words[1:]
    if verb == "daemon-reload":
        return 0
    if verb not in {"enable", "disable", "is-enabled"} or not names:
        call.error(f"Unknown command verb '{verb}'.\n" if not names else f"the lab's systemd has no '{verb}'\n")
        return 1
    folder = node.lab.host_rootfs / FOLDER
    results = [_one(call, folder, verb, name if "." in name else f"{name}.service") for name in names]
    return max(results)


def _one(call: Call, folder: Path, verb: str, name: str) -> int:
    file = folder / name
    # The links lead to where the file is for the lab host: nothing is there for this process.
    links = [link for wants in folder.glob("*.wants") if (link := wants / name).is_symlink()]
    if verb == "disable":
        for link in links:
            link.unlink()
            call.error(f"Removed '/{link.relative_to(folder.parents[2])}'.\n")
        return 0
    if not file.is_file():
        if verb == "is-enabled":
            call.out("not-found\n")
            return 4
        call.error(f"Failed to enable unit: Unit {name} does not exist\n")
        return 1
    targets = parse(file.read_text(errors="replace")).wanted_by
    if verb == "is-enabled":
        call.out("enabled\n" if links else "disabled\n" if targets else "static\n")
        return 0 if links or not targets else 1
    for target in targets:
        link = folder / f"{target}.wants" / name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/{FOLDER}/{name}")
            call.error(f"Created symlink '/{FOLDER}/{target}.wants/{name}' → '/{FOLDER}/{name}'.\n")
    return 0


def run_enabled(node: Node) -> None:
    """Run the enabled units that are ordered before the start of the guests, as a boot does.

    One without that order is not run: on a real host it may come too late, and that is what the lab shows.
    """
    folder = node.lab.host_rootfs / FOLDER
    for name in sorted({link.name for link in folder.glob("*.wants/*.service")}):
        file = folder / name
        if not file.is_file():
            continue
        unit = parse(file.read_text(errors="replace"))
        if _GUESTS in unit.before and not all(_run(node, name, words) for words in unit.commands):
            _log.warning("%s failed", name)


def _run(node: Node, name: str, words: tuple[str, ...]) -> bool:
    may_fail = words[0].startswith("-")
    argv = (words[0].lstrip("-"), *words[1:])
    try:
        done = subprocess.run(
            node.host.argv(argv),
            env=node.host.env(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _log.warning("%s: %s", name, error)
        return may_fail
    if done.returncode:
        _log.warning("%s: %s: exit status %s %s", name, argv[0], done.returncode, done.stderr.strip()[-200:])
    return may_fail or done.returncode == 0
