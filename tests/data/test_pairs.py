import json
from collections import Counter

import msgspec
import pytest

from firstchair.chat.actions import action_of
from firstchair.chat.messages import ToolCall, assistant_message, text_message, tool_result
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.core.jsonl import write_jsonl
from firstchair.data.corrections import spec_of
from firstchair.data.pair_building import (
    PairInputs,
    build_pairs,
    contrast_pairs,
    draw,
    first_parting,
    group_pairs,
    hold_out,
)
from firstchair.data.pairs import manifest_path, pair_from_row, read_pairs, write_pairs
from firstchair.data.sft import SftRecord, write_sft
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.session import Session, catalog_id_of
from firstchair.traces.session_file import write_sessions

TOOLS = trip_tools()
CATALOG = catalog_id_of(TOOLS)


def rollout(name, *actions, group=0, reward=0.0, observation="ok", **fields):
    """A rollout of these actions: a call of ``find_trips`` for each city, a reply for a text that ends in a dot."""
    messages = [text_message("system", "You book trips."), text_message("user", "Find me a trip.")]
    for number, said in enumerate(actions):
        if isinstance(said, str) and said.endswith("."):
            messages.append(assistant_message(said))
            continue
        message = said
        if isinstance(said, str):
            call = ToolCall.of(f"{name}_{number}", "find_trips", {"city": said})
            message = assistant_message("", calls=(call,))
        messages += [message, *(tool_result(call, observation) for call in message.tool_calls)]
    labels = {"group": group, "reward": reward, "task_id": f"task-{group}", **fields.pop("labels", {})}
    return Session(
        session_id=name, source="rollout", catalog_id=CATALOG, messages=tuple(messages), labels=labels, **fields
    )


def of_groups(*sessions, margin=0.0):
    left_out = Counter()
    return list(group_pairs(sessions, {CATALOG: TOOLS}.__getitem__, margin=margin, left_out=left_out)), left_out


def city(message):
    return message.tool_calls[0].parsed()["city"]


def test_best_and_worst_of_a_group_part_at_the_first_action_that_differs():
    middle = rollout("b", "Rome", "Oslo", "Done.", reward=0.5)
    pairs, left_out = of_groups(
        rollout("a", "Rome", "Lima", "Done.", reward=1.0), middle, rollout("c", "Rome", "Bern", "Sorry.", reward=0.0)
    )
    (pair,) = pairs
    assert (city(pair.chosen), city(pair.rejected)) == ("Lima", "Bern")
    assert [message.role for message in pair.messages] == ["system", "user", "assistant", "tool"]
    assert pair.tools == TOOLS
    assert pair.meta == {"session_ids": ["a", "c"], "task_id": "task-0", "group": 0, "rewards": [1.0, 0.0]}
    assert not left_out


def test_call_ids_and_the_spelling_of_arguments_are_no_difference():
    spaced = ToolCall(id="x", name="find_trips", arguments='{ "city":"Rome" }')
    best = rollout("a", assistant_message("", calls=(spaced,)), "Done.", reward=1.0)
    (pair,), _ = of_groups(best, rollout("b", "Rome", "Sorry.", reward=0.0))
    assert (pair.chosen.text, pair.rejected.text) == ("Done.", "Sorry.")
    assert pair.messages == best.messages[:4]


CUT = msgspec.structs.replace(assistant_message("Do"), extra={"truncated": True})
BROKEN = assistant_message("", calls=(ToolCall(id="x", name="find_trips", arguments="{"),))
UNKNOWN = assistant_message("", calls=(ToolCall.of("x", "fly", {}),))
LOUD = assistant_message("Let me see.", calls=(ToolCall.of("x", "find_trips", {"city": "Rome"}),))


