import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.chat.actions import Action
from firstchair.chat.messages import ImagePart, ToolCall
from firstchair.core.append import LineAppender
from firstchair.core.errors import ConfigError, DataError, IntegrityError, RunFailed
from firstchair.data.golden import BuildOptions, FreezeOptions, GoldenSet, build, freeze
from firstchair.engines.base import ErrorKind, Generation, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.compare import compare
from firstchair.evals.metrics import excluded, measure, unanswered
from firstchair.evals.replay import ReplayOptions, replay, session_prompts
from firstchair.evals.rescore import rescore
from firstchair.evals.run_record import ROWS, RUN, load_run, read_rows
from firstchair.testing.sessions import trip_session, trip_tools

REPLY = Action(kind="final_reply", text="Done.").to_message()


def gold_of(golden):
    by_id = {decision.dp_id: decision.gold for decision in golden.decisions}
    return lambda request: by_id[request.request_id]


def test_gold_replayed_against_itself_passes_everywhere(golden, tmp_path):
    engine = ScriptedEngine(gold_of(golden))
    run = replay(golden, engine, None, tmp_path / "run")
    assert len(run.rows) == 60
    assert {row.scored.strict for row in run.rows} == {"pass"}
    assert run.record.finished_at
    assert json.loads((tmp_path / "run" / RUN).read_text())["sampling"]["repeats"] == 1
    assert run.record.golden.set_sha256 == golden.set_sha256
    assert run.record.candidate.engine == "scripted"


def test_each_decision_sees_its_recorded_context_and_nothing_after(golden, tmp_path):
    engine = ScriptedEngine(gold_of(golden))
    replay(golden, engine, None, tmp_path / "run")
    by_id = {decision.dp_id: decision for decision in golden.decisions}
    assert [request.request_id for request in engine.seen] == [decision.dp_id for decision in golden.decisions]
    for request in engine.seen:
        decision = by_id[request.request_id]
        assert request.messages == golden.context(decision)
        assert request.group == decision.session_id
        assert request.tools == golden.tools(decision.session_id)


def test_the_row_tells_what_was_wanted_made_and_decided(golden, tmp_path):
    bad = Action(kind="tool_call", calls=(ToolCall(id="c", name="find_trips", arguments='{"city": 3}'),))
    run = replay(golden, ScriptedEngine(lambda request: bad), None, tmp_path / "run")
    first, stop = run.rows[0], next(row for row in run.rows if row.gold_kind == "final_reply")
    assert (first.gold_tools, first.made_tools, first.made_kind) == (("find_trips",), ("find_trips",), "tool_call")
    assert (first.scored.lenient, first.scored.rule, first.scored.field) == ("malformed", "schema_violation", "city")
    assert first.action == bad
    assert stop.scored.lenient == "malformed"


@pytest.mark.parametrize(
    ("generation", "verdict", "rule", "made"),
    [
        (Generation("", Stop.ERROR, error="down", error_kind=ErrorKind.SERVER), "error", "server", "none"),
        (Generation("", Stop.REFUSAL), "error", "refusal", "none"),
        (Generation("", Stop.CANCELLED), "error", "cancelled", "none"),
        (Generation("", Stop.LENGTH, message=REPLY), "malformed", "truncated", "malformed"),
    ],
)
def test_stop_length_refusal_and_error_are_never_merged(golden, tmp_path, generation, verdict, rule, made):
    run = replay(golden, ScriptedEngine(lambda request: generation), None, tmp_path / "run")
    row = run.rows[2]
    assert row.gold_kind == "final_reply"
    assert (row.scored.lenient, row.scored.rule, row.made_kind) == (verdict, rule, made)
    assert row.stop == generation.stop


def test_a_prompt_beyond_the_window_is_listed_and_not_asked(golden, tmp_path):
    class Narrow(ScriptedEngine):
        def info(self):
            return replace(super().info(), context_window=100)

    engine = Narrow(gold_of(golden))
    run = replay(
        golden, engine, FakeRenderer(), tmp_path / "run", ReplayOptions(sampling=Sampling(max_new_tokens=20))
    )
    out = [row for row in run.rows if not row.covered]
    assert 0 < len(out) < len(run.rows)
    assert len(engine.seen) == len(run.rows) - len(out)
    assert all(row.scored.rule == "context_overflow" and row.prompt_tokens > 80 for row in out)
    assert "window 100" in out[0].error


class FakeRenderer:
    """Ten tokens a message; parses nothing because the scripted engine gives messages."""

    append_only = False
    template_hash = "h"

    class tool_format:
        name = "fake"

    def prompt_ids(self, messages, tools):
        return list(range(10 * len(messages)))


