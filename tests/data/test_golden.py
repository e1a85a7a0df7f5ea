import json
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstchair.chat.actions import Action, action_of
from firstchair.core.errors import ConfigError, DataError, IntegrityError
from firstchair.data.corrections import Correction, correction_from, spec_of
from firstchair.data.golden import BuildOptions, GoldenSet, build, correct
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.decisions import decision_points

OPTIONS = BuildOptions(name="trips", created_at="2026-02-03T00:00:00Z")


def tools(_catalog_id):
    return trip_tools()


def draft(tmp_path: Path, sessions=None, name="draft", **changes) -> Path:
    path = tmp_path / name
    sessions = sessions if sessions is not None else [trip_session(number) for number in range(3)]
    build(sessions, tools, path, BuildOptions(**{**OPTIONS.__dict__, **changes}))
    return path


def correction(**changes) -> Correction:
    mistaken = trip_session(1, mistake=True)
    right = trip_session(1)
    row = {
        "dp_id": "trip-1:3",
        "dimension": "memory",
        "before": msgspec.to_builtins(spec_of(action_of(mistaken.messages[8]))),
        "after": msgspec.to_builtins(spec_of(action_of(right.messages[8]))),
        "evidence": 7,
        "by": "ana",
        "why": "the user asked to remember",
    }
    return correction_from({**row, **changes})


def test_a_set_reads_back_as_the_sessions_it_was_built_from(tmp_path):
    sessions = [trip_session(number) for number in range(3)]
    golden = GoldenSet.load(draft(tmp_path, sessions), draft=True)
    assert list(golden.sessions.values()) == sessions
    assert golden.tools("trip-1") == trip_tools()
    points = [point for session in sessions for point in decision_points(session)]
    assert [msgspec.structs.replace(point, gold=None) for point in golden.decisions] == points
    assert all(decision.gold == decision.observed for decision in golden.decisions)
    assert golden.context(golden.decisions[1]) == sessions[0].messages[:4]
    assert golden.decisions[1].tags == ("recovery",)
    assert golden.manifest.counts.per_tool == {"book": 3, "final_reply": 6, "find_trips": 3, "remember": 3}


def test_the_record_shows_each_turn_for_people(tmp_path):
    path = draft(tmp_path, [trip_session(4)])
    row = json.loads((path / "sessions.jsonl").read_text(encoding="utf-8"))
    assert row["schema_version"] == "2.0"
    first = row["turns"][0]
    assert first["user_message"].startswith("Find me a trip")
    assert first["trace"]["route_sequence"] == ["find_trips", "book", "final_reply"]
    assert first["trace"]["tool_calls"][0]["result"] == {"text": "rate limit, try again", "is_error": True}
    point = first["decision_points"][0]
    assert point["dp_id"] == "trip-4:0"
    assert point["observed"]["tool"] == point["gold"]["tool"] == "find_trips"
    assert point["gold"]["input"] == point["observed"]["input"]
    assert first["decision_points"][2]["gold"]["tool"] is None


def test_equal_input_gives_equal_bytes(tmp_path):
    one, two = draft(tmp_path, name="one"), draft(tmp_path, name="two")
    for name in ("sessions.jsonl", "catalogs.jsonl", "manifest.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_line_separators_inside_text_do_not_cut_a_record(tmp_path):
    path = draft(tmp_path)
    assert "\u2028" in (path / "sessions.jsonl").read_text(encoding="utf-8")
    assert len(GoldenSet.load(path, draft=True).sessions) == 3


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_caught_and_the_file_is_named(tmp_path, data):
    path = tmp_path / "flip"
    if not path.exists():
        draft(tmp_path, name="flip")
    name = data.draw(st.sampled_from(["sessions.jsonl", "catalogs.jsonl", "manifest.json"]))
    good = (path / name).read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))
    (path / name).write_bytes(bytes(bad))
    try:
        with pytest.raises(IntegrityError, match=name.replace(".", r"\.")) as caught:
            GoldenSet.load(path, draft=True)
        assert caught.value.exit_code == 2
    finally:
        (path / name).write_bytes(good)


