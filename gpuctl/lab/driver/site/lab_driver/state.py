"""What the lab's driver knows: the cards in gpus.json, the state of the nodes, and a scenario's deviations.

etc/gpuctl-lab/gpus.json: a list of {index, minor, name, uuid, bus_id, memory_bytes, power_limit_mw, driver, cuda};
any key of `HEALTHY` may be added to a card. A value of null means the card does not support it.
etc/gpuctl-lab/scenario.json (optional):
  {"rc": {"nvmlInitWithFlags": 18, "nvmlDeviceGetPowerUsage": {"1": 999}}, "values": {"0": {"temperature": 95}},
   "hang": ["cuInit", "nvmlDeviceGetPowerUsage:1", "open nvidia1"], "open": {"nvidia1": "EIO"}, "missing": ["libcuda.so.1",
   "nvmlDeviceGetRemappedRows"], "corrupt_copy": [2]}
"""

import json
import os
import time

from lab_driver import nodes

GIB = 1024**3

HEALTHY = {
    "serial": "1560000000000",
    "vbios": "98.02.52.00.02",
    "compute_capability": [12, 0],
    "memory_bytes": 96 * GIB,
    "memory_reserved": 600 * 1024**2,
    "memory_used": 0,
    "power_limit_mw": 600000,
    "power_default_mw": 600000,
    "power_min_mw": 150000,
    "power_max_mw": 600000,
    "power_mw": 14200,
    "temperature": 31,
    "temperature_thresholds": {"0": 98, "1": 95, "2": None, "3": 90},
    "pstate": 8,
    "reasons": 0x1,
    "pcie_gen": 1,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_replays": 0,
    "persistence": 1,
    "compute_mode": 0,
    "ecc": [0, 0],
    "ecc_errors": {
        "uncorrected_volatile": 0,
        "corrected_volatile": 0,
        "uncorrected_total": 0,
        "corrected_total": 0,
    },
    "remapped": [0, 0, 0, 0],
    "mig": [0, 0],
    "recovery_action": 0,
    "clocks": [180, 180, 405, 1920],
    "clocks_max": [3090, 3090, 14001, 2430],
    "utilization": [0, 0],
    "fan": 30,
    "bar1_bytes": 128 * GIB,
    "processes": [],
    "graphics_processes": [],
    "mps_processes": [],
    "integrated": 0,
    "cuda_memory_bytes": None,
}

_files = {}


def _json(path, otherwise):
    if path not in _files:
        try:
            _files[path] = json.loads(nodes.read(path) or b"null") or otherwise
        except ValueError:
            _files[path] = otherwise
    return _files[path]


def scenario():
    """The deviations, read once per process; {} when there is no scenario."""
    return _json("/etc/gpuctl-lab/scenario.json", {})


def cards():
    """Every card of the machine, whether its node is reachable or not, healthy values filled in."""
    changed = scenario().get("values", {})
    return [
        {**HEALTHY, **card, **changed.get(str(card.get("index", 0)), {})}
        for card in _json("/etc/gpuctl-lab/gpus.json", [])
    ]


def installed(library):
    """Whether this root has the driver's user space library."""
    listed = nodes.read("/etc/gpuctl-lab/gpus.json") is not None
    return listed and library not in scenario().get("missing", ())


def driver_version():
    """The user space libraries' version."""
    return str((cards() or [{}])[0].get("driver", ""))


def cuda_version():
    """As CUDA numbers it: 13020 for 13.2; gpus.json may say 13020, 13.2 or "13.2"."""
    said = str((cards() or [{}])[0].get("cuda") or "13.0")
    if said.isdigit() and int(said) >= 1000:
        return int(said)
    major, _, minor = said.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10


def _kernel():
    """What answers for device nodes at this level; `os.open` is its own already."""
    if nodes.level() == 0:
        return nodes
    from lab_driver import real_nodes

    return real_nodes


def try_open(name):
    """0 when /dev/NAME opens and is a device, else the errno (a regular file answers the ioctl with ENOTTY)."""
    path = nodes.root() + "/dev/" + name
    kernel = _kernel()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        return problem.errno or 5
    os.close(fd)
    return 0 if kernel.is_device(path) else 25


def driver_loaded():
    """Whether the kernel module is there, as far as the lab's /proc says."""
    return nodes.read("/proc/driver/nvidia/version") is not None


def interfere(function, gpu=None):
    """Hang when the scenario says so; else the return code it wants for this function and GPU index, or None."""
    plan = scenario()
    hangs = plan.get("hang", ())
    if function in hangs or (gpu is not None and f"{function}:{gpu}" in hangs):
        time.sleep(3600)
    wanted = plan.get("rc", {}).get(function)
    if isinstance(wanted, dict):
        wanted = wanted.get(str(gpu), wanted.get("*"))
    return wanted


def write(ctype, pointer, value):
    """Store a C value where any pointer-like argument points: byref(), pointer(), array, address; offsets count."""
    ctype.from_address(address(pointer)).value = value


def address(pointer):
    """The address in a pointer-like argument; a null pointer would crash the real library, so it is refused."""
    import ctypes

    place = pointer if isinstance(pointer, int) else ctypes.cast(pointer, ctypes.c_void_p).value
    if not place:
        raise ValueError("null pointer handed to the driver")
    return place


def text(pointer, value, room):
    """Store a C string with its zero; False when the buffer is too small."""
    import ctypes

    data = str(value).encode("utf-8", "surrogateescape") + b"\0"
    if len(data) > room:
        return False
    ctypes.memmove(address(pointer), data, len(data))
    return True


def number(argument):
    """A plain int from an int, a simple C value, a pointer instance or None."""
    import ctypes

    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument
    value = getattr(argument, "value", argument)
    if isinstance(value, int):
        return value
    return ctypes.cast(argument, ctypes.c_void_p).value or 0


class Function:
    """What ctypes gives for a symbol: callable, with settable argtypes and restype."""

    def __init__(self, name, call):
        self.__name__ = name
        self.argtypes = None
        self.restype = int
        self._call = call

    def __call__(self, *args):
        return self._call(*args)


class Library:
    """A loaded library: known symbols as `Function`, an unknown one raises as ctypes does."""

    def __init__(self, name, functions):
        self._name = name
        self._functions = functions
        self._handle = id(self)

    def __getattr__(self, symbol):
        call = None if symbol.startswith("_") else self._functions.get(symbol)
        if call is None or symbol in scenario().get("missing", ()):
            raise AttributeError(f"{self._name}: undefined symbol: {symbol}")
        made = Function(symbol, call)
        setattr(self, symbol, made)
        return made

    def __getitem__(self, symbol):
        return getattr(self, symbol)