def test_an_interrupted_run_goes_on_without_repeating_or_losing_a_decision(golden, tmp_path):
    out = tmp_path / "run"

    class Dies(ScriptedEngine):
        async def generate(self, requests):
            count = 0
            async for generation in super().generate(requests):
                yield generation
                count += 1
                if count == 23:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(golden, Dies(gold_of(golden)), None, out)
    assert len(read_rows(out)) == 23
    with (out / ROWS).open("ab") as handle:
        handle.write(b'{"dp_id": "trip-9')
    with pytest.raises(DataError, match="23 of 60 decisions; finish it"):
        load_run(out)
    assert len(load_run(out, partial=True).rows) == 23
    engine = ScriptedEngine(gold_of(golden))
    run = replay(golden, engine, None, out)
    assert len(engine.seen) == 37
    assert [row.dp_id for row in sorted(run.rows, key=lambda row: row.dp_id)] == sorted(
        decision.dp_id for decision in golden.decisions
    )
    assert (out / ROWS).read_bytes().count(b"\n") == 60


CHILD = """
import sys, os, signal
from pathlib import Path
from firstchair.data.golden import GoldenSet
from firstchair.engines.scripted import ScriptedEngine
from firstchair.evals.replay import replay

golden = GoldenSet.load(Path(sys.argv[1]), draft=True)
gold = {d.dp_id: d.gold for d in golden.decisions}

class Killed(ScriptedEngine):
    async def generate(self, requests):
        number = 0
        async for generation in super().generate(requests):
            yield generation
            number += 1
            if number == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)

replay(golden, Killed(lambda request: gold[request.request_id]), None, Path(sys.argv[2]))
"""


def test_sigkill_at_any_row_leaves_a_run_that_can_be_finished(golden, tmp_path):
    out = tmp_path / "run"
    for _ in range(3):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(golden.path), str(out), "11"], check=False, env=os.environ
        )
        assert child.returncode == -signal.SIGKILL
    engine = ScriptedEngine(gold_of(golden))
    run = replay(golden, engine, None, out)
    assert len(engine.seen) == 60 - 33
    assert len(run.rows) == (out / ROWS).read_bytes().count(b"\n") == 60


def test_a_finished_run_is_read_and_nothing_is_asked_again(golden, tmp_path):
    replay(golden, ScriptedEngine(gold_of(golden)), None, tmp_path / "run")
    engine = ScriptedEngine(gold_of(golden))
    assert len(replay(golden, engine, None, tmp_path / "run").rows) == 60
    assert engine.seen == []


def test_errors_are_asked_again_only_when_told(golden, tmp_path):
    out = tmp_path / "run"
    down = Generation("", Stop.ERROR, error="down", error_kind=ErrorKind.CONNECTION)
    gold = gold_of(golden)
    replay(
        golden,
        ScriptedEngine(lambda request: down if request.request_id.endswith(":1") else gold(request)),
        None,
        out,
    )
    assert sum(not row.obtained for row in load_run(out).rows) == 12
    engine = ScriptedEngine(gold)
    replay(golden, engine, None, out)
    assert engine.seen == []
    run = replay(golden, engine, None, out, ReplayOptions(retry_errors=True))
    assert len(engine.seen) == 12
    assert all(row.obtained for row in run.rows)


def test_a_run_of_something_else_is_refused_by_name(golden, tmp_path):
    out = tmp_path / "run"
    replay(golden, ScriptedEngine(gold_of(golden)), None, out)
    with pytest.raises(IntegrityError, match=r"candidate\.model.*'scripted'.*'other'"):
        replay(golden, ScriptedEngine([], model="other"), None, out)
    with pytest.raises(IntegrityError, match=r"sampling\.temperature"):
        replay(golden, ScriptedEngine([]), None, out, ReplayOptions(sampling=Sampling(temperature=1.0)))
    with pytest.raises(IntegrityError, match=r"golden\.sessions|golden\.decisions"):
        replay(golden, ScriptedEngine([]), None, out, ReplayOptions(limit=5))
    with pytest.raises(ConfigError, match="holds a run"):
        replay(golden, ScriptedEngine([]), None, out, ReplayOptions(resume=False))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="is not a run directory"):
        replay(golden, ScriptedEngine([]), None, tmp_path / "other")


def test_an_engine_that_forgets_requests_or_invents_answers_fails_the_run(golden, tmp_path):
    class Forgets(ScriptedEngine):
        async def generate(self, requests):
            async for generation in super().generate(requests[:-1]):
                yield generation

    class Invents(ScriptedEngine):
        async def generate(self, requests):
            yield Generation("who", Stop.END, text="x")

    with pytest.raises(RunFailed, match=r"no answer to 1 of 60 requests \(trip-11:4"):
        replay(golden, Forgets(gold_of(golden)), None, tmp_path / "a")
    with pytest.raises(RunFailed, match="'who', which was not asked for"):
        replay(golden, Invents(gold_of(golden)), None, tmp_path / "b")


