"""vLLM: command lines, /server_info read-back and counters (facts read from the 0.33.0 wheel)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bench.engines.adapter import Drafts, Probe, ReadBack, assemble, need_draft, refuse
from bench.engines.prometheus import Samples, by_label, total
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method

KIND: Final = EngineKind.VLLM
PROBES: Final = (
    Probe("server_info", "/server_info?config_format=json"),
    Probe("version", "/version"),
    Probe("models", "/v1/models"),
)

SPECULATION: Final[Mapping[Method, Mapping[str, Any]]] = {
    Method.MTP: {"method": "mtp", "num_speculative_tokens": 3},
    Method.DFLASH: {"method": "dflash", "num_speculative_tokens": 15},
    Method.EAGLE3: {"method": "eagle3", "num_speculative_tokens": 3},
    Method.NGRAM: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    Method.DRAFT: {"method": "draft_model", "num_speculative_tokens": 4},
}
"""`--speculative-config` of each method, without the draft model's path."""

_DRAFT_MODEL: Final = (Method.DFLASH, Method.EAGLE3, Method.DRAFT)
_EXTRA: Final[Mapping[Method, tuple[str, ...]]] = {
    Method.DFLASH: ("--attention-backend", "flash_attn", "--max-num-batched-tokens", "32768"),
}
_ENV: Final = {
    # Dev mode opens /server_info, by which the method is read back.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
_NATIVE: Final = {"qwen3_5_mtp": "mtp", "qwen3_next_mtp": "mtp", "ngram_gpu": "ngram", "draft_model": "draft"}


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """`vllm serve MODEL ...`. Raises `Refused` for ddtree and for a draft method without a draft model."""
    can = (Method.AUTO, *SPECULATION)
    if method not in can:
        raise refuse(KIND, method, can, "no stock vLLM has ddtree; builds that do: vllm_ddtree forks, or lucebox")
    program = engine.command or ((f"{engine.venv}/bin/vllm" if engine.venv else "vllm"), "serve")
    argv = [*program, engine.model, "--host", "127.0.0.1", "--port", str(engine.port)]
    argv += ["--tensor-parallel-size", str(tp), "--max-model-len", "32768", "--max-num-seqs", "8"]
    argv += ["--enable-prompt-tokens-details"]
    if engine.served_name:
        argv += ["--served-model-name", engine.served_name]
    draft = ""
    if method is not Method.AUTO:
        config = dict(SPECULATION[method])
        if method in _DRAFT_MODEL:
            draft = config["model"] = need_draft(engine, method)
        argv += ["--speculative-config", json.dumps(config), *_EXTRA.get(method, ())]
    return assemble(engine, method, tp, tuple(argv), ready_path="/health", env=_ENV, draft=draft)


def read_back(bodies: Mapping[str, Any]) -> ReadBack:
    """From /server_info (dev mode), /version and /v1/models."""
    config = (bodies.get("server_info") or {}).get("vllm_config") or {}
    models = (bodies.get("models") or {}).get("data") or [{}]
    native, method = "", ""
    if config:
        speculation = config.get("speculative_config") or {}
        native = str(speculation.get("method") or "none")
        method = Method.AUTO.value if native == "none" else _NATIVE.get(native, native)
    parallel = config.get("parallel_config") or {}
    return ReadBack(
        version=str((bodies.get("version") or {}).get("version", "")),
        model=str((config.get("model_config") or {}).get("model") or models[0].get("root") or ""),
        method=method,
        native_method=native,
        tp=parallel.get("tensor_parallel_size"),
        context=(config.get("model_config") or {}).get("max_model_len") or models[0].get("max_model_len"),
        parallel=(config.get("scheduler_config") or {}).get("max_num_seqs"),
    )


def drafts(metrics: Samples) -> Drafts | None:
    """The `vllm:spec_decode_*` counters; they exist only while speculation is on."""
    steps = total(metrics, "vllm:spec_decode_num_drafts_total")
    if steps is None:
        return None
    return Drafts(
        steps,
        total(metrics, "vllm:spec_decode_num_draft_tokens_total") or 0.0,
        total(metrics, "vllm:spec_decode_num_accepted_tokens_total") or 0.0,
        by_label(metrics, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position"),
    )
