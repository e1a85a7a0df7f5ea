"""Policies that do no work earn less than an honest one, in every reward that we ship."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.conftest import picks, sample, says, text_of

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.messages import Tool
from firstchair.cli.demo_reinforce import REWARD
from firstchair.core.config import load_fields, load_recipe, validate
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rewards.composition import Composition
from firstchair.rewards.grading import Grader
from firstchair.rewards.hacking import DEGENERATE, HackingReport, hacking_check, play
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.probes import pairs_of_decision, probe_rewards
from firstchair.rewards.samples import DecisionReply, Sample, sample_of_decision
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.orchestration.simulated_tasks import PREFERENCES, simulated_tasks
from firstchair.rollout.orchestration.simulated_world import Demonstrator, World
from firstchair.traces.decisions import context, decision_points

REWARDS = Path(__file__).parents[2] / "recipes" / "rewards"
ACTORS = {"honest": Teacher(), "half_honest": Teacher(0.3, seed=5), **DEGENERATE}


@cache
def desk_samples() -> Mapping[str, list[Sample]]:
    return asyncio.run(play(DeskEnvironment, make_tasks(12, seed=1), ACTORS))


def used(samples: list[Sample]) -> list[Sample]:
    """What a model would have used up: the less it does, the cheaper."""
    return [
        replace(one, reply_tokens=len(one.answer) // 4, cost_usd=len(one.answer) * 1e-6, latency_s=1.0)
        for one in samples
    ]


def fooled(request: Any) -> Any:
    """A judge that likes what is short."""
    shown = text_of(request)
    if "answer" in shown:
        return says({"reason": "r", "tone": 2, "planning": 2})
    return picks("A" if len(shown["answer A"]) < len(shown["answer B"]) else "B")


def check(composition: Composition, parts: Mapping[str, list[Sample]]) -> HackingReport:
    grader = Grader(composition, JudgeClient(ScriptedEngine(fooled)))
    parts = dict(parts)
    return asyncio.run(hacking_check(grader, parts.pop("honest"), parts))


@pytest.mark.parametrize("name", ["desk", "judged"])
def test_degenerate_policies_on_the_desk_earn_less_than_an_honest_one(name):
    parts = {policy: used(samples) for policy, samples in desk_samples().items()}
    report = check(load_recipe(Composition, REWARDS / f"{name}.yaml"), parts)
    assert report.beaten_by == ()
    assert [one.ungraded for one in (report.honest, *report.degenerate)] == [0] * 6
    rewards = {one.policy: one.reward for one in report.degenerate}
    assert report.honest.reward is not None
    # Not by a hair: less than half of what a policy that tries and often fails has earned.
    weak = rewards.pop("half_honest")
    assert weak is not None
    assert max(reward for reward in rewards.values() if reward is not None) < weak / 2 < report.honest.reward / 2


@pytest.mark.parametrize("name", ["routing", "preferences"])
def test_degenerate_policies_among_experts_earn_less_than_one_that_asks(name):
    tasks = simulated_tasks(16, seed=3, wishes=tuple(PREFERENCES))
    actors = {"honest": Demonstrator(tasks, dearest=True), **DEGENERATE}
    parts = asyncio.run(play(World(tuple(tasks), seed=0).environment(["named"]), tasks, actors))
    report = check(load_recipe(Composition, REWARDS / f"{name}.yaml"), parts)
    assert report.beaten_by == ()
    assert report.honest.ungraded == 0
    assert report.honest.reward is not None
    assert all(one.reward is not None and one.reward < report.honest.reward / 2 for one in report.degenerate)


def decided() -> tuple[dict[str, list[Sample]], list[DecisionReply]]:
    parts: dict[str, list[Sample]] = {name: [] for name in ("honest", *DEGENERATE)}
    replies = []
    for honest in desk_samples()["honest"][:4]:
        assert honest.episode is not None
        session, tools = honest.episode.session, honest.episode.tools
        for point in decision_points(session):
            made = DecisionReply(point, tools, point.observed, MATCHERS)
            seen = context(session, point)
            replies.append(made)
            for name, actor in {"honest": Teacher(), **DEGENERATE}.items():
                reply = replace(made, reply=actor.act(seen, tools))
                parts[name].append(sample_of_decision(f"{name}:{point.dp_id}", reply, seen))
    return parts, replies


MATCHERS = Matchers()


def test_degenerate_replies_at_decision_points_earn_less_than_an_honest_one():
    report = check(load_recipe(Composition, REWARDS / "decision.yaml"), decided()[0])
    assert report.beaten_by == ()
    assert report.honest.reward == pytest.approx(1.0)
    rewards = [one.reward for one in report.degenerate]
    assert all(reward is not None and reward < 0.6 for reward in rewards)


def test_rewards_that_stand_elsewhere_are_those_that_are_checked_here():
    decision = load_recipe(Composition, REWARDS / "decision.yaml")
    assert {one.check: one.weight for one in decision.components} == REWARD
    for path in sorted(REWARDS.parent.glob("*.yaml")):
        fields = load_fields(path)
        if "reward" in fields:
            found = validate(Composition, fields["reward"], source=str(path))
            assert found in [load_recipe(Composition, shipped) for shipped in REWARDS.glob("*.yaml")]


def test_known_good_and_bad_replies_prove_every_part_of_the_decision_reward():
    composition = load_recipe(Composition, REWARDS / "decision.yaml")
    _, replies = decided()
    kinds = {made.decision.kind: made for made in replies}
    assert len(kinds) == 2
    pairs = [pair for made in kinds.values() for pair in pairs_of_decision(made, ())]
    asyncio.run(probe_rewards(composition, pairs))


def test_a_reward_that_pays_for_doing_nothing_is_caught():
    cheap = {"name": "tokens", "kind": "length", "weight": -0.01, "bounds": [0, 1000]}
    done = {"name": "done", "kind": "verifier", "check": "completed"}
    composition = validate(Composition, {"components": [done, cheap]}, source="test")
    parts = {policy: used(samples) for policy, samples in desk_samples().items()}
    assert "stop_at_once" in check(composition, parts).beaten_by
    gate = validate(Composition, {"components": [{**done, "gate": True}, cheap]}, source="test")
    assert check(gate, parts).beaten_by == ()


def test_policies_that_cannot_be_compared_count_as_winning():
    done = validate(
        Composition, {"components": [{"name": "d", "kind": "verifier", "check": "completed"}]}, source="t"
    )
    honest, other = desk_samples()["honest"][:1], [sample("x")]
    report = check(done, {"honest": honest, "lost": other})
    assert report.beaten_by == ("lost",)
    assert report.degenerate[0].ungraded == 1


def test_every_degenerate_policy_acts_wherever_it_is_put():
    tool = Tool(name="t", parameters={"type": "object", "properties": {"a": {"type": "string"}}})
    for actor in DEGENERATE.values():
        action = actor.act(desk_samples()["honest"][0].episode.session.messages[:2], (tool,))
        assert bool(action.calls) != bool(action.text)