def test_raw_text_without_a_renderer_is_an_error_and_not_a_verdict(golden, tmp_path):
    with pytest.raises(ConfigError, match="no renderer to parse it"):
        replay(golden, ScriptedEngine(lambda request: "text"), None, tmp_path / "run")


def test_a_full_disk_stops_the_run_with_what_was_written_intact(golden, tmp_path, monkeypatch):
    out = tmp_path / "run"
    whole, count = LineAppender.append, [0]

    def append(self, line):
        count[0] += 1
        if count[0] > 10:
            real = self._handle
            self._handle = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - stands for the disk
            real.close()
        whole(self, line)

    monkeypatch.setattr(LineAppender, "append", append)
    monkeypatch.setattr(LineAppender, "close", lambda self: self._handle.close())
    with pytest.raises(RunFailed, match="No space left on device; free space and run the same command again"):
        replay(golden, ScriptedEngine(gold_of(golden)), None, out)
    assert len(read_rows(out)) == 10


def test_a_bad_row_in_the_middle_is_named(golden, tmp_path):
    out = tmp_path / "run"
    replay(golden, ScriptedEngine(gold_of(golden)), None, out)
    lines = (out / ROWS).read_bytes().split(b"\n")
    lines[3] = b"{broken"
    (out / ROWS).write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"decisions\.jsonl:4: not a decision row"):
        load_run(out)


def test_rows_of_other_decisions_are_noticed(golden, tmp_path):
    out = tmp_path / "run"
    replay(golden, ScriptedEngine(gold_of(golden)), None, out)
    text = (out / ROWS).read_text(encoding="utf-8")
    (out / ROWS).write_text(text.replace('"dp_id":"trip-3:1"', '"dp_id":"trip-3:9"'), encoding="utf-8")
    with pytest.raises(IntegrityError, match=r"not those that run\.json names"):
        load_run(out)


@pytest.mark.parametrize("text", ["", "{", '{"golden": 3}', '{"schema_version": "9"}'])
def test_a_broken_run_record_is_named(golden, tmp_path, text):
    out = tmp_path / "run"
    run = replay(golden, ScriptedEngine(gold_of(golden)), None, out)
    if "9" in text:
        text = msgspec.json.encode(msgspec.structs.replace(run.record, schema_version="9")).decode()
    (out / RUN).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"run\.json"):
        load_run(out)
    with pytest.raises(DataError, match="expected a run directory"):
        load_run(tmp_path)


def test_half_a_surrogate_pair_from_a_server_does_not_stop_the_run(golden, tmp_path):
    answer = Generation("", Stop.END, text="\ud800", message=Action(kind="final_reply", text="a\udfff").to_message())
    run = replay(golden, ScriptedEngine(lambda request: answer), None, tmp_path / "run", ReplayOptions(limit=3))
    assert (run.rows[0].text, run.rows[0].action.text) == ("?", "a?")


def test_token_ids_are_kept_on_request(golden, tmp_path):
    answer = Generation("", Stop.END, message=REPLY, ids=(1, 2), logprobs=(-0.5, -0.1))
    engine = ScriptedEngine(lambda request: answer)
    run = replay(golden, engine, None, tmp_path / "run", ReplayOptions(keep_ids=True, limit=5))
    assert run.rows[0].ids == (1, 2)
    assert run.rows[0].logprobs == (-0.5, -0.1)
    assert run.rows[0].output_tokens == 2
    assert json.loads((tmp_path / "run" / ROWS).read_text().splitlines()[0])["ids"] == [1, 2]


def test_prompts_cut_from_one_rendering_equal_prompts_rendered_alone(golden):
    from firstchair.chat.renderer import Renderer
    from firstchair.train.tiny import build_tokenizer

    texts = [message.text for session in golden.sessions.values() for message in session.messages]
    tokenizer = build_tokenizer(texts, vocab_size=600)
    renderer = Renderer(tokenizer, tokenizer.chat_template)
    assert renderer.append_only
    for session, decisions in golden.by_session():
        tools = golden.tools(session.session_id)
        prompts = session_prompts(session, decisions, tools, renderer)
        alone = [tuple(renderer.prompt_ids(golden.context(decision), tools)) for decision in decisions]
        assert prompts == alone


def test_replay_can_run_inside_an_event_loop(golden, tmp_path):
    from firstchair.evals.replay import replay_async

    async def both():
        return await asyncio.gather(
            *(
                replay_async(golden, ScriptedEngine(gold_of(golden)), None, tmp_path / str(i), ReplayOptions())
                for i in range(2)
            )
        )

    assert [len(run.rows) for run in asyncio.run(both())] == [60, 60]


