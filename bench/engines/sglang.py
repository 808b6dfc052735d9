"""SGLang: command lines, /server_info read-back and counters (facts read from the 0.5.23 wheel)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.engines.adapter import Drafts, Probe, ReadBack, assemble, need_draft, refuse
from bench.engines.prometheus import Samples, total
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method

KIND: Final = EngineKind.SGLANG
PROBES: Final = (Probe("server_info", "/server_info"), Probe("models", "/v1/models"))

SPECULATION: Final[Mapping[Method, tuple[str, ...]]] = {
    Method.MTP: (
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    ),
    Method.DFLASH: (
        *("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "16"),
        *("--mamba-radix-cache-strategy", "extra_buffer", "--trust-remote-code"),
    ),
    Method.EAGLE3: ("--speculative-algorithm", "EAGLE3"),
    Method.NGRAM: ("--speculative-algorithm", "NGRAM"),
    Method.DRAFT: ("--speculative-algorithm", "STANDALONE"),
}
"""Arguments of each method, without the draft model's path."""

_DRAFT_MODEL: Final = (Method.DFLASH, Method.EAGLE3, Method.DRAFT)
_ENV: Final = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
# NEXTN is an alias that the server resolves to EAGLE before it reports itself.
_NATIVE: Final = {
    "EAGLE": "mtp",
    "NEXTN": "mtp",
    "DFLASH": "dflash",
    "EAGLE3": "eagle3",
    "NGRAM": "ngram",
    "STANDALONE": "draft",
    "DDTREE": "ddtree",
}


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """`python -m sglang.launch_server ...`. Raises `Refused` for ddtree and a missing draft model."""
    can = (Method.AUTO, *SPECULATION)
    if method not in can:
        builds = "SGLang 0.5.23 has no ddtree; builds with --speculative-algorithm DDTREE and lucebox have"
        raise refuse(KIND, method, can, builds)
    python = f"{engine.venv}/bin/python" if engine.venv else "python3"
    argv = [*(engine.command or (python, "-m", "sglang.launch_server"))]
    argv += ["--model-path", engine.model, "--host", "127.0.0.1", "--port", str(engine.port)]
    argv += ["--tp-size", str(tp), "--enable-metrics", "--enable-cache-report"]
    if engine.served_name:
        argv += ["--served-model-name", engine.served_name]
    draft = ""
    if method is not Method.AUTO:
        argv += SPECULATION[method]
        if method in _DRAFT_MODEL:
            draft = need_draft(engine, method)
            argv += ["--speculative-draft-model-path", draft]
    return assemble(engine, method, tp, tuple(argv), ready_path="/health_generate", env=_ENV, draft=draft)


def read_back(bodies: Mapping[str, Any]) -> ReadBack:
    """From /server_info: all resolved arguments of the server."""
    info = bodies.get("server_info") or {}
    native, method = "", ""
    if info:
        native = str(info.get("speculative_algorithm") or "none")
        method = Method.AUTO.value if native == "none" else _NATIVE.get(native.upper(), native.lower())
    return ReadBack(
        version=str(info.get("version", "")),
        model=str(info.get("model_path", "")),
        method=method,
        native_method=native,
        tp=info.get("tp_size"),
        context=info.get("context_length"),
        parallel=info.get("max_running_requests"),
    )


def drafts(metrics: Samples) -> Drafts | None:
    """SGLang counts verify steps and generated tokens, so tau = tokens / steps and accepted = tokens - steps."""
    steps = total(metrics, "sglang:spec_verify_calls_total")
    if steps is None:
        return None
    tokens = total(metrics, "sglang:generation_tokens_total") or 0.0
    drafted = steps * (total(metrics, "sglang:spec_num_draft_tokens") or 0.0)
    return Drafts(steps, drafted, max(0.0, tokens - steps))
