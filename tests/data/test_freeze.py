import errno
import json
from pathlib import Path

import msgspec
import pytest

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.core.errors import ConfigError, DataError, IntegrityError, RunFailed
from firstchair.core.hashing import sha256_file
from firstchair.data.alternatives import alternative_from
from firstchair.data.corrections import correction_from, spec_of
from firstchair.data.golden import (
    BuildOptions,
    FreezeOptions,
    GoldenSet,
    TrainingData,
    accept,
    build,
    correct,
    freeze,
    verify,
)
from firstchair.data.golden.manifest import CATALOGS, MANIFEST, SESSIONS, read_manifest, render
from firstchair.data.similarity import text_shingles
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.decisions import decision_points

CREATED = "2026-02-03T00:00:00Z"


def tools(_catalog_id):
    return trip_tools()


def catalog(**changes) -> Catalog:
    raw = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True, **changes})
    first = raw.tools[0].model_copy(update={"matchers": {"city": "casefold"}, "read_only": True})
    note = raw.tools[2].model_copy(update={"kind": "convention"})
    return raw.model_copy(update={"tools": (first, raw.tools[1], note)})


def options(**changes) -> FreezeOptions:
    return FreezeOptions(**{"catalog": catalog(), "scorer": score, "created_at": CREATED, **changes})


def draft(tmp_path: Path, sessions=None, name="draft", **changes) -> Path:
    path = tmp_path / name
    sessions = sessions if sessions is not None else [trip_session(number) for number in range(3)]
    build(sessions, tools, path, BuildOptions(**{"name": "trips", "created_at": CREATED, **changes}))
    return path


def broken_session(arguments: str, name: str = "book"):
    session = trip_session(1)
    call = session.messages[4].tool_calls[0]
    messages = list(session.messages)
    messages[4] = msgspec.structs.replace(
        messages[4], tool_calls=(ToolCall(id=call.id, name=name, arguments=arguments),)
    )
    return msgspec.structs.replace(session, messages=tuple(messages))


def test_a_frozen_set_loads_and_carries_what_scoring_needs(tmp_path):
    golden = freeze(draft(tmp_path), tmp_path / "golden", options())
    assert GoldenSet.load(tmp_path / "golden") == golden
    assert golden.manifest.status == "frozen"
    assert golden.matchers == {"find_trips": {"city": "casefold"}}
    assert golden.kinds == {"find_trips": "universal", "book": "universal", "remember": "convention"}
    assert golden.rules.read_only == {"find_trips"}
    assert '"extra_read_only"' not in (tmp_path / "golden" / CATALOGS).read_text()
    assert golden.manifest.catalog["verified"] is True
    assert golden.manifest.dedup == {"threshold": 0.6, "compared": 3, "pairs": 0}
    assert golden.manifest.leakage == {}
    assert sorted(path.name for path in (tmp_path / "golden").iterdir()) == [
        "catalogs.jsonl",
        "manifest.json",
        "sessions.jsonl",
    ]


def test_freezing_twice_gives_equal_bytes(tmp_path):
    path = draft(tmp_path)
    one, two = (freeze(path, tmp_path / name, options()) for name in ("one", "two"))
    assert one.set_sha256 == two.set_sha256
    for name in one.manifest.files | {MANIFEST: ""}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_hash_covers_the_matchers(tmp_path):
    path = draft(tmp_path)
    loose = catalog()
    tool = loose.tools[0].model_copy(update={"matchers": {"city": "ignore"}})
    other = options(catalog=loose.model_copy(update={"tools": (tool, *loose.tools[1:])}))
    assert freeze(path, tmp_path / "one", options()).set_sha256 != freeze(path, tmp_path / "two", other).set_sha256


def test_what_would_make_scores_lie_is_refused_and_nothing_is_written(tmp_path):
    path, out = draft(tmp_path), tmp_path / "golden"
    with pytest.raises(ConfigError, match="'trips' is not verified"):
        freeze(path, out, options(catalog=catalog(verified=False)))
    small = catalog().model_copy(update={"tools": catalog().tools[:2]})
    with pytest.raises(DataError, match="tool 'remember' was on offer but is not in catalog"):
        freeze(path, out, options(catalog=small))
    with pytest.raises(DataError, match=r"gold is missing or cannot stand \(15\):\n  trip-0:0: no gold"):
        freeze(draft(tmp_path, name="bare", gold="none"), out, options())
    twin = msgspec.structs.replace(trip_session(1), session_id="twin")
    with pytest.raises(DataError, match=r"near-duplicates.*\n  trip-1 and twin: similarity 1.00"):
        freeze(draft(tmp_path, [trip_session(1), trip_session(2), twin], name="twins"), out, options())
    assert not out.exists()
    freeze(path, out, options())
    with pytest.raises(ConfigError, match="exists; a frozen set is never replaced"):
        freeze(path, out, options())


