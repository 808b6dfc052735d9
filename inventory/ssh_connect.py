"""Open one authenticated SSH connection, hop by hop, and say plainly why when that fails."""

from __future__ import annotations

import base64
import contextlib
import errno
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from inventory import known_hosts
from inventory.errors import CannotLook, GpuctlError
from inventory.ssh_target import Target, load_paramiko
from inventory.ssh_transport import factory

if TYPE_CHECKING:
    import paramiko

KEEPALIVE_S = 10
"""An idle connection is probed this often, so that a dead peer is noticed."""

DEAD_AFTER_MS = 30_000
"""Sent data that nobody acknowledges for so long ends the connection (TCP_USER_TIMEOUT)."""


def connect(hops: tuple[Target, ...]) -> list[paramiko.SSHClient]:
    """Clients in the order of the hops; the last one is the machine itself. Raises `CannotLook`."""
    _quiet()
    clients: list[paramiko.SSHClient] = []
    try:
        for target in hops:
            sock = _tunnel(clients[-1], target) if clients else _socket(target)
            # Only now: the server says its banner while this is imported.
            load_paramiko()
            clients.append(_client(target, sock))
    except BaseException:
        close(clients)
        raise
    return clients


def close(clients: list[paramiko.SSHClient]) -> None:
    """Close the machine first, then the hops towards us."""
    for client in reversed(clients):
        with contextlib.suppress(Exception):
            client.close()


def _quiet() -> None:
    """paramiko's thread logs tracebacks of errors that we report ourselves."""
    logger = logging.getLogger("paramiko")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _socket(target: Target) -> socket.socket:
    place = f"{target.address}:{target.port}"
    try:
        sock = socket.create_connection((target.address, target.port), timeout=target.timeout_s)
    except socket.gaierror as error:
        raise CannotLook(
            f"the name {target.address} is not known: {error.strerror}", hint="check ssh.address in the inventory"
        ) from None
    except ConnectionRefusedError:
        raise CannotLook(
            f"{place} refuses connections",
            hint="the machine is up, but no SSH server listens there; is it still booting, or is ssh.port wrong?",
        ) from None
    except TimeoutError:
        raise CannotLook(
            f"{place} does not answer within {target.timeout_s:g} s",
            hint="is the machine on, is the address right, does a firewall drop the packets?",
        ) from None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise CannotLook(
            f"{place} can't be reached: {error.strerror or error} {name}".rstrip(),
            hint="is the machine on and the address right?",
        ) from None
    # Nagle's algorithm costs 40 ms a command: paramiko sends many small packets.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)
    return sock


