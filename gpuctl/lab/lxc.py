"""A container of the lab's second level: started by the real lxc-start on the lab host, entered by lxc-attach."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuctl.lab.holder import remove_cgroup
from gpuctl.lab.lxc_config import cgroup_dirs
from gpuctl.lab.namespaces import View
from gpuctl.lab.pve.backend import TaskFailed, TaskLog
from gpuctl.lab.way import Unfit
from inventory.reentry import command

_LIMIT_S: Final = 30.0
_LOG_LINES: Final = 20
_PROBE: Final = (
    "mknod -m 666 /dev/.gpuctl-lab-probe c 60 0 && { : <> /dev/.gpuctl-lab-probe; }; rm -f /dev/.gpuctl-lab-probe"
)
"""60 is kept for experiments: no driver has it, and no rule of ours allows it."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The lxc-* programs, run on the lab host for one container."""

    host: View
    lxcpath: str
    vmid: int

    def run(self, program: str, *words: str, limit_s: float = _LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run one; its stdout and stderr come back as `stdout`. Raises `TaskFailed` after the limit."""
        argv = self.host.argv((program, "-P", self.lxcpath, "-n", str(self.vmid), *words))
        try:
            return subprocess.run(
                argv,
                env=self.host.env(),
                cwd="/",
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TaskFailed(f"{program} of container '{self.vmid}' did not end within {limit_s:g} s") from error


class Container:
    """A running container; its first process is held by a pidfd, so that its number cannot be mistaken."""

    def __init__(self, tools: Tools, pid: int, env: dict[str, str]) -> None:
        self._tools = tools
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._env = env

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self._pid}/root")

    def argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        tools = self._tools
        return tools.host.argv(("lxc-attach", "-P", tools.lxcpath, "-n", str(tools.vmid), "--", *words))

    def shell(self, line: str) -> tuple[str, ...]:
        return self.argv(("/bin/sh", "-c", 'cd "$HOME"; eval "$1"', "sh", line))

    def env(self) -> dict[str, str]:
        return dict(self._env)

    def alive(self) -> bool:
        return self._pidfd >= 0 and not select.select([self._pidfd], [], [], 0)[0]

    def kill(self) -> None:
        if self._tools.host.alive():
            with contextlib.suppress(TaskFailed):
                self._tools.run("lxc-stop", "-k", limit_s=10)
        if self.alive():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._release()

    def shutdown(self, timeout_s: float) -> None:
        """Ask it to end. Raises `TaskFailed` when it runs on after the limit."""
        limit = str(max(1, int(timeout_s)))
        done = self._tools.run("lxc-stop", "--nokill", "-t", limit, limit_s=timeout_s + 10)
        if done.returncode:
            raise TaskFailed("container did not stop")
        self._release()

    def pass_in(self, node: Path, path: str) -> None:
        """Bind a node of the real machine at `path` inside. Raises `TaskFailed`."""
        script = 'mkdir -p "${1%/*}" && : >> "$1"'
        for argv in (
            self.argv(("/bin/sh", "-c", script, "sh", path)),
            command("gpuctl.lab.bind", str(self._pid), str(node), path),
        ):
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL, env=self._env
            )
            if done.returncode:
                raise TaskFailed(f"cannot pass {path} in: {done.stderr.strip()[-200:]}")

    def allow(self, rule: str) -> None:
        """Add a device rule to the running container. Raises `TaskFailed`."""
        done = self._tools.run("lxc-cgroup", "devices.allow", rule)
        if done.returncode:
            raise TaskFailed(f"lxc-cgroup devices.allow {rule}: {done.stdout.strip()[-200:]}")

    def _release(self) -> None:
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [], 10)
            os.close(self._pidfd)
        self._pidfd = -1


def start(tools: Tools, cgroup: str, env: dict[str, str], log: TaskLog) -> Container:
    """Start from the configuration in lxcpath. Raises `TaskFailed`; what LXC said goes to the log.

    Raises `Unfit` when the container runs, but not where LXC puts it on a pure cgroup2 host.
    """
    for folder in cgroup_dirs(cgroup, tools.vmid):
        # Of a start that failed, or of a monitor that is just ending: LXC gives up where one of this name exists.
        remove_cgroup(tools.host.root / "sys/fs/cgroup" / folder)
    record = f"{tools.lxcpath}/{tools.vmid}/lxc.log"
    place = tools.host.root / record.lstrip("/")
    place.unlink(missing_ok=True)
    done = tools.run("lxc-start", "-o", record, "-l", "INFO")
    if done.returncode:
        for line in _errors(place):
            log(line)
        raise TaskFailed(f"startup for container '{tools.vmid}' failed")
    pid = _first_process(tools, cgroup)
    if pid is None:
        if tools.run("lxc-info", "-s", "-H").stdout.strip() == "STOPPED":
            raise TaskFailed(f"startup for container '{tools.vmid}' failed")
        tools.run("lxc-stop", "-k")
        raise _unfit("its container is not in the unified hierarchy")
    return Container(tools, pid, env)


def require_enforced(container: Container) -> None:
    """Raises `Unfit` when a privileged container can open a device without a rule.

    Where LXC finds another layout than pure cgroup2 it ignores the rules without a word.
    """
    done = subprocess.run(
        container.argv(("/bin/sh", "-c", _PROBE)),
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    # EPERM is the rule's own answer, also where the container may not even make the node.
    if "not permitted" not in done.stderr:
        raise _unfit(done.stderr.strip()[-80:] or "a node without a rule could be opened")


def _unfit(why: str) -> Unfit:
    return Unfit(
        f"LXC's device rules are not enforced on this machine: {why}",
        hint="level 1 needs cgroup2 and BPF device programs (CONFIG_CGROUP_BPF); level 0 works without",
    )


def _first_process(tools: Tools, cgroup: str) -> int | None:
    """The daemon's number for the container's process 1: cgroup.procs is read in the reader's own pid namespace."""
    file = tools.host.root / "sys/fs/cgroup" / cgroup_dirs(cgroup, tools.vmid)[1] / "ns/cgroup.procs"
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            for word in file.read_text().split():
                if _innermost(int(word)) == 1:
                    return int(word)
        time.sleep(0.01)
    return None


def _innermost(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _errors(record: Path) -> Sequence[str]:
    try:
        lines = record.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return [line for line in lines if " ERROR " in line or " WARN " in line][-_LOG_LINES:]
