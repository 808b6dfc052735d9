"""Who is calling and what they may do: users, tokens, tickets, CSRF tokens and privileges."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from gpuctl.lab.pve.fault import unauthorized

ROOT: Final = "root@pam"
TICKET_LIFETIME_S: Final = 7200
CLOCK_SKEW_S: Final = 300

_VM: Final = tuple(
    "VM." + name
    for name in (
        *("Allocate", "Audit", "Backup", "Clone", "Console", "Migrate", "PowerMgmt", "Replicate", "Snapshot"),
        *("Config.CDROM", "Config.CPU", "Config.Cloudinit", "Config.Disk", "Config.HWType", "Config.Memory"),
        *("Config.Network", "Config.Options", "GuestAgent.Audit", "GuestAgent.FileRead", "Snapshot.Rollback"),
        *("GuestAgent.FileSystemMgmt", "GuestAgent.FileWrite", "GuestAgent.Unrestricted"),
    )
)
_STORAGE: Final = (
    "Datastore.Allocate",
    "Datastore.AllocateSpace",
    "Datastore.AllocateTemplate",
    "Datastore.Audit",
)
_NODES: Final = (
    *(
        "Sys.AccessNetwork",
        "Sys.Audit",
        "Sys.Console",
        "Sys.Incoming",
        "Sys.Modify",
        "Sys.PowerMgmt",
        "Sys.Syslog",
    ),
)
_SDN: Final = ("SDN.Allocate", "SDN.Audit", "SDN.Use")
_GRANT: Final = "Permissions.Modify"
_CAPABILITIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "access": ("/access", ("Group.Allocate", "User.Modify", _GRANT)),
    "dc": ("/", (*_SDN, "Sys.Audit", "Sys.Modify")),
    "mapping": ("/mapping", ("Mapping.Audit", "Mapping.Modify", "Mapping.Use", _GRANT)),
    "nodes": ("/nodes", (*_NODES, _GRANT)),
    "sdn": ("/sdn", (*_SDN, _GRANT)),
    "storage": ("/storage", (*_STORAGE, _GRANT)),
    "vms": ("/vms", (*_VM, _GRANT)),
}
ALL_PRIVILEGES: Final = frozenset(name for _, names in _CAPABILITIES.values() for name in names)
_ROOT_ONLY: Final = {
    *(_GRANT, "Sys.Modify", "Sys.PowerMgmt", "Sys.AccessNetwork", "Sys.Incoming", "Mapping.Modify"),
}
ROLES: Final[Mapping[str, frozenset[str]]] = {
    "Administrator": ALL_PRIVILEGES,
    "PVEAdmin": ALL_PRIVILEGES - _ROOT_ONLY,
    "PVEAuditor": frozenset(name for name in ALL_PRIVILEGES if name.endswith(".Audit")),
    "PVEVMAdmin": frozenset(_VM),
    "NoAccess": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Token:
    """An API token. With `privsep` it has only its own grants, within those of its user."""

    secret: str
    privsep: bool = True
    expire: int = 0


@dataclass(frozen=True, slots=True)
class User:
    """A user of a realm. Without a password nobody can log in as it. `expire` is an epoch second, 0 is never."""

    password: str | None = None
    enabled: bool = True
    expire: int = 0
    tokens: Mapping[str, Token] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """Privileges for `who` (`user@realm` or `user@realm!token`) on a path and, unless told not to, below it."""

    path: str
    who: str
    privileges: frozenset[str]
    propagate: bool = True


@dataclass(frozen=True, slots=True)
class Users:
    """Everyone the API knows. root@pam may do everything; its tokens are not root@pam."""

    users: Mapping[str, User]
    grants: tuple[Grant, ...] = ()

    def known(self, name: str, now: float) -> User | None:
        """The user, unless unknown, disabled or expired."""
        user = self.users.get(name)
        if user is None or not user.enabled or (user.expire and user.expire <= now):
            return None
        return user

    def privileges(self, who: str, path: str) -> frozenset[str]:
        """What `who` may do on `path`. The deepest path with a grant decides, as in Proxmox."""
        name, _, token_id = who.partition("!")
        if not token_id:
            return ALL_PRIVILEGES if name == ROOT else self._granted(name, path)
        token = self.users[name].tokens[token_id]
        owner = self.privileges(name, path)
        return owner & self._granted(who, path) if token.privsep else owner

    def _granted(self, who: str, path: str) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for step in _steps(path):
            here = [g for g in self.grants if g.who == who and g.path == step and (g.propagate or step == path)]
            if here:
                found = frozenset().union(*(grant.privileges for grant in here))
        return found

    def capabilities(self, who: str) -> dict[str, dict[str, int]]:
        """The `cap` of a login answer: privileges by area, which the web interface uses to hide buttons."""
        return {
            area: {name: 1 for name in names if name in self.privileges(who, path)}
            for area, (path, names) in _CAPABILITIES.items()
        }

    def paths(self) -> Iterable[str]:
        """The paths that occur in grants or capabilities."""
        return sorted({path for path, _ in _CAPABILITIES.values()} | {grant.path for grant in self.grants})


def _steps(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["/", *("/" + "/".join(parts[: index + 1]) for index in range(len(parts)))]


@dataclass(slots=True)
class Authority:
    """Signs and checks tickets and CSRF tokens. A ticket older than its key (plus 5 minutes) is refused."""

    users: Users
    key_made: float = field(default_factory=time.time)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def ticket(self, name: str, *, at: float | None = None) -> str:
        """A ticket for `name`, as long as a real one."""
        head = f"PVE:{name}:{int(time.time() if at is None else at):08X}"
        return f"{head}::{self._signature(head)}"

    def csrf(self, name: str, *, at: float | None = None) -> str:
        """The token that must accompany writing calls made with a ticket."""
        stamp = f"{int(time.time() if at is None else at):08X}"
        digest = hmac.digest(self._key, f"csrf:{stamp}:{name}".encode(), "sha256")
        return f"{stamp}:{base64.b64encode(digest).decode().rstrip('=')}"

    def owner(self, ticket: str) -> str | None:
        """The user a valid ticket belongs to."""
        head, _, signature = ticket.partition("::")
        parts = head.split(":")
        if len(parts) != 3 or not hmac.compare_digest(signature.encode(), self._signature(head).encode()):
            return None
        made = int(parts[2], 16)
        age = time.time() - made
        if not -CLOCK_SKEW_S < age < TICKET_LIFETIME_S or made < self.key_made - CLOCK_SKEW_S:
            return None
        return parts[1] if self.users.known(parts[1], time.time()) else None

    def csrf_valid(self, name: str, token: str) -> bool:
        """Whether the CSRF token is ours, for this user, and not too old."""
        try:
            made = int(token.partition(":")[0], 16)
        except ValueError:
            return False
        fresh = -CLOCK_SKEW_S < time.time() - made < TICKET_LIFETIME_S
        return fresh and hmac.compare_digest(token.encode(), self.csrf(name, at=made).encode())

    def login(self, name: str, password: str) -> str | None:
        """The user name when the password is right; a valid ticket of root@pam or of the user counts as one."""
        user = self.users.known(name, time.time())
        if user is None:
            return None
        if self.owner(password) in (name, ROOT):
            return name
        if user.password is None or not hmac.compare_digest(user.password.encode(), password.encode()):
            return None
        return name

    def identify(self, headers: Mapping[str, str], method: str) -> str:
        """The caller (`user@realm` or `user@realm!token`) of a request; raises the 401."""
        authorization = headers.get("Authorization", "")
        if authorization.startswith("PVEAPIToken"):
            return self._token_caller(authorization.removeprefix("PVEAPIToken").lstrip("= "))
        ticket = _cookie(headers.get("Cookie", ""))
        if not ticket:
            raise unauthorized("No ticket")
        name = self.owner(ticket)
        if name is None:
            raise unauthorized("Authentication failed!")
        if method != "GET" and not self.csrf_valid(name, headers.get("CSRFPreventionToken", "")):
            raise unauthorized("Permission denied - invalid csrf token")
        return name

    def _token_caller(self, text: str) -> str:
        who, _, secret = text.partition("=")
        name, _, token_id = who.partition("!")
        now = time.time()
        user = self.users.known(name, now)
        token = user.tokens.get(token_id) if user else None
        if token is None or (token.expire and token.expire <= now):
            raise unauthorized("Authentication failed!")
        if not hmac.compare_digest(secret.encode(), token.secret.encode()):
            raise unauthorized("Authentication failed!")
        return who

    def _signature(self, head: str) -> str:
        seed = hmac.digest(self._key, head.encode(), "sha256")
        return base64.b64encode(hashlib.shake_256(seed).digest(256)).decode()


def _cookie(header: str) -> str:
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == "PVEAuthCookie":
            return unquote(value)
    return ""
