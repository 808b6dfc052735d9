"""Changing options through the API: what counts is what the node has afterwards; recorded and scripted answers."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from inventory import proxmox_config
from inventory.errors import CannotLook, ConfigError, Failed, Refused
from inventory.proxmox import ProxmoxApi

CT = "/nodes/pve/lxc/200"
CONFIG, PENDING = f"{CT}/config", f"{CT}/pending"
DIGEST = "90e2f7e4d68525062961b5ae240f6fd3d0e62025"
AFTER = "1" * 40
TOKEN = {"password": "", "user": "ops@pve", "token_name": "tok", "token_value": "env:PVE_TOKEN"}


@pytest.fixture
def shows(pve: Any, scripted: Any) -> Any:
    """Tells what the node has after the PUT: its entries of `pending`."""

    def tell(*entries: dict[str, Any], digest: str = AFTER) -> None:
        pve.on("GET", CONFIG, scripted.data({"digest": digest}))
        pve.on("GET", PENDING, scripted.data(list(entries)))

    return tell


def _form(pve: Any) -> dict[str, str]:
    (request,) = pve.asked("PUT", CONFIG)
    return {key: value[0] for key, value in parse_qs(request.body, keep_blank_values=True).items()}


def test_a_change_is_sent_with_its_digest_and_read_back(pve: Any, api: ProxmoxApi, shows: Any) -> None:
    pve.on("PUT", CONFIG, "put-good/02-several")
    shows({"key": "memory", "value": 8192}, {"key": "onboot", "value": 1}, {"key": "cores", "value": 4})
    done = api.set_config("pve", 200, {"memory": "8192", "onboot": True}, delete=("swap",), digest=DIGEST)
    assert done == proxmox_config.Written(written=True, pending=(), digest=AFTER, text="")
    assert _form(pve) == {"memory": "8192", "onboot": "1", "delete": "swap", "digest": DIGEST}
    # Not the merged values: `current` tells what is in force, and its digest is the file's.
    assert pve.asked("GET", CONFIG)[0].query == "current=1"
    asked = [(request.method, request.path) for request in pve.requests if "access" not in request.path]
    assert asked == [("PUT", CONFIG), ("GET", CONFIG), ("GET", PENDING)]


def test_case_26_what_waits_for_the_next_start_is_said(pve: Any, api: ProxmoxApi, shows: Any) -> None:
    pve.on("PUT", CONFIG, "put-good/03-dev")
    shows(
        {"key": "dev0", "value": "/dev/nvidia0", "pending": "/dev/nvidia0,mode=0666"},
        {"key": "dev1", "value": "/dev/nvidia-uvm"},
        {"key": "dev2", "value": "/dev/nvidiactl", "delete": 1},
    )
    values = {"dev0": "/dev/nvidia0,mode=0666", "dev1": "/dev/nvidia-uvm"}
    done = api.set_config("pve", 200, values, delete=("dev2",), digest=DIGEST)
    assert done.pending == ("dev0", "dev2")


def test_an_error_500_that_was_written_all_the_same_is_no_failure(pve: Any, api: ProxmoxApi, shows: Any) -> None:
    pve.on("PUT", CONFIG, "put-missing-node/01-cores")
    shows({"key": "cores", "value": 8}, {"key": "dev1", "value": "/dev/nvidia9"})
    done = api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
    assert (done.written, done.digest, done.text) == (True, AFTER, "Device /dev/nvidia9 does not exist")


def test_an_error_500_that_was_not_written_fails_with_proxmox_own_text(
    pve: Any, api: ProxmoxApi, shows: Any
) -> None:
    pve.on("PUT", CONFIG, "put-missing-node/04-add-bad")
    shows({"key": "cores", "value": 4}, digest=DIGEST)
    with pytest.raises(Failed, match=r"setting dev3 failed: Device /dev/nvidia8 does not exist") as caught:
        api.set_config("pve", 200, {"dev3": "/dev/nvidia8"}, digest=DIGEST)
    assert "nvidia-modprobe" in caught.value.hint


def test_a_success_that_is_not_there_is_a_failure(pve: Any, api: ProxmoxApi, shows: Any) -> None:
    pve.on("PUT", CONFIG, "put-good/01-cores")
    shows({"key": "cores", "value": 4}, digest=DIGEST)
    with pytest.raises(Failed, match="cores is not as asked"):
        api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)


@pytest.mark.parametrize(
    ("recorded", "said", "hint"),
    [
        ("put-digest/01-wrong", "detected modified configuration", "planned anew"),
        ("put-locked/01-put", r"CT is locked \(backup\)", "wait until the backup has ended"),
        ("put-file-lock/01-flock", "can't lock file", "another task"),
    ],
)
def test_what_proxmox_refuses_before_writing_is_a_refusal(
    pve: Any, api: ProxmoxApi, recorded: str, said: str, hint: str
) -> None:
    pve.on("PUT", CONFIG, recorded)
    with pytest.raises(Refused, match=said) as caught:
        api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
    assert hint in caught.value.hint
    assert pve.asked("GET", CONFIG) == []


def test_no_quorum_is_a_refusal(pve: Any, api: ProxmoxApi, scripted: Any, shows: Any) -> None:
    said = "unable to open file '/etc/pve/nodes/pve/lxc/200.conf.tmp.36' - Permission denied"
    pve.on("PUT", CONFIG, scripted.Reply(500, said, json.dumps({"data": None, "message": said})))
    shows(digest=DIGEST)
    with pytest.raises(Refused, match="Permission denied") as caught:
        api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
    assert "no quorum" in caught.value.hint


def test_every_bad_parameter_is_shown(pve: Any, api: ProxmoxApi) -> None:
    pve.on("PUT", CONFIG, "put-schema/03-many")
    with pytest.raises(Failed, match=r"bogus: property is not defined.*dev0: .*memory: ") as caught:
        api.set_config("pve", 200, {"dev0": "nvidia0", "memory": "1", "bogus": "x"}, digest=DIGEST)
    assert not isinstance(caught.value, Refused)


@pytest.mark.parametrize("recorded", ["put-token-sep/01-dev", "put-token-sep/02-dev-delete"])
def test_case_20_a_token_is_told_that_it_can_never_set_a_device(pve: Any, connect: Any, recorded: str) -> None:
    pve.on("PUT", CONFIG, recorded)
    api = connect(pve, **{**TOKEN, "user": "root@pam", "token_name": "terraform"})
    with pytest.raises(Refused) as caught:
        api.set_config("pve", 200, {"dev1": "/dev/nvidia-uvm"}, digest=DIGEST)
    assert caught.value.message == (
        "root@pam!terraform may not: Permission check failed "
        "(configuring device passthrough is only allowed for root@pam)"
    )
    assert caught.value.hint == "a token can never do this; use SSH (pct set) or a root@pam password"
    assert pve.asked("GET", CONFIG) == []


def test_another_user_is_not_told_about_tokens(pve: Any, connect: Any) -> None:
    pve.on("PUT", CONFIG, "put-token-sep/05-keyctl")
    with pytest.raises(Refused) as caught:
        connect(pve, user="ops@pve").set_config("pve", 200, {"features": "nesting=1,keyctl=1"}, digest=DIGEST)
    assert "token" not in caught.value.hint
    assert "root@pam password" in caught.value.hint


def test_a_missing_privilege_is_named(pve: Any, connect: Any) -> None:
    pve.on("PUT", CONFIG, "put-token-weak/01-audit")
    with pytest.raises(Refused) as caught:
        connect(pve, **TOKEN).set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
    assert "VM.Config.CPU" in caught.value.hint


@pytest.mark.parametrize(
    ("values", "delete", "digest"),
    [
        ({"lxc.cgroup2.devices.allow": "c 511:* rwm"}, (), DIGEST),
        ({"lxc": "[]"}, (), DIGEST),
        ({}, ("lxc",), DIGEST),
        ({}, ("lxc.cgroup2.devices.allow",), DIGEST),
        ({"digest": DIGEST}, (), DIGEST),
        ({"cores": "8"}, ("cores",), DIGEST),
        ({}, (), DIGEST),
        ({"cores": "8"}, (), ""),
        ({"cores": "8"}, (), DIGEST.upper()),
    ],
)
def test_case_24_raw_keys_and_changes_without_a_digest_are_never_sent(
    pve: Any, api: ProxmoxApi, values: dict[str, str], delete: tuple[str, ...], digest: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        api.set_config("pve", 200, values, delete=delete, digest=digest)
    if any(key.startswith("lxc") for key in (*values, *delete)):
        assert "takes no raw lxc keys" in caught.value.message
        assert "SSH" in caught.value.hint
    assert pve.asked("PUT", CONFIG) == []


class TestLostAnswer:
    @pytest.fixture(params=["dropped", "596", "late"])
    def lost(self, request: pytest.FixtureRequest, scripted: Any) -> Any:
        return {
            "dropped": scripted.DROP,
            "596": scripted.Reply(596, "Connection timed out"),
            "late": scripted.Reply(wait_s=1.6),
        }[request.param]

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proxmox_config, "LOOK_PAUSE_S", 0.05)

    def test_a_change_that_arrived_is_found_and_not_sent_again(
        self, pve: Any, connect: Any, lost: Any, shows: Any
    ) -> None:
        pve.on("PUT", CONFIG, lost)
        shows({"key": "cores", "value": 8})
        done = connect(pve, timeout_s=0.8).set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
        assert (done.written, done.digest) == (True, AFTER)
        assert done.text
        assert len(pve.asked("PUT", CONFIG)) == 1

    def test_one_that_is_still_under_way_is_waited_for(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("PUT", CONFIG, scripted.DROP).on("GET", CONFIG, scripted.data({"digest": AFTER}))
        old, new = ([{"key": "cores", "value": n}] for n in (4, 8))
        pve.on("GET", PENDING, scripted.data(old), scripted.data(new))
        assert api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST).written
        assert len(pve.asked("PUT", CONFIG)) == 1

    def test_one_that_is_not_there_is_unknown_and_not_sent_again(
        self, pve: Any, api: ProxmoxApi, scripted: Any, shows: Any
    ) -> None:
        pve.on("PUT", CONFIG, scripted.DROP)
        shows({"key": "cores", "value": 4}, digest=DIGEST)
        with pytest.raises(CannotLook, match="the answer was lost, and the configuration is unchanged so far"):
            api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
        assert len(pve.asked("PUT", CONFIG)) == 1

    def test_when_nobody_can_look_both_errors_are_told(self, pve: Any, api: ProxmoxApi, scripted: Any) -> None:
        pve.on("PUT", CONFIG, "put-missing-node/01-cores").on("GET", CONFIG, "unknown-vmid/01-config")
        with pytest.raises(
            CannotLook, match="Device /dev/nvidia9 does not exist; whether it was written"
        ) as caught:
            api.set_config("pve", 200, {"cores": "8"}, digest=DIGEST)
        assert "200.conf' does not exist" in caught.value.detail[0] or "999.conf" in caught.value.detail[0]


@pytest.mark.parametrize(
    ("there", "asked", "equal"),
    [
        (1, True, True),
        (0, False, True),
        ("8192", "8192", True),
        (8192, "8192", True),
        ("mode=0666,path=/dev/x", "path=/dev/x,mode=0666", True),
        ("a note\n", "a note", True),
        (None, "", False),
        ("/dev/nvidia0", "/dev/nvidia0,mode=0666", False),
        (1, False, False),
    ],
)
def test_values_are_compared_as_proxmox_shows_them(there: Any, asked: Any, equal: bool) -> None:
    assert proxmox_config.same(there, asked) is equal
