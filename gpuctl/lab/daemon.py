"""labd: one process that runs the lab's API, SSH server and Hub and holds its machines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gpuctl.lab import credentials, inventory_file, namespaces, programs, real, reboot, rootfs, software
from gpuctl.lab.control import Call, ControlServer
from gpuctl.lab.kernel import Kernel
from gpuctl.lab.machine import Node
from gpuctl.lab.ssh import SshServer
from gpuctl.lab.state import ERROR_LINE, TOLD, VMID, LabDir, LabInfo, open_dir, read_info, write_json
from inventory.errors import Failed, GpuctlError

if TYPE_CHECKING:
    from gpuctl.lab.hub import RunningHub
    from gpuctl.lab.pve.auth import Authority
    from gpuctl.lab.pve.server import RunningServer

PORTS: Final = {"api": 18006, "ssh": 18022, "hub": 18080, "engine": 18200}
"""Ports of a lab's first start; another free one is taken where one is in use, and kept from then on."""
_STARTALL_LIMIT_S: Final = 30.0
_log = logging.getLogger(__name__)


class Daemon:
    """Everything that runs; made in the main thread, whose event loop serves SSH."""

    def __init__(self, lab: LabDir, loop: asyncio.AbstractEventLoop, *, first_ports: dict[str, int]) -> None:
        self.lab = lab
        self._loop = loop
        self._lock = threading.Lock()
        self._stopping = asyncio.Event()
        before = read_info(lab)
        wanted = first_ports | (before.ports if before else {})
        # Held as long as this daemon runs: a port that is closed during a reboot must be there again afterwards.
        self._marks = {name: _reserve(port) for name, port in wanted.items()}
        self._ports = {name: int(mark.getsockname()[1]) for name, mark in self._marks.items()}
        self.fresh = not lab.kernel.exists()
        token = before.token if before else secrets.token_hex(16)
        isolation, chosen = namespaces.isolation(os.environ), "GPUCTL_LAB_ISOLATION" in os.environ
        way = real.open_way(lab, isolation, token)
        self._notes = list(way.notes)
        folders = {VMID: lab.ct_rootfs()}
        self.kernel = Kernel(
            lab.kernel, lab.host_rootfs, folders, token, nodes=way.nodes, uvm_majors=way.uvm_majors
        )
        rootfs.install(lab, self.kernel.token)
        software.install(lab.host_rootfs)
        way.install()
        credentials.ensure(lab)
        self.node = Node(lab, self.kernel, way, may_fall_back=not chosen)
        self._ssh = SshServer(lab, self.node)
        self._api: RunningServer | None = None
        self._authority: Authority | None = None
        self._hub: RunningHub | None = None
        self._control: ControlServer | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        try:
            self._control = ControlServer(self.lab.socket, self._handle)
            self._start_hub()
            await asyncio.to_thread(self._boot)
            await self._listen()
            await asyncio.to_thread(self._startall)
            self.publish()
            _log.info("ready: %s", self._ports)
            while not self._stopping.is_set():
                self.node.tick()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), 0.5)
        finally:
            await self._shutdown()

    def _boot(self) -> None:
        if self.fresh:
            reboot.first_boot(self.node)
        else:
            reboot.boot(self.node)

    async def _listen(self) -> None:
        self._ports["ssh"] = await self._ssh.listen(self._ports["ssh"])
        credentials.write_known_hosts(self.lab, self._ports["ssh"])
        await asyncio.to_thread(self._start_api)

    def _startall(self) -> None:
        """What pve-guests.service does after boot: a task that everyone can see and wait for."""
        assert self._api is not None
        task = self._api.site.tasks.start("startall", "", "root@pam", self.node.startall)
        if not task.done.wait(_STARTALL_LIMIT_S):
            _log.warning("startall still runs after %s s", _STARTALL_LIMIT_S)
        if self.node.broken is not None:
            raise self.node.broken

    def publish(self, *, running: bool = True) -> None:
        """Write lab.json and the inventory: from now on the lab is ready. Stopped: pid 0."""
        info = LabInfo(
            pid=os.getpid() if running else 0,
            isolation=self.node.isolation,
            level=self.node.way.level,
            boot_id=self.kernel.boot_id,
            boot_count=self.kernel.boot_count,
            ports=self._ports,
            token=self.kernel.token,
            fingerprint=credentials.fingerprint(self.lab),
            dir=str(self.lab.root),
            pids=self.node.pids() if running else {},
            notes=self._notes,
        )
        inventory_file.write(self.lab, info)
        write_json(self.lab.info, info.to_json())

    def _start_api(self) -> None:
        from gpuctl.lab.pve.server import serve

        lab = self.lab
        users = credentials.users(lab)
        self._api = serve(self.node, port=self._ports["api"], cert=lab.cert, key=lab.key, users=users)
        if self._authority is not None:
            # The key that signs tickets lies on disk: a ticket is still good after a reboot.
            self._api.site.authority = self._authority
        self._authority = self._api.site.authority
        self._ports["api"] = self._api.port

    def _stop_api(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    def _start_hub(self) -> None:
        from gpuctl.lab.hub import HubRepo, serve, smollm2_repo

        repos: tuple[HubRepo, ...] = (HubRepo("lab/gated-model", {"config.json": b"{}\n"}, gated=True),)
        try:
            repos = (smollm2_repo(), *repos)
        except FileNotFoundError as error:
            self._notes.append(f"the Hub has no weights: {error}")
        self._hub = serve(repos, port=self._ports["hub"])
        self._ports["hub"] = self._hub.port

    def _handle(self, call: Call) -> int:
        if call.program == "lab-reboot":
            return self._reboot()
        if call.program == "reboot":
            threading.Thread(target=self._reboot, name="reboot", daemon=True).start()
            return 0
        return programs.run(call, self.node)

    def _reboot(self) -> int:
        with self._lock:
            self._wait(self._ssh.drop())
            self._stop_api()
            reboot.reboot(self.node)
            self._wait(self._listen())
            self._startall()
            self.publish()
        return 0

    def _wait(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _shutdown(self) -> None:
        await self._ssh.drop()
        steps: list[Callable[[], object]] = [self._stop_api, self.node.power_off]
        steps += [server.close for server in (self._hub, self._control) if server is not None]
        for step in steps:
            try:
                await asyncio.to_thread(step)
            except Exception:
                _log.exception("while stopping")
        if self.lab.info.exists():
            self.publish(running=False)
        _log.info("stopped")


def main(argv: list[str]) -> int:
    """Run labd for the folder `argv[0]`; `argv[1:]` are `NAME=PORT`.

    Returns 3 when another labd has the folder, 4 when the log's last line tells an error that is meant for the user.
    """
    os.umask(0o022)
    lab = open_dir(argv[0])
    lab.root.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    lock = os.open(lab.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 3
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    ports = PORTS | {name: int(port) for name, _, port in (word.partition("=") for word in argv[1:])}
    try:
        asyncio.run(_run(lab, ports))
    except GpuctlError as error:
        sys.stderr.write(f"{ERROR_LINE}{json.dumps(error.to_json())}\n")
        return TOLD
    except Exception:
        _log.exception("labd failed")
        return 1
    return 0


async def _run(lab: LabDir, ports: dict[str, int]) -> None:
    await Daemon(lab, asyncio.get_running_loop(), first_ports=ports).run()


def _reserve(wanted: int) -> socket.socket:
    """A port that no other lab takes: a datagram socket of that number is the mark between labs.

    `wanted`, else one below the range from which the kernel takes the ports of outgoing connections. Which one is left
    to chance, so that a lab which is down for a moment finds its port free again although others start meanwhile.
    """
    others = list(range(PORTS["engine"] + 1, PORTS["engine"] + 800))
    random.shuffle(others)
    for port in (wanted, *others):
        if port and _free(port):
            mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                mark.bind(("127.0.0.1", port))
            except OSError:
                mark.close()
                continue
            return mark
    raise Failed("no port is free for the lab", hint="end the labs that are not needed: gpuctl lab down")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
