"""Probe: the CUDA driver API through ctypes. Words: none (cuInit and the device list), or `use=UUID ...`.

With `use=` each named GPU gets a context, a pattern copied there and back, and one tiny kernel; then it is given
back. Always a fresh executed process: CUDA does not survive a fork (error 3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from checks.probes import ptx
from checks.probes.writer import Writer, run

FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/nvidia/current",
    "/usr/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
)
PATTERN: Final = bytes((i * 37 + 11) & 0xFF for i in range(256)) * 4096
"""1 MiB that is neither zeros nor constant: memory that reads as zero must not pass."""
COUNT: Final = 4096
SEED: Final = 20_260_517

MISSING_SYMBOL: Final = -2
MISSING_LIBRARY: Final = -1


class CudaError(Exception):
    """A driver call that did not return 0."""

    def __init__(self, rc: int, call: str, words: str) -> None:
        super().__init__(f"{call}: {words}")
        self.rc = rc


def main(argv: list[str]) -> int:
    return run(body, argv)


def body(out: Writer, words: tuple[str, ...]) -> None:
    skipped = {int(word[5:]) for word in words if word.startswith("skip=")}
    wanted = [word[4:] for word in words if word.startswith("use=")]
    out.calling("load libcuda.so.1")
    try:
        library = _load()
    except OSError as problem:
        out.result("library", rc=MISSING_LIBRARY, text=str(problem))
        return
    out.result("library", value=_mapped_path())
    cuda = _Cuda(library, out)
    if cuda.ask("init", None, lambda: cuda.call("cuInit", 0)) is None:
        return
    cuda.ask("version", None, lambda: cuda.integer("cuDriverGetVersion"))
    count = cuda.ask("count", None, lambda: cuda.integer("cuDeviceGetCount"))
    for ordinal in range(count or 0):
        device = cuda.ask("device", ordinal, partial(cuda.integer, "cuDeviceGet", ordinal))
        if device is None:
            continue
        _describe(cuda, ordinal, device)
        if ordinal not in skipped and cuda.last_uuid in wanted:
            _use(cuda, ordinal, device)


def _load() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        # cron and services may lack what the shell's LD_LIBRARY_PATH gives.
        for folder in FOLDERS:
            if Path(folder, "libcuda.so.1").exists():
                return ctypes.CDLL(str(Path(folder, "libcuda.so.1")))
        raise problem


def _mapped_path() -> str:
    """The file the loader really took (a toolkit stub or a compat library explains errors 34, 803 and 804)."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.split(maxsplit=5)[5] for line in lines if "/libcuda.so" in line), "")


class _Cuda:
    """Calls by name with return codes turned into `CudaError`, and every answer written down."""

    def __init__(self, library: Any, out: Writer) -> None:
        self._library = library
        self._out = out
        self.last_uuid = ""

    def call(self, name: str, *args: Any) -> bool:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaError(MISSING_SYMBOL, name, "this driver has no such function") from None
        rc = int(function(*args))
        if rc:
            raise CudaError(rc, name, self.words(rc))
        return True

    def words(self, rc: int) -> str:
        """`CUDA_ERROR_UNKNOWN (999)`, also before cuInit."""
        text = ctypes.c_char_p()
        try:
            if self._library.cuGetErrorName(rc, ctypes.byref(text)) == 0 and text.value:
                return f"{text.value.decode('ascii', 'replace')} ({rc})"
        except AttributeError:
            pass
        return f"error {rc}"

    def integer(self, name: str, *args: Any) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *args)
        return value.value

    def ask(self, key: str, gpu: int | None, read: Callable[[], Any]) -> Any:
        """Run `read` and write its value or error down; None on error. `gpu` is CUDA's ordinal."""
        self._out.calling(f"cuda {key}" if key != "init" else "cuInit", gpu)
        try:
            value = read()
        except CudaError as problem:
            self._out.result(key, gpu, rc=problem.rc, text=str(problem))
            return None
        self._out.result(key, gpu, value=value)
        return value


def _describe(cuda: _Cuda, ordinal: int, device: int) -> None:
    def name() -> str:
        text = ctypes.create_string_buffer(256)
        cuda.call("cuDeviceGetName", text, 256, device)
        return text.value.decode("utf-8", "replace")

    def identity() -> str:
        data = (ctypes.c_ubyte * 16)()
        cuda.call("cuDeviceGetUuid_v2", data, device)
        text = bytes(data).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def bus_id() -> str:
        text = ctypes.create_string_buffer(32)
        cuda.call("cuDeviceGetPCIBusId", text, 32, device)
        return text.value.decode("ascii", "replace")

    def memory() -> int:
        size = ctypes.c_size_t()
        cuda.call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        return size.value

    cuda.last_uuid = cuda.ask("uuid", ordinal, identity) or ""
    cuda.ask("name", ordinal, name)
    cuda.ask("bus_id", ordinal, bus_id)
    cuda.ask("memory", ordinal, memory)


def _use(cuda: _Cuda, ordinal: int, device: int) -> None:
    context = ctypes.c_void_p()

    def retain() -> bool:
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return cuda.call("cuCtxSetCurrent", context)

    if cuda.ask("context", ordinal, retain) is None:
        return
    memory = ctypes.c_uint64()
    if cuda.ask(
        "alloc", ordinal, lambda: cuda.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(len(PATTERN)))
    ):
        cuda.ask("copy", ordinal, lambda: _copy(cuda, memory))
        cuda.ask("kernel", ordinal, lambda: _kernel(cuda, memory))
        cuda.ask("free", ordinal, lambda: cuda.call("cuMemFree_v2", memory))
    cuda.ask("release", ordinal, lambda: cuda.call("cuDevicePrimaryCtxRelease_v2", device))


def _copy(cuda: _Cuda, memory: ctypes.c_uint64) -> dict[str, int]:
    """Pattern to the card and back: {bytes, wrong, first_wrong}."""
    size = len(PATTERN)
    back = ctypes.create_string_buffer(size)
    cuda.call("cuMemcpyHtoD_v2", memory, ctypes.c_char_p(PATTERN), ctypes.c_size_t(size))
    cuda.call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(size))
    return _compare(PATTERN, back.raw)


def _kernel(cuda: _Cuda, memory: ctypes.c_uint64) -> dict[str, int]:
    """Translate the PTX, run it once over `COUNT` values, compare: {bytes, wrong, first_wrong}."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.SOURCE))
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(ptx.NAME))
    pointer, n, seed = ctypes.c_uint64(memory.value), ctypes.c_uint32(COUNT), ctypes.c_uint32(SEED)
    params = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in (pointer, n, seed)))
    grid = (COUNT + 255) // 256
    cuda.call("cuLaunchKernel", function, grid, 1, 1, 256, 1, 1, 0, None, params, None)
    cuda.call("cuCtxSynchronize")
    back = ctypes.create_string_buffer(COUNT * 4)
    cuda.call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(COUNT * 4))
    cuda.call("cuModuleUnload", module)
    return _compare(ptx.expected(COUNT, SEED), back.raw)


def _compare(sent: bytes, received: bytes) -> dict[str, int]:
    if sent == received:
        return {"bytes": len(sent), "wrong": 0, "first_wrong": -1}
    wrong = [place for place, (a, b) in enumerate(zip(sent, received, strict=True)) if a != b]
    return {"bytes": len(sent), "wrong": len(wrong), "first_wrong": wrong[0]}
