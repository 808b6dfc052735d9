"""Stage `bench`: results of other boots set aside, and a measured baseline of this boot stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import store
from bench.baseline import find
from bench.result import Result
from gpuctl import dirs
from gpuctl.link import Link
from inventory.launch import Launch
from inventory.machine import Emit
from inventory.model import BenchPlan
from provision.pipeline import Plan, StageName


@dataclass(frozen=True, slots=True)
class SetAside:
    """Move results that are not of this boot out of the way."""

    paths: tuple[str, ...]

    @property
    def line(self) -> str:
        which = ", ".join(Path(path).name for path in self.paths[:3])
        more = f" and {len(self.paths) - 3} more" if len(self.paths) > 3 else ""
        return f"set aside {which}{more}: not measured in this boot"


@dataclass(frozen=True, slots=True)
class Measure:
    """Drive the engine and store the result."""

    method: str
    tasks: tuple[str, ...]
    max_tokens: tuple[int, ...]
    repeats: int

    @property
    def line(self) -> str:
        lengths = ", ".join(str(length) for length in self.max_tokens)
        return (
            f"measure method {self.method}: {', '.join(self.tasks)}, {lengths} tokens, "
            f"{self.repeats} repeat{'' if self.repeats == 1 else 's'} after the warm-up"
        )


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """What the results folder holds, and what is known of earlier boots."""

    current: tuple[Mapping[str, Any], ...]
    strangers: tuple[Mapping[str, Any], ...]
    baseline: Result | None
    """The measurement of this boot that counts, when there is one."""
    before: Result | None
    """The newest comparable baseline of another boot."""


def wanted_key(launch: Launch, plan: BenchPlan) -> str:
    """Digest of what a result must have measured to be the one this stage wants."""
    parts = [launch.key, list(plan.tasks), list(plan.max_tokens), plan.repeats, plan.think]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def home(name: str) -> Path:
    """Where this machine keeps its copies of a container's results."""
    return dirs.data() / "results" / name


