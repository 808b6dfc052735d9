"""The stage of a recovery: observe, plan, apply, observe again, over the real jobs and the wire's JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuctl.lab.hub import HubRepo
from gpuctl.lab.hub.sample import FILES, FIRST, NAME
from inventory.errors import CannotLook, ConfigError, Refused
from inventory.machine import Emit, ignore
from inventory.model import Weights
from provision.pipeline import Phase, Report, Stage, StageName, preview, run
from provision.weights import job
from provision.weights.model import StageFacts, State
from provision.weights.stage import WeightsStage

if TYPE_CHECKING:
    from tests.provision.weights.conftest import Bench


class Here:
    """A machine that runs the jobs in this process, its values sent through JSON as over the wire."""

    where = "ct200"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(
        self, name: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        self.calls.append(name)
        assert timeout_s > 0
        work = {"weights.status": job.status, "weights.stage": job.stage}[name]
        return json.loads(json.dumps(work(json.loads(json.dumps(args)), emit)))


def weights(bench: Bench, **more: Any) -> Weights:
    values = {"repo": NAME, "to": str(bench.target), "cache": str(bench.cache), "endpoint": bench.hub.url} | more
    return Weights(**values)


def make(bench: Bench, *more: Weights, tokens: tuple[str, ...] = ()) -> WeightsStage:
    entries = (weights(bench), *more)
    return WeightsStage(Here(), entries, tokens or ("",) * len(entries))


def lines(stage: Stage) -> list[tuple[Phase, str]]:
    told: list[Report] = []
    run((stage,), told.append, ignore)
    return [(report.phase, report.line) for report in told]


def test_a_recovery_brings_the_weights_and_finds_them_ready(bench: Bench) -> None:
    # Whether the test's folder is on a disk or in memory differs from machine to machine.
    notes = "".join(f"; {note}" for note in bench.status()["notes"])
    told = lines(make(bench))
    commit = bench.hub.commit(NAME)[:7]
    where = str(bench.target)
    assert (Phase.FOUND, f"lab/tiny@{commit} in {where}: absent{notes}") in told
    assert (Phase.PLANNED, f"bring lab/tiny@{commit} (3.0 MB) from the Hub (3.0 MB to fetch) into {where}") in told
    changed = [line for phase, line in told if phase is Phase.CHANGED]
    assert len(changed) == 1
    assert changed[0].startswith(
        f"lab/tiny@{commit} in {where}: 5 files, 3.0 MB, from the Hub, verified by sha256"
    )
    assert next(line for phase, line in told if phase is Phase.VERIFIED).startswith(
        f"lab/tiny@{commit} in {where}: ready, 5 files, 3.0 MB, verified 20"
    )
    assert bench.files() == FILES


def test_a_second_recovery_changes_nothing(bench: Bench) -> None:
    lines(make(bench))
    requests = len(bench.hub.requests)
    assert [phase for phase, _ in lines(make(bench))] == [Phase.STARTED, Phase.FOUND]
    assert len(bench.hub.requests) == requests


def test_after_a_reboot_the_plan_says_from_the_cache(bench: Bench) -> None:
    lines(make(bench))
    shutil.rmtree(bench.target.parent)
    bench.hub.close()
    (plan,) = preview((make(bench),), lambda report: None)
    assert "from the cache into" in plan.steps[0]
    assert plan.blocked is None


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    preview((make(bench),), lambda report: None)
    assert not bench.target.parent.exists()
    assert not bench.cache.exists()


def test_a_damaged_target_is_mended(bench: Bench) -> None:
    lines(make(bench))
    (bench.target / FIRST).unlink()
    planned = [line for phase, line in lines(make(bench)) if phase is Phase.PLANNED]
    assert planned[0].startswith("mend lab/tiny@")
    assert bench.files() == FILES


def test_only_the_missing_one_of_two_models_is_brought(bench: Bench) -> None:
    draft = str(bench.target.with_name("draft"))
    lines(make(bench))
    told = lines(make(bench, weights(bench, to=draft)))
    assert next(line for phase, line in told if phase is Phase.PLANNED).endswith(f"into {draft}")
    assert len([1 for phase, _ in told if phase is Phase.CHANGED]) == 1


def test_a_gated_repository_blocks_before_anything_is_brought(bench: Bench) -> None:
    bench.restart(HubRepo(NAME, dict(FILES), gated=True, readers=("hf_reader",)))
    stage = WeightsStage(Here(), (weights(bench),), ("",))
    plan = stage.plan(stage.observe())
    assert isinstance(plan.blocked, ConfigError)
    with pytest.raises(ConfigError, match="gated"):
        lines(stage)
    lines(WeightsStage(Here(), (weights(bench),), ("hf_reader",)))
    assert bench.files() == FILES


def test_too_little_room_blocks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from provision.weights import room

    small = room.Room(str(bench.target), True, 1, (room.Limit("the cup", 1_000_000, "a larger cup"),))
    monkeypatch.setattr(room, "look", lambda folder: small if folder == str(bench.target) else disk_room(folder))
    stage = make(bench)
    plan = stage.plan(stage.observe())
    assert isinstance(plan.blocked, Refused)
    assert "the cup leaves 1.0 MB" in plan.blocked.message
    assert not bench.target.parent.exists()


def disk_room(folder: str) -> Any:
    from provision.weights import room

    return room.Room(folder, False, 2, ())


def test_planning_reads_nothing(bench: Bench) -> None:
    stage = make(bench)
    facts = StageFacts(NAME, "main", "/dev/shm/x", State.ABSENT, commit="a" * 40, size=98_362_640)
    assert stage.plan((facts,)) == stage.plan((facts,))
    assert stage.plan((facts,)).steps[0].line == "bring lab/tiny@aaaaaaa (98.4 MB) into /dev/shm/x"
    unreadable = StageFacts(NAME, "main", "/dev/shm/x", State.UNREADABLE, reasons=("no right",))
    assert isinstance(stage.plan((unreadable,)).blocked, CannotLook)
    assert stage._ct.calls == []  # type: ignore[attr-defined]


def test_facts_survive_the_wire() -> None:
    facts = StageFacts(NAME, "main", "/x", State.DAMAGED, reasons=("a", "b"), blocked={"kind": "refused"})
    assert StageFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_the_stage_is_one_of_the_pipeline(bench: Bench) -> None:
    stage: Stage = make(bench)
    assert stage.name is StageName.WEIGHTS


def test_every_entry_needs_its_token(bench: Bench) -> None:
    with pytest.raises(ValueError, match="tokens"):
        WeightsStage(Here(), (weights(bench),), ())


@pytest.mark.slow
def test_the_real_weights_of_the_lab_reach_memory_byte_by_byte(bench: Bench, tmp_path: Path) -> None:
    import os

    from gpuctl.lab.hub import smollm2_repo

    repo = smollm2_repo()
    bench.restart(repo)
    home = Path("/dev/shm") / f"gpuctl-test-{os.getpid()}"
    try:
        lines(WeightsStage(Here(), (weights(bench, repo=repo.name, to=f"{home}/smollm2"),), ("",)))
        (name,) = (path for path in repo.files if path.endswith(".gguf"))
        source = repo.files[name]
        assert isinstance(source, Path)
        assert (home / "smollm2" / name).read_bytes() == source.read_bytes()
    finally:
        shutil.rmtree(home, ignore_errors=True)
