"""libcuda.so.1 of the lab: device list, contexts, real bytes as memory, and the one probe kernel it can compute.

cuInit opens /dev/nvidiactl, /dev/nvidia-uvm and the cards' nodes, so it fails with 999 exactly while nvidia-uvm is
not usable. Memory is host memory behind made-up device addresses; every copy is checked against its allocation.
A kernel it cannot compute is refused (801), a symbol it does not have is missing.
"""

import ctypes
import os
import re
import uuid

from lab_driver import state

SUCCESS, INVALID, NO_MEMORY, UNINITIALIZED, NO_DEVICE, BAD_DEVICE = 0, 1, 2, 3, 100, 101
BAD_CONTEXT, BAD_PTX, NOT_FOUND, BAD_HANDLE, ILLEGAL_ADDRESS, UNSUPPORTED, UNKNOWN = (
    201,
    218,
    500,
    400,
    700,
    801,
    999,
)

NAMES = {
    0: ("CUDA_SUCCESS", "no error"),
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    34: ("CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"),
    999: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}

I32, U32, U64, PTR = ctypes.c_int, ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p

PROBE = re.compile(
    r"\.entry\s+(\w+)\s*\(\s*\.param\s+\.u64\s+\w+,\s*\.param\s+\.u32\s+\w+,\s*\.param\s+\.u32\s+\w+\s*\)"
)
ENTRY = re.compile(r"\.entry\s+(\w+)")


class Driver:
    """This process's driver state."""

    pid = 0
    cards: tuple = ()
    current = 0  # context handle: 1 + ordinal
    retained: dict = {}
    memory: dict = {}  # start address -> (ordinal, buffer)
    host: dict = {}
    modules: dict = {}
    kernels: dict = {}
    next_address = 0x7F0000000000
    next_handle = 0x1000
    sticky = 0


