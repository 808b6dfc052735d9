"""How long the Hub is given: what is tried again, how often, how long between, and when a server's word decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import tenacity

from inventory.errors import GpuctlError

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be gone at the next try."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of talking to the Hub, in seconds. `tries` counts tries in a row that brought nothing new."""

    tries: int = 6
    first_wait_s: float = 0.5
    max_wait_s: float = 20.0
    connect_s: float = 10.0
    stall_s: float = 30.0
    """No byte for so long, or fewer than `floor_bps` over so long: the connection is given up."""
    floor_bps: float = 1024.0
    retry_after_max_s: float = 120.0
    """A server that asks for a longer wait is reported instead."""


SHORT = Patience(tries=2, connect_s=5.0, stall_s=10.0, retry_after_max_s=5.0)
"""For looking only: a plan should not take minutes because the Hub is away."""


class Passing(Exception):
    """A failure that may be gone at the next try; `final` is what the user reads when it is not."""

    def __init__(self, reason: str, final: GpuctlError, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final
        self.retry_after_s = retry_after_s


class Stopped(Exception):
    """Another part of the stage failed, or the user interrupted: leave off, there is nothing to report."""


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, given as a number or as an HTTP date (RFC 9110, 10.2.3)."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


class _Tries(tenacity.stop.stop_base):
    """Stop after `limit` tries in a row without progress."""

    def __init__(self, limit: int, progress: Callable[[], int], longest_s: float) -> None:
        self._limit = limit
        self._progress = progress
        self._longest_s = longest_s
        self._best = progress()
        self._failed = 0

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        now = self._progress()
        self._failed = 1 if now > self._best else self._failed + 1
        self._best = max(now, self._best)
        asked = _asked(retry_state)
        return self._failed >= self._limit or (asked is not None and asked > self._longest_s)


def _asked(state: tenacity.RetryCallState) -> float | None:
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after_s if isinstance(error, Passing) else None


def tries(
    patience: Patience,
    stop: threading.Event,
    note: Callable[[str], None],
    *,
    progress: Callable[[], int] = lambda: 0,
) -> Iterator[tenacity.AttemptManager]:
    """Attempts for a `for attempt in ...: with attempt:` loop; only `Passing` is tried again.

    `progress` is a number that grows when a failed try still brought something. The last `Passing` comes
    out as it is; `Stopped` is raised when `stop` is set while waiting.
    """
    backoff = tenacity.wait_exponential_jitter(
        multiplier=patience.first_wait_s, max=patience.max_wait_s, jitter=patience.first_wait_s / 2
    )

    def wait(state: tenacity.RetryCallState) -> float:
        asked = _asked(state)
        return backoff(state) if asked is None else asked

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise Stopped

    def say(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        note(f"{error}; trying again in {pause:.1f} s")

    return iter(
        tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Passing),
            stop=_Tries(patience.tries, progress, patience.retry_after_max_s),
            wait=wait,
            sleep=sleep,
            before_sleep=say,
            reraise=True,
        )
    )
