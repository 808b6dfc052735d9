"""The real proxmoxer client drives the server over TLS, verified by the lab's certificate."""

from __future__ import annotations

import time

import proxmoxer
import pytest
import requests

CONF = (
    b"arch: amd64\ncores: 4\nhostname: ct200\nmemory: 4096\nostype: debian\nrootfs: local:200,size=8G\nswap: 512\n"
)


@pytest.fixture
def client(lab):
    lab.reset(CONF, devices={"/dev/nvidia-uvm": ["c", 511, 0]})
    return proxmoxer.ProxmoxAPI(
        "127.0.0.1", port=lab.server.port, user="root@pam", password="x", verify_ssl=str(lab.cert), timeout=10
    )


def test_a_password_login_reads_changes_and_starts(lab, client):
    guest = client.nodes("pve").lxc(200)
    before = guest.config.get()
    assert client.version.get()["release"] == "9.2"
    guest.config.put(dev0="/dev/nvidia-uvm,mode=0666", digest=before["digest"])
    assert guest.config.get(current=1)["dev0"] == "/dev/nvidia-uvm,mode=0666"
    upid = guest.status.start.post()
    limit = time.monotonic() + 5
    while (status := client.nodes("pve").tasks(upid).status.get())["status"] == "running":
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert status["exitstatus"] == "OK"
    assert guest.status.current.get()["status"] == "running"


def test_a_token_is_refused_devices_with_proxmoxs_own_text(lab, client):
    token = proxmoxer.ProxmoxAPI(
        "127.0.0.1",
        port=lab.server.port,
        user="root@pam",
        token_name="full",
        token_value=lab.secret,
        verify_ssl=str(lab.cert),
        timeout=10,
    )
    with pytest.raises(proxmoxer.ResourceException) as caught:
        token.nodes("pve").lxc(200).config.put(dev0="/dev/nvidia-uvm")
    assert caught.value.status_code == 403
    assert caught.value.content == (
        "Permission check failed (configuring device passthrough is only allowed for root@pam)"
    )
    assert lab.conf.read_bytes() == CONF


def test_a_schema_error_names_every_bad_parameter(client):
    with pytest.raises(proxmoxer.ResourceException) as caught:
        client.nodes("pve").lxc(200).config.put(**{"lxc.cgroup2.devices.allow": "c 511:* rwm", "onboot": True})
    assert caught.value.status_code == 400
    assert set(caught.value.errors) == {"lxc.cgroup2.devices.allow", "onboot"}


def test_a_wrong_password_is_an_authentication_error(lab):
    with pytest.raises(proxmoxer.AuthenticationError):
        proxmoxer.ProxmoxAPI(
            "127.0.0.1", port=lab.server.port, user="root@pam", password="y", verify_ssl=str(lab.cert), timeout=10
        )


def test_an_unknown_certificate_is_refused(lab):
    with pytest.raises(requests.exceptions.SSLError):
        proxmoxer.ProxmoxAPI("127.0.0.1", port=lab.server.port, user="root@pam", password="x", timeout=10)
