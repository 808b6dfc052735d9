"""CUDA contexts of the lab: real bytes behind made-up device addresses, and the one kernel it can compute."""

import ctypes
import re

from lab_driver import state

SUCCESS, INVALID, NO_MEMORY, BAD_CONTEXT = 0, 1, 2, 201
BAD_PTX, BAD_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS, UNSUPPORTED = 218, 400, 500, 700, 801

U32, U64, PTR = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p

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


def card_at(ordinal):
    return Driver.cards[ordinal] if 0 <= ordinal < len(Driver.cards) else None


def total_memory(card):
    return card["cuda_memory_bytes"] or card["memory_bytes"] or 0


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
    card = card_at(Driver.current - 1)
    taken = sum(len(data) for owner, data in Driver.memory.values() if owner == Driver.current - 1)
    if taken + size > total_memory(card) - card["memory_used"] - card["memory_reserved"]:
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
    card = card_at(Driver.current - 1)
    taken = sum(len(data) for owner, data in Driver.memory.values() if owner == Driver.current - 1)
    state.write(U64, free_out, total_memory(card) - card["memory_used"] - card["memory_reserved"] - taken)
    state.write(U64, total_out, total_memory(card))
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
    if card_at(span[0])["index"] in state.scenario().get("corrupt_copy", ()):
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


CONTEXT = {
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
