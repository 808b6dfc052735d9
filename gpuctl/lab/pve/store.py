"""The files behind the API: N.conf as pmxcfs keeps it, under the same lock file a real node uses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Final

from gpuctl.lab.pve.backend import Backend
from gpuctl.lab.pve.conf import Conf, ConfError, parse_conf, write_conf
from gpuctl.lab.pve.fault import failed

READABLE_BYTES: Final = 1048552
WRITABLE_BYTES: Final = 1 << 20


class Store:
    """Reads and writes the configurations of one node."""

    def __init__(self, backend: Backend, *, lock_timeout_s: float) -> None:
        self._backend = backend
        self._lock_timeout_s = lock_timeout_s

    def vmids(self) -> tuple[int, ...]:
        """The containers of the node, ascending."""
        names = (path.stem for path in self._backend.conf_dir.glob("*.conf"))
        return tuple(sorted(int(name) for name in names if name.isdigit() and int(name) >= 100))

    def exists(self, vmid: int) -> bool:
        """Whether the node has this container."""
        return (self._backend.conf_dir / f"{vmid}.conf").is_file()

    def load(self, vmid: int) -> Conf:
        """The configuration; a 500 `Fault` when it is missing, too large to read, or kills the parser."""
        try:
            raw = (self._backend.conf_dir / f"{vmid}.conf").read_bytes()
        except FileNotFoundError as error:
            place = f"nodes/{self._backend.node}/lxc/{vmid}.conf"
            raise failed(f"Configuration file '{place}' does not exist") from error
        if len(raw) > READABLE_BYTES:
            raise failed("No buffer space available")
        try:
            return parse_conf(raw, vmid)
        except ConfError as error:
            raise failed(str(error)) from error

    def save(self, conf: Conf) -> None:
        """Write by temporary file and rename; a 500 `Fault` without quorum."""
        try:
            raw = write_conf(conf)
        except ConfError as error:
            raise failed(str(error)) from error
        name = f"{conf.vmid}.conf.tmp.{os.getpid()}"
        shown = f"/etc/pve/nodes/{self._backend.node}/lxc/{name}"
        if self._backend.read_only:
            raise failed(f"unable to open file '{shown}' - Permission denied")
        if len(raw) > WRITABLE_BYTES:
            raise failed(f"unable to write '{shown}' - File too large")
        temporary = self._backend.conf_dir / name
        temporary.write_bytes(raw)
        temporary.replace(self._backend.conf_dir / f"{conf.vmid}.conf")

    @contextlib.contextmanager
    def locked(self, vmid: int) -> Iterator[None]:
        """Hold the container's lock file; a 500 `Fault` when somebody else holds it too long."""
        self._backend.lock_dir.mkdir(parents=True, exist_ok=True)
        name = f"pve-config-{vmid}.lock"
        with (self._backend.lock_dir / name).open("a") as handle:
            limit = time.monotonic() + self._lock_timeout_s
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= limit:
                        raise failed(f"can't lock file '/run/lock/lxc/{name}' - got timeout") from error
                time.sleep(0.02)
            yield