@pytest.mark.parametrize(
    ("best", "worst", "reason"),
    [
        (rollout("a", "Rome", "Done.", reward=0.5), rollout("b", "Lima", "No.", reward=0.5), "group: rewards tie"),
        (
            rollout("a", "Rome", "Done.", reward=0.3),
            rollout("b", "Lima", "No.", reward=0.1),
            "group: rewards nearer than the margin",
        ),
        (
            rollout("a", "Rome", reward=1.0),
            rollout("b", "Rome", "Done.", reward=0.0),
            "group: one is the beginning of the other",
        ),
        (
            rollout("a", "Rome", "Done.", reward=1.0, observation="5 trips"),
            rollout("b", "Rome", "No.", reward=0.0),
            "group: their prompts or observations differ before their actions do",
        ),
        (
            rollout("a", "Done.", reward=1.0, context_end=3),
            rollout("b", "No.", reward=0.0, context_end=3),
            "group: their prompts or observations differ before their actions do",
        ),
        (
            rollout("a", "Rome", "Done.", reward=1.0),
            rollout("b", LOUD, "No.", reward=0.0),
            "group: they part in the words beside equal calls",
        ),
        (
            rollout("a", "Done.", reward=1.0),
            rollout("b", CUT, reward=0.0),
            "group: a side was cut, refused or unreadable",
        ),
        (
            rollout("a", "Done.", reward=1.0),
            rollout("b", BROKEN, reward=0.0),
            "group: a side was cut, refused or unreadable",
        ),
        (
            rollout("a", "Done.", reward=1.0),
            rollout("b", "<tool_call>{.", reward=0.0, meta={"malformed": [{"message_index": 2}]}),
            "group: a side was cut, refused or unreadable",
        ),
        (
            rollout("a", "Done.", reward=1.0),
            rollout("b", assistant_message(" "), reward=0.0),
            "group: a side is empty",
        ),
        (
            rollout("a", UNKNOWN, reward=1.0),
            rollout("b", "No.", reward=0.0),
            "group: the chosen action is no valid call",
        ),
        (
            rollout("a", "Done.", reward=1.0),
            msgspec.structs.replace(rollout("b", "No.", reward=0.0), catalog_id=""),
            "group: other tools were on offer",
        ),
    ],
)
def test_a_group_that_gives_no_pair_is_counted_with_its_reason(best, worst, reason):
    pairs, left_out = of_groups(best, worst, margin=0.25)
    assert pairs == []
    assert left_out == {reason: 1}


def test_rollouts_without_a_grade_or_a_group_are_left_out_and_never_the_worst():
    ungraded = rollout("c", "Bern", reward=None)
    alone = rollout("d", "Bern", group=1, reward=1.0)
    free = msgspec.structs.replace(rollout("e", "Bern"), labels={"reward": 0.0})
    best, worst = rollout("a", "Done.", reward=-1.0), rollout("b", "No.", reward=-2.0)
    (pair,), left_out = of_groups(ungraded, best, alone, worst, free)
    assert pair.meta["session_ids"] == ["a", "b"]
    assert left_out == {
        "rollout: not graded": 1,
        "group: fewer than two graded rollouts": 1,
        "rollout: no label group": 1,
    }


def test_of_several_worst_ones_the_first_that_gives_a_pair_is_taken():
    broken, readable = rollout("b", BROKEN, reward=0.0), rollout("c", "No.", reward=0.0)
    (pair,), left_out = of_groups(rollout("a", "Done.", reward=1.0), broken, readable)
    assert pair.meta["session_ids"] == ["a", "c"]
    assert not left_out


def test_groups_of_different_batches_are_different_groups():
    first = rollout("a", "Done.", reward=1.0, labels={"batch": 0})
    second = rollout("b", "No.", reward=0.0, labels={"batch": 8})
    pairs, left_out = of_groups(first, second)
    assert (pairs, left_out) == ([], {"group: fewer than two graded rollouts": 2})


@pytest.mark.parametrize("reward", [True, "1", [1]])
def test_a_reward_that_is_no_number_is_an_error(reward):
    with pytest.raises(DataError, match=r"labels.reward: session 'a': found .*; expected a number, or null"):
        of_groups(rollout("a", "Done.", reward=reward))


def test_conversations_that_begin_apart_have_no_common_prompt():
    other = (text_message("system", "You sell trips."), *rollout("b", "No.").messages[1:])
    assert first_parting(rollout("a", "Done.").messages, other) == (
        "their prompts or observations differ before their actions do"
    )


# Corrected mistakes, with the real commands' readers.


@pytest.fixture
def export(tmp_path):
    write_sessions(tmp_path / "export", [trip_session(n, mistake=n == 4) for n in range(3, 6)], {CATALOG: TOOLS})
    return tmp_path / "export"


def corrections_of(tmp_path, **changes):
    before, after = (action_of(trip_session(4, mistake=wrong).messages[8]) for wrong in (True, False))
    specs = {"before": msgspec.to_builtins(spec_of(before)), "after": msgspec.to_builtins(spec_of(after))}
    row = {"dp_id": "trip-4:3", "dimension": "memory", "evidence": 7, "by": "ana", "why": "asked", **specs, **changes}
    write_jsonl(tmp_path / "corrections.jsonl", [row], force=True)
    return tmp_path / "corrections.jsonl"


def test_a_corrected_mistake_is_a_pair_at_its_decision(export, tmp_path):
    pairs, left_out = build_pairs(PairInputs(corrected=str(export), corrections=corrections_of(tmp_path)))
    (pair,) = pairs
    assert (pair.id, pair.source) == ("trip-4:3", "corrected")
    assert pair.messages == trip_session(4).messages[:8]
    assert [side.tool_calls[0].name for side in (pair.chosen, pair.rejected)] == ["remember", "find_trips"]
    assert pair.meta == {"session_ids": ["trip-4"], "task_id": 2}
    assert not left_out


