"""The lab's SSH server and pct: real processes, seen through a real client."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import paramiko
import pytest

from gpuctl.lab.state import LabDir, LabInfo

pytestmark = pytest.mark.lab


def test_stdout_stderr_and_exit_status_arrive_apart(client: Any) -> None:
    ran = client.run("echo to-out; echo to-err >&2; exit 7")

    assert (ran.rc, ran.out, ran.err) == (7, "to-out\n", "to-err\n")


def test_a_command_ended_by_a_signal_has_no_exit_status(client: Any) -> None:
    assert client.run("kill -9 $$").rc == -1


def test_megabytes_pass_in_both_directions_unchanged(client: Any) -> None:
    data = bytes(range(256)) * 16384

    assert client.ok("sha256sum", data).split()[0] == hashlib.sha256(data).hexdigest()
    ran = client.run("head -c 6000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' y >&2")
    assert (ran.rc, len(ran.out), len(ran.err)) == (0, 6_000_000, 1_000_000)


def test_many_short_commands_keep_their_output(client: Any) -> None:
    outputs = [client.ok(f"echo {number}; echo {number} >&2").strip() for number in range(40)]

    assert outputs == [str(number) for number in range(40)]


def test_a_running_command_is_killed_when_the_connection_drops(lab: LabDir, connect: Any) -> None:
    doomed, watcher = connect(lab), connect(lab)
    mark = f"tick-{time.monotonic_ns()}"
    _, out, _ = doomed.ssh.exec_command(f"echo begun; while :; do date +%s%N > /tmp/{mark}; sleep 0.05; done")
    assert out.readline() == "begun\n"
    doomed.close()

    end = time.monotonic() + 10
    while time.monotonic() < end:
        before = watcher.run(f"cat /tmp/{mark}").out
        time.sleep(0.4)
        if watcher.run(f"cat /tmp/{mark}").out == before:
            return
    pytest.fail("the command went on for 10 s after its connection was closed")


def test_only_the_labs_key_and_the_root_password_open_the_door(lab: LabDir, connect: Any) -> None:
    password = lab.password.read_text().strip()

    assert connect(lab, password=password).ok("echo in") == "in\n"
    with pytest.raises(paramiko.AuthenticationException):
        connect(lab, password="wrong")
    with pytest.raises(paramiko.AuthenticationException):
        connect(lab, pkey=paramiko.RSAKey.generate(2048))


def test_sftp_writes_renames_over_a_file_and_makes_folders(client: Any) -> None:
    sftp = client.ssh.open_sftp()
    sftp.mkdir("/var/lib/gpuctl/made")
    for text in (b"first", b"second"):
        with sftp.open("/var/lib/gpuctl/made/.staging", "wb") as file:
            file.write(text)
        sftp.posix_rename("/var/lib/gpuctl/made/.staging", "/var/lib/gpuctl/made/file")

    assert client.ok("cat /var/lib/gpuctl/made/file") == "second"
    assert sftp.stat("/var/lib/gpuctl/made/file").st_size == 6
    with pytest.raises(FileNotFoundError):
        sftp.stat("/var/lib/gpuctl/made/.staging")


def test_sftp_follows_the_link_to_the_container_configuration(client: Any) -> None:
    sftp = client.ssh.open_sftp()

    assert sftp.readlink("/etc/pve/lxc") == "nodes/pve/lxc"
    with sftp.open("/etc/pve/lxc/200.conf", "rb") as file:
        assert b"lxc.cgroup2.devices.allow: c 195:* rwm" in file.read()


def test_sftp_and_commands_see_the_same_shared_memory(client: Any) -> None:
    with client.ssh.open_sftp().open("/dev/shm/by-sftp", "wb") as file:
        file.write(b"here")

    assert client.ok("cat /dev/shm/by-sftp; rm /dev/shm/by-sftp") == "here"


def test_the_server_forwards_to_loopback_and_nowhere_else(lab: LabDir, connect: Any, info: LabInfo) -> None:
    transport = connect(lab).ssh.get_transport()

    channel = transport.open_channel(
        "direct-tcpip", ("127.0.0.1", info.ports["ssh"]), ("127.0.0.1", 0), timeout=10
    )
    assert channel.recv(4) == b"SSH-"
    channel.close()
    with pytest.raises(paramiko.ChannelException):
        transport.open_channel("direct-tcpip", ("192.0.2.1", 22), ("127.0.0.1", 0), timeout=10)


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


def test_python3_of_host_and_container_is_bare_and_new_enough(client: Any) -> None:
    code = (
        "import sys, importlib.util as u; print(sys.version_info >= (3, 11), sys.prefix == sys.base_prefix, "
        'u.find_spec("asyncssh"), u.find_spec("pydantic"))'
    )

    for prefix in ("", "pct exec 200 -- "):
        assert client.ok(f"{prefix}python3 -c '{code}'").split()[:2] == ["True", "True"]


def test_the_engines_environment_is_in_the_container(client: Any) -> None:
    assert client.ok("pct exec 200 -- /opt/engine/bin/python -c 'import xllamacpp; print(1)'") == "1\n"


def test_a_locked_container_is_not_started(client: Any) -> None:
    client.ok("pct stop 200; cp /etc/pve/lxc/200.conf /root/saved; sed -i '1i lock: backup' /etc/pve/lxc/200.conf")
    try:
        ran = client.run("pct start 200")
        assert (ran.rc, ran.err) == (255, "CT is locked (backup)\n")
    finally:
        client.ok("cp /root/saved /etc/pve/lxc/200.conf; pct start 200")


def test_a_passed_through_device_that_is_missing_stops_the_start(client: Any) -> None:
    client.ok("pct stop 200; cp /etc/pve/lxc/200.conf /root/saved")
    conf = client.ok("cat /root/saved")
    client.ok("cat > /etc/pve/lxc/200.conf", f"dev0: /dev/nvidia-caps-imex,mode=0666\n{conf}".encode())
    try:
        ran = client.run("pct start 200")
        assert (ran.rc, ran.err) == (255, "Device /dev/nvidia-caps-imex does not exist\n")
    finally:
        client.ok("cp /root/saved /etc/pve/lxc/200.conf; pct start 200")


def test_a_running_container_gets_a_device_by_pct_set(client: Any) -> None:
    client.ok("cp /etc/pve/lxc/200.conf /root/saved; nvidia-modprobe -m")
    try:
        client.ok("pct set 200 --dev3 /dev/nvidia-modeset,mode=0666")
        assert client.ok("pct exec 200 -- cat /dev/nvidia-modeset") == "lab-node c 195:254 mode=0666 uid=0 gid=0\n"
    finally:
        client.ok("pct stop 200; cp /root/saved /etc/pve/lxc/200.conf; pct start 200")


def test_the_token_of_gpuctl_may_look_but_not_pass_devices_through(lab: LabDir, info: LabInfo) -> None:
    import proxmoxer

    api = proxmoxer.ProxmoxAPI(
        "127.0.0.1",
        port=info.ports["api"],
        user="gpuctl@pve",
        token_name="lab",
        token_value=lab.api_token.read_text().strip(),
        verify_ssl=str(lab.cert),
        timeout=20,
    )

    assert api.nodes("pve").lxc(200).status.current.get()["status"] == "running"
    with pytest.raises(proxmoxer.ResourceException) as caught:
        api.nodes("pve").lxc(200).config.put(dev0="/dev/nvidia0")
    assert caught.value.status_code == 403


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


def test_the_api_starts_the_same_container(lab: LabDir, info: LabInfo, client: Any) -> None:
    import proxmoxer

    api = proxmoxer.ProxmoxAPI(
        "127.0.0.1",
        port=info.ports["api"],
        user="root@pam",
        password=lab.password.read_text().strip(),
        verify_ssl=str(lab.cert),
        timeout=20,
    )
    for verb, after in (("stop", "stopped"), ("start", "running")):
        upid = api.nodes("pve").lxc(200).status(verb).post()
        end = time.monotonic() + 20
        while api.nodes("pve").tasks(upid).status.get()["status"] == "running" and time.monotonic() < end:
            time.sleep(0.05)
        assert api.nodes("pve").tasks(upid).status.get()["exitstatus"] == "OK"
        assert client.ok("pct status 200") == f"status: {after}\n"
