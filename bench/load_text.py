"""Say the outcome of a load as a few lines: pure text, no terminal."""

from __future__ import annotations

from bench.load import Outcome
from bench.stats import rank


def lines(outcome: Outcome) -> tuple[str, ...]:
    """Speed of one stream and of all, times, tokens, ends: every number under its own name."""
    plan, decode, (tokens, reasoning) = outcome.plan, outcome.decode, outcome.tokens
    ends = ", ".join(f"{number} {name}" for name, number in sorted(outcome.ends.items())) or "none ended"
    finish = ", ".join(f"{number} by {name}" for name, number in sorted(outcome.finish.items()))
    rows = [
        ("server", f"{plan.address.netloc}{plan.address.path}, model {plan.model}"),
        (
            "load",
            f"{len(outcome.requests)} requests, {plan.concurrency} at a time, up to {plan.max_tokens} tokens",
        ),
        ("ended", f"{ends}; {finish}" if finish else ends),
        ("tokens", f"{tokens} of which {reasoning} reasoning"),
    ]
    if decode is not None:
        spread = f" (median of {decode.count}, {decode.low:.1f}-{decode.high:.1f})" if decode.count > 1 else ""
        rows.append(("one stream", f"{decode.median:.1f} tok/s{spread}, after its first tokens"))
    else:
        rows.append(("one stream", "no rate"))
    total = outcome.total_tok_s
    rows.append(("all streams", f"{total:.1f} tok/s, prompts and waiting included" if total else "no rate"))
    times = [one.sample.ttft_s for one in outcome.good if one.sample.ttft_s is not None]
    if times:
        told = ", ".join(f"p{share} {1000 * rank(times, share / 100):.0f} ms" for share in (50, 95, 99))
        rows.append(("first token", told))
    if plan.warmups:
        rows.append(("warm-up", f"{outcome.warmups} requests, {outcome.warmup_s:.1f} s, in none of these numbers"))
    return tuple(f"{name:12} {text}" for name, text in rows)
