"""A stream on its way: held until it is worth showing, cut at whole events, and its bytes untouched."""

import pytest

from firstchair.gateway.dialects.base import StreamFault
from firstchair.gateway.dialects.openai_chat import OpenAIChat
from firstchair.gateway.relay import EventCutter, StreamRelay


def chunk(delta='{"content":"x"}', finish="null", more="") -> bytes:
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{finish}}}'
    return f'data: {{"id":"c","model":"m","choices":[{choice}]{more}}}\n\n'.encode()


ROLE = chunk('{"role":"assistant"}')
USAGE = b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
WHOLE = [ROLE, chunk(), chunk("{}", '"stop"'), USAGE, b"data: [DONE]\n\n"]


def relay(**options) -> StreamRelay:
    return StreamRelay(OpenAIChat().reader(), None, **options)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_events_are_cut_whole_whatever_the_networks_cuts(newline, size):
    data = b"".join(WHOLE).replace(b"\n", newline)
    cutter, pieces = EventCutter(), []
    for start in range(0, len(data), size):
        pieces += cutter.feed(data[start : start + size])
    assert b"".join(pieces) + cutter.rest() == data
    assert len(pieces) >= len(WHOLE) - 1
    assert all(piece.endswith(newline * 2) for piece in pieces)


def test_lines_and_blank_lines_may_end_differently():
    data = b"".join(WHOLE)
    for ends in (b"\n\r\n", b"\r\n\n"):
        mixed = data.replace(b"\n\n", ends)
        assert [len(EventCutter().feed(mixed)), EventCutter().feed(mixed)[-1]] == [len(WHOLE), b"data: [DONE]" + ends]
        stream = relay(hide_usage=True)
        assert stream.feed(mixed) == mixed.replace(USAGE.replace(b"\n\n", ends), b"")


def test_what_comes_behind_the_end_goes_nowhere():
    stream = relay()
    assert stream.feed(b"".join(WHOLE)) == b"".join(WHOLE)
    assert stream.feed(chunk()) == b""
    assert stream.close() == b""
    assert stream.failure is None


def test_an_event_without_end_is_a_fault():
    cutter = EventCutter(limit=100)
    with pytest.raises(StreamFault):
        for _ in range(20):
            cutter.feed(b"data: xxxx")


def test_nothing_leaves_before_the_first_content():
    stream = relay()
    assert stream.feed(ROLE) == b""
    assert not stream.has_content
    assert stream.feed(chunk()) == ROLE + chunk()
    assert stream.feed(WHOLE[2]) == WHOLE[2]
    assert not stream.ended
    assert stream.feed(USAGE + WHOLE[4]) == USAGE + WHOLE[4]
    assert stream.ended
    assert stream.close() == b""
    assert stream.failure is None
    answer = stream.collector.answer()
    assert (answer.message.text, answer.usage.input, answer.usage.output) == ("x", 3, 1)


def test_the_usage_that_only_we_asked_for_stays_here():
    stream = relay(hide_usage=True)
    assert stream.feed(b"".join(WHOLE)) == b"".join(part for part in WHOLE if part != USAGE)
    assert stream.collector.answer().usage.input == 3


def test_what_came_before_a_fault_leaves_and_the_fault_does_not():
    stream = relay()
    assert stream.feed(ROLE + chunk() + b"data: {broken\n\n" + chunk()) == ROLE + chunk()
    assert stream.failure is not None


def test_a_stream_that_just_ends_has_failed():
    stream = relay()
    stream.feed(ROLE + chunk())
    assert stream.close() == b""
    assert stream.failure is not None
    assert not stream.ended


def test_a_last_blank_line_may_be_missing():
    stream = relay()
    stream.feed(b"".join(WHOLE)[:-1])
    assert stream.close() == b"data: [DONE]\n\n\n"
    assert stream.ended
    assert stream.failure is None


def test_a_held_answer_waits_for_its_release_and_has_an_end():
    stream = relay(hold_all=True)
    assert stream.feed(b"".join(WHOLE)) == b""
    assert stream.ended
    assert stream.release() == b"".join(WHOLE)
    small = relay(hold_all=True, limit=50)
    small.feed(b"".join(WHOLE))
    assert small.failure is not None
