import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.recording.calls import READERS, SYSTEM, TOOLS, body_of, called, record, said, user

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import UNFINISHED, ending
from firstchair.gateway.dialects.base import EngineTokens, FailureKind
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.gateway.stitch import NotStitched, Stitcher, Stored
from firstchair.traces.checks import check_session
from firstchair.traces.decisions import decision_points
from firstchair.traces.session import CallTokens, Usage

S = 1_000_000


class Shelf:
    """What was written, in memory: the part of the databases that a stitcher asks."""

    def __init__(self):
        self.sessions, self.ends, self.tools, self.claimed = {}, {}, {}, set()

    def sessions_ending(self, ends):
        return {end: [name for name, at in self.ends.items() if at == end] for end in ends}

    def load(self, session_id):
        session = self.sessions.get(session_id)
        return None if session is None else Stored(session, self.tools[session_id])

    def claim(self, session_id):
        return session_id not in self.ends

    def take(self, stitcher, now_us=0, *, everything=True):
        due = stitcher.due(now_us, everything=everything)
        for item in due:
            check_session(item.session)
            name = item.session.session_id
            self.sessions[name], self.tools[name], self.ends[name] = item.session, item.tools, item.end
            stitcher.saved(item, now_us)
        return due


def stitcher(shelf=None, **options):
    return Stitcher(READERS, shelf or Shelf(), **options)


def sessions(records, *, shelf=None, **options):
    """The sessions of calls, in order of their first call."""
    shelf = shelf or Shelf()
    made = stitcher(shelf, **options)
    for item in records:
        made.add(item, item.request, 0)
    shelf.take(made)
    return sorted(shelf.sessions.values(), key=lambda session: session.created_at)


def test_calls_that_extend_one_another_are_one_session_with_what_is_known_of_each():
    a1, echo = called()
    a2, _ = said("done")
    first = record(
        [SYSTEM, user("go")],
        a1,
        tools=TOOLS,
        native_finish="tool_calls",
        usage=TokenCounts(input=5, cache_read=7, cache_write_5m=2, cache_write_1h=1, output=3),
        cost_nano=1_500_000,
        ttft_ms=20.0,
        tokens=EngineTokens(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,)),
        user="ann",
    )
    second = record([SYSTEM, user("go"), *echo], a2, tools=TOOLS, user="ann", response_model="big-1-0601")
    (session,) = sessions([first, second])
    assert session.session_id == first.call_id
    assert [message.role for message in session.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert session.labels == {"slot": "main", "variant": "primary", "key": "k1", "user": "ann"}
    assert session.meta["requested_model"] == "big"
    assert [(call.call_id, call.message_index) for call in session.calls] == [(first.call_id, 2), (second.call_id, 4)]
    call = session.calls[0]
    assert call.usage == Usage(input=5, cache_read=7, cache_write=3, output=3)
    assert (call.cost_usd, call.ttft_ms, call.latency_ms) == (0.0015, 20.0, 100.0)
    assert (call.provider, call.model, call.finish_reason) == ("up", "big-1", "tool_calls")
    assert call.tokens == CallTokens(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.5,))
    assert session.calls[1].model == "big-1-0601"
    assert len(decision_points(session)) == 2
    assert session.context_end == 0
    assert session.created_at == call.started_at


def test_a_sub_agent_a_compaction_and_other_tools_open_branches():
    a1, echo = called()
    rows = [SYSTEM, user("go")]
    found = sessions(
        [
            record(rows, a1),
            record([{"role": "system", "content": "you search"}, user("find")], said("found")[0]),
            record([*rows, *echo], said("done")[0]),
            record([SYSTEM, user("summary"), *echo, user("on")], said("after")[0]),
            record([*rows, *echo], said("again")[0], tools=TOOLS),
        ]
    )
    assert [len(session.messages) for session in found] == [5, 3, 6, 5]
    assert [session.context_end for session in found] == [0, 0, 5, 4]
    assert sum(len(decision_points(session)) for session in found) == 5


def test_a_session_header_wins_over_what_the_prompts_say():
    rows = [SYSTEM, user("go")]
    answer, echo = said("hello")
    a = record(rows, answer, session="A")
    b = record([*rows, *echo, user("more")], said("x")[0], session="B")
    c = record([SYSTEM, user("other")], said("y")[0], session="A")
    d = record([*rows, *echo, user("next")], said("z")[0], session="A")
    found = {session.session_id: session for session in sessions([a, b, c, d])}
    assert set(found) == {"A", "B", f"A#{c.call_id}"}
    assert [call.call_id for call in found["A"].calls] == [a.call_id, d.call_id]
    assert found[f"A#{c.call_id}"].meta["branch_of"] == "A"


def test_headers_that_are_no_ids_stay_apart():
    found = sessions([record([user("x")], said("y")[0], session=name) for name in ("a b", "a-b", "a  b", "é", "ü")])
    names = [session.session_id for session in found]
    assert len(set(names)) == 5
    assert "a-b" in names


