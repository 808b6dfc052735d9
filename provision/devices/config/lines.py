"""What single lines of a configuration would mean: rules LXC can't read, misspelt keys, numbers a text names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from provision.devices.config import conf, rules

_NUMBER: Final = re.compile(r"(?<![\d.])(\d{1,9})\s*[:.]\s*(\*|\d{1,9})", re.ASCII)


def path_rule(line: conf.Line) -> str:
    """The path of `lxc.cgroup2.devices.allow: /dev/x rw`, which LXC 6 turns into a number at each start; else ""."""
    return rules.rule_path(line.value) if line.key == rules.ALLOW else ""


def bad_rule(line: conf.Line) -> str:
    """Why LXC can't read a device rule; "" when it can, or when the line is none."""
    value = line.value
    if line.key not in (rules.ALLOW, rules.DENY) or rules.readable(line.key, value):
        return ""
    words = value.split()
    if not words:
        return "it is empty"
    if value.startswith("/"):
        return "a path is only allowed, and with the access behind it, like `rwm`"
    if words[0] not in ("a", "b", "c"):
        return f"it begins with `{words[0]}`, not with a, b or c"
    if words[0] == "a" and len(words) == 1:
        return "something stands behind the `a`"
    if re.search(r"\s\s", value):
        return "it has two blanks in a row where LXC wants one"
    if len(words) < 3:
        return "it lacks the access, like `rwm`"
    if not re.fullmatch(r"(\d+|\*):(\d+|\*)", words[1], re.ASCII):
        return f"`{words[1]}` is not MAJOR:MINOR"
    return f"`{' '.join(words[2:])}` is not made of r, w and m"


def misspelt(line: conf.Line) -> str:
    """The device key that was meant, for a raw key that the parser takes and LXC does not know; else ""."""
    known = (rules.ALLOW, rules.DENY, rules.LEGACY_ALLOW, rules.LEGACY_DENY)
    if line.key in known or not line.key.startswith(("lxc.cgroup2.", "lxc.cgroup.")):
        return ""
    if line.key.startswith(("lxc.cgroup2.devices.", "lxc.cgroup.devices.")):
        near = difflib.get_close_matches(line.key.rpartition(".")[2], ("allow", "deny"), 1, 0.5)
        return rules.DENY if near == ["deny"] else rules.ALLOW
    near = difflib.get_close_matches(line.key.replace("cgroup.", "cgroup2."), known[:2], 1, 0.85)
    return near[0] if near else ""


def acts_as_deny(line: conf.Line) -> bool:
    """LXC reads every key below `devices.` but `devices.allow` as a deny (cgfsng.c: allow = 0 for all others)."""
    return line.key.startswith("lxc.cgroup2.devices.")


def names_number(text: str, number: tuple[int, int]) -> bool:
    """Whether a text speaks of major:minor, however wrongly it is spelt."""
    return any(
        int(major) == number[0] and (minor == "*" or int(minor) == number[1])
        for major, minor in _NUMBER.findall(text)
    )


def names_path(text: str, path: str) -> bool:
    """Whether a text names a node, not only one whose name begins alike."""
    return re.search(rf"{re.escape(path)}(?![\w-])", text) is not None


def about_devices(line: conf.Line) -> bool:
    """Whether a line that has no effect was meant to be about devices."""
    body = line.body.lower()
    return "nvidia" in body or "cgroup" in body or re.match(r"\s*dev\d+\b", body) is not None


def mounts(view: conf.View) -> Iterable[tuple[conf.Line, rules.Mount]]:
    """The bind mounts of a section, each with its line."""
    for line in view.raw:
        mount = rules.parse_mount(line.value) if line.key == rules.MOUNT else None
        if mount is not None and mount.bind:
            yield line, mount


def without_target(view: conf.View, mount: rules.Mount) -> bool:
    """A mount on a name in the fresh /dev of a container that nothing makes: without `create=` LXC has no target."""
    if not mount.target.startswith("dev/nvidia") or any(o.startswith("create=") for o in mount.options):
        return False
    if any(line.key == "lxc.autodev" and line.value == "0" for line in view.raw):
        return False
    return not any(
        other.target == mount.target for _, other in mounts(view) if other is not mount and other != mount
    )
