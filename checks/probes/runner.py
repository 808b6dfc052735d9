"""Runs probes side by side within budgets; one that never returns is abandoned, not waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from checks.probes.lines import Ending, Reading, Reads, parse
from inventory import reentry

TICK_S: Final = 0.004
GRACE_S: Final = 0.5
"""How long a probe may take to die after each signal; a process in state D dies of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe to run: its module, its words, and how long each kind of call may take."""

    name: str
    module: str
    words: tuple[str, ...] = ()
    stall_s: float = 5.0
    """Longest time between two lines of output."""
    calls_s: Mapping[str, float] = field(default_factory=dict)
    """Longer limits for named calls."""
    total_s: float = 60.0
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Environment changes; None removes a variable."""
    skips_gpus: bool = False
    """Whether the probe knows the word `skip=N`, so that it can go on without a GPU that hung."""


class _Running:
    """A started probe and its output file."""

    def __init__(self, probe: Probe, folder: Path, skip: tuple[int, ...]) -> None:
        self.probe = probe
        self.skip = skip
        self.path = folder / f"{probe.name}-{len(skip)}.jsonl"
        self.path.touch(mode=0o600)
        self.errors = self.path.with_suffix(".err")
        words = (*probe.words, *(f"skip={gpu}" for gpu in skip))
        with self.errors.open("wb") as errors:
            # A file, not a pipe: nobody may have to wait for an end of file that never comes. Own session:
            # signals reach helpers of the probe too, and a Ctrl-C for us does not cut it in mid-call.
            self.process = subprocess.Popen(
                reentry.command(probe.module, str(self.path), *words),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=_environment(probe.env),
                start_new_session=True,
            )
        self.started = self.moved = time.monotonic()
        self.size = 0

    def poll(self, now: float) -> Ending | None:
        """None while it works within its budget; else how it ended."""
        size = self.path.stat().st_size
        rc = self.process.poll()
        if rc is not None:
            return self._ended(rc, now)
        if size != self.size:
            self.size, self.moved = size, now
            return None
        quiet = now - self.moved
        if quiet < self.probe.stall_s and now - self.started < self.probe.total_s:
            return None
        _, (call, gpu), _ = parse(self.path.read_bytes())
        limit = self.probe.calls_s.get(call, self.probe.stall_s)
        if quiet < limit and now - self.started < self.probe.total_s:
            return None
        return Ending("hung", call, gpu, round(quiet, 1), pid=_abandon(self.process))

    def _ended(self, rc: int, now: float) -> Ending:
        _, (call, gpu), finished = parse(self.path.read_bytes())
        if finished and rc == 0:
            return Ending("done", seconds=round(now - self.started, 3))
        words = self.errors.read_bytes()[-2000:].decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"signal {-rc}" if rc < 0 else f"exit status {rc}"
        return Ending("crashed", call, gpu, round(now - self.started, 3), ": ".join((how, *words)))


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    env = dict(os.environ)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def _abandon(process: subprocess.Popen[bytes]) -> int:
    """End the probe's session, politely first; its pid when it does not die (state D), else 0.

    `Popen.wait` without a limit would hang with it, so the process is left behind.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return 0
    process.returncode = -signal.SIGKILL  # keeps Popen's finaliser from warning about a child we gave up
    return process.pid


def _next(running: _Running, ending: Ending, folder: Path, until: float) -> _Running | None:
    """The same probe again without the GPU it hung or crashed on, when that makes sense."""
    again = running.probe.skips_gpus and ending.how != "done" and ending.gpu is not None and not ending.pid
    if not again or ending.gpu in running.skip or time.monotonic() >= until:
        return None
    return _Running(running.probe, folder, (*running.skip, int(ending.gpu or 0)))


def _tick(
    active: list[_Running],
    readings: dict[str, dict[tuple[str, int | None], Reading]],
    endings: dict[str, list[Ending]],
    folder: Path,
    until: float,
) -> None:
    """Look once at every running probe; move what ended from `active` into the results."""
    now = time.monotonic()
    for running in tuple(active):
        ending = running.poll(now)
        if ending is None and now >= until:
            _, (call, gpu), _ = parse(running.path.read_bytes())
            ending = Ending("hung", call, gpu, round(now - running.moved, 1), pid=_abandon(running.process))
        if ending is None:
            continue
        active.remove(running)
        # A second pass fills gaps; what the first one learnt before the hang is kept.
        readings[running.probe.name].update(parse(running.path.read_bytes())[0])
        endings[running.probe.name].append(ending)
        following = _next(running, ending, folder, until)
        if following is not None:
            active.append(following)
    if active:
        time.sleep(TICK_S)


def run(probes: tuple[Probe, ...], *, total_s: float = 120.0) -> dict[str, Reads]:
    """Run all at once and return what each learnt, by name; never later than about `total_s` + 1 s."""
    until = time.monotonic() + total_s
    readings: dict[str, dict[tuple[str, int | None], Reading]] = {probe.name: {} for probe in probes}
    endings: dict[str, list[Ending]] = {probe.name: [] for probe in probes}
    with tempfile.TemporaryDirectory(prefix="gpuctl-preflight-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        active: list[_Running] = []
        try:
            active.extend(_Running(probe, folder, ()) for probe in probes)
            while active:
                _tick(active, readings, endings, folder, until)
        finally:
            # Interrupted: no probe may outlive us.
            for running in active:
                _abandon(running.process)
    return {name: Reads(readings[name], tuple(endings[name])) for name in readings}
