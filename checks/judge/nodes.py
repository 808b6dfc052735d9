"""dev.*: are the device nodes there, are they the driver's, do they open."""

from __future__ import annotations

from checks.facts import Facts, Node, ended
from checks.judge.symptoms import UVM_REMEDY, paths, words
from checks.report import Finding, Status


def uvm_module(facts: Facts) -> tuple[Finding, ...]:
    """Whether the kernel has the nvidia-uvm driver at all."""
    majors = facts.majors()
    if majors is None:
        return (
            Finding(
                id="dev.uvm_module",
                status=Status.UNKNOWN,
                summary="/proc/devices cannot be read, so the driver's majors are not known",
            ),
        )
    if "nvidia-uvm" in majors:
        major = majors["nvidia-uvm"]
        return (
            Finding(
                id="dev.uvm_module",
                status=Status.OK,
                summary=f"the kernel module nvidia-uvm is loaded, major {major}",
                value=major,
            ),
        )
    return (
        Finding(
            id="dev.uvm_module",
            status=Status.CRITICAL,
            summary="the kernel module nvidia-uvm is not loaded, so CUDA cannot start",
            remedy=UVM_REMEDY,
            evidence=("/proc/devices has no line for nvidia-uvm",),
        ),
    )


def major(facts: Facts) -> tuple[Finding, ...]:
    """Whether each node carries the number its driver has now; a dynamic major moves at a reboot."""
    majors = facts.majors()
    if majors is None:
        return (
            Finding(
                id="dev.major",
                status=Status.UNKNOWN,
                summary="/proc/devices cannot be read, so no major can be compared",
            ),
        )
    stale: dict[tuple[str, int, int], list[str]] = {}
    compared = 0
    for node in facts.nodes():
        now = majors.get(node.driver)
        if node.major is None or now is None:
            continue
        compared += 1
        if node.major != now:
            stale.setdefault((node.driver, node.major, now), []).append(node.name)
    if not compared:
        return (
            Finding(
                id="dev.major",
                status=Status.NOT_APPLICABLE,
                summary="there is no device node and driver to compare",
            ),
        )
    if not stale:
        return (Finding(id="dev.major", status=Status.OK, summary="every device node has its driver's major"),)
    return tuple(_stale(driver, old, now, names) for (driver, old, now), names in stale.items())


def _stale(driver: str, old: int, now: int, names: list[str]) -> Finding:
    return Finding(
        id="dev.major",
        status=Status.CRITICAL,
        summary=f"{paths(names)}: the node has major {old}, but the driver {driver} now has {now}",
        value={"nodes": names, "major": old},
        expected=now,
        remedy=f"remove old node and rule: give the container `dev[n]: /dev/{names[0]}` (or allow `c {now}:* rwm`), "
        "then restart it",
        evidence=(f"/proc/devices: {now} {driver}", *(f"stat /dev/{name}: c {old}" for name in names)),
    )


def nodes(facts: Facts) -> tuple[Finding, ...]:
    """stat and open of every node, grouped by what is wrong: one finding per symptom, not one per node."""
    hang = facts.hang(facts.devices, None)
    if hang is None:
        return _groups(facts)
    stuck = Finding(
        id="dev.nodes",
        status=Status.CRITICAL if hang.how == "hung" else Status.UNKNOWN,
        summary=ended(hang),
        value={"nodes": [hang.call.removeprefix("open /dev/")], "open": hang.how},
        remedy="the driver hangs: look at the host's kernel log; it likely needs a reboot",
    )
    return (*(finding for finding in _groups(facts) if finding.status is not Status.OK), stuck)


def _groups(facts: Facts) -> tuple[Finding, ...]:
    seen = facts.nodes()
    if not seen:
        return (Finding(id="dev.nodes", status=Status.UNKNOWN, summary="no device node could be looked at"),)
    bad: dict[str, list[Node]] = {}
    for node in seen:
        symptom = _symptom(node)
        if symptom and not _not_ours(facts, node):
            bad.setdefault(symptom, []).append(node)
    if not bad:
        usable = [node for node in seen if node.open == "ok"]
        return (
            Finding(
                id="dev.nodes",
                status=Status.OK,
                summary=f"{len(usable)} device nodes open",
                value={"nodes": [n.name for n in usable]},
            ),
        )
    groups = [(symptom, part) for symptom, group in bad.items() for part in _parts(symptom, group, seen)]
    return tuple(_finding(facts, symptom, group) for symptom, group in groups)


def _symptom(node: Node) -> str:
    if node.kind == "char":
        return "" if node.open == "ok" else node.open
    return "ENOENT" if node.kind == "absent" else f"not a device ({node.kind})"


def _not_ours(facts: Facts, node: Node) -> bool:
    """A card of the host that was simply not given to this container is no fault."""
    if not node.is_card or node.kind != "absent":
        return False
    given = sum(1 for other in facts.nodes() if other.is_card and other.kind != "absent")
    return given >= (facts.expect.gpus if facts.expect.gpus is not None else 1)


def _parts(symptom: str, group: list[Node], seen: tuple[Node, ...]) -> list[list[Node]]:
    """Access revoked for all nodes is one matter; otherwise nvidia and nvidia-uvm are judged apart."""
    needed = [node for node in seen if node.kind != "absent"]
    if symptom == "EPERM" and len(group) == len(needed) and len({node.driver for node in group}) > 1:
        return [group]
    return [
        part for driver in ("nvidia", "nvidia-uvm") if (part := [node for node in group if node.driver == driver])
    ]


def _finding(facts: Facts, symptom: str, group: list[Node]) -> Finding:
    names = [node.name for node in group]
    only_tools = names == ["nvidia-uvm-tools"]
    summary, remedy = words(facts, symptom, group)
    if only_tools and symptom == "ENOENT":
        summary, remedy = "/dev/nvidia-uvm-tools is not there (profilers need it, serving does not)", ""
    return Finding(
        id="dev.nodes",
        status=Status.WARNING
        if only_tools and symptom != "ENOENT"
        else Status.INFO
        if only_tools
        else Status.CRITICAL,
        summary=summary,
        value={"nodes": names, "open": symptom},
        remedy=remedy,
        evidence=tuple(_evidence(node) for node in group[:10]) + _more_evidence(facts, group),
    )


def _evidence(node: Node) -> str:
    if node.kind == "char":
        return f"/dev/{node.name}: c {node.major}:{node.minor} mode {node.mode or 0:04o}, open: {node.open}"
    if node.kind == "regular":
        return f"/dev/{node.name}: regular file of {node.size} bytes"
    return f"/dev/{node.name}: {node.kind}"


def _more_evidence(facts: Facts, group: list[Node]) -> tuple[str, ...]:
    drivers = sorted({node.driver for node in group})
    majors = facts.majors()
    lines = [f"/proc/devices: {majors[driver]} {driver}" for driver in drivers if majors and driver in majors]
    if facts.privileged() is not None:
        lines.append(f"/proc/self/uid_map: {'privileged' if facts.privileged() else 'unprivileged'}")
    return tuple(lines)
