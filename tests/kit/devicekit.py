"""Host states in short form, and an in-memory host with its container that refuses what the real ones refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inventory.errors import CannotLook, Failed, Refused
from inventory.machine import Emit, ignore
from inventory.model import Container, Devices, Gpus
from provision.devices.change import change_job
from provision.devices.config import conf, edits, rules
from provision.devices.facts import Content, CtFacts, Gpu, HostFacts, Module, Node, NodeKind, State

BASE = (
    "arch: amd64\nhostname: ct200\nmemory: 65536\nostype: debian\nrootfs: local-zfs:subvol-200-disk-0,size=64G\n"
)
ALLOW = "lxc.cgroup2.devices.allow: "
WANTED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def raw_conf(*majors: int, gpus: int = 1, names: tuple[str, ...] = WANTED) -> str:
    """The classical privileged configuration: one rule a major, one optional mount a node."""
    rules = "".join(f"{ALLOW}c {major}:* rwm\n" for major in majors)
    nodes = (*(f"nvidia{n}" for n in range(gpus)), *names)
    return (
        BASE
        + rules
        + "".join(f"lxc.mount.entry: /dev/{n} dev/{n} none bind,optional,create=file\n" for n in nodes)
    )


def proc_devices(**drivers: int) -> str:
    """Text of /proc/devices; `_` in a name stands for `-`. 195 is there unless nvidia=0."""
    lines = [
        (1, "mem"),
        (10, "misc"),
        *((major, name.replace("_", "-")) for name, major in drivers.items() if major),
    ]
    if drivers.get("nvidia", 195):
        lines += [(195, "nvidia"), (195, "nvidiactl")]
    text = "".join(f"{major:3d} {name}\n" for major, name in sorted(lines) if name != "nvidia" or major == 195)
    return f"Character devices:\n{text}\nBlock devices:\n  7 loop\n259 nvidia-uvm\n"


def char(path: str, number: str, **more: Any) -> Node:
    major, minor = map(int, number.split(":"))
    return Node(path, NodeKind.CHAR, major, minor, **{"mode": 0o666, **more})


def nodes_for(uvm: int | None, gpus: int = 1) -> tuple[Node, ...]:
    found = [char(f"/dev/nvidia{n}", f"195:{n}") for n in range(gpus)] + [char("/dev/nvidiactl", "195:255")]
    if uvm is not None:
        found += [char("/dev/nvidia-uvm", f"{uvm}:0"), char("/dev/nvidia-uvm-tools", f"{uvm}:1")]
    return tuple(found)


def make_host(text: str | bytes, *, uvm: int | None = 509, gpus: int = 1, **changes: Any) -> HostFacts:
    """Facts of a host whose nodes are right, with a container of this configuration."""
    data = conf.as_bytes(text)
    facts = HostFacts(
        vmid=200,
        boot_id="b1",
        kernel="6.17.4-2-pve",
        now_s=1000.0,
        uptime_s=300.0,
        proc_devices=Content(State.PRESENT, proc_devices(nvidia_uvm=uvm or 0)),
        driver=Content(
            State.PRESENT, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release\n"
        ),
        params=Content(State.PRESENT, "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n"),
        conf=Content(State.PRESENT, data.decode("latin-1")),
        conf_digest=conf.parse(data).digest,
        conf_path="/etc/pve/lxc/200.conf",
        nodes=nodes_for(uvm, gpus),
        gpus=tuple(Gpu(f"0000:{n + 1:02x}:00.0", n, "GPU") for n in range(gpus)),
        modules=(Module("nvidia", True, "595.45.04"), Module("nvidia_uvm", uvm is not None)),
        modprobe="/usr/bin/nvidia-modprobe",
    )
    return replace(facts, **changes)


def make_container(gpus: int = 1, wanted: tuple[str, ...] = WANTED) -> Container:
    return Container(host="pve", vmid=200, gpus=Gpus(count=gpus), devices=Devices(wanted=wanted))


@dataclass
class World:
    """A host and its container that keep state, and refuse what the real ones refuse.

    The configuration is a real file behind the real `host.edit_conf`; nodes and driver live in memory.
    """

    root: Path
    gpus: int = 2
    uvm: int = 509
    uvm_loaded: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    drivers: dict[str, int] = field(default_factory=dict)
    running: bool = False
    inside: dict[str, Node] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    lock: str = ""
    startall_polls: int = 0
    has_quorum: bool | None = True
    modify_files: bool = True
    pve_container: str = "5.2.0"
    calls: list[str] = field(default_factory=list)
    where: str = "the world"

    @property
    def conf(self) -> Path:
        return self.root / "etc/pve/lxc/200.conf"

    # the host

    def call(
        self, job: str, args: Mapping[str, Any] | None = None, *, emit: Emit = ignore, timeout_s: float = 60.0
    ) -> Any:
        self.calls.append(job)
        given = json.loads(json.dumps(dict(args or {})))
        answer = {
            "host.facts": self._facts,
            "host.prepare": self._prepare,
            "host.edit_conf": lambda words: change_job.edit_conf(words, emit),
            "host.live_rules": self._live_rules,
            "host.pct_set": self._pct_set,
            "ct.device_facts": self._inside,
        }[job](given)
        return json.loads(json.dumps(answer))

    def _facts(self, args: dict[str, Any]) -> Any:
        data = self.conf.read_bytes()
        listed = dict(self.nodes)
        for device in conf.devices(conf.parse(data).next_start):
            if device.spec and device.spec.path not in listed:
                listed[device.spec.path] = Node(device.spec.path, NodeKind.ABSENT)
        extra = {"nvidia_uvm": self.uvm} if self.uvm_loaded else {}
        facts = make_host(
            data,
            gpus=self.gpus,
            proc_devices=Content(State.PRESENT, proc_devices(**extra, **self.drivers)),
            nodes=tuple(listed.values()),
            params=Content(State.PRESENT, f"ModifyDeviceFiles: {int(self.modify_files)}\n"),
            quorate=self.has_quorum,
            pve_container=self.pve_container,
        )
        return facts.to_json()

    def _prepare(self, args: dict[str, Any]) -> Any:
        ran = []
        for argv in args["steps"]:
            minors = [int(word) for flag, word in pairwise(argv) if flag == "-c"]
            if "-u" in argv:
                self.uvm_loaded = True
                made = [char("/dev/nvidia-uvm", f"{self.uvm}:0"), char("/dev/nvidia-uvm-tools", f"{self.uvm}:1")]
            else:
                names = {255: "nvidiactl"}
                made = [char(f"/dev/{names.get(n, f'nvidia{n}')}", f"195:{n}") for n in minors]
            if self.modify_files:
                self.nodes.update({node.path: node for node in made})
            ran.append({"argv": argv, "rc": 0, "stderr": ""})
        return {"ran": ran}

    def _live_rules(self, args: dict[str, Any]) -> Any:
        self.rules = (*(rule for rule in self.rules if rule not in args["deny"]), *args["rules"])
        given = [*args["rules"], *args["deny"]]
        return {"ran": [{"argv": ["lxc-cgroup", rule], "rc": 0, "stderr": ""} for rule in given]}

    def _pct_set(self, args: dict[str, Any]) -> Any:
        """New entries only; a container that runs gets node and rule at once."""
        document = conf.parse(self.conf.read_bytes())
        if args["digest"] != document.digest:
            raise Refused("detected modified configuration - file changed by other user? Try again.")
        made = edits.edit(document, [edits.Insert(key, value) for key, value in args["set"].items()])
        self.conf.write_bytes(made.render())
        for value in args["set"].values():
            path = rules.parse_device(value).path
            self.inside[path] = self.nodes[path]
            self.rules = (*self.rules, f"dev {path}")
        return {"digest": made.digest, "written": True, "pending": [], "text": ""}

    # the container

    def _inside(self, args: dict[str, Any]) -> Any:
        if not self.running:
            raise CannotLook("container 200 is not running")
        seen = []
        for node in self.inside.values():
            opened = None
            if node.kind is NodeKind.CHAR:
                allowed = any(r in ("a", f"c {node.major}:* rwm", f"dev {node.path}") for r in self.rules)
                known = {195, self.uvm if self.uvm_loaded else -1, *self.drivers.values()}
                opened = "EPERM" if not allowed else "" if node.major in known else "ENXIO"
            seen.append(replace(node, opened=opened))
        return CtFacts("b1", tuple(seen), Content(), Content(State.PRESENT, "0 0 4294967295\n")).to_json()

    def begin(self) -> None:
        """What a start does with configuration and nodes as they are at that moment."""
        view = conf.parse(self.conf.read_bytes()).next_start
        self.inside, rules = {}, []
        for device in conf.devices(view):
            assert device.spec is not None
            if device.spec.path not in self.nodes:
                raise Failed(f"Device {device.spec.path} does not exist")
            self.inside[device.spec.path] = self.nodes[device.spec.path]
            rules.append(f"dev {device.spec.path}")
        for line in view.raw:
            if line.key == "lxc.cgroup2.devices.allow":
                rules.append(line.value)
            elif line.key == "lxc.mount.entry":
                source, _, _, options = line.value.split()
                if source in self.nodes:
                    self.inside[source] = self.nodes[source]
                elif "optional" not in options:
                    raise Failed("startup for container '200' failed")
                elif "create=file" in options:
                    self.inside[source] = Node(source, NodeKind.REGULAR, mode=0o644)
        if conf.unprivileged(view):
            rules = ["a"]
        self.rules, self.running = tuple(rules), True

    # the API

    def status(self, node: str, vmid: int) -> Any:
        state = "running" if self.running else "stopped"
        return SimpleNamespace(status=state, lock=self.lock, uptime_s=100.0 if self.running else 0.0, ha=False)

    def running_tasks(self, node: str) -> tuple[Any, ...]:
        if self.startall_polls <= 0:
            return ()
        self.startall_polls -= 1
        return (SimpleNamespace(upid="UPID:pve:startall", kind="startall", started_s=990.0),)

    def start(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        self.calls.append("start")
        if self.lock:
            raise Failed(f"CT {vmid} is locked ({self.lock})")
        if self.running:
            raise Failed(f"CT {vmid} already running")
        self.begin()
        return ()

    def shutdown(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        self.calls.append("shutdown")
        if not self.running:
            raise Failed(f"CT {vmid} not running")
        self.running = False
        return ()

    def stop(self, node: str, vmid: int, *, timeout_s: float) -> tuple[str, ...]:
        self.calls.append("stop")
        self.running = False
        return ()
