"""A container as the API and `pct` change it: options, device checks, start, stop, shutdown, reboot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpuctl.lab.pve import pending
from gpuctl.lab.pve.backend import Backend, NodeKind, Passthrough, TaskFailed, TaskLog
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.pve.fault import Fault, bad_parameters, failed
from gpuctl.lab.pve.formats import FormatError, split_list
from gpuctl.lab.pve.schema import options, parse_property_string
from gpuctl.lab.pve.store import Store

_DEVICE: Final = re.compile(r"dev(\d+)", re.ASCII)
_REQUIRED: Final = frozenset({"memory", "rootfs", "ostype"})
_LXC_PM: Final = "/usr/share/perl5/PVE/LXC.pm"

Permission = Callable[[Conf], None]


def check_lock(conf: Conf, *, tolerate: str = "") -> None:
    """Refuse a container that another operation holds."""
    lock = conf.main.values.get("lock")
    if lock and lock != tolerate:
        raise failed(f"CT is locked ({lock})")


def parse_device(text: str) -> Mapping[str, Any]:
    """A `dev[n]` value; a 500 `Fault` when it has no path."""
    parts = _parse("dev0", text)
    if not parts.get("path"):
        raise failed("Path has to be defined")
    return parts


def _parse(key: str, text: str) -> Mapping[str, Any]:
    try:
        return parse_property_string(options()[key]["format"], text)
    except FormatError as error:
        raise Fault(500, error.head, error.errors) from error


class Guests:
    """The containers of one node."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store

    def passthrough(self, key: str, text: str) -> Passthrough:
        """A device entry resolved against the host now; a 500 `Fault` when the node is missing."""
        parts = parse_device(text)
        path = str(parts["path"])
        device = self._backend.device(path)
        if device is None:
            raise failed(f"Device {path} does not exist")
        if device.kind is NodeKind.OTHER:
            raise failed(f"{path} is not a device")
        return Passthrough(
            index=int(key.removeprefix("dev")),
            path=path,
            device=device,
            mode=int(str(parts.get("mode", "0660")), 8),
            uid=int(parts.get("uid", 0)),
            gid=int(parts.get("gid", 0)),
            deny_write=bool(parts.get("deny-write", 0)),
        )

    def devices(self, conf: Conf) -> tuple[Passthrough, ...]:
        """Every `dev[n]` of a container, resolved now, by index. Start uses exactly this."""
        found = [key for key in conf.main.values if _DEVICE.fullmatch(key) and key in options()]
        return tuple(self.passthrough(key, str(conf.main.values[key])) for key in sorted(found, key=_index))

    def derive(self, conf: Conf) -> tuple[Passthrough, ...]:
        """Work out the runtime configuration, as every write and every start does; a 500 `Fault` if impossible."""
        for key, line in (("arch", 729), ("ostype", 735)):
            if not conf.main.values.get(key):
                raise failed(f"missing '{key}' - internal error at {_LXC_PM} line {line}.")
        if conf.main.values.get("features"):
            _parse("features", str(conf.main.values["features"]))
        found = self.devices(conf)
        for key in sorted(conf.main.values):
            if re.fullmatch(r"net\d+", key) and key in options():
                _parse("net0", str(conf.main.values[key]))
        return found

    # --- PUT config ---------------------------------------------------------------------------------

    def update(self, vmid: int, form: Mapping[str, str], permission: Permission | None = None) -> None:
        """Change options. The order of the checks, and writing before the last of them, is Proxmox's own.

        `form` holds texts as they came, `delete`, `revert` and `digest` among them. `permission` looks at
        the configuration as it is and raises a 403 `Fault`.
        """
        values = dict(form)
        digest = values.pop("digest", "")
        if not values:
            raise failed("no options specified")
        doomed = split_list(values.pop("delete", ""))
        reverted = split_list(values.pop("revert", ""))
        _check_names(values, doomed, reverted)
        with self._store.locked(vmid):
            conf = self._store.load(vmid)
            check_lock(conf)
            if digest and digest != conf.digest:
                raise failed("detected modified configuration - file changed by other user? Try again.")
            if permission is not None:
                permission(conf)
            self._change(conf, values, doomed, reverted)
            self._store.save(conf)
            self.derive(self._store.load(vmid))

    def _change(
        self, conf: Conf, values: Mapping[str, str], doomed: Sequence[str], reverted: Sequence[str]
    ) -> None:
        for key in reverted:
            pending.revert(conf, key)
        touched = {key for key in doomed if self._queue_delete(conf, key)}
        for key in sorted(values):
            touched.add(key)
            pending.queue_set(conf, key, self._accept(conf, key, values[key]))
        pending.clean(conf)
        if not self._backend.running(conf.vmid):
            pending.apply_stopped(conf, touched)
            return
        errors: dict[str, str] = {}

        def plug(key: str, value: Any) -> bool:
            if not _DEVICE.fullmatch(key) or conf.main.get(key) is not None:
                return False
            try:
                self._backend.hotplug(conf.vmid, self.passthrough(key, str(value)))
            except TaskFailed as error:
                errors[key] = f"unable to hotplug {key}: {error}"
                return False
            return True

        pending.apply_running(conf, touched, plug)
        if errors:
            raise bad_parameters(errors)

    def _queue_delete(self, conf: Conf, key: str) -> bool:
        if conf.main.get(key) is None and conf.pending.get(key) is None:
            return False
        if key in _REQUIRED:
            raise failed(f"unable to delete required option '{key}'")
        if key == "unprivileged":
            raise failed(f"unable to delete read-only option: '{key}'")
        if re.fullmatch(r"(?:mp|unused)\d+", key):
            _check_protection(conf, f"can't remove CT {conf.vmid} drive '{key}'")
        pending.queue_delete(conf, key)
        return True

    def _accept(self, conf: Conf, key: str, value: str) -> str:
        """The value to queue; a 500 `Fault` for what the schema cannot know."""
        if key == "description":
            return value
        value = value.encode("utf-8").decode("latin-1")
        if key == "unprivileged":
            raise failed(f"unable to modify read-only option: '{key}'")
        if key in ("nameserver", "searchdomain"):
            return " ".join(split_list(value))
        if key == "rootfs" or re.fullmatch(r"mp\d+", key):
            _check_protection(conf, f"can't update CT {conf.vmid} drive '{key}'")
        if _DEVICE.fullmatch(key):
            self.passthrough(key, value)
        return value

    # --- power --------------------------------------------------------------------------------------

    def start(self, vmid: int, log: TaskLog, *, skiplock: bool = False) -> None:
        """Apply what is pending, check the devices, start. Raises `Fault` or `TaskFailed`."""
        with self._store.locked(vmid):
            conf = self._store.load(vmid)
            if not skiplock:
                check_lock(conf, tolerate="mounted")
            if conf.main.values.get("template"):
                raise failed("you can't start a CT if it's a template")
            if not conf.pending.empty():
                pending.apply_stopped(conf)
                self._store.save(conf)
                conf = self._store.load(vmid)
            self.derive(conf)
            self._backend.start(vmid, log)

    def stop(self, vmid: int, log: TaskLog, *, skiplock: bool = False) -> None:
        """Kill it."""
        with self._store.locked(vmid):
            if not skiplock:
                check_lock(self._store.load(vmid), tolerate="mounted")
            self._backend.stop(vmid, log)

    def shutdown(self, vmid: int, timeout_s: float, log: TaskLog, *, force: bool = False) -> None:
        """Ask it to end; with `force` kill it when the limit has passed."""
        with self._store.locked(vmid):
            check_lock(self._store.load(vmid), tolerate="mounted")
            try:
                self._backend.shutdown(vmid, timeout_s, log)
            except TaskFailed:
                if not force or not self._backend.running(vmid):
                    raise
                self._backend.stop(vmid, log)

    def reboot(self, vmid: int, timeout_s: float, log: TaskLog) -> None:
        """Stop (killing after the limit) and start again. When the second half fails it stays stopped."""
        self.shutdown(vmid, timeout_s, log, force=True)
        self.start(vmid, log)


def _index(key: str) -> int:
    return int(key.removeprefix("dev"))


def _check_protection(conf: Conf, what: str) -> None:
    if conf.main.values.get("protection"):
        raise failed(f"{what} - protection mode enabled")


def _check_names(values: Mapping[str, str], doomed: Sequence[str], reverted: Sequence[str]) -> None:
    for key in reverted:
        if key not in options():
            raise bad_parameters({"revert": f"unknown option '{key}'"})
        if key in values:
            raise bad_parameters({"revert": f"you can't use '-{key}' and '-revert {key}' at the same time"})
    for key in doomed:
        if key not in options():
            raise bad_parameters({"delete": f"unknown option '{key}'"})
        if key in values:
            raise bad_parameters({"delete": f"you can't use '-{key}' and -delete {key}' at the same time"})
        if key in reverted:
            text = f"you can't use '-delete {key}' and '-revert {key}' at the same time"
            raise bad_parameters({"delete": text})
