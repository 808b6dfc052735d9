"""The two languages of device access: LXC's cgroup rules and Proxmox's `dev[n]` values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

DEVICES: Final = "lxc.cgroup2.devices"
ALLOW: Final = "lxc.cgroup2.devices.allow"
DENY: Final = "lxc.cgroup2.devices.deny"
LEGACY_ALLOW: Final = "lxc.cgroup.devices.allow"
LEGACY_DENY: Final = "lxc.cgroup.devices.deny"
MOUNT: Final = "lxc.mount.entry"

_RULE: Final = re.compile(
    r"([abc])[ \t\v\f\r]([0-9]{1,10}|\*):([0-9]{1,10}|\*)[ \t\v\f\r](?:([rwm]{3}).*|([rwm]{1,2}))", re.DOTALL
)
_BY_PATH: Final = re.compile(r"(/[^ ]*) +([rwm]{1,3})(?: .*)?", re.DOTALL)
_LOOSE: Final = re.compile(
    r"\s*([abc]?)\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9}|\*))?\s*([rwmRWM]{1,3})?\s*", re.ASCII
)
_LARGEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rule:
    """`TYPE MAJOR:MINOR ACCESS`; None stands for `*`. The bare rule `a` means every device."""

    type: str
    major: int | None
    minor: int | None
    access: str

    def covers(self, major: int, minor: int, access: str = "rw") -> bool:
        """Whether it speaks about all of `access` on the character device major:minor."""
        return (
            self.type in "ac"
            and self.major in (None, major)
            and self.minor in (None, minor)
            and set(access) <= set(self.access)
        )

    def meets(self, other: Rule) -> bool:
        """Whether some reading or writing of some device is spoken about by both."""
        return (
            (self.type == other.type or "a" in (self.type, other.type))
            and (self.major == other.major or None in (self.major, other.major))
            and (self.minor == other.minor or None in (self.minor, other.minor))
            and bool(set(self.access) & set(other.access) & set("rw"))
        )

    def __str__(self) -> str:
        number = ("*" if n is None else str(n) for n in (self.major, self.minor))
        return f"{self.type} {':'.join(number)} {self.access}"


COMMON: Final = tuple(
    Rule("c", major, minor, "rwm")
    for major, minor in ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2), (136, None), (10, 229))
)
"""What every privileged container may open (lxc 6.0.5, config/templates/common.conf.in)."""


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> Rule | None:
    """A rule by number exactly as LXC reads it (lxc 6.0.5, device_cgroup_rule_parse); None when it is none."""
    if text == "a":
        return Rule("a", None, None, "rwm")
    match = _RULE.fullmatch(text)
    if match is None:
        return None
    major, minor = (None if n == "*" else int(n) for n in match.group(2, 3))
    if max(major or 0, minor or 0) > _LARGEST:
        return None
    return Rule(match[1], major, minor, match[4] or match[5])


def rule_path(text: str) -> str:
    """The path of an allow rule of the form `/dev/NAME ACCESS`, which LXC looks up at each start; else ""."""
    match = _BY_PATH.fullmatch(text) if text.startswith("/") else None
    return match[1] if match else ""


def guessed(text: str) -> Rule | None:
    """What a rule that LXC can't read was probably meant to be; None when nothing sensible."""
    match = _LOOSE.fullmatch(text)
    if match is None or match[1] == "b":
        return None
    minor = None if match[3] in (None, "*") else int(match[3])
    return Rule("c", int(match[2]), minor, (match[4] or "rwm").lower())


def readable(key: str, text: str) -> bool:
    """Whether LXC can read this `lxc.cgroup2.devices...` line; one that it can't keeps the container from starting."""
    return parse_rule(text) is not None or (key == ALLOW and rule_path(text) != "")


@dataclass(frozen=True, slots=True)
class Program:
    """Device rules as LXC loads them: what applies to a device that no rule names, and the rules against that."""

    default: bool
    listed: frozenset[Rule]
    paths: frozenset[str] = frozenset()
    """Nodes allowed by path: their numbers are looked up at the start."""

    def allows(self, major: int, minor: int, path: str = "") -> bool:
        """Whether character device major:minor, which the host has at `path`, may be opened to read and write."""
        return self.default != any(rule.covers(major, minor) for rule in self.listed) or path in self.paths


