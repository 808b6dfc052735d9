"""The values of staging: what is wanted, what the Hub lists, what is staged, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

SCHEMA_VERSION = 1

MARKER = ".gpuctl-ready.json"
"""Beside the files of a complete target; the engine's unit waits for it."""


class State(StrEnum):
    """What a target folder is."""

    ABSENT = "absent"
    PARTIAL = "partial"
    """Nothing under the final name, but an interrupted stage left verified or resumable bytes."""
    STALE = "stale"
    """Complete, but of another commit, repository or selection."""
    DAMAGED = "damaged"
    """Was complete; files are missing, changed or of the wrong size."""
    FOREIGN = "foreign"
    """Files that this tool did not put there: never touched."""
    READY = "ready"
    UNREADABLE = "unreadable"


class Source(StrEnum):
    """Where the bytes of a stage come from."""

    HUB = "hub"
    CACHE = "cache"
    ALREADY = "already"


class Verify(StrEnum):
    """How far a staged target is trusted: by sizes and times, or by reading every byte."""

    QUICK = "quick"
    FULL = "full"


def size_text(count: int) -> str:
    """`98362432` -> `98.4 MB` (decimal units, as the Hub shows them)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the Hub lists it: `size` in bytes, `sha256` for LFS files, `git_sha1` (blob id) for the others.

    Once staged, the sha256 of a git file is known too.
    """

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def key(self) -> str:
        """Name of its content: equal keys, equal bytes."""
        return f"git-{self.git_sha1}" if self.git_sha1 else self.sha256


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError on anything else than what `to_json` wrote."""
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError("another schema version")
        files = tuple(RemoteFile(**entry) for entry in data["files"])
        return cls(str(data["repo"]), str(data["commit"]), files, bool(data["gated"]))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A verified file of a target: its identity, and the times that tell whether it was touched since."""

    path: str
    size: int
    sha256: str
    git_sha1: str
    mtime_ns: int
    ctime_ns: int

    @property
    def remote(self) -> RemoteFile:
        return RemoteFile(self.path, self.size, self.sha256, self.git_sha1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete target holds; `staged_s` and `verified_s` are seconds since the epoch."""

    repo: str
    revision: str
    commit: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    files: tuple[StagedFile, ...]
    staged_s: float
    verified_s: float

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def satisfies(self, wanted: Wanted) -> bool:
        """Whether this is what is wanted; a branch counts as resolved when it was staged."""
        return (
            self.repo == wanted.repo
            and wanted.revision in (self.revision, self.commit)
            and (self.include, self.exclude) == (wanted.include, wanted.exclude)
        )

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError on anything else than what `to_json` wrote."""
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError("another schema version")
        return cls(
            repo=str(data["repo"]),
            revision=str(data["revision"]),
            commit=str(data["commit"]),
            include=tuple(data["include"]),
            exclude=tuple(data["exclude"]),
            files=tuple(StagedFile(**entry) for entry in data["files"]),
            staged_s=float(data["staged_s"]),
            verified_s=float(data["verified_s"]),
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One entry of the inventory's `weights`, as it travels to the machine that stages."""

    repo: str
    to: str
    revision: str = "main"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    cache: str = ""
    endpoint: str = ""
    token: str = field(default="", repr=False)
    refresh: bool = False
    """Ask the Hub again what the revision means now, although the answer is known from an earlier stage."""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What was found about one wanted entry, and what bringing it would take."""

    repo: str
    revision: str
    to: str
    state: State
    commit: str = ""
    """Of what is staged when ready, else of what would be staged; empty: not known."""
    files: int = 0
    size: int = 0
    """Bytes of the whole selection; 0: not known."""
    need: int = 0
    """Bytes that would be written to the target."""
    fetch: int = 0
    """Bytes of them that would come from the Hub."""
    source: Source = Source.ALREADY
    verified_s: float = 0.0
    reasons: tuple[str, ...] = ()
    """Why it is not ready."""
    notes: tuple[str, ...] = ()
    blocked: Mapping[str, Any] | None = None
    """`GpuctlError.to_json()` of what stands in the way."""

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["state"], values["source"] = str(self.state), str(self.source)
        values["reasons"], values["notes"] = list(self.reasons), list(self.notes)
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError when the other side is of another version."""
        values = dict(data)
        values["state"], values["source"] = State(values["state"]), Source(values["source"])
        values["reasons"], values["notes"] = tuple(values["reasons"]), tuple(values["notes"])
        return cls(**values)
