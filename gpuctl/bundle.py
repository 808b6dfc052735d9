"""Build the zip application: our packages and the pure-Python libraries they need, one file named by its hash.

It holds sources and, beside them, bytecode of the building Python: a container with the same minor version
starts without compiling, any other falls back to the sources (the magic number is checked).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuctl import dirs
from inventory.errors import Failed

OURS: Final[dict[str, tuple[str, ...]]] = {
    "gpuctl": ("__init__.py", "agent.py", "hello.py"),
    "inventory": ("__init__.py", "errors.py", "launch.py", "machine.py", "model.py", "reentry.py", "root.py"),
    "provision": (),
    "checks": (),
    "bench": (),
}
"""Files of each package that belong to the other side, all of it where none is named; the rest is the admin's alone."""

CORE: Final = ("annotated-types", "nvidia-ml-py", "tenacity")
"""Distributions that every job may need."""

HUB: Final = (
    "anyio",
    "certifi",
    "click",
    "filelock",
    "fsspec",
    "h11",
    "httpcore2",
    "httpx2",
    "huggingface-hub",
    "idna",
    "packaging",
    "pyyaml",
    "tqdm",
    "truststore",
    "typing-extensions",
)
"""huggingface-hub and what it needs; compiled parts (`*.so`) stay out, hf-xet is compiled and stays out whole.

They travel as one member, `libraries.zip`, and stay one file there: these 2,000 would take seconds to unpack.
"""

_MAIN: Final = b"""\
import sys
if sys.version_info < (3, 11):
    print('{"type":"error","kind":"failed","message":"python3 here is %d.%d; gpuctl needs 3.11 or newer",'
          '"hint":"install a newer python3 on that machine"}' % sys.version_info[:2])
    raise SystemExit(2)
from gpuctl.agent import main
raise SystemExit(main())
"""

_EPOCH: Final = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A built zip application."""

    path: Path
    name: str
    """File name that carries the hash of the content: `agent-<16 hex digits>.pyz`."""


def _own_files() -> Iterator[tuple[str, str]]:
    """Name inside the application, and path. By os.walk: pathlib takes five times as long, at every command."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    for package, names in OURS.items():
        for folder, folders, files in os.walk(f"{root}/{package}"):
            folders[:] = [] if names else sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names or files):
                path = f"{folder}/{name}"
                yield path[len(root) + 1 :], path


def _library_files(names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    import importlib.metadata

    for library in names:
        try:
            distribution = importlib.metadata.distribution(library)
        except importlib.metadata.PackageNotFoundError as error:
            raise Failed(
                f"library {library} is missing from this installation",
                hint="install gpuctl again with its locked requirements (see README)",
            ) from error
        for file in distribution.files or ():
            inside = file.as_posix()
            if inside.startswith(("..", "_yaml/")):
                continue
            if inside.endswith((".py", "METADATA", "cacert.pem")):
                yield inside, Path(str(distribution.locate_file(file)))


def _versions(names: tuple[str, ...]) -> str:
    """Changes whenever these libraries could: versions and this Python."""
    import importlib.metadata

    parts = [sys.version, *(f"{name} {importlib.metadata.version(name)}" for name in names)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _quick_key() -> str:
    """Changes whenever the bundle could: own files by size and time, libraries by the folder they are installed in.

    A library that comes, goes or changes its version changes that folder's time: its dist-info is named by the version.
    """
    import click

    installed = Path(click.__file__).parent.parent.stat()
    parts = [f"{sys.version} {installed.st_mtime_ns} {installed.st_ino}"]
    for inside, path in _own_files():
        stat = os.stat(path)  # noqa: PTH116
        parts.append(f"{inside} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _bytecode(inside: str, source: bytes, path: Path | None) -> bytes | None:
    """The module as an unchecked hash pyc (PEP 552): magic, flags 0b01, source hash, code."""
    code = _compiled_already(path) if path is not None else None
    if code is None:
        try:
            code = marshal.dumps(compile(source, inside, "exec", dont_inherit=True, optimize=0))
        except SyntaxError:
            return None
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source) + code


def _compiled_already(path: Path) -> bytes | None:
    """What pip compiled when it installed the library: 3 s less for the first run."""
    try:
        data, stat = Path(importlib.util.cache_from_source(str(path))).read_bytes(), path.stat()
    except (OSError, ValueError):
        return None
    fresh = int(stat.st_mtime).to_bytes(8, "little")[:4] + stat.st_size.to_bytes(8, "little")[:4]
    return data[16:] if data[:16] == importlib.util.MAGIC_NUMBER + bytes(4) + fresh else None


def _write(target: Path, files: Iterable[tuple[str, bytes, Path | None]]) -> None:
    import zipfile

    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for inside, data, path in files:
            how = zipfile.ZIP_STORED if inside.endswith(".zip") else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(inside, _EPOCH), data, how, 6)
            if inside.endswith(".py") and (code := _bytecode(inside, data, path)) is not None:
                archive.writestr(zipfile.ZipInfo(inside + "c", _EPOCH), code, how, 6)


def _read(files: Iterable[tuple[str, Path]], *, ours: bool = False) -> Iterator[tuple[str, bytes, Path | None]]:
    for inside, path in files:
        # Our own code is compiled here, so that no path of this machine travels in it.
        yield inside, path.read_bytes(), None if ours else path


def _placed(folder: Path, name: str, files: Iterable[tuple[str, bytes, Path | None]]) -> Path:
    """The zip file `folder`/`name`, `HASH` in the name replaced by the hash of its content."""

    staging = folder / f"{name}.{os.getpid()}.tmp"
    try:
        _write(staging, files)
        target = folder / name.replace("HASH", hashlib.sha256(staging.read_bytes()).hexdigest()[:16])
        staging.replace(target)
    finally:
        staging.unlink(missing_ok=True)
    return target


def _hub_libraries(folder: Path) -> bytes:
    """`libraries.zip`; it changes only with the libraries, so it is kept apart from our own code."""
    path = folder / f"libraries-{_versions(HUB)}.zip"
    if not path.is_file():
        _placed(folder, path.name, _read(_library_files(HUB)))
    return path.read_bytes()


def build() -> Bundle:
    """The zip application for this installation; built once and kept in the cache folder."""
    folder = dirs.cache()
    index = folder / "agent.json"
    key = _quick_key()
    try:
        known = json.loads(index.read_text())
        path = folder / str(known["name"])
        if known["key"] == key and path.is_file():
            return Bundle(path, path.name)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    files = [
        ("__main__.py", _MAIN, None),
        *_read(((inside, Path(path)) for inside, path in _own_files()), ours=True),
        *_read(_library_files(CORE)),
        ("libraries.zip", _hub_libraries(folder), None),
    ]
    made = _placed(folder, "agent-HASH.pyz", files)
    pointer = folder / f"agent.{os.getpid()}.json.tmp"
    pointer.write_text(json.dumps({"key": key, "name": made.name}))
    pointer.replace(index)
    for old in folder.glob("agent-*.pyz"):
        if old.name != made.name:
            old.unlink(missing_ok=True)
    return Bundle(made, made.name)
