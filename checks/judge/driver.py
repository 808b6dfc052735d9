"""drv.*, nvml.*, cuda.init: is the driver there, do both of its libraries start, are they one version."""

from __future__ import annotations

from typing import Final

from checks.facts import Facts, ended
from checks.probes.lines import Reading
from checks.report import Finding, Status

NVML_CODES: Final = {
    4: ("no permission", "check the mode and owner of /dev/nvidiactl and /dev/nvidia*"),
    8: ("a GPU misses its external power cable", "check the power cables"),
    9: (
        "the kernel driver is not loaded or /dev/nvidiactl cannot be reached",
        "load the NVIDIA driver on the host",
    ),
    12: (
        "libnvidia-ml.so.1 is not installed here",
        "install the driver's user space here: the host's version, with --no-kernel-module",
    ),
    13: ("the library lacks a function", "install the driver's user space of the host's version"),
    15: ("a GPU is lost", "power cycle the machine; reseat the card if it repeats"),
    16: ("a GPU needs a reset", "reset it on the host: nvidia-smi --gpu-reset -i N"),
    18: ("the library and the kernel module have different versions", ""),
    999: (
        "unknown error: device access lost, or a GPU in reset",
        "look at dev.nodes first, then at the host's kernel log",
    ),
}

CUDA_CODES: Final = {
    -1: (
        "libcuda.so.1 is not installed here",
        "install the driver's user space here: the host's version, with --no-kernel-module",
    ),
    2: ("not enough memory", "see whether another process fills the GPU or the container's memory limit"),
    3: ("not initialised", "the nvidia-caps nodes may be missing"),
    34: ("the library is the toolkit's stub", "take the toolkit's stubs folder out of LD_LIBRARY_PATH"),
    46: ("a device is unavailable: exclusive mode, or it needs a reset", "check compute_mode and gpu.recovery"),
    100: ("no CUDA device", "look at dev.nodes, dev.uvm_module and CUDA_VISIBLE_DEVICES"),
    802: (
        "the system is not ready: the fabric manager does not run or has another version",
        "on the host: systemctl status nvidia-fabricmanager",
    ),
    803: ("libcuda and the kernel module have different versions", ""),
    804: (
        "cuda-compat does not support this card",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the driver",
    ),
    999: (
        "unknown error, nearly always nvidia-uvm missing, denied or with a wrong major",
        "look at dev.nodes, dev.major and dev.uvm_module",
    ),
}


def module(facts: Facts) -> tuple[Finding, ...]:
    """drv.module: whether the kernel has the NVIDIA driver."""
    version, majors = facts.kernel_driver(), facts.majors()
    if version or (majors is not None and "nvidia" in majors):
        return (
            Finding(
                id="drv.module",
                status=Status.OK,
                summary=f"NVIDIA kernel driver {version or 'of unknown version'} is loaded",
                value=version or None,
            ),
        )
    reading = facts.devices.get("driver_version")
    if reading is None or (not reading.ok and reading.text not in ("ENOENT", "ENOTDIR")):
        return (
            Finding(id="drv.module", status=Status.UNKNOWN, summary="/proc/driver/nvidia/version cannot be read"),
        )
    status = {None: Status.UNKNOWN, 0: Status.INFO}.get(facts.expect.gpus, Status.CRITICAL)
    return (
        Finding(
            id="drv.module",
            status=status,
            summary="no NVIDIA driver on this machine: /proc/driver/nvidia is absent",
            expected=f"{facts.expect.gpus} GPUs" if facts.expect.gpus else None,
            remedy=""
            if status is Status.INFO
            else "load the NVIDIA driver on the host (`modprobe nvidia`), or run this where the GPUs are",
        ),
    )


def version(facts: Facts) -> tuple[Finding, ...]:
    """drv.version: kernel module and libraries must be one version; also the expected one."""
    kernel, library = facts.kernel_driver(), str(facts.nvml.value("driver") or "")
    user = {name for names in facts.devices.value("libraries", otherwise={}).values() for name in names}
    evidence = _versions_seen(facts, kernel, library)
    known, wanted = kernel or library, facts.expect.driver
    if _mismatch(facts, kernel, library, user):
        others = sorted((user | {library}) - {kernel, ""})
        finding = Finding(
            id="drv.version",
            status=Status.CRITICAL,
            summary=f"driver versions differ: kernel module {kernel or 'unknown'}, "
            f"libraries here {', '.join(others) or 'another version'}",
            value={"kernel": kernel, "libraries": sorted(user | {library} - {""})},
            expected=kernel or None,
            remedy="install the host's driver version here with --no-kernel-module; if the module is older, "
            "reboot the host. Running services may work until they restart",
            evidence=evidence,
        )
    elif not kernel or not (library or user):
        words = "the driver versions cannot be compared"
        finding = Finding(id="drv.version", status=Status.UNKNOWN, summary=words, evidence=evidence)
    elif wanted and wanted != known:
        words = f"driver {known}, expected {wanted}"
        finding = Finding(id="drv.version", status=Status.WARNING, summary=words, value=known, expected=wanted)
    else:
        words = f"driver {kernel} in kernel and libraries"
        finding = Finding(id="drv.version", status=Status.OK, summary=words, value=kernel, evidence=evidence)
    return (finding,)


