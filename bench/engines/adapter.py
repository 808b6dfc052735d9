"""What gpuctl knows of an engine kind: the protocol of an adapter and the values it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench.engines.prometheus import Samples
from inventory.errors import Refused
from inventory.launch import Launch, key_of
from inventory.model import Engine, EngineKind, Method


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What a running engine says about itself; empty or None where it does not say."""

    version: str = ""
    model: str = ""
    """The model path or repository the engine itself names."""
    method: str = ""
    """Our name of the method that its configuration shows; `auto` when it shows no speculation."""
    native_method: str = ""
    """The engine's own word for it, for example `EAGLE` for mtp in SGLang."""
    tp: int | None = None
    context: int | None = None
    """Tokens per sequence."""
    parallel: int | None = None
    """Sequences served at a time."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Counters of speculation since the engine's start. `tau` = mean accepted tokens per step, bonus included."""

    steps: float
    drafted: float
    accepted: float
    per_position: tuple[float, ...] = ()

    def since(self, earlier: Drafts) -> Drafts:
        """The growth from `earlier` to here."""
        padded = earlier.per_position + (0.0,) * (len(self.per_position) - len(earlier.per_position))
        return Drafts(
            self.steps - earlier.steps,
            self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            tuple(now - then for now, then in zip(self.per_position, padded, strict=False)),
        )

    @property
    def tau(self) -> float | None:
        return 1 + self.accepted / self.steps if self.steps > 0 else None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "per_position": list(self.per_position), "tau": self.tau}


@dataclass(frozen=True, slots=True)
class Probe:
    """One request that helps to read an engine's configuration back: a name for its body, and a path."""

    name: str
    path: str


class Adapter(Protocol):
    """One engine kind. Everything is pure: bodies come in parsed, nothing is asked from here."""

    @property
    def KIND(self) -> EngineKind: ...  # noqa: N802 - modules are adapters and this is their constant

    @property
    def PROBES(self) -> tuple[Probe, ...]:  # noqa: N802
        """GET requests whose JSON bodies `read_back` wants, by name."""
        ...

    def launch(self, engine: Engine, method: Method, tp: int) -> Launch:
        """The command line. Raises `Refused` for a method this kind can't do."""
        ...

    def read_back(self, bodies: Mapping[str, Any]) -> ReadBack:
        """`bodies` holds the parsed JSON of each probe that answered 200."""
        ...

    def drafts(self, metrics: Samples) -> Drafts | None:
        """Counters out of parsed /metrics (see `bench.engines.prometheus`); None: it counts no drafts."""
        ...


def refuse(kind: EngineKind, method: Method, can: tuple[Method, ...], builds: str) -> Refused:
    """The error for a method that an engine kind cannot do: what it can, and who else could."""
    return Refused(
        f"{kind} cannot do method {method}; it can do {', '.join(can)}",
        hint=builds or f"choose one of these methods, or another engine for {method}",
    )


def need_draft(engine: Engine, method: Method) -> str:
    """The draft model's path; raises `Refused` when the inventory names none."""
    if not engine.draft:
        raise Refused(
            f"method {method} of {engine.kind} needs a draft model and the inventory names none",
            hint="set containers.<name>.engine.draft to its path in the container",
        )
    return engine.draft


def assemble(
    engine: Engine,
    method: Method,
    tp: int,
    argv: tuple[str, ...],
    *,
    ready_path: str,
    env: Mapping[str, str] | None = None,
    draft: str = "",
) -> Launch:
    """A `Launch` from our argv: the inventory's arguments and environment come last and win."""
    words = argv + engine.args
    merged = {**(env or {}), **engine.env}
    url = f"http://127.0.0.1:{engine.port}"
    paths = tuple(path for path in (engine.model, draft) if path.startswith("/"))
    return Launch(
        argv=words,
        url=url,
        ready_path=ready_path,
        kind=engine.kind.value,
        method=method.value,
        tp=tp,
        model=engine.model,
        key=key_of(words, merged, url),
        env=merged,
        paths=paths,
        served=engine.served_name,
        ready_timeout_s=engine.ready_timeout_s,
        stall_timeout_s=engine.stall_timeout_s,
    )
