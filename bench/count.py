"""From the events of one stream to a `Sample`: how many tokens, counted by whom, over which interval.

Pure. Chunks are never taken for tokens: an event of a speculating engine holds several, an event of a byte
tokenizer may hold less than a character. Definitions are in `bench.sample.Sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bench.chunk import Chunk, read_all
from bench.sample import Sample, Source, Status
from bench.sse import Event

FLAGS: Final = {
    "hidden-reasoning": "more tokens than the visible text can hold: the decode rate is not known",
    "ended-inside-think": "the token budget ended inside the reasoning: there is no answer",
    "length-not-reached": "the model stopped before the requested length",
    "warm-cache": "most of the prompt came from the prefix cache",
    "degenerate": "the text repeats itself without end",
    "no-done": "the stream ended without [DONE]",
    "estimated": "the first event's tokens are estimated from its share of the text",
}

LOUD: Final = ("hidden-reasoning", "ended-inside-think", "warm-cache", "no-done")
"""Flags that make a rate doubtful whatever the method; the others tell about the answer."""

DISAGREE: Final = 0.02
"""Relative difference of two token counts from which on it is said."""

Tokenizer = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Token events with the number of tokens in each, where that is known."""

    chunks: tuple[Chunk, ...]
    each: tuple[float, ...] | None
    source: Source


def count(
    events: Sequence[Event],
    *,
    sent_at: float,
    ended_at: float,
    requested: int | None = None,
    error: str = "",
    tokenizer: Tokenizer | None = None,
) -> Sample:
    """One request's sample.

    `sent_at` and `ended_at` are on the clock of `Event.at`; `error` says why the transport failed, if it did;
    `requested` is the max_tokens asked for; `tokenizer` counts a text's tokens when the server does not.
    """
    chunks = read_all(events)
    in_band = next((chunk.error for chunk in chunks if chunk.error), "")
    carrying, continuous = _token_chunks(chunks)
    n, n_source, warnings = _total(chunks, carrying, tokenizer)
    tokens = _spread(carrying, n, continuous, chunks)
    common: dict[str, Any] = {
        "chunks": len(carrying),
        "ttfb_s": chunks[0].at - sent_at if chunks else None,
        "end_s": ended_at - sent_at,
        "finish": next((chunk.finish for chunk in reversed(chunks) if chunk.finish), ""),
        "kind": "tool" if any(chunk.tool for chunk in carrying) else "text",
        "requested": requested,
        "done": any(chunk.done for chunk in chunks),
        "text": "".join(chunk.content for chunk in chunks),
        "reasoning_text": "".join(chunk.reasoning for chunk in chunks),
        "server": next((dict(found) for c in reversed(chunks) if (found := c.timings or c.metrics)), {}),
        **_prompt(chunks),
    }
    if error or in_band:
        return Sample(
            status=Status.FAILED, error=in_band or error, n=_partial(tokens), n_source=tokens.source, **common
        )
    if not common["finish"] and not common["done"] and n_source is Source.UNKNOWN:
        cut = "the stream was cut: no finish reason, no usage, no [DONE]"
        return Sample(status=Status.CUT, error=cut, **common)
    if not carrying and not n:
        return Sample(status=Status.EMPTY, n=n, n_source=n_source, flags=_end_flags(common), **common)
    reasoning, reasoning_source, more = _reasoning(chunks, tokens, n)
    times = _times(tokens, n, sent_at)
    hidden = _hidden(carrying, n, reasoning, continuous or tokens.source is Source.TOKEN_IDS)
    if hidden:
        times.update(decode_tok_s=None, tpot_s=None, n_first=None, n_first_source=Source.UNKNOWN)
        times.update(tokens_per_chunk=None, peak_tok_s=None)
    flags = _flags(common, carrying, n, hidden) + (
        ("estimated",) if times["n_first_source"] is Source.ESTIMATE else ()
    )
    return Sample(
        status=Status.OK,
        n=n,
        n_source=n_source,
        reasoning=reasoning,
        reasoning_source=reasoning_source,
        warnings=(*warnings, *more),
        flags=flags,
        **times,
        **common,
    )


