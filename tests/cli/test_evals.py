import json
import shutil

import pytest
from typer.testing import CliRunner

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import write_rendering
from firstchair.cli.evals import app
from firstchair.core.errors import ConfigError, DataError, FirstchairError, RunFailed
from firstchair.data.golden import BuildOptions, FreezeOptions, GoldenSet, build, freeze
from firstchair.evals.run_record import ROWS, load_run
from firstchair.testing.fault_server import Answer, FaultServer
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.train.base_model import base_model_dir


@pytest.fixture
def golden(tmp_path):
    """A frozen set of six small sessions."""
    when = "2026-02-03T00:00:00Z"
    build(
        [trip_session(number) for number in range(6)],
        lambda _: trip_tools(),
        tmp_path / "draft",
        BuildOptions(name="trips", created_at=when, verified=True),
    )
    catalog = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True})
    freeze(tmp_path / "draft", tmp_path / "golden", FreezeOptions(catalog=catalog, scorer=score, created_at=when))
    return tmp_path / "golden"


def run(*arguments):
    """Invoke and raise what the command raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, FirstchairError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def replies(tmp_path, share):
    """A scripted candidate that always stops; ``share`` of the decisions have a reply at all."""
    path = tmp_path / f"replies-{share}.jsonl"
    ids = [f"trip-{session}:{index}" for session in range(6) for index in range(5)]
    rows = [{"dp_id": dp_id, "message": {"role": "assistant", "content": "Done."}} for dp_id in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[: int(len(rows) * share)]))
    return path


def test_replay_show_compare_and_report_from_the_command_line(golden, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    run("replay", golden, "--engine", "scripted", "--model", replies(tmp_path, 1), "--out", before)
    found = json.loads(run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", after, "--json"))
    assert found["metrics"]["strict_pass"]["value"] == 1.0
    assert found["run"]["golden"]["name"] == "trips"
    assert "Stop precision" in run("show", before)
    compared = json.loads(run("compare", before, after, "--json"))
    assert compared["paired"] == 30
    assert "fixed, 0 broken" in run("compare", before, after)
    assert "report.json" in run("report", after, "--baseline", before, "--out", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_labels_are_drawn_filled_in_and_taken(golden, tmp_path):
    out = tmp_path / "run"
    run("replay", golden, "--engine", "scripted", "--model", replies(tmp_path, 1), "--out", out)
    with pytest.raises(ConfigError, match=r"code decides every decision.*add --decided"):
        run("labels", "draw", out, "--out", tmp_path / "l.jsonl")
    run("labels", "draw", out, "--out", tmp_path / "l.jsonl", "--decided", "--n", 4)
    rows = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps({**row, "right": True}) + "\n" for row in rows))
    assert "4 labels taken, 0 rows not filled in" in run("labels", "import", out, tmp_path / "l.jsonl")


def test_a_run_is_scored_again_without_a_model(golden, tmp_path):
    run("replay", golden, "--engine", "scripted", "--model", replies(tmp_path, 1), "--out", tmp_path / "run")
    run("score", tmp_path / "run", "--out", tmp_path / "again")
    assert load_run(tmp_path / "again").rows == load_run(tmp_path / "run").rows
    with pytest.raises(ConfigError, match="exists"):
        run("score", tmp_path / "run", "--out", tmp_path / "again")


def test_only_scoring_takes_another_golden_set_than_the_runs(golden, tmp_path):
    run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", tmp_path / "run")
    when = "2026-02-03T00:00:00Z"
    sessions = [trip_session(number) for number in range(7)]
    build(
        sessions, lambda _: trip_tools(), tmp_path / "wider", BuildOptions(name="w", created_at=when, verified=True)
    )
    catalog = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True})
    freeze(tmp_path / "wider", tmp_path / "other", FreezeOptions(catalog=catalog, scorer=score, created_at=when))
    was, other = (GoldenSet.load(tmp_path / name).set_sha256[:12] for name in ("golden", "other"))
    says = f"found the golden set {other}….* was scored by {was}….*eval score"
    report = ("report", tmp_path / "run", "--out", tmp_path / "r.html")
    judge = ("judge", tmp_path / "run", "--engine", "scripted", "--model", "gold")
    for command in (report, ("compare", tmp_path / "run", tmp_path / "run"), judge):
        with pytest.raises(ConfigError, match=says):
            run(*command, "--golden", tmp_path / "other")
    run("score", tmp_path / "run", "--golden", tmp_path / "other", "--out", tmp_path / "again")
    run("report", tmp_path / "again", "--out", tmp_path / "again.html")
    shutil.rmtree(golden)
    shutil.move(tmp_path / "other", golden)  # swapped at the path that the run names
    with pytest.raises(ConfigError, match=says):
        run(*report)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "g", "--model", "m", "--out", "o", "--seed", "-1"],
        ["replay", "g", "--model", "m", "--out", "o", "--temperature", "inf"],
        ["replay", "g", "--model", "m", "--out", "o", "--temperature", "nan"],
        ["replay", "g", "--model", "m", "--out", "o", "--top-p", "nan"],
        ["compare", "a", "b", "--seed", "-1"],
        ["labels", "draw", "a", "--out", "o", "--seed", "-1"],
        ["report", "a", "--out", "r.html", "--price-in", "inf", "--price-out", "1"],
    ],
)
def test_a_number_that_cannot_be_used_is_refused_at_its_option(arguments):
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "Invalid value" in found.output


def test_a_missing_reply_is_an_engine_error_and_not_a_failure_of_the_model(golden, tmp_path):
    with pytest.raises(
        RunFailed, match=r"15 of 30 decisions got no answer: engine: .*has no reply for trip-3:0.*; repeat"
    ):
        run("replay", golden, "--engine", "scripted", "--model", replies(tmp_path, 0.5), "--out", tmp_path / "run")
    assert "left out: 15 (engine): trip-3:0" in run("show", tmp_path / "run")
    rows = load_run(tmp_path / "run").rows
    assert sum(not row.obtained for row in rows) == 15
    assert "has no reply for" in next(row.error for row in rows if not row.obtained)


def test_a_server_that_refuses_every_request_fails_the_run_and_says_why(golden, tmp_path):
    refused = Answer({"error": {"message": "The model `typo` does not exist."}}, 404)
    with FaultServer(lambda seen, number: refused) as server:
        model = ("--engine", "openai", "--base-url", server.base_url + "/v1", "--model", "typo", "--limit", 3)
        with pytest.raises(
            RunFailed, match=r"3 of 3 decisions got no answer: bad_request: .*404.*does not exist"
        ) as caught:
            run("replay", golden, *model, "--out", tmp_path / "run")
    assert caught.value.exit_code == 1


def test_a_server_that_was_asked_to_constrain_is_not_said_to_have_done_so(golden, tmp_path):
    said = {"choices": [{"message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]}
    with FaultServer(lambda seen, number: Answer(said)) as server:
        model = ("--engine", "openai", "--base-url", server.base_url + "/v1", "--model", "m", "--limit", 3)
        shown = run("replay", golden, *model, "--constrain", "--out", tmp_path / "run")
    assert server.seen[0].body["tools"][0]["function"]["strict"] is True
    assert "the server was asked to" in shown
    assert load_run(tmp_path / "run").record.constrain == "requested"


def test_a_flipped_byte_in_the_golden_set_scores_nothing(golden, tmp_path):
    path = golden / "sessions.jsonl"
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"sessions\.jsonl") as caught:
        run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "openai", "--model", "m"], "--engine openai needs --base-url"),
        (["--engine", "transformers", "--model", "/nowhere"], "no such directory"),
        (["--engine", "scripted", "--model", "gold", "--tool-format", "hermes"], "need --tokenizer"),
        (["--engine", "scripted", "--model", "gold", "--arguments", "respaced"], "need --tokenizer"),
        (["--engine", "openai", "--model", "m", "--base-url", "http://x", "--adapter", "a"], "--adapter is for"),
        (
            ["--engine", "anthropic", "--model", "m", "--base-url", "http://x", "--constrain"],
            "--constrain: Anthropic",
        ),
        (
            ["--engine", "openai", "--model", "m", "--base-url", "http://x", "--api-key-env", "NO_SUCH_KEY_7"],
            "NO_SUCH_KEY_7: the environment variable is not set",
        ),
    ],
)
def test_wrong_flags_are_named(golden, tmp_path, arguments, says):
    with pytest.raises(ConfigError, match=says):
        run("replay", golden, "--out", tmp_path / "run", *arguments)


def test_runs_that_write_call_arguments_differently_are_not_compared(golden, tmp_path):
    model = ("--engine", "scripted", "--model", "gold", "--tokenizer", base_model_dir())
    for spelling in ("verbatim", "respaced"):
        run("replay", golden, "--out", tmp_path / spelling, *model, "--arguments", spelling)
        renderer = Renderer.from_pretrained(base_model_dir(), arguments=spelling)
        assert load_run(tmp_path / spelling).record.candidate.template_hash == renderer.template_hash
    with pytest.raises(ConfigError, match="template_hash"):
        run("compare", tmp_path / "verbatim", tmp_path / "respaced")


def test_a_run_says_when_prompts_are_not_as_in_training(golden, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(base_model_dir(), path)
    write_rendering(Renderer.from_pretrained(path, arguments="respaced"), path)
    model = ("--engine", "scripted", "--model", "gold", "--tokenizer", path)
    assert "note: prompts" not in run("replay", golden, "--out", tmp_path / "as-trained", *model)
    found = load_run(tmp_path / "as-trained").record.candidate
    assert found.template_hash == found.trained_template != ""
    shown = run("replay", golden, "--out", tmp_path / "other", *model, "--arguments", "verbatim")
    assert f"the model was trained with {found.trained_template[:12]}" in shown


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "x"}', r"r\.jsonl:1: found {\"text\": \"x\"}; expected {dp_id, text}"),
        ('{"dp_id": "a", "text": null}', r"r\.jsonl:1: found .*null}; expected {dp_id, text}"),
        ('{"dp_id": "a", "text": [1]}', r"r\.jsonl:1: found .*; expected {dp_id, text}"),
        ('{"dp_id": [1], "text": "x"}', r"r\.jsonl:1: found .*; expected {dp_id, text}"),
        ('{"dp_id": "a", "message": null}', r"r\.jsonl:1: found .*; expected {dp_id, text}"),
        ("{", r"r\.jsonl:1"),
        ('{"dp_id": "a", "message": 3}', r"r\.jsonl:1"),
    ],
)
def test_a_bad_reply_file_is_named(golden, tmp_path, line, says):
    (tmp_path / "r.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=says):
        run("replay", golden, "--engine", "scripted", "--model", tmp_path / "r.jsonl", "--out", tmp_path / "run")


def test_a_golden_set_that_moved_is_asked_for(golden, tmp_path):
    out = tmp_path / "run"
    run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", out)
    golden.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="say where with --golden"):
        run("report", out, "--out", tmp_path / "r.html")
    run("report", out, "--out", tmp_path / "r.html", "--golden", tmp_path / "moved")
    run("replay", tmp_path / "moved", "--engine", "scripted", "--model", "gold", "--out", out)
    assert (out / ROWS).read_bytes().count(b"\n") == 30


def test_half_a_price_and_a_wrong_suffix_are_refused(golden, tmp_path):
    run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", tmp_path / "run")
    with pytest.raises(ConfigError, match="give both"):
        run("report", tmp_path / "run", "--out", tmp_path / "r.html", "--price-in", 1)
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        run("report", tmp_path / "run", "--out", tmp_path / "r.txt")


def test_a_scripted_judge_can_be_run(golden, tmp_path):
    run("replay", golden, "--engine", "scripted", "--model", "gold", "--out", tmp_path / "run")
    assert "code decides every decision" in run(
        "judge", tmp_path / "run", "--engine", "scripted", "--model", "gold"
    ).replace("\n", " ")
