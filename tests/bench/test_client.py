"""The streaming client against a server with an exact schedule: bytes, times, and every way to fail."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

import pytest

from bench.client import Address, get, stream
from bench.count import count
from bench.sample import Status


def ask(truth: Any, *, deadline_s: float = 20.0) -> Any:
    return stream(Address.of(truth.url), "/v1/chat/completions", {"stream": True}, deadline_s=deadline_s)


def sample(exchange: Any) -> Any:
    error = exchange.failure.message if exchange.failure else ""
    return count(exchange.events, sent_at=exchange.sent_at, ended_at=exchange.ended_at, error=error)


@pytest.mark.parametrize("framing", ["close", "chunked", "split-chunks"])
def test_times_and_counts_agree_with_what_the_server_wrote(serve: Any, wire: Any, framing: str) -> None:
    frame = wire.framed if framing != "close" else bytes
    steps = [(0.05, wire.HEAD if framing == "close" else wire.CHUNKED)]
    steps += [(0.2 + 0.02 * number, frame(wire.token(f"w{number:02d} "))) for number in range(40)]
    steps += [(1.0, frame(wire.finish("length", 40)))]
    if framing != "close":
        steps += [(1.0, b"0\r\n\r\n")]
    if framing == "split-chunks":
        # Every write in two parts, so that chunk heads and characters fall apart.
        steps = [(at, part) for at, data in steps for part in (data[:3], data[3:])]
    truth = serve(steps)

    exchange = ask(truth)
    found = sample(exchange)

    assert exchange.failure is None
    assert (found.status, found.n, found.chunks, found.n_first, found.done) == (Status.OK, 40, 40, 1, True)
    assert found.text == "".join(f"w{number:02d} " for number in range(40))
    written = [at for at, data in truth.writes if b'"content"' in data or b"content" in data]
    lags = [event.at - at for event, at in zip(exchange.events, written, strict=False)]
    if framing != "split-chunks":
        # The clock is the same one: no event can be seen before it was written.
        assert min(lags) >= 0
        assert statistics.median(lags) < 0.1
        true = 39 / (written[39] - written[0])
        assert found.decode_tok_s == pytest.approx(true, rel=0.25)
    assert found.ttft_s > 0.19


def test_four_tokens_a_chunk_are_not_overreported(serve: Any, wire: Any) -> None:
    def usage(n: int) -> dict[str, int]:
        return {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": n + 9}

    steps = [(0.0, wire.HEAD)]
    steps += [(0.1 + 0.04 * k, wire.token("abcdefgh", usage=usage(4 * k + 4))) for k in range(16)]
    steps += [(0.75, wire.finish("length", 64))]
    truth = serve(steps)
    found = sample(ask(truth))
    assert (found.n, found.n_first, found.n_first_source, found.tokens_per_chunk) == (64, 4, "usage", 4)
    written = [at for at, data in truth.writes if b"abcdefgh" in data]
    assert found.decode_tok_s == pytest.approx(60 / (written[-1] - written[0]), rel=0.25)


def test_an_answer_split_at_every_byte_is_whole(serve: Any, wire: Any) -> None:
    body = wire.token("汉 字") + wire.finish("stop", 3)
    data = wire.HEAD + body
    truth = serve([(0.0, data[at : at + 1]) for at in range(len(data))])
    found = sample(ask(truth))
    assert (found.text, found.n) == ("汉 字", 3)


def test_a_connection_left_open_after_done_does_not_hold_us(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, wire.HEAD + wire.token("a") + wire.finish("stop", 1))], hold_s=20.0)
    began = time.monotonic()
    exchange = ask(truth)
    assert exchange.failure is None
    assert time.monotonic() - began < 10


def test_interim_answers_are_skipped(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, b"HTTP/1.1 100 Continue\r\n\r\n" + wire.HEAD + wire.token("a") + wire.finish("stop", 1))])
    assert sample(ask(truth)).n == 1


def test_an_error_inside_the_stream_is_a_failed_request(serve: Any, wire: Any) -> None:
    error = wire.sse({"error": {"message": "EngineCore died", "code": 500}})
    truth = serve([(0.0, wire.HEAD + wire.token("a") + error + wire.sse("[DONE]"))])
    found = sample(ask(truth))
    assert (found.status, found.error, found.decode_tok_s) == (Status.FAILED, "EngineCore died", None)


@pytest.mark.parametrize("framing", ["close", "chunked"])
def test_a_reset_in_the_middle_is_a_failed_request(serve: Any, wire: Any, framing: str) -> None:
    head, frame = (wire.HEAD, bytes) if framing == "close" else (wire.CHUNKED, wire.framed)
    truth = serve([(0.0, head + frame(wire.token("a"))), (0.2, wire.RESET)])
    exchange = ask(truth)
    assert exchange.failure.kind == "reset"
    assert sample(exchange).status is Status.FAILED


def test_a_chunked_answer_that_just_ends_is_a_failed_request(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, wire.CHUNKED + wire.framed(wire.token("a")))])
    assert ask(truth).failure.kind == "reset"


def test_a_closed_stream_without_any_end_is_cut(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, wire.HEAD + wire.token("a"))])
    assert sample(ask(truth)).status is Status.CUT


def test_a_model_that_never_stops_meets_the_deadline(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, wire.HEAD), *((0.02 * k, wire.token("a")) for k in range(1000))])
    began = time.monotonic()
    exchange = ask(truth, deadline_s=0.6)
    assert exchange.failure.kind == "timeout"
    assert exchange.events
    assert time.monotonic() - began < 10


def test_a_server_that_says_nothing_meets_the_deadline(serve: Any) -> None:
    exchange = ask(serve([], hold_s=20.0), deadline_s=0.4)
    assert (exchange.failure.kind, exchange.status) == ("timeout", 0)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        ("401 Unauthorized", b'{"error":{"message":"bad key"}}', "status", "HTTP 401: bad key"),
        ("404 Not Found", b'{"object":"error","message":"no model x"}', "status", "HTTP 404: no model x"),
        ("429 Too Many", b'{"error":"slow down"}', "status", "HTTP 429: slow down"),
        ("500 Oops", b"<html><body>boom</body></html>", "status", "HTTP 500: boom"),
        ("503 Busy", b"", "status", "HTTP 503"),
    ],
)
def test_a_status_error_is_told_in_the_servers_words(
    serve: Any, wire: Any, status: str, body: bytes, kind: str, words: str
) -> None:
    failure = ask(serve([(0.0, wire.answer(status, body))])).failure
    assert (failure.kind, failure.message) == (kind, words)


def test_a_redirect_names_the_other_place(serve: Any, wire: Any) -> None:
    moved = wire.answer("307 Temporary Redirect", b"", "text/plain", "Location: https://other/v1")
    failure = ask(serve([(0.0, moved)])).failure
    assert failure.kind == "redirect"
    assert "https://other/v1" in failure.message


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"<html><title>Login</title></html>", "text/html"), (b'{"choices":[]}', "application/json")],
)
def test_anything_but_an_event_stream_is_named(serve: Any, wire: Any, body: bytes, kind: str) -> None:
    failure = ask(serve([(0.0, wire.answer("200 OK", body, kind))])).failure
    assert failure.kind == "not-a-stream"
    assert kind in failure.message


def test_something_that_is_no_http_server_is_told(serve: Any) -> None:
    failure = ask(serve([(0.0, b"SSH-2.0-OpenSSH_9.2\r\n\r\n")])).failure
    assert failure.kind == "reset"
    assert "not an HTTP answer" in failure.message


def test_an_absent_server_is_a_connect_failure() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", free.getsockname()[1])
        assert stream(address, "/", {}, deadline_s=5).failure.kind == "connect"  # type: ignore[union-attr]
        assert get(address, "/v1/models").status == 0


def test_get_reads_json_and_tells_other_answers(serve: Any, wire: Any) -> None:
    truth = serve([(0.0, wire.answer("200 OK", b'{"data": []}'))])
    assert get(Address.of(truth.url), "/v1/models").json() == {"data": []}
    html = serve([(0.0, wire.answer("200 OK", b"<html>", "text/html"))])
    assert get(Address.of(html.url), "/v1/models").json() is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", Address("h", 80)),
        ("https://h/v1/", Address("h", 443, True)),
        ("http://[::1]:8000/api/v1", Address("::1", 8000, False, "/api")),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    assert Address.of(url) == expected


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not an http address: h:80"):
        Address.of("h:80")
