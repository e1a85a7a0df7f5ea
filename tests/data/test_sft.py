import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat.actions import action_of
from firstchair.chat.messages import ImagePart, Message, TextPart, ThinkingPart, ToolCall, text_message
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.data.corrections import correction_from, spec_of
from firstchair.data.message_rows import messages_from_rows, messages_to_rows
from firstchair.data.sft import SftOptions, SftRecord, read_sft, sft_records, write_sft
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.decisions import decision_points


def tools(_catalog_id):
    return trip_tools()


def correction(**changes):
    before = spec_of(action_of(trip_session(1, mistake=True).messages[8]))
    after = spec_of(action_of(trip_session(1).messages[8]))
    row = {"dp_id": "trip-1:3", "dimension": "memory", "evidence": 7, "by": "ana", "why": "asked to remember"}
    row |= {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
    return correction_from(row | changes)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_records_survive_the_file(tmp_path):
    records = list(sft_records([trip_session(1), trip_session(2)], tools, SftOptions(tier="C", wave="W1")))
    counts = write_sft(tmp_path / "sft.jsonl", records)
    assert list(read_sft(tmp_path / "sft.jsonl")) == records
    assert (counts.records, counts.assistant_spans, counts.trained_spans, counts.tool_calls) == (2, 10, 10, 6)
    assert records[0].meta["num_turns"] == 2
    assert records[0].meta["tier"] == "C"
    assert [message.role == "assistant" for message in records[0].messages] == list(records[0].loss)


def test_the_line_reads_as_documented(tmp_path):
    write_sft(tmp_path / "sft.jsonl", sft_records([trip_session(1)], tools))
    row = json.loads((tmp_path / "sft.jsonl").read_text(encoding="utf-8"))
    assert list(row) == ["id", "source", "messages", "tools", "meta"]
    assert row["messages"][0] == {"role": "system", "content": "You book trips.\nAsk before you pay.", "loss": False}
    assert row["messages"][4]["tool_calls"][0]["name"] == "book"
    assert row["messages"][4]["loss"] is True
    assert row["tools"][0]["name"] == "find_trips"


def test_a_corrected_mistake_stays_in_the_context_and_leaves_the_loss():
    session = trip_session(1, mistake=True)
    (record,) = sft_records([session], tools, corrections=[correction()])
    assert record.messages == session.messages
    assert [index for index, trained in enumerate(record.loss) if trained] == [2, 4, 6, 10]


def test_branches_teach_the_right_action_where_the_mistake_was():
    session = trip_session(1, mistake=True)
    records = list(sft_records([session], tools, SftOptions(branches=True), corrections=[correction()]))
    assert [record.id for record in records] == ["trip-1", "trip-1:3#gold"]
    branch = records[1]
    assert branch.messages[:-1] == session.messages[:8]
    assert branch.messages[-1].tool_calls[0].name == "remember"
    assert [index for index, trained in enumerate(branch.loss) if trained] == [8]


def test_corrections_of_other_sessions_do_not_matter_but_wrong_ones_do():
    (record,) = sft_records([trip_session(2)], tools, corrections=[correction()])
    assert record.trained_spans == 5
    with pytest.raises(DataError, match=r"before: .*trip-1:3"):
        list(sft_records([trip_session(1)], tools, corrections=[correction()]))


def test_only_what_a_reviewer_confirmed_is_trained_when_asked():
    session = trip_session(1)
    stands = msgspec.to_builtins(spec_of(decision_points(session)[3].observed))
    confirmed = correction(dimension="confirmed", before=stands, after=stands)
    left_out: list[str] = []
    options = SftOptions(loss="verified")
    records = list(
        sft_records([session, trip_session(2)], tools, options, corrections=[confirmed], left_out=left_out)
    )
    assert [record.id for record in records] == ["trip-1"]
    assert [index for index, trained in enumerate(records[0].loss) if trained] == [8]
    assert left_out == ["trip-2"]


def test_a_malformed_call_is_not_taught():
    session = trip_session(1)
    broken = msgspec.structs.replace(session.messages[4].tool_calls[0], arguments='{"trip_id": ')
    messages = list(session.messages)
    messages[4] = msgspec.structs.replace(messages[4], tool_calls=(broken,))
    (record,) = sft_records([msgspec.structs.replace(session, messages=tuple(messages))], tools)
    assert not record.loss[4]
    assert record.trained_spans == 4
    assert record.messages[4].tool_calls[0].arguments == '{"trip_id": '


def test_flags_must_fit_the_messages():
    with pytest.raises(DataError, match=r"messages\[0\]\.loss: true on a user message"):
        SftRecord(id="x", messages=(text_message("user", "hi"),), loss=(True,))
    with pytest.raises(DataError, match="loss: 2 flags for 1 messages"):
        SftRecord(id="x", messages=(text_message("user", "hi"),), loss=(False, False))


def test_the_conversations_form_is_read(tmp_path):
    rows = [
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"id": "b", "conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ]
    first, second = read_sft(write(tmp_path / "c.jsonl", *rows))
    assert [message.role for message in first.messages] == ["user", "assistant"]
    assert first.loss == (False, True)
    assert first.id == "c.jsonl:1"
    assert second.id == "b"


def test_calls_in_text_blocks_become_calls_and_keep_their_flags(tmp_path):
    block = '<think>look</think>\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    rows = [
        {"role": "user", "content": "go", "loss": False},
        {"role": "assistant", "content": block, "loss": False},
        {"role": "tool", "content": "done", "loss": False},
        {"role": "assistant", "content": "It is done.", "loss": True},
    ]
    (record,) = read_sft(write(tmp_path / "c.jsonl", {"id": "a", "messages": rows}))
    assert record.messages[1].thinking == "look"
    assert record.messages[1].tool_calls[0].parsed() == {"x": 1}
    assert record.messages[2].tool_call_id == record.messages[1].tool_calls[0].id
    assert record.loss == (False, False, False, True)
    write_sft(tmp_path / "again.jsonl", [record])
    assert list(read_sft(tmp_path / "again.jsonl")) == [record]


def test_flags_that_cannot_be_placed_are_an_error(tmp_path):
    rows = [
        {"from": "human", "value": "go"},
        {"from": "gpt", "value": "I look.", "loss": True},
        {"from": "function_call", "value": '{"name": "f", "arguments": {}}', "loss": False},
        {"from": "observation", "value": "done"},
    ]
    path = write(tmp_path / "c.jsonl", {"conversations": rows})
    with pytest.raises(DataError, match=r"c\.jsonl:1: conversations: 4 rows make 3 messages"):
        list(read_sft(path))
    bare = [{key: value for key, value in row.items() if key != "loss"} for row in rows]
    (record,) = read_sft(write(path, {"conversations": bare, "system": "Be brief."}))
    assert [message.role for message in record.messages] == ["system", "user", "assistant", "tool"]
    assert record.loss == (False, False, True, False)


def test_openai_records_are_read_byte_for_byte(tmp_path):
    rows = [USER, OPENAI_CALL, {"role": "tool", "content": "x", "tool_call_id": "a"}, REPLY | {"loss": False}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    (record,) = read_sft(write(tmp_path / "o.jsonl", {"messages": rows, "tools": [tool]}))
    assert record.messages[1].tool_calls[0].arguments == '{"x":  1}'
    assert record.tools[0].name == "f"
    assert record.loss == (False, True, False, False)
    write_sft(tmp_path / "again.jsonl", [record])
    (again,) = read_sft(tmp_path / "again.jsonl")
    assert again.messages == record.messages
    assert again.tools == record.tools


USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "ho"}
CALL = {"role": "assistant", "tool_calls": [{"id": "a", "name": "f", "arguments": "{}"}]}
OPENAI_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":  1}'}}],
}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "messages: found no list"),
        ({"id": "x"}, "messages: found no list"),
        ({"messages": [USER]}, "messages: no assistant message"),
        ({"messages": ["hi"]}, r"messages\[0\]: found str"),
        ({"messages": [USER, REPLY | {"loss": 1}]}, r"messages\[1\]\.loss: found 1"),
        ({"messages": [USER | {"loss": True}, REPLY]}, r"messages\[0\]\.loss: true on a user"),
        ({"messages": [USER, REPLY | {"weight": 1}]}, r"messages\[1\]\.weight: unknown field"),
        ({"messages": [{"role": "robot", "content": "x"}, REPLY]}, r"messages\[0\]: found role 'robot'"),
        ({"messages": [{"role": "robot", "content": []}, CALL]}, r"messages\[0\]\.role: "),
        ({"messages": [USER, OPENAI_CALL, {"role": "tool", "content": "x", "tool_call_id": "b"}]}, r"messages\[2\]"),
        ({"messages": [USER, {"role": "tool", "content": "x"}, REPLY]}, r"messages\[1\]: a tool result, but no call"),
        ({"messages": [CALL, {"role": "tool", "content": "x"}]}, r"messages\[1\]\.tool_call_id: found no"),
        ({"messages": [CALL, {"role": "tool", "content": "x", "tool_call_id": "b"}]}, r"messages\[1\]\.tool_call_id"),
        ({"messages": [USER, REPLY], "tools": {}}, "tools: found dict"),
        ({"messages": [USER, REPLY], "tools": [{"description": "x"}]}, r"tools\[0\]: "),
        ({"messages": [USER, REPLY], "meta": 3}, "meta: found int"),
        ({"messages": [USER, REPLY], "id": 3}, "id: found int"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, r"conversations\[0\]: found role 'robot'"),
        ({"conversations": [{"from": "gpt", "value": 3}]}, r"conversations\[0\]: found int; expected text"),
        ({"conversations": []}, "conversations: found no list"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path, row, reason):
    path = write(tmp_path / "bad.jsonl", {"messages": [USER, REPLY]}, row)
    with pytest.raises(DataError, match=r"bad\.jsonl:2: " + reason):
        list(read_sft(path))
    skip = SkipBad(allowed=1)
    assert len(list(read_sft(path, skip=skip))) == 1
    assert skip.skipped[0].line == 2


