"""A lossless document of a container configuration (/etc/pve/lxc/VMID.conf), read as Proxmox VE reads it.

Text is handled as one character per byte (latin-1), as the real parser does, so any bytes survive.
Grammar: pve-container 6.1.10, PVE::LXC::Config parse_pct_config.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from provision.devices.config import grammar, rules
from provision.devices.config.grammar import Kind as Kind

_DEVICE: Final = re.compile(r"dev(0|[1-9][0-9]{0,2})", re.ASCII)
_RUNTIME: Final = "lxc.environment.runtime"
_IS_VALUE, _IS_RAW, _IS_COMMENT, _IS_HEADER = Kind.VALUE, Kind.RAW, Kind.COMMENT, Kind.HEADER
"""Looking members of an enum up takes longer than comparing them, and a file has many lines."""


class SectionKind(StrEnum):
    """Main configuration, values waiting for the next start, or a snapshot."""

    MAIN = "main"
    PENDING = "pending"
    SNAPSHOT = "snapshot"


class Line(NamedTuple):
    """One line: `body` without its line feed, a carriage return included; `number` counts from 1.

    A named tuple, since a file has many and a frozen dataclass takes three times as long to make.
    """

    number: int
    body: str
    eol: str
    section: int
    kind: Kind
    key: str = ""
    value: str = ""
    at: tuple[int, int] = (0, 0)
    """Where `value` stands in `body`."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file; `line` is the number of its header, 0 for the main part."""

    kind: SectionKind
    name: str
    line: int

    def __str__(self) -> str:
        return {"main": "the main section", "pending": "[pve:pending]"}.get(self.kind, f"snapshot [{self.name}]")