def _token_chunks(chunks: Sequence[Chunk]) -> tuple[tuple[Chunk, ...], bool]:
    """The events that carry tokens, and whether usage is sent with each (continuous usage).

    An event with empty text carries tokens when its token ids or its continuous usage say so (byte tokenizers).
    The first usage of a stream on an event that also ends it is a total, not continuous usage.
    """
    carrying: list[Chunk] = []
    seen: int | None = None
    reports = 0
    for chunk in chunks:
        grown = False
        if chunk.has_choice and chunk.completion is not None:
            total_only = seen is None and bool(chunk.finish)
            grown = not total_only and chunk.completion > (seen or 0)
            reports += not total_only
            seen = chunk.completion
        if chunk.text or chunk.token_ids or grown:
            carrying.append(chunk)
    with_usage = sum(chunk.completion is not None for chunk in carrying)
    return tuple(carrying), reports > 1 or (with_usage == len(carrying) == 1 and reports == 1)


def _total(
    chunks: Sequence[Chunk], carrying: Sequence[Chunk], tokenizer: Tokenizer | None
) -> tuple[int | None, Source, tuple[str, ...]]:
    """N by precedence, and what two disagreeing sources say."""
    found: list[tuple[Source, int]] = []
    if carrying and all(chunk.token_ids is not None for chunk in carrying):
        found.append((Source.TOKEN_IDS, sum(chunk.token_ids or 0 for chunk in carrying)))
    usage = [chunk.completion for chunk in chunks if chunk.completion is not None]
    if usage:
        found.append((Source.USAGE, usage[-1]))
    predicted = [(chunk.timings or {}).get("predicted_n") for chunk in chunks]
    if numbers := [value for value in predicted if isinstance(value, int)]:
        found.append((Source.TIMINGS, numbers[-1]))
    if not found and tokenizer is not None and carrying:
        found.append((Source.TOKENIZER, tokenizer("".join(chunk.text for chunk in carrying))))
    if not found:
        return None, Source.UNKNOWN, (f"the server sent no token count: unknown ({len(carrying)} chunks)",)
    source, n = found[0]
    warnings = tuple(
        f"token counts disagree: {source} says {n}, {other} says {value}"
        for other, value in found[1:]
        if abs(value - n) > DISAGREE * max(n, 1)
    )
    return n, source, warnings


def _spread(carrying: tuple[Chunk, ...], n: int | None, continuous: bool, chunks: Sequence[Chunk]) -> _Tokens:
    """How many tokens each token event held."""
    if carrying and all(chunk.token_ids is not None for chunk in carrying):
        return _Tokens(carrying, tuple(float(chunk.token_ids or 0) for chunk in carrying), Source.TOKEN_IDS)
    if continuous and all(chunk.completion is not None for chunk in carrying):
        totals = [chunk.completion or 0 for chunk in carrying]
        each = tuple(float(now - then) for now, then in zip(totals, [0, *totals[:-1]], strict=True))
        return _Tokens(carrying, each, Source.USAGE)
    ended_by_token = any(chunk.finish == "stop" for chunk in chunks)
    if n is not None and len(carrying) in (n, n - 1 if ended_by_token else n):
        # One short of n: the end-of-text token is counted and has no text.
        return _Tokens(carrying, (1.0,) * len(carrying), Source.ONE_PER_CHUNK)
    letters = sum(len(chunk.text) for chunk in carrying)
    if n is not None and letters:
        return _Tokens(carrying, tuple(n * len(chunk.text) / letters for chunk in carrying), Source.ESTIMATE)
    return _Tokens(carrying, None, Source.UNKNOWN)


def _partial(tokens: _Tokens) -> int | None:
    """Tokens that had arrived when it failed; None when the server had not counted them yet."""
    if tokens.each is None or tokens.source is Source.ESTIMATE:
        return None
    return int(sum(tokens.each))


def _times(tokens: _Tokens, n: int | None, sent_at: float) -> dict[str, Any]:
    """TTFT, rates and latencies of a stream that has at least one token event (or a bare count)."""
    if not tokens.chunks:
        return {"n_first_source": Source.UNKNOWN}
    first, last = tokens.chunks[0].at, tokens.chunks[-1].at
    window, gaps = last - first, len(tokens.chunks) - 1
    answers = [chunk.at for chunk in tokens.chunks if chunk.content or chunk.tool]
    times: dict[str, Any] = {
        "ttft_s": first - sent_at,
        "ttfot_s": answers[0] - sent_at if answers else None,
        "last_s": last - sent_at,
        "icl_s": window / gaps if gaps else None,
        "n_first": None,
        "n_first_source": Source.UNKNOWN,
    }
    if n is not None and last > sent_at:
        times["e2e_tok_s"] = n / (last - sent_at)
        times["tokens_per_chunk"] = n / len(tokens.chunks)
    if n is not None and tokens.each is not None:
        n_first = tokens.each[0]
        if tokens.source is Source.ESTIMATE:
            n_first = min(float(n), max(1.0, float(round(n_first))))
        times["n_first"], times["n_first_source"] = n_first, tokens.source
        if window > 0 and n > n_first:
            times["decode_tok_s"] = (n - n_first) / window
            times["tpot_s"] = window / (n - n_first)
            times["peak_tok_s"] = _peak(tokens, first, window)
    return times


