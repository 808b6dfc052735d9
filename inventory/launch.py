"""How one engine process is started: everything the machine that starts it has to know, as a value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

HOME: Final = "{gpuctl-home}"
"""Stands in `argv` for the `sys.path` entry of our own code on the machine that starts the engine.

Only that machine knows it (a folder or the zip application's file); the engine job puts
`inventory.reentry.home()` there. It is not part of `key`, so a new gpuctl version does not restart engines.
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """A ready command line of an engine with one method on one port."""

    argv: tuple[str, ...]
    """Program and arguments; paths are the container's own (the job passes them through `inventory.root.at`)."""
    url: str
    """Where it will listen: `http://127.0.0.1:PORT`."""
    ready_path: str
    """Path that answers 200 once the engine can serve."""
    kind: str
    """`inventory.model.EngineKind` as text."""
    method: str
    """`inventory.model.Method` as text."""
    tp: int
    """Tensor-parallel size."""
    model: str
    """Path (or repository) of the model."""
    key: str
    """Digest of what makes it "the same engine": see `key_of`."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional environment. May hold secrets once references are resolved: never stored, never shown."""
    paths: tuple[str, ...] = ()
    """Absolute paths that must exist before the start (model, draft)."""
    served: str = ""
    """Model name for requests; empty: the first of `/v1/models`."""
    ready_timeout_s: float = 900.0
    """Ceiling of the start in seconds."""
    stall_timeout_s: float = 180.0
    """The start has failed when the log has not grown for so many seconds."""

    @property
    def port(self) -> int:
        """The TCP port of `url`."""
        return int(self.url.rsplit(":", 1)[1])

    def with_env(self, env: Mapping[str, str]) -> Launch:
        """The same launch with the references in `env` resolved; `key` stays (it knows only references)."""
        return replace(self, env=dict(env))

    def to_json(self, *, env: bool = True) -> dict[str, Any]:
        """As it travels to the job; `env=False` for everything that is stored or shown."""
        return {
            "argv": list(self.argv),
            "url": self.url,
            "ready_path": self.ready_path,
            "kind": self.kind,
            "method": self.method,
            "tp": self.tp,
            "model": self.model,
            "key": self.key,
            "env": dict(self.env) if env else {},
            "paths": list(self.paths),
            "served": self.served,
            "ready_timeout_s": self.ready_timeout_s,
            "stall_timeout_s": self.stall_timeout_s,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Launch:
        """Rebuild; raises KeyError or ValueError when `data` is not a launch."""
        return Launch(
            argv=tuple(str(word) for word in data["argv"]),
            url=str(data["url"]),
            ready_path=str(data["ready_path"]),
            kind=str(data["kind"]),
            method=str(data["method"]),
            tp=int(data["tp"]),
            model=str(data["model"]),
            key=str(data["key"]),
            env={str(k): str(v) for k, v in data.get("env", {}).items()},
            paths=tuple(str(path) for path in data.get("paths", ())),
            served=str(data.get("served", "")),
            ready_timeout_s=float(data.get("ready_timeout_s", 900.0)),
            stall_timeout_s=float(data.get("stall_timeout_s", 180.0)),
        )


def key_of(argv: tuple[str, ...], env: Mapping[str, str], url: str) -> str:
    """16 hex digits over command line, environment as written (references, not secrets) and address."""
    text = json.dumps([list(argv), sorted(env.items()), url], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
