"""libnvidia-ml.so.1 of the lab: the read-only calls, with NVML's own return codes.

It needs /dev/nvidiactl and one /dev/nvidiaN per card; it does not need nvidia-uvm, which is why nvidia-smi looks
healthy while CUDA is dead. Nothing that sets, resets or clears exists here: such a symbol is missing.
"""

import ctypes
import errno

from lab_driver import state
from lab_driver.nvml_card import DEVICE, I32, U32, long_bus

SUCCESS, UNINITIALIZED, INVALID, UNSUPPORTED, DENIED, NOT_FOUND = 0, 1, 2, 3, 4, 6
SMALL, NOT_LOADED, LOST, UNKNOWN = 7, 9, 15, 999

ERRORS = {
    0: "Success",
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    7: "Insufficient Size",
    8: "Insufficient External Power",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    18: "Driver/library version mismatch",
    25: "Argument version mismatch",
    28: "GPU not found",
    999: "Unknown Error",
}


class Session:
    """The library's state in this process: initialised or not, and the cards whose node opened."""

    count = 0
    cards: tuple = ()


def _initialise():
    if not state.driver_loaded():
        return NOT_LOADED
    control = state.try_open("nvidiactl")
    if control:
        refused = {errno.EPERM: UNKNOWN, errno.EACCES: DENIED}
        return refused.get(control, NOT_LOADED)
    Session.cards = tuple(card for card in state.cards() if state.try_open(f"nvidia{card['minor']}") == 0)
    Session.count += 1
    return SUCCESS


def nvml_init(_flags=0):
    wanted = state.interfere("nvmlInitWithFlags")
    return wanted if wanted is not None else _initialise()


def nvml_shutdown():
    if not Session.count:
        return UNINITIALIZED
    Session.count -= 1
    return SUCCESS


def _card(handle):
    """The card behind a handle (1 + position: a handle is opaque to callers), or None."""
    place = state.number(handle) - 1
    return Session.cards[place] if 0 <= place < len(Session.cards) else None


def _guarded(name, call):
    """A system call: initialised first, the scenario next."""

    def run(*args):
        if not Session.count:
            return UNINITIALIZED
        wanted = state.interfere(name)
        return wanted if wanted is not None else call(*args)

    return run


def _per_card(name, call):
    """A device call: its first argument is a handle. A lost card answers 15 everywhere; None means not supported."""

    def run(handle, *args):
        if not Session.count:
            return UNINITIALIZED
        card = _card(handle)
        if card is None:
            return INVALID
        wanted = state.interfere(name, card["index"])
        if wanted is not None:
            return wanted
        if card.get("lost"):
            return LOST
        result = call(card, *args)
        return UNSUPPORTED if result is None else result

    return run


def handle_by_index(index, out):
    place = state.number(index)
    if not 0 <= place < len(Session.cards):
        return INVALID
    wanted = state.interfere("nvmlDeviceGetHandleByIndex_v2", Session.cards[place]["index"])
    if wanted is not None:
        return wanted
    state.write(ctypes.c_void_p, out, place + 1)
    return SUCCESS


def _handle_by(matches):
    def call(wanted, out):
        text = wanted.value if hasattr(wanted, "value") else wanted
        text = text.decode() if isinstance(text, bytes) else str(text)
        for place, card in enumerate(Session.cards):
            if matches(card, text):
                state.write(ctypes.c_void_p, out, place + 1)
                return SUCCESS
        return NOT_FOUND

    return call


def _driver_version(buffer, room):
    return SUCCESS if state.text(buffer, state.driver_version(), state.number(room)) else SMALL


def _library_version(buffer, room):
    return SUCCESS if state.text(buffer, "13." + state.driver_version(), state.number(room)) else SMALL


def _cuda_version(out):
    state.write(I32, out, state.cuda_version())
    return SUCCESS


def _count(out):
    state.write(U32, out, len(Session.cards))
    return SUCCESS


SYSTEM = {
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": handle_by_index,
    "nvmlDeviceGetHandleByUUID": _handle_by(lambda card, text: card["uuid"] == text),
    "nvmlDeviceGetHandleByPciBusId_v2": _handle_by(lambda card, text: long_bus(card["bus_id"]) == long_bus(text)),
    "nvmlSystemGetDriverVersion": _driver_version,
    "nvmlSystemGetNVMLVersion": _library_version,
    "nvmlSystemGetCudaDriverVersion": _cuda_version,
    "nvmlSystemGetCudaDriverVersion_v2": _cuda_version,
}


def library():
    """The loaded library, as `ctypes.CDLL` would return it."""
    functions = {"nvmlInitWithFlags": nvml_init, "nvmlInit_v2": nvml_init, "nvmlShutdown": nvml_shutdown}
    functions["nvmlErrorString"] = lambda code: ERRORS.get(state.number(code), "Unknown Error").encode()
    functions.update({name: _guarded(name, call) for name, call in SYSTEM.items()})
    functions.update({name: _per_card(name, call) for name, call in DEVICE.items()})
    return state.Library("libnvidia-ml.so.1", functions)
