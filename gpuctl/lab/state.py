"""The lab's state folder: where everything lies, and lab.json, written by rename."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from inventory.errors import ConfigError

NODE: Final = "pve"
VMID: Final = 200
DEFAULT_DIR: Final = ".lab"
TOLD: Final = 4
"""Exit status of a labd whose last line in the log is `ERROR_LINE` and an error as JSON."""
ERROR_LINE: Final = "labd-error "


@dataclass(frozen=True, slots=True)
class LabDir:
    """Paths below one lab's folder; `root` is absolute."""

    root: Path

    @property
    def info(self) -> Path:
        return self.root / "lab.json"

    @property
    def inventory(self) -> Path:
        return self.root / "gpuctl.yaml"

    @property
    def cert(self) -> Path:
        return self.root / "tls" / "cert.pem"

    @property
    def key(self) -> Path:
        return self.root / "tls" / "key.pem"

    @property
    def ssh(self) -> Path:
        return self.root / "ssh"

    @property
    def password(self) -> Path:
        return self.root / "secrets" / "root-pam"

    @property
    def api_token(self) -> Path:
        """Secret of the API token `gpuctl@pve!lab`."""
        return self.root / "secrets" / "gpuctl-pve-lab"

    @property
    def visitor_token(self) -> Path:
        """Secret of the API token `visitor@pve!none`, which may do nothing."""
        return self.root / "secrets" / "visitor-pve-none"

    @property
    def host_rootfs(self) -> Path:
        return self.root / "host" / "rootfs"

    @property
    def log(self) -> Path:
        return self.root / "labd.log"

    @property
    def lock(self) -> Path:
        return self.root / "labd.lock"

    @property
    def kernel(self) -> Path:
        """What the lab's kernel knows between two starts of labd: boot id, boot count, module state."""
        return self.root / "kernel.json"

    def ct_rootfs(self, vmid: int = VMID) -> Path:
        return self.root / "ct" / str(vmid) / "rootfs"

    @property
    def conf_dir(self) -> Path:
        """The real folder behind /etc/pve/lxc."""
        return self.host_rootfs / "etc" / "pve" / "nodes" / NODE / "lxc"

    @property
    def socket(self) -> Path:
        """Control socket, as seen from outside; inside the host's view it is /run/gpuctl-lab/control.sock."""
        return self.host_rootfs / "run" / "gpuctl-lab" / "control.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabInfo:
    """What lab.json says of a running lab: one daemon, its ports and how its processes are kept apart."""

    pid: int
    isolation: str
    """`namespaces` or `plain` (level 0), `lxc` (level 1)."""
    boot_id: str
    boot_count: int
    ports: dict[str, int]
    """`api`, `ssh`, `hub`, and `engine`, which the inventory names for the inference server in the container."""
    token: str
    """Value of GPUCTL_LAB in the environment of every process of this lab."""
    fingerprint: str
    """SHA-256 of the API's certificate, `AA:BB:...`."""
    dir: str
    pids: dict[str, int] = field(default_factory=dict)
    """Init processes of the namespaces by machine name."""
    notes: list[str] = field(default_factory=list)
    """What the user should know: for example that the Hub has nothing to serve."""
    level: int = 0
    """1: real device nodes and real LXC."""
    lab: bool = True
    schema_version: int = 1

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def open_dir(path: str | Path) -> LabDir:
    """The lab folder for a `--dir` value; made absolute, not created."""
    return LabDir(Path(path).expanduser().absolute())


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write by temporary file and rename."""
    write_file(path, (json.dumps(value, indent=2) + "\n").encode(), mode=mode)


def write_file(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` by temporary file and rename; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        staging.chmod(mode)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def read_info(lab: LabDir) -> LabInfo | None:
    """lab.json, or None when there is none. Raises `ConfigError` for a file that is not ours."""
    try:
        data = json.loads(lab.info.read_bytes())
        known = {name: data[name] for name in LabInfo.__dataclass_fields__ if name in data}
        return LabInfo(**known)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{lab.info} is not a lab's state file: {error}",
            hint="take another folder with --dir, or remove that file",
        ) from error
