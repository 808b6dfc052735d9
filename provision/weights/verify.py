"""Is a staged target what is wanted, and whole? By sizes and times in milliseconds, or by reading every byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from provision.weights.digest import of_file
from provision.weights.model import MARKER, Manifest, StagedFile, State, Wanted
from provision.weights.place import Staging, read_json


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a target folder is. `bad`: files proven wrong, with the reason; `touched`: files whose change
    time moved since they were verified, so that only reading them can tell."""

    state: State
    manifest: Manifest | None = None
    bad: tuple[tuple[str, str], ...] = ()
    touched: frozenset[str] = frozenset()
    reasons: tuple[str, ...] = ()

    def good(self, path: str) -> StagedFile | None:
        """The verified file of that name; None when there is none."""
        if self.manifest is None or path in dict(self.bad) or path in self.touched:
            return None
        return next((file for file in self.manifest.files if file.path == path), None)


def inspect(target: Path, wanted: Wanted) -> Inspection:
    """Look at sizes and times only: a truncated or rewritten file shows, whatever was done to its mtime."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        left = any(Staging(target).folder.glob("*"))
        return Inspection(State.PARTIAL if left else State.ABSENT)
    except OSError as error:
        return Inspection(State.UNREADABLE, reasons=(f"{target}: {error.strerror}",))
    if not stat.S_ISDIR(mode):
        return Inspection(State.FOREIGN, reasons=(f"{target} is not a folder",))
    try:
        return _inspect_folder(target, wanted)
    except OSError as error:
        return Inspection(State.UNREADABLE, reasons=(f"{error.filename or target}: {error.strerror}",))


def _inspect_folder(target: Path, wanted: Wanted) -> Inspection:
    marker = target / MARKER
    if not os.path.lexists(marker):
        if not any(target.iterdir()):
            return Inspection(State.ABSENT)
        return Inspection(State.FOREIGN, reasons=(f"{target} holds files that were not staged by gpuctl",))
    manifest: Manifest | None = None
    with suppress(KeyError, TypeError, ValueError):
        manifest = Manifest.from_json(read_json(marker))
    if manifest is None:
        return Inspection(State.DAMAGED, reasons=(f"{marker} is not readable as a manifest",))
    return judge(Inspection(State.READY, manifest, *_look(target, manifest)), wanted)


def _look(target: Path, manifest: Manifest) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    bad: list[tuple[str, str]] = []
    touched: set[str] = set()
    for file in manifest.files:
        try:
            found = (target / file.path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            bad.append((file.path, "is missing"))
            continue
        if not stat.S_ISREG(found.st_mode):
            bad.append((file.path, "is not a regular file"))
        elif found.st_size != file.size:
            bad.append((file.path, f"has {found.st_size} bytes instead of {file.size}"))
        elif (found.st_mtime_ns, found.st_ctime_ns) != (file.mtime_ns, file.ctime_ns):
            # The change time cannot be set back by a program, so it also shows a write with the old mtime restored.
            touched.add(file.path)
    return tuple(bad), frozenset(touched)


def judge(found: Inspection, wanted: Wanted) -> Inspection:
    """The state that follows from the manifest and the files proven bad or touched."""
    manifest = found.manifest
    assert manifest is not None
    reasons = [f"{path} {reason}" for path, reason in found.bad]
    reasons += [f"{path} was changed after it was verified" for path in sorted(found.touched)]
    if not manifest.satisfies(wanted):
        have = f"{manifest.repo}@{manifest.commit[:7]} ({manifest.revision})"
        same = (manifest.repo, manifest.revision) == (wanted.repo, wanted.revision)
        reasons.insert(0, "another selection of files is staged" if same else f"{have} is staged")
        return replace(found, state=State.STALE, reasons=tuple(reasons))
    state = State.DAMAGED if found.bad or found.touched else State.READY
    return replace(found, state=state, reasons=tuple(reasons))


def rehash(
    target: Path, found: Inspection, wanted: Wanted, look: Callable[[], None], *, everything: bool
) -> Inspection:
    """Read the touched files (or all) and settle what they are. Raises what `look` raises."""
    if found.manifest is None:
        return found
    bad = dict(found.bad)
    for file in found.manifest.files:
        if file.path in bad or not (everything or file.path in found.touched):
            continue
        try:
            if not of_file(target / file.path, file.remote, look).right():
                bad[file.path] = "has other bytes than were verified (sha256)"
        except OSError as error:
            bad[file.path] = f"cannot be read: {error.strerror}"
    return judge(replace(found, bad=tuple(bad.items()), touched=frozenset()), wanted)


def staged(folder: Path, path: str, sha256: str, git_sha1: str) -> StagedFile:
    """The manifest's entry of a file that has just been verified. Raises OSError."""
    found = (folder / path).lstat()
    return StagedFile(path, found.st_size, sha256, git_sha1, found.st_mtime_ns, found.st_ctime_ns)


def retimed(folder: Path, manifest: Manifest) -> Manifest:
    """The same manifest with the times the files have now (links and chmod move a change time)."""
    files = tuple(staged(folder, file.path, file.sha256, file.git_sha1) for file in manifest.files)
    return replace(manifest, files=files)