def test_other_keys_and_users_never_share_a_session():
    rows, (answer, echo) = [SYSTEM, user("hi")], said("hello")
    more = [*rows, *echo, user("more")]
    found = sessions(
        [record(rows, answer), record(more, said("x")[0], key_id="k2"), record(more, said("x")[0], user="bob")]
    )
    assert len(found) == 3


def test_equal_calls_in_parallel_are_two_branches_and_each_goes_on_once():
    rows, (answer, echo) = [SYSTEM, user("hi")], said("hello")
    more = [*rows, *echo, user("more")]
    found = sessions([record(rows, answer), record(rows, answer), *(record(more, said("x")[0]) for _ in range(3))])
    assert sorted(len(session.messages) for session in found) == [5, 5, 5]
    assert sum(len(session.calls) for session in found) == 5


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"outcome": Outcome.INCOMPLETE, "failure": FailureKind.BAD_ANSWER, "finish": ""}, "bad_answer"),
        ({"outcome": Outcome.CLIENT_DISCONNECTED, "finish": ""}, "client_disconnected"),
    ],
)
def test_an_answer_that_broke_off_is_marked_unfinished_and_is_nobodys_decision(fields, error):
    (session,) = sessions([record([user("go")], said("hal")[0], native_finish="", **fields)])
    assert ending(session.messages[-1]) == UNFINISHED
    assert session.calls[0].error == error


def test_an_answer_that_was_drained_after_a_disconnect_is_whole():
    (session,) = sessions([record([user("go")], said("all")[0], outcome=Outcome.CLIENT_DISCONNECTED)])
    assert ending(session.messages[-1]) is None
    assert session.calls[0].error is None


def test_a_failed_call_and_its_retry_are_one_session():
    rows = [SYSTEM, user("go")]
    failed = record(rows, None, outcome=Outcome.FAILED, failure=FailureKind.OVERLOADED, status=529, finish="")
    (session,) = sessions([failed, record(rows, said("done")[0])])
    assert [(call.error, call.message_index) for call in session.calls] == [("overloaded", None), (None, 2)]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (record([user("x")], said("y")[0], variant="shadow", shadow_of="c"), "shadow"),
        (record([user("x")], None, outcome=Outcome.REFUSED, status=401), "refused"),
        (record([user("x")], said("y")[0], body=b""), "no request"),
        (record([user("x")], said("y")[0], body=b"{"), "unreadable request"),
        (record([user("x")], said("y")[0], body=b"[]"), "unreadable request"),
        (record([user("x")], said("y")[0], body=body_of("x")), "unreadable request"),
    ],
)
def test_what_belongs_to_no_session_says_why(made, reason):
    one = stitcher()
    with pytest.raises(NotStitched, match=reason):
        one.add(made, made.request, 0)
    assert not len(one)


def test_a_session_that_several_variants_served_is_flagged():
    rows, (answer, echo) = [SYSTEM, user("hi")], said("hello")
    (session,) = sessions(
        [record(rows, answer, variant="canary"), record([*rows, *echo, user("m")], said("x")[0], variant="fallback")]
    )
    assert session.labels["variant"] == "mixed"


def test_what_was_left_out_or_put_in_for_a_provider_stands_in_the_session():
    rows, (answer, echo) = [SYSTEM, user("hi")], said("hello")
    first = record(rows, answer, dropped=("max_tokens=4096", "seed"))
    second = record([*rows, *echo, user("m")], said("x")[0], dropped=("seed", "top_k"))
    (session,) = sessions([first, second])
    assert session.meta["dropped"] == ["max_tokens=4096", "seed", "top_k"]
    (plain,) = sessions([record(rows, answer)])
    assert "dropped" not in plain.meta


def test_another_history_of_token_ids_opens_a_branch_and_lengths_that_differ_are_left_out():
    rows, (answer, echo) = [user("hi")], said("hello")
    ids = {"tokens": EngineTokens(prompt_ids=(1, 2), completion_ids=(3,), logprobs=(-0.1,))}
    other = {"tokens": EngineTokens(prompt_ids=(1, 9, 3, 4), completion_ids=(5,), logprobs=(-0.1,))}
    same = {"tokens": EngineTokens(prompt_ids=(1, 2, 3, 4), completion_ids=(5,), logprobs=(-0.1,))}
    more = [*rows, *echo, user("more")]
    assert len(sessions([record(rows, answer, **ids), record(more, said("x")[0], **same)])) == 1
    assert len(sessions([record(rows, answer, **ids), record(more, said("x")[0], **other)])) == 2
    wrong = EngineTokens(prompt_ids=(1,), completion_ids=(3, 4), logprobs=(-0.1,))
    made = record(rows, answer, tokens=wrong)
    (session,) = sessions([made])
    assert session.calls[0].tokens is None
    assert session.meta["tokens_left_out"] == made.call_id


