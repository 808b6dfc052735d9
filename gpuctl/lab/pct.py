"""The `pct` program of the lab node: Proxmox's container tool as far as gpuctl and its users need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpuctl.lab.control import Call
from gpuctl.lab.machine import Node
from gpuctl.lab.pve.backend import TaskFailed
from gpuctl.lab.pve.fault import Fault
from gpuctl.lab.pve.schema import check_properties, options

ERROR: Final = 255
ABSENT: Final = 2
"""Exit status of a missing configuration: Perl's errno ENOENT."""
_SET: Final[dict[str, dict[str, Any]]] = {
    name: {"type": "string", "optional": 1} for name in ("delete", "revert", "digest")
}
_USAGE: Final = "ERROR: {text}\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]\n"


def run(call: Call, node: Node) -> int:
    """One `pct` call; the exit status is Proxmox's: 0, 255 on an error, 2 when the configuration is missing."""
    command = call.words[0] if call.words else ""
    handler = _COMMANDS.get(command)
    if handler is None:
        text = f"unknown command 'pct {command}'" if command else "no command specified"
        call.error(_USAGE.format(text=text))
        return ERROR
    if command == "list":
        return handler(call, node, 0)
    if len(call.words) < 2:
        call.error("400 not enough arguments\n")
        return ERROR
    if not call.words[1].isdigit() or int(call.words[1]) < 100:
        call.error("400 Parameter verification failed.\nvmid: type check ('integer') failed\n")
        return ERROR
    vmid = int(call.words[1])
    if not (node.conf_dir / f"{vmid}.conf").is_file():
        call.error(f"Configuration file 'nodes/{node.node}/lxc/{vmid}.conf' does not exist\n")
        return ABSENT
    try:
        return handler(call, node, vmid)
    except TaskFailed as error:
        call.error(f"{error}\n")
    except Fault as error:
        head = f"{error.status} " if error.status == 400 else ""
        call.error(head + error.message + "".join(f"{name}: {text}\n" for name, text in error.errors.items()))
    return ERROR


def _exec(call: Call, node: Node, vmid: int) -> int:
    words = call.words[2:]
    while words and words[0].startswith("--") and words[0] != "--":
        words = words[1:] if "=" in words[0] else words[2:]
    if words and words[0] == "--":
        words = words[1:]
    if not words:
        call.error("400 Parameter verification failed.\nextra-args: property is missing and it is not optional\n")
        return ERROR
    view = node.view(vmid)
    if view is None:
        raise TaskFailed(f"container '{vmid}' not running!")
    return call.run(view.argv(words), view.env())


def _start(call: Call, node: Node, vmid: int) -> int:
    if node.running(vmid):
        raise TaskFailed(f"CT {vmid} already running")
    node.guests.start(vmid, _Log(call))
    return 0


def _stop(call: Call, node: Node, vmid: int) -> int:
    if not node.running(vmid):
        raise TaskFailed(f"CT {vmid} not running")
    node.guests.stop(vmid, _Log(call))
    return 0


def _shutdown(call: Call, node: Node, vmid: int) -> int:
    if not node.running(vmid):
        raise TaskFailed(f"CT {vmid} not running")
    node.guests.shutdown(vmid, 60, _Log(call))
    return 0


def _reboot(call: Call, node: Node, vmid: int) -> int:
    if not node.running(vmid):
        raise TaskFailed(f"VM {vmid} not running")
    node.guests.reboot(vmid, 60, _Log(call))
    return 0


def _set(call: Call, node: Node, vmid: int) -> int:
    """`pct set VMID --KEY VALUE ...`: as root@pam, who may change everything."""
    words, form = _split(call.words[2:])
    if words:
        call.error("400 too many arguments\n")
        return ERROR
    if errors := check_properties({**options(), **_SET}, form):
        raise Fault(400, "Parameter verification failed.", errors)
    node.guests.update(vmid, form)
    return 0


def _status(call: Call, node: Node, vmid: int) -> int:
    call.out(f"status: {'running' if node.running(vmid) else 'stopped'}\n")
    return 0


def _config(call: Call, node: Node, vmid: int) -> int:
    main = node.store.load(vmid).main
    lines = [f"{key}: {value}" for key, value in sorted(main.values.items())]
    lines += [f"lxc: {key}={value}" for key, value in main.lxc]
    call.out("".join(f"{line}\n" for line in lines))
    return 0


def _list(call: Call, node: Node, _: int) -> int:
    lines = [f"{'VMID':<10} {'Status':<10} {'Lock':<12} {'Name':<20}"]
    for vmid in node.store.vmids():
        values = node.store.load(vmid).main.values
        status = "running" if node.running(vmid) else "stopped"
        lines.append(f"{vmid:<10} {status:<10} {values.get('lock', ''):<12} {values.get('hostname', ''):<20}")
    call.out("".join(f"{line}\n" for line in lines))
    return 0


def _push(call: Call, node: Node, vmid: int) -> int:
    """`pct push VMID FILE DESTINATION [--perms MODE] [--user U] [--group G]`: the caller has opened FILE for us."""
    words, options = _split(call.words[2:])
    if len(words) != 2 or call.extra is None:
        call.error("400 not enough arguments\n")
        return ERROR
    view = node.view(vmid)
    if view is None:
        raise TaskFailed(f"CT {vmid} not running")
    mode = options.get("perms", "0644")
    if not mode.isdigit():
        call.error("400 Parameter verification failed.\nperms: type check ('integer') failed\n")
        return ERROR
    script = 'cat > "$1" && chmod "$2" "$1"'
    rc = call.run(view.argv(("/bin/sh", "-c", script, "sh", words[1], mode)), view.env(), stdin=call.extra)
    if rc:
        call.error(f"failed to create file: {words[1]}\n")
    return ERROR if rc else 0


def _pull(call: Call, node: Node, vmid: int) -> int:
    """`pct pull VMID PATH DESTINATION`: the caller has opened DESTINATION for us."""
    words, _ = _split(call.words[2:])
    if len(words) != 2 or call.extra is None:
        call.error("400 not enough arguments\n")
        return ERROR
    view = node.view(vmid)
    if view is None:
        raise TaskFailed(f"CT {vmid} not running")
    rc = call.run(view.argv(("/bin/cat", "--", words[0])), view.env(), stdout=call.extra)
    return ERROR if rc else 0


def _split(words: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    plain, options, rest = list[str](), dict[str, str](), list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            name, separator, value = word.lstrip("-").partition("=")
            options[name] = value if separator else (rest.pop(0) if rest else "")
        else:
            plain.append(word)
    return plain, options


class _Log:
    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, text: str) -> None:
        self._call.out(f"{text}\n")

    def warn(self, text: str) -> None:
        self._call.error(f"WARN: {text}\n")


_COMMANDS: Final[dict[str, Callable[[Call, Node, int], int]]] = {
    "config": _config,
    "exec": _exec,
    "list": _list,
    "pull": _pull,
    "push": _push,
    "reboot": _reboot,
    "set": _set,
    "shutdown": _shutdown,
    "start": _start,
    "status": _status,
    "stop": _stop,
}
