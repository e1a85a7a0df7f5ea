"""An orchestration led by a model behind a real server, through the official SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.chat.anthropic_wire import messages_to_anthropic, tools_to_anthropic
from firstchair.chat.messages import Message, ToolCall
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.rollout.http_policy import HttpPolicy
from firstchair.rollout.live_episode import Limits
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import COST_NANO, ExactGrader, ScriptedExperts, model_on_offer, tool_on_offer
from firstchair.testing.scripted_answers import Fault, Reply, Script
from firstchair.testing.scripted_upstream import ScriptedUpstream, scripted_upstream

OFFER = (model_on_offer("big"), model_on_offer("small"), tool_on_offer("web_search", "web_search"))
TASK = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")
PRICES = PriceTable("test", {"leader": ModelPrice.model_validate({"input": 1, "output": 2})})
ANSWERED, FAILED = TrajectoryEnd.ANSWERED, TrajectoryEnd.FAILED


def said(unreadable: str) -> tuple[Reply, ...]:
    """Two calls at once, one that cannot be read, the answer."""
    both = (ToolCall.of("a1", "big", {"input": "6*7?"}), ToolCall.of("a2", "small", {"input": "6*7?"}))
    return (
        Reply(text="I ask both.", calls=both),
        Reply(text="Once more.", calls=(ToolCall(id="a3", name="big", arguments=unreadable),)),
        Reply(text="They agree.\nFINAL_ANSWER: 42"),
    )


SAID = {"openai": said('{"input": "6*'), "anthropic": said('{"input": {"no": "text"}}')}
"""Anthropic's SDK mends broken JSON, so there it is a call that breaks its schema."""


def script(dialect: str) -> Script:
    return Script(by=lambda seen: SAID[dialect][sum(one["role"] == "assistant" for one in seen.body["messages"])])


def offered(dialect: str) -> list[Any]:
    tools = tuple(one.tool for one in OFFER)
    return tools_to_openai(tools) if dialect == "openai" else tools_to_anthropic(tools)


def sent(dialect: str, messages: Sequence[Message]) -> list[Any]:
    return messages_to_openai(messages) if dialect == "openai" else messages_to_anthropic(messages).messages


def play(
    server: ScriptedUpstream, dialect: Any, *, stream: bool = False, limits: Limits | None = None, options: Any = None
) -> tuple[Trajectory, ScriptedExperts]:
    experts, url = (
        ScriptedExperts(lambda *_: "42"),
        f"{server.base_url}/v1" if dialect == "openai" else server.base_url,
    )

    async def go() -> Trajectory:
        async with HttpPolicy(dialect, url, "leader", stream=stream, max_retries=0, options=options or {}) as policy:
            played = run_orchestrations(
                lambda: OrchestrationEnvironment(lambda *_: OFFER, experts, None, ExactGrader()),
                [TASK],
                policy,
                RolloutPlan(samples=1, seed=0, limits=limits or Limits()),
                prices=PRICES,
            )
            (found,) = [one async for one in played]
            return found

    return asyncio.run(go()), experts


@pytest.mark.parametrize(("dialect", "stream"), [("openai", False), ("openai", True), ("anthropic", True)])
def test_a_whole_orchestration_with_parallel_calls_and_an_unreadable_one(dialect: str, stream: bool) -> None:
    with scripted_upstream(script(dialect)) as server:
        found, experts = play(server, dialect, stream=stream)
    assert (found.end, found.final_answer, found.correct, found.error) == (ANSWERED, "42", True, None)
    assert experts.asked == [("big", "6*7?"), ("small", "6*7?")]
    assert [(one.step, one.name, one.cost_nano) for one in found.dispatches] == [
        (0, "big", COST_NANO),
        (0, "small", COST_NANO),
    ]
    assert (found.parse_failures, found.meta["steps"]) == (1, 3)
    assert (found.policy_model, found.policy_cost_nano) == ("leader", 3 * (10 * 1000 + 5 * 2000))
    roles = [message.role for message in found.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [message.tool_call_id for message in found.messages if message.role == "tool"] == ["a1", "a2", "a3"]
    assert found.messages[6].is_error
    assert found.messages[6].text.endswith("Send the call again.")
    # What the server saw is the offer, and the history with nothing of the SDK's own in it.
    assert {str(seen.body["tools"]) for seen in server.requests} == {str(offered(dialect))}
    assert server.requests[2].body["messages"] == sent(dialect, found.messages[:7])


def test_the_episodes_limit_on_tokens_reaches_the_server() -> None:
    with scripted_upstream(script("openai")) as server:
        play(server, "openai", limits=Limits(max_tokens=100))
        play(server, "openai", limits=Limits(max_tokens=100), options={"max_completion_tokens": 97})
        play(server, "openai", options={"max_tokens": 7})
    with scripted_upstream(script("anthropic")) as anthropic:
        play(anthropic, "anthropic", limits=Limits(max_tokens=100))
    # Each answer takes five.
    assert [seen.body.get("max_tokens") for seen in server.requests] == [100, 95, 90, None, None, None, 7, 7, 7]
    assert [seen.body.get("max_completion_tokens") for seen in server.requests[3:6]] == [97, 95, 90]
    assert [seen.body["max_tokens"] for seen in anthropic.requests] == [100, 95, 90]


def test_a_server_that_fails_on_the_way_is_typed_and_what_was_asked_is_kept() -> None:
    first, *_ = SAID["openai"]
    busy = Reply(fault=Fault("status", status=429))
    with scripted_upstream(Script((first, busy))) as server:
        found, _ = play(server, "openai")
    assert (found.end, found.correct) == (FAILED, None)
    assert (found.error or "").startswith("rate_limited: RateLimitError")
    assert [one.name for one in found.dispatches] == ["big", "small"]
