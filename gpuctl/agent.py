"""The other side of the wire: run one named job, stdin JSON in, JSON lines out.

The zip application starts here, on a Proxmox host or in a container. The same registry serves jobs that
run in the admin's own process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from inventory.errors import Failed, GpuctlError, UsageError
from inventory.machine import Emit, Event

Job = Callable[[Mapping[str, Any], Emit], Any]

JOBS: Final[dict[str, str]] = {
    "agent.hello": "gpuctl.hello:hello",
    "host.facts": "provision.devices.observe.host_job:facts",
    "host.prepare": "provision.devices.change.change_job:prepare",
    "host.edit_conf": "provision.devices.change.change_job:edit_conf",
    "host.undo_conf": "provision.devices.change.change_job:undo_conf",
    "host.pct_set": "provision.devices.change.change_job:pct_set",
    "host.live_rules": "provision.devices.change.change_job:live_rules",
    "host.boot_unit": "provision.devices.change.change_job:boot_unit",
    "ct.device_facts": "provision.devices.observe.ct_job:facts",
    "weights.stage": "provision.weights.job:stage",
    "weights.status": "provision.weights.job:status",
    "checks.preflight": "checks.job:preflight",
    "engine.status": "provision.engine.job:status",
    "engine.start": "provision.engine.job:start",
    "engine.stop": "provision.engine.job:stop",
    "engine.logs": "provision.engine.job:logs",
    "bench.run": "bench.job:run",
    "bench.results": "bench.job:results",
    "bench.set_aside": "bench.job:set_aside",
}
"""Job name -> `module:function`; imported only when the job runs."""


def find(name: str) -> Job:
    """The function behind a job name; an unknown name is a `UsageError` that lists the known ones."""
    target = JOBS.get(name)
    if target is None:
        raise UsageError(f"no job is called {name!r}", hint=f"known jobs: {', '.join(sorted(JOBS))}")
    module, _, function = target.partition(":")
    job: Job = getattr(importlib.import_module(module), function)
    return job


def fault(name: str, error: Exception) -> Failed:
    """An error of our own making, told with its place and without a traceback."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        place = f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
        trace = trace.tb_next
    return Failed(
        f"{name} broke: {type(error).__name__}: {error} (at {place})",
        hint="this is a fault in gpuctl; please report it with this line (GPUCTL_DEBUG=1 shows more)",
    )


def run_job(name: str, args: Mapping[str, Any], emit: Emit) -> Any:
    """Run a job in this process; every exception comes out as a `GpuctlError`."""
    try:
        return find(name)(args, emit)
    except GpuctlError:
        raise
    except Exception as error:
        raise fault(f"job {name}", error) from error


def settle() -> None:
    """Unpack the zip application into a folder beside it, once, and import from there: a zip costs 60 ms a start.

    The libraries of the Hub stay in a zip of their own, searched last: few jobs need them.
    """
    application = Path(sys.path[0])
    home = application.with_suffix("")
    if not home.is_dir():
        _unpack(application, home)
    sys.path[0] = str(home)
    sys.path.append(str(home / "libraries.zip"))


def _unpack(application: Path, home: Path) -> None:
    import shutil
    import zipfile

    staging = home.with_name(f"{home.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(application) as archive:
            archive.extractall(staging)
        for compiled in tuple(staging.rglob("*.pyc")):
            # Outside a zip Python looks for it there; one of another version is made anew.
            cached = Path(importlib.util.cache_from_source(str(compiled.with_suffix(".py"))))
            cached.parent.mkdir(exist_ok=True)
            compiled.rename(cached)
        staging.rename(home)
    except OSError as error:
        if not home.is_dir():
            raise Failed(f"{home} cannot be unpacked: {error.strerror or error}") from None
    finally:
        # Left only when another start was faster, or when it failed.
        shutil.rmtree(staging, ignore_errors=True)


def main() -> int:
    """Entry of the zip application: jobs from stdin, one a line, their answers on stdout; ends with the input.

    The exit status is the last job's.
    """
    wire = os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints must not land between our JSON lines.
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(event: Event) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        with lock:
            wire.write(line)

    code = 0
    try:
        settle()
    except GpuctlError as error:
        send({"type": "error", **error.to_json()})
        return int(error.exit_code)
    try:
        for request in sys.stdin.buffer:
            code = _serve(request, send)
    except BrokenPipeError:
        # Nobody listens any more.
        return 1
    return code


def _serve(request: bytes, send: Emit) -> int:
    send({"type": "began"})
    try:
        job = json.loads(request)
        name, args = str(job["job"]), dict(job.get("args") or {})
    except (ValueError, KeyError, TypeError) as error:
        send({"type": "error", **UsageError(f"the job on stdin is not valid: {error}").to_json()})
        return int(UsageError.exit_code)
    try:
        send({"type": "result", "value": run_job(name, args, send)})
    except GpuctlError as error:
        send({"type": "error", **error.to_json()})
        return int(error.exit_code)
    return 0
