"""What is there and what it would take: the facts of one wanted entry, read without changing anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from inventory.errors import ConfigError, GpuctlError, Refused
from inventory.root import at
from provision.weights import room
from provision.weights.cache import Cache
from provision.weights.model import Listing, RemoteFile, Source, StageFacts, State, Wanted
from provision.weights.names import COMMIT, select
from provision.weights.place import Staging, used
from provision.weights.verify import Inspection

_PAGE = 4096
"""A file in memory takes whole pages."""


class Origin(StrEnum):
    """Where a file of the selection comes from."""

    STAGED = "staged"
    """An interrupted run brought it already; it is read again before it is believed."""
    TARGET = "target"
    """The present target holds it, verified."""
    CACHE = "cache"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class Item:
    """One file and its origin; `need` bytes are still to be written to the target, `fetch` to come from the Hub."""

    file: RemoteFile
    origin: Origin
    need: int = 0
    fetch: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """A commit's selection, file by file."""

    listing: Listing
    items: tuple[Item, ...]

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return tuple(item.file for item in self.items)

    @property
    def size(self) -> int:
        return sum(item.file.size for item in self.items)

    @property
    def need(self) -> int:
        return sum(item.need for item in self.items)

    @property
    def fetch(self) -> int:
        return sum(item.fetch for item in self.items)

    @property
    def source(self) -> Source:
        origins = {item.origin for item in self.items}
        return Source.HUB if Origin.HUB in origins else Source.CACHE if Origin.CACHE in origins else Source.ALREADY


def check_places(wanted: Wanted) -> tuple[str, ...]:
    """Refuse targets and caches that cannot work; returns notes about odd ones."""
    target = at(wanted.to)
    if os.path.ismount(target):
        raise Refused(
            f"{wanted.repo}: {wanted.to} is a mount point, which cannot be replaced in one step",
            hint=f"stage into a folder below it, for example {wanted.to}/{wanted.repo.rsplit('/', 1)[-1]}",
        )
    if wanted.cache:
        inside, outside = Path(wanted.to), Path(wanted.cache)
        if inside == outside or outside in inside.parents or inside in outside.parents:
            raise ConfigError(f"{wanted.repo}: the target {wanted.to} and the cache {wanted.cache} overlap")
        if Path("/dev/shm") in (outside, *outside.parents):  # noqa: S108
            raise ConfigError(
                f"{wanted.repo}: the cache folder {wanted.cache} lies in memory and would be gone after a reboot",
                hint="put it on a disk, or leave cache: out",
            )
    here = room.look(wanted.to)
    notes = list(here.unknown)
    if here.in_memory is False:
        notes.append(f"{wanted.to} is not in memory: the engine will read from a disk")
    if wanted.cache and room.look(wanted.cache).in_memory:
        notes.append(f"the cache folder {wanted.cache} is in memory and will be gone after a reboot")
    return tuple(notes)


def known_listing(wanted: Wanted, found: Inspection) -> Listing | None:
    """The listing as far as it is known without network: of the staged manifest, or of the cache."""
    pinned = COMMIT.fullmatch(wanted.revision) is not None
    if wanted.refresh and not pinned:
        return None
    manifest = found.manifest
    if manifest is not None and manifest.satisfies(wanted):
        return Listing(wanted.repo, manifest.commit, tuple(file.remote for file in manifest.files))
    if wanted.cache:
        cache = Cache(wanted)
        commit = cache.commit_of(wanted.revision)
        return cache.listing(commit) if commit else None
    return None


def survey(wanted: Wanted, found: Inspection, listing: Listing) -> Survey:
    """Decide for every selected file where it comes from. Raises `ConfigError` and `Refused` of `select`."""
    staging = Staging(Path(at(wanted.to)))
    cache = Cache(wanted) if wanted.cache else None
    return Survey(listing, tuple(_item(file, found, staging, cache) for file in select(wanted, listing)))


