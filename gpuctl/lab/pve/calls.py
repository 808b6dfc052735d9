"""What each call of the API does, and the literal table of the calls the lab has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuctl.lab.pve import pending, reports
from gpuctl.lab.pve.api import Call, Handler
from gpuctl.lab.pve.backend import TaskLog
from gpuctl.lab.pve.conf import Section, not_a
from gpuctl.lab.pve.fault import Fault, bad_parameters, failed
from gpuctl.lab.pve.rights import check_options
from gpuctl.lab.pve.tasks import Task, log_page

VERSION: Final = {"version": "9.2.11", "release": "9.2", "repoid": "0123456789abcdef"}
_GUEST_INDEX: Final = (
    "config pending status vncproxy termproxy vncwebsocket spiceproxy migrate clone rrd rrddata firewall snapshot "
    "resize interfaces"
)


def login(call: Call) -> Mapping[str, Any]:
    """A ticket for a password, or for a ticket."""
    name = call.values["username"]
    if "@" not in name and "realm" in call.values:
        name = f"{name}@{call.values['realm']}"
    user = call.site.authority.login(name, call.values["password"])
    if user is None:
        raise Fault(401, "authentication failure")
    return {
        "username": user,
        "ticket": call.site.authority.ticket(user),
        "CSRFPreventionToken": call.site.authority.csrf(user),
        "cap": call.site.users.capabilities(user),
    }


def nothing(_call: Call) -> None:
    """The login page's dummy."""


def version(_call: Call) -> Mapping[str, str]:
    """Version of the manager."""
    return VERSION


def permissions(call: Call) -> Mapping[str, Mapping[str, int]]:
    """The caller's own privileges by path."""
    wanted = [call.values["path"]] if "path" in call.values else call.site.users.paths()
    found = {path: call.site.users.privileges(call.caller, path) for path in wanted}
    return {path: dict.fromkeys(sorted(names), 1) for path, names in found.items() if names}


def next_id(call: Call) -> str:
    """The lowest free VMID."""
    taken = {*call.site.store.vmids(), *call.site.backend.virtual_machines()}
    return str(next(vmid for vmid in range(100, 1_000_000_000) if vmid not in taken))


def config(call: Call) -> Mapping[str, Any]:
    """Options of a container; pending changes are merged unless `current`, or those of a snapshot."""
    conf = call.site.store.load(call.vmid)
    if "snapshot" in call.values:
        return _shown(_snapshot(conf.snapshots, call.values["snapshot"]), conf.digest)
    if call.flag("current"):
        data = conf.main.to_json()
    else:
        if "pending" in conf.main.values:
            place = "/usr/share/perl5/PVE/AbstractConfig.pm line 236"
            raise failed(not_a("HASH", conf.main.values["pending"], place))
        data = pending.merged(conf)
    return {key: data[key] for key in data if key not in ("pending", "snapshots")} | {"digest": conf.digest}


def _snapshot(snapshots: Mapping[str, Section], name: str) -> Section:
    if name not in snapshots:
        raise failed(f"snapshot '{name}' does not exist")
    return snapshots[name]


def _shown(section: Section, digest: str) -> Mapping[str, Any]:
    return {key: value for key, value in section.to_json().items() if key != "lxc"} | {"digest": digest}


def set_config(call: Call) -> None:
    """Change options."""
    path = f"/vms/{call.vmid}"

    def require(privilege: str) -> None:
        call.require(path, privilege)

    call.site.guests.update(
        call.vmid, call.form, lambda conf: check_options(call.caller, conf, call.form, require)
    )


def pending_list(call: Call) -> list[dict[str, Any]]:
    """Each option with its value and what is pending for it."""
    conf = call.site.store.load(call.vmid)
    if "pending" in conf.main.values:
        raise failed(not_a("HASH", conf.main.values["pending"], "/usr/share/perl5/PVE/LXC.pm line 1643"))
    return pending.listing(conf)


