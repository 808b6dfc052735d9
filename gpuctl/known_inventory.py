"""An inventory is checked once for each content of its files; later commands take what was checked then.

Checking loads pydantic and YAML and builds their validators, which costs more time than most commands need for all
else. Remembered is the checked value under the hash of the files' bytes and of the code that checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import sys
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gpuctl import __version__, dirs
from inventory import model
from inventory.errors import CannotLook

if TYPE_CHECKING:
    from inventory.loader import Loaded

KEPT: Final = 8
"""Remembered inventories; the oldest are removed."""


class _Writer(pickle.Pickler):
    """Writes a member of an enumeration by its value: some versions of Python 3.11 write `getattr` instead."""

    def reducer_override(self, obj: Any) -> Any:
        return (type(obj), (obj.value,)) if isinstance(obj, Enum) else NotImplemented


class _Reader(pickle.Unpickler):
    """Makes values of `inventory.model` and nothing else, whatever the file says."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "inventory.model" and name in vars(model):
            return getattr(model, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an inventory")


def load(files: tuple[Path, ...]) -> Loaded:
    """The same as `inventory.loader.load`, and the same errors.

    Only a good inventory is remembered; one with a secret in clear is none.
    """
    try:
        place = _place(files)
        found = _recall(place, files)
    except (OSError, CannotLook):
        place, found = None, None
    if found is not None:
        return found
    from inventory.loader import load as check

    loaded = check(files)
    if place is not None:
        with contextlib.suppress(OSError):
            _remember(place, loaded)
    return loaded


def _place(files: tuple[Path, ...]) -> Path:
    """The file for this content, these paths and this code."""
    digest = hashlib.sha256(f"{__version__} {sys.version} {Path.cwd()}".encode())
    for source in sorted(Path(str(model.__file__)).parent.glob("*.py")):
        found = source.stat()
        digest.update(f"{source.name} {found.st_size} {found.st_mtime_ns}".encode())
    for file in files:
        with file.open("rb") as stream:
            data = stream.read(1 << 20)
        digest.update(f"\0{file.absolute()}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return dirs.cache() / "inventory" / f"{digest.hexdigest()}.pickle"


def _recall(place: Path, files: tuple[Path, ...]) -> Loaded | None:
    try:
        data = place.read_bytes()
    except FileNotFoundError:
        return None
    from inventory.loader import Loaded

    try:
        inventory, base, bases = _Reader(io.BytesIO(data)).load()
        if not isinstance(inventory, model.Inventory):
            return None
        named = MappingProxyType({str(name): Path(folder) for name, folder in bases.items()})
        return Loaded(inventory, files, Path(base), named)
    except Exception:
        # Half a file, or one of another version: checked again like any other.
        return None


def _remember(place: Path, loaded: Loaded) -> None:
    place.parent.mkdir(mode=0o700, exist_ok=True)
    bases = {name: str(folder) for name, folder in loaded.bases.items()}
    data = io.BytesIO()
    _Writer(data).dump((loaded.inventory, str(loaded.base), bases))
    staging = place.with_suffix(f".{os.getpid()}.tmp")
    handle = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data.getvalue())
    staging.replace(place)
    kept = sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    # The new one stays whatever a clock that was set back says of its age.
    for path in [path for path in kept if path != place][KEPT - 1 :]:
        path.unlink(missing_ok=True)