def test_gold_that_could_not_be_called_is_left_out(export, tmp_path):
    path = corrections_of(tmp_path, after={"tool": "remember", "input": {}})
    assert build_pairs(PairInputs(corrected=str(export), corrections=path)) == (
        [],
        {"corrected mistake: the chosen action is no valid call": 1},
    )


def test_words_that_the_reviewer_did_not_write_are_taken_off_the_mistake(tmp_path):
    session = trip_session(4, mistake=True)
    messages = list(session.messages)
    messages[8] = assistant_message("I will look.", thinking="Hm.", calls=messages[8].tool_calls)
    write_sessions(
        tmp_path / "export", [msgspec.structs.replace(session, messages=tuple(messages))], {CATALOG: TOOLS}
    )
    before = {"tool": "find_trips", "input": session.messages[8].tool_calls[0].parsed()}
    path = corrections_of(tmp_path, before=before)
    (pair,), _ = build_pairs(PairInputs(corrected=str(tmp_path / "export"), corrections=path))
    assert (pair.rejected.text, pair.rejected.thinking, city(pair.rejected)) == ("", "", before["input"]["city"])


# Contrastive waves.


def record(name, answer, *, pair="w1", side="chosen", request="Find me a trip.", loss=True):
    messages = (text_message("user", request), answer)
    meta = {"contrast": {"pair": pair, "side": side}} if pair else {}
    return SftRecord(id=name, messages=messages, loss=(False, loss), tools=TOOLS, meta=meta)


FIND = assistant_message("", calls=(ToolCall.of("x", "find_trips", {"city": "Rome"}),))
NOTE = assistant_message("", calls=(ToolCall.of("x", "remember", {"content": "Rome"}),))


def test_two_answers_to_one_prompt_are_a_pair_and_two_requests_are_none():
    left_out = Counter()
    records = [
        record("b", NOTE, side="rejected", loss=False),
        record("a", FIND),
        record("c", FIND, pair="w2"),
        record("d", NOTE, pair="w2", side="rejected", request="Note a trip."),
        record("e", FIND, pair="w3"),
        record("f", FIND, pair=""),
        record("g", FIND, pair="w4", loss=False),
        record("h", NOTE, pair="w4", side="rejected"),
    ]
    (pair,) = contrast_pairs(records, left_out)
    assert (pair.id, pair.chosen, pair.rejected) == ("contrast:w1", FIND, NOTE)
    assert pair.meta == {"session_ids": ["a", "b"]}
    assert left_out == {
        "contrast: their prompts or observations differ before their actions do": 1,
        "contrast: only the chosen side": 1,
        "contrast: the chosen answer is out of its record's loss": 1,
        "record: no meta.contrast": 1,
    }


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("w1", "record 'a': Expected `object`"),
        ({"pair": "w1", "side": "better"}, "record 'a': found 'better'; expected chosen or rejected"),
        ({"pair": "w1", "side": "chosen", "by": "ana"}, "unknown field `by`"),
    ],
)
def test_a_malformed_mark_is_an_error_with_its_file(tmp_path, meta, message):
    path = tmp_path / "wave.jsonl"
    write_sft(path, [msgspec.structs.replace(record("a", FIND), meta={"contrast": meta})])
    with pytest.raises(DataError, match=rf"wave\.jsonl: meta\.contrast.*{message}"):
        build_pairs(PairInputs(contrast=(path,)))


def test_one_side_twice_is_an_error():
    with pytest.raises(DataError, match="records 'a' and 'b' are both the chosen side of 'w1'"):
        list(contrast_pairs([record("a", FIND), record("b", NOTE)], Counter()))


# Drawing, holding out, the file.


def many(count, *, tasks):
    sessions = [
        rollout(f"{side}{n}", "Done." if side == "a" else "No.", group=n, reward=float(side == "a"),
                labels={"task_id": n % tasks})
        for n in range(count) for side in "ab"
    ]  # fmt: skip
    return of_groups(*sessions)[0]


