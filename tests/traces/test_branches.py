import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.chat.messages import ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.openai_calls import replayable
from firstchair.traces.branches import RecordedCall, branch_sessions, merge_calls
from firstchair.traces.decisions import decision_points
from firstchair.traces.session import ModelCall

SYSTEM, USER = text_message("system", "be good"), text_message("user", "go")
CALL = ToolCall.of("c1", "f", {"x": 1})
A1, T1, A2 = assistant_message(calls=(CALL,)), tool_result(CALL, "one"), assistant_message("done")


def call(prompt, *reply, **fields):
    return RecordedCall(prompt=tuple(prompt), reply=reply, call=ModelCall(call_id=fields.pop("id", "m")), **fields)


def sessions(calls):
    return list(branch_sessions(merge_calls(calls), session_id="s", source="production", labels={}))


def test_calls_that_extend_one_another_are_one_session():
    (session,) = sessions([call([SYSTEM, USER], A1, id="1"), call([SYSTEM, USER, A1, T1], A2, id="2")])
    assert session.messages == (SYSTEM, USER, A1, T1, A2)
    assert [(made.call_id, made.message_index) for made in session.calls] == [("1", 2), ("2", 4)]
    assert session.context_end == 0
    assert len(decision_points(session)) == 2


def test_malformed_arguments_that_come_back_carried_are_no_rewritten_history():
    broken = assistant_message(calls=(ToolCall(id="c1", name="f", arguments='{"x": '),))
    echo = replayable([broken])
    assert echo != (broken,)
    (session,) = sessions([call([SYSTEM, USER], broken), call([SYSTEM, USER, *echo, T1], A2)])
    assert session.messages == (SYSTEM, USER, broken, T1, A2)


def test_a_rewritten_history_opens_a_branch_and_no_action_is_counted_twice():
    summary = text_message("user", "summary of before")
    found = sessions(
        [
            call([SYSTEM, USER], A1),
            call([SYSTEM, USER, A1, T1], A2),
            call([SYSTEM, summary, A2, USER], assistant_message("after compaction")),
        ]
    )
    assert [session.session_id for session in found] == ["s", "s#1"]
    assert found[1].meta["branch_of"] == "s"
    assert found[1].context_end == 4
    assert [point.dp_id for session in found for point in decision_points(session)] == ["s:0", "s:1", "s#1:0"]


def test_a_sub_agent_and_its_parent_are_kept_apart():
    inner = [text_message("system", "you search"), text_message("user", "find x")]
    found = sessions(
        [
            call([SYSTEM, USER], A1),
            call(inner, assistant_message("found")),
            call([SYSTEM, USER, A1, T1], A2),
        ]
    )
    assert [len(session.messages) for session in found] == [5, 3]
    assert sum(len(decision_points(session)) for session in found) == 3


def test_a_call_joins_the_longest_branch_that_fits():
    other = text_message("user", "again")
    found = sessions(
        [
            call([SYSTEM, USER], A2),
            call([SYSTEM, USER, A2, other], A1),
            call([SYSTEM, USER], A1),
            call([SYSTEM, USER, A2, other, A1, T1], A2),
        ]
    )
    assert [len(session.messages) for session in found] == [7, 3]


def test_a_failed_call_and_its_retry_are_one_branch():
    (session,) = sessions([call([SYSTEM, USER], id="1"), call([SYSTEM, USER], A2, id="2")])
    assert session.messages == (SYSTEM, USER, A2)
    assert [made.message_index for made in session.calls] == [None, 2]


def test_other_tools_open_a_branch():
    found = sessions([call([SYSTEM, USER], A1, catalog_id="a"), call([SYSTEM, USER, A1, T1], A2, catalog_id="b")])
    assert [session.catalog_id for session in found] == ["a", "b"]
    assert sum(len(decision_points(session)) for session in found) == 2


def test_an_echo_with_other_spacing_is_the_same_and_one_with_another_value_is_not():
    def echo(arguments):
        return assistant_message(calls=(msgspec.structs.replace(CALL, arguments=arguments),))

    first = call([SYSTEM, USER], A1)
    (session,) = sessions([first, call([SYSTEM, USER, echo('{"x":1}'), T1], A2)])
    assert session.messages[2] == A1, "the first recording keeps its spelling"
    for changed in ('{"x": 1.0}', '{"x": true}', '{"x": 1', '{"x": 1, "y": 2}'):
        assert len(sessions([first, call([SYSTEM, USER, echo(changed), T1], A2)])) == 2


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_model_action_is_exactly_one_decision(seed, count):
    """A random harness: it goes on, rewrites, rolls back or starts anew; replies are unique."""
    rng = random.Random(seed)
    histories = [[SYSTEM, USER]]
    calls = []
    for number in range(count):
        history = list(rng.choice(histories))
        if rng.random() < 0.2:
            history = [SYSTEM, text_message("user", f"summary {number}"), *history[-rng.randrange(1, 3) :]]
        elif rng.random() < 0.2:
            history = history[: rng.randrange(2, len(history) + 1)]
        if history[-1].role == "assistant":
            history.append(text_message("user", f"next {number}"))
        reply = assistant_message(f"reply {number}")
        calls.append(call(history, reply))
        histories.append([*history, reply])
    actions = [point.observed.text for session in sessions(calls) for point in decision_points(session)]
    assert sorted(actions) == sorted(f"reply {number}" for number in range(count))