def rendered_golden(tmp_path, spoil, session_number=1):
    """Three sessions, one of them spoiled, and two renderers: the second has a template that parses arguments."""
    from firstchair.chat.renderer import Renderer
    from firstchair.train.tiny import build_tokenizer

    sessions = [trip_session(number) for number in range(3)]
    sessions[session_number] = spoil(sessions[session_number])
    options = BuildOptions(name="trips", created_at="2026-02-03T00:00:00Z")
    build(sessions, lambda _: trip_tools(), tmp_path / "golden", options)
    tokenizer = build_tokenizer([m.text for s in sessions for m in s.messages], vocab_size=600)
    parses = tokenizer.chat_template.replace("f.arguments if f.arguments is string else ", "")
    assert parses != tokenizer.chat_template
    return (
        GoldenSet.load(tmp_path / "golden", draft=True),
        Renderer(tokenizer, tokenizer.chat_template),
        Renderer(tokenizer, parses),
    )


def test_harmless_extra_calls_and_other_names_count_as_the_frozen_catalog_says(tmp_path):
    when = "2026-02-03T00:00:00Z"
    sessions = [trip_session(number) for number in range(3)]
    build(sessions, lambda _: trip_tools(), tmp_path / "draft", BuildOptions(name="trips", created_at=when))
    plain = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True})
    find = plain.tools[0].model_copy(update={"read_only": True})
    loose = plain.model_copy(
        update={"tools": (find, *plain.tools[1:]), "extra_read_only": 1, "tool_names": {"functions.book": "book"}}
    )
    golden, other = (
        freeze(tmp_path / "draft", tmp_path / name, FreezeOptions(catalog=catalog, scorer=score, created_at=when))
        for name, catalog in (("loose", loose), ("strict", plain))
    )
    gold = gold_of(golden)

    def reply(request):
        calls = gold(request).calls
        if not calls or calls[0].name != "book":
            return gold(request)
        look = ToolCall.of("c2", "find_trips", {"city": "Oslo"})
        return Action(kind="tool_call", calls=(msgspec.structs.replace(calls[0], name="functions.book"), look))

    run = replay(golden, ScriptedEngine(reply), None, tmp_path / "run")
    row = run.rows[1]
    assert (row.scored.strict, row.scored.lenient, row.scored.extra_calls) == ("wrong_tool", "pass", 1)
    assert row.made_tools == ("book", "find_trips")
    assert measure(run.rows)["tool_name"].value == 1.0
    assert rescore(run, golden, tmp_path / "again").rows == run.rows
    assert rescore(run, other, tmp_path / "stricter").rows[1].scored.lenient == "wrong_tool"
    with pytest.raises(ConfigError, match="golden hash"):
        compare(run, load_run(tmp_path / "stricter"))


def with_message(session, index, **changes):
    messages = list(session.messages)
    messages[index] = msgspec.structs.replace(messages[index], **changes)
    return msgspec.structs.replace(session, messages=tuple(messages))


def test_an_image_leaves_out_the_decisions_that_see_it_and_no_other(tmp_path):
    image = (ImagePart(url="https://example.com/a.png"),)
    golden, renderer, _ = rendered_golden(tmp_path, lambda session: with_message(session, 7, content=image))
    engine = ScriptedEngine(gold_of(golden))
    run = replay(golden, engine, renderer, tmp_path / "run")
    out = [row for row in run.rows if not row.obtained]
    assert [row.dp_id for row in out] == ["trip-1:3", "trip-1:4"]
    assert {(row.scored.rule, row.covered, row.stop) for row in out} == {("unrenderable", False, "")}
    assert "an image; this model reads text only" in out[0].error
    assert len(engine.seen) == 13
    (part,) = excluded(run.rows)
    assert part.first == out[0].error
    assert unanswered(run.rows) == []


def test_a_malformed_call_in_the_history_leaves_out_what_a_parsing_template_cannot_say(tmp_path):
    def spoil(session):
        call = session.messages[4].tool_calls[0]
        return with_message(session, 4, content=(), tool_calls=(msgspec.structs.replace(call, arguments="{oops"),))

    golden, _, renderer = rendered_golden(tmp_path, spoil)
    corrected = Action(kind="final_reply", text="Sorry.")
    points = (msgspec.structs.replace(p, gold=corrected) if p.dp_id == "trip-1:1" else p for p in golden.decisions)
    golden = replace(golden, decisions=tuple(points))
    run = replay(golden, ScriptedEngine(lambda request: REPLY), renderer, tmp_path / "run")
    out = [row for row in run.rows if not row.obtained]
    assert [row.dp_id for row in out] == ["trip-1:2", "trip-1:3", "trip-1:4"]
    assert "arguments are not a JSON object" in out[0].error
