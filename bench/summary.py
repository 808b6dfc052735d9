"""Say a result in one line and as a table: pure text, no terminal."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath
from typing import Any, Final

from bench.baseline import key_of
from bench.result import Result, Shape
from bench.stats import Spread

_QUANT: Final = re.compile(r"[._-]((?:I?Q\d\w*|B?F16|F32|FP8|NVFP4|MXFP4|INT[48]|AWQ|GPTQ))$", re.IGNORECASE)


def model_name(model: str) -> str:
    """`/dev/shm/x/SmolLM2-135M-Instruct.Q4_1.gguf` -> `SmolLM2-135M Q4_1`; a folder or repository: its last part."""
    name = PurePosixPath(model).name or model
    name = name.removesuffix(".gguf")
    match = _QUANT.search(name)
    quant = f" {match[1]}" if match else ""
    return (name[: match.start()] if match else name).removesuffix("-Instruct") + quant


def _range(spread: Spread) -> str:
    if spread.count == 1:
        return f"{spread.median:.1f} tok/s (1 run)"
    return f"{spread.median:.1f} tok/s (median of {spread.count}, {spread.low:.1f}-{spread.high:.1f})"


def line(result: Result) -> str:
    """The result in one sentence: where, what, which method, how fast, what was counted, and every doubt."""
    decode = result.decode
    tokens, reasoning = result.tokens
    words = [
        model_name(result.model),
        result.kind,
        result.method if result.proof.proven else f"{result.method} (method not proven)",
        _range(decode) if decode else "no rate",
        f"{tokens} tokens of which {reasoning} reasoning",
    ]
    failed = Counter(str(run.sample.status) for run in result.runs if run not in result.good)
    words += [f"{number} {status}" for status, number in sorted(failed.items())]
    return ("lab: " if result.lab else "") + ", ".join(words)


HEAD: Final = ("task", "max", "tok/s", "low-high", "TTFT", "tokens", "reasoning", "finish", "right")


def _row(shape: Shape) -> tuple[str, ...]:
    decode, ttft = shape.decode, shape.ttft
    good = [run.sample for run in shape.good]
    finish = Counter(sample.finish or "none" for sample in good)
    finish.update({str(run.sample.status): 1 for run in shape.runs if run not in shape.good})
    return (
        shape.task,
        str(shape.max_tokens),
        f"{decode.median:.1f}" if decode else "-",
        f"{decode.low:.1f}-{decode.high:.1f}" if decode else "-",
        f"{ttft.median * 1000:.0f} ms" if ttft else "-",
        str(sum(sample.n or 0 for sample in good)),
        str(sum(sample.reasoning or 0 for sample in good)),
        " ".join(f"{name}:{number}" for name, number in sorted(finish.items())),
        f"{sum(run.right is True for run in shape.runs)}/{len(shape.runs)}",
    )


def table(result: Result) -> tuple[str, ...]:
    """Lines of a table, one row for each task and length; the rows of a lab result say so."""
    rows = [HEAD, *(_row(shape) for shape in result.shapes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    mark = "lab: " if result.lab else ""
    return tuple(
        mark + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def brief(result: Result) -> dict[str, Any]:
    """The summary of a result as JSON, for lists."""
    decode = result.decode
    return {
        "run_id": result.run_id,
        "started_at": result.started_at,
        "boot_id": result.boot_id,
        "lab": result.lab,
        "kind": result.kind,
        "model": result.model,
        "method": result.method,
        "method_proven": result.proof.proven,
        "tp": result.tp,
        "key": key_of(result),
        "decode_tok_s": decode.to_json() if decode else None,
        "tokens": result.tokens[0],
        "reasoning": result.tokens[1],
        "failed": len(result.runs) - len(result.good),
        "context": dict(result.context),
        "line": line(result),
    }
