"""Observe, plan, apply, observe again: the one loop every stage of a recovery goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.machine import Emit


class StageName(StrEnum):
    """The stages in their order."""

    CONNECT = "connect"
    HOST = "host"
    DEVICES = "devices"
    CONTAINER = "container"
    WEIGHTS = "weights"
    PREFLIGHT = "preflight"
    ENGINE = "engine"
    BENCH = "bench"


@runtime_checkable
class Step(Protocol):
    """One change that a stage would make; a frozen value that can say itself in one line.

    A step made of many small ones may have `more`: a line for each, shown below its own.
    """

    @property
    def line(self) -> str: ...


def more(step: Step) -> tuple[str, ...]:
    """The parts of a step that has many."""
    return tuple(getattr(step, "more", ()))


def _whole(step: Step) -> str:
    """Step and parts in one line."""
    return ": ".join((step.line, "; ".join(more(step)))) if more(step) else step.line


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stage would do. Empty `steps` and no `blocked` means: as wanted."""

    steps: tuple[Step, ...] = ()
    blocked: GpuctlError | None = None
    """Set when the stage can't reach its goal by itself: the precise reason."""
    later: tuple[str, ...] = ()
    """What can only be known once the steps are made (shown by `--dry-run`)."""
    warnings: tuple[str, ...] = ()
    """What is not as it should be, though it does not keep the stage from its goal."""
    advice: tuple[str, ...] = ()
    """What would spare this work the next time; nothing is wrong now."""


class Stage(Protocol):
    """A part of the recovery. `plan` is pure; only `observe` and `apply` touch the world."""

    @property
    def name(self) -> StageName: ...

    def observe(self) -> Any:
        """Read the state; raises `CannotLook` when it can't be read."""
        ...

    def describe(self, facts: Any) -> tuple[str, ...]:
        """What was found, in the user's words."""
        ...

    def plan(self, facts: Any) -> Plan: ...

    def apply(self, step: Any, emit: Emit) -> str:
        """Make one change and say what was changed, in one line."""
        ...


class Phase(StrEnum):
    """What a report is about."""

    STARTED = "started"
    FOUND = "found"
    PLANNED = "planned"
    LATER = "later"
    CHANGING = "changing"
    CHANGED = "changed"
    VERIFIED = "verified"
    WARNING = "warning"
    ADVICE = "advice"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Report:
    """One line of the story of a run."""

    stage: StageName
    phase: Phase
    line: str = ""
    more: tuple[str, ...] = ()


Reporter = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended: the lines found at last, the lines changed, and what is left to warn of."""

    stage: StageName
    found: tuple[str, ...]
    changed: tuple[str, ...]
    warnings: tuple[str, ...] = ()


ROUNDS = 3
"""A stage may need a second round (the module's major is known only once it is loaded); more is a fault."""


Agree = Callable[[StageName, tuple[Step, ...]], None]
"""Asked before a stage's steps are made; raises when the user does not agree."""


def agreed(_stage: StageName, _steps: tuple[Step, ...]) -> None:
    """An `Agree` that always agrees."""


def _settle(stage: Stage, report: Reporter, emit: Emit, agree: Agree) -> Outcome:
    changed: list[str] = []
    for round_ in range(ROUNDS + 1):
        facts = stage.observe()
        found = stage.describe(facts)
        for line in found:
            report(Report(stage.name, Phase.FOUND if round_ == 0 else Phase.VERIFIED, line))
        plan = stage.plan(facts)
        if plan.blocked is not None:
            report(Report(stage.name, Phase.BLOCKED, plan.blocked.message))
            raise plan.blocked
        if not plan.steps:
            for phase, lines in ((Phase.WARNING, plan.warnings), (Phase.ADVICE, plan.advice)):
                for line in lines:
                    report(Report(stage.name, phase, line))
            return Outcome(stage.name, found, tuple(changed), plan.warnings)
        if round_ == ROUNDS:
            raise Failed(
                f"stage {stage.name} does not settle: after {ROUNDS} rounds it would still {plan.steps[0].line}",
                hint="something else keeps changing it back; see the journal of this run",
            )
        for step in plan.steps:
            report(Report(stage.name, Phase.PLANNED, step.line, more(step)))
        agree(stage.name, plan.steps)
        for step in plan.steps:
            report(Report(stage.name, Phase.CHANGING, step.line))
            line = stage.apply(step, emit)
            changed.append(line)
            report(Report(stage.name, Phase.CHANGED, line))
    raise AssertionError("unreachable")


def run(stages: Iterable[Stage], report: Reporter, emit: Emit, agree: Agree = agreed) -> tuple[Outcome, ...]:
    """Bring each stage to its goal, in order; the first that can't raises its precise reason."""
    outcomes = []
    for stage in stages:
        report(Report(stage.name, Phase.STARTED))
        outcomes.append(_settle(stage, report, emit, agree))
    return tuple(outcomes)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a dry run knows of one stage."""

    stage: StageName
    found: tuple[str, ...]
    steps: tuple[str, ...]
    later: tuple[str, ...]
    blocked: GpuctlError | None
    warnings: tuple[str, ...] = ()


def preview(stages: Iterable[Stage], report: Reporter) -> tuple[Preview, ...]:
    """The whole plan as far as it can be known, changing nothing.

    Once a stage has steps, a later one may be unreadable (the container is not running yet): that is
    said as "known only after ...", not raised.
    """
    previews: list[Preview] = []
    pending: StageName | None = None
    for stage in stages:
        report(Report(stage.name, Phase.STARTED))
        try:
            facts = stage.observe()
            found, plan = stage.describe(facts), stage.plan(facts)
        except CannotLook as error:
            if pending is None:
                raise
            later = (f"known only after the steps of stage {pending}: {error.message}",)
            found, plan = (), Plan(later=later)
        if plan.blocked is not None and pending is not None:
            # Not blocked for good: the steps before it are there to change just that.
            reason = f"judged again after the steps of stage {pending}; now: {plan.blocked.message}"
            plan = Plan(plan.steps, later=(*plan.later, reason), warnings=plan.warnings)
        for line in found:
            report(Report(stage.name, Phase.FOUND, line))
        for step in plan.steps:
            report(Report(stage.name, Phase.PLANNED, step.line, more(step)))
        for phase, lines in (
            (Phase.LATER, plan.later),
            (Phase.WARNING, plan.warnings),
            (Phase.ADVICE, plan.advice),
        ):
            for line in lines:
                report(Report(stage.name, phase, line))
        if plan.blocked is not None:
            report(Report(stage.name, Phase.BLOCKED, plan.blocked.message))
        previews.append(
            Preview(stage.name, found, tuple(map(_whole, plan.steps)), plan.later, plan.blocked, plan.warnings)
        )
        if plan.steps and pending is None:
            pending = stage.name
        if plan.blocked is not None:
            break
    return tuple(previews)
