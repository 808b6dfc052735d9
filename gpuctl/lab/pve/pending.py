"""Pending changes of a container: queueing them, cleaning them up, applying them stopped or running."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from typing import Any, Final

from gpuctl.lab.pve.conf import Conf, Section
from gpuctl.lab.pve.formats import split_list
from gpuctl.lab.pve.schema import options, parse_property_string

# What a running container takes over at once, without touching a process.
_AT_ONCE: Final = frozenset(
    [
        "cores",
        "description",
        "hookscript",
        "hostname",
        "lock",
        "onboot",
        "protection",
        "startup",
        "tags",
        "timezone",
    ]
)
_LIVE: Final = frozenset({"memory", "swap", "cpulimit", "cpuunits"})


def deletions(pending: Section) -> dict[str, bool]:
    """Options queued for deletion -> whether by force (`!name`)."""
    items = split_list(str(pending.values.get("delete", "")))
    return {item.lstrip("!"): item.startswith("!") for item in items}


def _queue(pending: Section, wanted: dict[str, bool]) -> None:
    if wanted:
        pending.values["delete"] = ",".join(("!" if wanted[key] else "") + key for key in sorted(wanted))
    else:
        pending.values.pop("delete", None)


def queue_delete(conf: Conf, key: str) -> None:
    """Queue the deletion of an option."""
    conf.pending.drop(key)
    _queue(conf.pending, deletions(conf.pending) | {key: False})


def queue_set(conf: Conf, key: str, value: Any) -> None:
    """Queue a new value."""
    conf.pending.put(key, value)
    unqueue_delete(conf, key)


def unqueue_delete(conf: Conf, key: str) -> None:
    """Take an option out of the deletion queue."""
    if "delete" in conf.pending.values:
        _queue(conf.pending, {name: force for name, force in deletions(conf.pending).items() if name != key})


def revert(conf: Conf, key: str) -> None:
    """Forget whatever is queued for an option."""
    conf.pending.drop(key)
    unqueue_delete(conf, key)


def clean(conf: Conf) -> None:
    """Drop what changes nothing: values that are set already, deletions of what is not set."""
    for key in conf.pending.names():
        if key in ("delete", "lxc"):
            continue
        now = conf.main.get(key)
        if now is not None and str(now) == str(conf.pending.get(key)):
            conf.pending.drop(key)
    kept = {key: force for key, force in deletions(conf.pending).items() if conf.main.get(key) is not None}
    if "delete" in conf.pending.values:
        _queue(conf.pending, kept)


def apply_stopped(conf: Conf, selection: Collection[str] | None = None) -> None:
    """Make pending changes real; all of them, or only the selected options."""
    for key in sorted(deletions(conf.pending)):
        if selection is None or key in selection:
            conf.main.drop(key)
            unqueue_delete(conf, key)
    clean(conf)
    for key in conf.pending.names():
        if key != "delete" and (selection is None or key in selection):
            conf.main.put(key, _final_value(key, conf.pending.get(key)))
            conf.pending.drop(key)


def apply_running(conf: Conf, selection: Collection[str], plug: Callable[[str, Any], bool]) -> None:
    """Make real what a running container can take; the rest stays pending until it is stopped and started.

    `plug(key, value)` does what only the node can do (a new device); False leaves the option pending.
    """
    for key in sorted(deletions(conf.pending)):
        live = key in _AT_ONCE or key in _LIVE - {"memory"} or re.fullmatch(r"(?:unused|net)\d+", key)
        if live and key in selection:
            conf.main.drop(key)
            unqueue_delete(conf, key)
    for key in conf.pending.names():
        if key == "delete" or key not in selection:
            continue
        value = conf.pending.get(key)
        if key in _AT_ONCE or key in _LIVE or re.fullmatch(r"net\d+", key) or plug(key, value):
            conf.main.put(key, _final_value(key, value))
            conf.pending.drop(key)


def _final_value(key: str, value: Any) -> Any:
    if not re.fullmatch(r"net\d+", key):
        return value
    # A network device is printed again from its parts, with an address when it had none.
    schema = options()["net0"]["format"]
    parts = parse_property_string(schema, str(value))
    parts.setdefault("hwaddr", "BC:24:11:" + ":".join(f"{byte:02X}" for byte in secrets.token_bytes(3)))
    parts["type"] = "veth"
    ordered = sorted(parts, key=lambda name: (bool(schema[name].get("optional")), name))
    return ",".join(f"{name}={parts[name]}" for name in ordered)


def merged(conf: Conf) -> dict[str, Any]:
    """The options as they will be once everything pending is applied."""
    section = Section(dict(conf.main.values), list(conf.main.lxc), conf.main.description)
    for key in conf.pending.names():
        if key != "delete":
            section.put(key, conf.pending.get(key))
    for key in deletions(conf.pending):
        section.drop(key)
    return section.to_json()


def listing(conf: Conf) -> list[dict[str, Any]]:
    """The answer of GET .../pending: each option with its value, its pending value or its deletion."""
    doomed = deletions(conf.pending)
    current = conf.to_json()
    rows: list[dict[str, Any]] = []
    for key in current:
        if key == "snapshots" or isinstance(current[key], (dict, list)):
            continue
        row = {"key": key, "value": current[key]}
        if conf.pending.get(key) is not None:
            row["pending"] = conf.pending.get(key)
        if key in doomed:
            row["delete"] = 2 if doomed[key] else 1
        rows.append(row)
    for key in conf.pending.names():
        value = conf.pending.get(key)
        if key != "delete" and key not in current and not isinstance(value, list):
            rows.append({"key": key, "pending": value})
    rows += [
        {"key": key, "delete": 2 if force else 1}
        for key, force in doomed.items()
        if key not in current and conf.pending.get(key) is None
    ]
    return rows
