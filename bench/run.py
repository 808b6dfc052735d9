"""Drive the load: warm-up, repeats of every task and length, one request at a time."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bench.client import Address, Exchange, Failure, get, stream
from bench.count import count
from bench.result import Run, Shape
from bench.sample import Sample, Status
from bench.tasks import PROMPTS, judge
from inventory.errors import Failed
from inventory.machine import Emit
from inventory.model import Task

PATH: Final = "/v1/chat/completions"
WARMUP_TOKENS: Final = 8
LIVE_S: Final = 1.0
TEMPERATURE: Final = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to ask, how often."""

    address: Address
    model: str
    """The name for requests."""
    tasks: tuple[Task, ...]
    max_tokens: tuple[int, ...]
    repeats: int
    think: bool | None
    nonce: str
    """Decides the mark that stands first in every prompt, so that no prefix is cached."""
    request_timeout_s: float
    """Limit of one request."""


@dataclass(slots=True)
class Dialect:
    """What the server lets us ask; an option that it refuses is dropped once and for all."""

    usage: bool = True
    system: bool = True
    """The nonce as system message, ahead of what chat templates put first; else ahead of the user's text."""
    dropped: list[str] = field(default_factory=list)

    def drop(self, failure: Failure) -> bool:
        """Whether there is something to leave out after this refusal."""
        if failure.kind != "status" or failure.status not in (400, 422, 500):
            return False
        text = (failure.message + failure.body).lower()
        if self.system and any(word in text for word in ("system role", "system message", "conversation roles")):
            self.system = False
            self.dropped.append("system message")
            return True
        if self.usage and failure.status != 500:
            self.usage = False
            self.dropped.append("stream_options")
            return True
        return False


def mark(nonce: str, number: int) -> str:
    """8 hex digits, other ones for every request from their first on: a common start would be cached."""
    return hashlib.sha256(f"{nonce}-{number}".encode()).hexdigest()[:8]


def payload(load: Load, dialect: Dialect, task: Task, max_tokens: int, number: int) -> dict[str, Any]:
    """The body of a request for a task."""
    nonce = mark(load.nonce, number)
    return body(load.model, PROMPTS[task].text, dialect, max_tokens=max_tokens, think=load.think, nonce=nonce)


