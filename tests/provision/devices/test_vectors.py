"""Every recorded configuration: our reading agrees with the real parser's, and our edits change only what was meant."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from gpuctl.lab.pve import conf as second
from provision.devices.config import conf, edits, keys, rules
from provision.devices.consent import Style
from provision.devices.facts import Content, HostFacts, State
from provision.devices.planning import plan

Recorded = Callable[[Mapping[str, str]], bytes]
Vectors = list[dict[str, Any]]

BOOLEANS: Final = {1: ("yes", "on", "true"), 0: ("no", "off", "false")}
HIDDEN: Final = "internal/lxc-key-last"
"""A plain `lxc:` line forgets every raw line."""


def _set(view: conf.View) -> dict[str, Any]:
    """A section in the form in which the real parser's result was recorded."""
    found: dict[str, Any] = dict(view.values)
    if view.raw and "lxc" not in found:
        found["lxc"] = [[line.key, line.value] for line in view.raw]
    return found | ({"description": view.description} if view.description else {})


def _whole(document: conf.Document) -> dict[str, Any]:
    found = {
        "digest": document.digest,
        "pending": _set(document.pending) if document.pending else {},
        "snapshots": {name: _set(view) for name, view in document.snapshots.items()},
    }
    return found | _set(document.main)


def _real(vector: dict[str, Any]) -> dict[str, Any]:
    parsed = vector["parse"]
    found: dict[str, Any] = parsed.get("json") or json.loads(zlib.decompress(b64decode(parsed["json_zb64"])))
    return found


def _differences(mine: dict[str, Any], real: dict[str, Any], where: str) -> list[str]:
    found = []
    for key in sorted(mine.keys() | real.keys()):
        a, b = mine.get(key), real.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{where}/{key}")
        elif isinstance(a, str) and isinstance(b, int):  # the real parser makes numbers and booleans of some
            if a not in (str(b), *BOOLEANS.get(b, ())):
                found.append(f"{where}/{key}: {a!r} {b!r}")
        elif a != b:
            found.append(f"{where}/{key}: {str(a)[:80]!r} {str(b)[:80]!r}")
    return found


def test_values_lists_sections_descriptions_and_digest_are_the_real_parsers(
    conf_vectors: Vectors, recorded: Recorded
) -> None:
    assert len(conf_vectors) == 179
    wrong = []
    for vector in conf_vectors:
        document = conf.parse(recorded(vector["input"]))
        assert document.digest == vector["sha1"]
        assert document.fatal == (vector["parse"]["error"] or "")
        wrong += _differences(_whole(document), _real(vector), vector["name"])
    assert wrong == []


def _complaint(line: conf.Line) -> str:
    """What the real parser says about a line, as far as the line alone decides it; "" for nothing."""
    if line.kind is conf.Kind.MALFORMED:
        if line.key == "delete":
            return "property 'delete' is only allowed in [pve:pending]"
        if line.key in ("lxc.rootfs.path", "lxc.rootfs.options"):
            return f"{line.key}: {line.key} is auto generated from rootfs"
        return f"unable to parse config: {line.body}"
    if line.kind is conf.Kind.RAW and keys.deprecated(line.key):
        return f"{line.key} is deprecated"
    if line.kind is conf.Kind.VALUE and re.fullmatch(r"dev(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])", line.key):
        problem = rules.read_device(line.value)[1]
        return f"unable to parse value of '{line.key}' - {problem}" if problem else ""
    return ""


def test_each_warning_belongs_to_the_line_that_we_find_fault_with(
    conf_vectors: Vectors, recorded: Recorded
) -> None:
    for vector in conf_vectors:
        document = conf.parse(recorded(vector["input"]))
        mine = [text for line in document.lines if (text := _complaint(line))]
        told = [text.split(" - ", 1)[1].rstrip("\n") for text in vector["parse"]["warnings"]]
        other = re.compile(r"unable to parse value of '(?!dev\d)")  # values that have nothing to do with devices
        real = [text for text in told if not other.match(text) and "unknown setting" not in text]
        assert len(mine) == len(real), vector["name"]
        for a, b in zip(mine, real, strict=True):
            assert sorted(a.split()) == sorted(b.split()) or ("deprecated" in a and b.startswith(a)), vector[
                "name"
            ]
        if vector["strict"]["exit"] == 3 and len(real) == len(told):
            first = next(text for text in mine if "deprecated" not in text)
            assert sorted(first.split()) == sorted(vector["strict"]["error"].split(" - ", 1)[1].split())


@pytest.mark.slow
def test_the_file_that_proxmox_would_write_says_the_same(conf_vectors: Vectors, recorded: Recorded) -> None:
    compared = 0
    for vector in conf_vectors:
        output = vector["roundtrip"]["output"]
        if output in (None, "same"):
            continue
        before, after = conf.parse(recorded(vector["input"])), conf.parse(recorded(output))
        assert after.malformed == () or vector["roundtrip"]["again_parse_exit"] != 0
        for old, new in zip((before.main, before.pending), (after.main, after.pending), strict=True):
            if old is not None and new is not None and vector["name"] not in ("mount/unused-in-use", HIDDEN):
                assert [(line.key, line.value) for line in old.raw] == [(line.key, line.value) for line in new.raw]
        compared += 1
    assert compared > 60


