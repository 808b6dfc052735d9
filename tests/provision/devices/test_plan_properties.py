"""What holds for the plan of any configuration, any host and both styles."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.errors import GpuctlError
from provision.devices import procdev, wanted
from provision.devices.config import conf, edits, rules
from provision.devices.consent import Style
from provision.devices.diagnosis import diagnose
from provision.devices.facts import Content, HostFacts, Node, NodeKind, State
from provision.devices.planning import plan

MAJORS = st.sampled_from([195, 226, 234, 235, 240, 254, 384, 508, 509, 510, 511, 512, 10])
KEYS = st.sampled_from(
    ["lxc.cgroup2.devices.allow", "lxc.cgroup2.devices.allow", "lxc.cgroup.devices.allow",
     "lxc.cgroup2.devices.deny", "lxc.cgroup.devices.deny", "lxc.cgroup2.devices.alow"]
)  # fmt: skip
SHAPES = st.sampled_from(
    ["c {0}:* rwm", "c {0}:* rwm", "c {0}:* rwm", "c {0}:0 rw", "c {0}:1 r", "c  {0}:* rwm", "c {0}:* RWM",
     "c {0} rwm", "c\t{0}:*\trwm", "a {0}:* rwm", "b {0}:* rwm", "/dev/nvidia-uvm rwm", "/dev/kfd rw", "a", "c *:* rwm"]
)  # fmt: skip
RULES = st.builds(lambda key, shape, major: f"{key}: {shape.format(major)}", KEYS, SHAPES, MAJORS)
NAMES = st.sampled_from(
    [
        "nvidia0",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvidia-caps",
        "kfd",
        "dri",
        "//nvidia0",
    ]
)
MOUNTS = st.builds(
    lambda name, target, options: f"lxc.mount.entry: /dev/{name} {target or 'dev/' + name} none {options}",
    NAMES,
    st.sampled_from(["", "", "", "", "dev/other"]),
    st.sampled_from(["bind,optional,create=file", "bind", "rbind,create=dir 0 0", "defaults"]),
)
DEVS = st.builds(
    "dev{}: /dev/{}{}".format,
    st.integers(0, 6),
    NAMES,
    st.sampled_from(["", ",mode=0666", ",deny-write=1", ",mode=666", ",gid=44,deny-write=0"]),
)
OTHERS = st.sampled_from(
    ["[snap]", "[pve:pending]", "[s]", "# note", "", "oops", "unprivileged: 1", "lxc.hook.mount: /x", "memory: 1",
     "\xff\xfe", "lxc.idmap: u 0 1 2", "lxc: x", "delete: dev0", "[pending]", "lxc.cgroup2.devices.allow c 511:* rwm",
     "lxc.environment.runtime: A=1", "description: x", "snapstate: delete"]
)  # fmt: skip
CONFS = st.tuples(
    st.lists(st.one_of(RULES, RULES, MOUNTS, MOUNTS, DEVS, OTHERS), max_size=25),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
).map(lambda item: item[1].join(item[0]) + (item[1] if item[2] else ""))
STYLES = st.sampled_from(list(Style))
VERSIONS = st.sampled_from(["6.1.10", "6.1.10", "5.0.7", "5.0.6", "", "odd"])
OWNERS = st.dictionaries(MAJORS, st.just("stranger"), max_size=3)
UVM = st.sampled_from([234, 254, 509, 511])
BOUND = settings(
    max_examples=120, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def _host(make: Any, text: str, uvm: int, owners: dict[int, str], version: str = "6.1.10") -> HostFacts:
    rows = {**{major: name for major, name in owners.items() if major not in (195, uvm)}, uvm: "nvidia-uvm"}
    listed = "".join(f"{major:3d} {name}\n" for major, name in sorted((rows | {195: "nvidia"}).items()))
    more = (Node("/dev/nvidia-caps", NodeKind.DIRECTORY), make.char("/dev/kfd", "235:0", gid=44, mode=0o660))
    facts: HostFacts = make.host(text, uvm=uvm, pve_container=version)
    return replace(
        facts, nodes=facts.nodes + more, proc_devices=Content(State.PRESENT, f"Character devices:\n{listed}")
    )


def _after(host: HostFacts, done: conf.Document) -> HostFacts:
    return replace(host, conf=replace(host.conf, text=done.render().decode("latin-1")))


@BOUND
@given(CONFS, UVM, OWNERS, VERSIONS, STYLES)
def test_a_made_plan_leaves_an_empty_plan_and_every_other_line_as_it_was(
    make: Any, text: str, uvm: int, owners: dict[int, str], version: str, style: Style
) -> None:
    host, container = _host(make, text, uvm, owners, version), make.container(1)
    document = conf.parse(text)
    made = plan.conf_plan(document, host, container, prefer=style)
    assert bool(made.edits) == bool(made.lines)
    done = edits.edit(document, made.edits)
    again = plan.conf_plan(done, _after(host, done), container, prefer=style)
    assert again.edits == ()
    assert (again.blocked is None) == (made.blocked is None)
    touched = {item.number for item in made.edits if not isinstance(item, edits.Insert)}
    assert len(touched) == sum(not isinstance(item, edits.Insert) for item in made.edits)
    _others_survive(document, done, touched)
    for number in touched:
        _is_ours(document.lines[number - 1], host, style)


def _others_survive(before: conf.Document, after: conf.Document, touched: set[int]) -> None:
    left = iter(line.body for line in after.lines)
    for line in before.lines:
        if line.number not in touched:
            assert any(body == line.body for body in left), line  # in order, byte for byte
    assert [b.body for b in before.lines if b.section] == [a.body for a in after.lines if a.section]
    assert len(after.malformed) == len(before.malformed)


def _is_ours(line: conf.Line, host: HostFacts, style: Style) -> None:
    """A line that may be touched: NVIDIA's, a dynamic number that nobody explains, or a cgroup v1 device rule."""
    assert line.section == 0
    if line.key.startswith("dev"):
        assert "nvidia" in line.value
        assert "deny-write" in line.value
        return
    if line.key == rules.MOUNT:
        assert style is Style.DEV or "create=" not in line.value
        assert "/nvidia" in line.value
        return
    assert re.fullmatch(r"lxc\.cgroup2?\.devices\.(allow|deny)", line.key)
    if line.key.startswith("lxc.cgroup."):
        return
    assert line.key == rules.ALLOW
    rule = rules.parse_rule(line.value) or rules.guessed(line.value)
    if rule is None:
        assert line.value.startswith("/dev/nvidia")
        return
    assert rule.type != "b"
    assert rule.major is not None
    fixed = rule.major == 195 and (style is Style.DEV or rules.parse_rule(line.value) is None)
    assert fixed or procdev.dynamic(rule.major)


