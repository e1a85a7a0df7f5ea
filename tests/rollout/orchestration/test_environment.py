"""What one orchestration rollout does: dispatches, caps, nudges, ends, and what is measured of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message, ToolCall, assistant_message, tool_result
from firstchair.core.errors import UpstreamError
from firstchair.engines.base import ErrorKind, Request, Sampling
from firstchair.engines.expert import ExpertAnswer
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.samples import NoValue, sample_of_episode
from firstchair.rewards.verifiers import VERIFIERS
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Closing, Conducting, Environment
from firstchair.rollout.orchestration import prompt
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.offer import OnOffer
from firstchair.rollout.orchestration.run import trajectory_of
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.rollouts import Rollout, RolloutPlan, run_rollouts
from firstchair.testing.orchestration import (
    COST_NANO,
    USAGE,
    ExactGrader,
    ScriptedExperts,
    ScriptedTools,
    calls,
    failing,
    model_on_offer,
    never,
    tool_on_offer,
)

TASK = OrchestrationTask(task_id="t", problem="What is 6 · 7?", gold_answer="42")
OFFER = (model_on_offer("big"), model_on_offer("model_x7k2", "small"), tool_on_offer("web_search", "web_search"))
ANSWER = assistant_message("It is clear.\nFINAL_ANSWER: 42")
ASK_BIG = calls(("big", {"input": "6*7?"}))


def environment(
    answer: Callable[[str, str], Any] = lambda expert, question: "42",
    tools: Callable[[dict[str, Any]], str] = lambda arguments: "found",
    offer: Sequence[OnOffer] = OFFER,
    **limits: Any,
) -> OrchestrationEnvironment:
    return OrchestrationEnvironment(
        lambda task, seed: offer,
        ScriptedExperts(answer),
        ScriptedTools({"web_search": tools}),
        ExactGrader(),
        OrchestrationLimits(**limits),
    )


def play(
    made: OrchestrationEnvironment, *replies: Message, task: OrchestrationTask = TASK, max_steps: int = 12
) -> tuple[Trajectory, Rollout, list[Request]]:
    """One rollout of a policy that says ``replies``."""
    engine = ScriptedEngine(list(replies), model="policy-1")
    policy = EnginePolicy(engine, None, Sampling(seed=0))

    async def run() -> Rollout:
        plan = RolloutPlan(samples=1, seed=0, max_steps=max_steps)
        (rollout,) = [one async for one in run_rollouts(lambda: made, [task], policy, plan)]
        return rollout

    rollout = asyncio.run(run())
    return trajectory_of(rollout), rollout, engine.seen


def measures(rollout: Rollout) -> dict[str, float]:
    assert rollout.episode.outcome is not None
    return dict(rollout.episode.outcome.measures)


def test_it_is_an_environment_of_every_kind() -> None:
    made = environment()
    assert isinstance(made, Environment)
    assert isinstance(made, Closing)
    assert isinstance(made, Conducting)


def test_a_rollout_asks_and_answers_and_everything_is_counted_apart() -> None:
    def experts(expert: str, question: str) -> str | ExpertAnswer:
        # A simulated expert tells how long it would have taken.
        return "42" if expert == "big" else ExpertAnswer("", "43", usage=USAGE, cost_nano=7, latency_s=2.0)

    made = environment(experts)
    both = calls(("big", {"input": "6*7?"}), ("model_x7k2", {"input": "six times seven"}), text="Two at once.")
    found, rollout, seen = play(made, both, calls(("web_search", {"query": "7"})), ANSWER)
    assert (found.end, found.correct, found.final_answer, found.salvaged) == (
        TrajectoryEnd.ANSWERED,
        True,
        "42",
        False,
    )
    assert (found.graded_by, found.policy_model, found.error) == ("exact", "policy-1", None)
    assert [message.role for message in found.messages] == [
        *("system", "user", "assistant", "tool", "tool"),
        *("assistant", "tool", "assistant"),
    ]
    assert found.messages[1].text == "Problem: What is 6 · 7?"
    assert [message.text for message in found.messages if message.role == "tool"] == ["42", "43", "found"]
    assert [tool.name for tool in found.tools] == ["big", "model_x7k2", "web_search"]
    assert seen[0].tools == found.tools
    assert found.labels == {"model_x7k2": "small"}
    big, small, search = found.dispatches
    assert (big.step, big.label, big.name, big.kind) == (0, "big", "big", "model")
    assert (big.cost_nano, big.latency_s, big.usage, big.served_model) == (COST_NANO, 0.5, USAGE, "big-2026")
    assert (small.step, small.label, small.name, small.cost_nano, small.latency_s) == (
        0,
        "model_x7k2",
        "small",
        7,
        2.0,
    )
    assert (search.step, search.usage, search.cost_nano, search.error_kind) == (1, None, 0, None)
    assert found.expert_cost_nano == COST_NANO + 7
    took = measures(rollout)
    assert took.pop("latency_s") >= 2.0  # of two at once the longer, and the search
    assert took == {
        "cost_usd": (COST_NANO + 7) / 1e9,
        "calls": 3,
        "calls.big": 1,
        "calls.small": 1,
        "calls.web_search": 1,
        "faults": 0,
        "unpriced": 0,
        "parse_failures": 0,
        "nudges": 0,
        "salvaged": 0,
    }
    assert sample_of_episode(rollout.episode).measures["calls.web_search"] == 1
    assert made._toolset.closed  # type: ignore[union-attr]
    assert not made._dispatcher.experts.closed  # type: ignore[attr-defined]


def test_a_tool_is_called_by_its_own_name_and_an_expert_hears_its_question_alone() -> None:
    asked = ScriptedExperts(lambda expert, question: "42")
    made = OrchestrationEnvironment(lambda task, seed: OFFER, asked, None, ExactGrader())
    play(made, calls(("model_x7k2", {"input": " six times seven "})), ANSWER)
    assert asked.asked == [("small", "six times seven")]


# --- caps --------------------------------------------------------------------------------------------------------


def test_an_observation_is_cut_at_its_cap_and_says_so() -> None:
    found, _, _ = play(environment(lambda *_: "x" * 9_000), ASK_BIG, ANSWER)
    assert found.messages[3].text == "x" * 8_000 + "\n[1,000 more characters cut]"
    assert found.dispatches[0].cut


def test_the_oldest_exchanges_are_no_longer_shown_and_never_the_problem() -> None:
    answers = iter("abcde")
    ask = [calls(("big", {"input": str(number)})) for number in range(5)]
    made = environment(lambda *_: next(answers) * 8_000)
    found, _, seen = play(made, *ask, ANSWER)
    shown = [[message.text[0] for message in request.messages if message.role == "tool"] for request in seen]
    # Two observations of 8,000 and their calls are under 24,000; three are over it.
    assert shown == [[], ["a"], ["a", "b"], ["b", "c"], ["c", "d"], ["d", "e"]]
    assert all(request.messages[:2] == seen[0].messages for request in seen)
    assert all(request.messages[2].role == "assistant" for request in seen[1:])
    assert [message.text[0] for message in found.messages if message.role == "tool"] == list("abcde")
    assert len({request.request_id for request in seen}) == 6


@pytest.mark.parametrize(("chars", "shown"), [(24_000, 3), (24_001, 2)])
def test_the_cap_of_the_history_is_inclusive(chars: int, shown: int) -> None:
    exchange = (assistant_message("a" * 6_000), tool_result(ASK_BIG.tool_calls[0], "b" * 2_000))
    last = (assistant_message("a" * 6_000), tool_result(ASK_BIG.tool_calls[0], "b" * (chars - 22_000)))
    opening = prompt.opening(TASK)
    made = environment()
    found = made.shown((*opening, *exchange, *exchange, *last))
    assert found[:2] == opening
    assert sum(message.role == "assistant" for message in found) == shown


def test_a_rollout_may_be_fifty_steps_long_and_not_one_longer() -> None:
    ask = [calls(("big", {"input": str(number)})) for number in range(50)]
    found, rollout, _ = play(environment(), *ask[:49], ANSWER, max_steps=50)
    assert (found.end, rollout.episode.steps, len(found.dispatches)) == (TrajectoryEnd.ANSWERED, 50, 49)
    found, rollout, _ = play(environment(), *ask, ANSWER, max_steps=50)
    assert (found.end, rollout.episode.steps) == (TrajectoryEnd.MAX_STEPS, 50)


def test_after_six_calls_a_note_asks_for_the_answer() -> None:
    ask = [calls(("big", {"input": str(number)})) for number in range(7)]
    found, _, seen = play(environment(), *ask, ANSWER)
    noted = [request.messages[-1].text == prompt.ASK_FOR_ANSWER for request in seen]
    assert noted == [False] * 6 + [True] * 2
    assert found.nudges == {"answer_now": 2}


# --- nudges and parse failures -----------------------------------------------------------------------------------


def test_a_policy_that_asks_nobody_is_told_to_twice_and_then_believed() -> None:
    found, _, _ = play(environment(), ANSWER, ANSWER, ANSWER)
    assert [message.text for message in found.messages if message.role == "user"][1:] == [prompt.NO_DELEGATION] * 2
    assert (found.end, found.correct, found.nudges) == (TrajectoryEnd.ANSWERED, True, {"no_delegation": 2})
    # A tool is no delegation, a model is; without models there is nobody to ask.
    search = calls(("web_search", {"query": "7"}))
    assert play(environment(), search, ANSWER, ASK_BIG, ANSWER)[0].nudges == {"no_delegation": 1}
    assert play(environment(offer=OFFER[2:]), search, ANSWER)[0].nudges == {}


def test_an_empty_call_is_taken_back_thrice_and_then_ends_the_rollout() -> None:
    blank = [calls(("big", {"input": " "})), calls(("big", {})), calls(("web_search", {"query": None}))]
    found, _, seen = play(environment(), *blank, ASK_BIG, ANSWER)
    assert (found.correct, found.nudges, found.parse_failures) == (True, {"empty_input": 3}, 0)
    assert [call.arguments for message in found.messages for call in message.tool_calls] == ['{"input": "6*7?"}']
    assert "big was empty" in seen[1].messages[-1].text
    assert len(found.dispatches) == 1
    found, _, _ = play(environment(), *blank, calls(("big", {"input": ""})), ANSWER)
    assert (found.end, found.correct, found.graded_by) == (TrajectoryEnd.PARSE_FAILURES, False, "no_answer")


def test_unknown_tools_and_unreadable_calls_are_parse_failures_and_two_end_it() -> None:
    unknown = calls(("huge", {"input": "x"}), ("big", {"input": "y"}))
    broken = assistant_message(calls=(ToolCall(id="", name="big", arguments='{"input": '),))
    found, _, _ = play(environment(), unknown, ASK_BIG, ANSWER)
    assert (found.end, found.correct, found.parse_failures) == (TrajectoryEnd.ANSWERED, True, 1)
    told = [message.text for message in found.messages if message.role == "tool"]
    assert told[0] == "Not run: there is no tool 'huge'. The tools are: big, model_x7k2, web_search."
    assert told[1] == prompt.WITH_ANOTHER
    assert len(found.dispatches) == 1
    for first, second in ((unknown, unknown), (unknown, broken), (broken, unknown), (broken, broken)):
        found, rollout, _ = play(environment(), first, second, ANSWER)
        assert (found.end, found.parse_failures) == (TrajectoryEnd.PARSE_FAILURES, 2)
        assert rollout.episode.steps == 2
        assert measures(rollout)["parse_failures"] == 2


# --- ends and salvage --------------------------------------------------------------------------------------------


def test_a_rollout_that_runs_out_of_steps_is_salvaged_from_what_was_said_or_heard() -> None:
    found, _, _ = play(environment(lambda *_: "I think FINAL_ANSWER: 42"), ASK_BIG, ASK_BIG, max_steps=2)
    assert (found.end, found.salvaged, found.final_answer, found.correct) == (
        TrajectoryEnd.MAX_STEPS,
        True,
        "42",
        True,
    )
    said = calls(("big", {"input": "sure?"}), text="FINAL_ANSWER: 41, I guess")
    found, _, _ = play(environment(), said, ASK_BIG, max_steps=2)
    assert (found.final_answer, found.correct) == ("41, I guess", False)
    found, _, _ = play(environment(lambda *_: failing(ErrorKind.TIMEOUT)), ASK_BIG, max_steps=1)
    assert (found.final_answer, found.salvaged, found.graded_by) == ("", False, "no_answer")


def test_an_answer_of_no_words_is_salvaged_too() -> None:
    found, _, _ = play(environment(), ASK_BIG, assistant_message("  "))
    assert (found.end, found.salvaged, found.final_answer) == (TrajectoryEnd.ANSWERED, True, "42")


def test_an_answer_that_nobody_can_grade_is_undecided_and_no_score() -> None:
    found, rollout, _ = play(environment(), ASK_BIG, ANSWER, task=OrchestrationTask(task_id="t", problem="?"))
    assert (found.end, found.correct, found.graded_by) == (TrajectoryEnd.ANSWERED, None, "no gold answer")
    assert VERIFIERS["completed"](sample_of_episode(rollout.episode)) == NoValue("undecided", "correct")


# --- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_a_fault_of_an_expert_is_an_observation_typed_and_counted_and_tells_no_name(kind: ErrorKind) -> None:
    wrong = assistant_message("FINAL_ANSWER: 41")
    ask = calls(("model_x7k2", {"input": "6*7?"}))
    for answer, right in ((ANSWER, True), (wrong, False)):
        found, rollout, _ = play(environment(lambda *_: failing(kind, "small at secret.example is ill")), ask, answer)
        (dispatch,) = found.dispatches
        assert (dispatch.error_kind, dispatch.error) == (kind, "small at secret.example is ill")
        observed = found.messages[3]
        assert observed.is_error
        assert observed.text.startswith("No answer from model_x7k2: ")
        assert "small" not in observed.text
        assert "secret" not in observed.text
        own_doing = kind is ErrorKind.CONTEXT_OVERFLOW
        assert measures(rollout)["faults"] == (0 if own_doing else 1)
        # Wrong after a fault says nothing about the policy; right is right.
        value = VERIFIERS["completed"](sample_of_episode(rollout.episode))
        assert value == (float(right) if right or own_doing else NoValue("undecided", "correct"))
        assert found.correct is right


def test_an_expert_that_never_answers_is_a_timeout_of_that_call() -> None:
    found, _, _ = play(environment(never, dispatch_s=0.05), ASK_BIG, ANSWER)
    (dispatch,) = found.dispatches
    assert (dispatch.error_kind, dispatch.cost_nano, found.correct) == ("timeout", None, True)
    assert "no answer within 0.05 s" in dispatch.error


def test_a_price_that_is_missing_is_no_price_of_zero() -> None:
    found, rollout, _ = play(environment(lambda *_: ExpertAnswer("", "42", cost_nano=None)), ASK_BIG, ANSWER)
    assert found.expert_cost_nano is None
    assert "cost_usd" not in measures(rollout)
    assert measures(rollout)["unpriced"] == 1


def test_an_empty_answer_is_said_to_be_one() -> None:
    found, rollout, _ = play(environment(lambda *_: " "), ASK_BIG, ANSWER)
    assert found.dispatches[0].empty
    assert found.messages[3].text == prompt.no_words("big")
    assert measures(rollout)["faults"] == 0


def test_a_tool_that_says_it_failed_and_one_that_breaks_are_two_things() -> None:
    def broken(arguments: dict[str, Any]) -> str:
        raise UpstreamError("the index is gone")

    search = calls(("web_search", {"query": "7"}))
    found, rollout, _ = play(environment(tools=lambda arguments: "failed: no such page"), search, ASK_BIG, ANSWER)
    assert (found.dispatches[0].error_kind, found.messages[3].text) == ("tool_error", "failed: no such page")
    assert measures(rollout)["faults"] == 0
    found, rollout, _ = play(environment(tools=broken), search, ASK_BIG, ANSWER)
    assert (found.dispatches[0].error_kind, found.dispatches[0].error) == ("tool_failed", "the index is gone")
    assert measures(rollout)["faults"] == 1


def test_a_pool_that_raises_fails_the_rollout_and_what_came_before_is_kept() -> None:
    def experts(expert: str, question: str) -> str:
        if expert == "small":
            raise ValueError("a bug of ours")
        return "42"

    both = calls(("big", {"input": "a"}), ("model_x7k2", {"input": "b"}))
    found, rollout, _ = play(environment(experts), both, ANSWER)
    assert (found.end, found.correct) == (TrajectoryEnd.FAILED, None)
    assert found.error == "environment.step: ValueError: a bug of ours"
    assert [one.name for one in found.dispatches] == ["big"]
    assert rollout.episode.outcome is None


def test_two_tools_of_one_label_are_refused() -> None:
    found, _, _ = play(environment(offer=(OFFER[0], OFFER[0])), ANSWER)
    assert "expected every label once" in (found.error or "")


def test_a_snapshot_is_the_whole_rollout() -> None:
    async def run() -> tuple[Any, ...]:
        made = environment()
        await made.reset(TASK, 0)
        await made.step(action_of(ASK_BIG))
        held = await made.snapshot()
        await made.step(Action(kind="final_reply", text="FINAL_ANSWER: 41"))
        first = await made.verify()
        await made.restore(held)
        await made.step(action_of(ASK_BIG))
        await made.step(Action(kind="final_reply", text="FINAL_ANSWER: 42"))
        return first.completed, (await made.verify()).completed, (await made.verify()).measures["calls"]

    assert asyncio.run(run()) == (False, True, 2)
