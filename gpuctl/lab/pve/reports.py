"""The read-only pictures of the node and its containers: status, lists, cluster resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuctl.lab.pve.api import Call, Site
from gpuctl.lab.pve.backend import NodeFacts
from gpuctl.lab.pve.conf import Conf
from gpuctl.lab.pve.formats import FormatError
from gpuctl.lab.pve.schema import options, parse_property_string

_MIB: Final = 1 << 20
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ADDRESS: Final = "192.0.2.10"
_PRESSURE: Final = tuple(f"pressure{what}{how}" for what in ("cpu", "io", "memory") for how in ("some", "full"))
_STORAGES: Final = (("local", "dir", "vztmpl,iso,backup"), ("local-zfs", "zfspool", "rootdir,images"))


def node_status(call: Call) -> Mapping[str, Any]:
    """Kernel, uptime, memory and load of the node."""
    facts = call.site.backend.facts()
    free_memory, free_disk = facts.memory_total - facts.memory_used, facts.disk_total - facts.disk_used
    return {
        "boot-info": {"mode": "legacy-bios"},
        "cpu": 0,
        "cpuinfo": _processor(facts),
        "current-kernel": {
            "machine": "x86_64",
            "release": facts.kernel_release,
            "sysname": "Linux",
            "version": facts.kernel_version,
        },
        "idle": 0,
        "ksm": {"shared": 0},
        "kversion": f"Linux {facts.kernel_release} {facts.kernel_version}",
        "loadavg": [f"{value:.2f}" for value in facts.load],
        "memory": {
            "available": free_memory,
            "free": free_memory,
            "total": facts.memory_total,
            "used": facts.memory_used,
        },
        "pveversion": "pve-manager/9.2.11/0123456789abcdef",
        "rootfs": {"avail": free_disk, "free": free_disk, "total": facts.disk_total, "used": facts.disk_used},
        "swap": {"free": 0, "total": 0, "used": 0},
        "uptime": int(call.site.backend.uptime_s()),
        "wait": 0,
    }


def _processor(facts: NodeFacts) -> Mapping[str, Any]:
    return {
        "cores": facts.cpus,
        "cpus": facts.cpus,
        "family": "25",
        "flags": "fpu vme de pse tsc msr pae mce cx8",
        "hvm": "",
        "mhz": "2600.000",
        "model": facts.cpu_model,
        "sockets": 1,
        "user_hz": 100,
        "vendor": "AuthenticAMD",
    }


def nodes(call: Call) -> list[Mapping[str, Any]]:
    """The nodes of the cluster, that is this one."""
    site = call.site
    row = {
        "id": f"node/{site.node}",
        "node": site.node,
        "ssl_fingerprint": site.fingerprint,
        "status": "unknown",
        "type": "node",
    }
    if site.statistics():
        row |= {"status": "online"}
        if call.may(f"/nodes/{site.node}", "Sys.Audit"):
            row |= {"level": "", **_node_numbers(site)}
    return [row]


def _node_numbers(site: Site) -> dict[str, Any]:
    facts = site.backend.facts()
    return {
        "cpu": 0,
        "disk": facts.disk_used,
        "maxcpu": facts.cpus,
        "maxdisk": facts.disk_total,
        "maxmem": facts.memory_total,
        "mem": facts.memory_used,
        "uptime": int(site.backend.uptime_s()),
    }


def cluster_status(call: Call) -> list[Mapping[str, Any]]:
    """The node; and a `cluster` entry only where there is a cluster."""
    site = call.site
    rows: list[Mapping[str, Any]] = []
    quorate = site.backend.quorate()
    if quorate is not None:
        rows.append(
            {"id": "cluster", "name": "lab", "nodes": 1, "quorate": int(quorate), "type": "cluster", "version": 1}
        )
    rows.append(
        {
            "id": f"node/{site.node}",
            "ip": _ADDRESS,
            "level": "",
            "local": 1,
            "name": site.node,
            "nodeid": 0,
            "online": 1,
            "type": "node",
        }
    )
    return rows


def cluster_resources(call: Call) -> list[Mapping[str, Any]]:
    """Guests, node, storages and networks the caller may see."""
    site, kind = call.site, call.values.get("type")
    rows: list[Mapping[str, Any]] = []
    if kind in (None, "vm"):
        rows += [_guest_row(site, vmid) for vmid in site.store.vmids() if call.may(f"/vms/{vmid}", "VM.Audit")]
        rows += [
            _machine_row(site, vmid, name)
            for vmid, name in sorted(site.backend.virtual_machines().items())
            if call.may(f"/vms/{vmid}", "VM.Audit")
        ]
    if kind in (None, "node"):
        rows.append(_node_row(call))
    if kind in (None, "storage"):
        rows += [
            _storage_row(site, *storage)
            for storage in _STORAGES
            if call.may(f"/storage/{storage[0]}", "Datastore.Audit")
        ]
    if kind in (None, "sdn") and call.may("/sdn/zones/localnetwork", "SDN.Audit"):
        name = "localnetwork"
        rows.append(
            {
                "id": f"network/{site.node}/zone/{name}",
                "network": name,
                "network-type": "zone",
                "node": site.node,
                "status": "ok",
                "type": "network",
            }
        )
    return rows


def _guest_row(site: Site, vmid: int) -> Mapping[str, Any]:
    row: dict[str, Any] = {
        "id": f"lxc/{vmid}",
        "node": site.node,
        "status": "unknown",
        "type": "lxc",
        "vmid": vmid,
    }
    if not site.statistics():
        return row
    numbers = _numbers(site, site.store.load(vmid))
    kept = ("cpu", "disk", "diskread", "diskwrite", "lock", "maxdisk", "maxmem", "mem", "name", "netin", "netout")
    row |= {key: numbers[key] for key in (*kept, "status", "tags", "uptime") if key in numbers}
    return row | {"maxcpu": numbers["cpus"], "memhost": numbers["mem"], "template": 0}


def _machine_row(site: Site, vmid: int, name: str) -> Mapping[str, Any]:
    return {
        "id": f"qemu/{vmid}",
        "node": site.node,
        "type": "qemu",
        "vmid": vmid,
        "status": "stopped",
        "name": name,
        "template": 0,
        "uptime": 0,
        "maxcpu": 1,
        "maxmem": 512 * _MIB,
        "mem": 0,
        "cpu": 0,
        "disk": 0,
        "maxdisk": 0,
    }


def _node_row(call: Call) -> Mapping[str, Any]:
    site = call.site
    row: dict[str, Any] = {"id": f"node/{site.node}", "node": site.node, "type": "node", "status": "unknown"}
    if site.statistics():
        row |= {"status": "online", "level": "", "cgroup-mode": 2, **_node_numbers(site)}
    return row


def _storage_row(site: Site, name: str, plugin: str, content: str) -> Mapping[str, Any]:
    return {
        "content": content,
        "id": f"storage/{site.node}/{name}",
        "node": site.node,
        "plugintype": plugin,
        "shared": 0,
        "status": "unknown",
        "storage": name,
        "type": "storage",
    }


def container_list(call: Call) -> list[Mapping[str, Any]]:
    """The containers the caller may see; one unreadable file fails the whole list, as on a real node."""
    confs = [call.site.store.load(vmid) for vmid in call.site.store.vmids()]
    return [_numbers(call.site, conf) for conf in confs if call.may(f"/vms/{conf.vmid}", "VM.Audit")]


def container_status(call: Call) -> Mapping[str, Any]:
    """State and live numbers of a container."""
    return _numbers(call.site, call.site.store.load(call.vmid)) | {"ha": {"managed": 0}}


def _numbers(site: Site, conf: Conf) -> dict[str, Any]:
    values, facts = conf.main.values, site.backend.facts()
    runtime = site.backend.runtime(conf.vmid)
    row: dict[str, Any] = {
        "cpu": 0,
        "cpus": values.get("cores", facts.cpus),
        "disk": 0,
        "diskread": 0,
        "diskwrite": 0,
        "maxdisk": disk_size(str(values.get("rootfs", ""))),
        "maxmem": _mib(values.get("memory", 512)),
        "maxswap": _mib(values.get("swap", 512)),
        "mem": 0,
        "name": values.get("hostname", f"CT{conf.vmid}"),
        "netin": 0,
        "netout": 0,
        "status": "stopped",
        "swap": 0,
        "type": "lxc",
        "uptime": 0,
        "vmid": conf.vmid,
    }
    row |= {key: values[key] for key in ("lock", "tags", "template") if values.get(key)}
    if runtime is not None:
        row |= {"status": "running", "pid": runtime.pid, "uptime": int(runtime.uptime_s)}
        row |= {"mem": runtime.memory_bytes, "disk": facts.disk_used, "maxdisk": facts.disk_total}
        row |= dict.fromkeys(_PRESSURE)
    return row


def _mib(value: Any) -> int:
    return int(value) * _MIB if str(value).isdigit() else 0


def disk_size(rootfs: str) -> int:
    """Bytes of a `rootfs` value's `size`, 0 when it has none."""
    try:
        size = str(parse_property_string(options()["rootfs"]["format"], rootfs).get("size", "0"))
    except FormatError:
        return 0
    unit = size[-1] if size[-1] in _SIZES else ""
    return int(float(size.removesuffix(unit)) * _SIZES[unit]) if unit else int(float(size))
