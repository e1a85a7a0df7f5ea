from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.actions import Action, ParsedReply, Problem
from firstchair.chat.messages import Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.engines.base import Stop
from firstchair.rewards.samples import DecisionReply, NoValue, sample_of_decision, sample_of_episode
from firstchair.rewards.verifiers import VERIFIERS, structured
from firstchair.rollout.environment import Check, Outcome
from firstchair.rollout.episodes import Episode, EpisodeEnd, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.traces.decisions import Accepted, DecisionPoint
from firstchair.traces.session import ModelCall, Session, Usage

TOOLS = (
    Tool(
        name="find",
        parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    ),
    Tool(name="book", parameters={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}),
)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall.of("c", name, arguments)


def act(*calls: ToolCall, text: str = "") -> Action:
    return Action(kind="tool_call" if calls else "final_reply", calls=calls, text=text)


FIND, STOP = act(call("find", city="Oslo")), act(text="Here you are.")


def problem(kind: Any, *calls: ToolCall, text: str = "") -> ParsedReply:
    return ParsedReply(calls=calls, text=text, problems=(Problem(kind=kind, message="m"),))


def values(gold: Action, reply: Any, *, stop: Stop = Stop.END, accept: tuple[Accepted, ...] = (), **rules: Any):
    point = DecisionPoint(
        dp_id="s:0", session_id="s", turn=0, seq=0, context_end=1, observed=gold, gold=gold, accept=accept
    )
    made = DecisionReply(point, TOOLS, reply, Matchers.of(rules), stop)
    sample = sample_of_decision("x", made, (text_message("user", "hi"),))
    names = ("schema_valid", "right_tool", "arguments", "termination", "efficiency")
    return tuple(VERIFIERS[name](sample) for name in names)


@pytest.mark.parametrize(
    ("gold", "reply", "expected"),
    [
        # schema, tool, arguments, termination, efficiency
        (FIND, FIND, (1, 1, 1, 1, 1)),
        (FIND, act(call("find", city="Rome")), (1, 1, 0, 1, 1)),
        (FIND, act(call("find", city=5)), (0, 1, 0, 1, 1)),
        (FIND, act(call("find", city="Oslo"), call("find", city="Oslo")), (1, 0, 0, 1, 0.5)),
        (FIND, act(call("book", id=1)), (1, 0, 0, 1, 1)),
        (FIND, act(call("fly", id=1)), (0, 0, 0, 1, 1)),
        (FIND, STOP, (1, 0, 0, 0, 0)),
        (STOP, STOP, (1, 1, 1, 1, 1)),
        (STOP, act(text="Other words."), (1, 1, 1, 1, 1)),
        (STOP, FIND, (1, 0, 0, 0, 0)),
        (STOP, act(text=" \n"), (0, 0, 0, 0, 0)),
        (FIND, act(ToolCall(id="c", name="find", arguments='{"city": "Os')), (0, 0, 0, 0, 0)),
    ],
)
def test_one_reply_is_scored_by_each_verifier(gold, reply, expected):
    assert values(gold, reply) == expected


@pytest.mark.parametrize("kind", ["malformed_json", "unclosed_call", "unclosed_thinking", "truncated"])
@pytest.mark.parametrize("gold", [FIND, STOP])
def test_what_cannot_be_read_is_never_taken_for_no_call(gold, kind):
    assert values(gold, problem(kind, text="Here you are.")) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("gold", [FIND, STOP])
def test_a_reply_that_was_cut_is_neither_a_call_nor_a_stop(gold):
    assert values(gold, gold, stop=Stop.LENGTH) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["text_after_call", "duplicate_call"])
def test_an_untidy_call_is_readable_and_no_clean_ending(kind):
    assert values(FIND, problem(kind, *FIND.calls)) == (1, 1, 1, 0, 1)


def test_a_refusal_is_no_clean_ending():
    assert values(STOP, STOP, stop=Stop.REFUSAL)[3] == 0


def test_accepted_actions_count_as_the_gold_one_does():
    accept = (Accepted(action=act(call("book", id=7))), Accepted(action=STOP))
    assert values(FIND, act(call("book", id=7)), accept=accept) == (1, 1, 1, 1, 1)
    assert values(FIND, STOP, accept=accept)[1::2] == (1, 1)


def test_what_only_a_judge_can_compare_has_no_value():
    found = values(FIND, act(call("find", city="Oslo, Norway")), find={"city": "judge"})
    assert found[:2] == (1, 1)
    assert found[2] == NoValue("undecided", "city")


def test_no_action_has_no_value_and_neither_has_a_sample_of_another_kind():
    assert {found.why for found in values(FIND, None)} == {"no_action"}
    made = DecisionReply(
        DecisionPoint(dp_id="s:0", session_id="s", turn=0, seq=0, context_end=0, observed=STOP), (), STOP
    )
    sample = sample_of_decision("x", made, ())
    assert VERIFIERS["completed"](sample).why == "no_episode"
    assert VERIFIERS["right_tool"](replace(sample, decision=None)).why == "no_decision"


