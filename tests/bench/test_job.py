"""The benchmark jobs against a server of ours: warm-up, repeats, refusals, results of this boot and others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jobkit import Engine, arguments, ignore

from bench import job
from bench.result import SCHEMA_VERSION, Result
from bench.run import mark
from inventory.errors import Failed, UsageError

BOOT = "11111111-aaaa-bbbb-cccc-000000000001"
OTHER = "22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def engine(wire: Any) -> Engine:
    return Engine(wire)


def test_a_run_counts_stores_and_says_what_it_measured(serve: Any, engine: Engine, tmp_path: Path) -> None:
    truth = serve(engine)
    events: list[Mapping[str, Any]] = []
    context = {"engine_version": "b1", "gpus": [{"name": "G"}], "container": "ct200"}
    data = job.run(arguments(truth.url, tmp_path, context=context), events.append)
    result = Result.from_json(json.loads(json.dumps(data)))
    assert (len(result.runs), len(result.good)) == (12, 12)
    assert result.tokens == (3 * 2 * (8 + 16), 0)
    assert result.decode is not None
    assert result.decode.count == 3
    assert result.proof.proven, result.proof.why
    assert (result.served, result.engine_version, result.context) == ("tiny", "b1", {"container": "ct200"})
    assert result.gpus == ({"name": "G"},)
    assert data["schema_version"] == SCHEMA_VERSION
    line = data["summary"]["line"]
    assert line.startswith("lab: Tiny-1B Q4_1, llama.cpp, auto, ")
    assert line.endswith("144 tokens of which 0 reasoning")
    assert "(median of 3, " in line
    assert all(row.startswith("lab: ") for row in data["table"])
    stored = json.loads((tmp_path / result.run_id / "result.json").read_text())
    assert Result.from_json(stored) == result
    phases = [(event["phase"], event["run"], event["runs"]) for event in events]
    assert ("warm-up", 1, 2) in phases
    assert ("measure", 12, 12) in phases
    finished = [event for event in events if event["phase"] == "measure" and event["tok_s"]]
    assert len(finished) == 12


def test_every_request_has_a_mark_of_its_own_first_and_temperature_zero(
    serve: Any, engine: Engine, tmp_path: Path
) -> None:
    truth = serve(engine)
    job.run(arguments(truth.url, tmp_path), ignore)
    bodies = [body for _, path, body in truth.requests if path == "/v1/chat/completions"]
    firsts = [body["messages"][0]["content"].split("]")[0] for body in bodies]
    assert len(set(firsts)) == len(bodies) == 2 + 12
    assert firsts[0] == f"[{mark('n', 1)}"
    assert all(body["temperature"] == 0 and body["stream"] for body in bodies)
    assert bodies[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "chat_template_kwargs" not in bodies[0]


def test_thinking_is_switched_in_the_template(serve: Any, engine: Engine, tmp_path: Path) -> None:
    truth = serve(engine)
    job.run(arguments(truth.url, tmp_path, think=False, repeats=1), ignore)
    bodies = [body for _, path, body in truth.requests if path == "/v1/chat/completions"]
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in bodies)


def test_refused_options_are_dropped_once(serve: Any, engine: Engine, wire: Any, tmp_path: Path) -> None:
    def refuse(body: Any) -> bytes | None:
        if "stream_options" in body:
            text = b'{"error": {"message": "stream_options: extra fields not permitted"}}'
            return bytes(wire.answer("400 Bad Request", text))
        if body["messages"][0]["role"] == "system":
            return bytes(wire.answer("500 Oops", b'{"error": {"message": "System role not supported"}}'))
        return None

    engine.refuse = refuse
    truth = serve(engine)
    data = job.run(arguments(truth.url, tmp_path, repeats=1), ignore)
    assert data["dropped"] == ["stream_options", "system message"]
    assert engine.chats == 2 + 2 + 4
    assert data["failed"] == 0


@pytest.mark.parametrize(
    ("status", "body", "words", "hint"),
    [
        ("401 Unauthorized", b'{"error":"no key"}', "refuses us", "key"),
        ("404 Not Found", b'{"error":"unknown"}', "does not serve model tiny", "it serves: tiny"),
        ("503 Busy", b'{"error":"loading"}', "HTTP 503: loading", "logs"),
        ("200 OK", b"<html>", "expected an event stream", "logs"),
    ],
)
def test_a_server_that_can_not_be_measured_is_one_clear_error(
    serve: Any, engine: Engine, wire: Any, tmp_path: Path, status: str, body: bytes, words: str, hint: str
) -> None:
    engine.refuse = lambda _: bytes(wire.answer(status, body))
    with pytest.raises(Failed) as caught:
        job.run(arguments(serve(engine).url, tmp_path), ignore)
    assert words in caught.value.message
    assert hint in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_an_absent_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="no server to measure"):
        job.run(arguments("http://127.0.0.1:9", tmp_path), ignore)


def test_failed_requests_are_counted_apart(serve: Any, engine: Engine, wire: Any, tmp_path: Path) -> None:
    script = engine.__call__

    def sometimes(method: str, path: str, body: Any) -> Any:
        if path == "/v1/chat/completions" and body["max_tokens"] == 16:
            return [(0.0, wire.HEAD + wire.token("a") + wire.sse({"error": {"message": "EngineCore died"}}))]
        return script(method, path, body)

    data = job.run(arguments(serve(sometimes).url, tmp_path), ignore)
    assert data["failed"] == 6
    assert data["summary"]["line"].endswith(f"{3 * 2 * 8} tokens of which 0 reasoning, 6 failed")
    bad = [run for shape in data["shapes"] if shape["max_tokens"] == 16 for run in shape["runs"]]
    assert {run["sample"]["error"] for run in bad} == {"EngineCore died"}
    assert all(run["right"] is None for run in bad)


def test_no_good_request_at_all_is_an_error_and_stores_nothing(
    serve: Any, engine: Engine, wire: Any, tmp_path: Path
) -> None:
    script, chats = engine.__call__, [0]

    def dying(method: str, path: str, body: Any) -> Any:
        if path == "/v1/chat/completions":
            chats[0] += 1
            if chats[0] > 2:
                return [(0.0, wire.HEAD + wire.sse({"error": "dead"}))]
        return script(method, path, body)

    with pytest.raises(Failed) as caught:
        job.run(arguments(serve(dying).url, tmp_path), ignore)
    assert caught.value.detail == ("dead",)
    assert not list(tmp_path.iterdir())


def test_speculation_that_nobody_asked_for_is_not_auto(serve: Any, wire: Any, tmp_path: Path) -> None:
    data = job.run(arguments(serve(Engine(wire, spec="draft-mtp")).url, tmp_path, repeats=1), ignore)
    assert data["proof"]["proven"] is False
    assert "draft-mtp, which is mtp and not auto" in data["proof"]["why"]
    assert "auto (method not proven)" in data["summary"]["line"]


@pytest.mark.parametrize(
    ("drafts", "proven", "why"),
    [
        (((10, 5), (30, 35)), True, "30 of 60 drafted tokens accepted"),
        (((10, 5), (30, 5)), False, "none was accepted"),
        (((10, 5), (10, 5)), False, "no draft was counted"),
    ],
)
def test_a_speculative_method_is_proven_by_its_counters(
    serve: Any, wire: Any, tmp_path: Path, drafts: Any, proven: bool, why: str
) -> None:
    engine = Engine(wire, spec="draft-mtp", drafts=drafts)
    data = job.run(arguments(serve(engine).url, tmp_path, method="mtp", repeats=1), ignore)
    assert data["proof"]["proven"] is proven
    assert why in data["proof"]["why"]
    if proven:
        assert data["proof"]["drafts"]["tau"] == 1 + 30 / 20


def test_an_unknown_task_and_a_bad_address_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nope"):
        job.run(arguments("http://127.0.0.1:9", tmp_path, tasks=["nope"]), ignore)
    with pytest.raises(UsageError, match="not an http address"):
        job.run(arguments("localhost", tmp_path), ignore)
