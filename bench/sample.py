"""What one streamed request was: its tokens, who counted them, and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    EMPTY = "empty"
    """The server ended the stream without a single token."""
    CUT = "cut"
    """The stream ended in the middle and nothing says so."""
    FAILED = "failed"
    """An error, in the status, in the stream or of the connection; never part of a rate."""


class Source(StrEnum):
    """Who counted tokens, most trusted first."""

    TOKEN_IDS = "token_ids"  # noqa: S105
    USAGE = "usage"
    TIMINGS = "timings"
    ONE_PER_CHUNK = "one-per-chunk"
    """As many events as tokens, so each held one."""
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"
    """By the share of the text."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. Times are seconds from its sending; None means: not known, never zero instead."""

    status: Status
    error: str = ""
    n: int | None = None
    """Completion tokens, reasoning included."""
    n_source: Source = Source.UNKNOWN
    n_first: float | None = None
    """Tokens inside the first token event."""
    n_first_source: Source = Source.UNKNOWN
    reasoning: int | None = None
    """Reasoning tokens, part of `n`."""
    reasoning_source: Source = Source.UNKNOWN
    chunks: int = 0
    """Events that carried tokens."""
    ttfb_s: float | None = None
    """First event of any kind."""
    ttft_s: float | None = None
    """First event with reasoning, answer or tool call."""
    ttfot_s: float | None = None
    """First event with answer or tool call."""
    last_s: float | None = None
    """Last event with tokens."""
    end_s: float | None = None
    """End of the transport: after usage and [DONE]."""
    decode_tok_s: float | None = None
    """(n - n_first) / (last - ttft)."""
    e2e_tok_s: float | None = None
    """n / last: prompt processing included."""
    tpot_s: float | None = None
    """Time per output token: 1 / decode_tok_s."""
    icl_s: float | None = None
    """Mean time between token events (inter-chunk latency)."""
    tokens_per_chunk: float | None = None
    peak_tok_s: float | None = None
    """Most tokens in one second since the first; None for windows under a second."""
    finish: str = ""
    kind: str = "text"
    """`text` or `tool`."""
    requested: int | None = None
    """max_tokens asked for."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    flags: tuple[str, ...] = ()
    """Words of `bench.count.FLAGS` that apply."""
    warnings: tuple[str, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    """`timings` or `metrics` of the server's last event, as sent."""
    done: bool = False
    """Whether [DONE] came."""
    text: str = ""
    reasoning_text: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "flags": list(self.flags), "warnings": list(self.warnings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild; raises ValueError or TypeError when `data` is no sample."""
        fields = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        fields["status"] = Status(fields["status"])
        for name in ("n_source", "n_first_source", "reasoning_source"):
            fields[name] = Source(fields.get(name, Source.UNKNOWN))
        for name in ("flags", "warnings"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)
