"""Facts for a public report: nothing that may be a secret is left in them, and the plan they lead to is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.devices import redact
from provision.devices.config import conf
from provision.devices.facts import Content, HostFacts, Node, NodeKind, State
from provision.devices.planning import plan

TEXT = """\
#root password is hunter2
arch: amd64
description: login hunter2%0Aand more
hunter2 lost its comment sign
lxc.environmen: API_KEY=hunter2
lxc.environment: API_KEY=hunter2
lxc.environment.runtime = TOKEN=hunter2
"""


def test_comments_descriptions_environment_and_stray_text_are_left_out(make: Any) -> None:
    text = TEXT + make.conf(195, 511).replace("arch: amd64\n", "") + "\n[snap]\n#hunter2\ndescription: hunter2\n"
    found = redact.configuration(text)
    assert "hunter2" not in found
    assert found.count("\n") == text.count("\n")
    assert "lxc.cgroup2.devices.allow: c 511:* rwm\n" in found


def test_the_plan_from_redacted_facts_is_the_plan(make: Any) -> None:
    text = TEXT + make.conf(195, 511).replace("arch: amd64\n", "")
    host = make.host(text)
    shown = HostFacts.from_json(redact.host(host).to_json())
    plans = [
        plan.conf_plan(conf.parse(facts.conf.text), facts, make.container(1)) for facts in (host, shown)
    ]  # fmt: skip
    assert plans[0].edits == plans[1].edits != ()
    assert plans[0].lines == plans[1].lines


def test_of_the_command_line_only_what_concerns_gpus_is_shown(make: Any) -> None:
    line = "quiet intel_iommu=on iommu=pt netroot=iscsi:user:hunter2@10.0.0.1 nvidia.NVreg_X=1"
    host = replace(make.host(""), cmdline=Content(State.PRESENT, line))
    assert redact.host(host).cmdline.text.split(") (") == [
        "(left out) intel_iommu=on iommu=pt (left out) nvidia.NVreg_X=1"
    ]


@given(st.text(alphabet="ab#[]:=.\n lxc", max_size=200))
def test_any_text_keeps_its_lines(text: str) -> None:
    assert redact.configuration(text).count("\n") == text.count("\n")


@pytest.mark.parametrize("kind", [NodeKind.UNREADABLE, NodeKind.DIRECTORY])
def test_a_node_in_a_folder_that_could_not_be_read_is_not_called_absent(make: Any, kind: NodeKind) -> None:
    host = replace(make.host(""), nodes=(Node("/dev/nvidia-caps", kind, why="EIO"),))
    expected = NodeKind.UNREADABLE if kind is NodeKind.UNREADABLE else NodeKind.ABSENT
    assert host.node("/dev/nvidia-caps/nvidia-cap1").kind is expected
