"""The HTTPS server of the lab's Proxmox API: one thread per connection, keep-alive, TLS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuctl.lab.pve.auth import Users
    from gpuctl.lab.pve.backend import Backend


class RunningServer:
    """A server that listens in its own thread."""

    port: int

    def close(self) -> None:
        """Stop listening and wait for the thread to end (at most 5 s)."""
        raise NotImplementedError


def serve(
    backend: Backend,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    cert: Path,
    key: Path,
    users: Users,
    auth_delay_s: float = 0,
) -> RunningServer:
    """Start the API for `backend`; `port` 0 takes a free one."""
    raise NotImplementedError
