"""From events to a sample: reported faults as case files, and recorded streams of real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.count import count, degenerate
from bench.sample import Sample
from bench.sse import Event, Parser

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.json"))


def sample_of(case: dict[str, Any]) -> Sample:
    events = [
        Event(1.0 + at / 1000, (data if isinstance(data, str) else json.dumps(data)).encode())
        for at, data in case["events"]
    ]
    size = case.get("tokenizer")
    return count(
        events,
        sent_at=1.0,
        ended_at=events[-1].at,
        requested=case["requested"],
        tokenizer=(lambda text: len(text) // size) if size else None,
    )


def shown(sample: Sample) -> dict[str, Any]:
    """A sample in the words of the case files (milliseconds, short names)."""
    data = sample.to_json()
    for name in ("ttfb", "ttft", "ttfot", "last", "end", "tpot", "icl"):
        seconds = data[f"{name}_s"]
        data[f"{name}_ms"] = None if seconds is None else seconds * 1000
    data.update(
        decode=sample.decode_tok_s, e2e=sample.e2e_tok_s, peak=sample.peak_tok_s, cached=sample.cached_tokens
    )
    return data


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_reported_fault(path: Path) -> None:
    case = json.loads(path.read_text())
    sample = sample_of(case)
    found = shown(sample)
    for name, want in case["expect"].items():
        if name == "flags":
            assert set(want) <= set(sample.flags)
        elif name == "warning":
            assert any(want in warning for warning in sample.warnings), sample.warnings
        elif isinstance(want, float) or name.endswith("_ms"):
            assert found[name] == (None if want is None else pytest.approx(want, rel=1e-6)), name
        else:
            assert found[name] == want, name


def test_there_are_case_files() -> None:
    assert len(CASES) >= 25


def test_a_sample_survives_json() -> None:
    for path in CASES:
        sample = sample_of(json.loads(path.read_text()))
        assert Sample.from_json(json.loads(json.dumps(sample.to_json()))) == sample


RECORDED = [
    # stream, tokens in its usage, who counted the first event, flags
    ("cput2", 128, 128, "one-per-chunk", 0),
    ("tiny_dflash", 128, 85, "estimate", 0),
    ("tiny_dflash_synth", 128, 96, "estimate", 0),
    ("tiny_mtp_synth", 128, 73, "estimate", 0),
    ("transformers_serve_qwen35", 48, 24, "estimate", None),
    ("vllm_cpu_ngram", 96, 45, "usage", None),
    ("xllamacpp_draft_self_req2", 96, 96, "one-per-chunk", 24),
    ("xllamacpp_ngram_mod_req2", 96, 96, "one-per-chunk", 24),
    ("xllamacpp_plain", 128, 128, "one-per-chunk", 0),
    ("xllamacpp_plain1_req2", 96, 96, "one-per-chunk", 24),
]


@pytest.mark.parametrize(("name", "n", "chunks", "source", "cached"), RECORDED, ids=[row[0] for row in RECORDED])
@pytest.mark.parametrize("size", [1, 700, 10**6])
def test_recorded_stream(name: str, n: int, chunks: int, source: str, cached: int | None, size: int) -> None:
    data = (HERE / "streams" / f"{name}.sse").read_bytes()
    parser = Parser()
    events = []
    for at in range(0, len(data), size):
        events += parser.feed(data[at : at + size], at / 1000)
    events += parser.close(len(data) / 1000)
    sample = count(events, sent_at=-1.0, ended_at=len(data) / 1000, requested=n)
    assert (sample.status, sample.error) == ("ok", "")
    assert (sample.n, sample.n_source) == (n, "usage")
    assert sample.n_first == 1
    assert (sample.chunks, sample.n_first_source) == (chunks, source)
    assert (sample.finish, sample.cached_tokens) == ("length", cached)
    assert (sample.reasoning, sample.warnings) == (0, ())
    assert "hidden-reasoning" not in sample.flags
    if "predicted_n" in sample.server:
        assert sample.server["predicted_n"] == n


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab" * 128, True),
        ("the cat " * 40, True),
        ("Alpha, Beta, Gamma, Delta. " * 2, False),
        ("short", False),
        (" ".join(f"word{number}" for number in range(100)), False),
        (json.dumps([{"name": f"planet{n}", "position": n} for n in range(8)]), False),
    ],
)
def test_endless_repetition_is_recognised(text: str, expected: bool) -> None:
    assert degenerate(text) is expected
