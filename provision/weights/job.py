"""The jobs `weights.stage` and `weights.status`: they run on the machine whose memory is filled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from inventory.errors import CannotLook, ConfigError, Failed, Refused
from inventory.machine import Emit, ignore
from inventory.root import at
from provision.weights import lock, room
from provision.weights.bring import Bringer
from provision.weights.cache import Cache
from provision.weights.hub import Hub
from provision.weights.model import MARKER, Listing, Manifest, Source, StageFacts, State, Verify, Wanted
from provision.weights.names import wanted as parse_wanted
from provision.weights.patience import SHORT, Patience, Stopped
from provision.weights.place import Staging, write_json
from provision.weights.progress import Meter
from provision.weights.survey import (
    Survey,
    bad_bytes,
    check_places,
    check_room,
    facts,
    foreign,
    known_listing,
    moved,
    survey,
)
from provision.weights.verify import Inspection, inspect, rehash, retimed

LOCK_WAIT_S = 600.0
"""How long a stage waits for another one of the same folder."""


def _entries(args: Mapping[str, Any]) -> tuple[Wanted, ...]:
    entries = tuple(parse_wanted(entry) for entry in args.get("weights") or ())
    for index, one in enumerate(entries):
        for other in entries[:index]:
            a, b = PurePosixPath(one.to), PurePosixPath(other.to)
            if a == b or a in b.parents or b in a.parents:
                raise ConfigError(
                    f"{one.repo} and {other.repo} would be staged into overlapping folders: {one.to} and {other.to}",
                    hint="give each its own folder",
                )
    return entries


def _verify(args: Mapping[str, Any]) -> Verify:
    try:
        return Verify(args.get("verify") or Verify.QUICK)
    except ValueError:
        raise ConfigError(f"verify is {args.get('verify')!r}", hint="it is quick or full") from None


@contextmanager
def _as_ours(wanted: Wanted) -> Iterator[None]:
    """Operating system errors in the user's words."""
    try:
        yield
    except OSError as error:
        place = error.filename or wanted.to
        raise Failed(
            f"{wanted.repo}: {place}: {error.strerror or error}", hint="see owner, mode and disk"
        ) from error
    except Stopped:
        raise Failed(
            f"{wanted.repo}: the stage was stopped", hint="run it again: it goes on where it was"
        ) from None


def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """What is staged, and what bringing the rest would take; changes nothing.

    args: `{"weights": [{repo, revision, include, exclude, to, cache, endpoint, token, refresh}], "verify"}`.
    Value: `{"weights": [StageFacts]}` in the same order. A right target is told without network.
    """
    verify = _verify(args)
    found: list[StageFacts] = []
    taken: dict[int, int] = {}
    for wanted in _entries(args):
        with _as_ours(wanted):
            device = room.look(wanted.to).device
            one = _facts(wanted, verify, emit, taken.get(device, 0))
            taken[device] = taken.get(device, 0) + one.need
            found.append(one)
    return {"weights": [one.to_json() for one in found]}


def _facts(wanted: Wanted, verify: Verify, emit: Emit, taken: int) -> StageFacts:
    target = Path(at(wanted.to))
    found = inspect(target, wanted)
    if verify is Verify.FULL:
        found = rehash(target, found, wanted, lambda: None, everything=True)
    meter = Meter(emit, wanted.repo, 0)

    def ask() -> Listing:
        hub = Hub(wanted, SHORT, threading.Event(), meter.note)
        try:
            return hub.listing()
        finally:
            hub.close()

    return facts(wanted, found, ask, taken=taken)


def stage(args: Mapping[str, Any], emit: Emit = ignore, *, patience: Patience | None = None) -> dict[str, Any]:
    """Bring all wanted weights into place; args as `status`.

    Value: `{"staged": [{repo, revision, commit, to, files, bytes, fetched, copied, seconds, source, notes}]}`.
    Raises the first failure; entries before it are staged. Emits `progress` and `note` events.
    """
    verify = _verify(args)
    entries = _entries(args)
    for wanted in entries:
        with _as_ours(wanted):
            check_places(wanted)
    done = []
    for wanted in entries:
        with _as_ours(wanted):
            done.append(_Stage(wanted, verify, emit, patience or Patience()).run())
    return {"staged": done}