def _versions_seen(facts: Facts, kernel: str, library: str) -> tuple[str, ...]:
    files = facts.devices.value("libraries", otherwise={})
    lines = [
        f"kernel module: {kernel}" if kernel else "",
        f"NVML: {library}" if library else "",
        *(f"{name}: {', '.join(found)}" for name, found in sorted(files.items())),
        "nvmlInit: 18 (driver/library version mismatch)" if _code(facts.nvml.get("init")) == 18 else "",
        "cuInit: 803 (system driver mismatch)" if _code(facts.cuda.get("init")) == 803 else "",
    ]
    return tuple(line for line in lines if line)


def _code(reading: Reading | None) -> int | None:
    return None if reading is None else reading.rc


def _mismatch(facts: Facts, kernel: str, library: str, user: set[str]) -> bool:
    """Said by a library itself; file names count only while NVML does not start (old files lie about elsewhere)."""
    if _code(facts.nvml.get("init")) == 18 or _code(facts.cuda.get("init")) == 803:
        return True
    if library:
        return bool(kernel) and library != kernel
    return bool(kernel and user) and kernel not in user and _code(facts.nvml.get("init")) != 0


def nvml_init(facts: Facts) -> tuple[Finding, ...]:
    """nvml.init: does the management library start."""
    hang = facts.hang(facts.nvml, None)
    reading = facts.nvml.get("init")
    if hang is not None and hang.call != "nvmlShutdown":
        return (
            Finding(
                id="nvml.init",
                # Dying before the first call is our trouble (no Python binding), not the driver's.
                status=Status.UNKNOWN if hang.how == "crashed" and hang.call == "start" else Status.CRITICAL,
                summary=ended(hang),
                remedy="a GPU or the driver hangs: look at the host's kernel log; it likely needs a reboot",
            ),
        )
    if reading is None:
        return (Finding(id="nvml.init", status=Status.UNKNOWN, summary="NVML was not tried"),)
    if reading.ok:
        count = facts.nvml.value("count", otherwise=0)
        return (Finding(id="nvml.init", status=Status.OK, summary=f"NVML works and lists {count} GPUs", value=0),)
    words, remedy = NVML_CODES.get(reading.rc, (reading.text, ""))
    return (
        Finding(
            id="nvml.init",
            status=Status.CRITICAL,
            summary=f"NVML does not start: {words} ({reading.rc})",
            value=reading.rc,
            expected=0,
            remedy=remedy,
            evidence=(f"nvmlInit: {reading.text}",),
        ),
    )


def cuda_init(facts: Facts) -> tuple[Finding, ...]:
    """cuda.init: cuInit itself; never concluded from NVML."""
    hang = facts.hang(facts.cuda, None)
    library, reading = facts.cuda.get("library"), facts.cuda.get("init")
    if library is not None and not library.ok:
        return (_cuda_failed(CUDA_CODES[-1], library, ""),)
    if reading is None and hang is not None:
        status = Status.UNKNOWN if hang.how == "crashed" and hang.call == "start" else Status.CRITICAL
        remedy = "the driver hangs: look at the host's kernel log"
        return (Finding(id="cuda.init", status=status, summary=ended(hang), remedy=remedy),)
    if reading is None:
        return (Finding(id="cuda.init", status=Status.UNKNOWN, summary="CUDA was not tried"),)
    if not reading.ok:
        path = str(facts.cuda.value("library") or "")
        return (_cuda_failed(CUDA_CODES.get(reading.rc, (reading.text, "")), reading, path),)
    number = int(facts.cuda.value("version", otherwise=0) or 0)
    count = facts.cuda.value("count", otherwise=0)
    words = f"CUDA {number // 1000}.{number % 1000 // 10} starts and lists {count} GPUs"
    return (Finding(id="cuda.init", status=Status.OK, summary=words, value=0),)


def _cuda_failed(said: tuple[str, str], reading: Reading, path: str) -> Finding:
    code = f"cuInit gives {reading.rc}, " if reading.rc > 0 else ""
    return Finding(
        id="cuda.init",
        status=Status.CRITICAL,
        summary=f"CUDA does not start: {code}{said[0]}",
        value=reading.rc if reading.rc > 0 else None,
        expected=0,
        remedy=said[1],
        evidence=(reading.text, *((f"library: {path}",) if path else ())),
    )


def cuda_library(facts: Facts) -> tuple[Finding, ...]:
    """cuda.lib: which file answered as libcuda.so.1."""
    path = str(facts.cuda.value("library") or "")
    if not path:
        return (
            Finding(id="cuda.lib", status=Status.NOT_APPLICABLE, summary="the path of libcuda.so.1 is not known"),
        )
    odd = next((word for word in ("stubs", "compat") if f"/{word}/" in path), "")
    if odd:
        summary = f"libcuda.so.1 comes from a {odd} folder: {path}"
        return (
            Finding(
                id="cuda.lib",
                status=Status.WARNING,
                summary=summary,
                value=path,
                remedy=f"take the {odd} folder out of LD_LIBRARY_PATH",
            ),
        )
    return (Finding(id="cuda.lib", status=Status.OK, summary=f"libcuda.so.1 is {path}", value=path),)
