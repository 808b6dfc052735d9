"""Does a folder hold a whole model? Every shard its index names, every safetensors file as long as its header says."""

from __future__ import annotations

import json
import struct
from pathlib import Path, PurePosixPath

from inventory.errors import Failed
from provision.weights.model import RemoteFile

_INDEX = ".safetensors.index.json"
_HEADER_MAX = 100_000_000
"""The safetensors format's own limit of the header, in bytes."""


def check_index(repo: str, folder: Path, files: tuple[RemoteFile, ...]) -> None:
    """Raise `Failed` when an index names a shard outside the selection: an engine would load garbage."""
    have = {file.path for file in files}
    for file in files:
        if not file.path.endswith(_INDEX) or not (folder / file.path).exists():
            continue
        try:
            named = json.loads((folder / file.path).read_text(encoding="utf-8"))["weight_map"].values()
            shards = sorted({str(PurePosixPath(file.path).parent / name) for name in named})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failed(f"{repo}: {file.path} is not an index of safetensors shards ({error})") from error
        missing = [shard for shard in shards if shard not in have]
        if missing:
            raise Failed(
                f"{repo}: {file.path} names {missing[0]}, which is not among the files to stage",
                hint=f"{len(missing)} of {len(shards)} shards are missing: widen include, or choose another revision",
            )


def check_shards(repo: str, folder: Path, files: tuple[RemoteFile, ...]) -> None:
    """Raise `Failed` when a safetensors file ends before the last tensor its header names."""
    for file in files:
        if file.path.endswith(".safetensors"):
            reason = _shard(folder / file.path, file.size)
            if reason:
                raise Failed(
                    f"{repo}: {file.path} is broken in the repository itself: {reason}",
                    hint="its digest is the listed one, so it was uploaded like this; choose another revision",
                )


def _shard(path: Path, size: int) -> str:
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < length <= min(_HEADER_MAX, size - 8):
            return "it has no safetensors header"
        try:
            header = json.loads(file.read(length))
            ends = [int(value["data_offsets"][1]) for name, value in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "its safetensors header is not readable"
    expected = 8 + length + max(ends, default=0)
    return "" if expected == size else f"its header needs {expected} bytes, it has {size}"
