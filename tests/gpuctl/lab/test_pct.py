"""pct and the API on a container: the same tests in namespaces, without them, and on real nodes with real LXC."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuctl.lab.state import LabDir, LabInfo

pytestmark = pytest.mark.lab

Start = Callable[..., Any]
_GONE = "nvidia-caps-imex-channels"


@pytest.fixture
def start(client: Any) -> Iterator[Start]:
    """Start the container with these lines instead of its device lines: a function (*lines) -> what `pct start` said.

    nvidia-uvm is loaded and has its nodes; after the test container and nodes are as they were.
    """
    client.ok("cp -f /etc/pve/lxc/200.conf /root/saved; nvidia-modprobe -u -c 0")
    saved = client.ok("cat /root/saved")
    main, _, snapshot = saved.partition("\n[")
    head = [line for line in main.splitlines() if not line.startswith(("lxc.", "dev"))]

    def run(*lines: str) -> Any:
        client.run("pct stop 200")
        text = "\n".join((*head, *lines, "", f"[{snapshot}"))
        client.ok("cat > /etc/pve/lxc/200.conf", text.encode())
        return client.run("pct start 200")

    try:
        yield run
    finally:
        client.run("pct stop 200; rm -f /dev/nvidia-modeset")
        client.ok("cp -f /root/saved /etc/pve/lxc/200.conf; nvidia-modprobe -u -c 0; pct start 200")


def _bound(*names: str, options: str = "bind,optional,create=file") -> tuple[str, ...]:
    return tuple(f"lxc.mount.entry: /dev/{name} dev/{name} none {options}" for name in names)


def _allow(rule: str) -> str:
    return f"lxc.cgroup2.devices.allow: {rule}"


def test_pct_exec_passes_exit_status_streams_and_input(client: Any) -> None:
    ran = client.run("pct exec 200 -- sh -c 'cat; echo err >&2; exit 42'", b"from the admin")

    assert (ran.rc, ran.out, ran.err) == (42, "from the admin", "err\n")


def test_pct_exec_passes_words_unchanged(client: Any) -> None:
    words = ["a b", "$HOME", "it's", "*", "", "--", "-x"]
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)

    said = client.ok(f"pct exec 200 -- python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' {quoted}")

    assert json.loads(said) == words


def test_pct_refuses_as_proxmox_does(client: Any) -> None:
    unknown, absent = client.run("pct exec 201 -- true"), client.run("pct frobnicate")

    assert (unknown.rc, unknown.err) == (2, "Configuration file 'nodes/pve/lxc/201.conf' does not exist\n")
    assert absent.rc == 255
    assert client.run("pct start 200").err == "CT 200 already running\n"
    assert client.run("pct exec 200 -- no-such-program").rc == 127


def test_a_stopped_container_runs_nothing(client: Any) -> None:
    client.ok("pct stop 200")
    try:
        assert client.ok("pct status 200") == "status: stopped\n"
        assert client.run("pct exec 200 -- true").rc == 255
        assert client.run("pct stop 200").err == "CT 200 not running\n"
    finally:
        client.ok("pct start 200")
    assert client.ok("pct status 200") == "status: running\n"


def test_stopping_the_container_ends_what_runs_inside(client: Any) -> None:
    _, out, _ = client.ssh.exec_command("pct exec 200 -- sh -c 'echo begun; sleep 60'", timeout=20)
    assert out.readline() == "begun\n"

    client.ok("pct stop 200")
    client.ok("pct start 200")

    assert out.channel.recv_exit_status() != 0


def test_pct_push_and_pull_keep_content_and_mode(client: Any) -> None:
    client.ok("cat > /tmp/sent", b"\x00payload\xff")
    client.ok("pct push 200 /tmp/sent /root/got --perms 640")

    assert client.ok("pct exec 200 -- stat -c %a:%s /root/got") == "640:9\n"
    client.ok("pct pull 200 /root/got /tmp/back && cmp /tmp/sent /tmp/back")
    assert client.run("pct push 200 /tmp/absent /root/got").rc != 0
    assert client.run("pct push 200 /tmp/sent /root/no/such/folder").rc == 255


def test_a_locked_container_is_not_started(client: Any) -> None:
    client.ok("pct stop 200; cp /etc/pve/lxc/200.conf /root/saved; sed -i '1i lock: backup' /etc/pve/lxc/200.conf")
    try:
        ran = client.run("pct start 200")
        assert (ran.rc, ran.err) == (255, "CT is locked (backup)\n")
    finally:
        client.ok("cp /root/saved /etc/pve/lxc/200.conf; pct start 200")


def test_a_command_in_the_container_is_killed_when_the_connection_drops(lab: LabDir, connect: Any) -> None:
    doomed, watcher = connect(lab), connect(lab)
    loop = "trap : HUP; echo begun; while :; do date +%s%N > /tmp/tick; sleep 0.05; done"
    _, out, _ = doomed.ssh.exec_command(f"pct exec 200 -- sh -c '{loop}'")
    assert out.readline() == "begun\n"
    doomed.close()

    end = time.monotonic() + 10
    while time.monotonic() < end:
        before = watcher.run("pct exec 200 -- cat /tmp/tick").out
        time.sleep(0.4)
        if watcher.run("pct exec 200 -- cat /tmp/tick").out == before:
            return
    pytest.fail("the command went on for 10 s after its connection was closed")


# --- what a start makes of the configuration ---------------------------------------------------------------------


def test_only_devices_with_a_rule_open(client: Any, start: Start) -> None:
    major = client.uvm_major()
    assert start(_allow("c 195:* rwm"), *_bound("nvidia0", "nvidia-uvm")).rc == 0
    assert client.look("nvidia0", "nvidia-uvm") == ["195:0 0666 opens", f"{major}:0 0666 EPERM"]

    assert start(_allow(f"c {major}:* rwm"), *_bound("nvidia0", "nvidia-uvm")).rc == 0

    assert client.look("nvidia0", "nvidia-uvm") == ["195:0 0666 EPERM", f"{major}:0 0666 opens"]


def test_a_rule_is_added_to_and_taken_from_a_running_container(client: Any, start: Start) -> None:
    major = client.uvm_major()
    start(*_bound("nvidia-uvm"))
    assert client.look("nvidia-uvm") == [f"{major}:0 0666 EPERM"]

    client.ok(f"lxc-cgroup -n 200 devices.allow 'c {major}:* rwm'")
    assert client.look("nvidia-uvm") == [f"{major}:0 0666 opens"]
    client.ok(f"lxc-cgroup -n 200 devices.deny 'c {major}:* rwm'")

    assert client.look("nvidia-uvm") == [f"{major}:0 0666 EPERM"]
    assert client.run("lxc-cgroup -n 200 devices.allow nonsense").rc == 1
    assert client.run("lxc-cgroup -n 201 devices.allow 'c 1:1 r'").rc == 1


def test_a_missing_optional_source_leaves_a_plain_file_that_opens(client: Any, start: Start) -> None:
    entries = _bound(_GONE) + _bound("nvidia-modeset", options="bind,optional")

    assert start(_allow("c 195:* rwm"), *entries).rc == 0

    assert client.look(_GONE, "nvidia-modeset") == ["file", "ENOENT"]


def test_a_missing_source_that_is_not_optional_stops_the_start(client: Any, start: Start) -> None:
    ran = start(*_bound(_GONE, options="bind,create=file"))

    assert (ran.rc, ran.err.splitlines()[-1]) == (255, "startup for container '200' failed")
    assert client.ok("pct status 200") == "status: stopped\n"


def test_a_passed_through_device_needs_no_rule_and_has_its_own_mode(client: Any, start: Start) -> None:
    major = client.uvm_major()

    assert start("dev0: /dev/nvidia-uvm", "dev1: /dev/nvidia0,mode=0666").rc == 0

    assert client.look("nvidia-uvm", "nvidia0") == [f"{major}:0 0660 opens", "195:0 0666 opens"]


def test_a_passed_through_device_that_is_missing_stops_the_start(client: Any, start: Start) -> None:
    ran = start(f"dev0: /dev/{_GONE},mode=0666")

    assert (ran.rc, ran.err) == (255, f"Device /dev/{_GONE} does not exist\n")


def test_an_unprivileged_container_needs_no_rule(client: Any, start: Start) -> None:
    major = client.uvm_major()

    assert start("unprivileged: 1", _allow("c 1:11 rwm"), *_bound("nvidia-uvm")).rc == 0

    assert client.look("nvidia-uvm") == [f"{major}:0 0666 opens"]


def test_a_node_removed_on_the_host_stays_in_a_container_that_has_it(client: Any, start: Start) -> None:
    major = client.uvm_major()
    start(_allow(f"c {major}:* rwm"), *_bound("nvidia-uvm"))

    client.ok("rm /dev/nvidia-uvm")

    assert client.look("nvidia-uvm", inside=False) == ["ENOENT"]
    assert client.look("nvidia-uvm") == [f"{major}:0 0666 opens"]


def test_a_running_container_gets_a_device_by_pct_set(client: Any, start: Start) -> None:
    major = client.uvm_major()
    start(_allow("c 195:* rwm"))
    assert client.look("nvidia-uvm") == ["ENOENT"]

    client.ok("pct set 200 --dev3 /dev/nvidia-uvm,mode=0666")

    assert client.look("nvidia-uvm") == [f"{major}:0 0666 opens"]
    assert "dev3: /dev/nvidia-uvm,mode=0666\n" in client.ok("pct config 200")


# --- configuration and tasks -------------------------------------------------------------------------------------


def test_pct_set_changes_the_file_or_says_why_not(client: Any, start: Start) -> None:
    start()
    client.ok("pct set 200 --description 'by hand' --memory 4096")
    assert "memory: 4096\n" in client.ok("pct config 200")
    assert client.ok("head -1 /etc/pve/lxc/200.conf") == "#by hand\n"

    stale = client.run("pct set 200 --memory 8192 --digest 0000000000000000000000000000000000000000")
    assert (stale.rc, stale.err.split(" - ")[0]) == (255, "detected modified configuration")
    missing = client.run(f"pct set 200 --dev0 /dev/{_GONE}")
    assert (missing.rc, missing.err) == (255, f"Device /dev/{_GONE} does not exist\n")
    assert "memory: 4096\n" in client.ok("pct config 200")


def test_the_text_of_a_failed_start_is_in_its_task(lab: LabDir, info: LabInfo, start: Start) -> None:
    node = _api(lab, info).nodes("pve")
    start(f"dev0: /dev/{_GONE}")

    assert _ended(node, node.lxc(200).status.start.post())["exitstatus"] == f"Device /dev/{_GONE} does not exist"
    start(*_bound(_GONE, options="bind,create=file"))
    assert _ended(node, node.lxc(200).status.start.post())["exitstatus"] == "startup for container '200' failed"


def test_the_api_stops_starts_and_shuts_down_the_same_container(lab: LabDir, info: LabInfo, client: Any) -> None:
    node = _api(lab, info).nodes("pve")

    for verb, after in (("stop", "stopped"), ("start", "running"), ("shutdown", "stopped"), ("start", "running")):
        assert _ended(node, node.lxc(200).status(verb).post())["exitstatus"] == "OK"
        assert client.ok("pct status 200") == f"status: {after}\n"
        assert node.lxc(200).status.current.get()["status"] == after


def _ended(node: Any, upid: str) -> dict[str, str]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found: dict[str, str] = node.tasks(upid).status.get()
        if found["status"] != "running":
            return found
        time.sleep(0.05)
    raise AssertionError(f"{upid} still runs")


def _api(lab: LabDir, info: LabInfo) -> Any:
    import proxmoxer

    return proxmoxer.ProxmoxAPI(
        "127.0.0.1",
        port=info.ports["api"],
        user="root@pam",
        password=lab.password.read_text().strip(),
        verify_ssl=str(lab.cert),
        timeout=20,
    )
