"""Where the file system begins: `/`, or the folder in GPUCTL_ROOT (fixture trees, the lab without namespaces)."""

from __future__ import annotations

import os


def at(path: str) -> str:
    """The real place of an absolute `path`; read at each call, so a test may set the variable."""
    root = os.environ.get("GPUCTL_ROOT", "")
    return root.rstrip("/") + path if root and path.startswith("/") else path
