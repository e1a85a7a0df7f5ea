import itertools
import sqlite3

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from firstchair.chat.messages import Message, RawPart, TextPart, Tool, ToolCall, assistant_message, text_message
from firstchair.core.errors import ConfigError, DataError, FirstchairError, UpstreamError
from firstchair.core.jsonl import SkipBad
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces import store as module
from firstchair.traces.session import CallTokens, ModelCall, Session, Usage, catalog_id_of, turns_of
from firstchair.traces.store import BATCH, AddReport, NewSession, TraceStore

TOOLS = trip_tools()
CATALOGS = {catalog_id_of(TOOLS): TOOLS}


def bare(session_id: str, **fields: object) -> Session:
    """A session of one question and one answer, without tools."""
    messages = (text_message("user", "hello"), assistant_message("hi"))
    return Session(session_id=session_id, messages=messages, turns=turns_of(messages), **fields)


def test_what_goes_in_comes_out_in_order_of_arrival(store: TraceStore):
    sessions = [trip_session(number) for number in (3, 1, 2)]
    assert store.add(sessions, CATALOGS) == AddReport(added=3, messages=sum(len(s.messages) for s in sessions))
    assert list(store.sessions()) == sessions
    assert store.get("trip-1") == sessions[1]
    assert store.tools(sessions[0].catalog_id) == TOOLS
    assert store.catalogs() == CATALOGS


def test_adding_twice_adds_nothing(store: TraceStore):
    sessions = [trip_session(number) for number in range(4)]
    store.add(sessions, CATALOGS)
    assert store.add([*sessions, sessions[0]], CATALOGS) == AddReport(duplicates=5)
    assert store.count() == 4


def test_one_id_with_two_contents_is_refused_by_name_and_nothing_of_it_stays(store: TraceStore):
    store.add([NewSession(bare("a"), origin="first.jsonl:1")], {})
    other = NewSession(bare("a", labels={"reward": 1}), origin="second.jsonl:7")
    with pytest.raises(DataError, match=r"second\.jsonl:7.*'a'.*first\.jsonl:1.*--on-conflict"):
        store.add([bare("b"), other], {}, atomic=True)
    assert [session.session_id for session in store.sessions()] == ["a"]
    with pytest.raises(DataError, match=r"'c' .*with other content"):
        store.add([bare("c"), bare("c", source="rollout")], {})
    assert store.count() == 1


def test_a_conflict_is_kept_or_replaced_when_asked(store: TraceStore):
    store.add([bare("a"), bare("b")], {})
    new = bare("a", labels={"reward": 1})
    assert store.add([new], {}, on_conflict="keep") == AddReport(kept=1)
    assert store.get("a").labels == {}
    assert store.add([new], {}, on_conflict="replace") == AddReport(replaced=1, messages=2)
    assert [s.session_id for s in store.sessions()] == ["a", "b"]
    assert store.count(labels={"reward": 1}) == 1


def test_bad_sessions_are_passed_over_up_to_the_allowance(store: TraceStore):
    orphan = bare("x")
    orphan = msgspec.structs.replace(orphan, messages=(*orphan.messages, text_message("tool", "?", tool_call_id="c")))
    skip = SkipBad(allowed=2)
    report = store.add([bare("a"), orphan, bare("a", source="rollout"), bare("b")], {}, skip=skip)
    assert report.added == 2
    assert [error.field for error in skip.skipped] == ["messages[2].tool_call_id", "session_id"]
    with pytest.raises(DataError, match=r"messages\[2\]\.tool_call_id"):
        store.add([orphan], {})


def test_an_error_in_a_later_batch_undoes_the_earlier_ones_only_when_atomic(store: TraceStore):
    def sessions(prefix):
        yield from (bare(f"{prefix}{number}") for number in range(BATCH + 3))
        raise DataError("broken here")

    with pytest.raises(DataError, match="broken"):
        store.add(sessions("a"), {}, atomic=True)
    assert store.count() == 0
    with pytest.raises(DataError, match="broken"):
        store.add(sessions("b"), {})
    assert store.count() == BATCH