def test_sessions_are_written_when_idle_or_old_and_go_on_from_the_store():
    shelf = Shelf()
    one = stitcher(shelf, idle_s=10, max_unsaved_s=25)
    rows = [SYSTEM, user("0")]
    for number in range(4):
        answer, echo = said(f"a{number}")
        made = record(rows, answer)
        one.add(made, made.request, number * 9 * S)
        rows = [*rows, *echo, user(str(number + 1))]
        assert bool(shelf.take(one, number * 9 * S, everything=False)) == (number == 3), "old after 25 s"
    assert (len(one), one.unsaved) == (1, 0)
    assert not shelf.take(one, 40 * S, everything=False)
    assert not len(one), "idle, and nothing new to write"
    late = record(rows, said("late")[0])
    session_id = one.add(late, late.request, 1000 * S)
    (due,) = shelf.take(one, 1010 * S, everything=False)
    assert due.session.session_id == session_id
    assert due.call_ids == (late.call_id,)
    assert len(due.session.calls) == 5
    assert len(shelf.sessions) == 1
    assert not len(one)


def test_open_branches_are_bounded_in_number_and_bytes_and_the_oldest_go_first():
    for options in ({"max_branches": 3}, {"max_bytes": 3 * 1600}):
        shelf = Shelf()
        one = stitcher(shelf, **options)
        made = [record([user(str(number) + "x" * 900)], said("y")[0]) for number in range(8)]
        for item in made:
            one.add(item, item.request, 0)
        shelf.take(one, everything=False)
        assert len(one) == 3
        assert set(shelf.sessions) == {item.call_id for item in made[:5]}


def held(one, made):
    """What the objects of open branches take beside what was there before, in bytes."""
    tracemalloc.start()
    try:
        while made:
            item = msgspec.msgpack.decode(msgspec.msgpack.encode(made.pop()), type=CallRecord)
            one.add(item, item.request, 0)
        del item
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_the_memory_that_is_counted_is_the_memory_that_is_taken():
    """Short messages weigh by what they are made of, and the token ids of every call of a session stay with it."""
    short = [record([user(f"{number} {row}") for row in range(100)], said("y")[0]) for number in range(20)]
    long = [record([user(f"{number} " + "x" * 20_000)], said("y")[0]) for number in range(20)]
    rows, tokens = [user("0")], []
    for number in range(10):
        answer, echo = said(f"a{number}")
        ids = tuple(range(1000, 3000 + 100 * number))
        engine = EngineTokens(prompt_ids=ids, completion_ids=ids[:50], logprobs=(-0.5,) * 50)
        tokens.append(record(rows, answer, tokens=engine))
        rows = [*rows, *echo, user(str(number))]
    for made in (short, long, tokens[::-1]):
        one = stitcher()
        taken = held(one, made)
        assert 0.6 * taken < one._bytes < 1.6 * taken


def test_a_call_is_read_once_however_long_its_session_is(monkeypatch):
    from firstchair.gateway import stitch

    count = 0
    real = stitch.message_key

    def counting(message):
        nonlocal count
        count += 1
        return real(message)

    monkeypatch.setattr(stitch, "message_key", counting)
    one = stitcher()
    rows = [user("0")]
    for number in range(30):
        answer, echo = said(f"a{number}")
        made = record(rows, answer)
        count = 0
        one.add(made, made.request, 0)
        assert count == len(rows) + 1
        rows = [*rows, *echo, user(str(number + 1))]
    assert len(one) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 14))
def test_every_action_is_one_decision_whatever_the_harness_does_and_whenever_it_is_written(seed, count):
    """A random harness goes on, rewrites, rolls back, starts anew; the recorder writes, forgets, dies and replays."""
    rng = random.Random(seed)
    shelf = Shelf()
    one = stitcher(shelf)
    histories, waiting = [[SYSTEM, user("go")]], []
    for number in range(count):
        rows = list(rng.choice(histories))
        if rng.random() < 0.2:
            rows = [SYSTEM, user(f"summary {number}"), *rows[-rng.randrange(1, 3) :]]
        elif rng.random() < 0.2:
            rows = rows[: rng.randrange(2, len(rows) + 1)]
        if rows[-1]["role"] == "assistant":
            rows.append(user(f"next {number}"))
        answer, echo = said(f"reply {number}")
        made = record(rows, answer, session=rng.choice(["", "", "named"]))
        histories.append([*rows, *echo])
        waiting.append(made)
        one.add(made, made.request, 0)
        event = rng.random()
        if event < 0.25:  # written and closed
            shelf.take(one, 10**12)
            waiting = []
        elif event < 0.4:  # killed between the store and its own marks: the store is ahead
            for item in one.due(0, everything=True):
                name = item.session.session_id
                shelf.sessions[name], shelf.tools[name] = item.session, item.tools
            one = replayed(shelf, waiting)
        elif event < 0.5:  # killed before anything was written
            one = replayed(shelf, waiting)
    shelf.take(one)
    found = [msgspec.structs.replace(session) for session in shelf.sessions.values()]
    actions = [point.observed.text for session in found for point in decision_points(session)]
    assert sorted(actions) == sorted(f"reply {number}" for number in range(count))
    assert sum(len(session.calls) for session in found) == count


def replayed(shelf, waiting):
    one = stitcher(shelf)
    one.replaying([item.call_id for item in waiting])
    for item in waiting:
        one.add(item, item.request, 0)
    return one
