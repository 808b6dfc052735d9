"""llama.cpp: its server inside the Python package xllamacpp (no GPU needed), or a real `llama-server`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.engines.adapter import Drafts, Probe, ReadBack, assemble, need_draft, refuse
from bench.engines.prometheus import Samples, by_label, total
from inventory.launch import HOME, Launch
from inventory.model import Engine, EngineKind, Method

KIND: Final = EngineKind.LLAMA_CPP
PROBES: Final = (Probe("slots", "/slots"), Probe("props", "/props"), Probe("models", "/v1/models"))

SPEC_TYPES: Final[Mapping[Method, str]] = {
    Method.NGRAM: "ngram-mod",
    Method.DRAFT: "draft-simple",
    Method.MTP: "draft-mtp",
    Method.DFLASH: "draft-dflash",
    Method.EAGLE3: "draft-eagle3",
}
"""Our method -> the server's `speculative.types` word (read from /slots of llama.cpp b11549)."""

_DRAFT_MODEL: Final = (Method.DRAFT, Method.DFLASH, Method.EAGLE3)
_DRAFT_MAX: Final[Mapping[Method, int]] = {Method.DRAFT: 4, Method.MTP: 3, Method.DFLASH: 15, Method.EAGLE3: 3}

# Our launcher is imported with our code in front, then the path is taken away again: neither our pure
# libraries may shadow the engine's, nor a package called `bench` of the engine's environment ours.
_ENTER: Final = (
    "import importlib, sys; sys.path.insert(0, sys.argv[1]); m = importlib.import_module(sys.argv[2]); "
    "sys.path.pop(0); sys.exit(m.main(sys.argv[3:]))"
)


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """`VENV/bin/python` running our launcher, or `command`, or `llama-server` from the PATH.

    Raises `Refused` for ddtree, and for a draft method without a draft model.
    """
    can = (Method.AUTO, *SPEC_TYPES)
    if method not in can:
        raise refuse(KIND, method, can, "ddtree needs lucebox's dflash_server, or an SGLang or vLLM build with it")
    argv: list[str] = []
    if engine.command:
        argv += engine.command
    elif engine.venv:
        argv += [f"{engine.venv}/bin/python", "-c", _ENTER, HOME, "bench.engines.serve_llama"]
    else:
        argv += ["llama-server"]
    argv += ["--model", engine.model, "--host", "127.0.0.1", "--port", str(engine.port)]
    argv += ["--parallel", "1", "--metrics", "--slots", "--props"]
    if engine.served_name:
        argv += ["--alias", engine.served_name]
    draft = ""
    if method is not Method.AUTO:
        argv += ["--spec-type", SPEC_TYPES[method]]
        if method in _DRAFT_MODEL:
            draft = need_draft(engine, method)
            argv += ["--model-draft", draft]
        if method in _DRAFT_MAX:
            argv += ["--draft-max", str(_DRAFT_MAX[method])]
    return assemble(engine, method, tp, tuple(argv), ready_path="/health", draft=draft)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(value: Any) -> Mapping[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def read_back(bodies: Mapping[str, Any]) -> ReadBack:
    """From /slots, /props and /v1/models.

    Only /slots tells the method, and only after a first request; /props says "none" even while
    speculation is on (seen on b11549).
    """
    slot, props = _first(bodies.get("slots")), _mapping(bodies.get("props"))
    model = _first(_mapping(bodies.get("models")).get("data"))
    params = _mapping(slot.get("params"))
    native = str(params.get("speculative.types", "none")) if params else ""
    method = ""
    if native:
        on = bool(slot.get("speculative")) and native != "none"
        names = {word: ours.value for ours, word in SPEC_TYPES.items()}
        method = names.get(native, native) if on else Method.AUTO.value
    context, parallel = slot.get("n_ctx"), props.get("total_slots")
    return ReadBack(
        version=_version(props, model),
        model=str(props.get("model_path") or model.get("id", "")),
        method=method,
        native_method=native,
        context=context if isinstance(context, int) else None,
        parallel=parallel if isinstance(parallel, int) else None,
    )


def _version(props: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    version = str(props.get("build_info", ""))
    if version and not version.endswith("-unknown"):
        return version
    # The build inside xllamacpp calls itself b0-unknown; our launcher says its version as a tag.
    tags = [str(tag) for tag in model.get("tags") or ()]
    return next((tag for tag in tags if tag.startswith("xllamacpp ")), "")


def drafts(metrics: Samples) -> Drafts | None:
    """The `llamacpp:spec_decode_*` counters."""
    steps = total(metrics, "llamacpp:spec_decode_num_drafts_total")
    if steps is None:
        return None
    return Drafts(
        steps,
        total(metrics, "llamacpp:spec_decode_num_draft_tokens_total") or 0.0,
        total(metrics, "llamacpp:spec_decode_num_accepted_tokens_total") or 0.0,
        by_label(metrics, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "position"),
    )
