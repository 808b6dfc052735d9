"""Which wanted nodes a configuration does not give, and which lines without effect would have given them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from provision.devices import causes_rules, lines, wanted
from provision.devices.cause import Scene, are, several
from provision.devices.facts import NodeKind


@dataclass(slots=True)
class Lacking:
    """Wanted nodes that the configuration does not give, until a cause has explained each."""

    denied: list[wanted.Access] = field(default_factory=list)
    """No rule allows them."""
    absent: list[wanted.Access] = field(default_factory=list)
    """They are not passed in."""

    def explained(self, scene: Scene, text: str, *, brings_rule: bool = False) -> tuple[str, ...]:
        """Takes out what a line with this text is about, and says what followed from its having no effect.

        `brings_rule`: the line is a `dev[n]` entry, for which Proxmox makes the rule too.
        """
        denied = [found for found in self.denied if lines.names_number(text, found.number)]
        absent = [found for found in self.absent if lines.names_path(text, found.item.path)]
        gone = [*denied, *(absent if brings_rule else ())]
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