class BenchStage:
    """Wants one proven result of this boot for the launch and the plan of the inventory."""

    name = StageName.BENCH

    def __init__(self, link: Link, launch: Launch, *, again: bool = False) -> None:
        self._link = link
        self._launch = launch
        self._plan = link.container.bench
        self._again = again
        """Measure once even when there is a result."""

    def observe(self) -> BenchFacts:
        """The container's results folder; the result that counts is read from our copy, or fetched."""
        ct, folder = self._link.ct, self._plan.results
        seen = ct.call("bench.results", {"results": folder})
        key = wanted_key(self._launch, self._plan)
        fitting = [brief for brief in seen["current"] if (brief.get("context") or {}).get("wanted") == key]
        baseline = self._read(fitting[-1]["run_id"]) if fitting else None
        return BenchFacts(
            current=tuple(seen["current"]),
            strangers=tuple(seen["strangers"]),
            baseline=baseline,
            before=_before(baseline, home(self._link.name)) if baseline else None,
        )

    def _read(self, run_id: str) -> Result:
        try:
            return store.read(home(self._link.name) / run_id)
        except ValueError:
            answer = self._link.ct.call("bench.results", {"results": self._plan.results, "run": run_id})
            result = Result.from_json(answer["result"])
            _keep(result, self._link.name)
            return result

    def describe(self, facts: BenchFacts) -> tuple[str, ...]:
        from bench.summary import line

        lines = []
        if facts.strangers:
            count = len(facts.strangers)
            lines.append(f"{count} result{'s' * (count > 1)} of earlier boots or unknown origin lie about")
        if facts.baseline is None:
            lines.append("no baseline of this boot yet")
        else:
            lines.append(line(facts.baseline))
            if (share := _share(facts)) is not None and facts.before is not None:
                lines.append(f"that is {share:.1f} % of the baseline of {_day(facts.before)} (before the reboot)")
        return tuple(lines)

    def plan(self, facts: BenchFacts) -> Plan:
        steps: list[SetAside | Measure] = []
        if facts.strangers:
            steps.append(SetAside(tuple(str(stranger["path"]) for stranger in facts.strangers)))
        if facts.baseline is None or self._again:
            plan = self._plan
            tasks = tuple(str(task) for task in plan.tasks)
            steps.append(Measure(self._launch.method, tasks, plan.max_tokens, plan.repeats))
        return Plan(tuple(steps), warnings=self._warnings(facts))

    def _warnings(self, facts: BenchFacts) -> tuple[str, ...]:
        if facts.baseline is None:
            return ()
        warnings = list(facts.baseline.warnings)
        if not facts.baseline.proof.proven:
            warnings.append(f"method {facts.baseline.method} is not proven: {facts.baseline.proof.why}")
        limit = self._link.thresholds.baseline_drop_pct
        if (share := _share(facts)) is not None and share < 100 - limit:
            warnings.append(f"{100 - share:.1f} % below the baseline before the reboot (limit {limit:g} %)")
        return tuple(warnings)

    def apply(self, step: SetAside | Measure, emit: Emit) -> str:
        if isinstance(step, SetAside):
            answer = self._link.ct.call("bench.set_aside", {"results": self._plan.results})
            moved = [str(pair["to"]) for pair in answer["moved"]]
            return f"set aside {len(moved)} to {Path(moved[0]).parent.parent}" if moved else "nothing to set aside"
        self._again = False
        result = self._measure(step, emit)
        _keep(result, self._link.name)
        return f"measured and stored as {result.run_id} ({result.duration_s:.1f} s)"

    def _measure(self, step: Measure, emit: Emit) -> Result:
        link, launch = self._link, self._launch
        requests = len(step.tasks) * len(step.max_tokens) * (step.repeats + 4)
        answer = link.ct.call(
            "bench.run",
            {
                "url": launch.url,
                "model": launch.model,
                "served": launch.served,
                "kind": launch.kind,
                "method": launch.method,
                "tp": launch.tp,
                "tasks": list(step.tasks),
                "max_tokens": list(step.max_tokens),
                "repeats": step.repeats,
                "think": self._plan.think,
                "results": self._plan.results,
                "lab": link.lab,
                "context": {
                    "wanted": wanted_key(launch, self._plan),
                    "launch": launch.key,
                    "container": link.name,
                    "host": link.host_name,
                    "weights": [f"{w.repo}@{w.revision}" for w in link.container.weights],
                    # The lab's engine runs on the CPU: its simulated GPUs measured nothing.
                    "gpus": [] if link.lab else self._gpus(),
                },
            },
            emit=emit,
            timeout_s=120.0 + requests * (60.0 + 2.0 * max(step.max_tokens)),
        )
        return Result.from_json(answer)

    def _gpus(self) -> list[Any]:
        report = self._link.ct.call("checks.preflight", {"expect": {}, "level": "quick"}, timeout_s=60.0)
        return list((report.get("machine") or {}).get("gpus") or ())


def _keep(result: Result, name: str) -> None:
    """Our copy of a result, so that `gpuctl results` needs no container."""
    folder = home(name)
    if not (folder / result.run_id).exists():
        store.save(folder, result)


def _before(baseline: Result, folder: Path) -> Result | None:
    from bench.baseline import key_of

    others = [result for result in store.everything(folder) if result.boot_id != baseline.boot_id]
    return find(others, key_of(baseline))


def _share(facts: BenchFacts) -> float | None:
    """This boot's median as a percentage of the earlier one's."""
    if facts.baseline is None or facts.before is None:
        return None
    now, then = facts.baseline.decode, facts.before.decode
    return 100.0 * now.median / then.median if now and then else None


def _day(result: Result) -> str:
    return datetime.fromisoformat(result.started_at).strftime("%-d %b %H:%M")
