"""A baseline: a stored result of method `auto` for one verified configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from bench.result import Result


def key_of(result: Result) -> str:
    """16 hex digits over everything that must be equal for two rates to be comparable, except the method."""
    readback = result.proof.after
    parts = {
        "lab": result.lab,
        "kind": result.kind,
        "engine_version": result.engine_version,
        "model": result.model,
        "tp": result.tp,
        "think": result.think,
        "temperature": result.temperature,
        "concurrency": result.concurrency,
        "shapes": [(shape.task, shape.prompt_version, shape.max_tokens) for shape in result.shapes],
        "cpu": [result.cpu.get("model"), result.cpu.get("cores")],
        "gpus": [(gpu.get("name"), gpu.get("power_limit_w")) for gpu in result.gpus],
        "context": readback.get("context"),
        "parallel": readback.get("parallel"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def find(results: Iterable[Result], key: str, boot: str | None = None) -> Result | None:
    """The newest proven `auto` result of that key with a rate; of one boot, or of any when `boot` is None."""
    fitting = [
        result
        for result in results
        if result.method == "auto"
        and result.proof.proven
        and result.decode is not None
        and boot in (None, result.boot_id)
        and key_of(result) == key
    ]
    return max(fitting, key=lambda result: result.started_at, default=None)
