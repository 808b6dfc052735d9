"""Lines that do harm: put right when they are evidently NVIDIA's, else said and left alone."""

from __future__ import annotations

from typing import Any

import pytest

from provision.devices.config import conf, edits
from provision.devices.planning import plan

NEW = {"pve_container": "6.1.10"}


def _plan(make: Any, text: str, **changes: Any) -> tuple[plan.ConfPlan, str]:
    made = plan.conf_plan(conf.parse(text), make.host(text, **NEW | changes), make.container(1))
    return made, edits.edit(conf.parse(text), made.edits).render().decode("latin-1")


@pytest.mark.parametrize(
    ("bad", "good"),
    [("c 195:*  rwm", "c 195:* rwm"), ("c 195:* RWM", "c 195:* rwm"), ("c 195 rwm", "c 195:* rwm"),
     ("c  195:0 rw", "c 195:0 rw"), ("195:* rwm", "c 195:* rwm"), ("c 195:*", "c 195:* rwm"), ("c 195:* r  w", None)],
)  # fmt: skip
def test_a_rule_of_nvidias_that_lxc_cannot_read_is_written_rightly(make: Any, bad: str, good: str | None) -> None:
    text = make.conf(195, 509, names=("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")).replace("c 195:* rwm", bad)
    made, done = _plan(make, text)
    if good is None:
        assert "no rule that LXC can read: the container won't start" in made.warnings[0]
        assert make.allow + bad in done
    else:
        assert make.allow + bad + "\n" not in done
        assert make.allow + good + "\n" in done
        assert made.warnings == ()


def test_a_strangers_rule_that_lxc_cannot_read_is_said_and_left(make: Any) -> None:
    text = make.conf(195, 509) + make.allow + "c  226:* rwm\n"
    made, done = _plan(make, text)
    assert done == text
    assert "line 12, `lxc.cgroup2.devices.allow: c  226:* rwm`, is no rule that LXC can read" in made.warnings[0]


@pytest.mark.parametrize("rule", ["a", "c *:* rwm", "a *:* rw"])
def test_a_rule_that_opens_everything_is_said_and_left(make: Any, rule: str) -> None:
    text = make.conf(195, 509) + make.allow + rule + "\n"
    made, done = _plan(make, text)
    assert done == text
    assert "lets a privileged container open every device of the host" in made.warnings[0]
    assert _plan(make, "unprivileged: 1\n" + text)[0].warnings == ()


def test_a_key_that_is_nearly_right_counts_as_a_deny_and_is_said(make: Any) -> None:
    text = make.conf(195, 509) + "lxc.cgroup2.devices.alow: c 226:* rwm\n"
    assert "counts as a deny rule" in _plan(make, text)[0].warnings[0]


def test_a_wanted_node_is_freed_of_deny_write(make: Any) -> None:
    text = make.base + (
        "dev0: /dev/nvidia0,mode=0666\ndev1: /dev/nvidiactl,deny-write=1,gid=44\n"
        "dev2: /dev/nvidia-uvm\ndev3: /dev/nvidia-uvm-tools\ndev4: /dev/kfd,deny-write=1\n"
    )
    made, done = _plan(make, text, nodes=(*make.nodes(509), make.char("/dev/kfd", "235:0")))
    assert made.blocked is None
    assert done == text.replace("nvidiactl,deny-write=1,gid=44", "nvidiactl,gid=44")


@pytest.mark.parametrize(
    ("value", "renamed"),
    [("c 10:201 rwm", True), ("a", False), ("c 195:* rwm", False), ("c *:* rwm", False), ("c 1:3 rwm", False),
     ("c 226:* r", False), ("nonsense", False)],
)  # fmt: skip
def test_an_ignored_deny_rule_is_renamed_only_where_it_takes_nothing_away(
    make: Any, value: str, renamed: bool
) -> None:
    line = f"lxc.cgroup.devices.deny: {value}\n"
    text = make.conf(195, 509) + make.allow + "c 226:* rwm\n" + line
    made, done = _plan(make, text)
    assert done == (text.replace(line, f"lxc.cgroup2.devices.deny: {value}\n") if renamed else text)
    assert bool(made.warnings) is not renamed


@pytest.mark.parametrize("value", ["a", "c *:* rwm", "c 226:*  rwm", "/dev/gone rwm"])
def test_an_ignored_allow_rule_is_not_renamed_into_one_that_opens_all_or_stops_the_start(
    make: Any, value: str
) -> None:
    text = make.conf(195, 509) + f"lxc.cgroup.devices.allow: {value}\n"
    made, done = _plan(make, text)
    assert done == text
    assert "renamed to cgroup2 it would change what works" in made.warnings[0]


def test_a_rule_by_path_is_looked_up_at_each_start_and_so_never_stale(make: Any) -> None:
    text = make.conf(195) + make.allow + "/dev/nvidia-uvm rwm\n" + make.allow + "/dev/nvidia-uvm-tools rw\n"
    assert _plan(make, text) == (plan.ConfPlan(), text)


def test_entries_that_stop_the_start_are_said_and_left(make: Any) -> None:
    text = make.conf(195, 509) + "dev0: /dev/nvidia-uvmm\ndev1: nonsense\ndev2: /dev/nvidia0,mode=666\n"
    made, done = _plan(make, text)
    assert done == text
    told = "\n".join(made.warnings)
    assert "dev0 names /dev/nvidia-uvmm, which does not exist on the host: the container won't start" in told
    assert "dev1 is refused by Proxmox" in told
    assert "dev2 is refused by Proxmox: mode: value does not match" in told


def test_pending_raw_lines_that_would_drop_the_main_ones_are_refused_with_what_to_do(make: Any) -> None:
    text = make.conf(195, 509) + "\n[pve:pending]\nmemory: 1\n" + make.allow + "c 509:* rwm\n"
    made, _ = _plan(make, text)
    assert made.blocked is not None
    assert "the next start of container 200 would take nvidia0 away" in made.blocked.message
    assert "move the lxc and dev lines of [pve:pending] into the main section" in made.blocked.hint


def test_pending_raw_lines_beside_entries_are_said(make: Any) -> None:
    names = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    text = make.base + "".join(f"dev{n}: /dev/{name}\n" for n, name in enumerate(names))
    made, _ = _plan(make, text + "lxc.arch: x\n[pve:pending]\nlxc.cgroup2.devices.allow: c 226:* rwm\n")
    assert made.blocked is None
    assert "replace all of the main section" in made.warnings[0]


def test_a_rule_stuck_in_a_snapshot_is_said_and_the_right_one_goes_before_it(make: Any) -> None:
    text = make.base + "\n[fresh]\nmemory: 1\n" + make.allow + "c 511:* rwm\n"
    made, done = _plan(make, text)
    assert "device lines stand in snapshot [fresh] only" in made.warnings[0]
    assert done == text.replace("\n[fresh]", "".join(f"{e.key}: {e.value}\n" for e in made.edits) + "\n[fresh]")