def snapshots(call: Call) -> list[dict[str, Any]]:
    """The snapshots, then `current`."""
    conf = call.site.store.load(call.vmid)
    rows = [
        {
            "name": name,
            "snaptime": section.values.get("snaptime", 0),
            "description": section.description or "",
            **({"parent": section.values["parent"]} if "parent" in section.values else {}),
        }
        for name, section in sorted(conf.snapshots.items())
    ]
    running = int(call.site.backend.running(call.vmid))
    current: dict[str, Any] = {
        "name": "current",
        "digest": conf.digest,
        "running": running,
        "description": "You are here!",
    }
    if "parent" in conf.main.values:
        current["parent"] = conf.main.values["parent"]
    return [*rows, current]


def snapshot_config(call: Call) -> Mapping[str, Any]:
    """Options of a snapshot; its raw lines are not shown, as on a real node."""
    conf = call.site.store.load(call.vmid)
    section = _snapshot(conf.snapshots, call.values["snapname"])
    return {key: value for key, value in section.to_json().items() if key != "lxc"}


def guest_index(_call: Call) -> list[dict[str, str]]:
    """What lies below a container."""
    return [{"subdir": name} for name in _GUEST_INDEX.split()]


def qemu_config(call: Call) -> Mapping[str, Any]:
    """A VM's options: the lab only lists VMs, so there is little to say."""
    machines = call.site.backend.virtual_machines()
    if call.vmid not in machines:
        place = f"nodes/{call.site.node}/qemu-server/{call.vmid}.conf"
        raise failed(f"Configuration file '{place}' does not exist")
    return {"name": machines[call.vmid], "digest": "0" * 40}


# --- power --------------------------------------------------------------------------------------------


def _work(call: Call, kind: str, work: Callable[[TaskLog], None]) -> str:
    return call.site.tasks.start(kind, str(call.vmid), call.caller, work).upid


def _skiplock(call: Call) -> bool:
    if call.flag("skiplock") and not call.is_root:
        raise bad_parameters({"skiplock": "Only root may use this option."})
    return call.flag("skiplock")


def _must_run(call: Call, kind: str = "CT") -> None:
    if not call.site.backend.running(call.vmid):
        raise failed(f"{kind} {call.vmid} not running")


def start(call: Call) -> str:
    """Start a container; whether that works shows only in the task."""
    skiplock = _skiplock(call)
    if call.site.backend.running(call.vmid):
        raise failed(f"CT {call.vmid} already running")
    if call.site.backend.quorate() is False:
        raise failed("cluster not ready - no quorum?")
    vmid, guests = call.vmid, call.site.guests
    return _work(call, "vzstart", lambda log: guests.start(vmid, log, skiplock=skiplock))


def stop(call: Call) -> str:
    """Kill a container."""
    skiplock = _skiplock(call)
    _must_run(call)
    vmid, guests = call.vmid, call.site.guests
    return _work(call, "vzstop", lambda log: guests.stop(vmid, log, skiplock=skiplock))


def shutdown(call: Call) -> str:
    """Ask a container to end."""
    _must_run(call)
    vmid, guests, limit, force = call.vmid, call.site.guests, call.number("timeout", 60), call.flag("forceStop")
    return _work(call, "vzshutdown", lambda log: guests.shutdown(vmid, limit, log, force=force))


def reboot(call: Call) -> str:
    """Stop and start, which applies what is pending."""
    _must_run(call, "VM")
    vmid, guests, limit = call.vmid, call.site.guests, call.number("timeout", 60)
    return _work(call, "vzreboot", lambda log: guests.reboot(vmid, limit, log))


# --- tasks --------------------------------------------------------------------------------------------


def _may_see(call: Call, task: Task) -> bool:
    return task.owned_by(call.caller) or call.may(f"/nodes/{call.site.node}", "Sys.Audit")


