"""libcuda.so.1 of the lab: device list, contexts, real bytes as memory, and the one probe kernel it can compute.

cuInit opens /dev/nvidiactl, /dev/nvidia-uvm and the cards' nodes, so it fails with 999 exactly while nvidia-uvm is
not usable. Memory is host memory behind made-up device addresses; every copy is checked against its allocation.
A kernel it cannot compute is refused (801), a symbol it does not have is missing.
In a level-1 lab the library in C, in the folder GPUCTL_LAB_NATIVE, opens the nodes and decides what cuInit answers.
"""

import ctypes
import os
import uuid

from lab_driver import nodes, state
from lab_driver.cuda_context import CONTEXT, Driver, card_at, context_release, context_retain, total_memory

SUCCESS, INVALID, UNINITIALIZED, NO_DEVICE, BAD_DEVICE, UNKNOWN = 0, 1, 3, 100, 101, 999

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

I32, U64, PTR = ctypes.c_int, ctypes.c_ulonglong, ctypes.c_void_p


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


def _nodes_answer():
    """What the nodes alone make of cuInit. Raises OSError when the folder of the library in C lacks it."""
    folder = os.environ.get("GPUCTL_LAB_NATIVE")
    if nodes.level() == 1 and folder:
        # By its path, which the loader leaves alone: only the bare soname means this stand-in.
        return ctypes.CDLL(f"{folder}/libcuda.so.1").cuInit(0)
    if state.try_open("nvidiactl"):
        return NO_DEVICE
    return UNKNOWN if state.try_open("nvidia-uvm") else SUCCESS


def init(flags):
    """cuInit: 100 without a control node or a card, 999 without nvidia-uvm."""
    wanted = state.interfere("cuInit")
    if wanted is not None:
        return wanted
    if state.number(flags):
        return INVALID
    if not state.driver_loaded():
        return NO_DEVICE
    refused = _nodes_answer()
    if refused:
        return refused
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
        card = card_at(Driver.current - 1) if Driver.current else None
        wanted = state.interfere(name, card["index"] if card else None)
        return wanted if wanted is not None else call(*args)

    return run


def _per_device(name, place, call):
    """Calls that name a device ordinal in argument `place`."""

    def run(*args):
        if not _ready():
            return UNINITIALIZED
        ordinal = state.number(args[place])
        card = card_at(ordinal)
        if card is None:
            return BAD_DEVICE
        wanted = state.interfere(name, card["index"])
        return wanted if wanted is not None else call(card, ordinal, *args)

    return run


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


def device_memory(card, _ordinal, out, _device):
    state.write(U64, out, total_memory(card))
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
    **CONTEXT,
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