def test_the_callers_own_writes_between_pages_do_not_disturb_reading(store: TraceStore):
    store.add([bare(f"s{number}") for number in range(450)], {})
    seen = []
    for session in store.sessions():
        seen.append(session.session_id)
        if len(seen) == 10:
            store.add([bare("late")], {})
            store.delete(session_ids=["s300"])
    assert seen == [f"s{number}" for number in range(450) if number != 300] + ["late"]
    assert [session.session_id for session in itertools.islice(store.sessions(limit=3), 9)] == ["s0", "s1", "s2"]


def test_large_sessions_make_smaller_pages_and_batches(store: TraceStore, monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARS", 1000)
    sizes = [10, 2000, 10, 400, 400, 400, 5000]
    sessions = [
        Session(session_id=f"s{number}", messages=(text_message("user", "x" * size),))
        for number, size in enumerate(sizes)
    ]
    reports: list[int] = []
    store.add(sessions, {}, on_batch=lambda report: reports.append(report.added))
    assert reports == [2, 6, 7]
    assert list(store.sessions()) == sessions
    assert list(store.sessions(limit=5)) == sessions[:5]
    assert [row.session_id for row in store.listing()] == [session.session_id for session in sessions]


def test_schemas_and_arguments_keep_their_bytes(store: TraceStore):
    first = Tool(name="t", parameters={"b": 1.0, "a": {"z": 1e300, "y": "\u2028é\x00"}}, extra={"strict": True})
    second = Tool(name="u", parameters={"c": 1})
    lists = [(first, second), (Tool(name="t", parameters={"a": {"z": 1e300, "y": "\u2028é\x00"}, "b": 1.0}), second)]
    arguments = '{"b" :1.00,\t"a": "\\u00e9"} trailing'
    call = ToolCall(id="c", name="t", arguments=arguments)
    received = '[{"name":"t",  "parameters":{"b":1.00}}]'
    for number, tools in enumerate(lists):
        messages = (text_message("user", "x"), assistant_message(calls=(call,)))
        session = Session(session_id=f"s{number}", messages=messages, catalog_id=catalog_id_of(tools))
        store.add([session], {session.catalog_id: tools}, received={session.catalog_id: received})
        assert store.get(f"s{number}").messages[1].tool_calls[0].arguments == arguments
        assert msgspec.json.encode(store.tools(session.catalog_id)) == msgspec.json.encode(tools)
        assert store.received(session.catalog_id) == received
    assert len(store.catalog_ids()) == 2, "key order is content: it is what the prompt shows"


def test_filters_choose_by_source_label_tool_and_time(store: TraceStore):
    store.add([trip_session(number) for number in range(6)], CATALOGS)
    store.add(
        [
            bare("old", created_at="2025-01-01T00:00:00Z", labels={"trial": "1", "reward": 0.5, "flag": True}),
            bare("new", created_at="2026-06-01T02:00:00+02:00", source="production"),
            bare("undated"),
        ],
        {},
    )
    ids = lambda **filters: {session.session_id for session in store.sessions(**filters)}  # noqa: E731
    assert ids(source="production") == {"old", "new", "undated"}
    assert ids(labels={"trial": 1, "task_id": 2}) == {"trip-5"}
    assert ids(labels={"trial": "1"}) == {"trip-1", "trip-3", "trip-5", "old"}
    assert ids(labels={"reward": 0.5}) == {"old"}
    assert ids(labels={"flag": True}) == {"old"}
    assert ids(labels={"flag": "true"}) == {"old"}
    assert ids(since="2026-06-01T00:00:00Z") == {"new"}
    assert ids(until="2026-01-01") == {"old"}
    assert len(ids(tool="find_trips")) == 6
    assert ids(tool="nope") == set()
    assert ids(session_ids=["old", "trip-0"]) == {"old", "trip-0"}
    assert store.count(source="scripted", tool="book") == 6
    assert next(store.listing(labels={"task_id": 2})).num_tool_calls == 3
    with pytest.raises(ConfigError, match="--since"):
        ids(since="yesterday")
    with pytest.raises(ConfigError, match="unknown filter"):
        ids(colour="red")


def test_stats_count_what_is_there(store: TraceStore):
    call = ModelCall(call_id="m", usage=Usage(input=10, output=3, cache_read=5), cost_usd=0.25, error="timeout")
    store.add([trip_session(0), trip_session(1, source="rollout")], CATALOGS)
    store.add([bare("x", calls=(call, call), created_at="2026-02-01T00:00:00Z")], {})
    stats = store.stats()
    assert (stats.sessions, stats.turns, stats.messages) == (3, 5, 24)
    assert (stats.tool_calls, stats.tool_errors, stats.model_calls, stats.model_errors) == (6, 2, 2, 2)
    assert (stats.tokens_input, stats.tokens_output, stats.tokens_cache_read, stats.cost_usd) == (20, 6, 10, 0.5)
    assert stats.by_source == {"production": 1, "rollout": 1, "scripted": 1}
    assert [(tool.tool, tool.calls, tool.errors, tool.sessions) for tool in stats.tools] == [
        ("book", 2, 0, 2),
        ("find_trips", 2, 2, 2),
        ("remember", 2, 0, 2),
    ]
    assert stats.last_created_at == "2026-02-01T00:00:00Z"
    assert store.stats(source="rollout").sessions == 1
    assert store.stats(source="synthetic").messages == 0


def test_deleting_takes_everything_of_a_session_and_tool_lists_left_unused(store: TraceStore):
    store.add([trip_session(0), trip_session(1)], CATALOGS)
    store.add([bare("x")], {})
    assert store.delete(session_ids=["trip-0"]) == 1
    assert store.catalog_ids() == tuple(CATALOGS)
    assert store.delete(labels={"task_id": 0}, tool="book") == 1
    assert store.catalog_ids() == ()
    assert store.count(tool="book") == 0
    assert store.delete() == 1
    assert store.add([trip_session(0)], CATALOGS).added == 1


def test_token_ids_and_logprobs_are_kept_and_must_fit(store: TraceStore):
    tokens = CallTokens(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.123456789012345,))
    session = bare("t", calls=(ModelCall(call_id="m", tokens=tokens, message_index=1),))
    store.add([session], {})
    assert store.get("t") == session
    for bad in (
        msgspec.structs.replace(tokens, logprobs=()),
        msgspec.structs.replace(tokens, logprobs=(float("nan"),)),
        msgspec.structs.replace(tokens, completion_ids=(-1,)),
    ):
        with pytest.raises(DataError, match=r"calls\[0\]\.tokens"):
            store.add([bare("u", calls=(ModelCall(call_id="m", tokens=bad),))], {})


