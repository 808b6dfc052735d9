"""The stage `weights` of a recovery: is every model in memory, and if not, what brings it there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, assert_never

from inventory.errors import CannotLook, Failed, GpuctlError
from inventory.machine import Emit, Machine
from inventory.model import Weights
from provision.pipeline import Plan, StageName
from provision.weights.model import Source, StageFacts, State, Verify, size_text

_LOOK_S = 120.0
_READ_S = 1800.0
"""Limit of a full verification: 52 GB at 100 MB/s take 9 minutes."""
_STAGE_S = 6 * 3600.0
"""Limit of bringing one model: 52 GB over 20 Mbit/s take 6 hours; stalls are ended much earlier, inside."""


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Bring one entry into its target."""

    index: int
    """Position in the inventory's list."""
    repo: str
    commit: str
    to: str
    size: int
    fetch: int
    source: Source
    again: bool
    """The target exists and is to be mended or replaced."""

    @property
    def line(self) -> str:
        name = f"{self.repo}@{self.commit[:7]}"
        do = "mend" if self.again else "bring"
        match self.source:
            case Source.HUB:
                whence = f"from the Hub ({size_text(self.fetch)} to fetch) "
            case Source.CACHE:
                whence = "from the cache "
            case Source.ALREADY:
                whence = ""
            case _:
                assert_never(self.source)
        return f"{do} {name} ({size_text(self.size)}) {whence}into {self.to}"


class WeightsStage:
    """Implements `provision.pipeline.Stage` over the jobs `weights.status` and `weights.stage` of `ct`."""

    name = StageName.WEIGHTS

    def __init__(
        self, ct: Machine, weights: tuple[Weights, ...], tokens: tuple[str, ...], verify: Verify = Verify.QUICK
    ) -> None:
        """`tokens`: one resolved access token (or "") per entry of `weights`."""
        if len(tokens) != len(weights):
            raise ValueError(f"{len(weights)} weights but {len(tokens)} tokens")
        self._ct = ct
        self._verify = verify
        self._entries: tuple[dict[str, Any], ...] = tuple(
            {
                "repo": one.repo,
                "revision": one.revision,
                "include": list(one.include),
                "exclude": list(one.exclude),
                "to": one.to,
                "cache": one.cache,
                "endpoint": one.endpoint,
                "token": token,
            }
            for one, token in zip(weights, tokens, strict=True)
        )

    def observe(self) -> tuple[StageFacts, ...]:
        """One `StageFacts` per entry. Raises `CannotLook` when the container cannot be asked."""
        limit = _READ_S if self._verify is Verify.FULL else _LOOK_S
        args = {"weights": list(self._entries), "verify": str(self._verify)}
        answer = self._ct.call("weights.status", args, timeout_s=limit)
        try:
            return tuple(StageFacts.from_json(entry) for entry in answer["weights"])
        except (KeyError, TypeError, ValueError) as error:
            raise CannotLook(f"{self._ct.where}: weights.status answered in an unknown form: {error}") from error

    def describe(self, facts: tuple[StageFacts, ...]) -> tuple[str, ...]:
        return tuple(_described(one) for one in facts)

    def plan(self, facts: tuple[StageFacts, ...]) -> Plan:
        steps = []
        for index, one in enumerate(facts):
            if one.blocked is not None:
                return Plan(blocked=GpuctlError.from_json(dict(one.blocked)))
            if one.state is State.UNREADABLE:
                reason = one.reasons[0] if one.reasons else one.to
                return Plan(blocked=CannotLook(f"{one.repo}: {reason}", hint="run as a user who may read it"))
            if one.state is not State.READY:
                again = one.state in (State.STALE, State.DAMAGED)
                steps.append(
                    StageWeights(index, one.repo, one.commit, one.to, one.size, one.fetch, one.source, again)
                )
        return Plan(steps=tuple(steps))

    def apply(self, step: StageWeights, emit: Emit) -> str:
        """Run one step; raises the job's own error."""
        args = {"weights": [self._entries[step.index]], "verify": str(self._verify)}
        answer = self._ct.call("weights.stage", args, emit=emit, timeout_s=_STAGE_S)
        try:
            done = answer["staged"][0]
            whence = {"hub": "from the Hub", "cache": "from the cache"}.get(done["source"], "already there")
            return (
                f"{done['repo']}@{done['commit'][:7]} in {done['to']}: {done['files']} files, "
                f"{size_text(done['bytes'])}, {whence}, verified by sha256, {done['seconds']:.1f} s"
            )
        except (KeyError, IndexError, TypeError) as error:
            raise Failed(f"{self._ct.where}: weights.stage answered in an unknown form: {error}") from error


def _described(one: StageFacts) -> str:
    name = f"{one.repo}@{one.commit[:7]}" if one.commit else f"{one.repo} ({one.revision})"
    if one.state is State.READY:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.verified_s))
        return f"{name} in {one.to}: ready, {one.files} files, {size_text(one.size)}, verified {when}"
    why = f" ({'; '.join(one.reasons[:3])})" if one.reasons else ""
    notes = "".join(f"; {note}" for note in one.notes)
    return f"{name} in {one.to}: {one.state}{why}{notes}"
