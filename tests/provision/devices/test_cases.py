"""Every reported fault as a file: what is diagnosed, what is done on the host, what becomes of the configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.devices.config import conf, edits
from provision.devices.diagnosis import cause, diagnose, predict
from provision.devices.facts import (
    Content,
    CtFacts,
    Gpu,
    GuestFacts,
    HostFacts,
    Module,
    Node,
    NodeKind,
    Pci,
    State,
)
from provision.devices.planning import plan, prepare

WANTED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
_CONTENTS = ("driver", "params", "dkms", "kernel_log", "cmdline", "boot_unit")


def _read(file: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(file.read_text())
    return case


def _node(path: str, text: str, mode: str = "0666", **more: Any) -> Node:
    """`509:0`, or a kind with perhaps its reason (`unreadable no answer in 20 s`); mode `0660 0:44` with its owner."""
    bits, _, owner = mode.partition(" ")
    uid, gid = map(int, owner.split(":")) if owner else (0, 0)
    if ":" not in text:
        kind, _, why = text.partition(" ")
        return Node(path, NodeKind(kind), mode=int(bits, 8), uid=uid, gid=gid, why=why)
    major, minor = map(int, text.split(":"))
    return Node(path, NodeKind.CHAR, major, minor, int(bits, 8), uid, gid, **more)


def _host(case: dict[str, Any], make: Any) -> HostFacts:
    modes, changed = case.get("modes", {}), case.get("changed_s", {})
    nodes = [
        _node(
            path, text, modes.get(path, "0666"), **({"changed_s": float(changed[path])} if path in changed else {})
        )
        for path, text in case["nodes"].items()
    ]
    loaded = "195 nvidia" in case["proc"]
    host: HostFacts = make.host(
        case["conf"],
        gpus=case.get("gpus", 1),
        nodes=tuple(nodes),
        proc_devices=Content(State.PRESENT, case["proc"]),
        modules=(Module("nvidia", loaded, "", case.get("on_disk")),),
        pci=tuple(Pci(a, kind="0x030000", driver=b) for a, b in case.get("foreign", ())),
    )
    told = {**({"driver": case["driver"]} if "driver" in case else {}), **case.get("host", {})}
    return replace(host, **{name: _field(name, value) for name, value in told.items()})


def _field(name: str, value: Any) -> Any:
    """A field of `HostFacts` in short form: a file's text, null for an absent one, `!EIO` for an unreadable one."""
    if name in (*_CONTENTS, "conf", "proc_devices"):
        if value is None:
            return Content()
        return Content(State.UNREADABLE, why=value[1:]) if value.startswith("!") else Content(State.PRESENT, value)
    kinds: dict[str, Any] = {"gpus": Gpu, "modules": Module, "pci": Pci}
    if name in kinds:
        return tuple(kinds[name](**item) for item in value)
    return tuple(value) if isinstance(value, list) else value


def _inside(case: dict[str, Any]) -> CtFacts | None:
    if "inside" not in case:
        return None
    opened, modes = case.get("opened", {}), case.get("modes_inside", {})
    nodes = tuple(
        _node(path, text, modes.get(path, "0666"), **({"opened": opened.get(path, "")} if ":" in text else {}))
        for path, text in case["inside"].items()
    )
    uid_map = Content(State.PRESENT, "         0     100000      65536\n")
    return CtFacts("b1", nodes, Content(), uid_map, tuple(case.get("libraries", ())))


def _diagnosed(case: dict[str, Any], make: Any) -> tuple[diagnose.Cause, ...]:
    container = make.container(case.get("count", 1), tuple(case.get("wanted", WANTED)))
    guest = GuestFacts(**{"node": "pve", "status": "running", **case["guest"]}) if "guest" in case else None
    host, inside = _host(case, make), _inside(case)
    return diagnose.diagnose("ct200", host, container, inside, guest=guest, started_s=case.get("started_s"))


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
def test_the_case_is_told_apart(file: Path, make: Any) -> None:
    case = _read(file)
    expect, causes = case["expect"], _diagnosed(case, make)
    assert [c.id.value for c in causes if not c.note] == expect["causes"], [c.text for c in causes]
    assert [c.id.value for c in causes if c.note] == expect.get("notes", [])
    assert list(causes) == sorted(causes, key=lambda c: c.note)  # notes come last
    _said(causes, expect)
    root = cause.root(causes)
    for word in expect.get("root_says", ()):
        assert root is not None
        assert word in root.text
    assert expect.get("follows", "") in (root.follows if root else "")
    assert expect.get("evidence", "") in ("\n".join(root.evidence) if root else "")
    assert expect.get("hint", "") in (root.hint if root else "")


def _said(causes: tuple[diagnose.Cause, ...], expect: dict[str, Any]) -> None:
    says = expect.get("says", [])
    for words in [says] if isinstance(says, str) else says:
        assert any(words in f"{c.text}; {c.follows}" for c in causes), [c.text for c in causes]
    for words in expect.get("never_says", ()):
        assert not any(words in f"{c.text}; {c.follows}; {c.hint}" for c in causes)


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
def test_what_is_done_about_the_case(file: Path, make: Any) -> None:
    case = _read(file)
    expect, host = case["expect"], _host(case, make)
    container = make.container(case.get("count", 1), tuple(case.get("wanted", WANTED)))
    document = conf.parse(host.conf.text)

    tried = frozenset(tuple(argv) for argv in case.get("tried", ()))
    steps = prepare.host_plan(host, container, tried)
    if "steps" in expect:
        assert [list(argv) for step in steps.steps for argv in step.argvs] == expect["steps"]
        assert ("host_blocked" in expect) == (steps.blocked is not None), steps.blocked
    assert expect.get("host_blocked", "") in str(steps.blocked)
    assert len(steps.warnings) == len(expect.get("warns", ()))
    assert all(word in told for word, told in zip(expect.get("warns", ()), steps.warnings, strict=True))
    assert bool(steps.advice) == ("advice" in expect)
    assert expect.get("advice", "") in "".join(steps.advice)
    found = predict.obstacles(document, host)
    assert len(found) == len(expect.get("obstacles", found))
    assert all(words in told for words, told in zip(expect.get("obstacles", found), found, strict=True))

    if not {"becomes", "blocked", "later"} & set(expect):
        return
    made = plan.conf_plan(document, host, container)
    assert expect.get("blocked", "") in str(made.blocked)
    assert ("blocked" in expect) == (made.blocked is not None)
    assert expect.get("later", "") in " ".join(made.later)
    if "blocked" not in expect:
        assert edits.edit(document, made.edits).render().decode() == _expected(case["conf"], expect)


def _expected(text: str, expect: dict[str, Any]) -> str:
    for old, new in expect["becomes"]:
        assert text.count(f"{old}\n") >= 1
        text = text.replace(f"{old}\n", f"{new}\n" if new is not None else "", 1)
    added = "".join(f"{line}\n" for line in expect.get("adds", ()))
    if not added:
        return text
    before = expect.get("before", "")
    return text.replace(before, added + before, 1) if before else text + added


def test_every_cause_has_a_case() -> None:
    told = {word for file in CASES for key in ("causes", "notes") for word in _read(file)["expect"].get(key, ())}
    assert {cause_id.value for cause_id in diagnose.CauseId} == told


def test_every_case_says_where_it_comes_from() -> None:
    assert len(CASES) >= 20
    for file in CASES:
        case = _read(file)
        assert case["source"]
        assert case["story"]
