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
from firstchair.data.decisions import decision_points
from firstchair.data.message_rows import messages_from_rows, messages_to_rows
from firstchair.data.sft import SftOptions, SftRecord, read_sft, sft_records, write_sft
from firstchair.testing.sessions import trip_session, trip_tools


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


USER = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "ho"}
CALL = {"role": "assistant", "tool_calls": [{"id": "a", "name": "f", "arguments": "{}"}]}


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
        ({"messages": [{"role": "robot", "content": "x"}, REPLY]}, r"messages\[0\]\.role: "),
        ({"messages": [CALL, {"role": "tool", "content": "x"}]}, r"messages\[1\]\.tool_call_id: found no"),
        ({"messages": [CALL, {"role": "tool", "content": "x", "tool_call_id": "b"}]}, r"messages\[1\]\.tool_call_id"),
        ({"messages": [USER, REPLY], "tools": {}}, "tools: found dict"),
        ({"messages": [USER, REPLY], "tools": [{"description": "x"}]}, r"tools\[0\]: "),
        ({"messages": [USER, REPLY], "meta": 3}, "meta: found int"),
        ({"messages": [USER, REPLY], "id": 3}, "id: found int"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, r"conversations\[0\]\.from: found 'robot'"),
        ({"conversations": [{"from": "gpt", "value": None}]}, r"conversations\[0\]\.value: found NoneType"),
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


TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["a\u2028b", "\r\n", "<tool_call>"])
PARTS = st.one_of(
    st.builds(TextPart, text=TEXT),
    st.builds(ThinkingPart, text=TEXT, signature=st.none() | TEXT),
    st.builds(ImagePart, url=st.just("https://example.org/a.png")),
)
CALLS = st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=st.lists(PARTS, max_size=3).map(tuple),
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_call_id=st.none() | TEXT,
    name=st.none() | TEXT,
    is_error=st.booleans(),
)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_rows_lose_nothing_of_a_message(messages):
    rows = json.loads(json.dumps(messages_to_rows(messages)))
    found, flags = messages_from_rows({"messages": rows})
    assert found == tuple(messages)
    assert set(flags) == {None}
