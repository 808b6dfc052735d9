"""Device rules of a privileged container, enforced by the kernel's own device program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from level1kit import OLD, UVM, Level1, allow, entries

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.slow]


def test_right_rules_let_every_node_through(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm", f"c {ct.major}:* rwm"), *entries())

    seen = ct.inside(UVM, "/dev/nvidia0", "/dev/nvidiactl")

    assert [seen[path]["opened"] for path in (UVM, "/dev/nvidia0", "/dev/nvidiactl")] == [
        ct.through,
        "ENXIO",
        "ENXIO",
    ]
    assert seen["cuda"] == 0
    assert ct.nvml() == "8"
    assert ct.lab.run("devices", "show", "ct200").returncode == 0


def test_a_stale_rule_is_eperm_and_is_replaced(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm", f"c {OLD}:* rwm"), *entries())
    seen = ct.inside()
    assert (seen[UVM]["kind"], seen[UVM]["opened"], seen["cuda"]) == ("char", "EPERM", 999)
    assert ct.nvml() == "8"

    facts = ct.facts()
    story = ct.apply()

    assert [node["opened"] for node in facts["inside"]["nodes"] if node["path"] == UVM] == ["EPERM"]
    assert re.search(rf"nvidia-uvm moved from {OLD} to {ct.major}.*still allows {OLD}", story)
    assert f"lxc.cgroup2.devices.allow: c {ct.major}:* rwm" in ct.conf
    assert not [line for line in ct.conf if f"c {OLD}:" in line]
    seen = ct.inside()
    assert (seen[UVM]["opened"], seen["cuda"]) == (ct.through, 0)
    assert ct.settled()


def test_a_missing_rule_is_eperm_and_is_added(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm"), *entries())
    assert ct.opened() == "EPERM"

    story = ct.apply()

    assert "moved from" not in story
    assert f"lxc.cgroup2.devices.allow: c {ct.major}:* rwm" in ct.conf
    assert ct.opened() == ct.through


def test_a_legacy_key_has_no_effect_and_is_renamed_in_place(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm"), f"lxc.cgroup.devices.allow: c {ct.major}:* rwm", *entries())
    assert ct.opened() == "EPERM"
    before = ct.conf

    story = ct.apply()

    assert "lxc.cgroup.devices.allow" in story
    assert ct.conf == [line.replace("lxc.cgroup.devices", "lxc.cgroup2.devices") for line in before]
    assert ct.opened() == ct.through


def test_a_rule_that_only_a_snapshot_has_is_no_rule(ct: Level1) -> None:
    rule = f"c {ct.major}:* rwm"
    ct.start(*allow("c 195:* rwm"), *entries(), "", "[fresh]", "arch: amd64", *allow(rule), "snaptime: 1764000000")
    assert ct.opened() == "EPERM"

    ct.apply()

    assert ct.conf.count(*allow(rule)) == 2
    assert ct.conf.index(*allow(rule)) < ct.conf.index("[fresh]")
    assert ct.opened() == ct.through


def test_a_running_container_gets_the_rule_without_a_restart(ct: Level1) -> None:
    ct.start(*allow("c 195:* rwm", f"c {OLD}:* rwm"), *entries())
    before = ct.process()
    assert ct.opened() == "EPERM"

    refused = ct.lab.run("devices", "apply", "ct200", "--yes", "--no-restart")
    assert refused.returncode == 2
    assert "restart" in refused.stderr
    assert (ct.process(), ct.opened()) == (before, "EPERM")

    ct.apply("--live")

    assert (ct.process(), ct.opened()) == (before, ct.through)
    assert f"lxc.cgroup2.devices.allow: c {ct.major}:* rwm" in ct.conf


def test_access_revoked_while_it_runs_is_found_and_given_back(ct: Level1) -> None:
    rule = f"c {ct.major}:* rwm"
    ct.start(*allow("c 195:* rwm", rule), *entries())
    assert ct.opened() == ct.through
    before = ct.conf

    ct.host(f"lxc-cgroup -n 200 devices.deny '{rule}'")
    seen = ct.inside()
    assert (seen[UVM]["opened"], seen["cuda"]) == ("EPERM", 999)
    story = ct.apply()

    assert re.search(r"lost its access to nvidia-uvm.* while it ran", story)
    assert ct.conf == before
    assert ct.opened() == ct.through


@pytest.fixture
def macvtap() -> Iterator[tuple[str, str]]:
    """(major, minor) of a device whose driver really opens: macvtap, in a network namespace of its own."""
    name = f"gpuctl-test-{os.getpid()}"
    script = (
        "ip link add va type veth peer name vb && ip link add link va name nv0 type macvtap && ip link set va up "
        "&& ip link set nv0 up && cat /sys/class/net/nv0/macvtap/tap*/dev"
    )
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=20).returncode:
        pytest.skip("no network namespaces here")
    try:
        made = subprocess.run(
            ["ip", "netns", "exec", name, "sh", "-c", script], capture_output=True, text=True, timeout=20
        )
        if made.returncode:
            pytest.skip(f"no macvtap on this kernel: {made.stderr.strip()}")
        major, minor = made.stdout.strip().split(":")
        yield major, minor
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)


@pytest.fixture
def hole(ct: Level1, macvtap: tuple[str, str]) -> tuple[str, str]:
    """(major of macvtap, shell line that makes its node inside) with a rule for it in a container that runs."""
    major, minor = macvtap
    ct.start(*allow("c 195:* rwm", f"c {ct.major}:* rwm", f"c {major}:* rwm"), *entries(), run=False)
    # What the lab shows as /proc/devices does not list this driver; now it does, under its real number.
    shown = ct.lab.folder / "host/rootfs/proc/devices"
    text = shown.read_text()
    with shown.open("r+") as file:
        file.write(text.replace("Character devices:\n", f"Character devices:\n{major} macvtap\n"))
    ct.host("pct start 200")
    make = f"pct exec 200 -- sh -c 'rm -f /dev/hole && mknod /dev/hole c {major} {minor}'"
    ct.host(make)
    assert ct.opened("/dev/hole") == "", "the container has another driver's device, which really opens"
    return major, make


def test_a_number_of_another_driver_is_a_real_hole_and_is_closed_at_once_by_live(
    ct: Level1, hole: tuple[str, str]
) -> None:
    major, before = hole[0], ct.process()

    story = ct.apply("--live")

    assert f"{major}, which belongs to macvtap" in story
    assert not [line for line in ct.conf if f"c {major}:" in line]
    assert ct.opened("/dev/hole") == "EPERM"
    assert (ct.opened(), ct.process()) == (ct.through, before)


def test_without_live_a_hole_is_warned_of_until_the_restart(ct: Level1, hole: tuple[str, str]) -> None:
    major, make = hole

    done = ct.lab.run("devices", "apply", "ct200", "--yes")

    assert done.returncode == 1
    assert f"until its restart the running ct200 keeps `c {major}:* rwm` (macvtap)" in done.stdout
    assert not [line for line in ct.conf if f"c {major}:" in line]
    assert ct.opened("/dev/hole") == ""
    ct.host(f"pct reboot 200 && {make}")
    assert ct.opened("/dev/hole") == "EPERM"