@BOUND
@given(CONFS, UVM, OWNERS, VERSIONS, STYLES)
def test_after_the_plan_every_node_is_passed_in_and_permitted_or_it_is_blocked_with_a_reason(
    make: Any, text: str, uvm: int, owners: dict[int, str], version: str, style: Style
) -> None:
    host, container = _host(make, text, uvm, owners, version), make.container(1)
    document = conf.parse(text)
    made = plan.conf_plan(document, host, container, prefer=style)
    if made.blocked is not None:
        assert made.blocked.message
        assert made.blocked.hint or "can't be passed" in made.blocked.message
        return
    done = edits.edit(document, made.edits)
    known = wanted.drivers(host)
    assert known is not None
    hooked = any(line.key.startswith("lxc.hook") for line in done.main.raw)
    for view in (done.main, done.next_start):
        for found in wanted.access(view, wanted.wanted(container, host, document.main).nodes, known, host):
            assert found.good or (hooked and not found.how)


@BOUND
@given(CONFS, UVM, OWNERS)
def test_an_unprivileged_container_never_loses_a_rule(
    make: Any, text: str, uvm: int, owners: dict[int, str]
) -> None:
    text = f"unprivileged: 1\n{text}"
    document = conf.parse(text)
    if not document.unprivileged:
        return
    made = plan.conf_plan(document, _host(make, text, uvm, owners), make.container(1))
    before = [line.value for line in document.main.raw if rules.readable(line.key, line.value)]
    left = iter([line.value for line in edits.edit(document, made.edits).main.raw])
    assert all(any(value == other for other in left) for value in before)  # all of them, in order


