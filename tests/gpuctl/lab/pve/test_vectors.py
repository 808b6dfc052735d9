"""The recorded vectors: files parsed and written, API answers about them, single values against the schema."""

from __future__ import annotations

import base64
import copy
import json
import zlib
from collections.abc import Callable
from typing import Any

from gpuctl.lab.pve import pending
from gpuctl.lab.pve.conf import Conf, ConfError, parse_conf, write_conf
from gpuctl.lab.pve.fault import Fault
from gpuctl.lab.pve.guest import parse_device
from gpuctl.lab.pve.lxckeys import judge
from gpuctl.lab.pve.schema import check_properties, endpoints

# Vectors the lab does not agree with yet, name -> reason. One that starts to agree fails the test.
PARSE_DISAGREES: dict[str, str] = {}
GET_DISAGREES: dict[str, str] = {}
PUT_DISAGREES: dict[str, str] = {}
VALUE_DISAGREES: dict[str, str] = {}

DEVICES = {
    "/dev/nvidia0": ["c", 195, 0],
    "/dev/nvidia1": ["c", 195, 1],
    "/dev/nvidiactl": ["c", 195, 255],
    "/dev/nvidia-uvm": ["c", 511, 0],
    "/dev/nvidia-uvm-tools": ["c", 511, 1],
    "/dev/nvidia-caps": ["d", 0, 0],
}
PUT = endpoints()["PUT /nodes/{node}/lxc/{vmid}/config"].properties


def _unfold(record: dict[str, Any], name: str) -> Any:
    """A field that may be stored compressed."""
    if f"{name}_zb64" not in record:
        return record.get(name)
    text = zlib.decompress(base64.b64decode(record[f"{name}_zb64"])).decode()
    return text if name == "body" else json.loads(text)


def _settle(problems: dict[str, str], disagrees: dict[str, str], count: int, expected: int) -> None:
    assert count == expected
    surprising = {name: text for name, text in problems.items() if name not in disagrees}
    assert not surprising, "\n".join(f"{name}: {text}" for name, text in surprising.items())
    assert set(disagrees) == set(problems), "these agree now: take them off the list"


def test_every_recorded_file_parses_and_is_rewritten_as_recorded(recorded, as_bytes):
    problems = {}
    vectors = recorded("conf-vectors")
    for vector in vectors:
        problem = _parse_problem(vector, as_bytes)
        if problem:
            problems[vector["name"]] = problem
    _settle(problems, PARSE_DISAGREES, len(vectors), 179)


def _parse_problem(vector: dict[str, Any], as_bytes: Callable) -> str:
    raw, expected, roundtrip = as_bytes(vector["input"]), vector["parse"], vector["roundtrip"]
    try:
        conf = parse_conf(raw, vector["vmid"])
    except ConfError as error:
        return "" if str(error) == expected["error"] else f"died with {error}"
    if conf.to_json() != _unfold(expected, "json"):
        return f"parsed as {conf.to_json()!r:.500}"
    if list(conf.warnings) != (expected["warnings"] or []):
        return f"warned {conf.warnings}"
    return _write_problem(conf, raw, roundtrip, as_bytes)


def _write_problem(conf: Conf, raw: bytes, roundtrip: dict[str, Any], as_bytes: Callable) -> str:
    try:
        out = write_conf(copy.deepcopy(conf))
    except ConfError as error:
        return "" if str(error) == roundtrip["error"] else f"writer died with {error}"
    if out != (raw if roundtrip["output"] == "same" else as_bytes(roundtrip["output"])):
        return f"written as {out!r:.500}"
    again = parse_conf(out, conf.vmid)
    if bool(again.warnings) != (roundtrip["again_parse_exit"] == 2):
        return f"the rewritten file warns {again.warnings}"
    return "" if (write_conf(again) == out) is roundtrip["again_same"] else "rewriting is not stable"


def test_every_recorded_file_is_shown_by_the_api_as_recorded(lab, recorded, as_bytes, call):
    problems = {}
    vectors = recorded("conf-vectors")
    for vector in vectors:
        lab.reset(None)
        (lab.backend.conf_dir / f"{vector['vmid']}.conf").write_bytes(as_bytes(vector["input"]))
        for what, query in (("config", "config"), ("config_current", "config?current=1"), ("pending", "pending")):
            expected = vector["api_get"][what]
            if expected == "same as config":
                expected = vector["api_get"]["config"]
            answer = call("GET", f"/nodes/pve/lxc/{vector['vmid']}/{query}")
            problem = _answer_problem(expected, answer)
            if problem:
                problems[f"{vector['name']} {what}"] = problem
    _settle(problems, GET_DISAGREES, len(vectors), 179)