def played() -> Episode:
    task = WordTask(task_id="t", words=("fox",))

    async def first() -> Episode:
        async for one in run_episodes(WordEnvironment, [task], TeacherPolicy(WordExpert())):
            return one
        raise AssertionError("no episode")

    return asyncio.run(first())


PLAYED = played()


def episode(outcome: Outcome | None, error: str | None = None, **fields: Any) -> Episode:
    asked = call("find", city="Oslo")
    messages = (
        text_message("system", "s"),
        text_message("user", "Find."),
        assistant_message("Looking.", calls=(asked,)),
        tool_result(asked, "no such city", is_error=True),
        assistant_message("Not found."),
    )
    session = Session(session_id="e", messages=fields.pop("messages", messages), labels={"task_id": "t"}, **fields)
    end = EpisodeEnd.ERROR if error else EpisodeEnd.DONE
    return replace(PLAYED, session=session, tools=TOOLS, outcome=outcome, end=end, error=error)


def of_episode(outcome: Outcome | None, error: str | None = None) -> tuple[Any, ...]:
    sample = sample_of_episode(episode(outcome, error))
    return tuple(VERIFIERS[name](sample) for name in ("completed", "no_violations", "checks"))


def test_an_episode_is_scored_by_its_outcome():
    checks = (Check("a", True), Check("b", False), Check("c", True), Check("d", True))
    assert of_episode(Outcome(False, checks, ("share",))) == (0, 0, 0.75)
    assert of_episode(Outcome(True, checks[:1])) == (1, 1, 1)
    assert of_episode(Outcome(True))[2] == NoValue("no_checks", "the task has no checks")


def test_an_environment_that_grades_gives_its_own_score():
    def score(outcome: Outcome | None) -> Any:
        return VERIFIERS["score"](sample_of_episode(episode(outcome, None if outcome else "boom")))

    assert score(Outcome(False, score=-0.25)) == -0.25
    assert score(Outcome(True)) == NoValue("no_score", "the environment gives no score")
    assert score(None) == NoValue("episode_failed", "boom")


def test_an_outcome_that_nobody_can_decide_is_no_score():
    assert of_episode(Outcome(False, undecided=("correct",)))[0] == NoValue("undecided", "correct")
    assert of_episode(Outcome(False, (Check("a", False),), undecided=("correct",)))[0] == 0


def test_an_episode_that_broke_has_no_value():
    assert of_episode(None, "environment.step: boom") == (NoValue("episode_failed", "environment.step: boom"),) * 3


def test_a_judge_sees_an_episode_as_json_that_a_reply_cannot_break_out_of():
    sample = sample_of_episode(episode(Outcome(True)), {"row": "x"})
    assert sample.question == '[{"role": "system", "text": "s"}, {"role": "user", "text": "Find."}]'
    assert sample.answer.startswith('[{"role": "assistant", "text": "Looking.", "calls": [{"tool": "find"')
    assert '"is_error": true' in sample.answer
    assert sample.final_text == "Not found."
    assert sample.labels == {"task_id": "t", "row": "x"}
    assert (sample.cost_usd, sample.latency_s, sample.reply_tokens) == (None, None, None)
    silent = episode(Outcome(True), messages=(text_message("user", "Find."), assistant_message("  ")))
    assert sample_of_episode(silent).answer == ""


def test_what_an_episode_used_is_the_sum_of_its_calls_and_unknown_when_one_is():
    calls = [ModelCall(call_id=str(n), cost_usd=0.01, latency_ms=500.0, usage=Usage(output=7)) for n in range(3)]
    sample = sample_of_episode(episode(Outcome(True), calls=tuple(calls)))
    assert (sample.cost_usd, sample.latency_s, sample.reply_tokens) == (pytest.approx(0.03), 1.5, 21)
    calls.append(ModelCall(call_id="x", latency_ms=500.0, usage=Usage(output=7)))
    assert sample_of_episode(episode(Outcome(True), calls=tuple(calls))).cost_usd is None


def test_what_an_environment_measured_reaches_the_sample():
    assert sample_of_episode(episode(Outcome(True, measures={"cost_usd": 0.25}))).measures == {"cost_usd": 0.25}
    assert sample_of_episode(episode(None, "boom")).measures == {}


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ('{"n": 1}', "json", 1),
        ('Sure:\n```json\n{"n": 1}\n```', "json", 1),
        ('```json\n{"n": "x"}\n```\n```json\n{"n": 1}\n```\nDone.', "json", 1),
        ('Sure: {"n": 1}', "json", 0),
        ('{"n": "1"}', "json", 0),
        ('{"n": 1, "n": 2}', "json", 0),
        ("", "json", 0),
        ("n: 1", "yaml", 1),
        ("```yaml\nn: 1\n```", "yaml", 1),
        ("n: one", "yaml", 0),
        ("n: [", "yaml", 0),
        ("", "yaml", 0),
    ],
)
def test_structured_output_is_parsed_strictly_and_checked(text, form, expected):
    sample = replace(sample_of_episode(episode(Outcome(True))), final_text=text)
    assert structured(sample, SCHEMA, form) == expected
