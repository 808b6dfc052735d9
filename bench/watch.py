"""The client watches itself: a number that the client's own slowness made is no number of the server's."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.stats import rank

TICK_S: Final = 0.01
LAG_S: Final = 0.02
"""A wake-up that comes later than this at the 99th percentile makes event times doubtful."""
CPU_SHARE: Final = 0.9
"""Of one core: more is not there for a process of Python threads."""


@dataclass(frozen=True, slots=True)
class Client:
    """How the client fared during a run."""

    lag_p50_s: float
    """How late the watcher woke up, as any reader would."""
    lag_p99_s: float
    cpu_share: float
    """CPU time of this process by wall time; 1.0 is one core."""

    @property
    def bound(self) -> bool:
        """Whether the client, and not the server, may have set the pace."""
        return self.cpu_share > CPU_SHARE or self.lag_p99_s > LAG_S

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bound": self.bound}


class Watch:
    """Measures from `with` to its end; `client` holds what it saw."""

    def __init__(self) -> None:
        self.client = Client(0.0, 0.0, 0.0)
        self._ending = threading.Event()
        self._lags: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ending.set()
        self._thread.join(1.0)
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        lags = self._lags or [0.0]
        self.client = Client(rank(lags, 0.5), rank(lags, 0.99), cpu / wall if wall > 0 else 0.0)

    def _run(self) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            time.sleep(TICK_S)
            self._lags.append(time.monotonic() - began - TICK_S)
