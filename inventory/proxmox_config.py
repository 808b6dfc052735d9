"""Change a container's options through the API, and judge by what the node has afterwards.

An error is no proof that nothing was written: Proxmox writes the file first and works out the container's runtime
configuration after it, so while any configured node is missing on the host every change answers 500 and is in the
file (pve-container 6.1.10, API2/LXC/Config.pm). Only 400, 403, a wrong digest and a lock come before the writing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inventory import proxmox_task
from inventory.errors import CannotLook, ConfigError, Failed, GpuctlError, Refused
from inventory.proxmox_wire import ApiFault, NoAnswer, Wire

Value = str | int | bool
LOOKS_AFTER_LOSS: Final = 3
LOOK_PAUSE_S: Final = 1.0
"""A call whose answer was lost may still be under way: Proxmox waits up to 10 s for the file's lock."""
ONLY_ROOT: Final = "only allowed for root@pam"
_NEVER: Final = "a token can never do this; use SSH (pct set) or a root@pam password"
_ONLY_ROOT: Final = "only root@pam itself may do this; use SSH (pct set) or a root@pam password"
_BEFORE_WRITING: Final = ("detected modified configuration", "CT is locked (", "can't lock file")
_NO_OPTIONS: Final = frozenset({"digest", "delete", "revert", "vmid", "node"})


@dataclass(frozen=True, slots=True)
class Written:
    """A change that the node has; `pending`: keys that wait for the container's next start.

    `written` is True when the file says what was asked. `text` holds Proxmox's words when it reported an error all
    the same, for example about another node that is missing.
    """

    written: bool
    pending: tuple[str, ...]
    digest: str
    text: str


def check(values: Mapping[str, Value], delete: Iterable[str], digest: str) -> None:
    """Raises `ConfigError` for what the API can't do, or would do without comparing digests."""
    keys = (*values, *delete)
    for key in keys:
        if key == "lxc" or key.startswith("lxc."):
            raise ConfigError(
                f"{key} can't be set through the API: it takes no raw lxc keys",
                hint="raw keys can only be edited in the file, over SSH (host.edit_conf)",
            )
        if key in _NO_OPTIONS:
            raise ConfigError(f"{key} is no option of a container")
    if not keys or len(set(keys)) != len(keys):
        raise ConfigError(f"nothing to set, or a key twice: {', '.join(keys) or 'no key'}")
    if len(digest) != 40 or set(digest) - set("0123456789abcdef"):
        raise ConfigError(
            f"{digest!r} is no digest of a configuration", hint="without one Proxmox does not compare"
        )


def put(
    wire: Wire, node: str, vmid: int, values: Mapping[str, Value], delete: Iterable[str], digest: str
) -> Written:
    """One PUT, then config and pending are read; see `ProxmoxApi.set_config`."""
    doomed = tuple(delete)
    check(values, doomed, digest)
    what = f"container {vmid} on {node}: setting {', '.join((*values, *doomed))} failed"
    form = {**values, **({"delete": ",".join(doomed)} if doomed else {}), "digest": digest}
    error: GpuctlError | None = None
    text = ""
    try:
        wire.put("nodes", node, "lxc", vmid, "config", **form)
    except NoAnswer as lost:
        error, text = lost, lost.message
    except ApiFault as fault:
        if fault.status == 403:
            raise _forbidden(fault, wire.who) from None
        error, text = proxmox_task.failure(what, fault.text), fault.text
        if fault.status == 400 or any(words in fault.text for words in _BEFORE_WRITING):
            raise error from None
    looks = LOOKS_AFTER_LOSS if isinstance(error, NoAnswer) else 1
    for look in range(looks):
        if look:
            time.sleep(LOOK_PAUSE_S)
        try:
            now, missing, pending = _compare(wire, node, vmid, values, doomed)
        except CannotLook as unknown:
            if error is None:
                raise
            raise CannotLook(
                f"{what}: {text}; whether it was written all the same could not be read",
                hint=unknown.hint,
                detail=(unknown.message,),
            ) from None
        if not missing:
            return Written(written=True, pending=pending, digest=now, text=text)
    raise _not_written(what, error, missing, unchanged=now == digest)


def _forbidden(fault: ApiFault, who: str) -> Refused:
    if ONLY_ROOT in fault.text:
        return Refused(fault.message, hint=_NEVER if "!" in who else _ONLY_ROOT)
    return Refused(fault.message, hint=fault.hint)


def _not_written(
    what: str, error: GpuctlError | None, missing: tuple[str, ...], *, unchanged: bool
) -> GpuctlError:
    if isinstance(error, NoAnswer):
        so_far = "is unchanged so far" if unchanged else f"has no such {', '.join(missing)}"
        return CannotLook(
            f"{what.removesuffix(' failed')}: the answer was lost, and the configuration {so_far}",
            hint="run gpuctl again; it reads the configuration first",
            detail=(error.message,),
        )
    if error is not None:
        return error
    return Failed(
        f"{what}: Proxmox reported success, but {', '.join(missing)} is not as asked",
        hint="someone else may have changed it at the same time; run gpuctl again",
    )


def _compare(
    wire: Wire, node: str, vmid: int, values: Mapping[str, Value], doomed: tuple[str, ...]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The file's digest now, the keys that are not as asked, and those that wait for the next start."""
    live: Mapping[str, Any] = wire.get("nodes", node, "lxc", vmid, "config", current=True)
    listed: list[dict[str, Any]] = wire.get("nodes", node, "lxc", vmid, "pending")
    entries = {str(entry["key"]): entry for entry in listed}
    missing, pending = [], []
    for key, value in values.items():
        entry = entries.get(key, {})
        there = entry.get("pending", None if "delete" in entry else entry.get("value"))
        if not same(there, value):
            missing.append(key)
        elif "pending" in entry:
            pending.append(key)
    for key in doomed:
        entry = entries.get(key, {})
        if "delete" in entry:
            pending.append(key)
        elif "value" in entry or "pending" in entry:
            missing.append(key)
    return str(live.get("digest", "")), tuple(missing), tuple(pending)


def same(there: Any, asked: Value) -> bool:
    """Whether a value of the API is the one that was asked for; a property string's parts may come in any order."""
    if there is None:
        return False
    want = str(int(asked)) if isinstance(asked, bool) else str(asked)
    has = str(there).rstrip("\n")
    return has == want.rstrip("\n") or sorted(has.split(",")) == sorted(want.split(","))