def test_values_that_are_not_json_are_refused_by_field(store: TraceStore):
    raw = Message(role="user", content=(RawPart(provider="other", data={"x": float("nan")}),))
    cases = {
        "labels": bare("a", labels={"reward": float("inf")}),
        "meta": bare("a", meta={"text": "\ud800"}),
        "messages[0].content[0]": Session(session_id="a", messages=(raw,)),
        "messages": Session(session_id="a", messages=(Message(role="user", content=(TextPart(text="\udfff"),)),)),
        "session_id": bare("has space"),
        "created_at": bare("a", created_at="last week"),
        "catalog_id": bare("a", catalog_id="f" * 64),
        "context_end": bare("a", context_end=3),
    }
    for field, session in cases.items():
        with pytest.raises(DataError) as caught:
            store.add([session], {})
        assert caught.value.field == field
    assert store.count() == 0


def test_long_and_odd_names_are_kept_whole_and_still_found(store: TraceStore):
    long = "長" * 3000
    labels = {"note": long, long: 1, "\x00": "\x00", "\ufffd": 2}
    call = ToolCall(id="c", name=long)
    session = Session(
        session_id="s", messages=(text_message("user", "x"), assistant_message(calls=(call,))), labels=labels
    )
    store.add([session], {})
    assert store.get("s") == session
    assert store.count(labels={"note": long}, tool=long) == store.count(labels={long: 1}) == 1
    assert store.count(session_ids=["\x00"]) == 0


def test_what_is_not_there_is_said(store: TraceStore):
    with pytest.raises(ConfigError, match="traces ls"):
        store.get("nobody")
    with pytest.raises(ConfigError, match="abcdef"):
        store.tools("abcdef")
    assert store.tools("") == ()


