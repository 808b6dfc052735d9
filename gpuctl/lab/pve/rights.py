"""Which privilege each option of a container asks for, and what only root@pam may change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuctl.lab.pve.auth import ROOT
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.pve.fault import forbidden
from gpuctl.lab.pve.formats import FormatError, split_list
from gpuctl.lab.pve.schema import options, parse_property_string

Require = Callable[[str], None]

_BY_OPTION: Final[tuple[tuple[str, str], ...]] = (
    (r"cores|cpulimit|cpuunits", "VM.Config.CPU"),
    (r"memory|swap", "VM.Config.Memory"),
    (r"net\d+|nameserver|searchdomain|hostname", "VM.Config.Network"),
    (r"rootfs|mp\d+|unused\d+", "VM.Config.Disk"),
)


def check_options(caller: str, conf: Conf, form: Mapping[str, str], require: Require) -> None:
    """Raise a 403 `Fault` for the first option `caller` may not touch; `require` checks one privilege."""
    if caller == ROOT:
        return
    removed = {*split_list(form.get("delete", "")), *split_list(form.get("revert", ""))}
    changed = {key for key in form if key not in ("delete", "revert", "digest")}
    for key in sorted(changed | removed):
        _check_option(conf, key, form.get(key) if key in changed else None, require)


def _check_option(conf: Conf, key: str, value: str | None, require: Require) -> None:
    if re.fullmatch(r"dev\d+", key):
        raise forbidden(f"configuring device passthrough is only allowed for {ROOT}")
    if key == "hookscript":
        raise forbidden(f"changing the hookscript is only allowed for {ROOT}")
    if key == "features":
        _check_features(conf, value, require)
        return
    if re.fullmatch(r"mp\d+|rootfs", key):
        _check_mounts(key, (value, conf.main.values.get(key)))
    require(next((right for names, right in _BY_OPTION if re.fullmatch(names, key)), "VM.Config.Options"))


def _check_features(conf: Conf, value: str | None, require: Require) -> None:
    if not conf.main.values.get("unprivileged"):
        raise forbidden(f"changing feature flags for privileged container is only allowed for {ROOT}")
    before = _parts("features", str(conf.main.values.get("features", "")))
    after = _parts("features", value or "")
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if value is None or changed - {"nesting"}:
        raise forbidden(f"changing feature flags (except nesting) is only allowed for {ROOT}")
    if changed:
        require("VM.Allocate")


def _check_mounts(key: str, values: Iterable[str | None]) -> None:
    for value in values:
        volume = str(_parts(key, value or "").get("volume", ""))
        if volume.startswith("/"):
            kind = "device" if volume.startswith("/dev/") else "bind"
            raise forbidden(f"mount point type {kind} is only allowed for {ROOT}")


def _parts(key: str, text: str) -> Mapping[str, object]:
    try:
        return parse_property_string(options()[key]["format"], text)
    except FormatError:
        return {}
