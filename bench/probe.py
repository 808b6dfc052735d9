"""Ask a running engine what it is and what its draft counters say, and judge whether a method was active."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.client import Address, get
from bench.engines.adapter import Adapter, Drafts, ReadBack
from bench.engines.prometheus import parse
from bench.result import Proof


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an engine."""

    readback: ReadBack
    drafts: Drafts | None
    """None: it counts no drafts (or shows no metrics)."""
    models: tuple[str, ...]
    """Ids of /v1/models."""


def look(address: Address, adapter: Adapter) -> Look:
    """GET the adapter's probes, /v1/models and /metrics; what does not answer is left out."""
    bodies: dict[str, Any] = {}
    for probe in adapter.PROBES:
        body = get(address, probe.path).json()
        if body is not None:
            bodies[probe.name] = body
    if "models" not in bodies:
        bodies["models"] = get(address, "/v1/models").json()
    metrics = get(address, "/metrics")
    drafts = adapter.drafts(parse(metrics.text)) if metrics.status == 200 else None
    return Look(
        adapter.read_back({k: v for k, v in bodies.items() if v is not None}), drafts, _ids(bodies["models"])
    )


def _ids(body: Any) -> tuple[str, ...]:
    data = body.get("data") if isinstance(body, Mapping) else None
    if not isinstance(data, list):
        return ()
    return tuple(str(one["id"]) for one in data if isinstance(one, Mapping) and "id" in one)


def prove(method: str, before: Look, after: Look) -> Proof:
    """Whether `method` was active between two looks.

    Read back as configured; for `auto` no draft may have been counted, for the others drafts must have
    grown and some must have been accepted.
    """
    growth: Drafts | None = None
    if after.drafts is not None:
        growth = after.drafts.since(before.drafts) if before.drafts is not None else after.drafts
    proven, why = _judge(method, after.readback, growth)
    return Proof(
        proven=proven,
        why=why,
        before=before.readback.to_json(),
        after=after.readback.to_json(),
        drafts=growth.to_json() if growth else {},
    )


def _judge(method: str, shown: ReadBack, growth: Drafts | None) -> tuple[bool, str]:
    if not shown.method:
        return False, "the engine does not report its method"
    if shown.method != method:
        native = shown.native_method or shown.method
        return False, f"the engine reports {native}, which is {shown.method} and not {method}"
    drafted = growth.steps if growth else 0.0
    if method == "auto":
        if drafted:
            return False, f"the configuration shows no speculation, but {drafted:.0f} drafts were verified"
        counters = "absent" if growth is None else "still"
        return True, f"the configuration shows no speculation and draft counters are {counters}"
    if growth is None or not drafted:
        return False, "the configuration is right, but no draft was counted during the runs"
    if growth.accepted <= 0:
        return False, f"of {growth.drafted:.0f} drafted tokens none was accepted"
    return True, f"configuration read back; {growth.accepted:.0f} of {growth.drafted:.0f} drafted tokens accepted"
