"""An orchestration led by a model behind a real server, through OpenAI's SDK."""

from __future__ import annotations

import asyncio
import json

import pytest

from firstchair.catalog.prices import ModelPrice, PriceTable
from firstchair.chat.messages import ToolCall
from firstchair.chat.openai_calls import replayable
from firstchair.chat.openai_wire import messages_to_openai, tools_to_openai
from firstchair.rollout.http_policy import HttpPolicy
from firstchair.rollout.live_episode import Limits
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import COST_NANO, ExactGrader, ScriptedExperts, model_on_offer, tool_on_offer
from firstchair.testing.scripted_answers import Fault, Reply, Script, Seen
from firstchair.testing.scripted_upstream import ScriptedUpstream, scripted_upstream

OFFER = (model_on_offer("big"), model_on_offer("small"), tool_on_offer("web_search", "web_search"))
TASK = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")
PRICES = PriceTable("test", {"leader": ModelPrice.model_validate({"input": 1, "output": 2})})
ANSWERED, FAILED = TrajectoryEnd.ANSWERED, TrajectoryEnd.FAILED


BOTH = (ToolCall.of("a1", "big", {"input": "6*7?"}), ToolCall.of("a2", "small", {"input": "6*7?"}))
UNREADABLE = ToolCall(id="a3", name="big", arguments='{"input": "6*')
SAID = (
    Reply(text="I ask both.", calls=BOTH),
    Reply(text="Once more.", calls=(UNREADABLE,)),
    Reply(text="They agree.\nFINAL_ANSWER: 42"),
)


def reply(seen: Seen) -> Reply:
    """By how far the rollout has come. A history that cannot be read is refused, as vLLM and llama.cpp do."""
    messages = seen.body["messages"]
    try:
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            json.loads(call["function"]["arguments"])
    except json.JSONDecodeError as error:
        return Reply(fault=Fault("status", status=400, message=str(error)))
    return SAID[sum(message["role"] == "assistant" for message in messages)]


def play(
    server: ScriptedUpstream, *, stream: bool = False, limits: Limits | None = None
) -> tuple[Trajectory, ScriptedExperts]:
    experts = ScriptedExperts(lambda *_: "42")

    async def go() -> Trajectory:
        async with HttpPolicy("openai", f"{server.base_url}/v1", "leader", stream=stream, max_retries=0) as policy:
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


@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_orchestration_with_parallel_calls_and_an_unreadable_one(stream: bool) -> None:
    with scripted_upstream(Script(by=reply)) as server:
        found, experts = play(server, stream=stream)
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
    # The record has the call as it was written, and why it was not made.
    assert found.messages[5].tool_calls == (UNREADABLE,)
    assert found.messages[6].is_error
    assert found.messages[6].text.endswith("Send the call again.")
    # What the server saw is the offer, and the history with nothing of the SDK's own in it.
    assert all(seen.body["tools"] == tools_to_openai([one.tool for one in OFFER]) for seen in server.requests)
    assert server.requests[2].body["messages"] == messages_to_openai(replayable(found.messages[:7]))


def test_the_episodes_limit_on_tokens_reaches_the_server() -> None:
    with scripted_upstream(Script(by=reply)) as server:
        play(server, limits=Limits(max_tokens=100))
    # Each answer takes five.
    assert [seen.body["max_tokens"] for seen in server.requests] == [100, 95, 90]


def test_a_server_that_fails_on_the_way_is_typed_and_what_was_asked_is_kept() -> None:
    with scripted_upstream(Script((SAID[0], Reply(fault=Fault("status", status=429))))) as server:
        found, _ = play(server)
    assert (found.end, found.correct) == (FAILED, None)
    assert (found.error or "").startswith("rate_limited: RateLimitError")
    assert [one.name for one in found.dispatches] == ["big", "small"]
