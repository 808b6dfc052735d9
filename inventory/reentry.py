"""Start our own code again in a fresh interpreter, from the zip application or from an installation alike."""

from __future__ import annotations

import sys
from pathlib import Path

import inventory

_LAUNCH = (
    "import sys, importlib; sys.path.insert(0, sys.argv[1]); m = importlib.import_module(sys.argv[2]); "
    "sys.argv = sys.argv[2:]; sys.exit(m.main(sys.argv[1:]))"
)


def home() -> str:
    """The `sys.path` entry that holds our packages: a folder, or the zip application's file."""
    # `inventory.__file__` is HOME/inventory/__init__.py, also when HOME is a zip file.
    return str(Path(str(inventory.__file__)).parent.parent)


def command(module: str, *args: str) -> list[str]:
    """argv that imports `module` and exits with `module.main([*args])`.

    Exec'd, never forked: CUDA must not be initialised in a forked child (error 3).
    """
    return [sys.executable, "-c", _LAUNCH, home(), module, *args]