def _peak(tokens: _Tokens, first: float, window: float) -> float | None:
    if window < 1.0 or tokens.each is None:
        return None
    seconds = [0.0] * (int(window) + 1)
    for chunk, tokens_in in zip(tokens.chunks, tokens.each, strict=True):
        seconds[int(chunk.at - first)] += tokens_in
    return max(seconds)


def _reasoning(
    chunks: Sequence[Chunk], tokens: _Tokens, n: int | None
) -> tuple[int | None, Source, tuple[str, ...]]:
    """Reasoning tokens: the server's number, else by the events that carried reasoning; never more than N."""
    told: int | None = None
    for chunk in chunks:
        usage = chunk.usage or {}
        details = usage.get("completion_tokens_details") or {}
        for value in (usage.get("reasoning_tokens"), details.get("reasoning_tokens")):
            told = value if isinstance(value, int) else told
    seen = any(chunk.reasoning for chunk in tokens.chunks)
    if told is not None and (told > 0 or not seen):
        if n is not None and told > n:
            return n, Source.USAGE, (f"server counter inconsistent: {told} reasoning tokens of {n}",)
        return told, Source.USAGE, ()
    if not seen:
        return 0, tokens.source, ()
    if n is not None and not any(chunk.content or chunk.tool for chunk in tokens.chunks):
        return n, Source.USAGE, ()
    if tokens.each is None:
        return None, Source.UNKNOWN, ()
    share = sum(number for chunk, number in zip(tokens.chunks, tokens.each, strict=True) if chunk.reasoning)
    return min(round(share), n if n is not None else round(share)), tokens.source, ()


def _hidden(carrying: Sequence[Chunk], n: int | None, reasoning: int | None, timed: bool) -> bool:
    """Whether tokens were generated that never showed: reasoning told but not seen, or more tokens than bytes."""
    if timed or n is None or not carrying:
        return False
    if reasoning and not any(chunk.reasoning for chunk in carrying):
        return True
    size = sum(len(chunk.text.encode("utf-8", "replace")) for chunk in carrying)
    # A token has at least one byte; a few (end of text, tool-call marks) have no text.
    return n > size + 8


def _prompt(chunks: Sequence[Chunk]) -> dict[str, int | None]:
    prompt, cached = None, None
    for chunk in chunks:
        usage = chunk.usage or {}
        value = usage.get("prompt_tokens")
        prompt = value if isinstance(value, int) else prompt
        value = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        cached = value if isinstance(value, int) else cached
    return {"prompt_tokens": prompt, "cached_tokens": cached}


def _end_flags(common: dict[str, Any]) -> tuple[str, ...]:
    return () if common["done"] else ("no-done",)


def _flags(common: dict[str, Any], carrying: Sequence[Chunk], n: int | None, hidden: bool) -> tuple[str, ...]:
    flags = ["hidden-reasoning"] if hidden else []
    answered = any(chunk.content or chunk.tool for chunk in carrying)
    if common["finish"] == "length" and not answered and any(chunk.reasoning for chunk in carrying):
        flags.append("ended-inside-think")
    if n is not None and common["requested"] and n < common["requested"] and common["finish"] != "length":
        flags.append("length-not-reached")
    prompt, cached = common["prompt_tokens"], common["cached_tokens"]
    if prompt and cached and cached / prompt > 0.5:
        flags.append("warm-cache")
    if degenerate("".join(chunk.text for chunk in carrying)):
        flags.append("degenerate")
    return (*flags, *_end_flags(common))


def degenerate(text: str) -> bool:
    """Whether the end of a text repeats itself: under a fifth of its neighbouring pairs are different.

    Pairs of words, or of letters where there are hardly any words; texts under 64 letters are not judged.
    """
    words = text.split()[-128:]
    units: Sequence[str] = words if len(words) >= 32 else text[-256:]
    if len(text) < 64 or len(units) < 32:
        return False
    pairs = list(pairwise(units))
    return len(set(pairs)) / len(pairs) < 0.2
