"""The benchmark jobs that run beside the engine: run, results, set_aside."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import store, summary
from bench.client import Address
from bench.count import LOUD
from bench.engines.registry import ADAPTERS
from bench.probe import Look, look, prove
from bench.result import Result, Shape
from bench.run import TEMPERATURE, Driver, Load
from inventory.errors import CannotLook, Failed, UsageError
from inventory.machine import Emit
from inventory.model import EngineKind, Task
from inventory.root import at


def _boot_id(args: Mapping[str, Any]) -> str:
    given = str(args.get("boot_id") or "")
    if given:
        return given
    path = Path(at("/proc/sys/kernel/random/boot_id"))
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CannotLook(f"the boot id in {path} cannot be read: {error.strerror}") from error


def _cpu() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0))
    # A fixture tree has no cpuinfo of its own; the processor is this machine's in any case.
    for path in (at("/proc/cpuinfo"), "/proc/cpuinfo"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
        if names:
            return {"model": names[0], "cores": cores}
    return {"model": platform.machine(), "cores": cores}


def _versions() -> dict[str, str]:
    try:
        ours = importlib.metadata.version("gpuctl")
    except importlib.metadata.PackageNotFoundError:
        ours = "unknown"
    return {"gpuctl": ours, "python": platform.python_version()}


def _load(args: Mapping[str, Any], address: Address, model: str) -> Load:
    lengths = tuple(int(number) for number in args.get("max_tokens") or (256,))
    try:
        tasks = tuple(Task(name) for name in args.get("tasks") or [task.value for task in Task])
    except ValueError as error:
        raise UsageError(f"{error}", hint=f"known tasks: {', '.join(Task)}") from error
    return Load(
        address=address,
        model=model,
        tasks=tasks,
        max_tokens=lengths,
        repeats=max(1, int(args.get("repeats", 3))),
        think=args.get("think"),
        nonce=str(args.get("nonce") or secrets.token_hex(4)),
        # Slow enough for a big model on a CPU; a request that takes longer is a fault.
        request_timeout_s=float(args.get("request_timeout_s") or 60.0 + 2.0 * max(lengths)),
    )


def _served(args: Mapping[str, Any], first: Look) -> str:
    """The name for requests: as told, else the model itself when the server lists it, else the first listed."""
    if wanted := str(args.get("served") or ""):
        return wanted
    model = str(args.get("model") or "")
    if model in first.models or not first.models:
        return model
    return first.models[0]


def run(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Measure the server at `args["url"]` and store the result; -> `bench.result.Result` as JSON.

    `args`: url; model (as launched); served (name for requests, optional); kind; method; tp; tasks; max_tokens
    [..]; repeats; think (bool or None); results (folder; empty: not stored); lab; boot_id; nonce and
    request_timeout_s (optional); context: anything to keep with the result, of which `gpus` (list) and
    `engine_version` are used. Raises `Failed` when no run succeeded, `UsageError` for an unknown task or url.
    """
    try:
        address = Address.of(str(args["url"]))
    except ValueError as error:
        raise UsageError(str(error), hint="give an address like http://127.0.0.1:8000") from error
    adapter = ADAPTERS[EngineKind(args.get("kind") or EngineKind.CUSTOM)]
    context = {str(key): value for key, value in (args.get("context") or {}).items()}
    method, boot = str(args.get("method") or "auto"), _boot_id(args)
    started, began = datetime.now(UTC), time.monotonic()
    before = look(address, adapter)
    driver = Driver(_load(args, address, _served(args, before)), emit)
    shapes = driver.measure()
    after = look(address, adapter)
    gpus = tuple(dict(gpu) for gpu in context.pop("gpus", ()) or ())
    version = after.readback.version or str(context.pop("engine_version", ""))
    tp = int(args.get("tp") or 1)
    result = Result(
        run_id=run_id(started, boot, method, tp),
        started_at=started.isoformat(timespec="milliseconds"),
        duration_s=round(time.monotonic() - began, 3),
        boot_id=boot,
        lab=bool(args.get("lab")),
        kind=adapter.KIND.value,
        engine_version=version,
        url=str(args["url"]),
        model=str(args.get("model") or after.readback.model or driver.load.model),
        served=driver.load.model,
        method=method,
        tp=tp,
        think=driver.load.think,
        temperature=TEMPERATURE,
        concurrency=1,
        repeats=driver.load.repeats,
        nonce=driver.load.nonce,
        dropped=tuple(driver.dialect.dropped),
        proof=prove(method, before, after),
        shapes=shapes,
        cpu=_cpu(),
        gpus=gpus,
        versions=_versions(),
        context=context,
        warnings=(*driver.warnings, *_doubts(shapes, method)),
    )
    if not result.good:
        errors = tuple(dict.fromkeys(one.why or str(one.sample.status) for one in result.runs))
        raise Failed("no benchmark request succeeded", hint="see `gpuctl engine logs`", detail=errors[:8])
    if folder := str(args.get("results") or ""):
        store.save(Path(at(folder)), result)
    return {**result.to_json(), "summary": summary.brief(result), "table": list(summary.table(result))}


def _doubts(shapes: tuple[Shape, ...], method: str) -> tuple[str, ...]:
    """What the samples themselves warn of, each once, with the task it came from."""
    # A small model repeats itself; it makes a rate doubtful only where drafts profit from it.
    loud = LOUD if method == "auto" else (*LOUD, "degenerate")
    found = []
    for shape in shapes:
        for one in shape.runs:
            found += [f"{shape.task}: {text}" for text in one.sample.warnings]
            found += [f"{shape.task}: {flag}" for flag in one.sample.flags if flag in loud]
    return tuple(dict.fromkeys(found))


def run_id(started: datetime, boot_id: str, method: str, tp: int) -> str:
    """Time to the millisecond, boot, method: `20261130T194903.042Z-1a2b3c4d-auto`, and `-tpN` for several GPUs."""
    boot = "".join(letter for letter in boot_id if letter.isalnum())[:8] or "unknown"
    moment = f"{started:%Y%m%dT%H%M%S}.{started.microsecond // 1000:03d}Z"
    return f"{moment}-{boot}-{method}" + (f"-tp{tp}" if tp > 1 else "")


def results(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """What the results folder holds. `args`: {"results", "boot_id"} or {"results", "run": RUN_ID}.

    -> {"current": [summary.brief ...], "strangers": [{path, boot, why}]}, or {"result": JSON, "table": [...]}.
    """
    del emit
    folder = Path(at(str(args["results"])))
    if wanted := str(args.get("run") or ""):
        result = store.show(folder, wanted)
        return {"result": result.to_json(), "summary": summary.brief(result), "table": list(summary.table(result))}
    current, strangers = store.scan(folder, _boot_id(args))
    return {
        "current": [summary.brief(result) for result in current],
        "strangers": [stranger.to_json() for stranger in strangers],
    }


def set_aside(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Move what is not of this boot to `earlier-boots/`. -> {"moved": [{"from", "to"}]}."""
    del emit
    moved = store.set_aside(Path(at(str(args["results"]))), _boot_id(args))
    return {"moved": [{"from": source, "to": target} for source, target in moved]}
