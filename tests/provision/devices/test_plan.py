"""The plan as a pure function: it settles at once and touches nothing that isn't NVIDIA's."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.errors import GpuctlError
from provision.devices import conf, diagnose, edits, plan, procdev, rules
from provision.devices.facts import Content, HostFacts, State

MAJORS = st.sampled_from([195, 226, 234, 235, 240, 254, 384, 508, 509, 510, 511, 512, 10])
ACCESS = st.sampled_from(["rwm", "rw", "r"])
MINORS = st.sampled_from(["*", "0", "1"])
KEYS = st.sampled_from(
    [
        "lxc.cgroup2.devices.allow",
        "lxc.cgroup.devices.allow",
        "lxc.cgroup2.devices.deny",
        "lxc.cgroup.devices.deny",
    ]
)
RULES = st.builds("{}: c {}:{} {}".format, KEYS, MAJORS, MINORS, ACCESS)
NAMES = st.sampled_from(["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "dri"])
LINES = st.one_of(
    RULES,
    RULES,
    st.builds("lxc.mount.entry: /dev/{0} dev/{0} none bind,optional,create=file".format, NAMES),
    st.builds("dev{}: /dev/{}".format, st.integers(0, 5), NAMES),
    st.sampled_from(
        ["[snap]", "[pve:pending]", "[s]", "# note", "", "oops", "unprivileged: 1", "lxc.cgroup2.devices.allow: a",
         "lxc.cgroup2.devices.deny: a", "lxc.hook.mount: /x", "memory: 1", "\xff\xfe", "lxc.idmap: u 0 1 2", "lxc: x",
         "delete: dev0"]
    ),
)  # fmt: skip
CONFS = st.tuples(st.lists(LINES, max_size=25), st.sampled_from(["\n", "\r\n"]), st.booleans()).map(
    lambda item: item[1].join(item[0]) + (item[1] if item[2] else "")
)
SLOW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _host(make: Any, text: str, uvm: int, owners: dict[int, str]) -> HostFacts:
    rows = {
        195: "nvidia",
        uvm: "nvidia-uvm",
        **{major: name for major, name in owners.items() if major not in (195, uvm)},
    }
    listed = "".join(f"{major:3d} {name}\n" for major, name in sorted(rows.items()))
    facts: HostFacts = make.host(text, uvm=uvm)
    return replace(facts, proc_devices=Content(State.PRESENT, f"Character devices:\n{listed}"))


@SLOW
@given(CONFS, st.sampled_from([234, 254, 509, 511]), st.dictionaries(MAJORS, st.just("stranger"), max_size=3))
def test_a_made_plan_leaves_an_empty_plan_and_other_lines_alone(
    make: Any, text: str, uvm: int, owners: dict[int, str]
) -> None:
    host, container = _host(make, text, uvm, owners), make.container(1)
    document = conf.parse(text)
    made = plan.conf_plan(document, host, container)
    done = edits.edit(document, made.edits)
    after = replace(host, conf=replace(host.conf, text=done.render().decode("latin-1")))
    again = plan.conf_plan(done, after, container)
    assert again.edits == ()
    assert (again.blocked is None) == (made.blocked is None)
    touched = {item.number for item in made.edits if not isinstance(item, edits.Insert)}
    _untouched_lines_survive(document, done, touched)
    for number in touched:
        line = document.lines[number - 1]
        assert line.section == 0
        assert re.fullmatch(r"lxc\.cgroup2?\.devices\.(allow|deny)", line.key)
        rule = rules.parse_rule(line.value)
        assert rule is not None
        legacy = line.key.startswith("lxc.cgroup.")
        assert legacy or (rule.major != 195 and rule.major is not None and procdev.dynamic(rule.major))


def _untouched_lines_survive(before: conf.Document, after: conf.Document, touched: set[int]) -> None:
    left = iter(line.body for line in after.lines)
    for line in before.lines:
        if line.number not in touched:
            assert any(body == line.body for body in left), line  # in order, byte for byte
    assert [b.body for b in before.lines if b.section] == [a.body for a in after.lines if a.section]


@SLOW
@given(CONFS, st.sampled_from([234, 509]))
def test_after_the_plan_no_stranger_is_allowed_and_every_node_is(make: Any, text: str, uvm: int) -> None:
    host, container = _host(make, text, uvm, {511: "stranger", 240: "stranger"}), make.container(1)
    document = conf.parse(text)
    made = plan.conf_plan(document, host, container)
    if made.blocked is not None:
        return
    done = edits.edit(document, made.edits)
    if done.unprivileged or any(line.key.startswith("lxc.hook") for line in done.main.raw):
        return
    mine = [(line.key, line.value) for line in done.main.raw]
    by_dev = {device.spec.path for device in conf.devices(done.main) if device.spec}
    for path, number in (("nvidia0", (195, 0)), ("nvidiactl", (195, 255)), ("nvidia-uvm", (uvm, 0))):
        assert f"/dev/{path}" in by_dev or rules.program(mine).allows(*number)
    mounts_nvidia = any("/dev/nvidia" in value for key, value in mine if key == rules.MOUNT)
    explained = any("/dev/kfd" in value or "/dev/dri" in value for _, value in mine)
    if mounts_nvidia and not explained:
        assert not any(key == rules.ALLOW and value.startswith(("c 511:", "c 240:")) for key, value in mine)


@SLOW
@given(st.binary(max_size=400), st.text(max_size=100))
def test_any_bytes_and_any_proc_devices_give_a_plan_or_our_own_error(make: Any, data: bytes, proc: str) -> None:
    host = replace(make.host(data), proc_devices=Content(State.PRESENT, proc))
    for facts in (host, make.host(data)):
        try:
            made = plan.conf_plan(conf.parse(data), facts, make.container(1))
            diagnose.diagnose("ct200", facts, make.container(1))
        except GpuctlError:
            continue
        assert isinstance(made, plan.ConfPlan)


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
def test_a_thousand_containers_are_planned_within_a_second(make: Any) -> None:
    text = make.conf(195, 511, gpus=8)
    host, container = make.host(text, gpus=8), make.container(8)
    plan.conf_plan(conf.parse(text), host, container)
    began = time.process_time()
    for _ in range(200):
        plan.conf_plan(conf.parse(text), host, container)
    assert (time.process_time() - began) * 5 < 6.0  # room for a loaded machine