class _Stage:
    """The stage of one entry."""

    def __init__(self, wanted: Wanted, verify: Verify, emit: Emit, patience: Patience) -> None:
        self._wanted, self._verify, self._patience = wanted, verify, patience
        self._emit = emit
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._opened: Hub | None = None
        self._meter = Meter(emit, wanted.repo, 0)
        self._target = Path(at(wanted.to))
        self._staging = Staging(self._target)
        self._began = time.monotonic()

    def run(self) -> dict[str, Any]:
        quick = inspect(self._target, self._wanted)
        plain = self._verify is Verify.QUICK and not self._wanted.refresh
        if plain and quick.state is State.READY and not self._staging.leftovers():
            assert quick.manifest is not None
            return self._report(quick.manifest, Source.ALREADY)
        with self._locks():
            try:
                return self._locked()
            finally:
                if self._opened is not None:
                    self._opened.close()

    @contextmanager
    def _locks(self) -> Iterator[None]:
        with lock.hold(self._staging.lock, self._meter.note, wait_s=LOCK_WAIT_S):
            if not self._wanted.cache:
                yield
                return
            with lock.hold(Cache(self._wanted).lock, self._meter.note, wait_s=LOCK_WAIT_S):
                yield

    def _look(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _locked(self) -> dict[str, Any]:
        wanted = self._wanted
        found = self._inspect()
        if found.state is State.FOREIGN:
            raise foreign(wanted, found)
        if found.state is State.UNREADABLE:
            raise CannotLook(f"{wanted.repo}: {found.reasons[0]}", hint="run as a user who may read it")
        listing = known_listing(wanted, found) or self._ask()
        found = moved(found, listing)
        if found.state is State.READY and found.manifest is not None:
            self._staging.clear()
            return self._report(self._refreshed(found.manifest), Source.ALREADY)
        plan = survey(wanted, found, listing)
        self._meter = Meter(self._emit, wanted.repo, plan.size)
        drop = self._needs_drop(plan, found)
        bringer = Bringer(
            wanted,
            plan,
            found,
            hub=self._hub,
            meter=self._meter,
            stop=self._stop,
            patience=self._patience,
        )
        bringer.adopt()
        if drop:
            bringer.drop_target()
        manifest = bringer.run()
        self._meter.finish()
        source = Source.HUB if bringer.fetched else Source.CACHE if bringer.copied else Source.ALREADY
        return self._report(manifest, source, bringer.fetched, bringer.copied)

    def _needs_drop(self, plan: Survey, found: Inspection) -> bool:
        """Whether the bad files of a damaged target must go before the good ones fit. Raises `Refused`."""
        freed = bad_bytes(self._wanted, found)
        check_room(self._wanted, plan, freed=freed)
        try:
            check_room(self._wanted, plan)
        except Refused:
            return True
        return False

    def _inspect(self) -> Inspection:
        found = inspect(self._target, self._wanted)
        everything = self._verify is Verify.FULL
        if found.manifest is None or not (everything or found.touched):
            return found
        for reason in found.reasons:
            self._meter.note(reason)
        return rehash(self._target, found, self._wanted, self._look, everything=everything)

    def _refreshed(self, manifest: Manifest) -> Manifest:
        """The marker brought up to date after files were read again."""
        now = retimed(self._target, manifest)
        if self._verify is Verify.FULL:
            now = replace(now, verified_s=time.time())
        if now != manifest:
            write_json(self._target / MARKER, now.to_json())
        return now

    def _hub(self) -> Hub:
        with self._guard:
            if self._opened is None:
                self._opened = Hub(self._wanted, self._patience, self._stop, self._meter.note)
            return self._opened

    def _ask(self) -> Listing:
        listing = self._hub().listing()
        if self._wanted.cache:
            Cache(self._wanted).remember(self._wanted.revision, listing)
        return listing

    def _report(self, manifest: Manifest, source: Source, fetched: int = 0, copied: int = 0) -> dict[str, Any]:
        return {
            "repo": manifest.repo,
            "revision": manifest.revision,
            "commit": manifest.commit,
            "to": self._wanted.to,
            "files": len(manifest.files),
            "bytes": manifest.size,
            "fetched": fetched,
            "copied": copied,
            "seconds": round(time.monotonic() - self._began, 3),
            "source": str(source),
            "notes": list(check_places(self._wanted)) if source is not Source.ALREADY else [],
        }
