"""A small model repository on a local Hub, and jobs that lose patience quickly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuctl.lab.hub import Fault, Faults, HubRepo, RunningHub, serve
from gpuctl.lab.hub.sample import NAME, TINY
from provision.weights.job import stage, status
from provision.weights.patience import Patience

QUICK = Patience(tries=4, first_wait_s=0.01, max_wait_s=0.05, connect_s=2.0, stall_s=0.6, retry_after_max_s=5.0)


@dataclass
class Bench:
    """A Hub, a target and a cache of one test, and the two jobs on them."""

    hub: RunningHub
    target: Path
    cache: Path
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def args(self, **more: Any) -> dict[str, Any]:
        verify = more.pop("verify", "quick")
        entry = {"repo": NAME, "to": str(self.target), "cache": str(self.cache), "endpoint": self.hub.url} | more
        return {"weights": [entry], "verify": verify}

    def stage(self, **more: Any) -> dict[str, Any]:
        staged = stage(self.args(**more), self.events.append, patience=QUICK)["staged"]
        return dict(staged[0])

    def status(self, **more: Any) -> dict[str, Any]:
        return dict(status(self.args(**more), self.events.append)["weights"][0])

    def files(self) -> dict[str, bytes]:
        """What the target holds, our marker left out."""
        return {
            str(path.relative_to(self.target)): path.read_bytes()
            for path in self.target.rglob("*")
            if path.is_file() and not path.name.startswith(".gpuctl-")
        }

    def left_in_parent(self) -> set[str]:
        """Names beside the target, its lock left out."""
        if not self.target.parent.is_dir():
            return set()
        return {path.name for path in self.target.parent.iterdir() if not path.name.endswith("-lock")} - {
            self.target.name
        }

    def fault(self, *faults: Fault) -> None:
        self.hub.faults.add(*faults)

    def gets(self, name: str) -> list[str]:
        """The Range headers of all requests for a file, in order."""
        return [
            seen.range for seen in self.hub.requests if seen.path.endswith(f"/{name}") and seen.method == "GET"
        ]

    def notes(self) -> str:
        return "\n".join(str(event["line"]) for event in self.events if event["type"] == "note")

    def restart(self, *repos: HubRepo) -> None:
        """Another Hub at another address (the cache does not care where its bytes came from)."""
        self.hub.close()
        self.hub = serve(repos or (TINY,), faults=Faults())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(
        serve((TINY,), faults=Faults()), tmp_path / "shm" / "models" / "tiny", tmp_path / "disk" / "cache"
    )
    yield made
    made.hub.close()


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    """Run something beside the test; its result or exception lands in the list."""
    threads: list[threading.Thread] = []

    def start(work: Callable[[], Any]) -> list[Any]:
        results: list[Any] = []

        def body() -> None:
            try:
                results.append(work())
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        threads.append(thread)
        return results

    yield start
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