def _body(answer: Mapping[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(answer["body"])["data"]
    return data


def test_what_the_next_start_uses_is_what_the_api_merges(conf_vectors: Vectors, recorded: Recorded) -> None:
    compared = 0
    for vector in conf_vectors:
        got = vector["api_get"]
        if got["config"]["status"] != 200 or not re.match(
            "plain|dev|raw|pending|dup|snapshot|eol", vector["name"]
        ):
            continue
        document = conf.parse(recorded(vector["input"]))
        current = got["config"] if got["config_current"] == "same as config" else got["config_current"]
        for view, answer in ((document.main, current), (document.next_start, got["config"])):
            real = {key: value for key, value in _body(answer).items() if key not in ("digest", "description")}
            mine = {key: value for key, value in _set(view).items() if key != "description"}
            assert _differences(mine, real, vector["name"]) == []
        compared += 1
    assert compared > 90


def test_a_device_that_proxmox_itself_added_stands_where_we_would_put_it(
    conf_vectors: Vectors, recorded: Recorded
) -> None:
    compared = 0
    for vector in conf_vectors:
        before = conf.parse(recorded(vector["input"]))
        for put in vector["api_put"]:
            form, written = put["form"], put["file_after"]
            wrong = written in ("same", "roundtrip") or put["pending_after"] or put["status"] != 200
            if wrong or not all(re.fullmatch(r"dev\d+", key) for key in form):
                continue
            if any(key in before.main.values for key in form):
                continue
            mine = edits.edit(before, [edits.Insert(key, value) for key, value in form.items()])
            theirs = conf.parse(recorded(written))
            for a, b in (
                (mine.main, theirs.main),
                *zip(mine.snapshots.values(), theirs.snapshots.values(), strict=True),
            ):
                assert (a.values, [x[5:7] for x in a.raw]) == (b.values, [x[5:7] for x in b.raw])
            compared += 1
    assert compared >= 2


def _hosts(make: Any, data: bytes) -> list[HostFacts]:
    right = make.host(data, uvm=509, pve_container="6.1.10")
    taken = "Character devices:\n195 nvidia\n234 nvidia-uvm\n511 stranger\n"
    return [
        right,
        replace(right, pve_container="5.0.6"),
        replace(make.host(data, uvm=234, pve_container="6.1.10"), proc_devices=Content(State.PRESENT, taken)),
        make.host(data, uvm=None, pve_container="6.1.10"),
        replace(right, gpus=(), nodes=()),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("style", list(Style))
def test_the_plan_for_every_recorded_file_changes_only_what_was_meant(
    make: Any, conf_vectors: Vectors, recorded: Recorded, style: Style
) -> None:
    made_edits = 0
    for vector in conf_vectors:
        data = recorded(vector["input"])
        if len(data) > 200_000:
            continue
        before = conf.parse(data)
        for host in _hosts(make, data):
            made = plan.conf_plan(before, host, make.container(1), prefer=style)
            done = edits.edit(before, made.edits)
            _only_devices_differ(vector, second.parse_conf(data, 200), second.parse_conf(done.render(), 200), made)
            after = replace(host, conf=replace(host.conf, text=done.render().decode("latin-1")))
            assert plan.conf_plan(done, after, make.container(1), prefer=style).edits == (), vector["name"]
            made_edits += bool(made.edits)
    assert made_edits > 300


def _only_devices_differ(vector: dict[str, Any], old: second.Conf, new: second.Conf, made: plan.ConfPlan) -> None:
    """As an independent reader sees it: the rest is the same, and the raw lines that were not named are too."""
    name = vector["name"]
    assert (new.pending, new.snapshots) == (old.pending, old.snapshots), name
    assert new.main.description == old.main.description, name
    added = {item.key: item.value for item in made.edits if isinstance(item, edits.Insert)}
    ours = {key for key in added if key.startswith("dev")}
    changed = {item.key for item in made.edits if isinstance(item, edits.Change) and item.key.startswith("dev")}
    rest = ours | changed
    assert {k: v for k, v in new.main.values.items() if k not in rest} == {
        k: v for k, v in old.main.values.items() if k not in rest
    }, name
    assert {key: new.main.values[key] for key in ours} == {key: added[key] for key in ours}, name
    gone = [pair for pair in old.main.lxc if pair not in new.main.lxc]
    came = [pair for pair in new.main.lxc if pair not in old.main.lxc]
    for key, value in gone + came:
        assert key in (
            rules.ALLOW,
            rules.DENY,
            *("lxc.cgroup.devices.allow", "lxc.cgroup.devices.deny"),
            rules.MOUNT,
        )
        assert key != rules.MOUNT or "nvidia" in value, name
    devices = re.compile(r"lxc\.cgroup\.devices|'dev\d")
    kept = [text for text in old.warnings if not devices.search(text)]
    assert [text for text in new.warnings if not devices.search(text)] == kept, name
