"""A closed loop of concurrent requests against any OpenAI-compatible server: warm-up, load, what came of it.

Each of the slots sends its next request when its last one has ended. Every number here is about the whole: a total of
many streams is never the rate of one, so both are kept under names of their own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.client import Address, Exchange, Failure, stream
from bench.count import LOUD, count
from bench.run import PATH, Dialect, body, fatal, mark
from bench.sample import Sample, Status
from bench.stats import Spread, rank, spread
from bench.watch import Client, Watch
from inventory.machine import Emit

SCHEMA_VERSION: Final = 1
AGREE: Final = 0.03
"""Two warm-up runs that differ by less show the server's steady speed."""
TELL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send."""

    address: Address
    model: str
    prompts: tuple[str, ...]
    """Taken in turn."""
    max_tokens: int
    requests: int
    concurrency: int
    warmups: int
    """Most warm-up requests; 0: none."""
    think: bool | None
    nonce: str
    """Decides the mark that stands first in every prompt; empty: no mark, the prefix cache may help."""
    timeout_s: float
    """Limit of one request."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One request; times in seconds since the load began."""

    number: int
    due_s: float
    """When its slot was free for it."""
    sent_s: float
    sample: Sample

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "due_s": round(self.due_s, 6),
            "sent_s": round(self.sent_s, 6),
            **self.sample.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All requests of a load, in the order of their numbers."""

    plan: Plan
    requests: tuple[Request, ...]
    warmup_s: float
    warmups: int
    warm: bool
    """Whether two warm-up runs agreed."""
    dropped: tuple[str, ...]
    """Request options that the server refused."""
    client: Client
    interrupted: bool

    @property
    def good(self) -> tuple[Request, ...]:
        return tuple(one for one in self.requests if one.sample.status is Status.OK)

    @property
    def decode(self) -> Spread | None:
        """tok/s of single streams."""
        return spread([one.sample.decode_tok_s for one in self.good if one.sample.decode_tok_s is not None])

    @property
    def total_tok_s(self) -> float | None:
        """Tokens of all good requests by the time from the first sending to the last token; None: no count."""
        counted = [one for one in self.good if one.sample.n is not None and one.sample.last_s is not None]
        if not counted or len(counted) < len(self.good):
            return None
        window = max(one.sent_s + (one.sample.last_s or 0.0) for one in counted) - min(o.sent_s for o in counted)
        return sum(one.sample.n or 0 for one in counted) / window if window > 0 else None

    @property
    def tokens(self) -> tuple[int, int]:
        """Counted tokens of the good requests, and how many of them were reasoning."""
        return sum(o.sample.n or 0 for o in self.good), sum(o.sample.reasoning or 0 for o in self.good)

    @property
    def ends(self) -> Mapping[str, int]:
        """How many requests ended how: ok, failed, cut, empty."""
        return Counter(str(one.sample.status) for one in self.requests)

    @property
    def finish(self) -> Mapping[str, int]:
        """Why the good ones ended, in the server's words."""
        return Counter(one.sample.finish or "none" for one in self.good)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, each once."""
        found = []
        if self.client.bound:
            found.append(
                f"client-bound: this client woke up {1000 * self.client.lag_p99_s:.0f} ms late (p99) and used "
                f"{100 * self.client.cpu_share:.0f} % of a core; the server may be faster than these numbers"
            )
        if self.plan.warmups and not self.warm:
            found.append(f"not warm: {self.warmups} warm-up requests did not agree within {100 * AGREE:.0f} %")
        loud = [flag for flag in LOUD if flag != "warm-cache" or self.plan.nonce]
        flags = Counter(flag for one in self.requests for flag in one.sample.flags if flag in loud)
        found += [f"{flag}: {number} of {len(self.requests)} requests" for flag, number in sorted(flags.items())]
        found += [text for one in self.requests for text in one.sample.warnings]
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        decode, ttft = self.decode, _times([one.sample.ttft_s for one in self.good])
        plan = self.plan
        return {
            "result_schema": SCHEMA_VERSION,
            "url": f"http{'s' if plan.address.tls else ''}://{plan.address.netloc}{plan.address.path}",
            "model": plan.model,
            "max_tokens": plan.max_tokens,
            "concurrency": plan.concurrency,
            "think": plan.think,
            "nonce": plan.nonce,
            "warmup": {"seconds": round(self.warmup_s, 4), "requests": self.warmups, "stable": self.warm},
            "requests": len(self.requests),
            "requests_wanted": plan.requests,
            "ends": dict(self.ends),
            "finish": dict(self.finish),
            "tokens": self.tokens[0],
            "reasoning": self.tokens[1],
            "total_tok_s": self.total_tok_s,
            "decode_tok_s": decode.to_json() if decode else None,
            "ttft_s": ttft,
            "errors": list(dict.fromkeys(one.sample.error for one in self.requests if one.sample.error))[:8],
            "dropped": list(self.dropped),
            "client": self.client.to_json(),
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }


def _times(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    return (
        {name: rank(known, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        if known
        else None
    )


class Loader:
    """Sends the requests of a plan; what is told goes to `emit`."""

    def __init__(self, plan: Plan, emit: Emit) -> None:
        self._plan = plan
        self._emit = emit
        self._dialect = Dialect()
        self._lock = threading.Lock()
        self._next = 0
        self._done: list[Request] = []
        self._events: dict[int, int] = {}
        """Slot -> events of its running request, for the live line."""
        self._seen = 0
        self._stop = threading.Event()

    def run(self) -> Outcome:
        """Warm up, then all requests. Raises `Failed` when the server cannot be measured at all.

        Interrupted by the keyboard it gives what had ended until then.
        """
        warmed, seconds, warm = self._warm_up()
        interrupted = False
        with Watch() as watch:
            self._began = time.monotonic()
            slots = [
                threading.Thread(target=self._slot, args=(number,), daemon=True)
                for number in range(min(self._plan.concurrency, self._plan.requests))
            ]
            for thread in slots:
                thread.start()
            try:
                self._tell_until(slots)
            except KeyboardInterrupt:
                interrupted = True
                self._stop.set()
        with self._lock:
            requests = tuple(sorted(self._done, key=lambda one: one.number))
        return Outcome(
            plan=self._plan,
            requests=requests,
            warmup_s=seconds,
            warmups=warmed,
            warm=warm,
            dropped=tuple(self._dialect.dropped),
            client=watch.client,
            interrupted=interrupted,
        )

    def _tell_until(self, slots: Sequence[threading.Thread]) -> None:
        last, then = 0, self._began
        while any(thread.is_alive() for thread in slots):
            for thread in slots:
                thread.join(TELL_S / len(slots))
            now = time.monotonic()
            if now - then < TELL_S:
                continue
            with self._lock:
                seen, done = self._seen + sum(self._events.values()), len(self._done)
            told = {"run": done, "runs": self._plan.requests, "events_s": round((seen - last) / (now - then), 1)}
            self._emit({"type": "progress", "what": "load", "phase": "measure", **told})
            last, then = seen, now

    def _warm_up(self) -> tuple[int, float, bool]:
        """-> requests, seconds, whether the last two agreed."""
        began, before = time.monotonic(), None
        for number in range(self._plan.warmups):
            told = {"run": number + 1, "runs": self._plan.warmups}
            self._emit({"type": "progress", "what": "load", "phase": "warm-up", **told})
            sample, exchange = self._ask(-1 - number, slot=0)
            failure = exchange.failure
            if failure is None and sample.status is Status.FAILED:
                failure = Failure("in-band", sample.error, exchange.status)
            if failure is not None:
                raise fatal(self._plan.address, self._plan.model, failure, self._plan.headers)
            rate = sample.decode_tok_s
            if before is not None and rate is not None and abs(rate - before) <= AGREE * max(rate, before):
                return number + 1, time.monotonic() - began, True
            before = rate
        return self._plan.warmups, time.monotonic() - began, False

    def _slot(self, slot: int) -> None:
        while not self._stop.is_set():
            due = time.monotonic()
            with self._lock:
                number, self._next = self._next, self._next + 1
            if number >= self._plan.requests:
                return
            sample, exchange = self._ask(number, slot)
            if self._stop.is_set():
                return
            with self._lock:
                self._seen += self._events.pop(slot, 0)
                self._done.append(Request(number, due - self._began, exchange.sent_at - self._began, sample))

    def _ask(self, number: int, slot: int) -> tuple[Sample, Exchange]:
        """One request, with refused options dropped and asked again."""
        plan = self._plan
        text = plan.prompts[number % len(plan.prompts)]
        nonce = mark(plan.nonce, number) if plan.nonce else ""

        def live(events: int) -> None:
            self._events[slot] = events

        while True:
            with self._lock:
                dialect = Dialect(self._dialect.usage, self._dialect.system)
            exchange = stream(
                plan.address,
                PATH,
                body(plan.model, text, dialect, max_tokens=plan.max_tokens, think=plan.think, nonce=nonce),
                deadline_s=plan.timeout_s,
                headers=plan.headers,
                on_events=live,
            )
            if exchange.failure is None or not self._refused(exchange.failure, dialect):
                break
        sample = count(
            exchange.events,
            sent_at=exchange.sent_at,
            ended_at=exchange.ended_at,
            requested=plan.max_tokens,
            error=exchange.failure.message if exchange.failure else "",
        )
        return sample, exchange

    def _refused(self, failure: Failure, asked: Dialect) -> bool:
        """Whether to ask again: without what was refused, dropped by this slot or meanwhile by another one."""
        with self._lock:
            if (asked.usage, asked.system) != (self._dialect.usage, self._dialect.system):
                return failure.kind == "status"
            return self._dialect.drop(failure)