@BOUND
@given(CONFS, UVM, OWNERS)
def test_after_a_migration_nothing_about_nvidia_is_raw(
    make: Any, text: str, uvm: int, owners: dict[int, str]
) -> None:
    host = _host(make, text, uvm, owners)
    document = conf.parse(text)
    made = plan.conf_plan(document, host, make.container(1), prefer=Style.DEV)
    if made.blocked is not None:
        return
    done = edits.edit(document, made.edits)
    assert not any("/dev/nvidia" in path for path in wanted.mounted(done.main))
    allowed = [rules.parse_rule(line.value) for line in done.main.raw if line.key == rules.ALLOW]
    assert not any(rule and rule.type == "c" and rule.major in (195, uvm) for rule in allowed)
    foreign = {line.value for line in document.main.raw if "/dev/kfd" in line.value and line.key == rules.MOUNT}
    assert foreign <= {line.value for line in done.main.raw}
    if foreign:
        kept = {
            line.value for line in document.main.raw if line.key == rules.ALLOW and line.value == "c 235:* rwm"
        }
        assert uvm == 235 or kept <= {line.value for line in done.main.raw}


@BOUND
@given(CONFS, UVM, OWNERS, STYLES)
def test_the_section_that_a_plan_reckons_with_is_the_one_that_is_read_back(
    make: Any, text: str, uvm: int, owners: dict[int, str], style: Style
) -> None:
    document = conf.parse(text)
    made = plan.conf_plan(document, _host(make, text, uvm, owners), make.container(1), prefer=style)
    if made.blocked is not None:
        return
    expected = edits.preview(document.main, made.edits)
    real = edits.edit(document, made.edits).main
    assert expected.values == real.values
    assert [(line.key, line.value) for line in expected.raw] == [(line.key, line.value) for line in real.raw]


PATHS = st.sampled_from(
    ["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/kfd", "/dev/nvidia-caps", "/dev/a b,c=d"]
)
NUMBERS = st.integers(-1, 2**32)
KINDS = st.sampled_from(list(NodeKind))
NODES = st.builds(Node, PATHS, KINDS, NUMBERS, NUMBERS, st.integers(0, 0o7777), NUMBERS, NUMBERS)


@pytest.mark.slow
@BOUND
@given(
    st.one_of(st.binary(max_size=300), CONFS),
    st.one_of(st.text(max_size=80), st.just("Character devices:\n195 nvidia\n509 nvidia-uvm\n")),
    st.lists(NODES, max_size=8),
    st.text(max_size=8),
    st.integers(0, 9),
    st.lists(st.text(max_size=12), max_size=3),
)
def test_any_bytes_and_any_facts_give_a_plan_or_our_own_error(
    make: Any, data: bytes | str, proc: str, nodes: list[Node], version: str, gpus: int, names: list[str]
) -> None:
    container = make.container(gpus, tuple(names))
    right = make.host(data)
    odd = replace(right, proc_devices=Content(State.PRESENT, proc), nodes=tuple(nodes), pve_container=version)
    for facts in (right, odd, replace(odd, gpus=())):
        for style in Style:
            try:
                made = plan.conf_plan(conf.parse(data), facts, container, prefer=style)
                edits.edit(conf.parse(data), made.edits)
                diagnose.diagnose("ct200", facts, container)
            except GpuctlError:
                continue
            assert isinstance(made, plan.ConfPlan)


@pytest.mark.parametrize("style", list(Style))
def test_planning_a_right_configuration_gives_nothing(make: Any, style: Style) -> None:
    nodes = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    text = make.base + "".join(f"dev{n}: /dev/{name},mode=0666\n" for n, name in enumerate(nodes))
    made = plan.conf_plan(
        conf.parse(text), make.host(text, pve_container="6.1.10"), make.container(1), prefer=style
    )
    assert made == plan.ConfPlan()
