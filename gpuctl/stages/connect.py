"""Stage `connect`: reach the API and the host, find the container, refuse what makes the rest pointless."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gpuctl.link import Link
from inventory.errors import CannotLook, ConfigError, GpuctlError, Refused
from inventory.machine import Emit
from provision.devices.facts import GuestFacts, HostFacts
from provision.devices.scout import in_background
from provision.pipeline import Plan, StageName


@dataclass(frozen=True, slots=True)
class ConnectFacts:
    """What the first contact tells."""

    version: str
    guest: GuestFacts
    host: HostFacts


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
        # Host and container are looked at while the API is asked.
        link.scout.begin()
        guest = self._guest()
        # What the next stages need is imported while the host is still being read.
        importlib.import_module("provision.devices.stages")
        host = link.scout.host()
        return ConnectFacts(host.pve_manager or link.api.version(), guest, host)

    def _guest(self) -> GuestFacts:
        """Where the inventory names the node, the container is looked for and looked at there at the same time."""
        link = self._link
        if not link.host_entry.node:
            return link.scout.guest()
        link.api  # noqa: B018 - one login for both
        located = in_background(lambda: link.guest.node)
        try:
            return link.scout.guest()
        finally:
            # The wrong node is the better reason for whatever went wrong there.
            self._must_be_on(located.result())

    def _must_be_on(self, node: str) -> None:
        link = self._link
        if node != link.host_entry.node:
            raise ConfigError(
                f"{link.name} (VMID {link.container.vmid}) is on node {node}, "
                f"but host {link.host_name!r} of the inventory is node {link.host_entry.node}",
                hint=f"it was migrated; give it the host that reaches {node}, or change its 'node'",
            ) from None

    def describe(self, facts: ConnectFacts) -> tuple[str, ...]:
        host = facts.host
        return (
            f"{self._link.mark}node {facts.guest.node}: Proxmox VE {facts.version}, up {_duration(host.uptime_s)}, "
            f"boot {host.boot_id[:8]}; {self._link.name} is VMID {self._link.container.vmid}, {facts.guest.status}",
        )

    def plan(self, facts: ConnectFacts) -> Plan:
        if error := self._elsewhere(facts):
            return Plan(blocked=error)
        if facts.host.quorate is False:
            return Plan(
                blocked=Refused(
                    f"node {facts.guest.node} has no quorum: its configuration is read-only and nothing can start",
                    hint="bring the other nodes of the cluster back; 'pvecm status' on the node shows the votes",
                )
            )
        if facts.guest.lock:
            return Plan(
                blocked=Refused(
                    f"{self._link.name} is locked by Proxmox ({facts.guest.lock})",
                    hint=f"wait until the {facts.guest.lock} has ended; a stale lock is removed by 'pct unlock "
                    f"{self._link.container.vmid}' on the host",
                )
            )
        return Plan()

    def _elsewhere(self, facts: ConnectFacts) -> GpuctlError | None:
        """The API's answer and the machine behind SSH must be about the same node."""
        owner, here = facts.guest.node, facts.host.nodename
        if not here or here == owner:
            return None
        return ConfigError(
            f"{self._link.name} is on node {owner}, but SSH to host {self._link.host_name!r} leads to node {here}",
            hint=f"give hosts.{self._link.host_name}.ssh the address of {owner}, or {self._link.name} another host",
        )

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
