"""Find the inventory files, read them, and report every mistake of all of them at once."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inventory.errors import ConfigError
from inventory.model import Inventory
from inventory.names import keys_at, suggestion

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from inventory import positions

EXAMPLES = frozenset({"example.yaml", "lab.yaml"})
"""Shipped examples: read only when named."""

MAX_BYTES = 1024 * 1024
"""An inventory is written by hand; more than this is some other file."""

_NAMED = ("hosts", "containers")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A whole inventory and where it came from."""

    inventory: Inventory
    files: tuple[Path, ...]
    base: Path
    """Folder of the first file."""
    bases: Mapping[str, Path]
    """Folder of the file that names a host or container, by its name."""

    def base_of(self, name: str) -> Path:
        """Folder against which relative paths of this host or container are resolved."""
        return self.bases.get(name, self.base)


def find(
    cwd: Path, option: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """The inventory files: `--inventory`, else GPUCTL_INVENTORY (':' between several), else what lies in `cwd`.

    A folder stands for its *.yaml and *.yml files. In `cwd` these are gpuctl.yaml and inventory/*.yaml; the
    shipped examples are left out. Where there is none of these, that of the embedded host in .lab. Empty when nothing
    is there (`load` then says so); named files are not looked at here.
    """
    named: list[str | os.PathLike[str]]
    if option:
        named = [option] if isinstance(option, str | os.PathLike) else list(option)
    else:
        named = [part for part in environ.get("GPUCTL_INVENTORY", "").split(os.pathsep) if part]
    if named:
        paths = [cwd / Path(part).expanduser() for part in named]
    else:
        paths = [path for path in (cwd / "gpuctl.yaml", cwd / "inventory") if path.exists()]
    found: dict[Path, None] = {}
    for path in paths:
        for file in _in_folder(path) if path.is_dir() else (path,):
            found.setdefault(file)
    if not found and not named and (lab := cwd / ".lab" / "gpuctl.yaml").is_file():
        return (lab,)
    return tuple(found)


def _in_folder(folder: Path) -> list[Path]:
    files = [*folder.glob("*.yaml"), *folder.glob("*.yml")]
    return sorted(file for file in files if file.name not in EXAMPLES and not file.name.startswith("."))


@dataclass(slots=True)
class _Merged:
    """The values of all files in one mapping, and the place of each."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[positions.Path, tuple[int, int]] = field(default_factory=dict)
    """Path -> (index of the file, line)."""
    mistakes: list[tuple[int, positions.Mistake]] = field(default_factory=list)
    bases: dict[str, Path] = field(default_factory=dict)

    def add(self, index: int, line: int, path: positions.Path, message: str) -> None:
        from inventory import positions

        self.mistakes.append((index, positions.Mistake(line, path, message)))

    def place(self, path: positions.Path) -> tuple[int, int]:
        """Where `path` is written, or the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (0, 1))


def load(paths: tuple[Path, ...]) -> Loaded:
    """Read and check; raises one `ConfigError` whose `detail` has a line `file:line: [path] message` per mistake.

    Secrets are not resolved here.
    """
    if not paths:
        raise ConfigError(
            "there is no inventory here: neither gpuctl.yaml nor inventory/*.yaml",
            hint="`gpuctl inventory init` writes a first one; or name it with --inventory or GPUCTL_INVENTORY",
        )
    files = tuple(Path(path) for path in paths)
    merged = _Merged()
    for index, file in enumerate(files):
        document = _read(file)
        merged.mistakes.extend((index, mistake) for mistake in document.mistakes)
        _merge(merged, index, files, document)
    inventory = _validate(merged)
    if merged.mistakes or inventory is None:
        raise _report(files, merged)
    return Loaded(
        inventory=inventory,
        files=files,
        base=files[0].absolute().parent,
        bases=MappingProxyType(merged.bases),
    )


