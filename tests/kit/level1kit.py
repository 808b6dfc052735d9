"""What a user does on a level-1 lab: ssh to the host, pct into the container, gpuctl on both.

The host is one of real parts: lxc, device nodes by mknod, the kernel's own device program. Each test sets container
200 up anew by `start`; what it asserts of a node is the errno that the kernel gave.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any, Final

from labkit import Lab

NODES: Final = (*(f"nvidia{index}" for index in range(8)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
UVM: Final = "/dev/nvidia-uvm"
OLD: Final = "509"
"""A number that nvidia-uvm may have had once; the lab gives it to another driver's name."""

_RIGHT: Final = """\
if [ "$(pct status 200)" = "status: running" ]; then pct stop 200; fi
rm -rf /dev/nvidia-uvm /dev/nvidia-uvm-tools
nvidia-modprobe -u -c 0 && chmod 0666 /dev/nvidia* && chown 0:0 /dev/nvidia*"""

_PROBE: Final = """
import ctypes, errno, json, os, stat, sys
def look(path):
    try:
        found = os.lstat(path)
    except OSError as problem:
        return {"kind": errno.errorcode[problem.errno], "opened": errno.errorcode[problem.errno]}
    kind = next((n for n, is_kind in (("char", stat.S_ISCHR), ("file", stat.S_ISREG), ("folder", stat.S_ISDIR))
                 if is_kind(found.st_mode)), "other")
    seen = {"kind": kind, "number": f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}",
            "mode": oct(found.st_mode & 0o777), "owner": f"{found.st_uid}:{found.st_gid}", "opened": ""}
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as problem:
        seen["opened"] = errno.errorcode[problem.errno]
    return seen
cuda = ctypes.CDLL(os.environ["GPUCTL_LAB_NATIVE"] + "/libcuda.so.1").cuInit(0)
print(json.dumps({"cuda": cuda, **{path: look(path) for path in sys.argv[1:]}}))
"""

_NVML: Final = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
"""


def entries(*names: str, options: str = "bind,optional,create=file") -> tuple[str, ...]:
    """Raw mount entries for nodes; all of them without a name."""
    return tuple(f"lxc.mount.entry: /dev/{name} dev/{name} none {options}" for name in names or NODES)


def allow(*rules: str) -> tuple[str, ...]:
    """Raw device rules."""
    return tuple(f"lxc.cgroup2.devices.allow: {rule}" for rule in rules)


class Level1:
    """Container 200 of a level-1 lab, and gpuctl on it."""

    def __init__(self, lab: Lab, connect: Callable[[], Any]) -> None:
        self.lab = lab
        self._connect = connect
        self.client = connect()
        text = lab.conf.read_text().partition("\n[")[0]
        self._keys = [
            line for line in text.splitlines() if line and not line.startswith(("lxc.", "dev", "#", "unp"))
        ]

    def reconnect(self) -> None:
        """A new connection, after a reboot."""
        self.client = self._connect()

    def host(self, line: str) -> str:
        """Output of a shell line on the host, as root over ssh; it has to work."""
        return str(self.client.ok(line))

    def start(self, *lines: str, unprivileged: bool = False, host: str = "", run: bool = True) -> None:
        """Right nodes on the host; then the shell line `host`; then the container anew with these lines."""
        self.host(_RIGHT)
        own = ["unprivileged: 1"] if unprivileged else []
        text = "".join(f"{line}\n" for line in (*self._keys, *own, *lines))
        self.client.ok("cat > /etc/pve/lxc/200.conf", text.encode())
        if host:
            self.host(host)
        if run:
            self.host("pct start 200")

    @property
    def major(self) -> str:
        """What /proc/devices of the host gives nvidia-uvm now."""
        lines = [line.split() for line in self.host("cat /proc/devices").splitlines()]
        return next(words[0] for words in lines if words[1:] == ["nvidia-uvm"])

    @property
    def conf(self) -> list[str]:
        return self.lab.conf.read_text().splitlines()

    @property
    def through(self) -> str:
        """What `opened` says of a node of nvidia-uvm that mode bits and rules let through.

        In even boots cpuid's number 203 stands in, whose driver opens; nothing on this kernel has 511.
        """
        return "" if self.major == "203" else "ENXIO"

    def inside(self, *paths: str) -> dict[str, Any]:
        """What the kernel says in the container without any stand-in: `cuda` (cuInit of the library in C), paths."""
        words = ("pct", "exec", "200", "--", "python3", "-I", "-c", _PROBE, *(paths or (UVM,)))
        answer = json.loads(self.host(shlex.join(words)).splitlines()[-1])
        assert isinstance(answer, dict)
        return answer

    def opened(self, path: str = UVM) -> str:
        """The errno of open(O_RDWR) in the container, "" when a driver opened it.

        ENXIO: mode bits and device rules let it through, and this kernel has no driver of that number.
        """
        return str(self.inside(path)[path]["opened"])

    def nvml(self) -> str:
        """How many GPUs NVML counts in the container."""
        words = ("pct", "exec", "200", "--", "/opt/engine/bin/python", "-c", _NVML)
        return self.host(shlex.join(words)).strip()

    def process(self) -> list[str]:
        """Process id on the host of the container's first process, and when it was started."""
        return self.host("pid=$(lxc-info -n 200 -pH) && echo $pid $(cut -d' ' -f22 /proc/$pid/stat)").split()

    def show(self) -> str:
        """All that `devices show` found, planned and is blocked by, as text."""
        stages = self.lab.json("devices", "show", "ct200")["stages"]
        lines = [line for stage in stages for line in (*stage["found"], *stage["plan"])]
        return "\n".join([*lines, *(stage["blocked"]["message"] for stage in stages if stage["blocked"])])

    def facts(self) -> dict[str, Any]:
        return self.lab.json("devices", "facts", "ct200")

    def apply(self, *words: str) -> str:
        """The story of `devices apply`, what it found first; it has to succeed."""
        done = self.lab.run("devices", "apply", "ct200", "--yes", *words)
        assert done.returncode in (0, 1), done.stderr
        return done.stderr

    def settled(self) -> bool:
        """Whether a second look plans nothing."""
        return not [
            line for stage in self.lab.json("devices", "plan", "ct200")["stages"] for line in stage["plan"]
        ]
