"""Whatever a call holds becomes a record: nothing that clients or providers send can make it unwritable."""

import asyncio

import msgspec
import pytest
from tests.gateway.recording.calls import record

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import ImagePart, Message, RawPart, TextPart, ThinkingPart, ToolCall
from firstchair.gateway.dialects.base import EngineTokens
from firstchair.gateway.recorder import Recorder, encoded_record
from firstchair.gateway.records import Attempt, decode_record, encode_record
from firstchair.gateway.redaction import Redactor
from firstchair.gateway.spool import Frame, SpoolReader, SpoolWriter

ROWS = [{"role": "user", "content": "Hi"}]
WHOLE = record(
    ROWS,
    Message(
        role="assistant",
        content=(
            ThinkingPart(text="hmm", signature="s"),
            TextPart(text="Hello", extra={"anthropic": {"citations": [1, 2.5, None, True]}}),
            ImagePart(url="https://x/y.png"),
            RawPart(provider="other", data={"type": "new", "n": [1]}),
        ),
        tool_calls=(ToolCall(id="c", name="f", arguments="{}"),),
    ),
    attempts=(Attempt(provider="up", model="m", status=200, ms=1.5),),
    usage=TokenCounts(input=3, output=4),
    tokens=EngineTokens(prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.5,)),
)


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


ODD = {
    "half a surrogate pair in a text": {"answer": Message(role="assistant", content=(TextPart(text="a\ud800b"),))},
    "half a surrogate pair in a name": {"dropped": ("\udfff: no such field",)},
    "a usage of 2^64": {"raw_usage": {"output_tokens": 1 << 64, "\ud800": -(1 << 70)}},
    "a cost of 2^64": {"cost_nano": 1 << 64},
    "a bottomless block": {
        "answer": Message(role="assistant", content=(RawPart(provider="other", data={"x": nested(100_000)}),))
    },
    "what is no JSON": {"raw_usage": {"x": {1, 2}}},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD.keys())
def test_every_record_can_be_written_and_read(tmp_path, fields):
    odd = msgspec.structs.replace(WHOLE, **fields)
    spool = SpoolWriter(tmp_path, "w0")
    recorder = Recorder(spool, Redactor() if "answer" not in fields else None, keep_content=True)
    asyncio.run(recorder.write(odd))
    recorder.close()
    (frame,) = SpoolReader(tmp_path).records({})
    assert isinstance(frame, Frame)
    read = decode_record(frame.data)
    assert (read.call_id, read.usage, read.attempts) == (WHOLE.call_id, WHOLE.usage, WHOLE.attempts)
    assert spool.lost == {}


def test_the_long_way_says_the_same_as_the_short_one():
    """All fields beside the odd one come through unchanged."""
    odd = msgspec.structs.replace(WHOLE, error="a\ud800b")
    read = decode_record(encoded_record(odd))
    assert read == msgspec.structs.replace(WHOLE, error="a?b")
    assert encoded_record(WHOLE) == encode_record(WHOLE)
