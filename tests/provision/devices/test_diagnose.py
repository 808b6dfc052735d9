"""The diagnosis for any facts: it never raises, never blames a rule where rules have no effect, and says one root."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.errors import GpuctlError
from provision.devices.config import conf
from provision.devices.diagnosis import cause, diagnose, predict
from provision.devices.facts import (
    Content,
    CtFacts,
    Gpu,
    GuestFacts,
    HostFacts,
    Module,
    Node,
    NodeKind,
    Pci,
    State,
)
from provision.devices.planning import plan, prepare

CASES = [json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "cases").glob("*.json"))]
SLOW = settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)

NAMES = (
    "nvidia0",
    "nvidia1",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
    "nvidia-caps/nvidia-cap1",
    "nvidia-nvswitchctl",
    "nvidia-caps-imex-channels/channel0",
    "dri/renderD128",
)
LINES = sorted(
    {line for case in CASES for line in case["conf"].split("\n")} | {"[pve:pending]", "[snap]", "[a.b]", "lxc: x"}
)
CONFS = st.one_of(
    st.lists(st.sampled_from(LINES), max_size=18).map("\n".join),
    st.sampled_from([case["conf"] for case in CASES]),
    st.text(max_size=60),
)
LOGS = st.lists(
    st.sampled_from([case["host"]["kernel_log"] for case in CASES if case.get("host", {}).get("kernel_log")]),
    max_size=4,
).map("".join)
NODES = st.lists(
    st.builds(
        Node,
        st.sampled_from(NAMES).map("/dev/{}".format),
        st.sampled_from(NodeKind),
        st.sampled_from([195, 234, 509, 511, 0]),
        st.sampled_from([0, 1, 254, 255]),
        st.sampled_from([0o666, 0o660, 0o600, 0]),
        st.sampled_from([0, 1000, 65534]),
        st.sampled_from([0, 44, 65534]),
        st.sampled_from([0.0, 100.0, 900.0]),
        st.sampled_from([None, "", "EPERM", "EACCES", "EIO", "ENODEV", "ENXIO", "EBUSY", "errno 999"]),
        st.sampled_from(["", "EACCES", "no answer in 20 s"]),
    ),
    max_size=9,
    unique_by=lambda node: node.path,
).map(tuple)  # fmt: skip
MAJORS = st.dictionaries(
    st.sampled_from([195, 234, 235, 508, 509, 510, 511]),
    st.sampled_from(["nvidia", "nvidia-uvm", "nvidia-caps", "nvidia-nvswitch", "ipmidev", "nvidia-frontend"]),
    max_size=5,
)
PCI = st.lists(
    st.builds(
        Pci,
        st.sampled_from(["0000:01:00.0", "0000:02:00.0", "nonsense"]),
        st.sampled_from(["", "2bb1", "1db5", "26b1", "zz"]),
        st.sampled_from(["0x030000", "0x030200", "0x068000", "0x040300", ""]),
        st.sampled_from(["", "nvidia", "nouveau", "vfio-pci"]),
        st.sampled_from(["", "DMA", "DMA-FQ", "identity"]),
    ),
    max_size=3,
).map(tuple)  # fmt: skip
MODULES = st.lists(
    st.builds(
        Module,
        st.sampled_from(["nvidia", "nvidia_uvm"]),
        st.booleans(),
        st.sampled_from(["", "595.45.04", "580.95.05"]),
        st.sampled_from([None, True, False]),
        st.sampled_from(["", "595.45.04"]),
        st.sampled_from(["", "open", "proprietary"]),
    ),
    max_size=3,
).map(tuple)  # fmt: skip
BUSES = st.sampled_from(["0000:01:00.0", "0000:02:00.0", ""])
GPUS = st.lists(
    st.builds(Gpu, BUSES, st.sampled_from([None, 0, 1, 7]), st.just("GPU"), st.booleans()), max_size=3
).map(tuple)
DKMS = st.sampled_from(
    ["", "nvidia/580.95.05, 6.17.4-2-pve, x86_64: built\n", "nvidia, 1: added", "nvidia/595: broken"]
)
DRIVERS = st.sampled_from(
    ["", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  x\n",
     "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  x\n"]
)  # fmt: skip


def _contents(texts: Any) -> Any:
    told = texts.map(lambda text: Content(State.PRESENT, text))
    return st.one_of(told, st.sampled_from([Content(), Content(State.UNREADABLE, why="EIO")]))


PROC = MAJORS.map(
    lambda majors: Content(
        State.PRESENT,
        "Character devices:\n" + "".join(f"{major:3d} {name}\n" for major, name in sorted(majors.items())),
    )
)
HOSTS = st.fixed_dictionaries(
    {
        "proc_devices": st.one_of(PROC, PROC, PROC, _contents(st.text(max_size=40))),
        "conf": st.one_of(CONFS, CONFS, CONFS, st.sampled_from([State.ABSENT, State.UNREADABLE])),
        "driver": _contents(DRIVERS),
        "params": _contents(st.sampled_from(["", "ModifyDeviceFiles: 0\n", "DeviceFileMode: 432\n"])),
        "dkms": _contents(DKMS),
        "kernel_log": _contents(LOGS),
        "boot_unit": _contents(st.just("[Unit]\n")),
        "nodes": NODES,
        "gpus": GPUS,
        "modules": MODULES,
        "pci": PCI,
        "modprobe": st.sampled_from(["", "/usr/bin/nvidia-modprobe"]),
        "acs_redirect": st.sampled_from([(), ("0000:00:01.0",)]),
        "conf_changed_s": st.sampled_from([0.0, 100.0, 950.0]),
        "owners": st.sampled_from([(), ("pve1",), ("pve2",), ("pve1", "pve2")]),
        "nodename": st.sampled_from(["", "pve1"]),
        "quorate": st.sampled_from([None, True, False]),
        "headers": st.sampled_from([None, True, False]),
        "secure_boot": st.sampled_from([None, True, False]),
    }
)


def _host(make: Any, changes: dict[str, Any]) -> HostFacts:
    text, rest = changes["conf"], {name: value for name, value in changes.items() if name != "conf"}
    host: HostFacts = make.host("" if isinstance(text, State) else text.encode("utf-8", "surrogatepass"))
    if isinstance(text, State):
        rest["conf"] = Content(text, why="EIO")
    return replace(host, **rest)


INSIDE = st.none() | st.builds(
    CtFacts,
    st.just("b1"),
    NODES,
    st.just(Content()),
    st.sampled_from([Content(), Content(State.PRESENT, "0 100000 65536\n"), Content(State.PRESENT, "\n")]),
    st.sampled_from([(), ("libcuda.so.595.45.04",), ("libcuda.so.1", "libnvidia-ml.so.580.95.05"), ("odd",)]),
)
GUESTS = st.none() | st.builds(
    GuestFacts, st.just("pve"), st.sampled_from(["running", "stopped", ""]), st.sampled_from(["", "backup", "mounted"]),
    st.booleans(), st.sampled_from([0.0, 300.0]), st.sampled_from([None, True, False]),
)  # fmt: skip
WANTED = st.lists(st.sampled_from(NAMES[2:]), max_size=6, unique=True).map(tuple)


@pytest.mark.slow
@SLOW
@given(HOSTS, INSIDE, GUESTS, WANTED, st.integers(0, 3), st.sampled_from([None, 500.0]))
def test_any_facts_give_causes_a_plan_or_our_own_error(
    make: Any, changes: Any, inside: CtFacts | None, guest: GuestFacts | None, names: Any, count: int, started: Any
) -> None:
    host = _host(make, changes)
    container = make.container(count, names)
    found = diagnose.diagnose("ct200", host, container, inside, guest=guest, started_s=started)
    assert diagnose.diagnose("ct200", host, container, inside, guest=guest, started_s=started) == found
    _well_formed(found)
    document = conf.parse(host.conf.text)
    if document.unprivileged:
        blamed = {diagnose.CauseId.STALE_RULE, diagnose.CauseId.STRANGER_RULE, diagnose.CauseId.MISSING_RULE}
        assert not blamed & {entry.id for entry in found}
    _plans_agree(host, container, found)
    predict.obstacles(document, host)
    assert isinstance(prepare.failure(host, prepare.UVM, 1, "x"), GpuctlError)


def _well_formed(found: tuple[diagnose.Cause, ...]) -> None:
    assert [entry.note for entry in found] == sorted(entry.note for entry in found)
    for entry in found:
        assert entry.text.strip()
        assert "\n" not in entry.text
        assert all(isinstance(line, str) and line for line in entry.evidence)
    texts = [entry.text for entry in found]
    assert len(texts) == len(set(texts))


def _plans_agree(host: HostFacts, container: Any, found: tuple[diagnose.Cause, ...]) -> None:
    """Where nothing at all is wrong, nothing is planned on the host; where nothing could be read, nothing is good."""
    made = prepare.host_plan(host, container)
    if plan.unreadable(host) is not None:
        assert made.steps == ()
        assert cause.root(found) is not None
    elif cause.root(found) is None:
        assert made.steps == ()
        assert made.blocked is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["story"])
def test_making_the_container_unprivileged_takes_every_blame_from_rules(make: Any, case: dict[str, Any]) -> None:
    host = make.host("unprivileged: 1\n" + case["conf"], proc_devices=Content(State.PRESENT, case["proc"]))
    found = diagnose.diagnose("ct200", host, make.container(1))
    assert not {"stale-rule", "stranger-rule", "missing-rule", "old-rule"} & {entry.id.value for entry in found}


def test_a_cause_becomes_an_error_with_its_evidence_and_hint() -> None:
    told = diagnose.Cause(diagnose.CauseId.NO_GPU, "no GPU", ("lspci shows none",), hint="look").leads_to(
        "no CUDA"
    )
    error = told.leads_to("no CUDA", "").error()
    assert (error.message, error.hint, error.detail) == ("no GPU", "look", ("lspci shows none", "so no CUDA"))


def test_the_root_is_the_first_that_is_no_note() -> None:
    note = diagnose.Cause(diagnose.CauseId.UNSEEN, "a hook", note=True)
    wrong = diagnose.Cause(diagnose.CauseId.NO_GPU, "no GPU")
    assert cause.root((note,)) is None
    assert cause.root((wrong, note)) == wrong


def test_the_start_is_reckoned_from_the_uptime_that_the_api_tells(make: Any) -> None:
    text = make.conf(195, 509)
    nodes = tuple(replace(node, changed_s=720.0) for node in make.nodes(509))
    inside = CtFacts("b1", tuple(node for node in nodes if "uvm" not in node.path), Content(), Content())
    guest = GuestFacts("pve", "running", uptime_s=300.0)
    found = diagnose.diagnose("ct200", make.host(text, nodes=nodes), make.container(1), inside, guest=guest)
    assert found[0].id is diagnose.CauseId.STARTED_TOO_EARLY
    assert "/dev/nvidia-uvm was made 20 s after the container's start" in found[0].evidence
