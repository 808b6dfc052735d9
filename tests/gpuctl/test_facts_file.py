"""A facts file from a stranger: whatever is in it, it is planned or refused in one sentence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuctl import facts_file
from inventory.errors import GpuctlError
from inventory.model import Container, Devices, Gpus
from provision import pipeline
from provision.devices import stages
from provision.devices.consent import Consent
from provision.devices.diagnosis import diagnose
from provision.devices.facts import Content, CtFacts, GuestFacts, HostFacts, Node, NodeKind, State
from provision.devices.scout import RecordedScout

CONF = """\
arch: amd64
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 511:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""
NODES = (
    Node("/dev/nvidia0", NodeKind.CHAR, 195, 0, 0o666),
    Node("/dev/nvidiactl", NodeKind.CHAR, 195, 255, 0o666),
    Node("/dev/nvidia-uvm", NodeKind.CHAR, 509, 0, 0o666),
)
HOST = HostFacts(
    vmid=200, boot_id="b", kernel="6.17", now_s=1000.0, uptime_s=300.0, driver=Content(), params=Content(),
    proc_devices=Content(State.PRESENT, "Character devices:\n195 nvidia\n509 nvidia-uvm\n"),
    conf=Content(State.PRESENT, CONF), conf_digest="d", conf_path="/etc/pve/lxc/200.conf", nodes=NODES,
    modprobe="/usr/bin/nvidia-modprobe",
)  # fmt: skip
INSIDE = CtFacts("c", NODES, Content(), Content(State.PRESENT, "0 0 4294967295"))
CONTAINER = Container(
    host="pve", vmid=200, gpus=Gpus(count=1), devices=Devices(wanted=("nvidiactl", "nvidia-uvm"))
)  # fmt: skip
SCOUT = RecordedScout(HOST, GuestFacts("pve", "running", uptime_s=100.0), INSIDE)
DOCUMENT = json.loads(json.dumps(facts_file.record("ct200", SCOUT, CONTAINER, lab=False)))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, inner in items for place in _places(inner, (*here, key)))]


def _planned(path: Path) -> None:
    record = facts_file.read(path)
    built = stages.stages(record.scout, record.container, record.container.vmid, 1.0, Consent())
    pipeline.preview(built.values(), lambda report: None)
    diagnose.diagnose("ct200", record.scout.host(), record.container, record.scout.recorded_inside)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([place for place in _places(DOCUMENT) if place]), JSON)
def test_any_value_in_any_place_is_planned_or_refused(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(document))
    try:
        _planned(path)
    except GpuctlError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize("place", [place for place in _places(DOCUMENT) if len(place) == 1], ids=str)
def test_a_missing_part_is_named(tmp_path: Path, place: tuple[str]) -> None:
    document = {key: value for key, value in DOCUMENT.items() if key != place[0]}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(document))
    if place[0] in ("gpuctl", "lab"):  # only for people
        _planned(path)
        return
    with pytest.raises(GpuctlError, match=place[0]):
        facts_file.read(path)
