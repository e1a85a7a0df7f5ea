from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.gateway.dialects.base import FailureKind, StreamFault
from firstchair.gateway.dialects.sse import SseParser, encode


def parse(*chunks: bytes) -> list[tuple[str | None, str]]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\n", [(None, "a")]),
        (b"data:a\n\n", [(None, "a")]),
        (b"data:  a\n\n", [(None, " a")]),
        (b"event: x\ndata: a\n\n", [("x", "a")]),
        (b"event:x\ndata: a\n\ndata: b\n\n", [("x", "a"), (None, "b")]),
        (b"data: a\ndata: b\ndata\n\n", [(None, "a\nb\n")]),
        (b": ping\n\n:\ndata: a\n: c\n\n", [(None, "a")]),
        (b"event: x\n\ndata: a\n\n", [(None, "a")]),
        (b"id: 1\nretry: 5\nunknown: 3\ndata: a\n\n", [(None, "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(None, "a")]),
        (b"data: a\r\rdata: b\r\r", [(None, "a"), (None, "b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(None, "a"), (None, "b")]),
        (b"data: a\n\ndata: [DONE]", [(None, "a"), (None, "[DONE]")]),
        (b"", []),
    ],
)
def test_every_form_of_an_event_is_read_whatever_the_cuts(raw, events):
    assert parse(raw) == events
    assert parse(*(raw[i : i + 1] for i in range(len(raw)))) == events


def test_an_event_is_out_as_soon_as_its_bytes_are_in():
    parser = SseParser()
    assert parser.feed(b"data: a\r\n") == []
    assert parser.feed(b"\r") == [(None, "a")]
    assert parser.feed(b"\ndata: b\n\n") == [(None, "b")]


@given(st.lists(st.tuples(st.none() | st.just("e"), st.text(st.characters(exclude_categories=["Cs"]))), max_size=4),
       st.lists(st.integers(0, 200), max_size=6))  # fmt: skip
def test_what_is_written_is_read_back_through_any_cuts(events, cuts):
    raw = b"".join(encode(event, data.encode()) for event, data in events)
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    got = parse(*(raw[a:b] for a, b in pairwise(edges)))
    assert got == [(event, data.replace("\r\n", "\n").replace("\r", "\n")) for event, data in events]


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 99, b"data: " + b"x" * 40 + b"\ndata: " + b"x" * 40 + b"\n\n"])
def test_a_line_or_event_over_the_limit_is_a_fault(raw):
    parser = SseParser(max_event_bytes=64)
    with pytest.raises(StreamFault, match="more than 64 bytes") as caught:
        parser.feed(raw[:50])
        parser.feed(raw[50:])
    assert caught.value.failure.kind is FailureKind.BAD_ANSWER


def test_bytes_that_are_not_utf8_are_a_fault():
    with pytest.raises(StreamFault, match="not UTF-8"):
        SseParser().feed(b"data: \xff\n\n")
