"""The results folder: one folder a run, written under a staging name and renamed; other boots set aside."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.result import Result
from inventory.errors import CannotLook, Failed, Refused

ASIDE: Final = "earlier-boots"
_STAGING: Final = re.compile(r"^\.staging-(\d+)-")
_BOOT: Final = re.compile(r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$")


@dataclass(frozen=True, slots=True)
class Stranger:
    """An entry of the results folder that does not belong to this boot's results."""

    path: str
    boot: str
    """Its boot id; `unknown` when it does not say."""
    why: str

    def to_json(self) -> dict[str, str]:
        return {"path": self.path, "boot": self.boot, "why": self.why}


def save(folder: Path, result: Result) -> Path:
    """Write `folder`/RUN_ID/result.json: complete or not at all. Raises `Failed` (no room, no right)."""
    staging = folder / f".staging-{os.getpid()}-{result.run_id}"
    try:
        staging.mkdir(parents=True)
        target = staging / "result.json"
        with target.open("w", encoding="utf-8") as file:
            json.dump(result.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        final = folder / result.run_id
        staging.rename(final)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise Failed(
            f"the result cannot be written to {folder}: {error.strerror}",
            hint="make room or correct bench.results in the inventory, then run the benchmark again",
        ) from error
    return final


def read(entry: Path) -> Result:
    """The result in a run's folder. Raises ValueError with the reason when there is none to read."""
    try:
        data: Any = json.loads((entry / "result.json").read_bytes())
    except FileNotFoundError:
        raise ValueError("no result.json: unfinished, or not a run of gpuctl") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"unreadable: {error}") from None
    try:
        return Result.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a result of this version: {error}") from None


def _boot_in(entry: Path) -> str:
    """The boot id that an entry names, even when the rest of it cannot be used."""
    try:
        data: Any = json.loads((entry / "result.json" if entry.is_dir() else entry).read_bytes())
    except (OSError, ValueError):
        return "unknown"
    boot = data.get("boot_id") if isinstance(data, Mapping) else None
    return boot if isinstance(boot, str) and _BOOT.match(boot) else "unknown"


def _alive_staging(name: str) -> bool:
    match = _STAGING.match(name)
    return match is not None and Path(f"/proc/{match[1]}").exists()


def scan(folder: Path, boot_id: str) -> tuple[tuple[Result, ...], tuple[Stranger, ...]]:
    """This boot's results by time, and everything else in the folder. Raises `CannotLook`."""
    current: list[Result] = []
    strangers: list[Stranger] = []
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        raise CannotLook(f"the results in {folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        if entry.name == ASIDE or _alive_staging(entry.name):
            continue
        if not entry.is_dir() or entry.is_symlink():
            strangers.append(Stranger(str(entry), _boot_in(entry), "not a run's folder"))
            continue
        if _STAGING.match(entry.name):
            strangers.append(Stranger(str(entry), _boot_in(entry), "a run that was killed while it was written"))
            continue
        try:
            result = read(entry)
        except ValueError as error:
            strangers.append(Stranger(str(entry), _boot_in(entry), str(error)))
            continue
        if result.boot_id != boot_id:
            boot = result.boot_id if _BOOT.match(result.boot_id) else "unknown"
            strangers.append(Stranger(str(entry), boot, "measured in another boot"))
        else:
            current.append(result)
    return tuple(sorted(current, key=lambda result: result.started_at)), tuple(strangers)


def set_aside(folder: Path, boot_id: str) -> tuple[tuple[str, str], ...]:
    """Move every stranger to `earlier-boots/BOOT/`; -> (from, to) pairs. Nothing is overwritten or deleted."""
    moved: list[tuple[str, str]] = []
    for stranger in scan(folder, boot_id)[1]:
        source = Path(stranger.path)
        home = folder / ASIDE / stranger.boot
        try:
            home.mkdir(parents=True, exist_ok=True)
            target = _free(home, source.name.removeprefix("."))
            source.rename(target)
        except OSError as error:
            raise Failed(f"{source} cannot be moved to {home}: {error.strerror}") from error
        moved.append((str(source), str(target)))
    return tuple(moved)


def _free(home: Path, name: str) -> Path:
    target, number = home / name, 2
    while target.exists() or target.is_symlink():
        target, number = home / f"{name}-{number}", number + 1
    return target


def earlier(folder: Path) -> tuple[Result, ...]:
    """Results of all earlier boots that can still be read, by time."""
    found = []
    for entry in sorted((folder / ASIDE).glob("*/*")):
        if entry.is_symlink():
            continue
        try:
            found.append(read(entry))
        except ValueError:
            continue
    return tuple(sorted(found, key=lambda result: result.started_at))


def everything(folder: Path) -> tuple[Result, ...]:
    """All readable results of a folder, of whatever boot, by time: for lists and for looking back."""
    found = []
    for entry in sorted(folder.glob("*/")):
        try:
            found.append(read(entry))
        except ValueError:
            continue
    return tuple(sorted((*found, *earlier(folder)), key=lambda result: result.started_at))


def show(folder: Path, run_id: str) -> Result:
    """The result of one run, of this boot or set aside. Raises `Refused` naming the known ones."""
    if "/" not in run_id and run_id not in ("", ".", ".."):
        for entry in (folder / run_id, *sorted((folder / ASIDE).glob(f"*/{run_id}"))):
            try:
                return read(entry)
            except ValueError:
                continue
    known = [entry.name for entry in sorted(folder.glob("*/")) if entry.name != ASIDE][-5:]
    raise Refused(f"no readable run {run_id} in {folder}", hint=f"known runs: {', '.join(known) or 'none'}")
