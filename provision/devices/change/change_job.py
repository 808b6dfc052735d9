"""The jobs that change a Proxmox host, as root: nodes, configurations, a running container's rules, the boot unit.

Each checks its arguments itself: what comes over the wire can ask for what gpuctl does and for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inventory.errors import ConfigError
from inventory.machine import Emit
from provision.devices.change import conf_file, tool
from provision.devices.config import conf, rules
from provision.devices.planning import modprobe

STEP_LIMIT_S = 60.0
"""Limit of one nvidia-modprobe; loading the module with many GPUs takes seconds."""
RULE_LIMIT_S = 10.0
MOST_RULES = 64


def prepare(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Load the driver and make its nodes. args: `steps`, argv lists: calls of nvidia-modprobe, or modprobe of NVIDIA's.

    Nothing is run unless every step is one of those (`modprobe.check_step`). An exit status of 0 proves nothing
    (`ModifyDeviceFiles=0` does nothing and says so to nobody): observe again. Returns `ran`, a list of `argv`, `rc`,
    `stderr`. Raises `ConfigError` for any other program, `Failed` when one is missing or takes longer than 60 s.
    """
    steps = [tuple(str(word) for word in step) for step in args.get("steps", ())]
    for step in steps:
        modprobe.check_step(step)
    ran = []
    for step in steps:
        emit({"type": "note", "text": " ".join(step)})
        missing = "install the package nvidia-modprobe there" if step[0] == "nvidia-modprobe" else ""
        ran.append(tool.run(step, STEP_LIMIT_S, missing=missing, late="see dmesg on the host").to_json())
    return {"ran": ran}


def edit_conf(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Replace a container's configuration. args: `vmid`, `digest` (SHA-1 of what it must be now), `text`.

    `text` holds one character per byte. Returns the new `digest` and the path of the `backup`.
    Raises `Refused` when the file changed meanwhile, has a `lock:`, or its lock can't be had in 10 s.
    """
    vmid = conf_file.vmid_of(args)
    digest, backup = conf_file.replace(vmid, str(args["digest"]), conf.as_bytes(str(args["text"])))
    return {"digest": digest, "backup": backup}


def undo_conf(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Take the newest edit of a container's configuration back. args: `vmid`, and `backup` (a path) to go further.

    Returns the new `digest`, the path that was `restored`, and the `backup` of what was undone: the same job with
    nothing named puts that back. Raises `Refused` when the file has changed since, has a `lock:`, is as before
    already, or there is no backup.
    """
    vmid = conf_file.vmid_of(args)
    digest, restored, backup = conf_file.undo(vmid, str(args.get("backup") or ""))
    return {"digest": digest, "restored": restored.path, "backup": backup}


def pct_set(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Set or delete `dev[n]` by `pct set`. args: `vmid`, `digest`, `set` (values by key), `delete` (keys).

    Returns the new `digest`, `written` (True: the file says what was asked, whatever pct's exit status), `pending`
    (keys that wait for the next start), `text` (what Proxmox said) and `backup` ("" when nothing changed).
    Raises `Refused` or `Failed` with Proxmox's own text when it does not, `ConfigError` for other keys.
    """
    from provision.devices.change import pct_set as pct

    vmid = conf_file.vmid_of(args)
    values = {str(key): str(value) for key, value in dict(args.get("set") or {}).items()}
    wanted = pct.asked(values, [str(key) for key in args.get("delete") or ()])
    done = pct.run(vmid, str(args.get("digest", "")), wanted)
    return {
        "digest": done.digest,
        "written": True,
        "pending": list(done.pending),
        "text": done.text,
        "backup": done.backup,
    }


def live_rules(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Let a running container use other devices, until its next start. args: `vmid`, `rules` to allow, `deny`.

    A rule is like `c 509:* rwm`. Returns `ran`, a list of `argv`, `rc`, `stderr`, one for each rule; the first that
    fails ends it.
    Raises `ConfigError` for what is no rule or speaks about every major, `Failed` without lxc-cgroup.
    """
    vmid = conf_file.vmid_of(args)
    keys = (("devices.allow", "rules"), ("devices.deny", "deny"))
    wanted = [(key, str(rule)) for key, name in keys for rule in args.get(name, ())]
    for _, text in wanted:
        rule = rules.parse_rule(text)
        if rule is None or rule.major is None or str(rule) != text:
            raise ConfigError(f"{text!r} is no rule for one major", hint="for example: c 509:* rwm")
    if len(wanted) > MOST_RULES:
        raise ConfigError(f"{len(wanted)} rules at once are more than {MOST_RULES}")
    ran = []
    for key, text in wanted:
        argv = ("lxc-cgroup", "-n", str(vmid), key, text)
        done = tool.run(argv, RULE_LIMIT_S, missing="is this a Proxmox VE host?", late="is the container frozen?")
        ran.append(done.to_json())
        if done.rc != 0:
            break
    return {"ran": ran}


def boot_unit(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """The unit that makes the nodes at boot. args: `action` (`show`, `install`, `remove`), `text` to install.

    Returns `path`, `text`, `installed`, `enabled`, `changed`. Raises `Refused` when a unit of this name isn't ours,
    `Failed` with systemctl's own words, `ConfigError` for another action or a text that calls something else.
    """
    from provision.devices.change import boot_unit_files

    action = args.get("action")
    if action == "show":
        return boot_unit_files.show().to_json()
    if action == "install":
        return boot_unit_files.install(str(args.get("text", ""))).to_json()
    if action == "remove":
        return boot_unit_files.remove().to_json()
    raise ConfigError(f"{action!r} is nothing to do with a boot unit", hint="show, install and remove are")
