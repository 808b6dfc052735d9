"""The jobs that change a Proxmox host, as root: make the driver's nodes, replace a container's configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from inventory.errors import ConfigError, Failed
from inventory.machine import Emit
from provision.devices import conf, conf_file

STEP_LIMIT_S = 60.0
"""Limit of one nvidia-modprobe; loading the module with many GPUs takes seconds."""


def prepare(args: Mapping[str, Any], emit: Emit) -> dict[str, Any]:
    """Run nvidia-modprobe steps. args: `steps`, argv lists that begin with nvidia-modprobe.

    An exit status of 0 proves nothing (`ModifyDeviceFiles=0` does nothing and says so to nobody): observe again.
    Raises `ConfigError` for any other program, `Failed` when it is missing or takes longer than 60 s.
    """
    ran = []
    for step in args.get("steps", ()):
        argv = [str(word) for word in step]
        if not argv or argv[0] != "nvidia-modprobe":
            raise ConfigError(f"{argv[:1]} is no step of preparing a host: only nvidia-modprobe is")
        emit({"type": "note", "text": " ".join(argv)})
        try:
            done = subprocess.run(
                argv, capture_output=True, timeout=STEP_LIMIT_S, stdin=subprocess.DEVNULL, check=False
            )
        except FileNotFoundError as error:
            raise Failed(
                "nvidia-modprobe is not installed on the host", hint="install the package nvidia-modprobe there"
            ) from error
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Failed(f"{' '.join(argv)} did not work: {error}", hint="see dmesg on the host") from error
        text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        ran.append({"argv": argv, "rc": done.returncode, "stderr": text[-4000:]})
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
