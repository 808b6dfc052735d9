"""Wait until an engine can serve: its own endpoint, its log's growth, its death, a ceiling."""

from __future__ import annotations

import http.client
import re
import subprocess
import time
from pathlib import Path
from typing import Final

from inventory.errors import Failed, Refused
from inventory.launch import Launch
from inventory.machine import Emit
from provision.engine import procs
from provision.engine.diagnose import clean, diagnose, meaningful
from provision.engine.state import EngineState

TAIL_BYTES: Final = 65536
PROGRESS_S: Final = 1.0

_VERSIONS: Final = (
    re.compile(r"serve_llama: (xllamacpp \S+?),"),
    re.compile(r"(?:vLLM API server|LLM Engine).*?version ([0-9][\w.+-]*)"),
    re.compile(r"^build(?:_info)?: (\S+ \([0-9a-f]+\))", re.MULTILINE),
    re.compile(r"sglang(?: version)?[ =:v]+([0-9]+\.[0-9][\w.+-]*)", re.IGNORECASE),
)


def tail(log: Path) -> tuple[str, ...]:
    """The log's last lines (at most 64 KiB); empty when there is no log."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return tuple(file.read().decode("utf-8", "replace").splitlines())
    except OSError:
        return ()


def last_line(log: Path) -> str:
    """The last meaningful line of the log; empty when there is none."""
    lines = meaningful(tail(log)[-20:], last=1)
    return lines[-1] if lines else ""


def version(log: Path) -> str:
    """The engine's version where its log's beginning names it; else empty."""
    try:
        with log.open("rb") as file:
            head = file.read(16384).decode("utf-8", "replace")
    except OSError:
        return ""
    for pattern in _VERSIONS:
        if match := pattern.search(head):
            return match.group(1)
    return ""


def answers(url: str, path: str, *, timeout_s: float) -> bool:
    """Whether GET `path` gives 200 within `timeout_s` seconds."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _gone(known: EngineState, process: subprocess.Popen[bytes] | None) -> str:
    """How the process ended, in words; empty while it lives."""
    if process is not None:
        code = process.poll()
        if code is None:
            return ""
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    return "" if known.alive() else "ended"


def failure(known: EngineState, how: str, log: Path) -> Failed:
    """The error of a failed start: what happened, our diagnosis, the last meaningful lines."""
    lines = tail(log)
    sign = diagnose(lines)
    message = f"{known.kind} (method {known.method}, port {known.port}) {how}"
    if sign is not None:
        message += f": {sign.meaning}"
    return Failed(
        message,
        hint=sign.hint if sign else f"read the whole log: {log} (`gpuctl engine logs`)",
        detail=meaningful(lines),
    )


def until_ready(
    known: EngineState, launch: Launch, process: subprocess.Popen[bytes] | None, log: Path, emit: Emit
) -> None:
    """Return once the ready endpoint answers 200 from this engine's own process.

    Raises `Failed` when it dies, when its log has not grown for `stall_timeout_s`, or after `ready_timeout_s`;
    `Refused` when another process answers on its port.
    """
    begun = grown = time.monotonic()
    size, told, pause = -1, 0.0, 0.05
    while True:
        if how := _gone(known, process):
            raise failure(known, f"{how} before it was ready", log)
        if answers(launch.url, launch.ready_path, timeout_s=10.0):
            _own(known)
            return
        now = time.monotonic()
        if (current := _size(log)) != size:
            size, grown = current, now
        if now - begun > launch.ready_timeout_s:
            raise failure(known, f"was not ready after {launch.ready_timeout_s:.0f} s", log)
        if now - grown > launch.stall_timeout_s:
            raise failure(known, f"was not ready and its log has stood still for {now - grown:.0f} s", log)
        if now - told >= PROGRESS_S:
            emit(
                {
                    "type": "progress",
                    "what": "engine",
                    "line": clean(last_line(log)),
                    "seconds": round(now - begun, 1),
                }
            )
            told = now
        time.sleep(pause)
        pause = min(0.5, pause * 1.3)


def _own(known: EngineState) -> None:
    """Make sure that it was our engine that answered."""
    pid = procs.holder(known.port)
    if pid is not None and not procs.belongs(pid, known.pid):
        raise Refused(
            f"port {known.port} is answered by {procs.who(known.port)}, not by the engine just started",
            hint="stop that process, or choose another engine.port in the inventory",
        )