def part_of(staging: Staging, file: RemoteFile) -> Path:
    """The staging name of a file's bytes in the target's file system."""
    return staging.parts / f"{file.key}.part"


def _item(file: RemoteFile, found: Inspection, staging: Staging, cache: Cache | None) -> Item:
    ready = found.good(file.path)
    if ready is not None and ready.remote.key == file.key:
        return Item(file, Origin.TARGET)
    there = staging.folder / file.path
    if there.is_file() and not there.is_symlink() and there.stat().st_size == file.size:
        return Item(file, Origin.STAGED)
    part = part_of(staging, file)
    need = max(0, -(-file.size // _PAGE) * _PAGE - used(part))
    if cache is not None and cache.has(file):
        return Item(file, Origin.CACHE, need)
    half = cache.part(file) if cache is not None else part
    have = min(half.stat().st_size, file.size) if half.is_file() else 0
    return Item(file, Origin.HUB, need, file.size - have)


def bad_bytes(wanted: Wanted, found: Inspection) -> int:
    """Bytes that removing a damaged target would give back, beyond the good files that are kept."""
    if found.state is not State.DAMAGED:
        return 0
    return sum(used(Path(at(wanted.to), path)) for path, _ in found.bad)


def check_room(wanted: Wanted, plan: Survey, *, taken: int = 0, freed: int = 0) -> None:
    """Refuse before the first byte when target or cache cannot hold what is missing.

    `taken`: bytes promised to other weights; `freed`: bytes that will be given back first.
    """
    room.check(wanted.repo, plan.need - freed, room.look(wanted.to), taken=taken)
    if wanted.cache and plan.fetch:
        cache = Cache(wanted)
        missing = sum(
            max(0, item.file.size - used(cache.part(item.file)))
            for item in plan.items
            if item.origin is Origin.HUB
        )
        room.check(f"{wanted.repo} (cache)", missing, room.look(wanted.cache))


def facts(wanted: Wanted, found: Inspection, ask: Callable[[], Listing], *, taken: int = 0) -> StageFacts:
    """Everything a plan needs; asks the Hub (by `ask`) only when neither manifest nor cache know the listing."""
    base = StageFacts(wanted.repo, wanted.revision, wanted.to, found.state, reasons=found.reasons)
    manifest = found.manifest
    if found.state is State.READY and manifest is not None and not wanted.refresh:
        return replace(
            base,
            commit=manifest.commit,
            files=len(manifest.files),
            size=manifest.size,
            verified_s=manifest.verified_s,
        )
    try:
        if found.state is State.UNREADABLE:
            return base
        notes = check_places(wanted)
        if found.state is State.FOREIGN:
            raise foreign(wanted, found)
        listing = known_listing(wanted, found) or ask()
        found = moved(found, listing)
        plan = survey(wanted, found, listing)
        base = replace(
            base,
            state=found.state,
            reasons=found.reasons,
            commit=listing.commit,
            files=len(plan.items),
            size=plan.size,
            need=plan.need,
            fetch=plan.fetch,
            source=plan.source,
            notes=notes,
        )
        check_room(wanted, plan, taken=taken, freed=bad_bytes(wanted, found))
    except GpuctlError as error:
        return replace(base, blocked=error.to_json())
    return base


def moved(found: Inspection, listing: Listing) -> Inspection:
    """The same finding, stale when the revision means another commit by now."""
    if found.state is not State.READY or found.manifest is None or found.manifest.commit == listing.commit:
        return found
    reason = f"{found.manifest.revision} has moved from {found.manifest.commit[:7]} to {listing.commit[:7]}"
    return replace(found, state=State.STALE, reasons=(reason,))


def foreign(wanted: Wanted, found: Inspection) -> Refused:
    """The refusal to touch files that are not ours."""
    return Refused(
        f"{wanted.repo}: {found.reasons[0] if found.reasons else wanted.to}",
        hint=f"move {wanted.to} away, or choose another target folder",
    )
