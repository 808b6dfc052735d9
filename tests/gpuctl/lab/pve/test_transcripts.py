"""Every recorded exchange with a real Proxmox API is replayed over TLS and must get the same answer."""

from __future__ import annotations

import fcntl
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import pytest

# Exchanges that are not replayed, with the reason. A name that is not in the recording fails the test.
LEFT_OUT: dict[str, str] = {}

# Values that differ from machine to machine or from moment to moment: only presence and type are compared.
LIVE = (
    r"(ticket|CSRFPreventionToken|ssl_fingerprint|upid|pid|pstart|starttime|endtime|uptime|loadavg|cgroup-mode)",
    r"data\.(cpuinfo|memory|rootfs)\..*",  # node status
    r"data\.\d+\.mem",  # the node in cluster/resources
)
# The recorder fed the statistics before it started the container; the lab reports what is, so it starts stopped.
FED_STOPPED = {"read-resources"}


@pytest.mark.slow
def test_replay_of_all_recorded_exchanges(lab, recorded, as_bytes):
    exchanges = recorded("api-transcripts")
    assert set(LEFT_OUT) <= {entry["name"] for entry in exchanges}
    began = time.monotonic()
    problems: list[str] = []
    replayed = 0
    for scenario in _scenarios(exchanges):
        problems += _replay(lab, scenario, as_bytes)
        replayed += sum(entry["name"] not in LEFT_OUT for entry in scenario)
    assert not problems, "\n".join(problems)
    assert replayed == len(exchanges) - len(LEFT_OUT) == 212
    assert time.monotonic() - began < 20


