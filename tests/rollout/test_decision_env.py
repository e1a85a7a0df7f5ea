from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import Tool, ToolCall, text_message
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.engines.base import Sampling
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.decision_env import CHECKS, ONE_ACTION, DecisionEnvironment, judged
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Environment
from firstchair.rollout.episodes import EpisodeEnd
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.rollout.rollouts import Rollout, RolloutPlan, RolloutStatus, run_rollouts
from firstchair.testing.tokenizers import make_renderer
from firstchair.traces.decisions import Accepted

RENDERER = make_renderer("tiny")
TEXT = {"type": "object", "properties": {"to": {"type": "string"}, "text": {"type": "string"}}, "required": ["to"]}
TOOLS = (Tool(name="send", description="Send it.", parameters=TEXT), Tool(name="look", parameters={"type": "object"}))


def call(name: str, **arguments: Any) -> Action:
    return Action(kind="tool_call", calls=(ToolCall.of("c", name, arguments),))


def reply(text: str) -> Action:
    return Action(kind="final_reply", text=text)


def record(gold: Action, **fields: Any) -> PromptRecord:
    return PromptRecord(id="p", messages=(text_message("user", "Write to Ana."),), tools=TOOLS, gold=gold, **fields)


SEND = call("send", to="Ana", text="hello there")
TWICE = Action(kind="tool_call", calls=(*SEND.calls, *call("look").calls))


@pytest.mark.parametrize(
    ("gold", "action", "failed"),
    [
        (SEND, SEND, set()),
        (SEND, call("send", text="hello there", to="Ana"), set()),
        (SEND, call("send", to="Bob", text="hello there"), {"arguments"}),
        (SEND, call("send", text="hello there"), {"schema_valid", "arguments"}),
        (SEND, call("look"), {"right_tool", "arguments"}),
        (SEND, call("nothing", to="Ana"), {"schema_valid", "right_tool", "arguments"}),
        (SEND, reply("Done."), {"right_tool", "arguments", "termination", "efficiency"}),
        (SEND, TWICE, {"right_tool", "arguments", "efficiency"}),
        (reply("Done."), reply("All right."), set()),
        (reply("Done."), SEND, {"right_tool", "arguments", "termination", "efficiency"}),
        (reply("Done."), reply("  "), set(CHECKS)),
    ],
)
def test_each_fault_fails_its_own_checks(gold: Action, action: Action, failed: set[str]) -> None:
    outcome = judged(record(gold), action)
    assert {check.name for check in outcome.checks if not check.ok} == failed
    assert tuple(check.name for check in outcome.checks) == CHECKS
    assert outcome.completed is (not failed)


def test_matchers_and_accepted_actions_count() -> None:
    loosely = record(SEND, matchers={"send": {"to": "casefold", "text": "ignore"}})
    assert judged(loosely, call("send", to="ANA", text="hi")).completed
    assert not judged(record(SEND), call("send", to="ANA", text="hi")).completed
    either = record(SEND, accept=(Accepted(action=call("look")),))
    assert judged(either, call("look")).completed


def test_what_only_a_judge_can_say_is_undecided_and_not_wrong() -> None:
    outcome = judged(record(SEND, matchers={"send": {"text": "judge"}}), call("send", to="Ana", text="good morning"))
    assert outcome.undecided == ("arguments",)
    assert "arguments" not in {check.name for check in outcome.checks}
    assert all(check.ok for check in outcome.checks)
    assert not outcome.completed


def play(text: str, gold: Action, samples: int = 1) -> list[Rollout]:
    engine = ScriptedEngine(
        lambda _: text, encode=lambda word: [*RENDERER.encoder.encode(word), RENDERER.stop_ids[0]]
    )
    policy = EnginePolicy(engine, RENDERER, Sampling(temperature=1.0))
    plan = RolloutPlan(samples=samples, seed=0, limits=ONE_ACTION)

    async def collect() -> list[Rollout]:
        return [rollout async for rollout in run_rollouts(DecisionEnvironment, [record(gold)], policy, plan)]

    return asyncio.run(collect())


def test_one_action_is_one_episode() -> None:
    rollouts = play(RENDERER.tool_format.render(SEND.calls), SEND, samples=3)
    assert [rollout.solved for rollout in rollouts] == [True] * 3
    assert {(r.episode.steps, r.status, r.episode.task_id) for r in rollouts} == {(1, RolloutStatus.COMPLETED, "p")}


@pytest.mark.parametrize("gold", [SEND, reply("Done.")])
@pytest.mark.parametrize(
    "text", ["<tool_call>{", '<tool_call>\n{"name": "send", "arguments": {"text": "x"}}\n</tool_call>']
)
def test_what_is_malformed_is_no_stop_and_gets_no_second_try(gold: Action, text: str) -> None:
    (rollout,) = play(text, gold)
    assert (rollout.episode.end, rollout.status, rollout.episode.steps) == (
        EpisodeEnd.MALFORMED,
        RolloutStatus.COMPLETED,
        1,
    )
    assert rollout.solved is False
    outcome = rollout.episode.outcome
    assert outcome is not None
    assert {(check.name, check.ok) for check in outcome.checks} == {(name, False) for name in CHECKS}
    assert rollout.segments[0].trained_tokens > 0


def test_it_is_an_environment_of_one_step_that_can_be_branched() -> None:
    async def run() -> None:
        environment = DecisionEnvironment()
        assert isinstance(environment, Environment)
        with pytest.raises(ConfigError, match="found str; expected a PromptRecord"):
            await environment.reset("task", 0)
        with pytest.raises(BadRequest, match="call reset first"):
            await environment.verify()
        await environment.reset(record(SEND), 0)
        start = await environment.snapshot()
        assert (await environment.step(reply("no"))).done
        with pytest.raises(BadRequest, match="one action was taken"):
            await environment.step(SEND)
        assert not (await environment.verify()).completed
        await environment.restore(start)
        await environment.step(SEND)
        assert (await environment.verify()).completed

    asyncio.run(run())