def body(
    model: str, text: str, dialect: Dialect, *, max_tokens: int, think: bool | None, nonce: str
) -> dict[str, Any]:
    """A streamed chat request; an empty nonce leaves the prompt as it is."""
    marked = f"[{nonce}]"
    messages = [{"role": "user", "content": f"{marked} {text}" if nonce and not dialect.system else text}]
    if nonce and dialect.system:
        messages.insert(0, {"role": "system", "content": f"{marked} Be exact."})
    made: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": TEMPERATURE,
        "stream": True,
    }
    if dialect.usage:
        made["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if think is not None:
        made["chat_template_kwargs"] = {"enable_thinking": think}
    return made


def fatal(address: Address, model: str, failure: Failure, headers: Mapping[str, str] | None = None) -> Failed:
    """The error of a server that cannot be measured at all."""
    where = address.netloc
    if failure.kind == "connect":
        return Failed(
            f"no server to measure: {failure.message}",
            hint="is it running? `gpuctl engine start` starts one of ours",
        )
    if failure.status in (401, 403):
        return Failed(
            f"{where} refuses us: {failure.message}",
            hint="the server wants a key: --key env:NAME, --key file:PATH, or in the settings of the engine",
        )
    if failure.status == 404:
        known = get(address, "/v1/models", headers=headers).json()
        data = known.get("data", ()) if isinstance(known, Mapping) else ()
        names = ", ".join(str(one.get("id")) for one in data if isinstance(one, Mapping))
        return Failed(
            f"{where} does not serve model {model}: {failure.message}",
            hint=f"it serves: {names or 'nothing that /v1/models names'}",
        )
    return Failed(
        f"{where} cannot be measured: {failure.message}",
        hint="its log says more; of one of ours: `gpuctl engine logs`",
    )


class Driver:
    """Sends the requests of one load and tells about them."""

    def __init__(self, load: Load, emit: Emit) -> None:
        self.load = load
        self.dialect = Dialect()
        self.warnings: list[str] = []
        self._emit = emit
        self._number = 0

    def _tell(self, phase: str, task: Task, **more: Any) -> None:
        self._emit({"type": "progress", "what": "bench", "phase": phase, "task": task.value, **more})

    def ask(self, task: Task, max_tokens: int, told: Mapping[str, Any], phase: str) -> tuple[Sample, Exchange]:
        """One request, with refused options dropped and asked again."""
        while True:
            self._number += 1
            began = last = time.monotonic()

            def live(events: int) -> None:
                nonlocal last
                now = time.monotonic()
                if now - last >= LIVE_S:
                    last = now
                    self._tell(phase, task, **told, tok_s=None, events=events, seconds=round(now - began, 1))  # noqa: B023

            exchange = stream(
                self.load.address,
                PATH,
                payload(self.load, self.dialect, task, max_tokens, self._number),
                deadline_s=self.load.request_timeout_s,
                on_events=live,
            )
            if exchange.failure is None or not self.dialect.drop(exchange.failure):
                break
        sample = count(
            exchange.events,
            sent_at=exchange.sent_at,
            ended_at=exchange.ended_at,
            requested=max_tokens,
            error=exchange.failure.message if exchange.failure else "",
        )
        return sample, exchange

    def warm_up(self) -> dict[Task, float]:
        """One short request for each task; -> its seconds. Raises `Failed` when the server can't be measured."""
        times: dict[Task, float] = {}
        for number, task in enumerate(self.load.tasks, 1):
            told = {"run": number, "runs": len(self.load.tasks)}
            self._tell("warm-up", task, **told, tok_s=None)
            began = time.monotonic()
            sample, exchange = self.ask(task, min(WARMUP_TOKENS, *self.load.max_tokens), told, "warm-up")
            times[task] = time.monotonic() - began
            if exchange.failure is not None:
                raise fatal(self.load.address, self.load.model, exchange.failure)
            if sample.status is Status.FAILED:
                failure = Failure("in-band", sample.error, exchange.status)
                raise fatal(self.load.address, self.load.model, failure)
        return times

    def measure(self) -> tuple[Shape, ...]:
        """Warm up, then all repeats: the repeat is the outer loop, so that drift shows as spread."""
        warm = self.warm_up()
        shapes = [(task, length) for task in self.load.tasks for length in self.load.max_tokens]
        runs: dict[tuple[Task, int], list[Run]] = {shape: [] for shape in shapes}
        total, done = len(shapes) * self.load.repeats, 0
        for repeat in range(self.load.repeats):
            for task, length in shapes:
                done += 1
                told = {"run": done, "runs": total, "max_tokens": length}
                self._tell("measure", task, **told, tok_s=None)
                sample, exchange = self.ask(task, length, told, "measure")
                runs[task, length].append(_judged(repeat, task, sample))
                self._tell("measure", task, **told, tok_s=sample.decode_tok_s, status=sample.status.value)
                if exchange.failure is not None and exchange.failure.kind == "connect":
                    # Gone: what was measured is kept, the rest would only fail one by one.
                    self.warnings.append(f"stopped after {done} of {total} runs: {exchange.failure.message}")
                    return self._shapes(runs, warm)
        return self._shapes(runs, warm)

    def _shapes(self, runs: Mapping[tuple[Task, int], list[Run]], warm: Mapping[Task, float]) -> tuple[Shape, ...]:
        return tuple(
            Shape(
                task=task.value,
                prompt_version=PROMPTS[task].version,
                max_tokens=length,
                warmup_s=round(warm[task], 4),
                runs=tuple(made),
            )
            for (task, length), made in runs.items()
        )


def _judged(repeat: int, task: Task, sample: Sample) -> Run:
    if sample.status is not Status.OK:
        return Run(repeat=repeat, sample=sample, why=sample.error)
    verdict = judge(task, sample.text, finish=sample.finish, reasoning=bool(sample.reasoning))
    return Run(repeat=repeat, sample=sample, right=verdict.right, why=verdict.why)