def _answer_problem(expected: dict[str, Any], answer: Any) -> str:
    if (answer.status, answer.reason) != (expected["status"], expected["reason"]):
        return f"{answer.status} {answer.reason!r}, not {expected['status']} {expected['reason']!r}"
    new, old = answer.json(), json.loads(_unfold(expected, "body"))
    if isinstance(old["data"], list):
        for body in (old, new):
            body["data"].sort(key=lambda row: row["key"])
    return "" if new == old else f"{new!r:.600}, not {old!r:.600}"


def test_every_recorded_change_has_the_recorded_effect(lab, recorded, as_bytes, call):
    problems = {}
    count = 0
    for vector in recorded("conf-vectors"):
        for index, change in enumerate(vector["api_put"]):
            count += 1
            problem = _change_problem(lab, vector, change, as_bytes, call)
            if problem:
                problems[f"{vector['name']} {index}"] = problem
    _settle(problems, PUT_DISAGREES, count, 111)


def _change_problem(
    lab: Any, vector: dict[str, Any], change: dict[str, Any], as_bytes: Callable, call: Any
) -> str:
    raw = as_bytes(vector["input"])
    lab.reset(None, devices=DEVICES)
    path = lab.backend.conf_dir / f"{vector['vmid']}.conf"
    path.write_bytes(raw)
    lab.backend.started = {vector["vmid"]: lab.backend.booted} if change["running"] else {}
    answer = call("PUT", f"/nodes/pve/lxc/{vector['vmid']}/config", change["form"])
    problem = _answer_problem(change, answer)
    if problem:
        return problem
    after = change["file_after"]
    if after in ("same", "roundtrip"):
        output = vector["roundtrip"]["output"]
        expected = raw if after == "same" or output == "same" else as_bytes(output)
    else:
        expected = as_bytes(after)
    if path.read_bytes() != expected:
        return f"file is {path.read_bytes()!r:.500}"
    return _pending_problem(change, path.read_bytes(), vector["vmid"])


def _pending_problem(change: dict[str, Any], raw: bytes, vmid: int) -> str:
    if "pending_after" not in change or change["status"] != 200:
        return ""
    rows = [row for row in pending.listing(parse_conf(raw, vmid)) if "pending" in row or "delete" in row]
    expected = change["pending_after"] or []
    by_key = [sorted(side, key=lambda row: row["key"]) for side in (rows, expected)]
    return "" if by_key[0] == by_key[1] else f"pending is {rows}"


def test_every_recorded_value_is_judged_as_recorded(recorded):
    judges: dict[str, Callable[[dict[str, Any]], str]] = {
        "lxckey": _key_problem,
        "checkput": _put_problem,
        "device": _device_problem,
    }
    problems = {}
    vectors = recorded("value-vectors")
    for vector in vectors:
        problem = judges[vector["kind"]](vector)
        if problem:
            problems[vector["name"]] = problem
    _settle(problems, VALUE_DISAGREES, len(vectors), 289)


def _key_problem(vector: dict[str, Any]) -> str:
    verdict, warning = judge(vector["input"])
    warnings = [f"vm 200 - {warning}\n"] if warning else []
    return "" if (verdict, warnings) == (vector["validity"], vector["warnings"]) else f"{verdict} {warning}"


def _put_problem(vector: dict[str, Any]) -> str:
    errors = check_properties(PUT, {"node": "pve", "vmid": "200"} | vector["input"])
    return "" if errors == (vector["error"] or {}).get("errors", {}) else str(errors)


def _device_problem(vector: dict[str, Any]) -> str:
    text = vector["input"].encode().decode("latin-1")
    errors = check_properties(PUT, {"node": "pve", "vmid": "200", "dev0": text})
    if errors != (vector["put_schema_error"] or {}).get("errors", {}):
        return str(errors)
    try:
        parsed = parse_device(text)
    except Fault as fault:
        told = fault.message + "".join(f"{name}: {reason}\n" for name, reason in sorted(fault.errors.items()))
        return "" if not vector["ok"] and told == vector["error"] else f"died with {told!r}"
    return "" if vector["ok"] and parsed == vector["result"] else str(parsed)
