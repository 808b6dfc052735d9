"""The engine stage: what it says, what it plans, and that applying it settles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from inventory.errors import Refused
from inventory.launch import Launch
from inventory.machine import Emit, ignore
from provision.engine import job
from provision.engine.diagnose import diagnose, meaningful
from provision.engine.stage import EngineFacts, EngineStage, RestartEngine, StartEngine
from provision.pipeline import Outcome, run

LAUNCH = Launch(
    argv=("x",), url="http://127.0.0.1:18200", ready_path="/health", kind="llama.cpp", method="auto", tp=1,
    model="/dev/shm/m/SmolLM2-135M-Instruct.Q4_1.gguf", key="k1",
)  # fmt: skip
READY = EngineFacts(
    state="ready", pid=71, up_s=14.2, key="k1", url=LAUNCH.url, kind="llama.cpp", method="auto", model=LAUNCH.model,
    version="", served="", model_changed=False, stranger="", missing=(),
)  # fmt: skip
STOPPED = replace(READY, state="stopped", pid=0, key="", url="", kind="", method="", model="")


class Here:
    """This process as the container."""

    where = "this machine"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    def call(
        self, name: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        self.calls.append((name, args or {}))
        return {"engine.status": job.status, "engine.start": job.start}[name](args or {}, emit)


def stage() -> EngineStage:
    return EngineStage(Here(), LAUNCH)


def test_it_describes_a_serving_engine_in_one_line() -> None:
    assert stage().describe(READY) == (
        "llama.cpp serves SmolLM2-135M-Instruct.Q4_1.gguf on port 18200, method auto, pid 71, up 14 s",
    )
    assert stage().describe(STOPPED) == ("no engine of gpuctl runs",)


def test_the_wanted_engine_needs_nothing() -> None:
    assert stage().plan(READY).steps == ()


@pytest.mark.parametrize(
    ("facts", "step", "words"),
    [
        (STOPPED, StartEngine, "start llama.cpp with method auto on port 18200"),
        (replace(READY, state="starting"), StartEngine, "(pid 71, starting)"),
        (replace(READY, key="k2", method="mtp"), RestartEngine, "it runs method mtp"),
        (replace(READY, key="k2"), RestartEngine, "another command line"),
        (replace(READY, key="k2", state="starting"), RestartEngine, "another command line"),
        (replace(READY, model_changed=True), RestartEngine, "model file was replaced"),
        (replace(READY, state="unresponsive"), RestartEngine, "does not answer"),
    ],
)
def test_each_state_has_one_step_that_says_why(facts: EngineFacts, step: type, words: str) -> None:
    plan = stage().plan(facts)
    assert len(plan.steps) == 1
    assert isinstance(plan.steps[0], step)
    assert words in plan.steps[0].line


def test_a_stranger_on_the_port_blocks() -> None:
    plan = stage().plan(replace(STOPPED, stranger="pid 9 (nginx)"))
    assert plan.steps == ()
    assert isinstance(plan.blocked, Refused)
    assert "port 18200 is in use by pid 9 (nginx)" in plan.blocked.message


def test_an_absent_model_is_said_beforehand() -> None:
    assert stage().plan(replace(STOPPED, missing=(LAUNCH.model,))).later == (
        f"needs {LAUNCH.model}, which is not there yet",
    )


def settle(launch: Launch) -> tuple[Outcome, Here]:
    here = Here()
    return run([EngineStage(here, launch)], lambda report: None, ignore)[0], here


def test_applying_settles_and_a_second_run_changes_nothing(fake: Any) -> None:
    launch = fake.launch("serve", TOKEN="env:TOKEN").with_env({"TOKEN": "s3cr3t"})
    outcome, here = settle(launch)
    assert len(outcome.changed) == 1
    assert "ready on port" in outcome.changed[0]
    assert " serves fake.gguf on port " in outcome.found[0]
    assert all("s3cr3t" not in str(args) for name, args in here.calls if name == "engine.status")
    assert settle(launch)[0].changed == ()
    assert len(settle(fake.launch("serve", OTHER="1"))[0].changed) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RuntimeError: CUDA unknown error - this may be", "nvidia-uvm"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver libraries"),
        ("OSError: [Errno 28] No space left on device", "file system is full"),
        ("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (939)", "number of sequences"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "GPU memory"),
        ("error: unrecognized arguments: --nope", "arguments"),
        ("error: /opt/engine has no usable xllamacpp: No module named 'xllamacpp'", "lacks a module"),
        ("llama_model_load: error loading model: invalid magic", "model file"),
        ("OSError: [Errno 98] Address already in use", "port is in use"),
        ("GGML_ASSERT(ggml_can_mul_mat) failed", "native code"),
    ],
)
def test_known_signs_are_explained(line: str, words: str) -> None:
    sign = diagnose(("loading", line, "bye"))
    assert sign is not None
    assert words in sign.meaning


def test_an_ordinary_log_has_no_sign() -> None:
    assert diagnose(("loading weights", "warming up")) is None


def test_the_shown_lines_are_the_meaningful_ones() -> None:
    lines = [
        "Error: the cause",
        *(f"line {number}" for number in range(40)),
        "",
        "  45%|####    | 3/8",
        "end",
        "end",
    ]
    shown = meaningful(lines, last=5)
    assert shown == ("Error: the cause", "line 36", "line 37", "line 38", "line 39", "end")
    assert meaningful(["\x1b[31mred\x1b[0m", "10%\r20%\rdone"]) == ("red", "done")
