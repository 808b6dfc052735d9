"""Stage `connect`: reach the API and the host, find the container, refuse what makes the rest pointless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuctl.link import Link
from inventory.errors import CannotLook, ConfigError, Refused
from inventory.machine import Emit
from provision.pipeline import Plan, StageName


@dataclass(frozen=True, slots=True)
class ConnectFacts:
    """What the first contact tells."""

    version: str
    node: str
    status: str
    lock: str
    uptime_s: float
    quorate: bool | None
    hello: Mapping[str, Any]


class ConnectStage:
    """API login, SSH login, the container's place in the cluster."""

    name = StageName.CONNECT

    def __init__(self, link: Link, *, wait_s: float) -> None:
        self._link = link
        self._wait_s = wait_s

    def observe(self) -> ConnectFacts:
        """First contact; waits up to the given seconds for a host that is still booting."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

        for attempt in Retrying(
            retry=retry_if_exception_type(CannotLook),
            stop=stop_after_delay(self._wait_s),
            wait=wait_fixed(3.0),
            reraise=True,
        ):
            with attempt:
                return self._look()
        raise AssertionError("unreachable")

    def _look(self) -> ConnectFacts:
        link = self._link
        # The host's interpreter starts while the API is asked, the container's while the host is looked at.
        link.host.warm_up()
        wanted = link.host_entry.node
        if wanted and link.node != wanted:
            raise ConfigError(
                f"{link.name} (VMID {link.container.vmid}) is on node {link.node}, "
                f"but host {link.host_name!r} of the inventory is node {wanted}",
                hint=f"it was migrated; give it the host that reaches {link.node}, or change its 'node'",
            )
        status = link.api.status(link.node, link.container.vmid)
        if status.status == "running":
            link.ct.warm_up()
        return ConnectFacts(
            version=link.api.version(),
            node=link.node,
            status=status.status,
            lock=status.lock,
            uptime_s=link.api.node_status(link.node).uptime_s,
            quorate=link.api.quorate(),
            hello=link.host.call("agent.hello"),
        )

    def describe(self, facts: ConnectFacts) -> tuple[str, ...]:
        mark = "lab: " if facts.hello.get("lab") else ""
        return (
            f"{mark}node {facts.node}: Proxmox VE {facts.version}, up {_duration(facts.uptime_s)}, "
            f"boot {str(facts.hello['boot_id'])[:8]}; {self._link.name} is VMID {self._link.container.vmid}, "
            f"{facts.status}",
        )

    def plan(self, facts: ConnectFacts) -> Plan:
        if facts.quorate is False:
            return Plan(
                blocked=Refused(
                    f"node {facts.node} has no quorum: its configuration is read-only and nothing can start",
                    hint="bring the other nodes of the cluster back; 'pvecm status' on the node shows the votes",
                )
            )
        if facts.lock:
            return Plan(
                blocked=Refused(
                    f"{self._link.name} is locked by Proxmox ({facts.lock})",
                    hint=f"wait until the {facts.lock} has ended; a stale lock is removed by 'pct unlock "
                    f"{self._link.container.vmid}' on the host",
                )
            )
        return Plan()

    def apply(self, step: Any, emit: Emit) -> str:
        raise AssertionError("stage connect never changes anything")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
