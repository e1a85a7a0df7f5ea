"""Budgets: what may still be asked, what the policy is told, and how little more than the budget can be spent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from firstchair.chat.messages import Message, assistant_message
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertAnswer
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.purse import Purse
from firstchair.rollout.orchestration.run import traced
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.rollout.rollouts import RolloutPlan, run_rollout
from firstchair.testing.orchestration import (
    COST_NANO,
    ExactGrader,
    ScriptedExperts,
    ScriptedTools,
    calls,
    model_on_offer,
    tool_on_offer,
)

ASK = ("big", {"input": "6*7?"})
ANSWER = assistant_message("FINAL_ANSWER: 42")


def play(purse: Purse, script: Sequence[Message], experts: ScriptedExperts) -> Trajectory:
    offer = (model_on_offer("big"), tool_on_offer("sum"))
    tools = ScriptedTools({"sum": lambda _: "3"})

    def make() -> OrchestrationEnvironment:
        return OrchestrationEnvironment(lambda *_: offer, experts, tools, ExactGrader(), purse=purse)

    task = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")
    policy, plan = EnginePolicy(ScriptedEngine(script)), RolloutPlan(samples=1, seed=0)
    return traced(asyncio.run(run_rollout(make, task, 0, policy, plan)))


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_spent_budget_is_overspent_by_one_call_at_most_and_the_policy_told(at_once: int) -> None:
    purse, experts = Purse(COST_NANO + 1), ScriptedExperts(lambda *_: "42")
    script = [*[calls(*[ASK] * at_once)] * (1 if at_once > 1 else 2), ANSWER]
    found = play(purse, script, experts)
    assert (len(experts.asked), len(found.dispatches)) == (2, 2)
    assert purse.left_nano == 1 - COST_NANO
    assert (found.end, found.final_answer, found.nudges) == ("answered", "42", {"budget": 1})
    heard = [message.text for message in found.messages if message.role == "tool"]
    assert heard == ["42", "42", *["Not made: the budget is spent."] * (at_once - 2)]
    assert found.messages[-2].text.startswith("The budget is spent, no model can be asked any more.")


def test_tools_cost_nothing_and_go_on() -> None:
    script = [calls(ASK), calls(("sum", {})), ANSWER]
    found = play(Purse(1), script, ScriptedExperts(lambda *_: "42"))
    assert [one.name for one in found.dispatches] == ["big", "sum"]
    assert found.end == "answered"


def test_a_policy_that_goes_on_asking_is_ended_and_its_answer_salvaged() -> None:
    experts = ScriptedExperts(lambda *_: "It is 42.")
    found = play(Purse(1), [calls(ASK)] * 5, experts)
    assert len(experts.asked) == 1
    assert (found.end, found.salvaged, found.final_answer) == ("cut", True, "It is 42.")
    assert found.meta["steps"] == 3


def test_after_a_cost_that_nobody_knows_nothing_more_is_asked() -> None:
    experts = ScriptedExperts(lambda *_: ExpertAnswer("", text="42", cost_nano=None))
    found = play(Purse(10**12), [calls(ASK, ASK), ANSWER], experts)
    assert (len(experts.asked), found.expert_cost_nano) == (1, None)


def test_an_expert_that_fails_for_nothing_leaves_the_purse_as_it_was() -> None:
    purse = Purse(5)
    failed = ExpertAnswer("", error="down", error_kind=ErrorKind.CONNECTION, cost_nano=0)
    found = play(purse, [calls(ASK), ANSWER], ScriptedExperts(lambda *_: failed))
    assert (purse.left_nano, found.nudges) == (5, {})
