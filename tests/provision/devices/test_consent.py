"""What the user lets the stages do to a container that runs: restart it or not, change its rules, wait for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stagekit import changes, run, stages

from inventory.errors import Refused
from inventory.machine import ignore
from inventory.model import Container, Devices
from provision import pipeline
from provision.devices import ct_stage, power


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_stage, "POLL_S", 0.01)
    monkeypatch.setattr(power, "POLL_S", 0.01)


def _changed_rules(world: Any, container: Container) -> None:
    """Everything right, but the container was started with the rules of another time."""
    run(world, container)
    world.rules = ("c 195:* rwm",)
    world.calls.clear()


def test_without_consent_to_a_restart_it_says_why_one_is_needed(world: Any, container: Container) -> None:
    _changed_rules(world, container)
    with pytest.raises(
        Refused, match="must be restarted, which --no-restart forbids: /dev/nvidia-uvm gives EPERM"
    ):
        run(world, container, restart=False)
    assert "shutdown" not in world.calls


def test_a_rule_is_given_to_the_running_container_when_that_is_wished(world: Any, container: Container) -> None:
    _changed_rules(world, container)
    outcomes = run(world, container, live=True, restart=False)
    assert outcomes[2].changed == ("allowed c 509:* rwm in the running ct200",)
    assert "shutdown" not in world.calls
    assert "start" not in world.calls


def test_a_live_rule_that_does_not_help_is_followed_by_a_restart(
    world: Any, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    _changed_rules(world, container)
    monkeypatch.setattr(world, "_live_rules", lambda args: {"ran": []})
    outcomes = run(world, container, live=True)
    assert [line.split(" ")[0] for line in outcomes[2].changed] == ["allowed", "ct200"]
    assert world.calls.count("start") == 1


def test_a_missing_node_can_not_be_mended_by_a_live_rule(world: Any, container: Container) -> None:
    _changed_rules(world, container)
    del world.inside["/dev/nvidia0"]
    with pytest.raises(Refused, match="--no-restart forbids") as caught:
        run(world, container, live=True, restart=False)
    assert "--live" not in caught.value.hint


def _one_node_short(world: Any, version: str) -> None:
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")
    world.conf.write_text("arch: amd64\n" + "".join(f"dev{n}: /dev/{x},mode=0666\n" for n, x in enumerate(names)))
    world.running, world.pve_container = False, version


def test_a_new_dev_entry_is_hot_plugged_where_proxmox_can_and_nothing_is_restarted(
    world: Any, container: Container
) -> None:
    _one_node_short(world, "6.1.10")
    short = replace(container, devices=Devices(wanted=("nvidiactl", "nvidia-uvm")))
    run(world, short)
    world.calls.clear()
    outcomes = run(world, container)
    assert "gave the running ct200 `dev4: /dev/nvidia-uvm-tools,mode=0666`" in outcomes[1].changed[0]
    assert {"shutdown", "start", "host.edit_conf"}.isdisjoint(world.calls)
    assert changes(run(world, container)) == []


def test_an_older_proxmox_or_a_line_that_its_writer_would_drop_means_edit_and_restart(
    world: Any, container: Container
) -> None:
    short = replace(container, devices=Devices(wanted=("nvidiactl", "nvidia-uvm")))
    for version, line in (("5.2.0", ""), ("6.1.10", "this line is malformed\n")):
        _one_node_short(world, version)
        world.conf.write_text(line + world.conf.read_text())
        run(world, short)
        outcomes = run(world, container)
        assert [len(outcome.changed) for outcome in outcomes] == [0, 1, 1]
        assert world.conf.read_text().startswith(line + "arch: amd64\n")


def test_the_grace_time_reaches_the_shutdown_and_is_said_beforehand(
    world: Any, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    real = world.shutdown

    def shutdown(node: str, vmid: int, *, timeout_s: float) -> Any:
        given.append(timeout_s)
        return real(node, vmid, timeout_s=timeout_s)

    monkeypatch.setattr(world, "shutdown", shutdown)
    said: list[str] = []
    pipeline.run(stages(world, container, grace_s=7.0), lambda report: said.append(report.line), ignore)
    assert given == [12.0]
    assert any("it may take 7 s to shut down" in line for line in said)


def _strangers_rule(world: Any, container: Container) -> None:
    """All is right, but the configuration and the running container still allow a number that hidraw has now."""
    run(world, container)
    world.drivers = {"hidraw": 246}
    old = "lxc.cgroup2.devices.allow: c 509:* rwm\n"
    world.conf.write_text(world.conf.read_text().replace(old, f"{old}lxc.cgroup2.devices.allow: c 246:* rwm\n", 1))
    world.begin()
    world.calls.clear()


def test_a_rule_for_a_strangers_number_is_taken_out_and_what_the_running_container_keeps_is_warned_of(
    world: Any, container: Container
) -> None:
    _strangers_rule(world, container)
    outcomes = run(world, container)
    assert "c 246" not in world.conf.read_text()
    assert "c 246:* rwm" in world.rules
    assert outcomes[2].warnings == (
        "until its restart the running ct200 keeps `c 246:* rwm` (hidraw); --live takes it away at once",
    )


def test_with_live_the_running_container_loses_it_at_once(world: Any, container: Container) -> None:
    _strangers_rule(world, container)
    outcomes = run(world, container, live=True)
    assert outcomes[2].changed == ("took back c 246:* rwm in the running ct200",)
    assert "c 246:* rwm" not in world.rules
    assert "shutdown" not in world.calls


def test_after_a_restart_there_is_nothing_to_warn_of(world: Any, container: Container) -> None:
    _strangers_rule(world, container)
    world.rules = ("c 246:* rwm",)
    assert [outcome.warnings for outcome in run(world, container)] == [(), (), ()]
    assert "start" in world.calls
