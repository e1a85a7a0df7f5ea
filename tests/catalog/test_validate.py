import pytest

from firstchair.catalog.validate import ProblemCount, validate_session
from firstchair.chat.messages import Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.session import Session

TOOLS = (
    Tool(
        name="book",
        parameters={
            "type": "object",
            "properties": {
                "who": {"type": "string"},
                "people": {"type": "integer", "minimum": 1},
                "seats": {
                    "type": "array",
                    "items": {"type": "object", "required": ["row"], "properties": {"row": {}}},
                },
            },
            "required": ["who", "people"],
            "additionalProperties": False,
        },
    ),
    Tool(name="free"),
    Tool(name="broken", parameters={"type": "objekt"}),
)


def problems(name: str, arguments: str) -> list[tuple[str, str]]:
    call = ToolCall(id="c", name=name, arguments=arguments)
    messages = (text_message("user", "x"), assistant_message(calls=(call,)), tool_result(call, "y"))
    found = validate_session(Session(session_id="s", messages=messages), TOOLS)
    assert all((item.session_id, item.message_index, item.call_index) == ("s", 1, 0) for item in found)
    return [(item.kind, item.path) for item in found]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("book", '{"who": "a", "people": 2}', []),
        ("book", '{"who": "a", "people": 2.0}', []),
        ("book", '{"people": true}', [("wrong_type", "$.people"), ("missing_field", "$.who")]),
        ("book", "{}", [("missing_field", "$.who"), ("missing_field", "$.people")]),
        ("book", '{"who": "a", "people": "2"}', [("wrong_type", "$.people")]),
        ("book", '{"who": "a", "people": 0}', [("schema_violation", "$.people")]),
        ("book", '{"who": "a", "people": 1, "x": 1}', [("unknown_field", "$")]),
        ("book", '{"who": "a", "people": 1, "seats": [{"row": 1}, {}]}', [("missing_field", "$.seats[1].row")]),
        ("book", '{"who": ', [("not_json", "$")]),
        ("book", '{"who": "a", "who": "b", "people": 1}', [("not_json", "$")]),
        ("book", "[]", [("not_json", "$")]),
        ("nope", "{}", [("unknown_tool", "$")]),
        ("nope", "{", [("not_json", "$"), ("unknown_tool", "$")]),
        ("free", '{"anything": 1}', []),
        ("broken", "{}", [("broken_schema", "$")]),
    ],
)
def test_a_call_is_checked_against_its_tool(name, arguments, expected):
    assert problems(name, arguments) == expected


def test_a_clean_session_has_no_problems():
    assert validate_session(trip_session(0), trip_tools()) == ()


def test_results_without_calls_and_calls_without_results_are_found():
    first, second = ToolCall(id="a", name="free"), ToolCall(id="b", name="free")
    messages = (
        text_message("tool", "?", tool_call_id="z", name="free"),
        assistant_message(calls=(first, second)),
        tool_result(first, "ok"),
        tool_result(first, "again"),
        text_message("user", "never mind"),
        assistant_message(calls=(first,)),
    )
    found = validate_session(Session(session_id="s", messages=messages), TOOLS)
    assert [(item.kind, item.message_index, item.call_index) for item in found] == [
        ("orphan_result", 0, None),
        ("unanswered_call", 1, 1),
        ("orphan_result", 3, None),
    ], "a call that ends the recording is simply not answered yet"


def test_totals_are_kept_while_sessions_stream_by():
    count = ProblemCount()
    bad = Session(session_id="s", messages=(assistant_message(calls=(ToolCall(id="a", name="nope"),)),))
    for session in (trip_session(0), bad):
        count.of(session, validate_session(session, trip_tools()))
    assert (count.sessions, count.bad_sessions, count.calls, count.problems) == (2, 1, 4, 1)
    assert count.by_kind == {"unknown_tool": 1}


def test_long_values_do_not_flood_the_report():
    (problem,) = validate_session(
        Session(
            session_id="s",
            messages=(assistant_message(calls=(ToolCall.of("a", "book", {"who": ["x"] * 999, "people": 1}),)),),
        ),
        TOOLS,
    )
    assert len(problem.message) <= 200
