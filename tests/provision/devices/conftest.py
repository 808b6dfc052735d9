"""Recorded configurations of the real Proxmox code, and small builders."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def recorded(field: dict[str, str]) -> bytes:
    """The bytes of a recorded field."""
    if "text" in field:
        return field["text"].encode()
    if "b64" in field:
        return base64.b64decode(field["b64"])
    return zlib.decompress(base64.b64decode(field["zb64"]))


def vectors(name: str) -> list[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
