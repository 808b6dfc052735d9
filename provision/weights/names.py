"""Names from the outside: repositories, file paths and selections, refused before they touch a disk."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from inventory.errors import ConfigError, Refused
from provision.weights.model import Listing, RemoteFile, Wanted

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PICKLED = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib"})
"""Files of these names run code when they are loaded."""
_OURS = ".gpuctl-"
_NAME_MAX, _PATH_MAX = 255, 1024
"""Bytes: NAME_MAX of Linux file systems; PATH_MAX is 4096 and the target's own path must fit before it."""

COMMIT = re.compile(r"[0-9a-f]{40}")


def wanted(entry: Mapping[str, Any]) -> Wanted:
    """One entry of a job's `weights`; raises `ConfigError` with the value that is wrong."""
    repo, to = str(entry.get("repo", "")), str(entry.get("to", ""))
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise ConfigError(f"{repo!r} is not a repository name", hint="write it as owner/name")
    for what, path in (("target", to), ("cache", str(entry.get("cache") or ""))):
        clean = path.rstrip("/")
        parts = PurePosixPath(clean).parts[1:]
        if (path or what == "target") and (
            not clean.startswith("/") or ".." in parts or "\0" in path or not parts
        ):
            raise ConfigError(f"{repo}: the {what} folder {path!r} is not an absolute path to a folder")
    return Wanted(
        repo=repo,
        to=to.rstrip("/"),
        revision=str(entry.get("revision") or "main"),
        include=tuple(str(glob) for glob in entry.get("include") or ()),
        exclude=tuple(str(glob) for glob in entry.get("exclude") or ()),
        cache=str(entry.get("cache") or "").rstrip("/"),
        endpoint=str(entry.get("endpoint") or "").rstrip("/"),
        token=str(entry.get("token") or ""),
        refresh=bool(entry.get("refresh", False)),
    )


def _unsafe(path: str) -> str:
    """Why a listed path must not become a file name; empty: it may."""
    parts = path.split("/")
    if not path or path.startswith("/"):
        return "it is not relative"
    if any(part in ("", ".", "..") for part in parts):
        return "it leaves the folder"
    if any(ord(char) < 32 or ord(char) == 127 for char in path) or "\\" in path:
        return "it holds control characters or backslashes"
    if len(path.encode("utf-8", "surrogatepass")) > _PATH_MAX:
        return f"it is longer than {_PATH_MAX} bytes"
    if any(len(part.encode("utf-8", "surrogatepass")) > _NAME_MAX for part in parts):
        return f"a part of it is longer than {_NAME_MAX} bytes"
    if any(part.startswith(_OURS) for part in parts):
        return f"names that begin with {_OURS} are this tool's own"
    return ""


def check_paths(repo: str, files: tuple[RemoteFile, ...]) -> None:
    """Refuse a listing that names files outside the target, one file twice, or a file that is also a folder."""
    seen: set[str] = set()
    for file in files:
        if reason := _unsafe(file.path):
            raise Refused(
                f"{repo}: the repository lists a file named {file.path[:200]!r}: {reason}",
                hint="leave it out with an exclude pattern, and do not trust this repository",
            )
        if file.path in seen:
            raise Refused(f"{repo}: the repository lists {file.path!r} twice")
        seen.add(file.path)
    for path in seen:
        for parent in PurePosixPath(path).parents:
            if str(parent) in seen:
                raise Refused(f"{repo}: the repository lists {str(parent)!r} as a file and as a folder")


def _matches(path: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(path, glob + "*" if glob.endswith("/") else glob) for glob in globs)


def select(wanted: Wanted, listing: Listing) -> tuple[RemoteFile, ...]:
    """The files of the selection, all names checked, pickled weights refused unless asked for by name.

    Raises `ConfigError` when nothing matches, `Refused` for unsafe names and pickles.
    """
    files = tuple(
        file
        for file in listing.files
        if (not wanted.include or _matches(file.path, wanted.include)) and not _matches(file.path, wanted.exclude)
    )
    if not files:
        names = [file.path for file in listing.files]
        near = difflib.get_close_matches(" ".join(wanted.include), names, n=3, cutoff=0.3)
        raise ConfigError(
            f"{wanted.repo}: no file matches include {list(wanted.include)} without exclude {list(wanted.exclude)}",
            hint=f"the repository has {len(names)} files, among them {', '.join(near or names[:5])}",
        )
    check_paths(wanted.repo, files)
    pickled = [file.path for file in files if PurePosixPath(file.path).suffix in _PICKLED]
    unasked = [path for path in pickled if not any(g.endswith(PurePosixPath(path).suffix) for g in wanted.include)]
    if unasked:
        suffixes = sorted({f"*{PurePosixPath(path).suffix}" for path in unasked})
        raise Refused(
            f"{wanted.repo}: {unasked[0]} holds pickled weights, which run code when they are loaded",
            hint=f"leave them out with exclude: {suffixes}, or ask for them by name in include",
        )
    return files
