"""``firstchair train grpo`` from the command line: a short run on the shipped base model, and what stops one."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from firstchair.cli.train import app
from firstchair.core.config import load_recipe
from firstchair.train.base_model import copy_base_model
from firstchair.train.grpo_recipe import GrpoRecipe

FIELDS = {
    "environment": {"type": "desk", "tasks": 3, "seed": 3},
    "reward": {
        "components": [
            {"name": "partly", "kind": "verifier", "check": "checks"},
            {"name": "tokens", "kind": "length", "weight": -0.01, "bounds": [0, 1000]},
        ]
    },
    "rollouts": {"prompts": 2, "samples": 3, "max_steps": 2, "max_new_tokens": 24},
    "batches": 1,
}


@pytest.fixture
def recipe(tmp_path):
    fields = {**FIELDS, "model": str(copy_base_model(tmp_path / "base")), "out": str(tmp_path / "run")}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_run_says_what_it_leaves_and_is_not_replaced(recipe, tmp_path):
    runner = CliRunner()
    done = runner.invoke(app, ["grpo", str(recipe), "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert said["steps"] == 1
    assert said["reward_first"] == said["reward_last"]
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    again = runner.invoke(app, ["grpo", str(recipe)])
    assert again.exit_code != 0
    assert "exists" in str(again.exception)
    resumed = runner.invoke(app, ["grpo", str(recipe), "--resume"], catch_exceptions=False)
    assert "solved_last" in resumed.stdout


def test_the_recipe_in_the_repository_loads(request):
    loaded = load_recipe(GrpoRecipe, request.config.rootpath / "recipes" / "grpo_desk.yaml")
    assert loaded.environment.type == "desk"
