"""Every reported fault as a file: what is diagnosed, what is done on the host, what becomes of the configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.devices import conf, diagnose, edits, plan, predict, prepare
from provision.devices.facts import Content, CtFacts, Module, Node, NodeKind, Pci, State

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


def _node(path: str, text: str, **more: Any) -> Node:
    if text == "regular":
        return Node(path, NodeKind.REGULAR, mode=0o644)
    major, minor = map(int, text.split(":"))
    return Node(path, NodeKind.CHAR, major, minor, **{"mode": 0o666, **more})


def _host(case: dict[str, Any], make: Any) -> Any:
    modes, changed = case.get("modes", {}), case.get("changed_s", {})
    nodes = [
        _node(path, text, mode=int(modes.get(path, "0666"), 8), changed_s=float(changed.get(path, 0)))
        for path, text in case["nodes"].items()
    ]
    loaded = "195 nvidia" in case["proc"]
    host = make.host(
        case["conf"],
        gpus=case.get("gpus", 1),
        nodes=tuple(nodes),
        proc_devices=Content(State.PRESENT, case["proc"]),
        modules=(Module("nvidia", loaded, "", case.get("on_disk")),),
        pci=tuple(Pci(a, kind="0x030000", driver=b) for a, b in case.get("foreign", ())),
    )
    return replace(host, driver=Content(State.PRESENT, case["driver"])) if "driver" in case else host


def _inside(case: dict[str, Any]) -> CtFacts | None:
    if "inside" not in case:
        return None
    opened = case.get("opened", {})
    nodes = tuple(_node(path, text, opened=opened.get(path, "")) if ":" in text else _node(path, text)
                  for path, text in case["inside"].items())  # fmt: skip
    uid_map = Content(State.PRESENT, "         0     100000      65536\n")
    return CtFacts("b1", nodes, Content(), uid_map, tuple(case.get("libraries", ())))


@pytest.mark.parametrize("file", CASES, ids=lambda path: path.stem)
def test_the_case_is_told_apart_and_answered_rightly(file: Path, make: Any) -> None:
    case = json.loads(file.read_text())
    expect, host, container = case["expect"], _host(case, make), make.container(1)
    document = conf.parse(case["conf"])

    causes = diagnose.diagnose("ct200", host, container, _inside(case), started_s=case.get("started_s"))
    assert [cause.id.value for cause in causes] == expect["causes"]
    told = [cause.text for cause in causes]
    assert "says" not in expect or any(expect["says"] in text for text in told), told

    tried = frozenset(tuple(argv) for argv in case.get("tried", ()))
    steps = prepare.host_plan(host, container, tried)
    assert [list(argv) for step in steps.steps for argv in step.argvs] == expect["steps"]
    assert ("host_blocked" in expect) == (steps.blocked is not None)
    assert expect.get("host_blocked", "") in str(steps.blocked)

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


def test_a_start_that_would_fail_is_predicted_for_every_kind_of_obstacle(make: Any) -> None:
    text = make.base + (
        "dev0: /dev/gone\ndev1: /dev/nvidia0\ndev2: nonsense\ndev3: /dev/folder\n"
        "lxc.mount.entry: /srv/gone srv none bind\nlxc.mount.entry: /srv/gone2 srv none bind,optional\n"
        "lxc.mount.entry: tmpfs dev/shm tmpfs size=1g 0 0\n"
    )
    nodes = (
        *make.nodes(509),
        Node("/dev/gone", NodeKind.ABSENT),
        Node("/dev/folder", NodeKind.DIRECTORY),
        Node("/srv/gone", NodeKind.ABSENT),
        Node("/srv/gone2", NodeKind.ABSENT),
    )
    found = predict.obstacles(conf.parse(text), make.host(text, nodes=nodes))
    assert [line.split()[0] for line in found] == ["dev0", "dev2:", "dev3", "line"]


def test_every_case_says_where_it_comes_from() -> None:
    assert len(CASES) >= 20
    for file in CASES:
        case = json.loads(file.read_text())
        assert case["source"]
        assert case["story"]
