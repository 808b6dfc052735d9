"""The engines gpuctl can drive, as a literal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.engines import custom, llama_cpp, lucebox, sglang, vllm
from bench.engines.adapter import Adapter
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method

ADAPTERS: Final[Mapping[EngineKind, Adapter]] = {
    EngineKind.LLAMA_CPP: llama_cpp,
    EngineKind.VLLM: vllm,
    EngineKind.SGLANG: sglang,
    EngineKind.LUCEBOX: lucebox,
    EngineKind.CUSTOM: custom,
}


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """The command line of `engine` with `method`; raises `Refused` or `ConfigError` when that can't be."""
    return ADAPTERS[engine.kind].launch(engine, method, tp)
