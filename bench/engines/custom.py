"""Any OpenAI-compatible server by a command of the inventory; its method cannot be read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from bench.engines.adapter import Drafts, Probe, ReadBack, assemble
from bench.engines.prometheus import Samples
from inventory.errors import ConfigError
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method

KIND: Final = EngineKind.CUSTOM
PROBES: Final = (Probe("models", "/v1/models"),)


def launch(engine: Engine, method: Method, tp: int) -> Launch:
    """The inventory's `command` and `args`, with {model} {draft} {port} {method} {tp} replaced in each word.

    Raises `ConfigError` when there is no command.
    """
    if not engine.command:
        raise ConfigError(
            "an engine of kind custom needs a command and the inventory names none",
            hint="set containers.<name>.engine.command, for example [my-server, --port, '{port}', '{model}']",
        )
    values = {
        "{model}": engine.model,
        "{draft}": engine.draft,
        "{port}": str(engine.port),
        "{method}": method.value,
        "{tp}": str(tp),
    }

    def fill(words: tuple[str, ...]) -> tuple[str, ...]:
        filled = []
        for word in words:
            for name, value in values.items():
                word = word.replace(name, value)
            filled.append(word)
        return tuple(filled)

    concrete = replace(engine, args=fill(engine.args))
    return assemble(concrete, method, tp, fill(engine.command), ready_path="/v1/models", draft=engine.draft)


def read_back(bodies: Mapping[str, Any]) -> ReadBack:
    """The first model's name."""
    data = (bodies.get("models") or {}).get("data") or [{}]
    return ReadBack(model=str(data[0].get("id", "")))


def drafts(metrics: Samples) -> Drafts | None:
    """None: unknown names."""
    del metrics
    return None
