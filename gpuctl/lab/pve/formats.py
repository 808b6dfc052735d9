"""The named formats of the recorded schema: each check raises `FormatError` with Proxmox's own text."""

from __future__ import annotations

import ipaddress
import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Final


class FormatError(Exception):
    """A value that does not fit. `text` ends with a newline; `errors` holds the parts of a property string."""

    def __init__(self, text: str, errors: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.head = text
        self.errors = dict(errors or {})

    @property
    def text(self) -> str:
        """The whole text: the head line, then one line for each part."""
        return self.head + "".join(f"{name}: {text}\n" for name, text in sorted(self.errors.items()))


_LABEL: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?)"


def split_list(text: str) -> list[str]:
    """The items of a list parameter: separated by commas, semicolons, NULs or blanks."""
    return [part for part in re.split(r"[,;\0\s]+", text) if part]


def _by_pattern(pattern: str, text: str, flags: int = 0) -> Callable[[str], None]:
    compiled = re.compile(pattern, flags | re.ASCII)

    def check(value: str) -> None:
        if not compiled.search(value):
            raise FormatError(text.format(value) + "\n")

    return check


def _is_ip(value: str, version: int | None) -> bool:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return version is None or address.version == version


def _address(version: int, text: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not _is_ip(value, version):
            raise FormatError(text + "\n")

    return check


def _network(version: int, words: tuple[str, ...]) -> Callable[[str], None]:
    bits = 32 if version == 4 else 128

    def check(value: str) -> None:
        if value in words:
            return
        address, slash, length = value.partition("/")
        if slash and _is_ip(address, version) and length.isdigit() and 0 < int(length) <= bits:
            return
        raise FormatError(f"value does not look like a valid ipv{version} network configuration\n")

    return check


def _ip_with_interface(value: str) -> None:
    address, _, interface = value.partition("%")
    if not _is_ip(address, None) or ("%" in value and not interface):
        raise FormatError("value does not look like a valid IP address\n")


def _time_zone(value: str) -> None:
    if value == "host":
        return
    try:
        zoneinfo.ZoneInfo("UTC")
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        return  # a machine without a zone table cannot refuse a zone
    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise FormatError(f"invalid time zone '{value}'\n") from error


def _device_path(value: str) -> None:
    if not value.startswith("/dev/") or re.search(r"/\.\.?(?:/|$)", value):
        raise FormatError(f"{value} is not a valid device path\n")


def _mount_path(value: str) -> None:
    if re.search(r"/\.\.?(?:/|$)", value) or value.startswith("../"):
        raise FormatError(f"{value} contains illegal character sequences\n")


def _startup(value: str) -> None:
    for part in split_list(value):
        if not re.fullmatch(r"(?:order=)?\d+|(?:up|down)=\d+", part, re.ASCII):
            raise FormatError("unable to parse startup options\n")


def _anything(_value: str) -> None:
    return None


FORMATS: Final[Mapping[str, Callable[[str], None]]] = {
    "dns-name": _by_pattern(rf"^{_LABEL}(?:\.{_LABEL})*$", "value does not look like a valid DNS name"),
    "disk-size": _by_pattern(r"^\d+(?:\.\d+)?[KMGT]?$", "value does not look like a valid disk size: {}"),
    "ipv4": _address(4, "value does not look like a valid IPv4 address"),
    "ipv6": _address(6, "value does not look like a valid IPv6 address"),
    "lxc-ip-with-ll-iface": _ip_with_interface,
    "mac-addr": _by_pattern(
        r"^[a-f0-9][02468ace](?::[a-f0-9]{2}){5}$",
        "value does not look like a valid unicast MAC address",
        re.IGNORECASE,
    ),
    "pve-configid": _by_pattern(r"^[a-z][a-z0-9_-]+$", "invalid configuration ID '{}'", re.IGNORECASE),
    "pve-ct-timezone": _time_zone,
    "pve-ipv4-config": _network(4, ("dhcp", "manual")),
    "pve-ipv6-config": _network(6, ("dhcp", "auto", "manual")),
    "pve-lxc-dev-string": _device_path,
    "pve-lxc-mp-string": _mount_path,
    "pve-node": _by_pattern(rf"^{_LABEL}$", "value does not look like a valid node name"),
    "pve-priv": _anything,
    "pve-realm": _by_pattern(r"^[A-Za-z][A-Za-z0-9.\-_]+$", "value does not look like a valid realm"),
    "pve-startup-order": _startup,
    "pve-storage-content": _anything,
    "pve-storage-id": _by_pattern(
        r"^[a-z][a-z0-9\-_.]*[a-z0-9]$", "storage ID '{}' contains illegal characters", re.I
    ),
    "pve-tag": _by_pattern(r"^[a-z0-9_][a-z0-9_\-+.]*$", "invalid characters in tag", re.IGNORECASE),
    "pve-task-status-type": _anything,
    "pve-vmid": _by_pattern(r"^[1-9][0-9]{2,8}$", "value does not look like a valid VM ID"),
    "pve-volume-id": _by_pattern(r"^[a-z][a-z0-9\-_.]*[a-z0-9]:.+$", "unable to parse volume ID '{}'", re.I),
    "string": _anything,
}


def check_format(name: str, value: str) -> None:
    """Check `value` against the format `name`; `NAME-list` checks every item. Raises `FormatError`."""
    check = FORMATS.get(name)
    if check is not None:
        check(value)
        return
    item = FORMATS[name.removesuffix("-list")]
    for part in split_list(value):
        item(part)
