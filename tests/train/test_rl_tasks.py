"""What a recipe names as environment, opened: mistakes are named, and every part of a reward finds what proves it."""

import asyncio
from collections import Counter

import pytest

from firstchair.chat.actions import Action
from firstchair.chat.messages import Tool, ToolCall, text_message
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.data.rl_prompts import write_prompts
from firstchair.rewards.composition import Composition
from firstchair.rewards.probes import probe_rewards
from firstchair.rollout.decision_env import ONE_ACTION, DecisionEnvironment
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.episodes import Limits
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask
from firstchair.train import rl_tasks
from firstchair.train.grpo_recipe import (
    DecisionTasks,
    DeskTasks,
    GrpoRecipe,
    OrchestrationTasks,
    PythonTasks,
    Rollouts,
)
from firstchair.train.rl_tasks import OpenEnvironment, open_environment

LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})
CALL = Action(kind="tool_call", calls=(ToolCall.of("c", "look", {"at": "sky"}),))


def reward(*components):
    return validate(Composition, {"components": list(components)}, source="test")


def part(check, **when):
    return {"name": check, "kind": "verifier", "check": check, "when": when}


def prompt(number, category, gold=CALL):
    ask = (text_message("user", f"Look {number}."),)
    return PromptRecord(id=f"p{number}", messages=ask, tools=(LOOK,), gold=gold, category=category)


def test_parts_of_a_reward_that_are_for_some_decisions_alone_are_proven_wherever_those_stand():
    stop = Action(kind="final_reply", text="Done.")
    tasks = [*(prompt(n, "often") for n in range(20)), prompt(20, "rare"), prompt(21, "often", stop)]
    pairs = asyncio.run(OpenEnvironment(DecisionEnvironment, tasks, ONE_ACTION).probe_pairs())
    routed = reward(
        part("schema_valid", category="often"),
        part("right_tool", category="rare"),
        part("arguments"),
        part("termination", kind="final_reply"),
    )
    asyncio.run(probe_rewards(routed, pairs))
    with pytest.raises(ConfigError, match="right_tool: found no known-good and known-bad answer"):
        asyncio.run(probe_rewards(reward(part("right_tool", category="never"), part("arguments")), pairs))


def test_parts_of_a_reward_that_are_for_some_rows_of_the_desk_alone_are_proven(monkeypatch):
    monkeypatch.setattr(rl_tasks, "PROBED", 1)
    opened = open_environment(DeskTasks(tasks=3), Rollouts())
    pairs = asyncio.run(opened.probe_pairs())
    (rare, *_) = set(opened.tasks[2].rows) - set(opened.tasks[0].rows)
    asyncio.run(probe_rewards(reward(part("completed"), part("checks", rows=rare)), pairs))


def test_a_decision_has_the_limits_of_the_recipe_and_no_second_try(tmp_path):
    write_prompts(tmp_path / "p.jsonl", [prompt(0, "a")], source="test", left_out=Counter())
    opened = open_environment(
        DecisionTasks(records=tmp_path / "p.jsonl"), Rollouts(max_tokens=9, wall_s=7, stall_s=5)
    )
    assert opened.limits == Limits(max_malformed=0, max_tokens=9, wall_s=7, stall_s=5)


def test_decisions_of_one_id_and_other_contents_are_told_apart(tmp_path):
    sources = []
    for name, said in (("p", "a"), ("q", "a"), ("r", "b")):
        path = tmp_path / f"{name}.jsonl"
        write_prompts(path, [prompt(0, said)], source="test", left_out=Counter())
        sources.append(open_environment(DecisionTasks(records=path), Rollouts()).source)
    assert sources[0] == sources[1] != sources[2]


def raising():
    raise OSError("no database")


def unnamed():
    return DeskEnvironment, ["a task"]


def endless():
    return DeskEnvironment, iter([WordTask(task_id="a", words=())])


def no_expert():
    return WordEnvironment, [WordTask(task_id="a", words=("fox",))], WordExpert().act


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", r"raised OSError: no database"),
        ("unnamed", r"task 0: found 'a task'; expected one with a text `task_id`"),
        ("endless", r"gave tuple; expected .* a sequence of tasks"),
        ("no_expert", r"expert: found <bound method.*expected one with `act\(messages, tools\)`"),
    ],
)
def test_a_factory_that_gives_something_else_is_named(name, message):
    spec = PythonTasks(factory=f"{__name__}:{name}")
    with pytest.raises(ConfigError, match=rf"environment\.factory: .*:{name}.*{message}"):
        open_environment(spec, Rollouts())


@pytest.mark.parametrize("component", [{"kind": "cost_aware", "lambda_cost": 0.4}, {"kind": "preference"}])
def test_rewards_of_simulated_experts_are_proven_by_one_that_asks_the_best(component):
    opened = open_environment(OrchestrationTasks(tasks=30, wishes=("", "cost", "latency")), Rollouts())
    pairs = asyncio.run(opened.probe_pairs())
    assert all(pair.good.used_usd > 0 for pair in pairs)
    asyncio.run(probe_rewards(reward({"name": "wanted", **component}), pairs))


@pytest.mark.parametrize(
    ("kind", "fields"), [("cost", {"weight": -1.0, "bounds": [0, 1]}), ("cost_aware", {"lambda_cost": 0.1})]
)
def test_a_cost_is_for_environments_that_count_one(kind, fields):
    components = [part("completed"), {"name": "usd", "kind": kind, **fields}]
    recipe = {"model": "m", "out": "o", "reward": {"components": components}}
    with pytest.raises(ConfigError, match="usd is a cost"):
        validate(GrpoRecipe, recipe, source="test")
    for environment in ({"type": "orchestration"}, {"type": "python", "factory": f"{__name__}:raising"}):
        assert validate(GrpoRecipe, {**recipe, "environment": environment}, source="test")
