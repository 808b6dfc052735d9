"""The benchmark jobs against a server of ours: warm-up, repeats, refusals, results of this boot and others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import job, store
from bench.baseline import find, key_of
from bench.result import SCHEMA_VERSION, Result
from bench.run import mark
from inventory.errors import Failed, Refused, UsageError

BOOT = "11111111-aaaa-bbbb-cccc-000000000001"
OTHER = "22222222-aaaa-bbbb-cccc-000000000002"


def ignore(event: Mapping[str, Any]) -> None:
    del event


class Engine:
    """Scripts an OpenAI-compatible server that looks like llama.cpp with a given method."""

    def __init__(self, wire: Any, *, spec: str = "none", drafts: Sequence[tuple[int, int]] = ((0, 0),)) -> None:
        self.wire = wire
        self.spec = spec
        self.drafts = list(drafts)
        self.refuse: Callable[[Any], bytes | None] = lambda body: None
        self.chats = 0

    def __call__(self, method: str, path: str, body: Any) -> Any:
        wire = self.wire
        if path == "/v1/models":
            return [(0.0, wire.answer("200 OK", b'{"data": [{"id": "tiny"}]}'))]
        if path == "/slots":
            slot = {"n_ctx": 512, "speculative": self.spec != "none", "params": {"speculative.types": self.spec}}
            return [(0.0, wire.answer("200 OK", json.dumps([slot]).encode()))]
        if path == "/metrics":
            steps, accepted = self.drafts.pop(0) if len(self.drafts) > 1 else self.drafts[0]
            text = (
                f"llamacpp:spec_decode_num_drafts_total {steps}\n"
                f"llamacpp:spec_decode_num_draft_tokens_total {3 * steps}\n"
                f"llamacpp:spec_decode_num_accepted_tokens_total {accepted}\n"
            )
            return [(0.0, wire.answer("200 OK", text.encode(), "text/plain"))]
        if path != "/v1/chat/completions":
            return [(0.0, wire.answer("404 Not Found", b"{}"))]
        self.chats += 1
        if refused := self.refuse(body):
            return [(0.0, refused)]
        n = body["max_tokens"]
        steps_ = [(0.0, wire.HEAD), *((0.002 * k, wire.token(f"w{k} ")) for k in range(n))]
        return [*steps_, (0.002 * n, wire.finish("length", n))]


def arguments(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "url": url, "kind": "llama.cpp", "model": "/dev/shm/m/Tiny-1B-Instruct.Q4_1.gguf", "method": "auto",
        "tasks": ["arith", "json"], "max_tokens": [8, 16], "repeats": 3, "results": str(folder), "lab": True,
        "boot_id": BOOT, "nonce": "n", **more,
    }  # fmt: skip


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


@pytest.fixture
def made(serve: Any, engine: Engine, tmp_path: Path) -> Callable[..., Result]:
    """Measures quickly and gives the stored result."""
    truth = serve(engine)

    def make(**more: Any) -> Result:
        few = {"repeats": 1, "tasks": ["json"], "max_tokens": [4], **more}
        for _ in range(10):
            result = Result.from_json(job.run(arguments(truth.url, tmp_path, **few), ignore))
            # On a busy machine all four tokens may be read at once, which has no rate.
            if result.decode is not None:
                break
            shutil.rmtree(tmp_path / result.run_id)
        return result

    return make


def test_results_of_other_boots_and_foreign_files_are_strangers_and_set_aside(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    mine, old = made(), made(boot_id=OTHER)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "legacy.json").write_text(json.dumps({"boot_id": OTHER, "tok_s": 26.2}))
    (tmp_path / "half").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/result.json").write_text('{"schema_version": 1, "boot')
    (tmp_path / "future").mkdir()
    (tmp_path / "future/result.json").write_text(json.dumps({"schema_version": 99, "boot_id": BOOT}))
    (tmp_path / ".staging-999999999-x").mkdir()
    (tmp_path / f".staging-{os.getpid()}-x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / mine.run_id)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/result.json").write_text(json.dumps({"schema_version": 1, "boot_id": "../../etc"}))

    listed = job.results({"results": str(tmp_path), "boot_id": BOOT}, ignore)
    assert [one["run_id"] for one in listed["current"]] == [mine.run_id]
    strangers = {Path(one["path"]).name: (one["boot"], one["why"]) for one in listed["strangers"]}
    assert strangers[old.run_id] == (OTHER, "measured in another boot")
    assert strangers["legacy.json"][0] == OTHER
    assert strangers["notes.txt"][0] == strangers["evil"][0] == strangers["half"][0] == "unknown"
    assert "schema 99" in strangers["future"][1]
    assert set(strangers) == {
        old.run_id, "legacy.json", "notes.txt", "half", "torn", "future", ".staging-999999999-x", "link", "evil",
    }  # fmt: skip

    moved = job.set_aside({"results": str(tmp_path), "boot_id": BOOT}, ignore)["moved"]
    assert len(moved) == len(strangers)
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left == {mine.run_id, "earlier-boots", f".staging-{os.getpid()}-x"}
    assert (tmp_path / "earlier-boots" / OTHER / old.run_id / "result.json").exists()
    assert (tmp_path / "earlier-boots/unknown/notes.txt").read_text() == "hello"
    assert job.set_aside({"results": str(tmp_path), "boot_id": BOOT}, ignore) == {"moved": []}
    assert [one.run_id for one in store.earlier(tmp_path)] == [old.run_id]


def test_setting_aside_overwrites_nothing(tmp_path: Path) -> None:
    for text in ("one", "two"):
        (tmp_path / "notes.txt").write_text(text)
        store.set_aside(tmp_path, BOOT)
    kept = sorted(path.read_text() for path in (tmp_path / "earlier-boots/unknown").iterdir())
    assert kept == ["one", "two"]


def test_one_run_is_shown_also_after_it_was_set_aside(made: Callable[..., Result], tmp_path: Path) -> None:
    result = made(boot_id=OTHER)
    args = {"results": str(tmp_path), "run": result.run_id}
    assert Result.from_json(job.results(args, ignore)["result"]) == result
    store.set_aside(tmp_path, BOOT)
    assert Result.from_json(job.results(args, ignore)["result"]) == result
    for name in ("nope", "..", "../x"):
        with pytest.raises(Refused, match="no readable run"):
            job.results({"results": str(tmp_path), "run": name}, ignore)


def test_a_folder_that_does_not_exist_has_no_results(tmp_path: Path) -> None:
    listed = job.results({"results": str(tmp_path / "none"), "boot_id": BOOT}, ignore)
    assert listed == {"current": [], "strangers": []}


def test_a_result_that_can_not_be_written_is_told(made: Callable[..., Result], tmp_path: Path) -> None:
    result = made()
    (tmp_path / "file").write_text("")
    with pytest.raises(Failed, match="cannot be written"):
        store.save(tmp_path / "file", result)
    with pytest.raises(Failed, match="cannot be written"):
        store.save(tmp_path, result)


def test_a_baseline_is_a_proven_auto_result_of_the_same_configuration(made: Callable[..., Result]) -> None:
    first = made()
    same = made(boot_id=OTHER)
    other_length, no_lab = made(max_tokens=[5]), made(lab=False)
    key = key_of(first)
    assert key_of(same) == key
    assert key not in (key_of(other_length), key_of(no_lab))
    everything = (first, same, other_length, no_lab)
    assert find(everything, key, BOOT) == first
    assert find(everything, key) == max(first, same, key=lambda result: result.started_at)
    assert find((made(method="mtp"),), key) is None
    assert find((), key) is None
