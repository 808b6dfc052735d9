"""What a plan does and says in single cases; what holds for all of them is in test_plan_properties."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.errors import GpuctlError
from inventory.model import Container, Gpus
from provision.devices.config import conf, edits
from provision.devices.facts import Content, HostFacts, State
from provision.devices.planning import plan


def _after(make: Any, text: str, **changes: Any) -> str:
    host = make.host(text, **changes)
    made = plan.conf_plan(conf.parse(text), host, make.container(1))
    assert made.blocked is None, made.blocked
    return edits.edit(conf.parse(text), made.edits).render().decode("latin-1")


def test_a_right_configuration_is_not_touched(make: Any) -> None:
    text = make.conf(195, 509)
    assert _after(make, text) == text


@pytest.mark.parametrize(
    "rule", ["c 226:* rwm", "c 10:229 rwm", "c 189:* rwm", "c 120:0 rw", "c *:* m", "b 511:* rwm"]
)
def test_rules_outside_the_dynamic_numbers_are_never_touched(make: Any, rule: str) -> None:
    text = make.conf(195, 511) + make.allow + rule + "\n"
    assert make.allow + rule + "\n" in _after(make, text)


def test_a_rule_stays_while_another_device_that_is_not_there_could_explain_it(make: Any) -> None:
    text = make.conf(195, 235) + "lxc.mount.entry: /dev/kfd dev/kfd none bind,optional,create=file\n"
    done = _after(make, text)
    assert "c 235:* rwm" in done
    assert "c 509:* rwm" in done


def test_a_container_without_any_nvidia_line_keeps_its_dynamic_rules(make: Any) -> None:
    text = make.base + make.allow + "c 511:* rwm\n"
    done = _after(make, text)
    assert make.allow + "c 511:* rwm\n" in done


def test_renaming_never_lets_deny_all_take_effect(make: Any) -> None:
    text = "lxc.cgroup.devices.deny: a\n" + make.conf(195, 509)
    assert _after(make, text) == text


def test_a_deny_rule_put_there_on_purpose_is_said_and_not_worked_around(make: Any) -> None:
    text = "lxc.cgroup2.devices.deny: c 195:* rwm\n" + make.conf(509)
    made = plan.conf_plan(conf.parse(text), make.host(text), make.container(1))
    assert "forbids nvidia0" in str(made.blocked)


def test_which_of_many_gpus_to_add_is_asked_not_guessed(make: Any) -> None:
    text = make.conf(195, 509, gpus=1)
    made = plan.conf_plan(conf.parse(text), make.host(text, gpus=8), make.container(2))
    assert "1 are passed in" in str(made.blocked)


def test_fewer_gpus_than_expected_is_said(make: Any) -> None:
    text = make.conf(195, 509, gpus=8)
    made = plan.conf_plan(conf.parse(text), make.host(text, gpus=7), make.container(8))
    assert "shows 7 GPUs, 8 are expected" in str(made.blocked)


def test_a_file_that_proxmox_cannot_read_is_not_planned(make: Any) -> None:
    text = "lxc: x\n" + make.conf(195, 511)
    made = plan.conf_plan(conf.parse(text), make.host(text), make.container(1))
    assert made.edits == ()
    assert "line 7" in str(made.blocked)


def test_a_plain_lxc_line_that_hides_the_raw_ones_is_said(make: Any) -> None:
    text = make.conf(195, 511) + "lxc: x\n"
    made = plan.conf_plan(conf.parse(text), make.host(text), make.container(1))
    assert made.edits == ()
    assert "plain `lxc:` line" in str(made.blocked)


@pytest.mark.parametrize("state", [State.ABSENT, State.UNREADABLE])
def test_what_could_not_be_read_is_unknown_never_good(make: Any, state: State) -> None:
    text = make.conf(195, 509)
    for changes in ({"conf": Content(state, "", "EIO")}, {"proc_devices": Content(state, "", "EIO")}):
        made = plan.conf_plan(conf.parse(text), make.host(text, **changes), make.container(1))
        assert made.blocked is not None
        assert made.blocked.kind == "unknown"


def test_facts_survive_the_wire(make: Any) -> None:
    host = make.host("memory: 1\n#\xfc\n")
    assert HostFacts.from_json({**host.to_json(), "newer": 1}).extra == {"newer": 1}
    assert replace(HostFacts.from_json(host.to_json()), extra={}) == host


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=8), x),
        max_leaves=8,
    )
)
def test_what_is_no_facts_is_refused_in_words(data: Any) -> None:
    with pytest.raises(GpuctlError):
        HostFacts.from_json(data)


@pytest.mark.slow
def test_a_thousand_different_containers_are_planned_and_none_is_blocked(project: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(project / "benchmarks"))
    benchmark: Any = importlib.import_module("devices")
    work = [
        (sample, benchmark.host_of(sample), Container(host="pve", vmid=sample.vmid, gpus=Gpus(count=sample.gpus)))
        for sample in benchmark.samples(1000)
    ]
    assert len({sample.text for sample, _, _ in work}) == 1000
    assert all(benchmark.planned(*item).blocked is None for item in work)
