"""Which wanted nodes a configuration does not give, and which lines without effect would have given them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from provision.devices import wanted
from provision.devices.config import lines
from provision.devices.diagnosis import causes_rules
from provision.devices.diagnosis.cause import Scene, are, several
from provision.devices.facts import NodeKind


@dataclass(slots=True)
class Lacking:
    """Wanted nodes that the configuration does not give, until a cause has explained each."""

    denied: list[wanted.Access] = field(default_factory=list)
    """No rule allows them."""
    absent: list[wanted.Access] = field(default_factory=list)
    """They are not passed in."""

    def explained(self, scene: Scene, texts: Iterable[str], *, bring_rules: bool = False) -> tuple[str, ...]:
        """Takes out what lines with these texts are about, and says what follows from their having no effect.

        `bring_rules`: the lines are `dev[n]` entries, for which Proxmox makes the rules too.
        """
        told = tuple(texts)
        denied = [f for f in self.denied if any(lines.names_number(text, f.number) for text in told)]
        absent = [f for f in self.absent if any(lines.names_path(text, f.item.path) for text in told)]
        gone = [*denied, *(absent if bring_rules else ())]
        self.denied = [found for found in self.denied if found not in gone]
        self.absent = [found for found in self.absent if found not in absent]
        return (*no_rule(denied), *not_there(scene, absent))


def no_rule(denied: Iterable[wanted.Access]) -> tuple[str, ...]:
    """What follows when no rule allows some nodes."""
    names = [found.item.name for found in denied]
    return (f"no rule allows {several(names)}: {causes_rules.effect(denied)}",) if names else ()


def not_there(scene: Scene, absent: Iterable[wanted.Access]) -> tuple[str, ...]:
    """What follows when some nodes are not passed in."""
    names = [found.item.name for found in absent]
    return (f"{several(names)} {are(names)} not passed into {scene.name}",) if names else ()


def lacking(scene: Scene) -> Lacking:
    """What the main section does not give. What is seen to work inside is not lacking: a hook may have brought it."""
    found = Lacking()
    by_path = {lines.path_rule(line) for line in scene.document.main.raw}
    for access in wanted.access(scene.document.main, scene.items, scene.known, scene.host):
        node = scene.inside.node(access.item.path) if scene.inside else None
        there = node is not None and node.kind is NodeKind.CHAR
        works = there and node is not None and node.opened == "" and node.number == access.number
        if not access.how and not there and (scene.inside is not None or not scene.hooked):
            found.absent.append(access)
        if not access.permitted and access.item.path not in by_path and not (works and scene.hooked):
            found.denied.append(access)
    return found
