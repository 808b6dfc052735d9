"""Edits of the main section of a container configuration that leave every other byte alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inventory.errors import Refused
from provision.devices.config import conf


@dataclass(frozen=True, slots=True)
class Change:
    """Give main line `number` another key or value; separator, blanks and line end stay."""

    number: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Take main line `number` out."""

    number: int


@dataclass(frozen=True, slots=True)
class Insert:
    """Add `key: value` to the main section, raw lines after its last raw line."""

    key: str
    value: str


Edit = Change | Remove | Insert


def edit(document: conf.Document, edits: Iterable[Edit]) -> conf.Document:
    """Make edits of the main section; every line not named stays as it is, byte for byte.

    Line numbers are those of `document`. Raises `Refused` for a line that isn't a setting of the main section.
    """
    changes: dict[int, Change | Remove] = {}
    inserts: list[Insert] = []
    for item in edits:
        if isinstance(item, Insert):
            inserts.append(item)
            continue
        line = document.lines[item.number - 1] if 0 < item.number <= len(document.lines) else None
        if line is None or line.section != 0 or line.kind not in (conf.Kind.RAW, conf.Kind.VALUE):
            raise Refused(f"line {item.number} is no setting of the main section, so it is left alone")
        changes[item.number] = item
    out: list[str] = []
    place = _insert_after(document)
    for number in range(len(document.lines) + 1):
        if number:
            line = document.lines[number - 1]
            out += _changed(line, changes.get(number))
        if number == place:
            _insert(out, inserts, document)
    return conf.parse("".join(out))


def preview(view: conf.View, made: tuple[Edit, ...]) -> conf.View:
    """The main section after edits, without writing and reading the file again.

    A `Change` of a plain key must name the line that decides its value, and no raw line may stand behind a `[`.
    """
    changes = {item.number: item for item in made if not isinstance(item, Insert)}
    inserts = [item for item in made if isinstance(item, Insert)]
    raw: list[conf.Line] = []
    for line in view.raw:
        change = changes.pop(line.number, None)
        if change is None:
            raw.append(line)
        elif isinstance(change, Change):
            raw.append(line._replace(key=change.key, value=change.value))
    values = dict(view.values)
    values |= {change.key: change.value for change in changes.values() if isinstance(change, Change)}
    for item in inserts:
        if item.key.startswith("lxc."):
            raw.append(conf.Line(0, "", "", 0, conf.Kind.RAW, item.key, item.value))
        else:
            values[item.key] = item.value
    return conf.View(values, tuple(raw), view.description)


def _changed(line: conf.Line, change: Change | Remove | None) -> list[str]:
    if change is None:
        return [line.body + line.eol]
    if isinstance(change, Remove):
        return []
    start, end = line.at
    head = line.body[:start].replace(line.key, change.key, 1)
    return [head + change.value + line.body[end:] + line.eol]


def _insert_after(document: conf.Document) -> int:
    """Number of the line after which a raw line belongs; never behind what looks like a header."""
    place, raw = 0, 0
    for line in document.lines:
        if line.body.startswith("["):
            break
        if line.kind is not conf.Kind.BLANK:
            place = line.number
        if line.kind is conf.Kind.RAW:
            raw = line.number
    return raw or place


def _insert(out: list[str], inserts: Iterable[Insert], document: conf.Document) -> None:
    carriage = "\r" if any(line.body.endswith("\r") for line in document.lines) else ""
    for item in inserts:
        text = f"{item.key}: {item.value}{carriage}"
        if out and not out[-1].endswith("\n"):
            out[-1] += "\n"
            out.append(text)
        else:
            out.append(text + "\n")