@pytest.mark.parametrize(
    ("arguments", "name", "reason"),
    [
        ('{"trip_id": ', "book", "the arguments of book are not"),
        ('{"trip_id": "T1"}', "book", "book .*'people' is a required property"),
        ('{"trip_id": "T1", "people": "two"}', "book", r"book \$\.people: "),
        ("{}", "teleport", "'teleport' was not on offer"),
    ],
)
def test_gold_that_the_tool_would_refuse_cannot_be_frozen(tmp_path, arguments, name, reason):
    session = broken_session(arguments, name)
    with pytest.raises(DataError, match=f"trip-1:1: {reason}"):
        freeze(draft(tmp_path, [session, trip_session(2)]), tmp_path / "golden", options())
    kept = draft(tmp_path, [session, trip_session(2)], name="kept", drop_invalid=True)
    golden = freeze(kept, tmp_path / "golden", options())
    assert list(golden.sessions) == ["trip-2"]
    assert golden.manifest.gold_policy["dropped_invalid"][0]["session_id"] == "trip-1"
    with pytest.raises(DataError, match=r"every session has an action that cannot be gold, e.g. trip-1"):
        draft(tmp_path, [session], name="none", drop_invalid=True)


def test_a_corrected_mistake_can_be_frozen(tmp_path):
    session = broken_session("{}", "teleport")
    path = draft(tmp_path, [session])
    row = {
        "dp_id": "trip-1:1",
        "dimension": "misroute",
        "before": {"tool": "teleport"},
        "after": msgspec.to_builtins(spec_of(decision_points(trip_session(1))[1].observed)),
        "evidence": 1,
        "by": "ana",
        "why": "no such tool",
    }
    correct(path, [correction_from(row)])
    golden = freeze(path, tmp_path / "golden", options())
    assert golden.decisions[1].gold.calls[0].name == "book"
    assert golden.decisions[1].known_bad[0].calls[0].name == "teleport"
    found, checks = verify(tmp_path / "golden", score)
    assert found == golden
    assert all(not check.problems for check in checks)
    with pytest.raises(DataError, match="frozen and stays as it is"):
        correct(tmp_path / "golden", [])


def test_overlap_with_training_data_is_refused_and_a_clean_comparison_recorded(tmp_path):
    path = draft(tmp_path)
    clean = TrainingData("clean.jsonl", [(f"trip-{n}", text_shingles(trip_session(n))) for n in range(50, 55)])
    leaky = TrainingData("leaky.jsonl", [("copy", text_shingles(trip_session(2)))])
    with pytest.raises(DataError, match=r"leak from leaky.jsonl.*\n  copy and trip-2: similarity 1.00"):
        freeze(path, tmp_path / "golden", options(against=[clean, leaky]))
    golden = freeze(path, tmp_path / "golden", options(against=[clean]))
    assert golden.manifest.leakage == {
        "threshold": 0.6,
        "against": [{"name": "clean.jsonl", "sessions": 5, "pairs": 0}],
    }


def test_gold_that_fails_against_itself_is_refused(tmp_path):
    class Failing:
        strict = "pass"
        lenient = "wrong_args"

    with pytest.raises(DataError, match=r"gold does not pass against itself \(15\):\n  trip-0:0: find_trips"):
        freeze(draft(tmp_path), tmp_path / "golden", options(scorer=lambda *_: Failing()))


def alternative(**changes):
    row = {
        "dp_id": "trip-1:0",
        "action": {"tool": "remember", "input": {"content": "x"}},
        "by": "ana",
        "why": "as good",
    }
    return alternative_from({**row, **changes})


def test_a_decision_may_have_several_right_answers(tmp_path):
    path = draft(tmp_path, [trip_session(1)])
    loose = alternative(action=None, matchers={"city": "ignore"})
    accept(path, [alternative(), loose])
    golden = freeze(path, tmp_path / "golden", options())
    first = golden.decisions[0]
    assert [option.matchers for option in first.accept] == [{}, {"city": "ignore"}]
    assert golden.manifest.alternatives == (alternative(), loose)
    other = Action(kind="tool_call", calls=(ToolCall.of("x", "find_trips", {"city": "elsewhere"}),))
    assert score(first, first.accept[0].action, golden.matchers, golden.tools("trip-1")).lenient == "pass"
    assert score(first, other, golden.matchers, golden.tools("trip-1")).lenient == "pass"
    assert all(not check.problems for check in verify(tmp_path / "golden", score)[1])
    with pytest.raises(DataError, match="frozen and stays as it is"):
        accept(tmp_path / "golden", [alternative()])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dp_id": "trip-1:9"}, "dp_id: alternative 1: no decision 'trip-1:9'"),
        ({"action": None}, r"action: give either an action or matchers \(dp_id 'trip-1:0'\)"),
        ({"matchers": {"city": "ignore"}}, "action: give either"),
        ({"by": ""}, "by: empty"),
        ({"note": "x"}, "unknown field `note`"),
    ],
)
def test_an_alternative_that_does_not_fit_is_refused(tmp_path, changes, reason):
    path = draft(tmp_path, [trip_session(1)])
    with pytest.raises(DataError, match=reason):
        accept(path, [alternative(**changes)])


