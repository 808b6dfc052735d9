"""NVML's calls on one card: what is read, in NVML's own structures; None stands for "not supported".

Every function takes the card's values (see `state.HEALTHY`) and the caller's remaining arguments.
"""

import ctypes

from lab_driver import state

SUCCESS, INVALID, UNSUPPORTED, SMALL, VERSION = 0, 2, 3, 7, 25

U32, U64, I32 = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_int


class PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", U32),
        ("bus", U32),
        ("device", U32),
        ("device_id", U32),
        ("subsystem_id", U32),
        ("bus_id", ctypes.c_char * 32),
    )


class MemoryV1(ctypes.Structure):
    _fields_ = (("total", U64), ("free", U64), ("used", U64))


class MemoryV2(ctypes.Structure):
    _fields_ = (("version", U32), ("total", U64), ("reserved", U64), ("free", U64), ("used", U64))


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", U32),
        ("scope", U32),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", U32),
        ("rc", U32),
        ("value", U64),
    )


class Process(ctypes.Structure):
    _fields_ = (("pid", U32), ("memory", U64), ("gpu_instance", U32), ("compute_instance", U32))


class TemperatureV1(ctypes.Structure):
    _fields_ = (("version", U32), ("sensor", U32), ("celsius", ctypes.c_int))


def _u32(key, ctype=U32):
    def call(card, out):
        if card.get(key) is None:
            return None
        state.write(ctype, out, card[key])
        return SUCCESS

    return call


def _pair(key):
    def call(card, *outs):
        if card.get(key) is None:
            return None
        for out, value in zip(outs, card[key], strict=True):
            state.write(U32, out, value)
        return SUCCESS

    return call


def _text(key):
    def call(card, buffer, room):
        if card.get(key) is None:
            return None
        return SUCCESS if state.text(buffer, card[key], state.number(room)) else SMALL

    return call


def _indexed(key):
    """Values chosen by an enum argument before the result, such as clocks."""

    def call(card, which, out):
        values, place = card.get(key), state.number(which)
        if values is None:
            return None
        if not 0 <= place < len(values):
            return INVALID
        state.write(U32, out, values[place])
        return SUCCESS

    return call


def long_bus(bus_id):
    """NVML's spelling, `00000000:01:00.0`, of a bus id with or without a domain."""
    *domain, bus, device = bus_id.split(":")
    return f"{int(domain[0] if domain else '0', 16):08X}:{bus.upper()}:{device.upper()}"


def pci_info(card, out):
    bus_id = long_bus(card["bus_id"])
    domain, bus, device = bus_id.split(":")
    info = PciInfo.from_address(state.address(out))
    info.legacy, info.bus_id = f"{domain[-4:]}:{bus}:{device}".encode(), bus_id.encode()
    info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(device.split(".")[0], 16)
    info.device_id, info.subsystem_id = card.get("pci_device_id", 0x2BB110DE), 0
    return SUCCESS


def memory_v1(card, out):
    total = card["memory_bytes"]
    if total is None:
        return None
    info = MemoryV1.from_address(state.address(out))
    used = card["memory_used"] + card["memory_reserved"]
    info.total, info.used, info.free = total, used, total - used
    return SUCCESS


def memory_v2(card, out):
    total = card["memory_bytes"]
    if total is None:
        return None
    info = MemoryV2.from_address(state.address(out))
    if info.version != 0x02000028:
        return VERSION
    info.total, info.reserved, info.used = total, card["memory_reserved"], card["memory_used"]
    info.free = total - info.reserved - info.used
    return SUCCESS


def bar1(card, out):
    if card["bar1_bytes"] is None:
        return None
    info = MemoryV1.from_address(state.address(out))
    info.total, info.free, info.used = card["bar1_bytes"], card["bar1_bytes"], 0
    return SUCCESS


def temperature(card, sensor, out):
    if card["temperature"] is None:
        return None
    if state.number(sensor) != 0:
        return INVALID
    state.write(U32, out, card["temperature"])
    return SUCCESS


def temperature_v(card, out):
    if card["temperature"] is None:
        return None
    info = TemperatureV1.from_address(state.address(out))
    info.celsius = card["temperature"]
    return SUCCESS


def temperature_threshold(card, which, out):
    limit = (card["temperature_thresholds"] or {}).get(str(state.number(which)))
    if limit is None:
        return None
    state.write(U32, out, limit)
    return SUCCESS