def test_a_missing_or_cut_file_is_named(tmp_path):
    path = draft(tmp_path)
    good = (path / "sessions.jsonl").read_bytes()
    (path / "sessions.jsonl").write_bytes(good[: len(good) // 2])
    with pytest.raises(IntegrityError, match=r"sessions\.jsonl"):
        GoldenSet.load(path, draft=True)
    (path / "sessions.jsonl").unlink()
    with pytest.raises(IntegrityError, match=r"sessions\.jsonl: this file of the set is missing"):
        GoldenSet.load(path, draft=True)
    with pytest.raises(DataError, match="no such golden set"):
        GoldenSet.load(tmp_path / "nowhere")


def test_a_set_of_another_version_is_named_as_such(tmp_path):
    path = draft(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["schema_version"] = "1.0"
    del manifest["counts"]["per_tool"], manifest["name"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json: schema_version: found version '1\.0'"):
        GoldenSet.load(path, draft=True)


def test_a_draft_is_not_a_scoreboard(tmp_path):
    with pytest.raises(ConfigError, match="golden freeze"):
        GoldenSet.load(draft(tmp_path))


def test_bad_sessions_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="'trip-1' comes twice"):
        draft(tmp_path, [trip_session(1), trip_session(1)])
    silent = msgspec.structs.replace(trip_session(2), messages=trip_session(2).messages[:2], turns=())
    with pytest.raises(DataError, match="'trip-2' has no assistant message"):
        draft(tmp_path, [silent])
    with pytest.raises(DataError, match="no session left"):
        draft(tmp_path, [])
    lost = msgspec.structs.replace(trip_session(2), catalog_id="0" * 64)
    with pytest.raises(DataError, match="'trip-2': the tools of catalog 000000000000"):
        draft(tmp_path, [lost])
    assert list(tmp_path.iterdir()) == []


def test_a_greeting_before_the_first_user_message_is_a_decision_too(tmp_path):
    session = trip_session(5)
    greeting = Action(kind="final_reply", text="Hello, how can I help?").to_message()
    opened = msgspec.structs.replace(session, messages=(greeting, *session.messages), turns=())
    golden = GoldenSet.load(draft(tmp_path, [opened]), draft=True)
    assert golden.decisions[0].turn == -1
    assert golden.decisions[0].gold == action_of(greeting)
    assert golden.sessions["trip-5"].messages == opened.messages


def test_near_duplicates_can_be_left_out_and_are_listed(tmp_path):
    twin = msgspec.structs.replace(trip_session(1), session_id="twin")
    path = draft(tmp_path, [trip_session(1), trip_session(2), twin], dedup=0.6)
    manifest = GoldenSet.load(path, draft=True).manifest
    assert manifest.counts.sessions == 2
    assert manifest.dedup["dropped"][0]["right"] == "twin"
    assert manifest.dedup["dropped"][0]["similarity"] == 1.0


def test_a_correction_changes_its_decision_and_nothing_else(tmp_path):
    path = draft(tmp_path, [trip_session(0), trip_session(1, mistake=True)])
    before = GoldenSet.load(path, draft=True)
    after = correct(path, [correction()])
    assert GoldenSet.load(path, draft=True) == after
    changed = {decision.dp_id: decision for decision in after.decisions}
    fixed = changed.pop("trip-1:3")
    assert fixed.gold.calls[0].name == "remember"
    assert fixed.verified
    assert fixed.known_bad == (fixed.observed,)
    assert fixed.observed.calls[0].name == "find_trips"
    assert after.sessions == before.sessions
    assert all(changed[decision.dp_id] == decision for decision in before.decisions if decision.dp_id in changed)
    assert after.manifest.corrections == (correction(),)
    assert after.manifest.set_sha256 != before.manifest.set_sha256


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"dp_id": "trip-1:99"}, "dp_id", "trip-1:99"),
        ({"before": {"tool": None, "text": "Done."}}, "before", "what stands there is find_trips"),
        ({"before": {"tool": "find_trips", "input": {"city": "?"}}}, "before", "trip-1:3"),
        ({"evidence": 9}, "evidence", "message 9 is not at or before the decision's own message 8"),
        ({"evidence": -1}, "evidence", "trip-1:3"),
        ({"by": " "}, "by", "trip-1:3"),
        ({"why": ""}, "why", "trip-1:3"),
        ({"dimension": "confirmed"}, "dimension", "confirmed"),
        ({"dimension": "failed stop"}, "dimension", "does not describe"),
        ({"dimension": "arguments"}, "dimension", "does not describe"),
        ({"after": None}, "dimension", "confirmed"),
    ],
)
def test_a_correction_that_does_not_fit_is_refused_with_field_and_dp_id(tmp_path, changes, field, reason):
    path = draft(tmp_path, [trip_session(1, mistake=True)])
    good = (path / "manifest.json").read_bytes()
    if changes.get("after", ...) is None:
        changes = {"after": msgspec.to_builtins(correction().before)}
    with pytest.raises(DataError, match=reason) as caught:
        correct(path, [correction(), correction(**changes)] if field == "dp_id" else [correction(**changes)])
    assert caught.value.field == field
    assert (path / "manifest.json").read_bytes() == good


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dimension": "wrong"}, "dimension: found 'wrong'; expected one of misroute, "),
        ({"evidence": "7"}, r"evidence: Expected `int`, got `str` \(dp_id 'trip-1:3'\)"),
        ({"evidence": True}, "evidence: "),
        ({"reviewer": "x"}, "reviewer"),
        ({"before": {"tool": "a", "arguments": {}}}, "before"),
    ],
)
def test_a_row_that_is_no_correction_is_refused_with_its_field(changes, reason):
    with pytest.raises(DataError, match=reason):
        correction(**changes)


