import json
from pathlib import Path

import msgspec
import pytest

from firstchair.catalog.catalog import Catalog, catalog_yaml
from firstchair.chat.actions import action_of
from firstchair.data.corrections import spec_of
from firstchair.data.pairs import read_pairs
from firstchair.data.rl_prompts import read_prompts
from firstchair.data.sft import read_sft
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.session import catalog_id_of
from firstchair.traces.session_file import write_sessions
from firstchair.traces.store import TraceStore

CATALOGS = {catalog_id_of(trip_tools()): trip_tools()}
SESSIONS = [trip_session(number, mistake=number == 4) for number in range(12)]


@pytest.fixture
def store(tmp_path) -> Path:
    path = tmp_path / "traces.db"
    with TraceStore.open(path) as opened:
        opened.add(SESSIONS, CATALOGS)
    return path


@pytest.fixture
def export(tmp_path) -> Path:
    write_sessions(tmp_path / "export", SESSIONS, CATALOGS)
    return tmp_path / "export"


@pytest.fixture
def catalog(tmp_path) -> Path:
    made = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True})
    (tmp_path / "catalog.yaml").write_text(catalog_yaml(made))
    return tmp_path / "catalog.yaml"


@pytest.fixture
def corrections(tmp_path) -> Path:
    row = {
        "dp_id": "trip-4:3",
        "dimension": "memory",
        "before": msgspec.to_builtins(spec_of(action_of(SESSIONS[4].messages[8]))),
        "after": msgspec.to_builtins(spec_of(action_of(trip_session(4).messages[8]))),
        "evidence": 7,
        "by": "ana",
        "why": "the user asked to remember",
    }
    (tmp_path / "corrections.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "corrections.jsonl"


def test_from_recordings_to_a_frozen_set(run, store, catalog, corrections, tmp_path):
    draft, golden = tmp_path / "draft", tmp_path / "golden"
    code, out, _ = run("data", "split", store, "--out", tmp_path / "split", "--stratify", "reward", "--json")
    assert code == 0
    assert json.loads(out)["counts"]["train"]["sessions"] == 10
    code, out, err = run(
        "golden", "build", store, "--out", draft, "--label", "task_id=2", "--created-at", "2026-01-01"
    )
    assert (code, err) == (0, "")
    assert "trip-4" not in out
    assert "label task_id=2" in out
    assert run("golden", "correct", draft, corrections)[0] == 0
    code, out, _ = run("golden", "freeze", draft, "--out", golden, "--catalog", catalog, "--json")
    assert code == 0
    assert json.loads(out)["session_ids"] == ["trip-4", "trip-5"]
    code, out, _ = run("golden", "verify", golden)
    assert code == 0
    assert "self-check" in out
    code, out, _ = run("golden", "show", golden)
    assert "1 reviewed decision: 1 corrected (memory 1), 0 confirmed" in out
    assert [line.split() for line in out.splitlines() if line.startswith("trip-")] == [
        ["trip-4", "2", "5", "1"],
        ["trip-5", "2", "5", "0"],
    ]
    code, out, _ = run("golden", "show", golden, "trip-4")
    assert "gold: remember(" in out
    code, out, _ = run("golden", "show", golden, "trip-4:3")
    assert "by ana: the user asked" in out
    assert "trip-4:3  turn 2" in out
    code, out, _ = run("golden", "show", golden, "trip-4:3", "--json")
    assert json.loads(out)["known_bad"][0]["tool"] == "find_trips"
    code, out, err = run("golden", "show", golden, "trip-4:9")
    assert (code, out) == (2, "")
    assert "did you mean trip-4:" in err


def test_what_decisions_are_exported_as_can_be_copied_into_corrections(run, store, tmp_path):
    run("golden", "build", store, "--out", tmp_path / "draft", "--limit", 3)
    run("data", "decisions", tmp_path / "draft", "--no-context", "--out", tmp_path / "d.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_bytes().split(b"\n") if line]
    review = tmp_path / "review.jsonl"
    fixed = {"dimension": "confirmed", "by": "ana", "why": "read it"}
    made = [
        {"dp_id": row["dp_id"], "before": row["gold"], "after": row["gold"], "evidence": row["context_end"], **fixed}
        for row in rows
    ]
    review.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    code, out, err = run("golden", "correct", tmp_path / "draft", review)
    assert (code, err) == (0, "")
    assert "15 reviewed decisions: 0 corrected, 15 confirmed" in out
    assert "15 of 15 verified" in out


def test_freezing_says_which_decisions_nobody_verified(run, store, catalog, tmp_path):
    for name, more in (("recorded", ()), ("reviewed", ("--verified",))):
        run("golden", "build", store, "--out", tmp_path / name, "--limit", 3, *more)
        frozen = tmp_path / f"{name}-set"
        code, _, err = run("golden", "freeze", tmp_path / name, "--out", frozen, "--catalog", catalog)
        assert code == 0
        words = "15 of 15 decisions are not verified; a mismatch with them will be undecided"
        assert (words in err) == (name == "recorded")


def test_one_changed_byte_exits_2_and_names_the_file(run, store, catalog, tmp_path):
    run("golden", "build", store, "--out", tmp_path / "draft", "--limit", 3)
    run("golden", "freeze", tmp_path / "draft", "--out", tmp_path / "golden", "--catalog", catalog)
    path = tmp_path / "golden" / "sessions.jsonl"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    for command in ("verify", "show"):
        code, out, err = run("golden", command, tmp_path / "golden")
        assert (code, out) == (2, "")
        assert "sessions.jsonl: found sha256" in err
    assert run("data", "decisions", tmp_path / "golden", "--out", tmp_path / "d.jsonl")[0] == 2
    assert not (tmp_path / "d.jsonl").exists()


def test_a_set_that_disagrees_with_itself_exits_1(run, store, catalog, tmp_path):
    from firstchair.data.golden.manifest import read_manifest, render

    run("golden", "build", store, "--out", tmp_path / "draft", "--limit", 3)
    run("golden", "freeze", tmp_path / "draft", "--out", tmp_path / "golden", "--catalog", catalog)
    manifest = read_manifest(tmp_path / "golden")
    counts = msgspec.structs.replace(manifest.counts, sessions=7)
    (tmp_path / "golden" / "manifest.json").write_text(render(msgspec.structs.replace(manifest, counts=counts)))
    code, out, _ = run("golden", "verify", tmp_path / "golden", "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("golden", "build", "nowhere.db", "--out", "x"), "nowhere.db: nothing there"),
        (("golden", "build", "{store}", "--out", "x", "--label", "task_id=99"), "no session left to build from"),
        (("golden", "build", "{store}", "--out", "x", "--label", "task_id"), "--label task_id: expected NAME=VALUE"),
        (("golden", "build", "{store}", "--out", "x", "--created-at", "noon"), "--created-at: found 'noon'"),
        (("golden", "build", "{store}", "--out", "x", "--split", "none/heldout"), "none: no such split"),
        (("golden", "build", "{store}", "--out", "x", "--dedup", "2"), "found 2.0; expected 0.1 to 1"),
        (("golden", "correct", "nowhere", "{corrections}"), "nowhere: no such golden set"),
        (("golden", "verify", "nowhere"), "nowhere: no such golden set"),
        (("data", "sft", "{store}", "--out", "x", "--label", "task_id=99"), "no record with a trained message"),
        (("data", "split", "{store}", "--out", "x", "--part", "train=1"), "at least two parts"),
        (("data", "split", "{store}", "--out", "x", "--part", "train=most", "--part", "b=.1"), "found 'most'"),
        (("data", "audit", "{empty}"), "no conversation in it"),
    ],
)
def test_wrong_input_exits_2_and_writes_nothing(run, store, corrections, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())
    names = {"{store}": store, "{corrections}": corrections, "{empty}": "empty.jsonl"}
    code, out, err = run(*(names.get(word, word) for word in arguments))
    assert (code, out) == (2, "")
    assert reason in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_correction_that_does_not_fit_leaves_the_draft_as_it_was(run, store, corrections, tmp_path):
    run("golden", "build", store, "--out", tmp_path / "draft")
    before = (tmp_path / "draft" / "sessions.jsonl").read_bytes()
    rows = corrections.read_text()
    corrections.write_text(rows + rows)
    code, _, err = run("golden", "correct", tmp_path / "draft", corrections)
    assert code == 2
    assert "before: found find_trips" in err
    assert "trip-4:3" in err
    assert (tmp_path / "draft" / "sessions.jsonl").read_bytes() == before
    corrections.write_text(rows + rows.replace("memory", "memmory"))
    code, _, err = run("golden", "correct", tmp_path / "draft", corrections)
    assert code == 2
    assert "corrections.jsonl:2: dimension: found 'memmory'" in err


def test_one_file_of_corrections_serves_the_draft_and_the_training_data(run, store, corrections, tmp_path):
    foreign = json.loads(corrections.read_text()) | {"dp_id": "trip-7:3"}
    corrections.write_text(corrections.read_text() + json.dumps(foreign) + "\n")
    draft = tmp_path / "draft"
    build = ("golden", "build", store, "--out", draft, "--label", "task_id=2")
    run(*build)
    code, _, err = run("golden", "correct", draft, corrections)
    assert code == 2
    assert "--ignore-other-sessions" in err
    code, out, _ = run("golden", "correct", draft, corrections, "--ignore-other-sessions")
    assert code == 0
    assert "Passed over: 1 corrections of 1 sessions outside the draft." in out
    code, out, _ = run(*build, "--force", "--corrections", corrections, "--ignore-other-sessions", "--json")
    assert (code, json.loads(out)["passed_over"]) == (0, ["trip-7:3"])
    out = tmp_path / "sft.jsonl"
    assert run("data", "sft", store, "--label", "task_id=2", "--corrections", corrections, "--out", out)[0] == 0


def test_training_records_leave_the_mistakes_out_of_the_loss(run, export, corrections, tmp_path):
    out = tmp_path / "sft.jsonl"
    code, text, _ = run(
        "data", "sft", export, "--out", out, "--corrections", corrections, "--branches", "--tier", "C", "--json"
    )
    assert code == 0
    assert json.loads(text) | {"path": ""} == {
        "records": 13,
        "branches": 1,
        "assistant_spans": 64,
        "trained_spans": 60,
        "tool_calls": 39,
        "left_out": [],
        "avoided": [],
        "path": "",
    }
    records = {record.id: record for record in read_sft(out)}
    assert records["trip-4"].loss[8] is False
    assert records["trip-4:3#gold"].loss[8] is True
    code, _, err = run("data", "sft", export, "--out", out)
    assert code == 2
    assert "--force" in err


def test_an_audit_finds_leakage_and_exits_1(run, store, export, tmp_path, monkeypatch):
    run("data", "sft", store, "--out", tmp_path / "a.jsonl", "--label", "task_id=1")
    run("data", "sft", store, "--out", tmp_path / "b.jsonl", "--label", "task_id=2")
    code, out, _ = run("data", "audit", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert code == 0
    assert "2 × 2 conversations compared at similarity 0.6: 0 leaking pairs" in out
    code, out, _ = run("data", "audit", export, tmp_path / "b.jsonl", "--json")
    assert code == 1
    found = json.loads(out)
    assert [(pair["left"], pair["right"]) for pair in found["pairs"]] == [("trip-4", "trip-4"), ("trip-5", "trip-5")]
    assert found["pairs"][0]["shared_text"].startswith("Find me a trip")
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for line in run("data", "audit", export, tmp_path / "b.jsonl")[1].splitlines() if "Find me" in line]
    assert [line.split()[:2] for line in lines] == [["trip-4", "trip-4"], ["trip-5", "trip-5"]]
    assert all(len(line) <= 80 for line in lines)
    code, out, _ = run("data", "audit", store)
    assert (code, "12 conversations compared" in out) == (0, True)


def test_training_sessions_that_resemble_golden_ones_can_be_left_out(run, store, tmp_path):
    run("golden", "build", store, "--out", tmp_path / "draft", "--label", "task_id=2")
    out = tmp_path / "sft.jsonl"
    code, text, _ = run("data", "sft", store, "--out", out, "--avoid", tmp_path / "draft", "--json")
    assert code == 0
    assert [pair["right"] for pair in json.loads(text)["avoided"]] == ["trip-4", "trip-5"]
    assert len(list(read_sft(out))) == 10
    assert run("data", "audit", out, tmp_path / "draft")[0] == 0


def test_decisions_and_prompts_are_exported_and_the_scoreboard_is_not_trained_on(run, store, catalog, tmp_path):
    code, _, _ = run("data", "decisions", store, "--out", tmp_path / "d.jsonl", "--limit", 2)
    rows = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert code == 0
    assert [row["dp_id"] for row in rows][:2] == ["trip-0:0", "trip-0:1"]
    assert len(rows[1]["context"]) == rows[1]["context_end"] == 4
    assert rows[0]["gold"] is None
    run("data", "rl-prompts", store, "--out", tmp_path / "p.jsonl", "--limit", 2)
    prompt = json.loads((tmp_path / "p.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert [tool["name"] for tool in prompt["tools"]] == ["find_trips", "book", "remember"]
    assert prompt["gold"]["calls"][0]["name"] == "find_trips"
    assert prompt["messages"][-1]["role"] == "user"
    assert prompt["matchers"] == {}
    run("golden", "build", store, "--out", tmp_path / "draft", "--limit", 2)
    run("golden", "freeze", tmp_path / "draft", "--out", tmp_path / "golden", "--catalog", catalog)
    assert run("data", "decisions", tmp_path / "golden", "--out", tmp_path / "g.jsonl", "--no-context")[0] == 0
    row = json.loads((tmp_path / "g.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert row["gold"]["tool"] == "find_trips"
    assert "context" not in row
    for command in ("sft", "rl-prompts"):
        code, _, err = run("data", command, tmp_path / "golden", "--out", tmp_path / "x.jsonl")
        assert code == 2
        assert "the scoreboard; train on other sessions" in err


def test_prompts_are_made_of_sft_records_with_the_matchers_of_a_catalog(run, store, catalog, tmp_path):
    sft, out = tmp_path / "sft.jsonl", tmp_path / "p.jsonl"
    tools = [tool.model_copy(update={"matchers": {"content": "casefold"}}) if tool.name == "remember" else tool
             for tool in Catalog.from_tools("trips", trip_tools()).tools]  # fmt: skip
    catalog.write_text(catalog_yaml(Catalog(name="trips", verified=True, tools=tuple(tools))))
    run("data", "sft", store, "--out", sft, "--limit", 2)
    code, printed, _ = run("data", "rl-prompts", sft, "--out", out, "--catalog", catalog)
    assert code == 0
    assert "10 prompts" in printed
    assert [record.id for record in read_prompts(out)][:2] == ["trip-0:2", "trip-0:4"]
    assert {name for record in read_prompts(out) for name in record.matchers} == {"remember"}
    code, _, err = run("data", "rl-prompts", sft, "--out", out, "--limit", 2, "--force")
    assert (code, "filters are for sessions" in err) == (2, True)


def test_a_part_of_a_split_can_be_named_everywhere(run, store, tmp_path):
    run("data", "split", store, "--out", tmp_path / "split", "--by", "task_id")
    counts = {}
    for part in ("train", "heldout"):
        _, out, _ = run(
            "data", "sft", store, "--out", tmp_path / part, "--split", tmp_path / "split" / part, "--json"
        )
        counts[part] = json.loads(out)["records"]
    assert counts == {"train": 10, "heldout": 2}
    _, out, _ = run(
        "golden", "build", store, "--out", tmp_path / "draft", "--split", tmp_path / "split" / "heldout", "--json"
    )
    assert json.loads(out)["gold_policy"]["filters"] == [f"ids of {tmp_path}/split/heldout"]
    code, _, err = run("golden", "build", store, "--out", tmp_path / "d2", "--split", tmp_path / "split" / "test")
    assert code == 2
    assert "no part 'test'; it has heldout, train" in err


def test_a_cut_or_refused_reply_is_neither_gold_nor_trained(run, catalog, tmp_path):
    def exchange(number: int, word: str) -> dict:
        answer = {"role": "assistant", "content": f"Answer {number}"}
        tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
                 for tool in trip_tools()]  # fmt: skip
        return {
            "session_id": f"s{number}",
            "request": {"messages": [{"role": "user", "content": f"question {number}"}], "tools": tools},
            "response": {"choices": [{"message": answer, "finish_reason": word}]},
        }

    rows = [exchange(1, "stop"), exchange(2, "length"), exchange(3, "content_filter")]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store, draft = tmp_path / "log.db", tmp_path / "draft"
    assert run("traces", "import", tmp_path / "log.jsonl", "--format", "openai", "--store", store)[0] == 0

    code, out, _ = run("data", "sft", store, "--out", tmp_path / "sft.jsonl", "--json")
    assert (code, json.loads(out)["trained_spans"], json.loads(out)["left_out"]) == (0, 1, ["s2", "s3"])
    _, out, _ = run("data", "rl-prompts", store, "--out", tmp_path / "rl.jsonl", "--json")
    assert [record.id for record in read_prompts(tmp_path / "rl.jsonl")] == ["s1:0"]
    assert sum(json.loads(out)["left_out"].values()) == 2

    code, out, _ = run("golden", "build", store, "--out", draft, "--verified", "--json")
    assert json.loads(out)["gold_policy"]["without_gold"] == {"refused": 1, "truncated": 1}
    code, _, err = run("golden", "freeze", draft, "--out", tmp_path / "golden", "--catalog", catalog)
    assert code == 2
    assert "s2:0: no gold: the recorded reply was cut by the token limit; correct or confirm it" in err
    assert "s3:0: no gold: the provider's filter stopped the recorded reply" in err
    code, out, _ = run("golden", "build", store, "--out", tmp_path / "kept", "--drop-invalid", "--json")
    assert [row["session_id"] for row in json.loads(out)["gold_policy"]["dropped_invalid"]] == ["s2", "s3"]
    assert run("golden", "freeze", tmp_path / "kept", "--out", tmp_path / "golden", "--catalog", catalog)[0] == 0


def test_a_label_to_split_by_that_no_session_has_is_refused_and_a_rare_one_is_told(run, store, tmp_path):
    for option in ("--by", "--stratify"):
        code, out, err = run("data", "split", store, "--out", tmp_path / "split", option, "taskid")
        assert (code, out) == (2, "")
        assert f"{option} taskid: no session has the label 'taskid'; labels are: reward, task_id" in err
    assert not (tmp_path / "split").exists()
    with TraceStore.open(store) as opened:
        opened.add([msgspec.structs.replace(trip_session(20), labels={})], CATALOGS)
    code, out, _ = run("data", "split", store, "--out", tmp_path / "split")
    assert code == 0
    assert "1 session lacks the label task_id; each such is a group of its own" in out
    code, out, _ = run("data", "split", store, "--out", tmp_path / "each", "--by", "", "--json")
    assert (code, json.loads(out)["without_label"]) == (0, 0)


def test_a_session_and_its_own_branch_are_no_near_duplicates(run, store, tmp_path):
    row = {
        "dp_id": "trip-4:4",
        "dimension": "untruthful final",
        "before": msgspec.to_builtins(spec_of(action_of(SESSIONS[4].messages[10]))),
        "after": {"tool": None, "text": "I could not save that."},
        "evidence": 9,
        "by": "ana",
        "why": "it was not saved",
    }
    rows, out = tmp_path / "rows.jsonl", tmp_path / "sft.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    run("data", "sft", store, "--label", "task_id=2", "--corrections", rows, "--branches", "--out", out)
    assert [record.id for record in read_sft(out)] == ["trip-4", "trip-4:4#gold", "trip-5"]
    code, text, _ = run("data", "audit", out, "--json")
    assert (code, json.loads(text)["pairs"]) == (0, [])


def test_unreadable_lines_are_passed_over_and_listed_when_asked(run, export, corrections, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, cut in ((export / "sessions.jsonl", 40), (corrections, 10)):
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([lines[0], lines[0][:cut], *lines[1:]]))
    sft = ("data", "sft", export, "--corrections", corrections, "--out", "sft.jsonl")
    code, _, err = run(*sft)
    assert code == 2
    assert "corrections.jsonl:2: not strict JSON" in err
    code, _, err = run(*sft, "--skip-bad", 1)
    assert code == 0
    assert "1 bad line passed over, see export.skipped.jsonl" in err
    assert [
        json.loads(Path(f"{name}.skipped.jsonl").read_text())["line"] for name in ("export", "corrections.jsonl")
    ] == [
        2,
        2,
    ]
    assert len(list(read_sft(Path("sft.jsonl")))) == 12
    assert run("golden", "build", export, "--out", "draft")[0] == 2
    assert run(*sft, "--skip-bad", 1)[0] == 2
    code, out, _ = run("golden", "build", export, "--out", "draft", "--skip-bad", 1, "--force", "--json")
    assert (code, len(json.loads(out)["session_ids"])) == (0, 12)
    assert run("golden", "correct", "draft", corrections)[0] == 2
    assert run("golden", "correct", "draft", corrections, "--skip-bad", 1)[0] == 0


@pytest.mark.parametrize("kind", ["file", "store"])
def test_comparing_with_nothing_is_no_leakage_check(run, store, catalog, tmp_path, kind):
    nothing = tmp_path / "nothing"
    if kind == "file":
        nothing.write_text("")
    else:
        TraceStore.open(nothing).close()
    draft, out = tmp_path / "draft", tmp_path / "out"
    run("golden", "build", store, "--out", draft, "--limit", 3)
    for arguments in (
        ("golden", "freeze", draft, "--out", out, "--catalog", catalog, "--against", nothing),
        ("data", "sft", store, "--out", out, "--avoid", nothing),
    ):
        code, _, err = run(*arguments)
        assert (code, f"{nothing}: no conversation in it, so nothing was compared" in err) == (2, True)
        assert not out.exists()


def test_building_with_a_correction_that_does_not_fit_writes_nothing(run, store, corrections, tmp_path):
    draft = tmp_path / "draft"
    build = ("golden", "build", store, "--out", draft, "--corrections", corrections)
    code, _, err = run(*build, "--limit", 3)
    assert (code, "not in the draft" in err, draft.exists()) == (2, True, False)
    assert run(*build)[0] == 0
    before = (draft / "manifest.json").read_bytes()
    assert run(*build, "--limit", 3, "--force")[0] == 2
    assert (draft / "manifest.json").read_bytes() == before


def test_correcting_with_an_empty_file_is_refused(run, store, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    run("golden", "build", store, "--out", tmp_path / "draft", "--limit", 3)
    for command in ("correct", "accept"):
        code, _, err = run("golden", command, tmp_path / "draft", tmp_path / "empty.jsonl")
        assert (code, "empty.jsonl: no " in err) == (2, True)


def rollouts_of(tmp_path, count):
    """The folder of a run whose groups hold a good and a bad rollout each; the last group ties."""
    sessions = []
    for number in range(count):
        for good in (True, False):
            labels = {"batch": 0, "group": number, "reward": float(good and number < count - 1), "task_id": number}
            made = trip_session(number, mistake=not good, session_id=f"r{number}-{good}", labels=labels)
            sessions.append(made)
    write_sessions(tmp_path / "rollouts", sessions, CATALOGS)
    return tmp_path / "rollouts"


def test_preference_pairs_from_all_sources_and_held_out_ones(run, store, corrections, tmp_path):
    out, dev = tmp_path / "pairs.jsonl", tmp_path / "dev.jsonl"
    sources = ("--corrected", store, "--corrections", corrections, "--groups", rollouts_of(tmp_path, 8))
    pairs = ("data", "pairs", *sources, "--out", out, "--dev", dev, "--dev-fraction", 0.3)
    code, printed, err = run(*pairs, "--json")
    assert (code, err) == (0, "")
    made = json.loads(printed)
    assert [row["path"] for row in made] == [str(out), str(dev)]
    assert sum(row["pairs"] for row in made) == 8
    assert made[0]["left_out"] == made[1]["left_out"] == {"group: rewards tie": 1}
    assert made[0]["settings"] == {"margin": 0.0, "limit": None, "seed": 0, "dev_fraction": 0.3}
    assert len([*read_pairs(out), *read_pairs(dev)]) == 8
    assert run(*pairs)[0] == 2
    code, printed, _ = run(*pairs, "--force")
    assert (code, "left out, group: rewards tie: 1" in printed) == (0, True)
    code, _, err = run("data", "pairs", *sources, "--margin", 2, "--out", tmp_path / "none.jsonl")
    assert code == 0  # the corrected mistake has no reward
    code, _, err = run("data", "pairs", *sources[4:], "--margin", 2, "--out", tmp_path / "no.jsonl")
    assert (code, "no pair in it; left out: 7: group: rewards nearer than the margin" in err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "decisions", "{empty}", "--out", "{out}"),
        ("data", "rl-prompts", "{empty}", "--out", "{out}"),
        ("traces", "export", "{out}", "--store", "{empty}"),
        ("catalog", "infer", "{out}", "--store", "{empty}"),
        ("catalog", "validate", "--store", "{empty}"),
    ],
)
def test_an_empty_store_is_no_success(run, tmp_path, arguments):
    empty, out = tmp_path / "empty.db", tmp_path / "out"
    TraceStore.open(empty).close()
    code, printed, err = run(*(word.format(empty=empty, out=out) for word in arguments))
    assert (code, printed, out.exists()) == (2, "", False)
    assert "empty.db: " in err
