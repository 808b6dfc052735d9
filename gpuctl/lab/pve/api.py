"""The calls of the lab's Proxmox API: routing, the order of the checks, and what is common to all calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from gpuctl.lab.pve.auth import ROOT, Authority, Users
from gpuctl.lab.pve.backend import Backend
from gpuctl.lab.pve.fault import Fault, bad_parameters, failed, forbidden
from gpuctl.lab.pve.guest import Guests
from gpuctl.lab.pve.schema import Endpoint, check_properties, endpoints
from gpuctl.lab.pve.store import Store
from gpuctl.lab.pve.tasks import Tasks

_NODE: Final[Mapping[str, Any]] = {"type": "string", "format": "pve-node"}
_VMID: Final[Mapping[str, Any]] = {"type": "integer", "format": "pve-vmid", "minimum": 100, "maximum": 999999999}
_GUEST: Final = {"node": _NODE, "vmid": _VMID}
_AUDIT: Final = {"check": ["perm", "/vms/{vmid}", ["VM.Audit"]]}

# Calls met in recordings whose schema was not recorded.
_MORE: Final = (
    Endpoint("GET", "/cluster/tasks", {}, {"user": "all"}, False, False),
    Endpoint("GET", "/nodes/{node}/lxc/{vmid}", _GUEST, {"user": "all"}, False, True),
    Endpoint("GET", "/nodes/{node}/qemu/{vmid}/config", _GUEST, _AUDIT, False, True),
)


@dataclass(slots=True)
class Site:
    """Everything a call can reach: the node, its files, its tasks, its users."""

    backend: Backend
    users: Users
    authority: Authority
    store: Store
    guests: Guests
    tasks: Tasks
    fingerprint: str
    statistics: Callable[[], bool]

    @property
    def node(self) -> str:
        """The node's name."""
        return self.backend.node


@dataclass(slots=True)
class Call:
    """One call that passed all general checks."""

    site: Site
    caller: str
    values: Mapping[str, str]
    total: int | None = None
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def vmid(self) -> int:
        """The container the path names."""
        return int(self.values["vmid"])

    def flag(self, name: str) -> bool:
        """A boolean parameter."""
        return self.values.get(name) == "1"

    def number(self, name: str, default: int) -> int:
        """An integer parameter."""
        return int(self.values.get(name, default))

    def may(self, path: str, *privileges: str) -> bool:
        """Whether the caller has all the privileges on the path."""
        return set(privileges) <= self.site.users.privileges(self.caller, path)

    def require(self, path: str, privilege: str) -> None:
        """Raise a 403 unless the caller has the privilege on the path."""
        if not self.may(path, privilege):
            raise forbidden(f"{path}, {privilege}")

    @property
    def is_root(self) -> bool:
        """Whether it is root@pam with a ticket; root's tokens are not."""
        return self.caller == ROOT


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gives: its data, the total of a paged list, and whether the inner daemon answered."""

    data: Any
    total: int | None = None
    protected: bool = False


Handler = Callable[[Call], Any]


class Api:
    """Finds the endpoint of a request and takes it through the checks in Proxmox's order."""

    def __init__(self, site: Site, handlers: Mapping[str, Handler]) -> None:
        known = {**endpoints(), **{f"{more.method} {more.path}": more for more in _MORE}}
        self._site = site
        self._routes = tuple((known[key], _pattern(known[key].path), handler) for key, handler in handlers.items())

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], parameters: Mapping[str, str | Sequence[str]]
    ) -> Answer:
        """Answer one request; raises `Fault`. `path` is what follows /api2/json, still percent-encoded."""
        route = self._find(method, path)
        world = route is not None and route[0].permissions.get("user") == "world"
        caller = "" if world else self._site.authority.identify(headers, method)
        if route is None:
            raise Fault(501, f"Method '{method} {unquote(path)}' not implemented")
        endpoint, uri, handler = route
        self._check_permission(endpoint, caller, uri)
        if endpoint.on_node and uri["node"] not in (self._site.node, "localhost"):
            name = uri["node"]
            reason = f"failed to get address info for: {name}: Temporary failure in name resolution"
            raise failed(f"hostname lookup '{name}' failed - {reason}")
        for name in uri:
            if name in parameters and parameters[name] != uri[name]:
                text = "duplicate parameter (already defined in URI) with conflicting values!"
                raise bad_parameters({name: text})
        values: dict[str, Any] = {**parameters, **uri}
        errors = check_properties(endpoint.properties, values)
        if errors:
            raise bad_parameters(errors)
        form = {key: value for key, value in values.items() if key not in uri}
        call = Call(self._site, caller, values, form=form)
        data = handler(call)
        return Answer(data, call.total, endpoint.protected)

    def _find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str], Handler] | None:
        for endpoint, pattern, handler in self._routes:
            match = pattern.fullmatch(path) if endpoint.method == method else None
            if match:
                names = re.findall(r"\{([^}]+)\}", endpoint.path)
                return endpoint, dict(zip(names, map(unquote, match.groups()), strict=True)), handler
        return None

    def _check_permission(self, endpoint: Endpoint, caller: str, uri: Mapping[str, str]) -> None:
        check = endpoint.permissions.get("check")
        if not check:
            return
        path = check[1]
        for name, value in uri.items():
            path = path.replace(f"{{{name}}}", value)
        wanted, any_of = check[2], "any" in check[3:]
        held = self._site.users.privileges(caller, path)
        if not (held & set(wanted) if any_of else set(wanted) <= held):
            raise forbidden(f"{path}, {('|' if any_of else ', ').join(wanted)}")


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("".join("([^/]+)" if part.startswith("{") else re.escape(part) for part in _pieces(path)))


def _pieces(path: str) -> list[str]:
    return [piece for piece in re.split(r"(\{[^}]+\})", path) if piece]
