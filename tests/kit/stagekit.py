"""The stages host, devices and container on a world of a test's own, and a run of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from inventory.machine import ignore
from inventory.model import Container
from provision import pipeline
from provision.devices import stages as built
from provision.devices.consent import Consent
from provision.devices.scout import LiveScout


def stages(world: Any, container: Container, limit_s: float = 5.0, **consent: Any) -> list[Any]:
    """The three stages; `world` is host, container and API at once."""
    doors = SimpleNamespace(host=world, ct=world, api=world, node="pve")
    scout = LiveScout(doors, container, 200)
    return list(built.stages(scout, container, 200, limit_s, Consent(**consent)).values())


def run(world: Any, container: Container, **consent: Any) -> tuple[pipeline.Outcome, ...]:
    """Bring all three to their goal."""
    return pipeline.run(stages(world, container, **consent), lambda report: None, ignore)


def changes(outcomes: tuple[pipeline.Outcome, ...]) -> list[str]:
    """Everything that was changed, in order."""
    return [line for outcome in outcomes for line in outcome.changed]