def _visible(cards):
    """The cards CUDA_VISIBLE_DEVICES leaves, in its order; everything from the first invalid entry on is dropped."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(cards)
    chosen = []
    for word in (part.strip() for part in wanted.split(",")):
        if word.isdigit():
            found = cards[int(word)] if int(word) < len(cards) else None
        else:
            found = next((card for card in cards if word and card["uuid"].startswith(word)), None)
        if found is None or found in chosen:
            break
        chosen.append(found)
    return tuple(chosen)


def init(flags):
    """cuInit: 100 without a control node or a card, 999 without nvidia-uvm."""
    wanted = state.interfere("cuInit")
    if wanted is not None:
        return wanted
    if state.number(flags):
        return INVALID
    if not state.driver_loaded() or state.try_open("nvidiactl"):
        return NO_DEVICE
    if state.try_open("nvidia-uvm"):
        return UNKNOWN
    usable = [
        card for card in state.cards() if state.try_open(f"nvidia{card['minor']}") == 0 and not card.get("lost")
    ]
    usable.sort(key=lambda card: card.get("cuda_order", card["bus_id"]))
    Driver.cards = _visible(usable)
    if not Driver.cards:
        return NO_DEVICE
    Driver.pid = os.getpid()
    return SUCCESS


def _ready():
    """Initialised in this very process: a fork does not inherit CUDA."""
    return Driver.pid == os.getpid()


def _guarded(name, call):
    def run(*args):
        if not _ready():
            return UNINITIALIZED
        if Driver.sticky:
            return Driver.sticky
        card = _card(Driver.current - 1) if Driver.current else None
        wanted = state.interfere(name, card["index"] if card else None)
        return wanted if wanted is not None else call(*args)

    return run


def _per_device(name, place, call):
    """Calls that name a device ordinal in argument `place`."""

    def run(*args):
        if not _ready():
            return UNINITIALIZED
        ordinal = state.number(args[place])
        card = _card(ordinal)
        if card is None:
            return BAD_DEVICE
        wanted = state.interfere(name, card["index"])
        return wanted if wanted is not None else call(card, ordinal, *args)

    return run


def _card(ordinal):
    return Driver.cards[ordinal] if 0 <= ordinal < len(Driver.cards) else None


def driver_version(out):
    state.write(I32, out, state.cuda_version())
    return SUCCESS


def device_count(out):
    state.write(I32, out, len(Driver.cards))
    return SUCCESS


def device_get(_card, ordinal, out, _wanted):
    state.write(I32, out, ordinal)
    return SUCCESS


def device_name(card, _ordinal, buffer, room, _device):
    text = card["name"][: state.number(room) - 1]
    return SUCCESS if state.text(buffer, text, state.number(room)) else INVALID


def device_uuid(card, _ordinal, out, _device):
    data = uuid.UUID(card["uuid"].removeprefix("GPU-")).bytes
    ctypes.memmove(state.address(out), data, 16)
    return SUCCESS


def device_bus_id(card, _ordinal, buffer, room, _device):
    *domain, bus, device = card["bus_id"].split(":")
    text = f"{int(domain[0] if domain else '0', 16):04x}:{bus}:{device}".lower()
    return SUCCESS if state.text(buffer, text, state.number(room)) else INVALID


def _total(card):
    return card["cuda_memory_bytes"] or card["memory_bytes"] or 0


def device_memory(card, _ordinal, out, _device):
    state.write(U64, out, _total(card))
    return SUCCESS


def device_attribute(card, _ordinal, out, attribute, _device):
    *_, bus, device = card["bus_id"].split(":")
    major, minor = card["compute_capability"]
    table = {
        16: 188,
        18: card["integrated"],
        20: card["compute_mode"],
        33: int(bus, 16),
        34: int(device.split(".")[0], 16),
        75: major,
        76: minor,
    }
    if state.number(attribute) not in table:
        return INVALID
    state.write(I32, out, table[state.number(attribute)])
    return SUCCESS


def context_retain(card, ordinal, out, _device):
    if card["compute_mode"] == 2:
        return 46
    Driver.retained[ordinal] = Driver.retained.get(ordinal, 0) + 1
    state.write(PTR, out, ordinal + 1)
    return SUCCESS


def context_release(_card, ordinal, _device):
    if not Driver.retained.get(ordinal):
        return BAD_CONTEXT
    Driver.retained[ordinal] -= 1
    if not Driver.retained[ordinal]:
        for start in [start for start, (owner, _) in Driver.memory.items() if owner == ordinal]:
            del Driver.memory[start]
        Driver.current = 0 if Driver.current == ordinal + 1 else Driver.current
    return SUCCESS


def context_set(context):
    handle = state.number(context)
    if handle and not Driver.retained.get(handle - 1):
        return BAD_CONTEXT
    Driver.current = handle
    return SUCCESS


def synchronize():
    return SUCCESS if Driver.current else BAD_CONTEXT


def allocate(out, size):
    size = state.number(size)
    if not Driver.current:
        return BAD_CONTEXT
    if size <= 0:
        return INVALID
    card = _card(Driver.current - 1)
    taken = sum(len(data) for owner, data in Driver.memory.values() if owner == Driver.current - 1)
    if taken + size > _total(card) - card["memory_used"] - card["memory_reserved"]:
        return NO_MEMORY
    try:
        data = ctypes.create_string_buffer(size)
    except MemoryError:
        return NO_MEMORY
    start = Driver.next_address
    Driver.next_address += (size + 0xFFFF) // 0x10000 * 0x10000 + 0x10000
    Driver.memory[start] = (Driver.current - 1, data)
    state.write(U64, out, start)
    return SUCCESS


def free(pointer):
    return SUCCESS if Driver.memory.pop(state.number(pointer), None) is not None else INVALID


def memory_info(free_out, total_out):
    if not Driver.current:
        return BAD_CONTEXT
    card = _card(Driver.current - 1)
    taken = sum(len(data) for owner, data in Driver.memory.values() if owner == Driver.current - 1)
    state.write(U64, free_out, _total(card) - card["memory_used"] - card["memory_reserved"] - taken)
    state.write(U64, total_out, _total(card))
    return SUCCESS


def host_allocate(out, size):
    data = ctypes.create_string_buffer(state.number(size))
    Driver.host[ctypes.addressof(data)] = data
    state.write(PTR, out, ctypes.addressof(data))
    return SUCCESS


def host_free(pointer):
    return SUCCESS if Driver.host.pop(state.number(pointer), None) is not None else INVALID


def _span(pointer, size):
    """(ordinal, host address) of `size` bytes at a device address, or None when they are not all allocated."""
    for start, (owner, data) in Driver.memory.items():
        if start <= pointer and pointer + size <= start + len(data):
            return owner, ctypes.addressof(data) + pointer - start
    return None


def copy_in(target, source, size):
    span = _span(state.number(target), state.number(size))
    if span is None:
        return INVALID
    ctypes.memmove(span[1], state.address(source), state.number(size))
    return SUCCESS


def copy_out(target, source, size):
    count = state.number(size)
    span = _span(state.number(source), count)
    if span is None:
        return INVALID
    place = state.address(target)
    ctypes.memmove(place, span[1], count)
    if _card(span[0])["index"] in state.scenario().get("corrupt_copy", ()):
        wrong = ctypes.c_ubyte.from_address(place + count // 2)
        wrong.value ^= 0x40
    return SUCCESS


def _handle():
    Driver.next_handle += 1
    return Driver.next_handle


def module_load(out, image):
    if not Driver.current:
        return BAD_CONTEXT
    text = ctypes.string_at(state.address(image)).decode("ascii", "replace")
    if not re.search(r"^\s*\.version\s+\d+\.\d+", text) or ".target" not in text or not ENTRY.search(text):
        return BAD_PTX
    handle = _handle()
    Driver.modules[handle] = text
    state.write(PTR, out, handle)
    return SUCCESS


def module_function(out, module, name):
    text = Driver.modules.get(state.number(module))
    if text is None:
        return BAD_HANDLE
    wanted = ctypes.string_at(state.address(name)).decode("ascii", "replace")
    if wanted not in ENTRY.findall(text):
        return NOT_FOUND
    handle = _handle()
    Driver.kernels[handle] = (wanted, wanted in PROBE.findall(text) and "0x9E3779B1" in text)
    state.write(PTR, out, handle)
    return SUCCESS


def module_unload(module):
    return SUCCESS if Driver.modules.pop(state.number(module), None) is not None else BAD_HANDLE


def launch(kernel, *args):
    """Compute p[i] = i * 2654435761 + seed for the threads of the grid below n; other kernels are refused."""
    known = Driver.kernels.get(state.number(kernel))
    if known is None:
        return BAD_HANDLE
    grid, block = [state.number(a) for a in args[:3]], [state.number(a) for a in args[3:6]]
    threads = block[0] * block[1] * block[2]
    if len(args) != 10 or min(*grid, *block) < 1 or threads > 1024:
        return INVALID
    if not known[1] or grid[1:] != [1, 1] or block[1:] != [1, 1]:
        return UNSUPPORTED
    params = (PTR * 3).from_address(state.address(args[8]))
    pointer = U64.from_address(params[0]).value
    n, seed = U32.from_address(params[1]).value, U32.from_address(params[2]).value
    count = min(n, grid[0] * threads)
    span = _span(pointer, count * 4)
    if span is None:
        Driver.sticky = ILLEGAL_ADDRESS
        return SUCCESS  # as the real one: the fault shows at the next call
    out = (U32 * count).from_address(span[1])
    out[:] = [(i * 2654435761 + seed) & 0xFFFFFFFF for i in range(count)]
    return SUCCESS


def can_access_peer(_card, _ordinal, out, _device, peer):
    if not 0 <= state.number(peer) < len(Driver.cards):
        return BAD_DEVICE
    state.write(I32, out, 1)
    return SUCCESS


_error_texts: dict = {}


def _error_text(which):
    def call(code, out):
        known = NAMES.get(state.number(code))
        if known is None:
            return INVALID
        kept = _error_texts.setdefault(known[which], ctypes.create_string_buffer(known[which].encode()))
        state.write(PTR, out, ctypes.addressof(kept))
        return SUCCESS

    return call


DEVICE = {
    "cuDeviceGet": (1, device_get),
    "cuDeviceGetName": (2, device_name),
    "cuDeviceGetUuid_v2": (1, device_uuid),
    "cuDeviceGetUuid": (1, device_uuid),
    "cuDeviceGetPCIBusId": (2, device_bus_id),
    "cuDeviceTotalMem_v2": (1, device_memory),
    "cuDeviceGetAttribute": (2, device_attribute),
    "cuDevicePrimaryCtxRetain": (1, context_retain),
    "cuDevicePrimaryCtxRelease_v2": (0, context_release),
    "cuDeviceCanAccessPeer": (1, can_access_peer),
}
PLAIN = {
    "cuDeviceGetCount": device_count,
    "cuCtxSetCurrent": context_set,
    "cuCtxSynchronize": synchronize,
    "cuMemAlloc_v2": allocate,
    "cuMemFree_v2": free,
    "cuMemGetInfo_v2": memory_info,
    "cuMemAllocHost_v2": host_allocate,
    "cuMemFreeHost": host_free,
    "cuMemcpyHtoD_v2": copy_in,
    "cuMemcpyDtoH_v2": copy_out,
    "cuModuleLoadData": module_load,
    "cuModuleGetFunction": module_function,
    "cuModuleUnload": module_unload,
    "cuLaunchKernel": launch,
}


def library():
    """The loaded library, as `ctypes.CDLL` would return it."""
    functions = {
        "cuInit": init,
        "cuDriverGetVersion": driver_version,
        "cuGetErrorName": _error_text(0),
        "cuGetErrorString": _error_text(1),
    }
    functions.update({name: _per_device(name, place, call) for name, (place, call) in DEVICE.items()})
    functions.update({name: _guarded(name, call) for name, call in PLAIN.items()})
    return state.Library("libcuda.so.1", functions)
