"""Calls as text: what a model that was trained on them reads, and that nothing of the wire's own tools gets in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firstchair.chat.messages import Message, ThinkingPart, ToolCall, assistant_message, text_message, tool_result
from firstchair.engines.base import ErrorKind, Sampling
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.prompt_calls import PromptCalls, as_text
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import ExactGrader, ScriptedExperts, model_on_offer
from firstchair.testing.tokenizers import make_renderer

OFFER = (model_on_offer("big"),)
TOOLS = tuple(one.tool for one in OFFER)
TASK = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")
CALL = '<tool_call>\n{"name": "big", "arguments": {"input": "6*7?"}}\n</tool_call>'


def play(replies: Sequence[str | Message]) -> tuple[Trajectory, ScriptedEngine]:
    # A server's answer is a message; what it holds of calls is text.
    engine = ScriptedEngine([text_message("assistant", one) if isinstance(one, str) else one for one in replies])
    policy = PromptCalls(EnginePolicy(engine, None, Sampling()))

    def make() -> OrchestrationEnvironment:
        return OrchestrationEnvironment(
            lambda task, seed: OFFER, ScriptedExperts(lambda *_: "42"), None, ExactGrader()
        )

    async def run() -> Trajectory:
        (found,) = [one async for one in run_orchestrations(make, [TASK], policy, RolloutPlan(samples=1, seed=0))]
        return found

    return asyncio.run(run()), engine


def test_a_rollout_by_text_is_the_same_record_and_nothing_about_tools_is_on_the_wire() -> None:
    found, engine = play([f"I ask.\n{CALL}", "FINAL_ANSWER: 42"])
    assert (found.end, found.correct, found.tools) == (TrajectoryEnd.ANSWERED, True, TOOLS)
    assert [call.name for message in found.messages for call in message.tool_calls] == ["big"]
    assert "<tools>" not in found.messages[0].text
    for request in engine.seen:
        assert request.tools == ()
        assert {message.role for message in request.messages} <= {"system", "user", "assistant"}
        assert not any(message.tool_calls for message in request.messages)
    system, _, asked, answered = engine.seen[1].messages
    assert system.text.startswith(found.messages[0].text)
    assert '"name": "big"' in system.text
    assert asked.text == f"I ask.\n{CALL}"
    assert answered.text == "<tool_response>\n42\n</tool_response>"


def test_the_text_is_what_the_pinned_template_writes() -> None:
    call, other = ToolCall.of("a", "big", {"input": "x"}), ToolCall.of("b", "big", {"input": "y"})
    messages = (
        text_message("system", "Be brief."),
        text_message("user", "Problem: x"),
        assistant_message("Two.", calls=(call, other)),
        tool_result(call, "1"),
        tool_result(other, "no", is_error=True),
        text_message("user", "Go on."),
    )
    renderer = make_renderer("qwen3")
    native = renderer.text(messages, TOOLS, add_generation_prompt=True)
    assert renderer.text(as_text(messages, TOOLS), (), add_generation_prompt=True) == native


def test_what_cannot_be_read_is_malformed_as_it_is_elsewhere() -> None:
    broken = '<tool_call>\n{"name": "big", "arguments": {"input": \n</tool_call>'
    found, _ = play([broken, f"<think>\nhm\n</think>\n\n{CALL}", "FINAL_ANSWER: 42"])
    assert (found.parse_failures, found.correct) == (1, True)
    assert [part.text for part in found.messages[4].content if isinstance(part, ThinkingPart)] == ["hm"]


def test_a_server_that_parses_calls_itself_is_an_error_and_no_mixture() -> None:
    found, _ = play([assistant_message(calls=(ToolCall.of("a", "big", {"input": "x"}),))])
    assert found.end is TrajectoryEnd.FAILED
    assert found.error is not None
    assert found.error.startswith(f"{ErrorKind.BAD_REQUEST}: the server parses tool calls itself")
