"""The recovery loop: observe, plan, apply, observe again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from inventory.errors import CannotLook, Failed, Refused
from inventory.machine import ignore
from provision.pipeline import Phase, Plan, Report, StageName, Step, preview, run


@dataclass(frozen=True)
class Add:
    amount: int

    @property
    def line(self) -> str:
        return f"add {self.amount}"


@dataclass
class Counter:
    """A stage that wants `value` to reach `goal`, one step of `stride` at a time."""

    name: StageName
    value: int = 0
    goal: int = 0
    stride: int = 1
    unreadable: bool = False
    blocked: Refused | None = None
    applied: list[int] = field(default_factory=list)
    before_apply: Callable[[], None] = lambda: None

    def observe(self) -> int:
        if self.unreadable:
            raise CannotLook("the container is not running")
        return self.value

    def describe(self, facts: int) -> tuple[str, ...]:
        return (f"value is {facts}",)

    def plan(self, facts: int) -> Plan:
        if self.blocked:
            return Plan(blocked=self.blocked)
        return Plan((Add(self.stride),)) if facts < self.goal else Plan()

    def apply(self, step: Add, emit: Any) -> str:
        self.before_apply()
        self.value += step.amount
        self.applied.append(step.amount)
        return f"added {step.amount}"


def silent(report: Report) -> None:
    pass


def test_a_stage_is_done_only_when_a_new_look_plans_nothing() -> None:
    stage = Counter(StageName.HOST, goal=2)
    told: list[Report] = []
    (outcome,) = run((stage,), told.append, ignore)
    assert stage.value == 2
    assert outcome.changed == ("added 1", "added 1")
    assert outcome.found == ("value is 2",)
    assert told[-1] == Report(StageName.HOST, Phase.VERIFIED, "value is 2")


def test_a_second_run_changes_nothing() -> None:
    stage = Counter(StageName.HOST, goal=1)
    run((stage,), silent, ignore)
    (again,) = run((stage,), silent, ignore)
    assert again.changed == ()
    assert stage.applied == [1]


def test_a_stage_that_is_changed_back_each_time_fails_after_three_rounds() -> None:
    stage = Counter(StageName.DEVICES, goal=1, stride=0)
    with pytest.raises(Failed, match="does not settle"):
        run((stage,), silent, ignore)
    assert len(stage.applied) == 3


def test_a_blocked_stage_stops_the_run_before_later_stages() -> None:
    later = Counter(StageName.WEIGHTS, goal=1)
    with pytest.raises(Refused, match="locked"):
        run((Counter(StageName.CONNECT, blocked=Refused("locked")), later), silent, ignore)
    assert later.applied == []


def test_a_user_who_does_not_agree_keeps_everything_as_it_was() -> None:
    stage = Counter(StageName.DEVICES, goal=1)

    def refuse(name: StageName, steps: tuple[Step, ...]) -> None:
        raise Refused("not agreed")

    with pytest.raises(Refused):
        run((stage,), silent, ignore, refuse)
    assert stage.value == 0


def test_later_stages_are_built_only_after_earlier_ones_have_settled() -> None:
    first = Counter(StageName.HOST, goal=1)

    def stages() -> Any:
        yield first
        assert first.value == 1
        yield Counter(StageName.DEVICES)

    assert len(run(stages(), silent, ignore)) == 2


def test_a_preview_changes_nothing_and_shows_all_stages() -> None:
    stages = (Counter(StageName.HOST, goal=1), Counter(StageName.DEVICES, goal=1))
    previews = preview(stages, silent)
    assert [p.steps for p in previews] == [("add 1",), ("add 1",)]
    assert all(s.value == 0 for s in stages)


def test_a_preview_says_what_can_be_known_only_after_earlier_steps() -> None:
    stages = (Counter(StageName.CONTAINER, goal=1), Counter(StageName.WEIGHTS, unreadable=True))
    previews = preview(stages, silent)
    assert previews[1].later == ("known only after the steps of stage container: the container is not running",)


def test_a_preview_shows_a_stage_as_blocked_only_when_no_step_before_it_could_help() -> None:
    blocked = Counter(StageName.PREFLIGHT, blocked=Refused("CUDA does not start"))
    (_, after) = preview((Counter(StageName.HOST, goal=1), blocked), silent)
    assert after.blocked is None
    assert after.later == ("judged again after the steps of stage host; now: CUDA does not start",)
    (alone,) = preview((blocked, Counter(StageName.ENGINE, goal=1)), silent)
    assert alone.blocked is not None


def test_a_preview_of_an_unreadable_machine_is_an_error_not_a_plan() -> None:
    with pytest.raises(CannotLook):
        preview((Counter(StageName.CONNECT, unreadable=True),), silent)