@dataclass(frozen=True, slots=True)
class View:
    """What a section sets: the last value of each key, the raw lines in order, the decoded description."""

    values: Mapping[str, str]
    raw: tuple[Line, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One `dev[n]` entry; `spec` is None when Proxmox would refuse its value, and `problem` says why."""

    index: int
    value: str
    spec: rules.DevSpec | None
    problem: str


@dataclass(frozen=True, slots=True)
class Document:
    """The whole file. `fatal` is set when the real parser would die on it instead of answering."""

    lines: tuple[Line, ...]
    sections: tuple[Section, ...]
    views: tuple[View, ...]
    """What each section sets, in the order of `sections`."""
    fatal: str = ""

    def render(self) -> bytes:
        """The file, byte for byte."""
        return "".join(line.body + line.eol for line in self.lines).encode("latin-1")

    @property
    def digest(self) -> str:
        """SHA-1 of the file, as the API gives it."""
        return hashlib.sha1(self.render(), usedforsecurity=False).hexdigest()

    @property
    def main(self) -> View:
        """The main section."""
        return self.views[0]

    @property
    def pending(self) -> View | None:
        """`[pve:pending]`; a second one replaces the first."""
        found = [i for i, s in enumerate(self.sections) if s.kind is SectionKind.PENDING]
        return self.views[found[-1]] if found else None

    @property
    def snapshots(self) -> Mapping[str, View]:
        """The snapshots by name; a later one of the same name replaces the earlier."""
        last = {s.name: i for i, s in enumerate(self.sections) if s.kind is SectionKind.SNAPSHOT}
        return {name: self.views[i] for name, i in last.items()}

    @property
    def malformed(self) -> tuple[Line, ...]:
        """Lines the parser warns about and drops on its next write."""
        return tuple(line for line in self.lines if line.kind is Kind.MALFORMED)

    @property
    def lock(self) -> str:
        """The value of `lock:`, empty when there is none."""
        return self.main.values.get("lock", "")

    @property
    def unprivileged(self) -> bool:
        """True when the container runs in a user namespace: `unprivileged`, or any raw `lxc.idmap`."""
        return unprivileged(self.main)

    @property
    def next_start(self) -> View:
        """What the next start will use."""
        return started(self.main, self.pending)


def started(main: View, pending: View | None) -> View:
    """What a start makes of a main section: pending values applied first; pending raw lines replace all main ones."""
    if pending is None:
        return main
    deleted = removed_at_start(pending)
    values = {key: value for key, value in main.values.items() if key not in deleted}
    values |= {key: value for key, value in pending.values.items() if key != "delete"}
    raw = pending.raw or (() if "lxc" in deleted or "lxc" in pending.values else main.raw)
    description = "" if "description" in deleted else main.description
    return View(values, raw, pending.description or description)


def removed_at_start(pending: View) -> frozenset[str]:
    """The keys in the list `delete:` of a pending section."""
    listed = re.split(r"[,;\s]+", pending.values.get("delete", ""), flags=re.ASCII)
    return frozenset(key.removeprefix("!") for key in listed if key)


def unprivileged(view: View) -> bool:
    """Whether a container with these values gets a user namespace."""
    value = view.values.get("unprivileged", "0").lower()
    return value not in ("0", "no", "off", "false") or any(line.key == "lxc.idmap" for line in view.raw)


def devices(view: View) -> tuple[Device, ...]:
    """The `dev0` to `dev255` entries of a section, by number."""
    found = []
    for key, value in view.values.items():
        match = _DEVICE.fullmatch(key) if key.startswith("dev") else None
        if match is None or int(match[1]) > 255:
            continue
        found.append(Device(int(match[1]), value, *rules.read_device(value)))
    return tuple(sorted(found, key=lambda device: device.index))


def _decoded(text: str) -> str:
    if "%" not in text and text.isascii():
        return text
    return unquote_to_bytes(text.encode("latin-1")).decode("utf-8", "replace")


def as_bytes(text: bytes | str) -> bytes:
    """Bytes of a text: one byte per character where that is possible, else UTF-8."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _section(body: str, number: int) -> Section:
    header = None if grammar.PENDING.match(body) else grammar.SNAPSHOT.match(body)
    return Section(SectionKind.SNAPSHOT, header[1], number) if header else Section(SectionKind.PENDING, "", number)


def parse(text: bytes | str) -> Document:
    """Read a configuration; never fails: what the parser would reject is a line of kind MALFORMED."""
    sections = [Section(SectionKind.MAIN, "", 0)]
    lines: list[Line] = []
    pieces = as_bytes(text).decode("latin-1").split("\n")
    last = pieces.pop()
    at, may_delete, read = 0, False, grammar.read
    for number, body in enumerate(pieces if not last else [*pieces, last], 1):
        kind, key, value, place = read(body, may_delete)
        if kind is _IS_HEADER:
            sections.append(section := _section(body, number))
            at += 1
            # The real parser compares only the name, so a snapshot called "pending" may hold `delete:` too.
            may_delete = section.kind is SectionKind.PENDING or section.name == "pending"
        lines.append(Line(number, body, "\n", at, kind, key, value, place))
    if last:
        lines[-1] = lines[-1]._replace(eol="")
    views = _views(lines, sections)
    return Document(tuple(lines), tuple(sections), views, _fatal(lines, views))


def _views(lines: Iterable[Line], sections: Sequence[Section]) -> tuple[View, ...]:
    """What each section sets, as the parser sees it: the last value of a key, raw lines in order."""
    values: list[dict[str, str]] = [{} for _ in sections]
    raw: list[list[Line]] = [[] for _ in sections]
    texts = [""] * len(sections)
    for line in lines:
        _, body, _, at, kind, key, value, _ = line
        if kind is _IS_VALUE:
            if key == "description" and value.strip(grammar.SPACE):
                texts[at] += _decoded(value)
                continue
            values[at][key] = value
            if key == "lxc":
                raw[at].clear()  # a plain key of this name replaces the list
        elif kind is _IS_RAW:
            if key != _RUNTIME:
                raw[at].append(line)
            else:
                before = values[at].get("env")
                values[at]["env"] = value if before is None else f"{before}\0{value}"
        elif kind is _IS_COMMENT:
            texts[at] += _decoded(body[1:]) + "\n"
    values[0].pop("snapstate", None)
    if any(section.kind is SectionKind.PENDING for section in sections):
        values[0].pop("pending", None)  # the section takes the place of a plain key of its name
    return tuple(View(v, tuple(r), _description(v, t)) for v, r, t in zip(values, raw, texts, strict=True))


def _description(values: dict[str, str], text: str) -> str:
    blank = values.pop("description", "")  # `description:` and only blanks behind is a plain key to the parser
    return blank if text in ("", "0") else text  # "0" is false in Perl


def _fatal(lines: Iterable[Line], views: Sequence[View]) -> str:
    """Why the real parser dies: a plain key takes the name of one of its own lists (strict refs in Perl)."""
    if "snapshots" not in views[0].values and not any("lxc" in view.values for view in views):
        return ""
    taken: set[int] = set()
    snapshots = 0
    for line in lines:
        if line.kind is Kind.VALUE and line.key == "lxc":
            taken.add(line.section)
        elif line.kind is Kind.VALUE and line.key == "snapshots" and line.section == 0:
            snapshots = line.number
        elif line.kind is Kind.RAW and line.key != _RUNTIME and line.section in taken:
            return f"line {line.number}: a raw line after a plain `lxc:` line"
        elif line.kind is Kind.HEADER and snapshots and grammar.SNAPSHOT.match(line.body):
            return f"line {line.number}: a snapshot after a plain `snapshots:` line"
    return ""


def render(document: Document) -> bytes:
    """The file of a document: `render(parse(x)) == x` for any bytes."""
    return document.render()