def _tunnel(jump: paramiko.SSHClient, target: Target) -> paramiko.Channel:
    import paramiko

    transport = jump.get_transport()
    assert transport is not None
    try:
        return transport.open_channel(
            "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=target.timeout_s
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise CannotLook(
            f"the jump host can't reach {target.address}:{target.port}: {_text(error)}",
            hint="the last hop is resolved and opened by the jump host; it may also forbid forwarding",
        ) from None


def _client(target: Target, sock: socket.socket | paramiko.Channel) -> paramiko.SSHClient:
    import paramiko

    name = known_hosts.host_name(target.host_key_alias or target.address, target.port)
    if target.host_key_alias:
        name = target.host_key_alias
    try:
        entries = known_hosts.entries_for(name, target.known_hosts)
    except OSError as error:
        sock.close()
        raise CannotLook(f"the host keys in {error.filename} can't be read: {error.strerror}") from None
    client = paramiko.SSHClient()
    # paramiko takes a list here, its type stubs know only one name.
    keys: Any = [str(path) for path in target.keys]
    # All host keys are judged by our policy: paramiko alone would not name file and line.
    client.set_missing_host_key_policy(_policy(target, name, entries))
    began = time.monotonic()
    try:
        client.connect(
            target.address,
            target.port,
            target.user,
            key_filename=keys,
            allow_agent=target.agent,
            look_for_keys=not target.keys,
            sock=sock,
            timeout=target.timeout_s,
            banner_timeout=target.timeout_s,
            auth_timeout=target.timeout_s,
            channel_timeout=target.timeout_s,
            transport_factory=factory((entry.kind for entry in entries), target.timeout_s),
        )
    except GpuctlError:
        close([client])
        raise
    except (paramiko.SSHException, EOFError, OSError, ValueError) as error:
        reason = _reason(client, target, error, time.monotonic() - began)
        close([client])
        sock.close()
        raise reason from None
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(KEEPALIVE_S)
    return client


def _policy(target: Target, name: str, entries: tuple[known_hosts.Entry, ...]) -> Any:
    import paramiko

    class Judge(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
            judge(target, name, entries, key.get_name(), key.asbytes())

    return Judge()


def judge(target: Target, name: str, entries: tuple[known_hosts.Entry, ...], kind: str, blob: bytes) -> None:
    """Raise `CannotLook` unless exactly this key is written down for this machine."""
    got = known_hosts.fingerprint(blob)
    line = f"{name} {kind} {base64.b64encode(blob).decode()}"
    for entry in entries:
        if entry.marker == "@revoked" and entry.blob == blob:
            raise CannotLook(f"{target.where}: its host key {got} is marked as revoked in {entry.place}")
    plain = [entry for entry in entries if not entry.marker]
    if any(entry.blob == blob for entry in plain):
        return
    if not plain:
        raise CannotLook(
            f"{target.where}: its host key is not known ({kind} {got})",
            hint=f"compare the fingerprint with the machine's own (`ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` "
            f"on its console), then add this line to {target.known_hosts[0]}: {line}",
            detail=(line,),
        )
    old = next((entry for entry in plain if entry.kind == kind), plain[0])
    raise CannotLook(
        f"{target.where}: its host key has CHANGED: it shows {kind} {got}, "
        f"but {old.place} has {old.kind} {known_hosts.fingerprint(old.blob)}",
        hint=f"someone may be in between. If the machine was reinstalled, replace line {old.line} of {old.file} "
        f"by: {line}",
        detail=(line,),
    )


def _reason(client: paramiko.SSHClient, target: Target, error: Exception, took_s: float) -> CannotLook:
    """Which step failed, in words."""
    import paramiko

    transport = client.get_transport()
    where, limit = target.where, f"{target.timeout_s:g} s"
    spoke = bool(transport and transport.remote_version)
    # paramiko reports both as the same error; only the time tells them apart.
    if not spoke and took_s < 0.9 * target.timeout_s:
        return CannotLook(
            f"{where} closed the connection before saying anything",
            hint="its sshd may refuse this address (fail2ban, MaxStartups), or still be starting",
        )
    if not spoke:
        return CannotLook(
            f"{where} accepts the connection but sends no SSH banner within {limit}",
            hint="another service listens there, or the machine hangs; check ssh.port",
        )
    if isinstance(error, paramiko.AuthenticationException) and "timeout" not in str(error).lower():
        return _refused(target, error)
    if isinstance(error, paramiko.PasswordRequiredException):
        return _refused(target, error)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return CannotLook(f"{where} offers no method that gpuctl accepts: {_text(error)}")
    if isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error):
        return _refused(target, error)
    if "No existing session" in str(error) or "timeout" in str(error).lower() or isinstance(error, TimeoutError):
        return CannotLook(
            f"{where} does not finish the SSH login within {limit}",
            hint="the machine is overloaded or hangs; raise ssh.connect_timeout_s if that is normal there",
        )
    return CannotLook(f"{where}: the SSH connection failed: {_text(error)}")


def _refused(target: Target, error: Exception) -> CannotLook:
    tried = [f"the key {path}" for path in target.keys] or ["the default keys in ~/.ssh"]
    if target.agent:
        tried.append("the keys of the agent")
    hint = f"put the public key into the machine's authorized_keys of {target.user}, or set ssh.key"
    if "encrypted" in str(error) or "passphrase" in str(error):
        hint = "the key has a passphrase: unlock it with `ssh-add`"
    return CannotLook(
        f"{target.address}:{target.port} refuses the login as {target.user} (tried {', '.join(tried)})", hint=hint
    )


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
