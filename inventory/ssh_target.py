"""Where an SSH connection goes and with what: the inventory first, then `~/.ssh/config`, then defaults."""

from __future__ import annotations

import getpass
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inventory.errors import ConfigError
from inventory.model import Ssh

if TYPE_CHECKING:
    import paramiko

SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True, slots=True)
class Target:
    """One hop, fully resolved."""

    name: str
    """As the user wrote it, for messages."""
    address: str
    port: int
    user: str
    keys: tuple[Path, ...]
    """Private keys to try; empty: the agent and the default keys."""
    agent: bool
    known_hosts: tuple[Path, ...]
    """Files with host keys; a missing line is to be added to the first."""
    host_key_alias: str
    timeout_s: float

    @property
    def where(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"


def route(ssh: Ssh, *, base: Path) -> tuple[Target, ...]:
    """The hops in order, the machine itself last. Relative paths start at `base`; `~` is the home folder."""
    config = _config(Path.home() / ".ssh" / "config")
    last, jumps = _target(config, ssh, base)
    hops = []
    for jump in jumps:
        user, address, port = _split(jump)
        # A jump host has its own section in ~/.ssh/config; the target's key and known_hosts serve it otherwise.
        hop, _ = _target(
            config,
            Ssh(
                address=address,
                user=user,
                port=port,
                key="" if "identityfile" in _lookup(config, address) else ssh.key,
                known_hosts=ssh.known_hosts,
                connect_timeout_s=ssh.connect_timeout_s,
            ),
            base,
            default_user=getpass.getuser(),
        )
        hops.append(hop)
    return (*hops, last)


def _target(
    config: paramiko.SSHConfig | None, ssh: Ssh, base: Path, default_user: str = "root"
) -> tuple[Target, tuple[str, ...]]:
    found = _lookup(config, ssh.address)
    port = ssh.port or _port(found.get("port", "22"), ssh.address)
    known_hosts: tuple[Path, ...]
    keys: tuple[Path, ...]
    if ssh.known_hosts:
        known_hosts = (_path(ssh.known_hosts, base),)
    else:
        written = str(found.get("userknownhostsfile", "~/.ssh/known_hosts")).split()
        known_hosts = (*(_path(name, Path.home()) for name in written if name != "none"), SYSTEM_KNOWN_HOSTS)
    if ssh.key:
        keys = (_path(ssh.key, base),)
        if not keys[0].exists():
            raise ConfigError(
                f"the SSH key {keys[0]} of {ssh.address} does not exist", hint="set ssh.key to a file"
            )
    else:
        identities = (_path(str(name), Path.home()) for name in found.get("identityfile", ()))
        keys = tuple(path for path in identities if path.exists())
    target = Target(
        name=ssh.address,
        address=str(found.get("hostname", ssh.address)),
        port=port,
        user=ssh.user or str(found.get("user", default_user)),
        keys=keys,
        agent=str(found.get("identitiesonly", "no")).lower() != "yes",
        known_hosts=known_hosts,
        host_key_alias=str(found.get("hostkeyalias", "")),
        timeout_s=ssh.connect_timeout_s,
    )
    jump = ssh.jump or str(found.get("proxyjump") or "")
    return target, () if jump.lower() in ("", "none") else tuple(part.strip() for part in jump.split(","))


def _config(path: Path) -> paramiko.SSHConfig | None:
    try:
        text = path.read_text() if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None
    if not text:
        return None
    load_paramiko(runs_programs=_MATCH_EXEC.search(text) is not None)
    import paramiko

    try:
        return paramiko.SSHConfig.from_text(text)
    except (paramiko.SSHException, ValueError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None


_MATCH_EXEC: Final = re.compile(r"^\s*match\b.*\bexec\b", re.IGNORECASE | re.MULTILINE)


def load_paramiko(*, runs_programs: bool = False) -> None:
    """Import paramiko without `invoke`, which it needs for `Match exec` alone and takes for absent then.

    It brings asyncio and unittest along: 40 % of the time of importing paramiko, which every command would pay.
    """
    if runs_programs or "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("paramiko")
    finally:
        sys.modules.pop("invoke", None)


def _lookup(config: paramiko.SSHConfig | None, address: str) -> dict[str, Any]:
    if config is None:
        return {}
    import paramiko

    try:
        return dict(config.lookup(address))
    except (paramiko.SSHException, OSError, ValueError, KeyError) as error:
        raise ConfigError(f"~/.ssh/config has no usable answer for {address}: {error}") from None


def _port(text: str, address: str) -> int:
    if text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise ConfigError(f"the port {text!r} of {address} is no TCP port")


def _split(jump: str) -> tuple[str, str, int | None]:
    """`[user@]host[:port]` -> (user or "", host, port or None)."""
    user, _, rest = jump.removeprefix("ssh://").rpartition("@")
    if rest.startswith("["):
        address, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        address, _, port = rest.partition(":")
    else:
        address, port = rest, ""
    if not address:
        raise ConfigError(f"the jump host {jump!r} must be [user@]host[:port]")
    return user, address, _port(port, jump) if port else None


def _path(name: str, base: Path) -> Path:
    return base / Path(name).expanduser()
