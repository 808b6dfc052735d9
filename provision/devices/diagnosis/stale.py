"""Which device rules of a configuration were once right for an NVIDIA driver and no longer are."""

from __future__ import annotations

from dataclasses import dataclass

from provision.devices import procdev, wanted
from provision.devices.config import conf, rules
from provision.devices.facts import HostFacts, NodeKind


@dataclass(frozen=True, slots=True)
class Stale:
    """A rule line for a number that NVIDIA had; `owner` names the driver that has it now, "" when none has."""

    number: int
    key: str
    rule: rules.Rule
    owner: str


def stale(view: conf.View, host: HostFacts, known: wanted.Drivers, *, raw: bool) -> tuple[Stale, ...]:
    """Allow rules with a dynamic major that no NVIDIA driver has at this boot.

    Only in a configuration that has, or is about to get, raw lines for NVIDIA (`raw`; `dev[n]` never needed a
    rule), only in the kernel's dynamic ranges, and not for a major that another device passed in explains. While
    nvidia-uvm isn't loaded nothing is called stale.
    """
    if "nvidia-uvm" not in known.majors or not raw:
        return ()
    explained = wanted.foreign_majors(host) | set(known.majors.values())
    waiting = _unexplained_source(view, host)
    found = []
    for line in view.raw:
        rule = rules.parse_rule(line.value)
        if rule is None or line.key not in (rules.ALLOW, rules.LEGACY_ALLOW) or rule.type != "c":
            continue
        if rule.major is None or not procdev.dynamic(rule.major) or rule.major in explained:
            continue
        owner = ", ".join(known.names.get(rule.major, ()))
        if waiting and not owner:
            continue  # it may be the number of the other device, whose driver isn't loaded now
        found.append(Stale(line.number, line.key, rule, owner))
    return tuple(found)


def has_raw_nvidia(view: conf.View) -> bool:
    """Whether NVIDIA devices are passed in by raw lines: mount entries, or a rule for the fixed major."""
    if any(path.startswith("/dev/nvidia") for path in wanted.mounted(view)):
        return True
    return any(
        rule is not None and rule.major == procdev.NVIDIA
        for line in view.raw
        if line.key in (rules.ALLOW, rules.LEGACY_ALLOW)
        for rule in (rules.parse_rule(line.value),)
    )


def _unexplained_source(view: conf.View, host: HostFacts) -> bool:
    """Whether another device is passed in whose number can't be known now."""
    return any(
        path.startswith("/dev/")
        and not path.startswith("/dev/nvidia")
        and host.node(path).kind not in (NodeKind.CHAR, NodeKind.BLOCK, NodeKind.DIRECTORY)
        for path in wanted.passed_paths(view)
    )
