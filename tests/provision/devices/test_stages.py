"""The stages against a host that keeps state and refuses what the real one refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from stagekit import changes, run, stages

from inventory.errors import CannotLook, Failed, Refused
from inventory.machine import ignore
from inventory.model import Container
from provision import pipeline
from provision.devices import ct_stage, power
from provision.devices.facts import Module, Node, NodeKind


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_stage, "POLL_S", 0.01)
    monkeypatch.setattr(power, "POLL_S", 0.01)


def test_after_a_reboot_it_loads_edits_restarts_and_then_has_nothing_to_do(
    world: Any, container: Container
) -> None:
    before = world.conf.read_bytes()
    outcomes = run(world, container)
    assert [len(outcome.changed) for outcome in outcomes] == [1, 1, 1]
    assert world.conf.read_bytes() == before.replace(b"c 511:* rwm", b"c 509:* rwm", 1)
    assert [call for call in world.calls if call in ("shutdown", "start", "stop")] == ["shutdown", "start"]
    world.calls.clear()
    again = run(world, container)
    assert changes(again) == []
    assert world.calls == ["host.facts", "ct.device_facts"]


def test_the_cause_is_said_in_one_sentence(world: Any, container: Container) -> None:
    host, stage, _ = stages(world, container)
    pipeline.run([host], lambda report: None, ignore)
    lines = stage.describe(stage.observe())
    assert any(
        "nvidia-uvm moved from 511 to 509 at this boot; ct200 is privileged and still allows 511" in x
        for x in lines
    )


def test_the_snapshot_keeps_its_old_rule(world: Any, container: Container) -> None:
    run(world, container)
    assert world.conf.read_text().endswith("[fresh]\nmemory: 1\nlxc.cgroup2.devices.allow: c 511:* rwm\n")


def test_a_dry_run_changes_nothing_and_says_what_it_can(world: Any, container: Container) -> None:
    before = world.conf.read_bytes()
    previews = pipeline.preview(stages(world, container), lambda report: None)
    assert world.conf.read_bytes() == before
    assert "nvidia-modprobe -u -c 0" in previews[0].steps[0]
    assert any("host" in line for line in previews[1].later)
    assert set(world.calls) <= {"host.facts", "ct.device_facts"}


def test_a_stopped_container_is_started(world: Any, container: Container) -> None:
    world.running = False
    outcomes = run(world, container)
    assert "ct200 was started" in outcomes[2].changed[0]
    assert "shutdown" not in world.calls


def test_a_container_locked_by_a_backup_is_left_alone(world: Any, container: Container) -> None:
    world.running, world.lock = False, "backup"
    with pytest.raises(Refused, match=r"CT 200 is locked \(backup\)"):
        run(world, container)
    assert "start" not in world.calls


def test_a_lock_line_in_the_file_stops_the_edit(world: Any, container: Container) -> None:
    world.conf.write_text("lock: snapshot\n" + world.conf.read_text())
    before = world.conf.read_bytes()
    with pytest.raises(Refused, match=r"CT 200 is locked \(snapshot\)"):
        run(world, container)
    assert world.conf.read_bytes() == before


def test_no_quorum_stops_the_edit_before_it_is_tried(world: Any, container: Container) -> None:
    world.has_quorum = False
    with pytest.raises(Refused, match="no quorum"):
        run(world, container)
    assert "host.edit_conf" not in world.calls


def test_a_missing_dev_node_is_predicted_instead_of_a_failed_start(world: Any, container: Container) -> None:
    world.running = False
    world.conf.write_text(world.conf.read_text().replace("[fresh]", "dev0: /dev/dri/renderD128\n[fresh]"))
    with pytest.raises(Failed, match="ct200 will not start: dev0 /dev/dri/renderD128 does not exist on the host"):
        run(world, container)
    assert "start" not in world.calls


def test_the_text_of_a_failed_start_is_shown(
    world: Any, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running = False

    def fail(*words: Any, **more: Any) -> tuple[str, ...]:
        raise Failed("Device /dev/nvidia-uvm-tools does not exist")

    monkeypatch.setattr(world, "start", fail)
    with pytest.raises(Failed, match="Device /dev/nvidia-uvm-tools does not exist"):
        run(world, container)


def test_it_waits_until_proxmox_has_started_its_guests(world: Any, container: Container) -> None:
    world.running, world.startall_polls = False, 4
    outcomes = run(world, container)
    assert outcomes[2].changed[0] == "Proxmox has started its guests"
    assert "started" in outcomes[2].changed[1]


def test_the_wait_for_the_guests_has_a_limit(world: Any, container: Container) -> None:
    world.running, world.startall_polls = False, 10**9
    with pytest.raises(Failed, match="still starting its guests"):
        pipeline.run(stages(world, container, 0.1), lambda report: None, ignore)


def test_a_container_that_does_not_shut_down_is_stopped(
    world: Any, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **more: Any) -> tuple[str, ...]:
        raise Failed("container did not stop")

    monkeypatch.setattr(world, "shutdown", refuse)
    run(world, container)
    assert [call for call in world.calls if call in ("stop", "start")] == ["stop", "start"]
    assert world.running


def test_a_restart_that_does_not_help_is_not_repeated(
    world: Any, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = world.begin

    def broken() -> None:
        begin()
        world.inside["/dev/nvidia0"] = Node("/dev/nvidia0", NodeKind.REGULAR)

    monkeypatch.setattr(world, "begin", broken)
    with pytest.raises(Failed, match="was restarted and still can't use nvidia0"):
        run(world, container)
    assert world.calls.count("start") == 1


def test_dev_entries_need_no_rule_only_the_node_and_a_start(world: Any, container: Container) -> None:
    names = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    text = "arch: amd64\n" + "".join(f"dev{n}: /dev/{name},mode=0666\n" for n, name in enumerate(names))
    world.conf.write_text(text)
    world.running = False
    outcomes = run(world, container)
    assert [len(outcome.changed) for outcome in outcomes] == [1, 0, 1]
    assert world.conf.read_text() == text


def test_an_empty_configuration_gets_dev_entries(world: Any, container: Container) -> None:
    world.conf.write_text("arch: amd64\nmemory: 1\n")
    world.begin()
    run(world, container)
    text = world.conf.read_text()
    assert "dev0: /dev/nvidia0,mode=0666\n" in text
    assert "dev4: /dev/nvidia-uvm-tools,mode=0666\n" in text
    assert "lxc." not in text
    assert changes(run(world, container)) == []


def test_a_moved_number_in_an_unprivileged_container_costs_only_a_restart(
    world: Any, container: Container
) -> None:
    world.conf.write_text("unprivileged: 1\n" + world.conf.read_text())
    world.begin()
    before = world.conf.read_bytes()
    outcomes = run(world, container)
    assert [len(outcome.changed) for outcome in outcomes] == [1, 0, 1]
    assert world.conf.read_bytes() == before


def test_a_host_that_may_not_make_nodes_is_blocked_with_that_reason(world: Any, container: Container) -> None:
    world.modify_files = False
    with pytest.raises(Failed, match="ModifyDeviceFiles: 0"):
        run(world, container)
    assert world.calls.count("host.prepare") == 1


def test_a_kernel_without_the_module_is_blocked_and_the_configuration_kept(
    make: Any, container: Container
) -> None:
    host = make.host(
        make.conf(195, 511),
        uvm=None,
        nodes=(),
        gpus=0,
        proc_devices=replace(make.host("").proc_devices, text="Character devices:\n  1 mem\n"),
        modules=(Module("nvidia", False, "", False), Module("nvidia_uvm", False, "", False)),
    )

    class Still:
        where = "host"

        def call(self, job: str, *words: Any, **more: Any) -> Any:
            assert job == "host.facts"
            return host.to_json()

    with pytest.raises(Failed, match=r"6\.17\.4-2-pve has no NVIDIA module") as caught:
        pipeline.run(stages(Still(), container)[:1], lambda report: None, ignore)
    assert "proxmox-headers-6.17.4-2-pve" in caught.value.hint


def test_stage_devices_alone_says_that_the_number_is_not_known_yet(world: Any, container: Container) -> None:
    with pytest.raises(CannotLook, match="nvidia-uvm is not loaded"):
        stages(world, container)[1].observe()


def test_a_configuration_that_changes_between_plan_and_edit_is_not_overwritten(
    world: Any, container: Container
) -> None:
    host, devices, _ = stages(world, container)
    pipeline.run([host], lambda report: None, ignore)
    step = devices.plan(devices.observe()).steps[0]
    world.conf.write_text(world.conf.read_text().replace("memory: 65536", "memory: 4096"))
    with pytest.raises(Refused, match="changed meanwhile"):
        devices.apply(step, ignore)
    pipeline.run([devices], lambda report: None, ignore)
    assert "memory: 4096" in world.conf.read_text()
    assert "c 509:* rwm" in world.conf.read_text()


@pytest.mark.parametrize("kill_after", range(1, 8))
def test_a_run_cut_off_at_any_call_is_finished_by_the_next(
    world: Any, container: Container, kill_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(Exception):
        pass

    left = [kill_after]

    def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Cut
            return real(*words, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("call", "start", "shutdown"):
            patch.setattr(world, name, cutting(getattr(world, name)))
        with pytest.raises(Cut):
            run(world, container)
    run(world, container)
    assert world.running
    assert changes(run(world, container)) == []


def test_only_few_round_trips_whatever_the_number_of_gpus(world: Any, make: Any) -> None:
    world.gpus = 8
    names = [f"nvidia{n}" for n in range(8)]
    world.nodes.update({f"/dev/{name}": make.char(f"/dev/{name}", f"195:{n}") for n, name in enumerate(names)})
    world.conf.write_text(make.conf(195, 511, gpus=8))
    world.begin()
    pipeline.preview(stages(world, make.container(8)), lambda report: None)
    assert len(world.calls) <= 4


def test_a_node_inside_that_cannot_be_looked_at_is_unknown_and_no_reason_to_restart(
    world: Any, container: Container
) -> None:
    run(world, container)
    world.calls.clear()
    world.inside["/dev/nvidia0"] = Node("/dev/nvidia0", NodeKind.UNREADABLE, why="EIO")
    with pytest.raises(CannotLook, match=r"/dev/nvidia0 is unreadable \(EIO\)"):
        run(world, container)
    assert "shutdown" not in world.calls


def test_after_a_repair_the_lasting_fix_is_advised_and_is_no_warning(world: Any, container: Container) -> None:
    said: list[tuple[str, str]] = []
    outcomes = pipeline.run(
        stages(world, container), lambda report: said.append((str(report.phase), report.line)), ignore
    )
    assert [line for phase, line in said if phase == "advice"] == [
        "nvidia-uvm was not there after this boot and will not be after the next: "
        "`gpuctl devices boot-unit ct200 --install` makes it before Proxmox starts its guests"
    ]
    assert all(outcome.warnings == () for outcome in outcomes)
