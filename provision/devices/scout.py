"""Host, container and API as last read: read at the same time, shared by the stages, read again after a change."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from inventory.errors import CannotLook
from inventory.machine import Machine
from inventory.model import Container
from provision.devices.doors import FACTS_LIMIT_S, ProxmoxApi
from provision.devices.facts import CtFacts, GuestFacts, HostFacts

T = TypeVar("T")

FRESH_S: Final = 15.0
"""Facts older than this are read again: the user may have thought about a question for an hour."""


class Doors(Protocol):
    """The ways to one container; each is opened when it is first used."""

    @property
    def host(self) -> Machine: ...
    @property
    def ct(self) -> Machine: ...
    @property
    def api(self) -> ProxmoxApi: ...
    @property
    def node(self) -> str:
        """Name of the node that owns the container."""
        ...


class Scout(Protocol):
    """What the stages know of the world, and the doors through which they change it."""

    @property
    def doors(self) -> Doors: ...
    def host(self) -> HostFacts: ...
    def guest(self) -> GuestFacts: ...
    def inside(self) -> CtFacts | None:
        """None while the container isn't running."""
        ...

    @property
    def outlived(self) -> dict[str, str]:
        """Rules taken out of the configuration in this run that the running container still has: rule, whose it is."""
        ...

    def forget(self) -> None:
        """Something was changed: what was read is no longer true."""
        ...


class LiveScout:
    """Reads through the doors, each thing once; raises `CannotLook` when it can't be read."""

    def __init__(self, doors: Doors, container: Container, vmid: int) -> None:
        self.doors = doors
        self._container, self._vmid = container, vmid
        self.outlived: dict[str, str] = {}
        self._begun: dict[str, tuple[float, Future[Any]]] = {}

    def begin(self) -> None:
        """Start to read host and container in the background, so that the API can be asked meanwhile."""
        # The ways are found first, in this thread: importing what they need beside another import takes longer.
        self.doors.host, self.doors.ct  # noqa: B018
        for name, work in (("host", self._read_host), ("inside", self._read_inside)):
            if name not in self._begun:
                self._begun[name] = (time.monotonic(), in_background(work))

    def host(self) -> HostFacts:
        return self._get("host", self._read_host)

    def guest(self) -> GuestFacts:
        return self._get("guest", self._read_guest)

    def inside(self) -> CtFacts | None:
        if self.guest().status != "running":
            return None
        if "inside" in self._begun:
            # A reading begun before the container could answer is no reason to give up.
            with contextlib.suppress(CannotLook):
                return self._get("inside", self._read_inside)
        return self._get("inside", self._read_inside)

    def forget(self) -> None:
        self._begun.clear()

    def _get(self, name: str, work: Callable[[], T]) -> T:
        began, future = self._begun.get(name, (0.0, None))
        if future is None or time.monotonic() - began > FRESH_S:
            began, future = time.monotonic(), Future()
            future.set_result(work())
            self._begun[name] = (began, future)
        try:
            value: T = future.result()
        except BaseException:
            del self._begun[name]
            raise
        return value

    def _read_host(self) -> HostFacts:
        """One round trip: everything about the host."""
        return HostFacts.from_json(
            self.doors.host.call("host.facts", {"vmid": self._vmid}, timeout_s=FACTS_LIMIT_S)
        )

    def _read_inside(self) -> CtFacts:
        """One round trip; every /dev/nvidia* is looked at there, the names are for what has another."""
        names = [f"/dev/{name.removeprefix('/dev/')}" for name in self._container.devices.wanted]
        return CtFacts.from_json(self.doors.ct.call("ct.device_facts", {"nodes": names}, timeout_s=FACTS_LIMIT_S))

    def _read_guest(self) -> GuestFacts:
        api, node = self.doors.api, self.doors.node
        tasks = in_background(lambda: api.running_tasks(node))
        status = api.status(node, self._vmid)
        started = [task.started_s for task in tasks.result() if task.kind == "startall"]
        return GuestFacts(
            node=node,
            status=status.status,
            lock=status.lock,
            ha=status.ha,
            uptime_s=status.uptime_s,
            startall_s=min(started) if started else None,
        )


@dataclass(frozen=True, slots=True)
class RecordedScout:
    """Facts that were read once, on whatever machine: enough to plan, nothing can be changed."""

    recorded_host: HostFacts
    recorded_guest: GuestFacts
    recorded_inside: CtFacts | None
    why_not_inside: str = ""
    """Why the container could not be looked into, when it runs and was not."""

    @property
    def doors(self) -> Doors:
        raise AssertionError("recorded facts lead nowhere")

    @property
    def outlived(self) -> dict[str, str]:
        return {}

    def host(self) -> HostFacts:
        return self.recorded_host

    def guest(self) -> GuestFacts:
        return self.recorded_guest

    def inside(self) -> CtFacts | None:
        if self.recorded_inside is None and self.recorded_guest.status == "running":
            raise CannotLook(self.why_not_inside or "these facts say nothing about the inside of the container")
        return self.recorded_inside

    def forget(self) -> None:
        """Nothing was read that could be read again."""


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: a machine that does not answer must not keep the command from ending.
    threading.Thread(target=run, daemon=True).start()
    return future
