"""Install, show and remove the boot unit: its file, and whether systemd starts it at boot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inventory.errors import CannotLook, Failed, Refused
from inventory.root import at
from provision.devices.change import tool, whole_file
from provision.devices.facts import State
from provision.devices.observe import look
from provision.devices.planning import boot_unit

LIMIT_S: Final = 20.0
"""Limit of one systemctl."""
LOCK: Final = "/run/lock/gpuctl-boot-unit.lock"
LOCK_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Shown:
    """The unit as it is now; `enabled`: systemd starts it at boot."""

    text: str
    installed: bool
    enabled: bool
    changed: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"path": boot_unit.PATH, **{name: getattr(self, name) for name in self.__slots__}}


def show() -> Shown:
    """Read only. Raises `CannotLook` when the unit's file can't be read, `Failed` without systemctl."""
    if os.path.islink(at(boot_unit.PATH)):  # noqa: PTH114 - masked by its admin, or a link of theirs
        return Shown("", installed=True, enabled=_enabled())
    found = look.content(boot_unit.PATH)
    if found.state is State.UNREADABLE:
        raise CannotLook(f"{boot_unit.PATH} can't be read: {found.why}")
    installed = found.state is State.PRESENT
    return Shown(found.text, installed, installed and _enabled())


def install(text: str) -> Shown:
    """Write the unit, joined with what our unit made before, and enable it; nothing when that is so already.

    Only calls that gpuctl makes get into the file, whatever `text` says beside them. Raises `ConfigError` for other
    calls, `Refused` when a unit of this name isn't ours or nvidia-modprobe isn't there, `Failed` with systemctl's
    own words.
    """
    with _alone():
        before = _ours()
        wanted = boot_unit.merged(before.text, text)
        if before.enabled and before.text == wanted:
            return before
        _check_program(wanted)
        if before.text != wanted:
            _write(wanted)
        _reload()
        _systemctl("enable")
        return _proven(Shown(wanted, installed=True, enabled=True, changed=True))


def remove() -> Shown:
    """Disable the unit and remove its file; otherwise as `install`."""
    with _alone():
        before = _ours()
        if not before.installed:
            return before
        _systemctl("disable")
        try:
            os.unlink(at(boot_unit.PATH))  # noqa: PTH108
        except OSError as error:
            raise _unwritable(error) from error
        _reload()
        return _proven(Shown("", installed=False, enabled=False, changed=True))


def _check_program(text: str) -> None:
    """Raises `Refused` when the unit would fail at every boot because its program isn't there."""
    for program in {argv[0] for argv in boot_unit.calls_in(text)}:
        if not any(os.access(path, os.X_OK) for path in (program, at(program))):
            raise Refused(
                f"{program} is not there, so the boot unit would make nothing",
                hint="it comes with NVIDIA's driver; on Debian: apt install nvidia-modprobe",
            )


def _ours() -> Shown:
    found = show()
    if found.installed and not boot_unit.is_ours(found.text):
        raise Refused(
            f"{boot_unit.PATH} was not made by gpuctl, so it is left as it is",
            hint=f"look at it: systemctl cat {boot_unit.NAME}; to let gpuctl make it, remove or rename it first",
        )
    return found


def _proven(wanted: Shown) -> Shown:
    """Raises `Failed` unless a new look shows what was asked for: an exit status of 0 alone proves nothing."""
    now = show()
    if (now.installed, now.enabled, now.text) != (wanted.installed, wanted.enabled, wanted.text):
        raise Failed(
            f"systemctl ran, but {boot_unit.NAME} is {'' if now.installed else 'not '}installed and "
            f"{'' if now.enabled else 'not '}enabled now",
            hint=f"see `systemctl status {boot_unit.NAME}` on the host",
        )
    return wanted


def _write(text: str) -> None:
    path = Path(boot_unit.PATH)
    try:
        whole_file.clear_leftovers(str(path.parent), path.name)
        whole_file.write(boot_unit.PATH, text.encode(), mode=0o644)
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> Failed:
    return Failed(f"{boot_unit.PATH} can't be changed: {os.strerror(error.errno or 0)}", hint="gpuctl needs root")


@contextmanager
def _alone() -> Iterator[None]:
    """One gpuctl at a time, since each reads the unit, adds to it and writes it."""
    try:
        with whole_file.held(LOCK, LOCK_WAIT_S):
            yield
    except TimeoutError:
        raise Refused("another gpuctl is changing the boot unit of this host", hint="run this again") from None


def _argv(*words: str) -> tuple[str, ...]:
    root = at("/")
    return ("systemctl", *((f"--root={root.rstrip('/')}",) if root != "/" else ()), *words)


def _run(*words: str) -> tool.Ran:
    return tool.run(_argv(*words), LIMIT_S, missing="a Proxmox host has systemd", late="see `systemctl list-jobs`")


def _enabled() -> bool:
    ran = _run("is-enabled", boot_unit.NAME)
    said = ran.stdout.strip()
    if said not in ("enabled", "disabled", "masked", "linked", "static", "indirect", "alias", "not-found"):
        raise Failed(f"systemctl is-enabled {boot_unit.NAME} says {said!r} ({ran.rc})", detail=ran.words)
    return said == "enabled"


def _systemctl(*words: str) -> None:
    ran = _run(*words, *(() if words == ("daemon-reload",) else (boot_unit.NAME,)))
    if ran.rc != 0:
        raise Failed(
            f"{' '.join(ran.argv)} failed with exit status {ran.rc}",
            hint=f"see `systemctl status {boot_unit.NAME}` on the host",
            detail=ran.words,
        )


def _reload() -> None:
    """systemd reads its files anew; where it isn't PID 1 (a tree of files, a container) nobody has read them."""
    if at("/") == "/" and look.node("/run/systemd/system").kind == "directory":
        _systemctl("daemon-reload")
