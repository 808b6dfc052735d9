"""Concurrent load on a server whose schedule is known: counts, rates, failures, warm-up, the client's own share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count as counter
from typing import Any

import pytest

from bench.client import Address
from bench.load import Loader, Plan
from bench.load_text import lines
from bench.watch import Client
from inventory.errors import Failed
from inventory.machine import ignore

N = 32
GAP_S = 0.01


@pytest.fixture
def script(wire: Any) -> Callable[..., Any]:
    """Four tokens an event, 100 tok/s; the first after 50 ms."""

    def make(*, tokens: int = N, first_s: float = 0.05) -> Any:
        steps = [(0.0, wire.HEAD)]
        for number in range(0, tokens, 4):
            usage = {"prompt_tokens": 9, "completion_tokens": number + 4, "total_tokens": number + 13}
            steps.append((first_s + number * GAP_S, wire.token("four", usage=usage)))
        return [*steps, (first_s + tokens * GAP_S, wire.finish("length", tokens))]

    return make


def plan(url: str, **changes: Any) -> Plan:
    made = Plan(
        address=Address.of(url), model="m", prompts=("one", "two", "three"), max_tokens=N, requests=8, concurrency=4,
        warmups=0, think=None, nonce="abc", timeout_s=10.0,
    )  # fmt: skip
    return replace(made, **changes)


def test_one_stream_and_all_streams_are_two_numbers_and_both_are_right(serve: Any, script: Any) -> None:
    truth = serve(script())
    outcome = Loader(plan(truth.url), ignore).run()
    assert outcome.ends == {"ok": 8}
    assert outcome.tokens == (8 * N, 0)
    assert outcome.decode is not None
    assert outcome.decode.median == pytest.approx(100.0, rel=0.06)
    # Two rounds of four; a round takes until its last token: 50 ms and 28 gaps.
    assert outcome.total_tok_s == pytest.approx(8 * N / (2 * (0.05 + 28 * GAP_S)), rel=0.15)


def test_never_more_at_a_time_than_asked_for_and_every_prompt_in_turn(serve: Any, script: Any) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def watched(method: str, path: str, body: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        *steps, last = script(tokens=8)
        yield from steps
        # Before the end is sent: the next request may come before this one returns here.
        with lock:
            now -= 1
        yield last

    truth = serve(watched)
    outcome = Loader(plan(truth.url, requests=9, concurrency=3), ignore).run()
    assert most == 3
    asked = sorted(body["messages"][-1]["content"] for _, _, body in truth.requests)
    assert asked == ["one"] * 3 + ["three"] * 3 + ["two"] * 3
    assert [one.number for one in outcome.requests] == list(range(9))
    assert all(one.due_s <= one.sent_s for one in outcome.requests)


def test_every_request_has_a_mark_of_its_own_unless_the_cache_may_help(serve: Any, script: Any) -> None:
    truth = serve(script(tokens=4))
    Loader(plan(truth.url), ignore).run()
    marks = {body["messages"][0]["content"] for _, _, body in truth.requests}
    assert len(marks) == 8
    truth.requests.clear()
    Loader(plan(truth.url, nonce=""), ignore).run()
    assert all([m["role"] for m in body["messages"]] == ["user"] for _, _, body in truth.requests)


def test_what_failed_is_counted_apart_and_in_no_rate(serve: Any, script: Any, wire: Any) -> None:
    number = counter()
    broken = [
        (0.0, wire.HEAD),
        (0.01, wire.token("a")),
        (0.02, wire.sse({"error": {"message": "EngineCore died"}})),
    ]
    cut = [(0.0, wire.CHUNKED), (0.01, wire.framed(wire.token("a"))), (0.02, wire.RESET)]

    def some(method: str, path: str, body: Any) -> Any:
        return {0: broken, 1: cut}.get(next(number), script())

    truth = serve(some)
    outcome = Loader(plan(truth.url), ignore).run()
    assert outcome.ends == {"ok": 6, "failed": 2}
    assert outcome.tokens == (6 * N, 0)
    assert outcome.decode is not None and outcome.decode.count == 6
    assert "EngineCore died" in outcome.to_json()["errors"]
    assert any("6 ok" in line and "2 failed" in line for line in lines(outcome))


def test_an_option_that_is_refused_is_dropped_once_for_all_slots(serve: Any, script: Any, wire: Any) -> None:
    def no_usage(method: str, path: str, body: Any) -> Any:
        if "stream_options" in body:
            return [(0.0, wire.answer("400 Bad Request", b'{"error":{"message":"stream_options not known"}}'))]
        return script()

    truth = serve(no_usage)
    outcome = Loader(plan(truth.url), ignore).run()
    assert outcome.ends == {"ok": 8}
    assert outcome.dropped == ("stream_options",)
    assert sum("stream_options" in body for _, _, body in truth.requests) <= 4


def test_warm_up_goes_on_until_two_runs_agree(serve: Any, script: Any) -> None:
    number = counter()

    def cold(method: str, path: str, body: Any) -> Any:
        return (
            [(at * (3 if next_ == 0 else 1), data) for at, data in script()]
            if (next_ := next(number)) < 99
            else []
        )

    truth = serve(cold)
    outcome = Loader(plan(truth.url, warmups=20, requests=2), ignore).run()
    assert outcome.warm
    assert 3 <= outcome.warmups < 20
    assert outcome.decode is not None
    assert outcome.decode.median == pytest.approx(100.0, rel=0.06)


def test_a_server_that_never_settles_is_said_not_to_be_warm(serve: Any, script: Any) -> None:
    number = counter(1)

    def slower(method: str, path: str, body: Any) -> Any:
        factor = next(number)
        return [(at * factor, data) for at, data in script(tokens=8)]

    outcome = Loader(plan(serve(slower).url, warmups=3, requests=1), ignore).run()
    assert not outcome.warm
    assert any(text.startswith("not warm") for text in outcome.warnings)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("401 Unauthorized", b'{"error":{"message":"no key"}}', "refuses us"),
        ("404 Not Found", b'{"error":{"message":"no such model"}}', "does not serve model m"),
        ("200 OK", b"<html>hello</html>", "expected an event stream"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_error(
    status: str, body: bytes, told: str, serve: Any, wire: Any
) -> None:
    truth = serve([(0.0, wire.answer(status, body, "text/html"))])
    with pytest.raises(Failed, match=told):
        Loader(plan(truth.url, warmups=2), ignore).run()


def test_a_client_that_cannot_keep_up_says_so() -> None:
    assert Client(0.001, 0.05, 0.3).bound
    assert Client(0.001, 0.002, 0.97).bound
    assert not Client(0.001, 0.002, 0.3).bound


def test_an_uncounted_request_leaves_the_total_unknown(serve: Any, wire: Any) -> None:
    uncounted = [(0.0, wire.HEAD), (0.01, wire.token("a")), (0.05, wire.token("b"))]
    end = (0.06, wire.sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + wire.sse("[DONE]"))
    outcome = Loader(plan(serve([*uncounted, end]).url, requests=2), ignore).run()
    assert outcome.total_tok_s is None
    assert any("no token count" in text for text in outcome.warnings)
