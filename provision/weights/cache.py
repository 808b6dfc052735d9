"""The persistent cache on disk: files by their content, listings by commit, revisions as last resolved."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from inventory.root import at
from provision.weights.model import Listing, RemoteFile, Wanted
from provision.weights.names import COMMIT
from provision.weights.place import read_json, write_json


class Cache:
    """One repository's part of a cache folder.

    Nothing in it is believed: sizes are looked at when planning, digests checked whenever bytes are used.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.folder = Path(at(wanted.cache), wanted.repo.replace("/", "--"))
        self.lock = self.folder / "lock"

    def blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.key

    def part(self, file: RemoteFile) -> Path:
        return self.folder / "parts" / f"{file.key}.part"

    def has(self, file: RemoteFile) -> bool:
        """Whether a file of this content and size is there; its bytes are checked when it is used."""
        try:
            return self.blob(file).lstat().st_size == file.size
        except OSError:
            return False

    def quarantine(self, file: RemoteFile) -> Path:
        """Move a damaged file out of the way; a later one of the same content replaces it there."""
        place = self.folder / "quarantine" / file.key
        place.parent.mkdir(parents=True, exist_ok=True)
        self.blob(file).rename(place)
        return place

    def commit_of(self, revision: str) -> str:
        """What `revision` meant when it was last resolved; empty: never."""
        if COMMIT.fullmatch(revision):
            return revision
        data = read_json(self._ref(revision))
        commit = str(data.get("commit", "")) if isinstance(data, dict) else ""
        return commit if COMMIT.fullmatch(commit) else ""

    def listing(self, commit: str) -> Listing | None:
        data = read_json(self.folder / "listings" / f"{commit}.json")
        with suppress(KeyError, TypeError, ValueError):
            found = Listing.from_json(data)
            return found if found.commit == commit else None
        return None

    def remember(self, revision: str, listing: Listing) -> None:
        """Keep a resolved revision and its listing, so that the next stage needs no network."""
        write_json(self.folder / "listings" / f"{listing.commit}.json", listing.to_json(), durable=True)
        if not COMMIT.fullmatch(revision):
            write_json(self._ref(revision), {"commit": listing.commit, "resolved_s": time.time()}, durable=True)

    def _ref(self, revision: str) -> Path:
        return self.folder / "refs" / f"{quote(revision, safe='')}.json"
