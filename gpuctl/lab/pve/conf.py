"""Container configuration files as Proxmox VE reads and writes them: lossy in the same places, same warnings.

Text values hold one character per byte of the file (latin-1), as in Proxmox's parser; only descriptions
are decoded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gpuctl.lab.pve.formats import FormatError
from gpuctl.lab.pve.lxckeys import judge
from gpuctl.lab.pve.schema import check_option, options, parse_property_string

_BLANK: Final = re.compile(r"\s*", re.ASCII)
_PENDING: Final = re.compile(r"\[pve:pending\]\s*", re.ASCII | re.IGNORECASE)
_SNAPSHOT: Final = re.compile(r"\[([a-z][a-z0-9_\-]+)\]\s*", re.ASCII | re.IGNORECASE)
_RAW: Final = re.compile(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*", re.ASCII)
_DESCRIPTION: Final = re.compile(r"description:\s*(.*\S)\s*", re.ASCII)
_SNAPSTATE: Final = re.compile(r"snapstate:\s*(prepare|delete)\s*$", re.ASCII)
_DELETE: Final = re.compile(r"delete:\s*(.*\S)\s*", re.ASCII)
_PLAIN: Final = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*", re.ASCII)
_ENVIRONMENT: Final = "lxc.environment.runtime"
_UNWRITTEN: Final = frozenset({"digest", "description", "pending", "snapshots", "snapname", "lxc", "env"})
_PERL: Final = "/usr/share/perl5/PVE/LXC/Config.pm"


class ConfError(Exception):
    """A file Proxmox's own parser or writer dies on; the text is its message."""


@dataclass(slots=True)
class Section:
    """One section of a file: plain options, raw `lxc.*` lines in order, and the comment text.

    A file may hold a line `lxc: x`; then `values["lxc"]` is that text and hides the raw lines.
    """

    values: dict[str, Any] = field(default_factory=dict)
    lxc: list[tuple[str, str]] = field(default_factory=list)
    description: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The section as Proxmox's parser returns it."""
        data = dict(self.values)
        if self.lxc and "lxc" not in data:
            data["lxc"] = [list(pair) for pair in self.lxc]
        if self.description is not None:
            data["description"] = self.description
        return data

    def get(self, key: str) -> Any:
        """An option's value, None when it is not set; `lxc` and `description` are options too."""
        if key == "description":
            return self.description
        if key == "lxc" and key not in self.values:
            return self.lxc or None
        return self.values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Set an option."""
        if key == "description":
            self.description = value
        elif key == "lxc" and isinstance(value, list):
            self.lxc = value
        else:
            self.values[key] = value

    def drop(self, key: str) -> None:
        """Unset an option."""
        if key == "description":
            self.description = None
        elif key == "lxc":
            self.lxc = []
        self.values.pop(key, None)

    def names(self) -> tuple[str, ...]:
        """The options that are set, sorted."""
        extra = [key for key in ("description", "lxc") if self.get(key) is not None]
        return tuple(sorted({*self.values, *extra}))

    def empty(self) -> bool:
        """Whether nothing at all is in it."""
        return not self.names()


@dataclass(slots=True)
class Conf:
    """A parsed configuration. `digest` is the sha1 of the bytes, or what a line `digest:` in the file says."""

    vmid: int
    main: Section
    pending: Section
    snapshots: dict[str, Section]
    warnings: tuple[str, ...]
    digest: str

    def to_json(self) -> dict[str, Any]:
        """The whole configuration as Proxmox's parser returns it."""
        data: dict[str, Any] = {
            "digest": self.digest,
            "pending": self.pending.to_json(),
            "snapshots": {name: section.to_json() for name, section in self.snapshots.items()},
        }
        return data | self.main.to_json()


def parse_conf(raw: bytes, vmid: int) -> Conf:
    """Parse N.conf. Lines Proxmox warns about become `warnings`; raises `ConfError` where Proxmox dies."""
    parser = _Parser(vmid)
    lines = raw.decode("latin-1").split("\n")
    for line in lines:
        parser.feed(line)
    return parser.finish(hashlib.sha1(raw).hexdigest())


