"""The lab's SSH server: real processes, seen through a real client."""

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


def test_python3_of_host_and_container_is_bare_and_new_enough(client: Any) -> None:
    code = (
        "import sys, importlib.util as u; print(sys.version_info >= (3, 11), sys.prefix == sys.base_prefix, "
        'u.find_spec("asyncssh"), u.find_spec("pydantic"))'
    )

    for prefix in ("", "pct exec 200 -- "):
        assert client.ok(f"{prefix}python3 -c '{code}'").split()[:2] == ["True", "True"]


def test_the_engines_environment_is_in_the_container(client: Any) -> None:
    assert client.ok("pct exec 200 -- /opt/engine/bin/python -c 'import xllamacpp; print(1)'") == "1\n"


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


def test_the_host_tells_what_is_installed(client: Any) -> None:
    versions = client.run("dpkg-query -W -f '${Package} ${Version}\\n' pve-manager pve-container no-such")

    assert versions.out == "pve-manager 9.2.11\npve-container 6.1.10\n"
    assert (versions.rc, versions.err) == (1, "dpkg-query: no packages found matching no-such\n")
    kernel = client.ok("uname -r").strip()
    assert client.ok("dkms status").startswith(f"nvidia/595.45.04, {kernel}, ")
    assert client.ok("modinfo -F license nvidia; modinfo -F version nvidia-uvm") == "Dual MIT/GPL\n595.45.04\n"
    assert client.run("modinfo -k 1.2.3 nvidia").err == "modinfo: ERROR: Module nvidia not found.\n"
    assert client.ok("dmesg") == ""


def test_the_members_of_the_cluster_tell_the_quorum(lab: LabDir, client: Any) -> None:
    assert json.loads(client.ok("cat /etc/pve/.members")) == {"nodename": "pve", "version": 2}
    (lab.root / "no-quorum").touch()
    try:
        assert json.loads(client.ok("cat /etc/pve/.members"))["cluster"]["quorate"] == 0
    finally:
        (lab.root / "no-quorum").unlink()
    assert client.ok("ls /etc/pve/local/lxc; cat /etc/hostname") == "200.conf\npve\n"


def test_systemctl_says_what_it_does_not_know(client: Any) -> None:
    absent = client.run("systemctl is-enabled no-such.service")

    assert (absent.rc, absent.out) == (4, "not-found\n")
    assert client.run("systemctl enable no-such").rc == 1
    assert client.run("systemctl restart pve-guests").rc == 1