def test_two_openings_of_one_store_see_each_other(store_url: str):
    with TraceStore.open(store_url) as first, TraceStore.open(store_url) as second:
        first.add([bare("a")], {})
        assert second.get("a") == bare("a")
        assert second.add([bare("a")], {}).duplicates == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    number=st.integers(0, 2**60),
    text=st.text(),
    arguments=st.text(),
    labels=st.dictionaries(st.text(), JSON, max_size=3),
    meta=JSON,
)
def test_any_session_survives_the_store(store: TraceStore, number, text, arguments, labels, meta):
    call = ToolCall(id="c", name=text or "t", arguments=arguments)
    messages = (text_message("user", text), assistant_message(text, calls=(call,)))
    session = Session(session_id=f"s{number}", messages=messages, labels=labels, meta={"m": meta})
    store.add([session], {}, on_conflict="replace")
    assert store.get(session.session_id) == session


def test_a_file_that_is_no_store_is_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(ConfigError, match=r"notes\.txt.*no store"):
        TraceStore.open(path)
    with pytest.raises(ConfigError, match="no such store"):
        TraceStore.open(tmp_path / "absent.db", must_exist=True)
    assert not (tmp_path / "absent.db").exists()


def test_a_store_of_another_layout_is_refused(tmp_path):
    path = tmp_path / "t.db"
    TraceStore.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE store_info SET value = '99'")
    raw.close()
    with pytest.raises(ConfigError, match="layout 99"):
        TraceStore.open(path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://x/y", "mysql is not supported"),
        ("sqlite://", "in-memory"),
        ("", "empty path"),
        ("://", "database URL"),
        ("postgresql://u:hunter2@127.0.0.1:abc/db", "database URL"),
        ("postgresql://u:hunter2@127.0.0.1:99999/db", "found port 99999"),
        ("postgresql://127.0.0.1:1/db", "found no user"),
        ("postgresql://", "found no user"),
        ("postgresql://u:hunter2@127.0.0.1:1/db?sslmode=require", "sslmode is no option"),
        ("postgresql://u:hunter2@127.0.0.1:1/db?connect_timeout=3", "connect_timeout is no option"),
    ],
)
def test_a_url_that_cannot_be_a_store_is_refused(url, words):
    with pytest.raises(ConfigError, match=words) as caught:
        TraceStore.open(url)
    assert "hunter2" not in str(caught.value)


def test_a_server_that_is_down_is_named_without_its_password():
    with pytest.raises(UpstreamError, match="check that the server runs") as caught:
        TraceStore.open("postgresql://me:hunter2secret@127.0.0.1:9/x")
    assert "hunter2secret" not in str(caught.value)


def test_a_reader_of_a_store_does_not_wait_for_a_writer(tmp_path):
    path = tmp_path / "t.db"
    with TraceStore.open(path) as store:
        store.add([bare("a")], {})

        def while_writing():
            yield bare("b")
            with TraceStore.open(path, must_exist=True) as reader:
                assert [session.session_id for session in reader.sessions()] == ["a"]

        store.add(while_writing(), {}, atomic=True)
        assert store.count() == 2


@pytest.mark.parametrize("kind", ["other program", "empty"])
def test_reading_what_is_no_store_says_so_and_writes_nothing(tmp_path, kind):
    path = tmp_path / "other.db"
    path.touch()
    if kind == "other program":
        with sqlite3.connect(path) as raw:
            raw.execute("CREATE TABLE theirs (x)")
        raw.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"other\.db: no Firstchair store in it"):
        TraceStore.open(path, must_exist=True)
    if kind == "other program":
        with pytest.raises(ConfigError, match=r"another program \(with the table theirs\)"):
            TraceStore.open(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_servers_refusal_is_one_line(postgres_url: str):
    url = make_url(postgres_url).set(username="nobody_here", password="hunter2")
    with pytest.raises(FirstchairError, match=r"role \"nobody_here\" does not exist|authentication failed") as caught:
        TraceStore.open(url.render_as_string(hide_password=False))
    assert "{" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
