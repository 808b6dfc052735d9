"""The stream parser: every legal form of an event, over any split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sse import MAX_LINE, Parser


def parse(*reads: bytes) -> list[bytes]:
    parser = Parser()
    events = [event for number, read in enumerate(reads) for event in parser.feed(read, float(number))]
    return [event.data for event in events + parser.close(99.0)]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ((b"data: a\n\ndata: b\n\n",), [b"a", b"b"]),
        ((b"data: a\r\n\r\ndata: b\r\n\r\n",), [b"a", b"b"]),
        ((b"data: a\r\rdata: b\r\r",), [b"a", b"b"]),
        ((b"data:a\n\n",), [b"a"]),
        ((b"data:  a b \n\n",), [b" a b "]),
        ((b":\n\n: keep-alive\n\ndata: a\n\n",), [b"a"]),
        ((b"event: x\nid: 7\nretry: 10\ndata: a\n\n",), [b"a"]),
        ((b"data: a\ndata: b\n\n",), [b"a\nb"]),
        ((b"data\n\n",), [b""]),
        ((b"\xef\xbb\xbfdata: a\n\n",), [b"a"]),
        ((b"data:", b' {"x":"a b"}', b"\n", b"\n"), [b'{"x":"a b"}']),
        ((b"data: a\r", b"\n\r", b"\ndata: b\r", b"\n\r\n"), [b"a", b"b"]),
        ((b"data: a\r", b"\r", b"data: b\r", b"\r"), [b"a", b"b"]),
        ((b"data: a\n\ndata: b\n",), [b"a", b"b"]),
        ((b"data: a\n\ndata: b",), [b"a", b"b"]),
        ((b"\n\n\n\ndata: a\n\n\n\n",), [b"a"]),
        ((b"nonsense\n\ndata: a\n\n",), [b"a"]),
    ],
)
def test_every_legal_form_gives_its_events(reads: tuple[bytes, ...], expected: list[bytes]) -> None:
    assert parse(*reads) == expected


def test_comments_are_counted_and_the_name_is_kept() -> None:
    parser = Parser()
    events = parser.feed(b": one\n:two\nevent: error\ndata: x\n\ndata: y\n\n", 1.0)
    assert parser.comments == 2
    assert [(event.name, event.data) for event in events] == [("error", b"x"), ("", b"y")]


def test_an_event_has_the_time_of_the_read_that_completed_it() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\n", 1.0) == []
    assert [event.at for event in parser.feed(b"\ndata: b\n\ndata: c", 2.0)] == [2.0, 2.0]
    assert [event.at for event in parser.close(3.0)] == [3.0]


STREAM = 'data: {"t":"汉字 é"}\n\n: ping\n\ndata: x\ndata: y\n\ndata: [DONE]\n\n'.encode()


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(STREAM) + 12), max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_no_split_of_the_bytes_changes_the_events(cuts: list[int], ending: bytes) -> None:
    data = STREAM.replace(b"\n", ending)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reads = [data[start:end] for start, end in pairwise(edges)]
    assert parse(*reads) == ['{"t":"汉字 é"}'.encode(), b"x\ny", b"[DONE]"]


def test_a_line_without_end_is_given_up() -> None:
    with pytest.raises(ValueError, match="a line of over"):
        Parser().feed(b"x" * (MAX_LINE + 1), 0.0)
