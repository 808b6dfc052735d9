"""Arbitrary files and requests: rewriting settles, and no call makes Python stumble."""

from __future__ import annotations

import http.client
import re
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuctl.lab.pve.conf import ConfError, parse_conf, write_conf
from gpuctl.lab.pve.schema import endpoints

LINES = st.one_of(
    st.sampled_from(
        [
            *(
                "memory: 512",
                "dev0: /dev/nvidia0",
                "description: a%0Ab",
                "#x %41",
                "# ",
                "[snap]",
                "[pve:pending]",
            ),
            *("delete: dev0,swap", "lxc.cgroup2.devices.allow = c 1:3 rwm", "lxc: x", "pending: x", "env: A=1"),
            *(
                "lxc.environment.runtime: B=2",
                "snapstate: delete",
                "unused0: local:1",
                "rootfs: local:1",
                "\t",
                "x",
            ),
        ]
    ),
    st.text(st.characters(max_codepoint=255, exclude_characters="\n"), max_size=20),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=12))
def test_rewriting_settles_after_the_second_time(lines):
    # Once is not enough, nor on a real node: a line `pending: x` in [pve:pending] leaves a bare header behind.
    raw = "\n".join(lines).encode("latin-1")
    try:
        twice = write_conf(parse_conf(write_conf(parse_conf(raw, 200)), 200))
    except ConfError:
        return
    assert write_conf(parse_conf(twice, 200)) == twice


PUT = "PUT /nodes/{node}/lxc/{vmid}/config"
NAMES = st.sampled_from(
    [*sorted(set(endpoints()[PUT].properties) - {"node", "vmid"})[::9], "delete", "revert", "dev0"]
)
VALUES = st.one_of(
    st.sampled_from(["0", "1", "/dev/nvidia0", "local:200,mp=/x", "dev0,swap", "name=eth0", "mount=nfs", "host"]),
    st.text(max_size=12),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=4), st.booleans())
def test_no_change_makes_the_server_stumble(lab, call, form, running):
    conf = b"arch: amd64\nostype: debian\nrootfs: local:200,size=8G\nmemory: 512\ndev0: /dev/nvidia0\n"
    lab.reset(conf, running=running, devices={"/dev/nvidia0": ["c", 195, 0]})
    answer = call("PUT", "/nodes/pve/lxc/200/config", form)
    assert answer.status in (200, 400, 500)
    assert not re.match(r"[A-Za-z]*(Error|Exception|Warning)\b", answer.reason), answer.reason
    shown = call("GET", "/nodes/pve/lxc/200/config")
    assert shown.status == 200, shown.reason


def test_a_closed_server_answers_nobody_on_kept_connections(certificate, tmp_path):
    from gpuctl.lab.pve.auth import User, Users
    from gpuctl.lab.pve.memory import MemoryBackend
    from gpuctl.lab.pve.server import serve

    cert, key = certificate
    server = serve(MemoryBackend(tmp_path), cert=cert, key=key, users=Users({"root@pam": User("x")}))
    context = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=context)
    connection.request("POST", "/api2/json/access/ticket", body="username=root@pam&password=x")
    assert connection.getresponse().read()
    server.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        connection.request("GET", "/api2/json/version")
        connection.getresponse()
