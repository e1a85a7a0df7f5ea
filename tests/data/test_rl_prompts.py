import json
from collections import Counter

import msgspec
import pytest

from firstchair.chat.messages import ToolCall, assistant_message
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.data.corrections import correction_from, spec_of
from firstchair.data.prompt_source import EpochOrder, PromptSource
from firstchair.data.rl_prompts import fit_prompts, manifest_path, read_prompts, session_prompts, sft_prompts
from firstchair.data.rl_prompts import write_prompts as write
from firstchair.data.sft import sft_records
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.testing.tokenizers import make_renderer
from firstchair.traces.decisions import Accepted, decision_points

MATCHERS = {"remember": {"content": "fuzzy>=0.8"}, "find_trips": {"city": "casefold"}, "other": {"x": "ignore"}}


def prompts_of(*sessions, left_out=None):
    counts = Counter() if left_out is None else left_out
    return [
        record
        for session in sessions
        for record in session_prompts(session, decision_points(session), trip_tools(), MATCHERS, counts)
    ]


def test_every_decision_is_a_prompt_that_stops_before_it_with_the_matchers_of_its_gold():
    session = trip_session(1)
    records = prompts_of(session)
    assert [record.id for record in records] == [f"trip-1:{number}" for number in range(5)]
    assert [record.messages for record in records] == [session.messages[:end] for end in (2, 4, 6, 8, 10)]
    assert [sorted(record.matchers) for record in records] == [["find_trips"], [], [], ["remember"], []]
    assert records[3].gold.calls[0].name == "remember"
    assert records[0].meta == {"session_id": "trip-1", "task_id": 0, "verified": False, "tags": []}


def test_what_cannot_be_gold_is_left_out_and_counted():
    session = trip_session(1)
    messages = list(session.messages)
    cut = msgspec.structs.replace(messages[6], extra={"truncated": True})
    broken = msgspec.structs.replace(messages[4].tool_calls[0], arguments="{")
    messages[4] = msgspec.structs.replace(messages[4], tool_calls=(broken,))
    messages[6], messages[10] = cut, assistant_message(" ")
    left_out: Counter[str] = Counter()
    records = prompts_of(msgspec.structs.replace(session, messages=tuple(messages)), left_out=left_out)
    assert [record.id for record in records] == ["trip-1:0", "trip-1:3"]
    assert left_out == {
        "gold is no valid call": 1,
        "the recorded reply was cut by the token limit": 1,
        "gold is an empty reply": 1,
    }


def test_a_correction_is_gold_and_what_was_accepted_and_known_to_be_bad_comes_along():
    session = trip_session(1, mistake=True)
    points = list(decision_points(session))
    right = ToolCall.of("x", "remember", {"content": "likes it"})
    gold = msgspec.structs.replace(points[3].observed, calls=(right,))
    accepted = (Accepted(matchers={"content": "ignore"}),)
    points[3] = msgspec.structs.replace(points[3], gold=gold, known_bad=(points[3].observed,), accept=accepted)
    records = list(session_prompts(session, points, trip_tools(), {}, Counter()))
    assert records[3].gold == gold
    assert records[3].known_bad == (points[3].observed,)
    assert records[3].decision().accept == accepted


def test_of_sft_records_only_trained_messages_are_gold():
    session = trip_session(1, mistake=True)
    before = spec_of(decision_points(session)[3].observed)
    after = spec_of(decision_points(trip_session(1))[3].observed)
    row = {"dp_id": "trip-1:3", "dimension": "memory", "evidence": 7, "by": "ana", "why": "asked to remember"}
    row |= {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after)}
    (record,) = sft_records([session], lambda _: trip_tools(), corrections=[correction_from(row)])
    made = list(sft_prompts(record, MATCHERS, Counter()))
    assert [prompt.id for prompt in made] == ["trip-1:2", "trip-1:4", "trip-1:6", "trip-1:10"]
    assert made[1].messages == session.messages[:4]


def test_prompts_survive_the_file_and_share_their_tools(tmp_path):
    path, records = tmp_path / "p.jsonl", prompts_of(trip_session(1), trip_session(2))
    manifest = write(path, records, source="there", left_out=Counter(cut=2))
    found = read_prompts(path)
    assert found == records
    assert len({id(record.tools) for record in found}) == 1
    assert manifest.per_route == {"book": 2, "final_reply": 4, "find_trips": 2, "remember": 2}
    assert (manifest.prompts, manifest.left_out) == (10, {"cut": 2})
    first = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    fields = ["id", "messages", "tools", "gold", "accept", "known_bad", "matchers", "category", "meta"]
    assert list(first) == fields
    with pytest.raises(ConfigError, match="exists; pass --force"):
        write(path, records, source="there", left_out=Counter())
    write(path, records[:1], source="there", left_out=Counter(), force=True)
    assert len(read_prompts(path)) == 1


