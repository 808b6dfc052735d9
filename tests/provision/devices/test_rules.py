"""Rules of LXC, values of dev[n], raw keys and /proc/devices: as the real code reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.devices import procdev
from provision.devices.config import keys, rules

ALLOW, DENY = rules.ALLOW, rules.DENY


@pytest.mark.parametrize("text", ["a", "c 195:* rwm", "c 511:0 rw", "b *:* m", "c *:1 r"])
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    rule = rules.parse_rule(text)
    assert rule is not None
    assert text in ("a", str(rule))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c  195:*\trwm",
        "c 195 rwm",
        "c 195:*",
        "d 1:1 r",
        "c 195:* rwx",
        " c 195:* rwm",
        "c -1:* r",
    ],
)
def test_what_lxc_does_not_take_is_no_rule(text: str) -> None:
    assert rules.parse_rule(text) is None


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ([], False),
        ([(ALLOW, "c 511:* rwm")], True),
        ([(ALLOW, "c 511:0 rw")], True),
        ([(ALLOW, "c 511:1 rw")], False),
        ([(ALLOW, "c 511:* r")], False),
        ([(ALLOW, "b 511:* rwm")], False),
        ([(ALLOW, "a")], True),
        ([(ALLOW, "c *:* rwm")], True),
        ([(ALLOW, "a 511:* rwm")], True),
        ([(ALLOW, "a 195:* rwm")], False),
        ([(ALLOW, "c 511:* rwm"), (DENY, "a")], False),
        ([(DENY, "a"), (ALLOW, "c 511:* rwm")], True),
        ([(ALLOW, "c 511:* rwm"), (DENY, "c 511:* rwm")], False),
        ([("lxc.cgroup.devices.allow", "c 511:* rwm")], False),
        ([(ALLOW, "c 511:*  rwm")], False),
    ],
)
def test_whether_a_privileged_container_may_open_511_0(settings: list[tuple[str, str]], answer: bool) -> None:
    assert rules.program(settings).allows(511, 0) is answer


def test_every_recorded_device_value_is_read_as_by_proxmox(value_vectors: list[dict[str, Any]]) -> None:
    seen = 0
    for vector in value_vectors:
        if vector["kind"] != "device":
            continue
        seen += 1
        text = vector["input"].encode().decode("latin-1")
        try:
            spec = rules.parse_device(text)
        except rules.BadDevice as error:
            # Several errors come in the order of a Perl hash.
            assert not vector["ok"], text
            assert sorted(str(error).split()) == sorted(vector["error"].split())
            continue
        assert vector["ok"], text
        real = vector["result"]
        assert (spec.path, spec.mode) == (real["path"], int(real.get("mode", "0660"), 8))
        assert (spec.uid, spec.gid) == (int(real.get("uid", 0)), int(real.get("gid", 0)))
        assert spec.deny_write == bool(real.get("deny-write", 0))
    assert seen == 88


def test_every_recorded_raw_key_is_accepted_or_not_as_by_proxmox(value_vectors: list[dict[str, Any]]) -> None:
    recorded = [vector for vector in value_vectors if vector["kind"] == "lxckey"]
    assert len(recorded) == 96
    assert [v["input"] for v in recorded if keys.accepted(v["input"]) != (v["validity"] == "1")] == []


@given(st.text(max_size=40))
def test_any_device_value_is_read_or_refused_in_words(text: str) -> None:
    try:
        assert rules.parse_device(text).path.startswith("/dev/")
    except rules.BadDevice as error:
        assert str(error)


def test_numbers_of_five_thousand_digits_do_not_break_it() -> None:
    assert rules.parse_device("/dev/nvidia0,gid=" + "9" * 5000).gid > 0


def test_a_mount_entry_says_whether_a_missing_source_stops_the_start() -> None:
    mount = rules.parse_mount(r"/dev/a\040b dev/a\040b none bind,optional,create=file 0 0")
    assert mount is not None
    assert (mount.source, mount.target, mount.optional, mount.bind) == ("/dev/a b", "dev/a b", True, True)
    assert rules.parse_mount("/dev/a dev/a none") is None


@pytest.mark.parametrize(
    ("text", "majors"),
    [
        ("Character devices:\n195 nvidia-frontend\n", {"nvidia": 195}),
        ("Character devices:\n195 nvidia\n195 nvidiactl\n195 nvidia-modeset\n", {"nvidia": 195}),
        (
            "Character devices:\n195 nvidia\n510 nvidia-uvm-tools2\n511 nvidia-uvm\n\nBlock devices:\n259 nvidia-uvm\n",
            {"nvidia": 195, "nvidia-uvm": 511},
        ),
        ("Block devices:\n259 nvidia-uvm\n", {}),
        ("", {}),
        (
            "Character devices:\n508 nvidia-caps\n509 nvidia-caps-imex-channels\n",
            {"nvidia-caps": 508, "nvidia-caps-imex-channels": 509},
        ),
    ],
)
def test_the_numbers_of_nvidia_come_from_the_character_section_by_exact_name(
    text: str, majors: dict[str, int]
) -> None:
    assert procdev.majors(procdev.parse(text)) == majors


@given(st.text(max_size=200))
def test_any_text_of_proc_devices_can_be_read(text: str) -> None:
    assert all(0 <= major < 10**9 for major in procdev.parse(text))
