"""Read one event of an OpenAI-compatible chat stream into the few things that counting needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.sse import Event


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event: texts by channel, what it says of tokens, and whether it is an error or the end."""

    at: float
    content: str = ""
    reasoning: str = ""
    tool: str = ""
    """Name and arguments of tool-call deltas, joined."""
    token_ids: int | None = None
    """How many token ids (or log probabilities) it carries; None: none are sent."""
    usage: Mapping[str, Any] | None = None
    has_choice: bool = False
    finish: str = ""
    timings: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    error: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        return self.reasoning + self.content + self.tool

    @property
    def completion(self) -> int | None:
        """`usage.completion_tokens`."""
        value = (self.usage or {}).get("completion_tokens")
        return value if isinstance(value, int) else None


# JSON objects are plain dicts: to ask whether one is a Mapping takes as long as to parse it.
def _object(data: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = data.get(name)
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tool(delta: Mapping[str, Any]) -> str:
    if not (delta.get("tool_calls") or delta.get("function_call")):
        return ""
    parts = []
    for call in [*(delta.get("tool_calls") or ()), {"function": delta.get("function_call") or {}}]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts += [_text(function.get("name")), _text(function.get("arguments"))]
    return "".join(parts)


def _token_ids(choice: Mapping[str, Any]) -> int | None:
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return len(content) if isinstance(content, list) else None


def error_text(data: Mapping[str, Any]) -> str:
    """The message of an error object in any of its usual shapes; empty when `data` is none."""
    error = data.get("error")
    if isinstance(error, dict):
        return _text(error.get("message")) or json.dumps(error)
    if error:
        return str(error)
    if data.get("object") == "error":
        return _text(data.get("message")) or "error without a message"
    return ""


def read(event: Event) -> Chunk:
    """Parse one event; what is not JSON becomes an error chunk, never an exception."""
    if event.data.strip() == b"[DONE]":
        return Chunk(event.at, done=True)
    try:
        data = json.loads(event.data)
    except (ValueError, RecursionError):
        shown = event.data[:80].decode("utf-8", "replace")
        return Chunk(event.at, error=f"an event that is not JSON: {shown}")
    if not isinstance(data, dict):
        return Chunk(event.at, error=f"an event that is not an object: {str(data)[:80]}")
    if (message := error_text(data)) or event.name == "error":
        return Chunk(event.at, error=message or _text(data.get("message")) or json.dumps(data)[:200])
    choices = data.get("choices")
    choice: Any = next((one for one in choices if one.get("index", 0) == 0), None) if choices else None
    usage, timings, metrics = _object(data, "usage"), _object(data, "timings"), _object(data, "metrics")
    if not isinstance(choice, dict):
        return Chunk(event.at, usage=usage, timings=timings, metrics=metrics)
    delta = choice.get("delta") or choice.get("message") or {}
    return Chunk(
        event.at,
        content=_text(delta.get("content")) or _text(choice.get("text")),
        # SGLang and llama.cpp spell it reasoning_content, vLLM reasoning; some send both with the same text.
        reasoning=_text(delta.get("reasoning_content")) or _text(delta.get("reasoning")),
        tool=_tool(delta),
        token_ids=_token_ids(choice),
        usage=usage,
        has_choice=True,
        finish=_text(choice.get("finish_reason")),
        timings=timings,
        metrics=metrics,
    )


def read_all(events: Iterable[Event]) -> tuple[Chunk, ...]:
    """All events of a stream in order."""
    return tuple(read(event) for event in events)
