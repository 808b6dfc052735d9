"""A lossless document of a container configuration (/etc/pve/lxc/VMID.conf), read as Proxmox VE reads it.

Text is handled as one character per byte (latin-1), as the real parser does, so any bytes survive.
Grammar: pve-container 6.1.10, PVE::LXC::Config parse_pct_config.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_to_bytes

from provision.devices import keys, rules

_A: Final = re.ASCII
_PENDING: Final = re.compile(r"\[pve:pending\]\s*$", _A | re.IGNORECASE)
_SNAPSHOT: Final = re.compile(r"\[([a-z][a-z0-9_-]+)\]\s*$", _A | re.IGNORECASE)
_RAW: Final = re.compile(r"(lxc\.[a-z0-9_.-]+)(?::|\s*=)\s*", _A)
_SNAPSTATE: Final = re.compile(r"(snapstate):\s*(prepare|delete)\s*$", _A)
_VALUE: Final = re.compile(r"([a-z][a-z_]*\d*):\s*", _A)
_SPACE: Final = " \t\n\r\f\v"


class Kind(StrEnum):
    """What a line is to the parser."""

    BLANK = "blank"
    COMMENT = "comment"
    HEADER = "header"
    RAW = "raw"
    VALUE = "value"
    MALFORMED = "malformed"


class SectionKind(StrEnum):
    """Main configuration, values waiting for the next start, or a snapshot."""

    MAIN = "main"
    PENDING = "pending"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `body` without its line feed, a carriage return included; `number` counts from 1."""

    number: int
    body: str
    eol: str
    kind: Kind
    section: int
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
        """What the next start will use: pending values applied first; pending raw lines replace all main ones."""
        main, pending = self.main, self.pending
        if pending is None:
            return main
        values = dict(main.values)
        for key in re.split(r"[,;\s]+", pending.values.get("delete", "")):
            values.pop(key.removeprefix("!"), None)
        values |= {key: value for key, value in pending.values.items() if key != "delete"}
        return View(values, pending.raw or main.raw, main.description)


def unprivileged(view: View) -> bool:
    """Whether a container with these values gets a user namespace."""
    value = view.values.get("unprivileged", "0").lower()
    return value not in ("0", "no", "off", "false") or any(line.key == "lxc.idmap" for line in view.raw)


def devices(view: View) -> tuple[Device, ...]:
    """The `dev0` to `dev255` entries of a section, by number."""
    found = []
    for key, value in view.values.items():
        match = re.fullmatch(r"dev(0|[1-9][0-9]{0,2})", key)
        if match is None or int(match[1]) > 255:
            continue
        try:
            spec, problem = rules.parse_device(value), ""
        except rules.BadDevice as error:
            spec, problem = None, str(error)
        found.append(Device(int(match[1]), value, spec, problem))
    return tuple(sorted(found, key=lambda device: device.index))


def _decoded(text: str) -> str:
    return unquote_to_bytes(text.encode("latin-1")).decode("utf-8", "replace")


def as_bytes(text: bytes | str) -> bytes:
    """Bytes of a text: one byte per character where that is possible, else UTF-8."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


_Found = tuple[Kind, str, tuple[int, int]]


def _classify(body: str, section: Section) -> _Found:
    """Kind, key and place of the value of a line that is no header. The order of the tests is the parser's."""
    end = len(body.rstrip(_SPACE))
    if body.startswith("#"):
        return Kind.COMMENT, "", (0, 0)
    if match := _RAW.match(body):
        kind = Kind.RAW if keys.accepted(match[1]) else Kind.MALFORMED
        return kind, match[1], (min(match.end(), end), end)
    match = _VALUE.match(body)
    key, start = (match[1], match.end()) if match else ("", 0)
    if key == "description" and start < end:
        return Kind.VALUE, key, (start, end)
    if state := _SNAPSTATE.search(body):  # not anchored at the start in the real parser
        return Kind.VALUE, state[1], state.span(2)
    if key == "delete" and start < end:
        # The real parser compares only the name, so a snapshot called "pending" may hold one too.
        pending = section.kind is SectionKind.PENDING or section.name == "pending"
        return (Kind.VALUE if pending else Kind.MALFORMED), key, (start, end)
    if key and start >= end:  # a value of blanks only is its last blank
        return (Kind.VALUE, key, (start - 1, start)) if body[start - 1] != ":" else (Kind.MALFORMED, "", (0, 0))
    return (Kind.VALUE, key, (start, end)) if key else (Kind.MALFORMED, "", (0, 0))


def parse(text: bytes | str) -> Document:
    """Read a configuration; never fails: what the parser would reject is a line of kind MALFORMED."""
    data = as_bytes(text).decode("latin-1")
    sections = [Section(SectionKind.MAIN, "", 0)]
    lines: list[Line] = []
    pieces = data.split("\n")
    eols = ["\n"] * (len(pieces) - 1) + [""]
    if pieces[-1] == "":
        del pieces[-1], eols[-1]
    for number, (body, eol) in enumerate(zip(pieces, eols, strict=True), 1):
        kind, key, at = Kind.HEADER, "", (0, 0)
        if not body.strip(_SPACE):
            kind = Kind.BLANK
        elif _PENDING.match(body):
            sections.append(Section(SectionKind.PENDING, "", number))
        elif header := _SNAPSHOT.match(body):
            sections.append(Section(SectionKind.SNAPSHOT, header[1], number))
        else:
            kind, key, at = _classify(body, sections[-1])
        lines.append(Line(number, body, eol, kind, len(sections) - 1, key, body[at[0] : at[1]], at))
    return Document(tuple(lines), tuple(sections), _views(lines, len(sections)), _fatal(lines))


def _views(lines: Iterable[Line], count: int) -> tuple[View, ...]:
    """What each section sets, as the parser sees it: the last value of a key, raw lines in order."""
    values: list[dict[str, str]] = [{} for _ in range(count)]
    raw: list[list[Line]] = [[] for _ in range(count)]
    texts = [""] * count
    for line in lines:
        at = line.section
        if line.kind is Kind.RAW:
            raw[at].append(line)
        elif line.kind is Kind.COMMENT:
            texts[at] += _decoded(line.body[1:]) + "\n"
        elif line.kind is Kind.VALUE and line.key == "description":
            texts[at] += _decoded(line.value)
        elif line.kind is Kind.VALUE:
            values[at][line.key] = line.value
            if line.key == "lxc":
                raw[at].clear()  # a plain key of this name replaces the list
    values[0].pop("snapstate", None)
    texts = ["" if text == "0" else text for text in texts]  # "0" is false in Perl
    return tuple(View(v, tuple(r), t) for v, r, t in zip(values, raw, texts, strict=True))


def _fatal(lines: Iterable[Line]) -> str:
    """Why the real parser dies: a plain key takes the name of one of its own lists (strict refs in Perl)."""
    taken: set[int] = set()
    snapshots = 0
    for line in lines:
        if line.kind is Kind.VALUE and line.key == "lxc":
            taken.add(line.section)
        elif line.kind is Kind.VALUE and line.key == "snapshots" and line.section == 0:
            snapshots = line.number
        elif line.kind is Kind.RAW and line.section in taken:
            return f"line {line.number}: a raw line after a plain `lxc:` line"
        elif line.kind is Kind.HEADER and snapshots and _SNAPSHOT.match(line.body):
            return f"line {line.number}: a snapshot after a plain `snapshots:` line"
    return ""


def render(document: Document) -> bytes:
    """The file of a document: `render(parse(x)) == x` for any bytes."""
    return document.render()