def _own_task(call: Call) -> Task | None:
    task = call.site.tasks.get(call.values["upid"])
    if task is None or not _may_see(call, task):
        owner = call.values["upid"].split(":")[7]
        if owner != call.caller and owner.partition("!")[0] != call.caller:
            call.require(f"/nodes/{call.site.node}", "Sys.Audit")
    return task


def task_status(call: Call) -> Mapping[str, Any]:
    """Running or stopped, and how it ended."""
    _own_task(call)
    return call.site.tasks.status(call.values["upid"])


def task_log(call: Call) -> list[Mapping[str, Any]]:
    """Lines of a task's log."""
    lines, call.total = log_page(_own_task(call), call.number("start", 0), call.number("limit", 50))
    return lines


def task_list(call: Call) -> list[Mapping[str, Any]]:
    """Tasks of the node, newest first."""
    found = [task for task in call.site.tasks.newest() if _may_see(call, task) and _wanted(call, task)]
    call.total = len(found) or None
    first, limit = call.number("start", 0), call.number("limit", 50)
    return [task.entry() for task in found[first : first + limit]]


def _wanted(call: Call, task: Task) -> bool:
    values, active = call.values, task.exit_status is None
    source = values.get("source", "archive")
    if source != "all" and active != (source == "active"):
        return False
    if call.flag("errors") and (active or re.fullmatch(r"OK|WARNINGS: \d+", task.exit_status or "")):
        return False
    return (
        values.get("vmid", task.id) == task.id
        and values.get("typefilter", task.kind) == task.kind
        and values.get("userfilter", "") in task.user
        and call.number("since", 0) <= task.starttime <= call.number("until", int(time.time()) + 1)
    )


def cluster_tasks(call: Call) -> list[Mapping[str, Any]]:
    """Recent tasks of all nodes."""
    shown = ("upid", "node", "user", "type", "id", "starttime", "endtime", "status")
    found = [task.entry() for task in call.site.tasks.newest() if _may_see(call, task)]
    return [{key: entry[key] for key in shown if key in entry} for entry in found[:25]]


CALLS: Final[Mapping[str, Handler]] = {
    "GET /access/permissions": permissions,
    "GET /access/ticket": nothing,
    "POST /access/ticket": login,
    "GET /cluster/nextid": next_id,
    "GET /cluster/resources": reports.cluster_resources,
    "GET /cluster/status": reports.cluster_status,
    "GET /cluster/tasks": cluster_tasks,
    "GET /nodes": reports.nodes,
    "GET /nodes/{node}/lxc": reports.container_list,
    "GET /nodes/{node}/lxc/{vmid}": guest_index,
    "GET /nodes/{node}/lxc/{vmid}/config": config,
    "PUT /nodes/{node}/lxc/{vmid}/config": set_config,
    "GET /nodes/{node}/lxc/{vmid}/pending": pending_list,
    "GET /nodes/{node}/lxc/{vmid}/snapshot": snapshots,
    "GET /nodes/{node}/lxc/{vmid}/snapshot/{snapname}/config": snapshot_config,
    "GET /nodes/{node}/lxc/{vmid}/status/current": reports.container_status,
    "POST /nodes/{node}/lxc/{vmid}/status/reboot": reboot,
    "POST /nodes/{node}/lxc/{vmid}/status/shutdown": shutdown,
    "POST /nodes/{node}/lxc/{vmid}/status/start": start,
    "POST /nodes/{node}/lxc/{vmid}/status/stop": stop,
    "GET /nodes/{node}/qemu/{vmid}/config": qemu_config,
    "GET /nodes/{node}/status": reports.node_status,
    "GET /nodes/{node}/tasks": task_list,
    "GET /nodes/{node}/tasks/{upid}/log": task_log,
    "GET /nodes/{node}/tasks/{upid}/status": task_status,
    "GET /nodes/{node}/version": version,
    "GET /version": version,
}