def _scenarios(exchanges: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in exchanges:
        groups.setdefault(entry["scenario"], []).append(entry)
    for group in groups.values():
        yield sorted(group, key=lambda entry: entry["seq"])


def _replay(lab, scenario: list[dict[str, Any]], as_bytes: Callable) -> Iterator[str]:
    first = scenario[0]["state"]
    lab.reset(as_bytes(first["conf_before"]), devices=first["devices"])
    _prepare(lab, scenario[0]["scenario"])
    client = Client(lab)
    upids: dict[str, str] = {}
    for index, entry in enumerate(scenario):
        if entry["name"] in LEFT_OUT:
            continue
        _before(lab, entry)
        with _circumstances(lab, entry):
            answer = client.send(entry, upids)
        task = _follow(lab, entry, answer, upids)
        expected_file, expected_running = entry["state"]["conf_after"], entry["state"]["running_after"]
        if task and index + 1 < len(scenario):  # recorded while the task still ran
            expected_file = scenario[index + 1]["state"]["conf_before"]
            expected_running = scenario[index + 1]["state"]["running_before"]
        if expected_file == "same":
            expected_file = entry["state"]["conf_before"]
        for problem in _compare(entry, answer, upids):
            yield f"{entry['name']}: {problem}"
        if lab.backend.running(200) != (expected_running and entry["scenario"] not in FED_STOPPED):
            yield f"{entry['name']}: running is {lab.backend.running(200)}"
        found = lab.conf.read_bytes() if lab.conf.exists() else None
        if found != as_bytes(expected_file):
            yield f"{entry['name']}: file is {found!r:.300}, not {as_bytes(expected_file)!r:.300}"
    client.close()


def _prepare(lab, scenario: str) -> None:
    """What the recorder set up and `state` does not say."""
    if scenario in ("read-nodes", "read-resources-nostat", "noquorum-read"):
        lab.reported = False
    if scenario == "noquorum-read":
        lab.backend.read_only = True
    if scenario == "task-log-paging":
        lab.backend.start_lines = tuple(f"made-up line {number}" for number in range(1, 121))
    if scenario == "start-warnings":
        lab.backend.start_warnings = ("made-up warning one", "made-up warning two")
        _earlier_tasks(lab, ("vzstart",))
    if scenario == "task-list":
        _earlier_tasks(lab, ("vzstop", "vzstop", "vzstart"))


def _earlier_tasks(lab, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        assert lab.server.site.tasks.start(kind, "200", "root@pam", lambda log: None).done.wait(5)


def _before(lab, entry: dict[str, Any]) -> None:
    running = entry["state"]["running_before"] and entry["scenario"] not in FED_STOPPED
    if running != lab.backend.running(200):
        lab.backend.started = {200: lab.backend.booted} if running else {}


@contextmanager
def _circumstances(lab, entry: dict[str, Any]) -> Iterator[None]:
    authority = lab.server.site.authority
    if entry["name"] in ("auth-ticket-edge/02-expired-old-key", "auth-ticket-edge/03-old-but-valid"):
        made, authority.key_made = authority.key_made, time.time() - 36000
        yield
        authority.key_made = made
    elif entry["name"] == "put-file-lock/01-flock":
        with (lab.backend.lock_dir / "pve-config-200.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
    else:
        yield


class Answer:
    def __init__(self, response: http.client.HTTPResponse, body: bytes) -> None:
        self.status, self.reason, self.body = response.status, response.reason, body
        self.headers = response.getheaders()

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A bare HTTPS client, so that every byte of a request is as recorded."""

    def __init__(self, lab) -> None:
        self.lab = lab
        context = ssl.create_default_context(cafile=str(lab.cert))
        self.connection = http.client.HTTPSConnection("127.0.0.1", lab.server.port, timeout=10, context=context)

    def close(self) -> None:
        self.connection.close()

    def send(self, entry: dict[str, Any], upids: dict[str, str]) -> Answer:
        request = entry["request"]
        path = request["path"]
        for old, new in upids.items():
            path = path.replace(quote(old, safe=""), quote(new, safe=""))
        headers = dict(request.get("headers", {})) | self._credentials(request["auth"])
        if request["content_type"]:
            headers["Content-Type"] = request["content_type"]
        body = self._body(entry)
        self.connection.request(request["method"], path, body=body or None, headers=headers)
        response = self.connection.getresponse()
        return Answer(response, response.read())

    def _body(self, entry: dict[str, Any]) -> bytes:
        form, request = entry["request"]["form"], entry["request"]
        if entry["scenario"] == "login-renew":
            form = dict(form)
            authority, name = self.lab.server.site.authority, form["password"].split(":")[1]
            form["password"] = authority.ticket(name, at=time.time() - (7300 if entry["seq"] == 3 else 1))
            return urlencode(form).encode()
        if isinstance(form, dict) and any(isinstance(value, dict) for value in form.values()):
            form = {
                key: value["repeat"][0] * value["repeat"][1] if isinstance(value, dict) else value
                for key, value in form.items()
            }
            return urlencode(form).encode()
        text = request["body"]
        body = text.encode() if isinstance(text, str) else b""
        return body if len(body) == request["body_length"] else b"x" * request["body_length"]

    def _credentials(self, auth: str | None) -> dict[str, str]:
        if auth is None:
            return {}
        authority = self.lab.server.site.authority
        if auth.startswith("ticket"):
            now = time.time()
            ticket = {
                "ticket-garbage": "garbage",
                "ticket-badsig": authority.ticket("root@pam")[:-6] + "AAAA==",
                "ticket-otheruser": authority.ticket("root@pam").replace("root@pam", "ops@pve"),
                "ticket-expired": authority.ticket("root@pam", at=now - 7300),
                "ticket-future": authority.ticket("root@pam", at=now + 900),
                "ticket-old-but-valid": authority.ticket("root@pam", at=now - 7000),
            }.get(auth, authority.ticket("root@pam"))
            cookie = ticket if auth == "ticket-raw-cookie" else quote(ticket, safe="")
            headers = {"Cookie": f"PVEAuthCookie={cookie}"}
            if auth == "ticket-badcsrf":
                headers["CSRFPreventionToken"] = authority.csrf("root@pam")[:-3] + "xxx"
            elif auth != "ticket-nocsrf":
                headers["CSRFPreventionToken"] = authority.csrf("root@pam")
            return headers
        secret = self.lab.secret
        special = {
            "token-wrong-secret": f"PVEAPIToken=root@pam!full={'0' * 8}{secret[8:]}",
            "token-unknown-id": f"PVEAPIToken=root@pam!nosuch={secret}",
            "token-unknown-user": f"PVEAPIToken=nobody@pve!tok={secret}",
            "token-no-secret": "PVEAPIToken=root@pam!full",
            "token-bearer": f"Bearer root@pam!full={secret}",
        }
        return {"Authorization": special.get(auth, f"PVEAPIToken={auth}={secret}")}


def _follow(lab, entry: dict[str, Any], answer: Answer, upids: dict[str, str]) -> bool:
    """Wait for the task an answer names; later requests ask for it by the lab's UPID."""
    if entry["request"]["method"] != "POST" or '"UPID:' not in entry["response"]["body"]:
        return False
    if not answer.body.startswith(b'{"data":"UPID:'):
        return False
    upid = answer.json()["data"]
    upids[json.loads(entry["response"]["body"])["data"]] = upid
    task = lab.server.site.tasks.get(upid)
    assert task.done.wait(5)
    return True


def _compare(entry: dict[str, Any], answer: Answer, upids: dict[str, str]) -> Iterator[str]:
    expected = entry["response"]
    if (answer.status, answer.reason) != (expected["status"], expected["reason"]):
        yield f"{answer.status} {answer.reason!r}, not {expected['status']} {expected['reason']!r}"
    headers = {name for name, _ in answer.headers} - {"X-Gpuctl-Lab"}
    if headers != {name for name, _ in expected["headers"]}:
        yield f"headers {sorted(headers)}"
    connection = [value for name, value in answer.headers if name == "Connection"]
    if connection != [value for name, value in expected["headers"] if name == "Connection"]:
        yield f"Connection: {connection}"
    if not expected["body_is_json"]:
        if answer.body.decode() != expected["body"]:
            yield f"body {answer.body!r}, not {expected['body']!r}"
        return
    yield from _differences(json.loads(expected["body"]), answer.json(), "", entry)


def _differences(old: Any, new: Any, path: str, entry: dict[str, Any]) -> Iterator[str]:
    if type(old) is not type(new):
        yield f"{path}: {new!r}, not {old!r}"
    elif isinstance(old, dict):
        if set(old) != set(new):
            yield f"{path}: keys {sorted(set(old) ^ set(new))} differ"
        for key in set(old) & set(new):
            yield from _differences(old[key], new[key], f"{path}.{key}", entry)
    elif isinstance(old, list):
        yield from _list_differences(old, new, path, entry)
    elif old != new and not _live(path, old, entry):
        yield f"{path}: {new!r}, not {old!r}"


def _list_differences(old: list[Any], new: list[Any], path: str, entry: dict[str, Any]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"{path}: {len(new)} entries, not {len(old)}"
        return
    names = set(old[0]) if path == ".data" and old and isinstance(old[0], dict) else set()
    sort_by = "key" if "key" in names else "id" if "id" in names and "upid" not in names else ""
    if sort_by:
        old, new = (sorted(rows, key=lambda row: row[sort_by]) for rows in (old, new))
    for index, (left, right) in enumerate(zip(old, new, strict=True)):
        yield from _differences(left, right, f"{path}.{index}", entry)


def _live(path: str, old: Any, entry: dict[str, Any]) -> bool:
    if str(old).startswith("UPID:"):
        return True
    if path == ".total" and "/tasks?" in entry["request"]["path"]:
        return True  # how many tasks the recorder had started before
    return any(re.fullmatch(rf"\.(.*\.)?{pattern}(\.\d+)?", path) for pattern in LIVE)
