"""lucebox `dflash_server`: GGUF target and draft on CUDA, one request at a time, DFlash or a draft tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.engines.adapter import Drafts, Probe, ReadBack, assemble, need_draft, refuse
from bench.engines.prometheus import Samples
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method

KIND: Final = EngineKind.LUCEBOX
PROBES: Final = (Probe("models", "/v1/models"),)

SPECULATION: Final[Mapping[Method, tuple[str, ...]]] = {
    Method.DFLASH: (),
    Method.DDTREE: ("--ddtree", "--ddtree-budget", "22"),
}


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """`dflash_server TARGET --draft DRAFT ...`. Raises `Refused` for other methods and for tp > 1."""
    if method not in SPECULATION:
        raise refuse(KIND, method, tuple(SPECULATION), f"use llama.cpp, vllm or sglang for {method}")
    if tp != 1:
        raise refuse(KIND, method, tuple(SPECULATION), f"tensor-parallel size {tp}: lucebox serves from one GPU")
    draft = need_draft(engine, method)
    argv = [*(engine.command or ("dflash_server",)), engine.model, "--draft", draft]
    argv += ["--host", "127.0.0.1", "--port", str(engine.port), *SPECULATION[method]]
    return assemble(engine, method, tp, tuple(argv), ready_path="/v1/models", draft=draft)


def read_back(bodies: Mapping[str, Any]) -> ReadBack:
    """Only the model's name: this server does not report its method."""
    data = (bodies.get("models") or {}).get("data") or [{}]
    return ReadBack(model=str(data[0].get("id", "")), parallel=1)


def drafts(metrics: Samples) -> Drafts | None:
    """None: no counters known."""
    del metrics
    return None