def test_changed_bytes_a_missing_manifest_and_a_broken_record_are_refused(tmp_path):
    path, records = tmp_path / "p.jsonl", prompts_of(trip_session(1))
    write(path, records, source="there", left_out=Counter())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"Ask", b"ask", 1))
    with pytest.raises(IntegrityError, match="not those of its manifest"):
        read_prompts(path)
    path.write_bytes(whole)
    manifest_path(path).unlink()
    with pytest.raises(IntegrityError, match="write them again"):
        read_prompts(path)
    with pytest.raises(DataError, match="'trip-1:0' comes twice"):
        write(tmp_path / "q.jsonl", records + records, source="there", left_out=Counter())
    with pytest.raises(DataError, match=r"every decision was left out \(2: cut\)"):
        write(tmp_path / "q.jsonl", [], source="there", left_out=Counter(cut=2))
    assert not (tmp_path / "q.jsonl").exists()


def test_a_prompt_that_does_not_fit_is_named_or_skipped_and_counted():
    renderer, records = make_renderer("tiny"), prompts_of(trip_session(1))
    lengths = [len(renderer.prompt_ids(record.messages, record.tools)) for record in records]
    kept, skipped = fit_prompts(records, renderer, max_tokens=lengths[1], over_long="skip")
    assert ([record.id for record in kept], skipped) == (
        ["trip-1:0", "trip-1:1"],
        ["trip-1:2", "trip-1:3", "trip-1:4"],
    )
    with pytest.raises(DataError, match=f"trip-1:2: the prompt has {lengths[2]} tokens, {lengths[1]} fit"):
        fit_prompts(records, renderer, max_tokens=lengths[1])
    with pytest.raises(DataError, match="none of 5 prompts fits 3 tokens"):
        fit_prompts(records, renderer, max_tokens=3, over_long="skip")


def test_each_epoch_has_every_prompt_once_in_an_order_of_its_own_whatever_a_step_takes():
    source = PromptSource(prompts_of(trip_session(1), trip_session(2)), seed=3)
    one_by_one = [source.take(place, 1)[0].id for place in range(30)]
    assert [source.take(0, 7), source.take(7, 11), source.take(18, 12)] == [
        source.take(0, 30)[:7],
        source.take(0, 30)[7:18],
        source.take(0, 30)[18:],
    ]
    assert [record.id for record in source.take(0, 30)] == one_by_one
    epochs = [tuple(one_by_one[start : start + 10]) for start in (0, 10, 20)]
    assert len(set(epochs)) == 3
    assert [len(set(epoch)) for epoch in epochs] == [10, 10, 10]
    assert source.epoch(15) == 1.5
    other = PromptSource(prompts_of(trip_session(1), trip_session(2)), seed=4)
    assert [record.id for record in other.take(0, 10)] != one_by_one[:10]


def test_a_run_resumes_on_the_next_unseen_prompt_and_never_on_other_data():
    records = prompts_of(trip_session(1), trip_session(2))
    source = PromptSource(records, seed=3)
    state = json.loads(json.dumps(source.state(7)))
    again = PromptSource(list(records), seed=3)
    assert again.take(again.resume(state), 5) == source.take(7, 5)
    for wrong, match in (
        (PromptSource(records[:-1], seed=3), "prompts: saved with"),
        (PromptSource(records[::-1], seed=3), "prompts: saved with"),
        (PromptSource(records, seed=4), "seed: saved with 3"),
    ):
        with pytest.raises(IntegrityError, match=match):
            wrong.resume(state)
    for cursor in (-1, True, 1.0, "7", None):
        with pytest.raises(IntegrityError, match="cursor: found"):
            source.resume({**state, "cursor": cursor})
    with pytest.raises(IntegrityError, match="expected a cursor"):
        source.resume({"cursor": 3})


def test_no_prompts_and_equal_ids_are_refused():
    records = prompts_of(trip_session(1))
    with pytest.raises(DataError, match="no prompt"):
        PromptSource([], seed=0)
    with pytest.raises(DataError, match="'trip-1:0' comes twice"):
        PromptSource([*records, records[0]], seed=0)


def test_the_order_is_the_same_for_rows_of_any_kind():
    order = EpochOrder(5, seed=0)
    assert sorted(order.row(place) for place in range(5, 10)) == [0, 1, 2, 3, 4]
    assert [order.row(place) for place in (9, 0, 9)] == [EpochOrder(5, 0).row(place) for place in (9, 0, 9)]
