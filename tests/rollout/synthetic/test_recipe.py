"""Synthetic tasks in a GRPO recipe: opened by name, and every part of a reward is proven on them."""

import asyncio

import pytest

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.rewards.composition import Composition
from firstchair.rewards.probes import probe_rewards
from firstchair.train.grpo_recipe import GrpoRecipe, Rollouts, SyntheticTasks
from firstchair.train.rl_tasks import open_environment

REWARD = {
    "components": [
        {"name": "done", "kind": "verifier", "check": "completed", "gate": True},
        {"name": "partly", "kind": "verifier", "check": "checks", "weight": 0.3},
        {"name": "refused", "kind": "verifier", "check": "completed", "when": {"rows": "refusal"}},
    ]
}


def test_a_recipe_names_domains_and_its_reward_is_probed_with_the_golden_expert():
    fields = {
        "model": "m",
        "out": "o",
        "environment": {"type": "synthetic", "domains": ["library"]},
        "reward": REWARD,
    }
    recipe = validate(GrpoRecipe, fields, source="test")
    assert recipe.environment == SyntheticTasks(domains=("library",))
    opened = open_environment(recipe.environment, Rollouts())
    assert {task.domain for task in opened.tasks} == {"library"}
    pairs = asyncio.run(opened.probe_pairs())
    assert {row for pair in pairs for row in pair.good.labels["rows"]} == {
        "read",
        "write",
        "multi",
        "refusal",
        "library",
    }
    asyncio.run(probe_rewards(validate(Composition, REWARD, source="test"), pairs))


def test_all_shipped_domains_are_meant_when_none_is_named_and_an_unknown_one_is_an_error():
    opened = open_environment(SyntheticTasks(), Rollouts())
    assert len({task.domain for task in opened.tasks}) == 10
    assert len({task.task_id for task in opened.tasks}) == len(opened.tasks) >= 200
    with pytest.raises(ConfigError, match="domain 'zoo'"):
        open_environment(SyntheticTasks(domains=("zoo",)), Rollouts())
