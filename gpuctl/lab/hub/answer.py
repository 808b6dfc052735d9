"""From a request to an answer, without sockets: routes, tokens, ranges, error headers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gpuctl.lab.hub.faults import Fault, FaultKind, Route
from gpuctl.lab.hub.repo import Blob, Snapshot

if TYPE_CHECKING:
    from gpuctl.lab.hub.server import Content

_NAME = r"(?P<repo>[^/]+/[^/]+)"
_INFO = re.compile(rf"/api/models/{_NAME}(?:/revision/(?P<rev>[^/]+))?$")
_TREE = re.compile(rf"/api/models/{_NAME}/tree/(?P<rev>[^/]+)(?:/(?P<folder>.+))?$")
_AUTH = re.compile(rf"/api/models/{_NAME}/auth-check$")
_FILE = re.compile(rf"/{_NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)$")
_CDN = re.compile(rf"/cdn/{_NAME}/(?P<rev>[^/]+)/(?P<path>.+)$")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_PAGE = 1000
"""Entries of one page of a listing; the next page is announced in the Link header."""

_BODY_FAULTS = (
    FaultKind.FLIP,
    FaultKind.CLOSE,
    FaultKind.RESET,
    FaultKind.STALL,
    FaultKind.SLOW,
    FaultKind.CHUNKED,
    FaultKind.SHORT,
    FaultKind.LONG,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers, and a body: bytes, or a part of a file with the fault that hits it."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    blob: Blob | None = None
    start: int = 0
    count: int = 0
    fault: Fault | None = None


def _problem(status: int, code: str, message: str) -> Answer:
    body = json.dumps({"error": message}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "X-Error-Message": message}
    return Answer(status, headers | ({"X-Error-Code": code} if code else {}), body)


def _json(value: Any, extra: Mapping[str, str] | None = None) -> Answer:
    body = json.dumps(value).encode()
    headers = {"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(body))}
    return Answer(200, headers | dict(extra or {}), body)


def _no_repo(token: str) -> Answer:
    # Without a token the real Hub does not tell a private repository from a missing one: 401.
    return _problem(404 if token else 401, "RepoNotFound", "Repository not found")


def _status(fault: Fault) -> Answer:
    body = b"the lab was told to fail"
    headers = {"Content-Type": "text/plain", "Content-Length": str(len(body))}
    return Answer(fault.status, headers | ({"Retry-After": fault.retry_after} if fault.retry_after else {}), body)


def _html() -> Answer:
    body = b"<!doctype html><title>Please log in to the network</title>"
    return Answer(200, {"Content-Type": "text/html", "Content-Length": str(len(body))}, body)


def answer(content: Content, method: str, target: str, headers: Mapping[str, str], *, cdn: bool) -> Answer:
    """The answer to one request; pure but for the count of used-up faults."""
    parts = urlsplit(target)
    given = {name.lower(): value for name, value in headers.items()}
    if cdn:
        match = _CDN.match(parts.path)
        return _cdn(content, method, match, given) if match else _problem(404, "", "Not found")
    token = given.get("authorization", "").removeprefix("Bearer ").strip()
    if token and token not in content.tokens:
        return _problem(401, "", "Invalid credentials in Authorization header")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if match := _AUTH.match(parts.path):
        return _auth(content, match["repo"], token)
    if match := _TREE.match(parts.path):
        return _tree(content, match, token, query, parts.path)
    if match := _INFO.match(parts.path):
        return _info(content, match, token, query)
    if match := _FILE.match(parts.path):
        return _file(content, method, match, token, given)
    return _problem(404, "", "Not found")


def _visible(content: Content, name: str, token: str) -> Snapshot | None:
    found = content.latest(name)
    return None if found is None or (found.repo.private and token not in found.repo.readers) else found


def _find(content: Content, name: str, revision: str, token: str) -> Snapshot | Answer:
    if _visible(content, name, token) is None:
        return _no_repo(token)
    return content.at(name, unquote(revision)) or _problem(
        404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}"
    )


def _gate(snapshot: Snapshot, token: str) -> Answer | None:
    if not snapshot.repo.gated or token in snapshot.repo.readers:
        return None
    name = snapshot.repo.name
    if not token:
        return _problem(401, "GatedRepo", f"Access to model {name} is restricted. You must have access to it.")
    return _problem(
        403, "GatedRepo", f"Access to model {name} is restricted and you are not in the authorized list."
    )


def _auth(content: Content, name: str, token: str) -> Answer:
    snapshot = _visible(content, name, token)
    return _no_repo(token) if snapshot is None else _gate(snapshot, token) or _json({})


def _lie(content: Content, entry: dict[str, Any], path: str, route: Route) -> None:
    if fault := content.faults.take(route, path, FaultKind.SIZE_LIE):
        entry["size"] += fault.at
        if "lfs" in entry:
            entry["lfs"]["size"] += fault.at
    if content.faults.take(route, path, FaultKind.HASH_LIE):
        for key in ("blobId", "oid"):
            if key in entry:
                entry[key] = "0" * 40
        for key in ("oid", "sha256"):
            if key in entry.get("lfs", {}):
                entry["lfs"][key] = "0" * 64


def _info(content: Content, match: re.Match[str], token: str, query: Mapping[str, str]) -> Answer:
    name = unquote(match["repo"])
    if fault := content.faults.take(Route.INFO, name, FaultKind.STATUS, FaultKind.HTML):
        return _html() if fault.kind is FaultKind.HTML else _status(fault)
    found = _find(content, name, match["rev"] or "main", token)
    if isinstance(found, Answer):
        return found
    info = found.info(with_blobs=query.get("blobs", "").lower() == "true")
    for entry in info["siblings"]:
        if "size" in entry:
            _lie(content, entry, entry["rfilename"], Route.INFO)
            if content.faults.peek(Route.INFO, entry["rfilename"], FaultKind.BARE):
                entry.pop("size")
    return _json(info)


def _tree(content: Content, match: re.Match[str], token: str, query: Mapping[str, str], url: str) -> Answer:
    name = unquote(match["repo"])
    if fault := content.faults.take(Route.TREE, name, FaultKind.STATUS, FaultKind.HTML):
        return _html() if fault.kind is FaultKind.HTML else _status(fault)
    found = _find(content, name, match["rev"], token)
    if isinstance(found, Answer):
        return found
    entries = found.tree(unquote(match["folder"] or ""), recursive=query.get("recursive", "").lower() == "true")
    if not entries and match["folder"]:
        return _problem(404, "EntryNotFound", f"{unquote(match['folder'])} does not exist on this revision")
    start = int(query.get("cursor", "0"))
    page = entries[start : start + _PAGE]
    for entry in page:
        if entry["type"] == "file":
            _lie(content, entry, entry["path"], Route.TREE)
    extra = {}
    if start + _PAGE < len(entries):
        rest = f"recursive={query.get('recursive', 'false')}&cursor={start + _PAGE}"
        extra["Link"] = f'<{content.url}{url}?{rest}>; rel="next"'
    return _json(page, extra)


def _file(content: Content, method: str, match: re.Match[str], token: str, given: Mapping[str, str]) -> Answer:
    name, path = unquote(match["repo"]), unquote(match["path"])
    if fault := content.faults.take(Route.FILE, path, FaultKind.STATUS, FaultKind.HTML):
        return _html() if fault.kind is FaultKind.HTML else _status(fault)
    found = _find(content, name, match["rev"], token)
    if isinstance(found, Answer):
        return found
    if refused := _gate(found, token):
        return refused
    one = found.blobs.get(path)
    if one is None or content.faults.take(Route.FILE, path, FaultKind.MISSING):
        return _problem(404, "EntryNotFound", f"{path} does not exist on this revision")
    headers = {"X-Repo-Commit": found.commit}
    if one.sha256:
        headers |= {"X-Linked-Etag": f'"{one.sha256}"', "X-Linked-Size": str(one.size)}
    if content.faults.peek(Route.FILE, path, FaultKind.BARE):
        headers = {}
    if one.sha256 and content.cdn_url:
        location = f"{content.cdn_url}/cdn/{quote(name)}/{found.commit}/{quote(path)}"
        return Answer(302, headers | {"Location": location, "ETag": f'"{one.etag}"', "Content-Length": "0"})
    return _bytes(content, method, one, path, given, headers, Route.FILE)


def _cdn(content: Content, method: str, match: re.Match[str], given: Mapping[str, str]) -> Answer:
    path = unquote(match["path"])
    if fault := content.faults.take(Route.CDN, path, FaultKind.STATUS, FaultKind.HTML):
        return _html() if fault.kind is FaultKind.HTML else _status(fault)
    found = content.at(unquote(match["repo"]), match["rev"])
    one = found.blobs.get(path) if found else None
    if one is None:
        return _problem(404, "", "Not found")
    return _bytes(content, method, one, path, given, {}, Route.CDN)


def _bytes(
    content: Content,
    method: str,
    one: Blob,
    path: str,
    given: Mapping[str, str],
    extra: Mapping[str, str],
    route: Route,
) -> Answer:
    """200 or 206 with (a part of) the file, or 416; with whatever fault is switched on."""
    faults = content.faults
    headers = dict(extra) | {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    etag = uuid.uuid4().hex if faults.take(route, path, FaultKind.WRONG_ETAG) else one.etag
    if not faults.peek(route, path, FaultKind.BARE):
        headers["ETag"] = f'"{etag}"'
    asked = _RANGE.match(given.get("range", ""))
    if asked and given.get("if-range", headers.get("ETag", "")) != headers.get("ETag", ""):
        asked = None
    if asked and faults.take(route, path, FaultKind.IGNORE_RANGE):
        asked = None
    start, stop, status = 0, one.size, 200
    if asked:
        start, stop = int(asked[1]), min(int(asked[2] or one.size - 1) + 1, one.size)
        if start >= one.size:
            return Answer(416, {"Content-Range": f"bytes */{one.size}", "Content-Length": "0"})
        status = 206
        if faults.take(route, path, FaultKind.WRONG_OFFSET):
            start, stop = 0, stop - start
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{one.size}"
        if faults.take(route, path, FaultKind.WRONG_BYTES):
            start, stop = 0, stop - start
    fault = faults.take(route, path, *_BODY_FAULTS) if method == "GET" else None
    count = stop - start
    if fault is not None and fault.kind is FaultKind.CHUNKED:
        headers["Transfer-Encoding"] = "chunked"
    else:
        extra_bytes = {FaultKind.SHORT: -1, FaultKind.LONG: 1}.get(fault.kind, 0) * fault.at if fault else 0
        headers["Content-Length"] = str(count + extra_bytes)
    return Answer(status, headers, blob=one, start=start, count=count, fault=fault)
