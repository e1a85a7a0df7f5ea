import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.actions import action_of
from firstchair.chat.messages import Message, ToolCall, assistant_message, text_message, tool_result
from firstchair.testing.sessions import trip_session
from firstchair.traces.decisions import context, decision_points
from firstchair.traces.session import Session


def test_each_assistant_action_is_one_decision_in_its_turn():
    points = decision_points(trip_session(1))
    assert [(p.dp_id, p.turn, p.seq, p.context_end, p.kind, p.tags) for p in points] == [
        ("trip-1:0", 0, 0, 2, "tool_call", ()),
        ("trip-1:1", 0, 1, 4, "tool_call", ("recovery",)),
        ("trip-1:2", 0, 2, 6, "final_reply", ("stop",)),
        ("trip-1:3", 1, 0, 8, "tool_call", ()),
        ("trip-1:4", 1, 1, 10, "final_reply", ("stop",)),
    ]
    assert {point.provenance for point in points} == {"scripted"}
    assert [point.index for point in points] == [0, 1, 2, 3, 4]


def test_parallel_calls_are_one_decision():
    calls = (ToolCall.of("a", "f", {}), ToolCall.of("b", "g", {}))
    messages = (text_message("user", "go"), assistant_message(calls=calls), *(tool_result(c, "ok") for c in calls))
    (point,) = decision_points(Session(session_id="s", messages=messages))
    assert point.observed.calls == calls
    assert point.tags == ("parallel",)


ROLES = st.lists(st.sampled_from(["system", "user", "assistant", "tool"]), max_size=12)


@given(ROLES, st.integers(0, 12))
def test_a_context_is_everything_before_and_nothing_after(roles, context_end):
    messages = tuple(Message(role=role, name=str(index)) for index, role in enumerate(roles))
    session = Session(session_id="s", messages=messages, context_end=context_end)
    points = decision_points(session)
    own = [index for index, role in enumerate(roles) if role == "assistant" and index >= context_end]
    assert [point.context_end for point in points] == own
    for point in points:
        assert context(session, point) == messages[: point.context_end]
        assert point.observed == action_of(messages[point.context_end])
    assert decision_points(msgspec.structs.replace(session, turns=session.turns)) == points


@pytest.mark.parametrize("mark", ["truncated", "refused", "unfinished"])
def test_a_reply_that_the_model_did_not_end_is_no_stop(mark):
    cut = msgspec.structs.replace(assistant_message("I would"), extra={mark: True})
    (point,) = decision_points(Session(session_id="s", messages=(text_message("user", "go"), cut)))
    assert (point.tags, point.ending) == ((mark,), mark)
