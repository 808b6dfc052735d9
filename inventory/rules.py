"""What must hold in an inventory beyond the type of each value: references, secrets, things that belong together.

Works on the raw values, so that these mistakes are found together with the wrong types; whatever has
the wrong type is left to the type check and passed over here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inventory.names import suggestion
from inventory.secret import fault as secret_fault

if TYPE_CHECKING:
    from inventory.positions import Path

Finding = tuple["Path", str]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}\Z")
_JUMP = re.compile(r"(?:[^@\s]+@)?(?:\[[0-9A-Fa-f:]+\]|[^@\s:\[\]]+)(?::[0-9]{1,5})?\Z")
_DEVICE = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)*\Z")
_SECRET_NAME = re.compile(r"(?:TOKEN|PASSWORD|PASSWD|SECRET|API_KEY)\Z", re.IGNORECASE)


def _part(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _items(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def check(data: Mapping[str, Any]) -> Iterator[Finding]:
    """Every mistake as (path, sentence)."""
    hosts, containers = _part(data, "hosts"), _part(data, "containers")
    for section in ("hosts", "containers"):
        for name in _part(data, section):
            if not _NAME.match(name):
                yield (section, name), "is no usable name: letters, digits, '.', '-' and '_' only"
    for name in hosts:
        yield from _api(_part(hosts[name], "api"), ("hosts", name, "api"))
        yield from _ssh(_part(hosts[name], "ssh"), ("hosts", name, "ssh"))
    for name in containers:
        if name in hosts:
            yield ("containers", name), f"the name {name!r} is already the name of a host"
        if isinstance(containers[name], dict):
            yield from _container(containers[name], ("containers", name), hosts)
    yield from _same_vmid(containers)


def _api(api: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    if not api:
        return
    yield from _url(_text(api, "url"), (*at, "url"))
    password, token, token_name = (api.get(key, "") != "" for key in ("password", "token_value", "token_name"))
    for key in ("password", "token_value"):
        yield from _reference(api, key, at)
    if not password and not token and not token_name:
        yield at, "has neither a password nor a token: give `password`, or `token_name` and `token_value`"
    elif password and (token or token_name):
        yield at, "has both a password and a token: keep one of the two"
    elif token != token_name:
        yield (
            at,
            f"has {'token_value' if token else 'token_name'} without {'token_name' if token else 'token_value'}",
        )
    user = api.get("user", "")
    if user == "":
        yield at, "has no user: give one with its realm, for example `root@pam`"
    elif isinstance(user, str) and not re.fullmatch(r"[^@\s!]+@[A-Za-z0-9.-]+", user):
        yield (*at, "user"), f"{user!r} must be NAME@REALM, for example `root@pam`"
    if "!" in _text(api, "token_name"):
        yield (*at, "token_name"), "must be only the part after the '!'"
    if not _text(api, "ca_file") and not _text(api, "fingerprint"):
        yield at, "has neither ca_file nor fingerprint, so the certificate could not be verified"
    fingerprint = _text(api, "fingerprint")
    if fingerprint and not _FINGERPRINT.match(fingerprint):
        yield (*at, "fingerprint"), "must be a SHA-256 fingerprint: 32 pairs of hex digits joined by ':'"


def _url(url: str, at: Path) -> Iterator[Finding]:
    if not url:
        return
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        yield at, f"{url!r} is no address; write it like https://pve1:8006"
        return
    if parts.username is not None:
        yield at, "must not hold a login; give user and password beside it"
    elif parts.scheme != "https" or not host:
        yield at, f"{url!r} must be an https address, for example https://pve1:8006"
    elif parts.path not in ("", "/") or parts.query or parts.fragment:
        yield at, f"{url!r} must end after the port; gpuctl adds the path itself"


def _ssh(ssh: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    jump = _text(ssh, "jump")
    if jump and not _JUMP.match(jump):
        yield (*at, "jump"), f"{jump!r} must be [user@]host[:port]"


def _reference(holder: Mapping[str, Any], key: str, at: Path) -> Iterator[Finding]:
    written = holder.get(key)
    if isinstance(written, str) and written and (fault := secret_fault(written)):
        yield (*at, key), fault


def _container(container: Mapping[str, Any], at: Path, hosts: Mapping[str, Any]) -> Iterator[Finding]:
    host = _text(container, "host")
    if host and host not in hosts:
        yield (*at, "host"), f"there is no host {host!r} in the inventory{suggestion(host, hosts)}"
    yield from _ssh(_part(container, "ssh"), (*at, "ssh"))
    yield from _gpus(container, at)
    for index, name in enumerate(_items(_part(container, "devices"), "wanted")):
        if isinstance(name, str) and not _DEVICE.match(name):
            yield (*at, "devices", "wanted", index), f"{name!r} must be a name below /dev, for example nvidia-uvm"
    yield from _weights(_items(container, "weights"), (*at, "weights"))
    yield from _engine(_part(container, "engine"), (*at, "engine"))


def _gpus(container: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    gpus, bench, engine = _part(container, "gpus"), _part(container, "bench"), _part(container, "engine")
    count, uuids = gpus.get("count", 1), _items(gpus, "uuids")
    if type(count) is not int:
        return
    if uuids and len(uuids) != count:
        yield (*at, "gpus", "uuids"), f"lists {len(uuids)} GPUs, but count is {count}"
    sizes = [((*at, "bench", "tp", index), size) for index, size in enumerate(_items(bench, "tp"))]
    for where, size in (*sizes, ((*at, "engine", "tp"), engine.get("tp", 1))):
        if type(size) is int and size > max(count, 1):
            yield where, f"tensor-parallel size {size} needs {size} GPUs, but gpus.count is {count}"


def _weights(weights: list[Any], at: Path) -> Iterator[Finding]:
    targets: dict[str, int] = {}
    for index, item in enumerate(weights):
        if not isinstance(item, dict):
            continue
        repo, target = _text(item, "repo"), _text(item, "to")
        if repo and not _REPO.match(repo):
            yield (*at, index, "repo"), f"{repo!r} must be owner/name, as on the Hub"
        for key in ("to", "cache"):
            if _text(item, key) and not _text(item, key).startswith("/"):
                yield (*at, index, key), f"{_text(item, key)!r} must be an absolute path in the container"
        if target and target.rstrip("/") in targets:
            yield (*at, index, "to"), f"{target!r} is already the target of weights {targets[target.rstrip('/')]}"
        targets.setdefault(target.rstrip("/"), index)
        yield from _reference(item, "token", (*at, index))


def _engine(engine: Mapping[str, Any], at: Path) -> Iterator[Finding]:
    if engine.get("kind") == "custom" and not engine.get("command"):
        yield at, "kind custom needs a command"
    for name, value in _part(engine, "env").items():
        if _SECRET_NAME.search(name):
            yield from _reference({name: value}, name, (*at, "env"))


def _same_vmid(containers: Mapping[str, Any]) -> Iterator[Finding]:
    seen: dict[tuple[str, int], str] = {}
    for name, container in containers.items():
        if not isinstance(container, dict) or type(container.get("vmid")) is not int:
            continue
        key = (_text(container, "host"), container["vmid"])
        if key in seen:
            yield ("containers", name, "vmid"), f"VMID {key[1]} of host {key[0]!r} is already {seen[key]!r}"
        seen.setdefault(key, name)
