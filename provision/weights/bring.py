"""Bring one repository's files into place: link, copy or fetch, verify, and only then give them their name."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from inventory.root import at
from provision.weights import pool
from provision.weights.cache import Cache
from provision.weights.complete import check_index, check_shards
from provision.weights.digest import Digest, of_file, read_blocks
from provision.weights.fetch import Fetch, state_path
from provision.weights.hub import Hub
from provision.weights.model import MARKER, Manifest, RemoteFile, State, Wanted
from provision.weights.patience import Patience, Stopped
from provision.weights.place import Sink, Staging, write_json
from provision.weights.progress import Meter
from provision.weights.survey import Item, Origin, Survey, part_of
from provision.weights.verify import Inspection, retimed, staged

_SMALL = 16 * 1024 * 1024
"""Files below this come first: an index that names missing shards is found before the shards are fetched."""


class Bringer:
    """One stage of one repository, after its survey; the caller holds the locks."""

    def __init__(
        self,
        wanted: Wanted,
        plan: Survey,
        found: Inspection,
        *,
        hub: Callable[[], Hub],
        meter: Meter,
        stop: threading.Event,
        patience: Patience,
    ) -> None:
        self._wanted, self._plan, self._found = wanted, plan, found
        self._hub, self._meter, self._stop, self._patience = hub, meter, stop, patience
        self._target = Path(at(wanted.to))
        self._staging = Staging(self._target)
        self._cache = Cache(wanted) if wanted.cache else None
        self._sha256: dict[str, str] = {}
        self._written: list[Path] = []
        self._unlinked: set[str] = set()
        self.fetched = 0
        """Bytes of the files that came from the Hub."""
        self.copied = 0
        """Bytes of the files that came from the cache."""

    def adopt(self) -> None:
        """Collect what is good already: links to the target's verified files, rests of an earlier run."""
        files = frozenset(file.path for file in self._plan.files)
        parts = frozenset(part_of(self._staging, file).name for file in self._plan.files)
        self._staging.sweep(files, parts | {state_path(Path(part)).name for part in parts})
        for item in self._plan.items:
            if item.origin is Origin.TARGET:
                self._link(item)

    def drop_target(self) -> None:
        """Remove a damaged target whose bad files hold the memory that is needed; its good ones are adopted."""
        assert self._found.state is State.DAMAGED
        shutil.rmtree(self._target)

    def run(self) -> Manifest:
        """Bring all files, check that they make a whole, and publish. On failure tmpfs is left as it was found."""
        try:
            self._all()
            return self._publish()
        except KeyboardInterrupt:
            # Like a kill: the next run goes on from here.
            raise
        except BaseException:
            self._stop.set()
            self._undo()
            raise

    def _link(self, item: Item) -> None:
        ready = self._found.good(item.file.path)
        assert ready is not None
        place = self._staging.folder / item.file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.link(self._target / item.file.path, place)
        except OSError:
            # A file system without links: brought once more, from the cache or the Hub.
            self._unlinked.add(item.file.path)
            return
        self._sha256[item.file.path] = ready.sha256
        self._meter.set(item.file.path, item.file.size)

    def _all(self) -> None:
        waiting = [
            item
            for item in self._plan.items
            if item.origin is not Origin.TARGET or item.file.path in self._unlinked
        ]
        same: dict[str, list[Item]] = {}
        for item in waiting:
            same.setdefault(item.file.key, []).append(item)
        unique = [items[0] for items in same.values()]
        small = [item for item in unique if item.file.size < _SMALL]
        large = sorted((item for item in unique if item.file.size >= _SMALL), key=lambda i: -i.file.size)
        pool.run([self._task(item) for item in small], self._stop)
        check_index(self._wanted.repo, self._staging.folder, self._plan.files)
        pool.run([self._task(item) for item in large], self._stop)
        for items in same.values():
            for twin in items[1:]:
                self._twin(items[0].file, twin.file)

    def _task(self, item: Item) -> Callable[[], None]:
        return lambda: self._bring(item)

    def _twin(self, first: RemoteFile, file: RemoteFile) -> None:
        """A second name for bytes that are here already."""
        place = self._staging.folder / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        os.link(self._staging.folder / first.path, place)
        self._written.append(place)
        self._sha256[file.path] = self._sha256[first.path]
        self._meter.set(file.path, file.size)

    def _bring(self, item: Item) -> None:
        if item.origin is Origin.STAGED and self._still_right(item.file):
            return
        if self._cache is not None and self._cache.has(item.file) and self._copy(self._cache, item.file):
            self.copied += item.file.size
            return
        self._fetch(item.file)
        self.fetched += item.file.size

    def _still_right(self, file: RemoteFile) -> bool:
        place = self._staging.folder / file.path
        digest = of_file(place, file, self._look)
        if not digest.right():
            place.unlink()
            return False
        self._sha256[file.path] = digest.sha256
        self._meter.set(file.path, file.size)
        return True

    def _look(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _copy(self, cache: Cache, file: RemoteFile) -> bool:
        """Copy from the cache, hashing on the way; False when the cached file is damaged (and put aside)."""
        part = part_of(self._staging, file)
        state_path(part).unlink(missing_ok=True)
        sink, digest = Sink(part, file.size), Digest(file)

        def take(block: memoryview) -> None:
            self._look()
            digest.update(block)
            sink.write(block)
            self._meter.set(file.path, digest.count, moved=len(block))

        try:
            read_blocks(cache.blob(file), take, limit=file.size)
            if digest.right():
                self._done(file, sink, digest)
                return True
        finally:
            sink.close()
        place = cache.quarantine(file)
        self._meter.note(f"{file.path}: the file in the cache is damaged; moved to {place} and fetched again")
        return False

    def _fetch(self, file: RemoteFile) -> None:
        part = part_of(self._staging, file)
        if self._cache is None:
            sinks: tuple[Sink, ...] = (Sink(part, file.size, keep=True),)
        else:
            sinks = (Sink(self._cache.part(file), file.size, keep=True), Sink(part, file.size))
        try:
            fetch = Fetch(
                self._hub(),
                self._plan.listing.commit,
                file,
                sinks,
                patience=self._patience,
                stop=self._stop,
                meter=self._meter,
            )
            digest = fetch.run()
            state_path(sinks[0].path).unlink(missing_ok=True)
            if self._cache is not None:
                sinks[0].commit(self._cache.blob(file), durable=True)
            self._done(file, sinks[-1], digest)
        finally:
            for sink in sinks:
                sink.close()

    def _done(self, file: RemoteFile, sink: Sink, digest: Digest) -> None:
        """A verified file gets its name in the staging folder."""
        place = self._staging.folder / file.path
        sink.commit(place, durable=False)
        self._written.append(place)
        self._sha256[file.path] = digest.sha256

    def _publish(self) -> Manifest:
        folder, wanted = self._staging.folder, self._wanted
        check_index(wanted.repo, folder, self._plan.files)
        check_shards(wanted.repo, folder, self._plan.files)
        now = time.time()
        files = tuple(
            staged(folder, file.path, self._sha256[file.path], file.git_sha1) for file in self._plan.files
        )
        commit = self._plan.listing.commit
        manifest = Manifest(wanted.repo, wanted.revision, commit, wanted.include, wanted.exclude, files, now, now)
        write_json(folder / MARKER, manifest.to_json())
        for root, _, _ in os.walk(folder):
            Path(root).chmod(0o755)
        self._staging.publish()
        now_timed = retimed(self._target, manifest)
        if now_timed != manifest:
            write_json(self._target / MARKER, now_timed.to_json())
        return now_timed

    def _undo(self) -> None:
        """Give the memory back that this run took; files that an earlier target held stay when it is gone."""
        if not self._staging.folder.is_dir():
            return
        for place in self._written:
            place.unlink(missing_ok=True)
        shutil.rmtree(self._staging.parts, ignore_errors=True)
        if self._target.exists():
            shutil.rmtree(self._staging.folder, ignore_errors=True)
            self._retime_target()
        with suppress(OSError):
            self._staging.prune()

    def _retime_target(self) -> None:
        """The links are gone again; the target's verified files need not be read once more because of them."""
        manifest = self._found.manifest
        if manifest is None:
            return
        with suppress(OSError):
            files = tuple(
                staged(self._target, f.path, f.sha256, f.git_sha1) if self._found.good(f.path) else f
                for f in manifest.files
            )
            write_json(self._target / MARKER, replace(manifest, files=files).to_json())
