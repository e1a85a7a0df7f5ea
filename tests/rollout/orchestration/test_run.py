"""Many rollouts: each is accounted for whatever breaks, and tokens stay whole when the history is cut."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from firstchair.catalog.prices import PriceTable
from firstchair.chat.messages import Message, ToolCall, assistant_message
from firstchair.core.errors import UpstreamError
from firstchair.engines.base import ErrorKind, Generation, Request, Sampling, Stop
from firstchair.engines.expert import ExpertAnswer
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.live_episode import EpisodeEnd
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.run import ENDS, Tally, run_orchestrations, traced
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.policy import Policy
from firstchair.rollout.rollouts import Rollout, RolloutPlan, run_rollout, run_rollouts
from firstchair.testing.orchestration import (
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
from firstchair.testing.tokenizers import make_renderer

OFFER = (model_on_offer("big"), model_on_offer("small"), tool_on_offer("web_search", "web_search"))
ANSWER = assistant_message("FINAL_ANSWER: 42")


def tasks(count: int) -> list[OrchestrationTask]:
    return [OrchestrationTask(task_id=f"t{n}", problem=f"Problem {n}?", gold_answer="42") for n in range(count)]


def run(make: Any, todo: Sequence[OrchestrationTask], policy: Policy, **plan: Any) -> list[Trajectory]:
    async def collect() -> list[Trajectory]:
        played = run_orchestrations(make, todo, policy, RolloutPlan(**{"samples": 1, "seed": 0, **plan}))
        return [found async for found in played]

    return asyncio.run(collect())


def test_every_way_to_end_is_a_way_to_end() -> None:
    assert ENDS.keys() == set(EpisodeEnd)


def test_samples_of_a_task_are_told_apart_and_the_policys_own_cost_is_known_where_its_price_is() -> None:
    def reply(request: Request) -> Generation:
        message = ANSWER if len(request.messages) > 2 else calls(("big", {"input": "x"}))
        return Generation("", Stop.END, message=message, prompt_tokens=1000, output_tokens=10)

    def make() -> OrchestrationEnvironment:
        return OrchestrationEnvironment(
            lambda task, seed: OFFER, ScriptedExperts(lambda *_: "42"), None, ExactGrader()
        )

    async def collect() -> tuple[list[Trajectory], Trajectory]:
        policy = EnginePolicy(ScriptedEngine(reply, model="claude-haiku-4-5"), None, Sampling())
        plan, prices = RolloutPlan(samples=2, seed=0), PriceTable.load()
        found = [one async for one in run_orchestrations(make, tasks(2), policy, plan, prices=prices)]
        return found, traced(await run_rollout(make, tasks(2)[1], 1, policy, plan), prices)

    found, alone = asyncio.run(collect())
    (same,) = [one for one in found if (one.task_id, one.sample) == ("t1", 1)]
    assert (alone.task_id, alone.sample, alone.seed, alone.messages) == ("t1", 1, same.seed, same.messages)
    assert sorted((one.task_id, one.sample) for one in found) == [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)]
    assert len({one.seed for one in found}) == 4
    for one in found:
        assert (one.prompt_tokens, one.completion_tokens) == (2000, 20)
        assert one.policy_cost_nano == 2000 * 1000 + 20 * 5000  # 1 and 5 USD a million


class Faulty:
    """Breaks a fifth of everything: experts, tools, the grader, the policy, each in every way it can. What breaks
    follows from what is asked, in whatever order it comes.
    """

    def __init__(self) -> None:
        self.injected: Counter[str] = Counter()

    def hit(self, what: str, asked: str, ways: Sequence[str] = ("",)) -> str | None:
        """The way in which ``what`` breaks when it is asked that; ``None``: it does not."""
        drawn = random.Random(f"{what}: {asked}")
        if drawn.random() >= 0.2:
            return None
        self.injected[what] += 1
        return drawn.choice(ways)

    async def expert(self, expert: str, question: str) -> str | ExpertAnswer:
        ways = [*map(str, ErrorKind), "hangs", "empty", "long", "unpriced", "raises", "half a character"]
        way = self.hit("expert", expert + question, ways)
        if way is None:
            return "42"
        if way == "hangs":
            return await never()
        if way == "raises":
            raise ValueError("a bug of the pool's")
        if way == "unpriced":
            return ExpertAnswer("", "42", usage=USAGE, cost_nano=None)
        if way in ("empty", "long", "half a character"):
            return {"empty": "", "long": "42 " * 9_000, "half a character": "42\ud83d"}[way]
        return failing(ErrorKind(way))

    def search(self, arguments: dict[str, Any]) -> str:
        if self.hit("tool", arguments["query"]) is not None:
            raise UpstreamError("gone")
        return "something" if self.hit("tool says so", arguments["query"]) is None else "failed: nothing"

    def reply(self, request: Request) -> Message | Generation:
        heard = [message.text for message in request.messages if message.role == "tool"]
        asked = f"{request.messages[1].text} {len(request.messages)}"
        ways = ("error", "overflow", "unknown", "unreadable", "empty", "no delegation")
        way = self.hit("policy", asked, ways)
        if way in ("error", "overflow"):
            kind = ErrorKind.SERVER if way == "error" else ErrorKind.CONTEXT_OVERFLOW
            return Generation("", Stop.ERROR, error=f"{kind}: down", error_kind=kind)
        if way == "no delegation" or (way is None and heard.count("42") > 1):
            return ANSWER
        broken = assistant_message(calls=(ToolCall(id="", name="big", arguments="{"),))
        good = calls(("small" if heard else "big", {"input": asked}), ("web_search", {"query": asked}))
        return {
            "unknown": calls(("huge", {"input": "x"})),
            "unreadable": broken,
            "empty": calls(("big", {"input": ""})),
            None: good,
        }[way]

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        if self.hit("grader", task.task_id) is not None:
            return Grade(correct=None, how="judge_down")
        return await ExactGrader().grade(task, answer)

    async def close(self) -> None:
        pass


def test_a_thousand_tasks_with_a_fifth_of_everything_broken_are_all_accounted_for() -> None:
    fault = Faulty()
    pool = ScriptedExperts(fault.expert)

    def make() -> OrchestrationEnvironment:
        tools, limits = ScriptedTools({"web_search": fault.search}), OrchestrationLimits(dispatch_s=0.2)
        return OrchestrationEnvironment(lambda task, seed: OFFER, pool, tools, fault, limits)

    policy = EnginePolicy(ScriptedEngine(fault.reply), None, Sampling(), record_tokens=False)
    todo, tally = tasks(1000), Tally()
    found = run(make, todo, policy, concurrency=256, max_steps=5)
    for one in found:
        tally.add(one)
    assert min(fault.injected.values()) > 150
    assert Counter(one.task_id for one in found) == Counter(task.task_id for task in todo)
    assert tally.trajectories == 1000
    assert set(tally.ends) == set(map(str, TrajectoryEnd))
    assert sum(tally.grades.values()) == 1000
    for one in found:
        failed = one.end is TrajectoryEnd.FAILED
        assert failed is (one.error is not None)
        # Nothing that broke is ever a wrong answer: what failed has no grade, and what was graded has an answer.
        assert not (failed and one.correct is not None)
        assert one.correct is not False or one.graded_by in ("exact", "no_answer")
    assert {"environment.step", "server"} <= set(tally.errors)
    kinds = {why.partition(": ")[2] for why in tally.faults}
    assert kinds == {*map(str, ErrorKind), "tool_failed", "tool_error"}
    assert tally.unpriced > 0
    assert sum(tally.dispatches.values()) == sum(len(one.dispatches) for one in found)
    assert set(tally.nudges) == {"no_delegation", "empty_input", "answer_now"}


def test_every_sampled_token_is_trained_once_though_the_history_is_cut_and_a_call_taken_back() -> None:
    renderer = make_renderer("tiny")

    def encode(text: str) -> list[int]:
        return [*renderer.encoder.encode(text), renderer.stop_ids[0]]

    def text_of(request: Request) -> str:
        number = next(numbers)
        if number == 6:
            return "FINAL_ANSWER: 42"
        subject = "" if number == 1 else f"question {number}"
        return renderer.tool_format.render((ToolCall.of("", "big", {"input": subject}),))

    numbers = iter(range(99))
    limits = OrchestrationLimits(history_chars=1_000)
    engine = ScriptedEngine(text_of, encode=encode)

    def make() -> OrchestrationEnvironment:
        experts = ScriptedExperts(lambda *_: "word " * 80)
        return OrchestrationEnvironment(lambda task, seed: OFFER, experts, None, ExactGrader(), limits)

    async def collect() -> Rollout:
        policy = EnginePolicy(engine, renderer, record_tokens=False)
        (one,) = [one async for one in run_rollouts(make, tasks(1), policy, RolloutPlan(samples=1, seed=0))]
        return one

    rollout = asyncio.run(collect())
    assert rollout.solved
    assert len(rollout.segments) > 3
    sampled = [part.ids[span.start : span.end] for part in rollout.segments for span in part.assistant_spans()]
    trained = sum(part.trained_tokens for part in rollout.segments)
    assert trained == rollout.episode.sampled_tokens
    assert sampled[-1] == encode("FINAL_ANSWER: 42")
    for part in rollout.segments:
        part.validate(need_logprobs=True)
    assert len(rollout.revisions) == 7
    messages = rollout.episode.session.messages
    last = rollout.segments[-1].assistant_spans()[-1]
    assert messages[last.message_index].text == "FINAL_ANSWER: 42"


@pytest.mark.parametrize("left", [True, False])
def test_leaving_early_closes_what_is_under_way(left: bool) -> None:
    made: list[ScriptedTools] = []

    def make() -> OrchestrationEnvironment:
        made.append(ScriptedTools({}))
        experts = ScriptedExperts(never if left else lambda *_: "42")
        return OrchestrationEnvironment(lambda task, seed: OFFER, experts, made[-1], ExactGrader())

    def reply(request: Request) -> Message:
        quick = request.messages[1].text == "Problem: Problem 0?" and left
        return ANSWER if quick or len(request.messages) > 2 else calls(("big", {"input": "x"}))

    async def first() -> None:
        policy = EnginePolicy(ScriptedEngine(reply), None, Sampling())
        played = run_orchestrations(make, tasks(4), policy, RolloutPlan(samples=1, seed=0))
        async for _ in played:
            if left:
                break
        await played.aclose()

    asyncio.run(first())
    assert len(made) == 4
    assert all(tools.closed for tools in made)