class _Parser:
    def __init__(self, vmid: int) -> None:
        self._vmid = vmid
        self._conf = Conf(vmid, Section(), Section(), {}, (), "")
        self._section = self._conf.main
        self._name = ""
        self._comment: list[str] = []
        self._warnings: list[str] = []

    def feed(self, line: str) -> None:
        if _BLANK.fullmatch(line) or self._header(line):
            return
        if line.startswith("#"):
            self._comment += (_decode(line[1:]), "\n")
        elif match := _RAW.fullmatch(line):
            self._raw(line, match[1], match[2])
        elif match := _DESCRIPTION.fullmatch(line):
            self._comment.append(_decode(match[1]))
        elif match := _SNAPSTATE.search(line):
            self._section.values["snapstate"] = match[1]
        elif match := _DELETE.fullmatch(line):
            if self._name == "pending":
                self._section.values["delete"] = match[1]
            else:
                self._warn("property 'delete' is only allowed in [pve:pending]")
        elif match := _PLAIN.fullmatch(line):
            self._plain(match[1], match[2])
        else:
            self._warn(f"unable to parse config: {line}")

    def finish(self, digest: str) -> Conf:
        self._close()
        conf = self._conf
        conf.main.values.pop("snapstate", None)
        conf.digest = str(conf.main.values.get("digest", digest))
        conf.warnings = tuple(self._warnings)
        return conf

    def _warn(self, text: str) -> None:
        self._warnings.append(f"vm {self._vmid} - {text}\n")

    def _close(self) -> None:
        # Perl takes the text "0" for false, so such a description is lost.
        text = "".join(self._comment)
        if text not in ("", "0"):
            self._section.description = text
        self._comment = []

    def _header(self, line: str) -> bool:
        if _PENDING.fullmatch(line):
            self._close()
            self._conf.main.values.pop("pending", None)
            self._conf.pending = self._section = Section()
            self._name = "pending"
            return True
        match = _SNAPSHOT.fullmatch(line)
        if not match:
            return False
        self._close()
        if "snapshots" in self._conf.main.values:
            raise ConfError(not_a("HASH", self._conf.main.values["snapshots"]))
        self._section = self._conf.snapshots[match[1]] = Section()
        self._name = match[1]
        return True

    def _raw(self, line: str, key: str, value: str) -> None:
        verdict, warning = judge(key)
        if warning:
            self._warn(warning)
        if verdict == "0":
            self._warn(f"unable to parse config: {line}")
        elif verdict != "1":
            self._warn(f"{key}: {verdict}")
        elif key == _ENVIRONMENT:
            before = self._section.values.get("env")
            self._section.values["env"] = value if before is None else f"{before}\0{value}"
        elif "lxc" in self._section.values:
            raise ConfError(not_a("ARRAY", self._section.values["lxc"]))
        else:
            self._section.lxc.append((key, value))

    def _plain(self, key: str, text: str) -> None:
        value: Any = text
        try:
            value = check_option(key, text)
        except FormatError as error:
            self._warn(f"unable to parse value of '{key}' - {error.text}".removesuffix("\n"))
        self._section.values[key] = value


def write_conf(conf: Conf) -> bytes:
    """The file Proxmox would write for `conf`. Raises `ConfError` where its writer dies."""
    main = conf.main
    main.values.pop("snapstate", None)
    used = set(volumes(main))
    for key in [name for name in main.values if name.startswith("unused") and main.values[name] in used]:
        del main.values[key]
    text = _write_section(main)
    if "pending" in main.values:
        raise ConfError(not_a("HASH", main.values["pending"], f"{_PERL} line 1288"))
    if not conf.pending.empty():
        text += "\n[pve:pending]\n" + _write_section(conf.pending)
    if "snapshots" in main.values:
        raise ConfError(not_a("HASH", main.values["snapshots"], f"{_PERL} line 1293"))
    for name in sorted(conf.snapshots):
        text += f"\n[{name}]\n" + _write_section(conf.snapshots[name])
    return text.encode("latin-1", "replace")


def _write_section(section: Section) -> str:
    lines = [f"#{_encode(line)}" for line in _perl_split(section.description or "")]
    for key in sorted(section.values):
        if key in _UNWRITTEN:
            continue
        value = str(section.values[key])
        if "\n" in value:
            raise ConfError(f"detected invalid newline inside property '{key}'\n")
        lines.append(f"{key}: {value}")
    if section.values.get("env"):
        lines += [f"{_ENVIRONMENT}: {value}" for value in str(section.values["env"]).split("\0")]
    if "lxc" in section.values:
        raise ConfError(not_a("ARRAY", section.values["lxc"], f"{_PERL} line 1276"))
    lines += [f"{key}: {value}" for key, value in section.lxc]
    return "".join(line + "\n" for line in lines)


def volumes(section: Section) -> Iterable[str]:
    """The storage volumes (not bind or device mounts) the section's mount points use."""
    for key, value in section.values.items():
        if key == "rootfs" or re.fullmatch(r"mp\d+", key, re.ASCII):
            try:
                volume = parse_property_string(
                    options()["rootfs" if key == "rootfs" else "mp0"]["format"], str(value)
                )
            except FormatError:
                continue
            if not str(volume["volume"]).startswith("/"):
                yield str(volume["volume"])


def _perl_split(text: str) -> list[str]:
    return re.sub(r"\n+\Z", "", text).split("\n") if text.strip("\n") else []


def _decode(text: str) -> str:
    return unquote_to_bytes(text.encode("latin-1")).decode("utf-8", "replace")


def _encode(text: str) -> str:
    safe = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace(":", "")
    return quote_from_bytes(text.encode("utf-8"), safe=safe)


def not_a(kind: str, value: Any, place: str = "") -> str:
    """What Perl says when the text of a stray line stands where a section or list is expected."""
    article = "an" if kind == "ARRAY" else "a"
    where = f" at {place}." if place else ""
    return f'Can\'t use string ("{value}") as {article} {kind} ref while "strict refs" in use{where}\n'
