from __future__ import annotations

import pytest

from firstchair.chat.messages import Message, ToolCall, assistant_message, text_message
from firstchair.chat.openai_calls import replayable


def with_call(arguments: str, **extra: dict[str, str]) -> Message:
    return assistant_message("I call.", calls=(ToolCall(id="c", name="f", arguments=arguments, extra=extra),))


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "plain words", '"text"', "", "null", '{"a": NaN}'])
def test_arguments_that_are_no_object_are_sent_as_one_that_holds_them(arguments: str) -> None:
    (sent,) = replayable([with_call(arguments)])
    (call,) = sent.tool_calls
    assert call.parsed() == {"__malformed_arguments__": arguments}
    assert (sent.text, call.id, call.name) == ("I call.", "c", "f")


def test_all_else_stays_as_it_was() -> None:
    kept = (text_message("user", "{"), with_call('{"a":  1}'), with_call("free text", openai={"custom": ""}))
    assert replayable(kept) == kept