def ecc_errors(card, kind, counter, out):
    counts = card["ecc_errors"]
    if counts is None or not card["ecc"] or not card["ecc"][0]:
        return None
    name = ("corrected", "uncorrected")[state.number(kind)] + ("_volatile", "_total")[state.number(counter)]
    state.write(U64, out, counts[name])
    return SUCCESS


def field_values(card, count, values):
    table = (FieldValue * state.number(count)).from_address(state.address(values))
    for entry in table:
        known = {230: card["recovery_action"]}.get(entry.field)
        entry.rc = UNSUPPORTED if known is None else SUCCESS
        entry.kind, entry.value = 1, known or 0
    return SUCCESS


def _processes(key):
    def call(card, count, table):
        running = card.get(key)
        if running is None:
            return None
        room = U32.from_address(state.address(count))
        have, room.value = room.value, len(running)
        if have < len(running):
            return SMALL
        if running:
            entries = (Process * len(running)).from_address(state.address(table))
            for entry, process in zip(entries, running, strict=True):
                entry.pid, entry.memory = process["pid"], process["memory"]
                entry.gpu_instance = entry.compute_instance = 0xFFFFFFFF
        return SUCCESS

    return call


def utilization(card, out):
    if card["utilization"] is None:
        return None
    gpu, memory = card["utilization"]
    (U32 * 2).from_address(state.address(out))[:] = [gpu, memory]
    return SUCCESS


def power_constraints(card, low, high):
    if card["power_limit_mw"] is None:
        return None
    state.write(U32, low, card["power_min_mw"])
    state.write(U32, high, card["power_max_mw"])
    return SUCCESS


DEVICE = {
    "nvmlDeviceGetName": _text("name"),
    "nvmlDeviceGetUUID": _text("uuid"),
    "nvmlDeviceGetSerial": _text("serial"),
    "nvmlDeviceGetVbiosVersion": _text("vbios"),
    "nvmlDeviceGetIndex": _u32("index"),
    "nvmlDeviceGetMinorNumber": _u32("minor"),
    "nvmlDeviceGetPciInfo_v3": pci_info,
    "nvmlDeviceGetMemoryInfo": memory_v1,
    "nvmlDeviceGetMemoryInfo_v2": memory_v2,
    "nvmlDeviceGetBAR1MemoryInfo": bar1,
    "nvmlDeviceGetCudaComputeCapability": _pair("compute_capability"),
    "nvmlDeviceGetTemperature": temperature,
    "nvmlDeviceGetTemperatureV": temperature_v,
    "nvmlDeviceGetTemperatureThreshold": temperature_threshold,
    "nvmlDeviceGetPerformanceState": _u32("pstate"),
    "nvmlDeviceGetPowerUsage": _u32("power_mw"),
    "nvmlDeviceGetPowerManagementLimit": _u32("power_limit_mw"),
    "nvmlDeviceGetPowerManagementDefaultLimit": _u32("power_default_mw"),
    "nvmlDeviceGetEnforcedPowerLimit": _u32("power_limit_mw"),
    "nvmlDeviceGetPowerManagementLimitConstraints": power_constraints,
    "nvmlDeviceGetCurrPcieLinkGeneration": _u32("pcie_gen"),
    "nvmlDeviceGetMaxPcieLinkGeneration": _u32("pcie_gen_max"),
    "nvmlDeviceGetCurrPcieLinkWidth": _u32("pcie_width"),
    "nvmlDeviceGetMaxPcieLinkWidth": _u32("pcie_width_max"),
    "nvmlDeviceGetPcieReplayCounter": _u32("pcie_replays"),
    "nvmlDeviceGetPersistenceMode": _u32("persistence"),
    "nvmlDeviceGetComputeMode": _u32("compute_mode"),
    "nvmlDeviceGetFanSpeed": _u32("fan"),
    "nvmlDeviceGetEccMode": _pair("ecc"),
    "nvmlDeviceGetTotalEccErrors": ecc_errors,
    "nvmlDeviceGetRemappedRows": _pair("remapped"),
    "nvmlDeviceGetMigMode": _pair("mig"),
    "nvmlDeviceGetCurrentClocksEventReasons": _u32("reasons", U64),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _u32("reasons", U64),
    "nvmlDeviceGetClockInfo": _indexed("clocks"),
    "nvmlDeviceGetMaxClockInfo": _indexed("clocks_max"),
    "nvmlDeviceGetUtilizationRates": utilization,
    "nvmlDeviceGetFieldValues": field_values,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("processes"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics_processes"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _processes("mps_processes"),
}