def test_an_empty_outcome_writes_nothing_and_nothing_is_overwritten(tmp_path):
    with pytest.raises(DataError, match="no record with a trained message"):
        write_sft(tmp_path / "a.jsonl", [])
    assert list(tmp_path.iterdir()) == []
    write_sft(tmp_path / "a.jsonl", sft_records([trip_session(1)], tools))
    with pytest.raises(ConfigError, match="--force"):
        write_sft(tmp_path / "a.jsonl", sft_records([trip_session(2)], tools))


TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["a\u2028b", "\r\n", "<tool_call>", "<think>"]
)
PARTS = st.one_of(
    st.builds(TextPart, text=TEXT),
    st.builds(ThinkingPart, text=TEXT, signature=st.none() | TEXT),
    st.builds(ImagePart, url=st.just("https://example.org/a.png")),
)
CALLS = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT)
CONTENT = st.lists(PARTS, max_size=3).map(tuple)
MESSAGES = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user"]), content=CONTENT, name=st.none() | TEXT),
    st.builds(Message, role=st.just("assistant"), content=CONTENT, tool_calls=st.lists(CALLS, max_size=2).map(tuple)),
    st.builds(Message, role=st.just("tool"), content=CONTENT, tool_call_id=TEXT, is_error=st.booleans()),
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_rows_lose_nothing_of_a_message(messages):
    rows = json.loads(json.dumps(messages_to_rows(messages)))
    found, flags = messages_from_rows({"messages": rows})
    assert found == tuple(messages)
    assert set(flags) == {None}


def test_other_trainers_get_openai_messages(tmp_path):
    write_sft(tmp_path / "o.jsonl", sft_records([trip_session(1)], tools), openai=True)
    row = json.loads((tmp_path / "o.jsonl").read_text(encoding="utf-8"))
    assert row["messages"][4]["tool_calls"][0]["function"]["name"] == "book"
    assert row["messages"][4]["loss"] is True
    assert row["tools"][0]["type"] == "function"
    (record,) = read_sft(tmp_path / "o.jsonl")
    (own,) = sft_records([trip_session(1)], tools)
    assert [message.text for message in record.messages] == [message.text for message in own.messages]
    assert record.messages[3].is_error
    assert record.loss == own.loss
