"""The doors to one container: Proxmox API, SSH to its host, and the container itself; opened when first used."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuctl.bundle import Bundle, build
from gpuctl.remote import RemoteMachine
from inventory.machine import Shell
from inventory.model import Container, Host, Thresholds

if TYPE_CHECKING:
    from inventory.loader import Loaded
    from inventory.proxmox import Guest, ProxmoxApi
    from inventory.ssh import SshShell
    from provision.devices.scout import LiveScout


class Link:
    """Everything a command needs to work on one container of an inventory."""

    def __init__(self, loaded: Loaded, name: str) -> None:
        self.name = name
        self.container: Container = loaded.inventory.containers[name]
        self.host_name = self.container.host
        self.host_entry: Host = loaded.inventory.hosts[self.host_name]
        self.thresholds: Thresholds = loaded.inventory.thresholds
        self.lab = loaded.inventory.lab
        self.mark = "lab: " if self.lab else ""
        """Stands before every answer line of the embedded host."""
        self._loaded = loaded
        self._built: Bundle | None = None
        self._building = threading.Lock()
        self._open: list[SshShell | RemoteMachine] = []

    @property
    def base(self) -> Path:
        """The folder of the file that names the container; relative paths and references start there."""
        return self._loaded.base_of(self.name)

    @cached_property
    def api(self) -> ProxmoxApi:
        """The Proxmox API, logged in."""
        from inventory.proxmox import ProxmoxApi

        return ProxmoxApi.connect(self.host_entry.api, base=self._loaded.base_of(self.host_name))

    @cached_property
    def guest(self) -> Guest:
        """What the cluster says about the VMID: a container, and on which node."""
        return self.api.locate(self.container.vmid)

    @property
    def node(self) -> str:
        """Name of the node that owns the container; the inventory's word for it is checked by stage `connect`."""
        return self.host_entry.node or self.guest.node

    @cached_property
    def host_shell(self) -> SshShell:
        """SSH to the host; it logs in when it is first used."""
        from inventory.ssh import SshShell

        shell = SshShell.to(self.host_entry.ssh, base=self._loaded.base_of(self.host_name))
        self._open.append(shell)
        return shell

    @cached_property
    def host(self) -> RemoteMachine:
        """The host, for jobs."""
        return self._machine(self.host_shell)

    def _machine(self, shell: Shell) -> RemoteMachine:
        machine = RemoteMachine(shell, self._bundle)
        self._open.append(machine)
        return machine

    def _bundle(self) -> Bundle:
        with self._building:
            if self._built is None:
                self._built = build()
            return self._built

    @cached_property
    def ct(self) -> RemoteMachine:
        """The container, for jobs: by its own sshd when the inventory names one, else by `pct exec`."""
        from inventory.shell import PctShell
        from inventory.ssh import SshShell

        if self.container.ssh is None:
            return self._machine(PctShell(self.host_shell, self.container.vmid))
        shell = SshShell.to(self.container.ssh, base=self.base)
        self._open.append(shell)
        return self._machine(shell)

    @cached_property
    def scout(self) -> LiveScout:
        """What is known of host, container and API, shared by everything that this command does."""
        from provision.devices.scout import LiveScout

        return LiveScout(self, self.container, self.container.vmid)

    def exclusive(self, command: str) -> AbstractContextManager[None]:
        """One changing command per container at a time."""
        from gpuctl.lock import exclusive

        return exclusive(self.name, f"{command} {self.name}", place=self.host_entry.api.url)

    def close(self) -> None:
        """Close what was opened, the last first."""
        while self._open:
            self._open.pop().close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