def test_an_alternative_must_differ_from_gold_and_from_known_mistakes(tmp_path):
    path = draft(tmp_path, [trip_session(1)])
    stands = msgspec.to_builtins(spec_of(decision_points(trip_session(1))[0].observed))
    with pytest.raises(DataError, match="is gold already"):
        accept(path, [alternative(action=stands)])
    with pytest.raises(DataError, match="stands already"):
        accept(path, [alternative(), alternative()])
    bare = draft(tmp_path, [trip_session(1)], name="bare", gold="none")
    with pytest.raises(DataError, match="no gold yet"):
        accept(bare, [alternative()])


def test_an_accepted_alternative_that_does_not_pass_is_refused(tmp_path):
    class OnlyGold:
        def __init__(self, verdict):
            self.strict = self.lenient = verdict

    def scorer(decision, reply, *_):
        return OnlyGold("pass" if reply == decision.gold else "wrong_args")

    path = draft(tmp_path, [trip_session(1)])
    accept(path, [alternative()])
    with pytest.raises(DataError, match=r"trip-1:0: accept\[0\] remember.* scores wrong_args"):
        freeze(path, tmp_path / "golden", options(scorer=scorer))


def test_verify_finds_a_view_that_disagrees_though_every_checksum_fits(tmp_path):
    freeze(draft(tmp_path), tmp_path / "golden", options())
    path = tmp_path / "golden" / SESSIONS
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"verified": false', '"verified": true ', 1), encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"sessions\.jsonl"):
        verify(tmp_path / "golden", score)
    manifest = read_manifest(tmp_path / "golden")
    files = {**manifest.files, SESSIONS: sha256_file(path)}
    forged = msgspec.structs.replace(manifest, files=files)
    (tmp_path / "golden" / MANIFEST).write_text(render(forged))
    checks = {check.name: check.problems for check in verify(tmp_path / "golden", score)[1]}
    assert checks["records"] == ("sessions.jsonl:1: its readable view does not agree with its messages and actions",)


def test_verify_finds_counts_and_corrections_that_the_records_do_not_bear_out(tmp_path):
    freeze(draft(tmp_path), tmp_path / "golden", options())
    manifest = json.loads((tmp_path / "golden" / MANIFEST).read_text())
    manifest["counts"]["sessions"] = 99
    manifest["corrections"] = [
        {
            "dp_id": "trip-1:0",
            "dimension": "misroute",
            "before": {"tool": "book"},
            "after": {"tool": "remember", "input": {"content": "x"}},
            "evidence": 99,
            "by": "ana",
            "why": "forged",
        }
    ]
    forged = msgspec.convert(manifest, type(read_manifest(tmp_path / "golden")))
    (tmp_path / "golden" / MANIFEST).write_text(render(forged))
    checks = {check.name: check.problems for check in verify(tmp_path / "golden", score)[1]}
    assert checks["counts"] == ("counts.sessions: found 99; the records give 3",)
    assert len(checks["corrections"]) == 2


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_everything_as_it_was(tmp_path, monkeypatch, trouble):
    path = draft(tmp_path, [trip_session(1)])
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def refuse(_):
        raise trouble

    monkeypatch.setattr("firstchair.core.atomic.os.fsync", refuse)
    expected = RunFailed if isinstance(trouble, OSError) else KeyboardInterrupt
    for step in (
        lambda: freeze(path, tmp_path / "golden", options()),
        lambda: accept(path, [alternative()]),
        lambda: draft(tmp_path, name="other"),
    ):
        with pytest.raises(expected):
            step()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["draft"]


def test_a_session_whose_tools_are_not_in_the_set_is_named(tmp_path):
    freeze(draft(tmp_path), tmp_path / "golden", options())
    golden = tmp_path / "golden"
    (golden / "catalogs.jsonl").write_text("")
    manifest = read_manifest(golden)
    files = {**manifest.files, "catalogs.jsonl": sha256_file(golden / "catalogs.jsonl")}
    (golden / MANIFEST).write_text(render(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(DataError, match=r"catalogs\.jsonl: session 'trip-0' names catalog"):
        GoldenSet.load(golden)
