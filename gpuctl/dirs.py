"""Where gpuctl keeps its own files, by the XDG base directory rules."""

from __future__ import annotations

import os
from pathlib import Path

from inventory.errors import CannotLook


def _folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "")
    # The specification says that a relative value must be ignored.
    path = (Path(base) if base.startswith("/") else Path.home() / default) / "gpuctl"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CannotLook(
            f"cannot make the folder {path}: {error.strerror}", hint=f"set {variable} to a folder you may write to"
        ) from error
    return path


def state() -> Path:
    """Journals and locks: `$XDG_STATE_HOME/gpuctl`."""
    return _folder("XDG_STATE_HOME", ".local/state")


def data() -> Path:
    """Results and baselines: `$XDG_DATA_HOME/gpuctl`."""
    return _folder("XDG_DATA_HOME", ".local/share")


def cache() -> Path:
    """Files that can be made again: `$XDG_CACHE_HOME/gpuctl`."""
    return _folder("XDG_CACHE_HOME", ".cache")