def test_pairs_are_drawn_by_the_seed_and_one_that_comes_again_is_left_out():
    pairs, left_out = many(20, tasks=20), Counter()
    drawn = [draw(pairs + pairs[:3], limit=5, seed=seed, left_out=left_out) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [pair for pair in pairs if pair in drawn[0]] == drawn[0]
    assert left_out == {"pair: comes twice": 9, "pair: not drawn": 45}


def test_no_session_and_no_task_is_on_both_sides():
    pairs = many(40, tasks=10)
    # The two of one session of different tasks hang together too.
    pairs[0] = msgspec.structs.replace(pairs[0], meta={**pairs[0].meta, "session_ids": ["a1", "b0"]})
    train, dev = hold_out(pairs, fraction=0.3, seed=0)
    assert sorted(pair.id for pair in train + dev) == sorted(pair.id for pair in pairs)
    assert 8 <= len(dev) <= 16

    def keys(some, name):
        return {str(value) for pair in some for value in [pair.meta[name]]}

    assert not keys(train, "task_id") & keys(dev, "task_id")
    assert (pairs[0] in dev) == (pairs[1] in dev)
    assert hold_out(pairs, fraction=0.3, seed=0) == (train, dev)
    with pytest.raises(ConfigError, match="would be empty"):
        hold_out(many(4, tasks=1), fraction=0.3, seed=0)


def written(tmp_path, pairs, **options):
    path = tmp_path / "pairs.jsonl"
    return path, write_pairs(path, pairs, made_from=["here"], left_out={"x": 2}, settings={"seed": 0}, **options)


def test_pairs_survive_the_file(tmp_path):
    pairs = many(3, tasks=3) + list(
        contrast_pairs([record("a", FIND), record("b", NOTE, side="rejected")], Counter())
    )
    path, manifest = written(tmp_path, pairs)
    assert list(read_pairs(path)) == pairs
    assert (manifest.pairs, manifest.per_source) == (4, {"contrast": 1, "groups": 3})
    assert manifest.per_route == {"final_reply": 3, "find_trips": 1}
    assert manifest.left_out == {"x": 2}
    with pytest.raises(ConfigError, match="exists; pass --force"):
        written(tmp_path, pairs)
    written(tmp_path, pairs[:1], force=True)
    assert len(list(read_pairs(path))) == 1


def test_changed_bytes_are_refused_and_a_file_of_ones_own_needs_no_manifest(tmp_path):
    pairs = many(2, tasks=2)
    path, _ = written(tmp_path, pairs)
    path.write_bytes(path.read_bytes().replace(b"Find", b"find", 1))
    with pytest.raises(IntegrityError, match="not those of its manifest"):
        list(read_pairs(path))
    manifest_path(path).unlink()
    assert len(list(read_pairs(path))) == 2
    with pytest.raises(DataError, match=r"here: no pair in it; left out: 2: x"):
        written(tmp_path, [], force=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rejected": [{"role": "assistant", "content": "Done."}]}, r":1: rejected: both sides are reply 'Done.'"),
        ({"chosen": [{"role": "assistant", "content": ""}]}, r":1: chosen: empty"),
        ({"chosen": []}, r":1: chosen: found 0 messages; expected a list of one assistant message"),
        ({"chosen": None}, r":1: chosen: found NoneType"),
        (
            {"chosen": [{"role": "user", "content": "Done."}]},
            r":1: chosen: found user; expected one assistant message",
        ),
        ({"chosen": [{"role": "assistant", "content": [{"type": "x"}]}]}, r":1: chosen\[0\]\.content\[0\]"),
        ({"messages": []}, r":1: messages: found no list of messages"),
        ({"source": "guess"}, r":1: source: found 'guess'; expected one of corrected, groups, contrast"),
        ({"prompt": "hi"}, r":1: prompt: unknown field"),
        ({"meta": []}, r":1: meta: found list; expected dict"),
    ],
)
def test_a_bad_record_is_named_with_its_line_and_field(tmp_path, changes, message):
    path, row = tmp_path / "own.jsonl", many(1, tasks=1)[0].to_row()
    write_jsonl(path, [{**row, **changes}])
    with pytest.raises(DataError, match=rf"own\.jsonl{message}"):
        list(read_pairs(path))


def test_the_forms_of_other_trainers_are_read():
    call = {"id": "x", "type": "function", "function": {"name": "find_trips", "arguments": '{"city": "Rome"}'}}
    row = {
        "source": "contrast",
        "messages": [{"role": "user", "content": "Find me a trip."}],
        "chosen": [{"role": "assistant", "content": None, "tool_calls": [call]}],
        "rejected": [{"role": "assistant", "content": "No."}],
    }
    pair = pair_from_row(json.loads(json.dumps(row)), default_id="own:1")
    assert (pair.id, city(pair.chosen), pair.rejected.text) == ("own:1", "Rome", "No.")


def test_without_a_source_nothing_is_built(tmp_path):
    with pytest.raises(ConfigError, match="give --corrected, --groups or --contrast"):
        build_pairs(PairInputs())
    with pytest.raises(ConfigError, match="give that too"):
        build_pairs(PairInputs(corrections=tmp_path, groups=("x",)))
