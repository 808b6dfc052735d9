"""A tiny model repository: two real safetensors shards of 1.5 MB, their index, a config and an empty file."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping

from gpuctl.lab.hub.repo import HubRepo

NAME = "lab/tiny"


def shard(seed: int, size: int = 1_500_000) -> bytes:
    """A safetensors file of one tensor of `size` bytes; the same bytes for the same seed."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
FILES: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "llama"}\n',
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": FIRST, "b": SECOND}}).encode(),
    "sub/empty.txt": b"",
    FIRST: shard(1),
    SECOND: shard(2),
}
TINY = HubRepo(NAME, dict(FILES))
