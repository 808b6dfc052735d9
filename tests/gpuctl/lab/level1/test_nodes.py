"""Device nodes of a privileged container: missing, of another kind, too late, and passed in by dev[n]."""

from __future__ import annotations

import re

import pytest
from level1kit import OLD, UVM, Level1, allow, entries

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.slow]

TOOLS = "/dev/nvidia-uvm-tools"
GONE = f"rm {UVM} {TOOLS}"


def rules(ct: Level1) -> tuple[str, ...]:
    return allow("c 195:* rwm", f"c {ct.major}:* rwm")


def devices(uvm: str = "mode=0666") -> tuple[str, ...]:
    """All nodes by dev[n]; `uvm`: options of /dev/nvidia-uvm."""
    names = (*(f"nvidia{index}" for index in range(8)), "nvidiactl", "nvidia-uvm-tools")
    return (*(f"dev{n}: /dev/{name},mode=0666" for n, name in enumerate(names)), f"dev10: {UVM},{uvm}")


def test_a_node_missing_at_start_leaves_a_plain_file_that_opens(ct: Level1) -> None:
    ct.start(*rules(ct), *entries(), host=GONE)
    seen = ct.inside()
    assert (seen[UVM]["kind"], seen[UVM]["opened"], seen["cuda"]) == ("file", "", 999)
    assert ct.nvml() == "8"

    story = ct.apply()

    assert "plain file" in story

    seen = ct.inside()
    assert (seen[UVM]["kind"], seen[UVM]["number"], seen["cuda"]) == ("char", f"{ct.major}:0", 0)


def test_a_mount_without_create_is_left_out_by_lxc_and_is_completed(ct: Level1) -> None:
    others = [line for line in entries() if "nvidia-uvm" not in line]
    ct.start(*rules(ct), *others, *entries("nvidia-uvm", "nvidia-uvm-tools", options="bind,optional"))
    seen, before = ct.inside(), ct.conf
    assert (seen[UVM]["opened"], seen["cuda"]) == ("ENOENT", 999)

    story = ct.apply()

    assert "create=file" in story
    assert [line.replace(",create=file", "") for line in ct.conf] == [
        line.replace(",create=file", "") for line in before
    ]
    assert set(entries("nvidia-uvm", "nvidia-uvm-tools")) <= set(ct.conf)
    assert ct.inside()["cuda"] == 0


def test_a_node_missing_on_the_host_stops_a_start_that_has_to_have_it(ct: Level1) -> None:
    others = [line for line in entries() if "nvidia-uvm " not in line]
    ct.start(*rules(ct), *others, *entries("nvidia-uvm", options="bind,create=file"), host=GONE, run=False)

    started = ct.client.run("pct start 200")
    assert started.rc != 0
    assert "startup for container '200' failed" in started.err
    ct.apply()

    assert ct.opened() == ct.through


def test_a_container_started_before_the_node_existed_is_told_so(ct: Level1) -> None:
    ct.start(*rules(ct), *entries(), host=GONE)
    # Proxmox counts a container's uptime in whole seconds.
    ct.host("sleep 1.2; nvidia-modprobe -u -c 0")
    assert ct.inside()[UVM]["kind"] == "file"

    story = ct.apply()

    assert re.search(r"was started before nvidia-uvm.* existed on the host", story)
    assert "ct200 was restarted" in story
    assert ct.inside()["cuda"] == 0


def test_dev_n_of_a_missing_node_is_predicted_and_refused_in_proxmox_words(ct: Level1) -> None:
    gone = "/dev/nvidia-caps/nvidia-cap1"
    ct.start(*devices(), f"dev20: {gone}", run=False)

    look = ct.lab.json("devices", "plan", "ct200")["stages"]
    blocked = [stage["blocked"]["message"] for stage in look if stage["blocked"]]
    assert blocked == [f"ct200 will not start: dev20 {gone} does not exist on the host"]

    started = ct.client.run("pct start 200")
    assert (started.rc, started.err.splitlines()[-1]) == (255, f"Device {gone} does not exist")
    assert ct.host("pct status 200") == "status: stopped\n"


def test_dev_n_is_made_right_by_the_host_stage_before_the_start(ct: Level1) -> None:
    ct.start(*devices(), host=GONE, run=False)
    started = ct.client.run("pct start 200")
    # Proxmox takes dev0, dev1, dev10, ... in the order of their keys.
    assert re.fullmatch(r"Device /dev/nvidia-uvm(-tools)? does not exist", started.err.splitlines()[-1])

    ct.apply()

    assert ct.host("pct status 200") == "status: running\n"
    assert ct.inside()["cuda"] == 0


def test_dev_n_needs_no_rule_and_gives_mode_and_owner_as_seen_inside(ct: Level1) -> None:
    ct.start(*devices("mode=0640,uid=5,gid=44"))

    seen = ct.inside()

    assert {name: seen[UVM][name] for name in ("kind", "number", "mode", "owner", "opened")} == {
        "kind": "char",
        "number": f"{ct.major}:0",
        "mode": "0o640",
        "owner": "5:44",
        "opened": ct.through,
    }
    assert ct.lab.run("devices", "show", "ct200").returncode == 0


def test_dev_n_follows_a_number_that_moved(ct: Level1) -> None:
    before = (*devices(),)
    ct.start(*before)
    old = ct.major

    ct.lab.lab("reboot")
    ct.reconnect()
    conf = ct.conf
    ct.apply()

    assert ct.major != old
    assert ct.conf == conf
    assert ct.inside()[UVM]["number"] == f"{ct.major}:0"
    assert ct.inside()["cuda"] == 0


@pytest.mark.parametrize("there", [f"touch {UVM}", f"mknod -m 0666 {UVM} c {OLD} 0"])
def test_something_else_in_the_nodes_place_on_the_host_is_replaced(ct: Level1, there: str) -> None:
    ct.start(*rules(ct), *entries(), host=f"rm {UVM}; {there}")
    assert ct.inside()["cuda"] == 999

    ct.apply()

    assert ct.inside()[UVM]["number"] == f"{ct.major}:0"
    assert ct.inside()["cuda"] == 0


def test_a_folder_in_the_nodes_place_on_the_host_is_named(ct: Level1) -> None:
    ct.start(*rules(ct), *entries(), host=f"rm {UVM}; mkdir {UVM}", run=False)

    assert re.search(r"/dev/nvidia-uvm is (a )?directory", ct.show())


def test_a_node_that_is_not_passed_in_is_told_apart_from_one_that_is_refused(ct: Level1) -> None:
    ct.start(*rules(ct), *(line for line in entries() if "nvidia-uvm " not in line))
    seen = ct.inside()
    assert (seen[UVM]["opened"], seen["cuda"]) == ("ENOENT", 999)

    story = ct.apply()

    assert "not passed in" in story
    assert ct.inside()["cuda"] == 0