def test_corrections_of_other_sessions_are_refused_or_passed_over_as_told(tmp_path):
    path = draft(tmp_path, [trip_session(1, mistake=True)])
    other = correction(dp_id="trip-9:3")
    with pytest.raises(DataError, match=r"'trip-9', which is not in the draft.*--ignore-other-sessions"):
        correct(path, [correction(), other])
    passed_over = []
    after = correct(path, [other, correction()], passed_over=passed_over)
    assert passed_over == [other]
    assert after.manifest.corrections == (correction(),)
    with pytest.raises(DataError, match=r"1 of 1 corrections; check that file and draft belong together"):
        correct(path, [other], passed_over=[])
    with pytest.raises(DataError, match="trip-1:99"):
        correct(path, [correction(dp_id="trip-1:99")], passed_over=[])


def test_a_second_correction_of_a_decision_starts_from_the_first(tmp_path):
    path = draft(tmp_path, [trip_session(1, mistake=True)])
    first = correction()
    again = correction(
        dimension="arguments",
        before=msgspec.to_builtins(first.after),
        after={"tool": "remember", "input": {"content": "short"}},
    )
    with pytest.raises(DataError, match="before"):
        correct(path, [again])
    correct(path, [first])
    fixed = {decision.dp_id: decision for decision in correct(path, [again]).decisions}["trip-1:3"]
    assert fixed.gold.calls[0].parsed() == {"content": "short"}
    assert fixed.known_bad == (fixed.observed,)
    back = correction(before=msgspec.to_builtins(again.after), after=msgspec.to_builtins(first.before))
    with pytest.raises(DataError, match=r"after: .*known mistake"):
        correct(path, [back])


def test_without_gold_a_confirmation_gives_it(tmp_path):
    path = draft(tmp_path, [trip_session(1)], gold="none")
    stands = msgspec.to_builtins(spec_of(decision_points(trip_session(1))[3].observed))
    golden = correct(path, [correction(dimension="confirmed", before=stands, after=stands)])
    given = {decision.dp_id: decision for decision in golden.decisions}
    assert given["trip-1:3"].gold == given["trip-1:3"].observed
    assert given["trip-1:3"].verified
    assert given["trip-1:3"].known_bad == ()
    assert given["trip-1:2"].gold is None
    assert golden.manifest.counts.per_tool == {"(no gold)": 4, "remember": 1}


@given(st.lists(st.sampled_from(["a", "\u2028", "é", '"', "\\", "\x00", "😀"]), max_size=6))
def test_a_short_action_form_survives_the_round_trip(parts):
    call = trip_session(1).messages[2].tool_calls[0]
    odd = msgspec.structs.replace(call, arguments="".join(parts))
    for action in (Action(kind="tool_call", calls=(odd,)), Action(kind="tool_call", calls=(call, odd))):
        assert spec_of(action).action().calls[-1].arguments == odd.arguments


def test_what_was_handed_over_at_the_start_is_context_and_not_decided_here(tmp_path):
    session = msgspec.structs.replace(trip_session(1), context_end=7)
    assert [point.context_end for point in decision_points(session)] == [8, 10]
    golden = GoldenSet.load(draft(tmp_path, [session]), draft=True)
    assert golden.sessions["trip-1"] == session
    assert [decision.dp_id for decision in golden.decisions] == ["trip-1:0", "trip-1:1"]


def test_of_two_reviewers_at_once_neither_is_lost(tmp_path):
    path = draft(tmp_path, [trip_session(0), trip_session(1, mistake=True)])
    by_id = {decision.dp_id: decision for decision in GoldenSet.load(path, draft=True).decisions}
    kept = msgspec.to_builtins(spec_of(by_id["trip-0:3"].observed))
    other = correction(dp_id="trip-0:3", dimension="confirmed", before=kept, after=kept)
    second = threading.Thread(target=correct, args=(path, [other]))

    class Slow(list[Correction]):
        """Corrections that the other reviewer overtakes, if anything lets them."""

        def __iter__(self):
            if second.ident is None:
                second.start()
                second.join(0.3)
            return super().__iter__()

    correct(path, Slow([correction()]))
    second.join()
    applied = GoldenSet.load(path, draft=True).manifest.corrections
    assert {row.dp_id for row in applied} == {"trip-0:3", "trip-1:3"}
