"""Start a detached engine process such that it is never alive without being known, and end it for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from inventory import reentry
from inventory.errors import Failed
from inventory.launch import HOME, Launch
from inventory.root import at
from provision.engine import procs

# The child waits at this gate until its pid is written down. When we are killed before that, it reads
# end of file and leaves; so there is no moment with an engine that the next run does not know.
_GATE: Final = (
    "import os, sys\n"
    "if os.read(0, 1) != b'g': os._exit(75)\n"
    "os.dup2(os.open('/dev/null', os.O_RDONLY), 0)\n"
    "try: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "except OSError as error:\n"
    "    sys.stderr.write(f'engine program not found or not executable: {sys.argv[1]}: {error.strerror}\\n')\n"
    "    os._exit(127)\n"
)


MARK: Final = "GPUCTL_ENGINE_KEY"
"""Environment variable by which processes of an engine are known after their leader has died."""

Record = Callable[[subprocess.Popen[bytes], int], None]


def real_argv(launch: Launch) -> tuple[str, ...]:
    """`launch.argv` as it is executed here: our home filled in, paths through `at`."""
    program = launch.argv[0]
    moved = at(program)
    # A program of the system (not of the container's tree) is only found at its plain path.
    words = [moved if Path(moved).exists() else program]
    for word in launch.argv[1:]:
        if word == HOME:
            word = reentry.home()
        elif word in launch.paths:
            word = at(word)
        words.append(word)
    return tuple(words)


def environment(launch: Launch) -> Mapping[str, str]:
    """This process's environment and the launch's own on top."""
    return {**os.environ, **launch.env, MARK: launch.key}


def start(launch: Launch, log: Path, record: Record) -> subprocess.Popen[bytes]:
    """Start in an own session, output in `log`; `record(process, start_ticks)` runs before the exec.

    Whatever `record` raises ends the child and goes on upward.
    """
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GATE, *real_argv(launch)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=environment(launch),
            cwd=log.parent,
        )
    finally:
        os.close(out)
    assert process.stdin is not None
    try:
        found = procs.stat(process.pid)
        if found is None:
            raise Failed(
                "the engine's process was gone before it began", hint="look for a memory or process limit"
            )
        record(process, found.start_ticks)
        process.stdin.write(b"g")
        process.stdin.flush()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        try:
            process.stdin.close()
        except OSError:
            pass
    return process


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except (ProcessLookupError, PermissionError):
        pass


def end(pid: int, start_ticks: int, *, grace_s: float = 15.0, kill_s: float = 10.0) -> bool:
    """SIGTERM to the leader, wait, SIGKILL to what is left of its session; True when it needed SIGKILL.

    The leader must be the very process (pid and start time), or be gone while members of its session live:
    the kernel does not give a pid away while a session carries it. Raises `Failed` when members survive.
    """
    leader = procs.stat(pid)
    if leader is not None and leader.start_ticks != start_ticks:
        return False
    if leader is None and not any(procs.has_environment(one.pid, MARK) for one in procs.session(pid)):
        return False
    if procs.alive(pid, start_ticks):
        _signal(lambda: os.kill(pid, signal.SIGTERM))
        _until(lambda: not procs.alive(pid, start_ticks), grace_s)
        # Workers notice their parent's death by themselves, or not at all.
        _until(lambda: not procs.session(pid), min(grace_s, 2.0))
    forced = False
    deadline = time.monotonic() + kill_s
    while members := procs.session(pid):
        forced = True
        for member in members:
            _signal(lambda member=member: os.kill(member.pid, signal.SIGKILL))  # type: ignore[misc]
        _reap(pid)
        if time.monotonic() > deadline:
            raise Failed(
                f"engine process {members[0].pid} does not end even by SIGKILL (state {members[0].state})",
                hint="a process in state D waits for the driver; look at the host's kernel log",
            )
        time.sleep(0.05)
    _reap(pid)
    return forced


def _reap(pid: int) -> None:
    # Only when it is our own child; otherwise init does it.
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