def program(settings: Iterable[tuple[str, str]]) -> Program:
    """The rules of a privileged container with these raw lines (key, value).

    The start is "nothing": Proxmox's common.conf denies all and allows no GPU (lxc config/templates).
    Only cgroup2 keys count: cgroup v1 keys are ignored on a cgroup2 host. A rule that says what applies anyway is
    skipped; the same rule again, to the contrary, takes the earlier back (lxc 6.0.5, cgroup2_devices.c).
    """
    default = False
    listed: dict[Rule, bool] = {}
    paths: set[str] = set()
    for key, value in settings:
        if not key.startswith(DEVICES):
            continue
        allow = key == ALLOW  # what only looks like `allow` counts as a deny
        if value == "a":  # sets the default and empties the list
            default = allow
            listed.clear()
            paths.clear()
        elif (rule := parse_rule(value)) is not None:
            listed[rule] = allow
        elif allow and (path := rule_path(value)):
            paths.add(path)
    against = frozenset(rule for rule, allow in listed.items() if allow is not default)
    return Program(default, against, frozenset(paths))


@dataclass(frozen=True, slots=True)
class Mount:
    """A `lxc.mount.entry` value: source on the host, target in the container, options."""

    source: str
    target: str
    options: tuple[str, ...]

    @property
    def optional(self) -> bool:
        """Without it a missing source stops the container's start; with it the start goes on without the node."""
        return "optional" in self.options

    @property
    def bind(self) -> bool:
        """Whether it makes a path of the host visible."""
        return "bind" in self.options or "rbind" in self.options


@lru_cache(maxsize=4096)
def bound(text: str) -> str:
    """Source on the host of a bind mount's entry, without doubled slashes; "" when it is none."""
    mount = parse_mount(text)
    return plain(mount.source) if mount is not None and mount.bind else ""


def plain(path: str) -> str:
    """The path without doubled slashes and without one at its end."""
    if "//" not in path and not path.endswith("/"):
        return path
    return re.sub(r"/+", "/", path).rstrip("/") or "/"


@lru_cache(maxsize=4096)
def parse_mount(text: str) -> Mount | None:
    """An fstab-like entry; the target is given below `/` of the container, without the leading slash."""
    fields = text.split()
    if len(fields) < 4:
        return None
    source, target = (_unescaped(field) for field in fields[:2])
    return Mount(source, target.lstrip("/"), tuple(fields[3].split(",")))


def _unescaped(field: str) -> str:
    if "\\" not in field:
        return field
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8) & 255), field)


class BadDevice(ValueError):
    """A `dev[n]` value that Proxmox refuses, with its own text."""


@dataclass(frozen=True, slots=True)
class DevSpec:
    """A `dev[n]` value. Proxmox makes the node in the container with `mode`, `uid`, `gid`; default 0660 root."""

    path: str
    mode: int = 0o660
    uid: int = 0
    gid: int = 0
    deny_write: bool = False


_TRUE, _FALSE = ("1", "on", "yes", "true"), ("0", "off", "no", "false")


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip(" \t\n\r\f\v"):
            continue
        match = re.match(r"([^=]+)=(.+)$", part)
        if match is None and "=" in part:
            raise BadDevice("missing key in comma-separated list property")
        key, value = (match[1], match[2]) if match else ("path", part)
        if key in found:
            raise BadDevice(f"duplicate key in comma-separated list property: {key}")
        found[key] = value
    return found


def _problem(key: str, value: str) -> str:
    """What Proxmox says about one property; empty when it takes it."""
    if key == "path":
        bad = not value.startswith("/dev/") or re.search(r"/\.\.?(/|$)", value)
        return f"invalid format - {value} is not a valid device path" if bad else ""
    if key == "mode":
        return "" if re.fullmatch(r"0[0-7]{3}", value) else "value does not match the regex pattern"
    if key in ("uid", "gid"):
        if not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
            return f"type check ('integer') failed - got '{value}'"
        return "value must have a minimum value of 0" if int(value[:4000]) < 0 else ""
    if key == "deny-write":
        return "" if value.lower() in _TRUE + _FALSE else f"type check ('boolean') failed - got '{value}'"
    return "property is not defined in schema and the schema does not allow additional properties"


@lru_cache(maxsize=4096)
def read_device(text: str) -> tuple[DevSpec | None, str]:
    """A `dev[n]` value, or None and what Proxmox says about it."""
    try:
        return parse_device(text), ""
    except BadDevice as error:
        return None, str(error)


def parse_device(text: str) -> DevSpec:
    """Read a `dev[n]` value as Proxmox does; raises `BadDevice` with Proxmox's own text."""
    pairs = _pairs(text)
    problems = [f"{key}: {problem}" for key, value in pairs.items() if (problem := _problem(key, value))]
    if problems:
        raise BadDevice("\n".join(["format error", *sorted(problems)]))
    if "path" not in pairs:
        raise BadDevice("Path has to be defined")
    return DevSpec(
        pairs["path"],
        int(pairs.get("mode", "0660"), 8),
        int(pairs.get("uid", "0")[:4000]),
        int(pairs.get("gid", "0")[:4000]),
        pairs.get("deny-write", "0").lower() in _TRUE,
    )
