import json
from pathlib import Path

import pytest

from firstchair.core.config import load_recipe
from firstchair.core.errors import ConfigError
from firstchair.train.config import SftRecipe, TinyRecipe
from firstchair.train.dpo_recipe import DpoRecipe

KINDS = {"dpo": DpoRecipe, "sft": SftRecipe, "tiny": TinyRecipe}
RECIPES = [
    path
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    if path.stem.partition("_")[0] in KINDS
]
NEEDED = ["model=m", "out=o", "data.train=t.jsonl"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_in_the_repository_loads(path):
    recipe = load_recipe(KINDS[path.stem.partition("_")[0]], path)
    assert recipe.out


def test_fields_can_be_overridden():
    recipe = load_recipe(SftRecipe, None, [*NEEDED, "method.type=lora", "method.rank=8", "optimizer.lr=1e-5"])
    assert recipe.method.rank == 8
    assert recipe.optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1", "learning_rate: unknown field"),
        ("batch.session=1", "batch.session: unknown field; did you mean sessions"),
        ("optimizer.lr=0", "greater than 0"),
        ("batch.micro_tokens=100", r"batch.micro_tokens \(100\) must be at least data.max_tokens \(4096\)"),
        ("eval.micro_tokens=100", r"eval.micro_tokens \(100\) must be at least data.max_tokens \(4096\)"),
        ("base_precision=bf16", "only LoRA has frozen weights"),
        ("method.type=oft", "'full', 'lora'"),
        ("epochs=.inf", "epochs: Input should be .*; found inf"),
        ("epochs=inf", "epochs: Input should be .*; found inf"),
        ("optimizer.lr=inf", "optimizer.adamw.lr: Input should be a finite number; found inf"),
        ("optimizer.lr=.nan", "optimizer.adamw.lr: Input should be a finite number; found nan"),
        ("seed=99999999999", "seed: Input should be less than or equal to 4294967295; found 99999999999"),
        (f"batch.sessions={'9' * 30}", "batch.sessions: Input should be less than or equal to 1000000; found 9"),
        ("max_steps=1e30", "max_steps: .*; found 1e\\+30"),
        ("data.workers=100000", "data.workers: Input should be less than or equal to 1024"),
        ("log.trackers=[excel]", "'mlflow', 'wandb' or 'trackio'"),
    ],
)
def test_a_mistake_is_explained(override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(SftRecipe, None, [*NEEDED, override])


def test_the_hash_covers_what_shapes_the_result_and_nothing_else():
    base = load_recipe(SftRecipe, None, NEEDED)
    for same in ("out=elsewhere", "save.every=5", "log.name=x", "data.workers=2", "data.cache=c"):
        assert load_recipe(SftRecipe, None, [*NEEDED, same]).sha256() == base.sha256()
    for other in ("seed=1", "optimizer.lr=1e-3", "data.max_tokens=100", "max_steps=3", "precision=bf16"):
        assert load_recipe(SftRecipe, None, [*NEEDED, other]).sha256() != base.sha256()


def test_every_whole_number_of_a_recipe_has_an_upper_bound():
    for recipe in (DpoRecipe, SftRecipe, TinyRecipe):
        for text in json.dumps(recipe.model_json_schema()).split('"type": "integer"')[:-1]:
            assert text[text.rindex("{") :].count('"maximum"') == 1, text[-200:]


def test_a_tiny_model_needs_whole_heads():
    with pytest.raises(ConfigError, match=r"hidden \(100\) must be an even multiple of heads \(3\)"):
        load_recipe(TinyRecipe, None, ["corpus=[a.jsonl]", "out=o", "hidden=100", "heads=3"])
