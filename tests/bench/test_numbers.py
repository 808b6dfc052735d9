"""Medians, intervals, and the names that results carry."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.stats import Spread, spread
from bench.summary import model_name


def test_no_values_have_no_median() -> None:
    assert spread([]) is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=12))
def test_the_interval_lies_within_the_values_and_around_the_median(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found.low == min(values) <= found.ci_low <= found.median <= found.ci_high <= found.high == max(values)
    assert found.count == len(values)
    assert spread(values) == found
    assert Spread.from_json(found.to_json()) == found


def test_a_steady_series_has_a_narrow_interval() -> None:
    steady, wild = spread([40.0, 40.1, 40.2, 40.1, 40.0]), spread([20.0, 40.0, 60.0, 30.0, 50.0])
    assert steady is not None
    assert wild is not None
    assert steady.width_pct < 1 < wild.width_pct


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/dev/shm/x/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M Q4_1"),
        ("/dev/shm/models/Qwen3.6-27B", "Qwen3.6-27B"),
        ("Qwen/Qwen3.6-27B-FP8", "Qwen3.6-27B FP8"),
        ("m-IQ4_XS.gguf", "m IQ4_XS"),
        ("Llama-3-8B.BF16.gguf", "Llama-3-8B BF16"),
        ("", ""),
    ],
)
def test_model_names(path: str, name: str) -> None:
    assert model_name(path) == name
