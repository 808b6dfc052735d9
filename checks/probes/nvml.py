"""Probe: NVML through nvidia-ml-py. It only reads; nothing is ever set, reset or cleared.

nvidia-ml-py's traps handled here: errors are unhashable and compare oddly (use `.value`), a missing symbol of the
process lists raises something that is not an NVMLError, strings may be bytes, every field value has its own return
code, and `used` of the old memory call includes what the driver keeps for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from checks.probes.writer import Writer, run

RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, the state of the card after an Xid; readable inside a container."""

Read = Callable[[Any, Any], Any]


def main(argv: list[str]) -> int:
    return run(body, argv)


def body(out: Writer, words: tuple[str, ...]) -> None:
    skipped = {int(word[5:]) for word in words if word.startswith("skip=")}
    import pynvml

    out.calling("nvmlInit")
    try:
        pynvml.nvmlInit()
    except Exception as problem:
        out.result("init", rc=_code(pynvml, problem), text=_words(problem))
        return
    out.result("init")
    _ask(out, pynvml, "driver", None, pynvml.nvmlSystemGetDriverVersion)
    _ask(out, pynvml, "cuda_version", None, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    count = _ask(out, pynvml, "count", None, pynvml.nvmlDeviceGetCount)
    for gpu in range(count or 0):
        if gpu not in skipped:
            _card(out, pynvml, gpu)
    out.calling("nvmlShutdown")
    pynvml.nvmlShutdown()


def _card(out: Writer, n: Any, gpu: int) -> None:
    handle = _ask(out, n, "handle", gpu, partial(n.nvmlDeviceGetHandleByIndex, gpu), keep=False)
    if handle is None:
        return
    for key, read in READS:
        value = _ask(out, n, key, gpu, partial(read, n, handle))
        if key == "power" and value is None:
            # A transient error of the power reading is common; it is only believed when it stays.
            for _ in range(2):
                time.sleep(0.2)
                if _ask(out, n, key, gpu, partial(read, n, handle)) is not None:
                    break


def _ask(out: Writer, n: Any, key: str, gpu: int | None, read: Callable[[], Any], *, keep: bool = True) -> Any:
    """Call, write down the answer or the return code, and give the value (None on any error)."""
    out.calling(f"nvml {key}", gpu)
    try:
        value = _plain(read())
    except Exception as problem:
        out.result(key, gpu, rc=_code(n, problem), text=_words(problem))
        return None
    out.result(key, gpu, value=value if keep else None)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, tuple):
        return list(value)
    return value


def _code(n: Any, problem: Exception) -> int:
    """The NVML return code of an exception; 13 (function not found) for what an older driver does not have."""
    if isinstance(problem, n.NVMLError):
        code = getattr(problem, "value", None)
        return int(code) if isinstance(code, int) and code else -1
    mismatch = getattr(n, "NVMLLibraryMismatchError", AttributeError)
    return 13 if isinstance(problem, (mismatch, AttributeError)) else -1


def _words(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


def _memory(n: Any, handle: Any) -> dict[str, int | None]:
    """{total, used, reserved} in bytes; reserved is None where only the old call exists (used then includes it)."""
    try:
        v2 = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
        return {"total": v2.total, "used": v2.used, "reserved": v2.reserved}
    except (n.NVMLError, AttributeError):
        v1 = n.nvmlDeviceGetMemoryInfo(handle)
        return {"total": v1.total, "used": v1.used, "reserved": None}


def _bus_id(n: Any, handle: Any) -> str:
    return str(_plain(n.nvmlDeviceGetPciInfo(handle).busId))


def _processes(n: Any, handle: Any) -> list[dict[str, Any]]:
    """[{pid, memory}]: pids of the host, which mean nothing inside a container."""
    running = n.nvmlDeviceGetComputeRunningProcesses(handle)
    return [{"pid": process.pid, "memory": process.usedGpuMemory} for process in running]


def _recovery(n: Any, handle: Any) -> int:
    entry = n.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
    if entry.nvmlReturn:
        raise n.NVMLError(entry.nvmlReturn)
    return int(entry.value.uiVal)


def _thresholds(n: Any, handle: Any) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for name, which in (("shutdown", 0), ("slowdown", 1), ("gpu_max", 3)):
        try:
            limits[name] = n.nvmlDeviceGetTemperatureThreshold(handle, which)
        except n.NVMLError:
            limits[name] = None
    return limits


def _ecc_counts(n: Any, handle: Any) -> dict[str, int]:
    """Errors since the driver was loaded (volatile) and uncorrected ones of the card's life (total)."""
    return {
        "uncorrected": n.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        "corrected": n.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
        "uncorrected_total": n.nvmlDeviceGetTotalEccErrors(handle, 1, 1),
    }


READS: Final[tuple[tuple[str, Read], ...]] = (
    ("uuid", lambda n, h: n.nvmlDeviceGetUUID(h)),
    ("name", lambda n, h: n.nvmlDeviceGetName(h)),
    ("minor", lambda n, h: n.nvmlDeviceGetMinorNumber(h)),
    ("bus_id", _bus_id),
    ("recovery", _recovery),
    ("memory", _memory),
    ("processes", _processes),
    ("temperature", lambda n, h: n.nvmlDeviceGetTemperature(h, 0)),
    ("thresholds", _thresholds),
    ("reasons", lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h)),
    ("power", lambda n, h: n.nvmlDeviceGetPowerUsage(h)),
    ("power_limit", lambda n, h: n.nvmlDeviceGetPowerManagementLimit(h)),
    ("power_default", lambda n, h: n.nvmlDeviceGetPowerManagementDefaultLimit(h)),
    ("pcie_width", lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h)),
    ("pcie_width_max", lambda n, h: n.nvmlDeviceGetMaxPcieLinkWidth(h)),
    ("persistence", lambda n, h: n.nvmlDeviceGetPersistenceMode(h)),
    ("compute_mode", lambda n, h: n.nvmlDeviceGetComputeMode(h)),
    ("ecc_mode", lambda n, h: n.nvmlDeviceGetEccMode(h)),
    ("ecc", _ecc_counts),
    ("remap", lambda n, h: n.nvmlDeviceGetRemappedRows(h)),
    ("mig", lambda n, h: n.nvmlDeviceGetMigMode(h)),
)
