"""The engine jobs that run in the container: status, start, stop, logs. No init system is needed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inventory.errors import Failed, Refused
from inventory.launch import Launch
from inventory.machine import Emit
from inventory.root import at
from provision.engine import procs, spawn, state, wait
from provision.engine.state import EngineState


def _launch(args: Mapping[str, Any]) -> Launch | None:
    data = args.get("launch")
    return Launch.from_json(data) if data else None


def missing(launch: Launch) -> tuple[str, ...]:
    """Paths the engine needs that do not exist in this container."""
    return tuple(path for path in launch.paths if not Path(at(path)).exists())


def status(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """What the engine does. `args`: {"launch": Launch JSON or absent}.

    -> {"state": "stopped"|"starting"|"ready"|"unresponsive", "pid", "up_s", "key", "url", "kind", "method",
    "tp", "model", "served", "model_changed": bool, "version", "stranger": text or "" (who else holds the wanted
    port), "missing": [paths], "log": last line}. Values of a stopped engine are 0 or "".
    """
    del emit
    launch = _launch(args)
    known = state.read()
    result: dict[str, Any] = {
        "state": "stopped", "pid": 0, "up_s": 0.0, "key": "", "url": "", "kind": "", "method": "", "tp": 0,
        "model": "", "served": "", "model_changed": False, "version": "", "stranger": "", "log": "",
        "missing": list(missing(launch)) if launch else [],
    }  # fmt: skip
    living = known is not None and known.alive()
    if known is not None and living:
        result.update(
            state=_phase(known), pid=known.pid, up_s=procs.up_s(known.start_ticks), key=known.key, url=known.url,
            kind=known.kind, method=known.method, tp=known.tp, model=known.model, served=known.served,
            model_changed=state.model_id(known.model) != known.model_id,
            version=wait.version(state.log_path()), log=wait.last_line(state.log_path()),
        )  # fmt: skip
    if launch is not None and not procs.port_free(launch.port):
        pid = procs.holder(launch.port)
        ours = known is not None and living and (
            procs.belongs(pid, known.pid) if pid is not None else known.port == launch.port
        )  # fmt: skip
        result["stranger"] = "" if ours else procs.who(launch.port)
    return result


def _phase(known: EngineState) -> str:
    if wait.answers(known.url, known.ready_path, timeout_s=5.0):
        return "ready"
    return "unresponsive" if known.ready else "starting"


def start(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Bring the engine of `args["launch"]` up and wait until it can serve.

    An engine with the same key that is already starting is waited for; one with another key, with a replaced
    model, or with `args["restart"]` true is stopped first. -> {"pid", "url", "started": bool, "waited_s"}.
    Raises `Refused` when a needed path is absent or a stranger holds the port, `Failed` with the last
    meaningful lines when it dies, stalls or is not ready in time; then no process of it is left.
    """
    launch = Launch.from_json(args["launch"])
    with state.lock(emit):
        known = state.read()
        begun = time.monotonic()
        started = False
        process: subprocess.Popen[bytes] | None = None
        if known is not None and (bool(args.get("restart")) or not _same(known, launch)):
            _end(known)
            known = None
        if known is None:
            _refuse(launch)
            known, process = _spawn(launch)
            started = True
        try:
            wait.until_ready(known, launch, process, state.log_path(), emit)
        except BaseException:
            # Also on Ctrl-C and a closed connection: a failed start leaves no process behind.
            _end(known)
            raise
        state.write(replace(known, ready=True))
        return {
            "pid": known.pid,
            "url": known.url,
            "started": started,
            "waited_s": round(time.monotonic() - begun, 3),
        }


def _same(known: EngineState, launch: Launch) -> bool:
    return known.alive() and known.key == launch.key and known.model_id == state.model_id(launch.model)


def _refuse(launch: Launch) -> None:
    if absent := missing(launch):
        raise Refused(
            f"the engine cannot start: {absent[0]} is absent",
            hint="stage the weights first (`gpuctl stage`), or correct engine.model or engine.draft",
        )
    if not procs.port_free(launch.port):
        raise Refused(
            f"port {launch.port} is in use by {procs.who(launch.port)}, which gpuctl did not start",
            hint="stop that process, or choose another engine.port in the inventory",
        )


def _spawn(launch: Launch) -> tuple[EngineState, subprocess.Popen[bytes]]:
    made: list[EngineState] = []
    boot, model = state.boot_id(), state.model_id(launch.model)

    def record(process: subprocess.Popen[bytes], start_ticks: int) -> None:
        made.append(
            EngineState(
                pid=process.pid, start_ticks=start_ticks, boot_id=boot, key=launch.key, url=launch.url,
                ready_path=launch.ready_path, kind=launch.kind, method=launch.method, tp=launch.tp,
                model=launch.model, served=launch.served, model_id=model, argv=launch.argv,
            )
        )  # fmt: skip
        state.write(made[0])

    process = spawn.start(launch, state.log_path(), record)
    return made[0], process


def _end(known: EngineState) -> bool:
    forced = known.boot_id == state.boot_id() and spawn.end(known.pid, known.start_ticks)
    state.forget()
    return forced


def stop(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Stop the engine we started: SIGTERM, then SIGKILL; its port is free afterwards.

    -> {"stopped": bool, "pid", "forced": bool}. Raises `Failed` when the port stays taken, saying by whom.
    """
    del args
    with state.lock(emit):
        known = state.read()
        if known is None or known.boot_id != state.boot_id():
            state.forget()
            return {"stopped": False, "pid": 0, "forced": False}
        living = known.alive()
        forced = _end(known)
        deadline = time.monotonic() + 10.0
        while living and not procs.port_free(known.port):
            if time.monotonic() > deadline:
                raise Failed(
                    f"the engine (pid {known.pid}) is gone but port {known.port} is still held by "
                    f"{procs.who(known.port)}",
                    hint="stop that process",
                )
            time.sleep(0.1)
        return {"stopped": living, "pid": known.pid if living else 0, "forced": forced}


def logs(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """The engine's last log lines. `args`: {"lines": N, default 100}. -> {"path", "lines": [...]}."""
    del emit
    wanted = max(1, int(args.get("lines", 100)))
    return {"path": str(state.log_path()), "lines": list(wait.tail(state.log_path())[-wanted:])}