def _read(file: Path) -> positions.Document:
    from inventory import positions

    def broken(line: int, message: str) -> positions.Document:
        return positions.Document(mistakes=[positions.Mistake(line, (), message)])

    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return broken(0, f"can't be read: {error.strerror}")
    except ValueError:
        return broken(0, "can't be read: no such name is possible")
    if len(data) > MAX_BYTES:
        return broken(0, f"is larger than {MAX_BYTES} bytes: this is no inventory")
    try:
        return positions.parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return broken(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text")


def _merge(merged: _Merged, index: int, files: tuple[Path, ...], document: positions.Document) -> None:
    """Put one file's values into the whole; a name that is already there is a mistake naming both places."""
    if document.data is None:
        return
    if not isinstance(document.data, dict):
        merged.add(index, 1, (), "must be a mapping with the keys hosts, containers, thresholds")
        return
    base = files[index].absolute().parent
    for key, value in document.data.items():
        if key in (*_NAMED, "thresholds") and isinstance(value, dict):
            into = merged.data.setdefault(key, {})
            merged.places.setdefault((key,), (index, document.lines[(key,)]))
            for name, inner in value.items():
                if isinstance(into, dict) and _claim(merged, index, files, document, (key, name)):
                    into[name] = inner
                    if key in _NAMED:
                        merged.bases[name] = base
        elif _claim(merged, index, files, document, (key,)):
            merged.data[key] = value


def _claim(
    merged: _Merged, index: int, files: tuple[Path, ...], document: positions.Document, path: positions.Path
) -> bool:
    if path in merged.places:
        other, line = merged.places[path]
        word = {"hosts": "host", "containers": "container"}.get(str(path[0]), "key")
        merged.add(
            index,
            document.lines[path],
            path,
            f"{word} {path[-1]!r} is already in {_shown(files[other])}, line {line}",
        )
        return False
    size = len(path)
    merged.places.update({at: (index, line) for at, line in document.lines.items() if at[:size] == path})
    return True


@functools.cache
def _adapter() -> TypeAdapter[Inventory]:
    from pydantic import TypeAdapter

    return TypeAdapter(Inventory)


def _validate(merged: _Merged) -> Inventory | None:
    from pydantic import ValidationError

    from inventory import rules, wording

    for key in [key for key in merged.data if key not in keys_at(())]:
        index, line = merged.place((key,))
        merged.add(index, line, (key,), f"unknown key {key!r}{suggestion(key, keys_at(()))}")
        del merged.data[key]
    inventory = None
    try:
        # By way of JSON: there "strict" means no text for a number, and still a list for a tuple.
        inventory = _adapter().validate_json(json.dumps(merged.data), strict=True)
    except ValidationError as error:
        for entry in error.errors(include_url=False, include_input=False):
            path = tuple(entry["loc"])
            merged.add(*merged.place(path), path, wording.sentence(entry, path, _at(merged.data, path)))
    typed = {mistake.path for _, mistake in merged.mistakes}
    for path, message in rules.check(merged.data):
        if path not in typed:
            merged.add(*merged.place(path), path, message)
    return inventory


def _at(data: Any, path: positions.Path) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _shown(file: Path) -> str:
    """As a person in this folder would name it."""
    with contextlib.suppress(ValueError, OSError):
        return str(file.relative_to(Path.cwd()))
    return str(file)


def _report(files: tuple[Path, ...], merged: _Merged) -> ConfigError:
    lines = []
    for index, mistake in sorted(merged.mistakes, key=lambda entry: (entry[0], entry[1].line)):
        file = _shown(files[index])
        where = f"{file}:{mistake.line}: " if mistake.line else f"{file}: "
        path = f"[{'.'.join(str(part) for part in mistake.path)}] " if mistake.path else ""
        lines.append(f"{where}{path}{mistake.message}")
    unique = tuple(dict.fromkeys(lines))
    count = len(unique)
    return ConfigError(
        f"the inventory has {count} mistakes" if count != 1 else "the inventory has 1 mistake",
        hint="`gpuctl inventory schema` prints a JSON Schema with which editors complete and check these files",
        detail=unique,
    )
