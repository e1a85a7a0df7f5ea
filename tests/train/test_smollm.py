"""A real model of 135 million parameters: the shipped LoRA recipe, its adapter, replay. Slow; ``make slow-env`` makes
the checkpoint."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.verdict import score
from firstchair.cli.main import app
from firstchair.core.config import load_recipe
from firstchair.data.golden import BuildOptions, FreezeOptions, GoldenSet, build, freeze
from firstchair.data.sft import sft_records, write_sft
from firstchair.engines.base import Sampling
from firstchair.evals.candidates import CandidateOptions, replay_candidate
from firstchair.evals.metrics import measure
from firstchair.evals.replay import ReplayOptions
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.train.config import SftRecipe
from firstchair.train.sft import train_sft

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".slow" / "smollm2-135m"
TEMPLATE = "qwen3"
"""Its own template shows no tools; this one has the same turns."""
DECISIONS = 5


@pytest.fixture(scope="module")
def model() -> Path:
    if not (MODEL / "config.json").is_file():
        pytest.fail(f"{MODEL}: no such checkpoint; make it with: make slow-env")
    return MODEL


@pytest.fixture
def golden(tmp_path: Path) -> GoldenSet:
    when = "2026-02-03T00:00:00Z"
    sessions = [trip_session(number) for number in (20, 21)]
    build(sessions, lambda _: trip_tools(), tmp_path / "draft", BuildOptions("trips", when, verified=True))
    catalog = Catalog.from_tools("trips", trip_tools()).model_copy(update={"verified": True})
    options = FreezeOptions(catalog=catalog, scorer=score, created_at=when)
    return freeze(tmp_path / "draft", tmp_path / "golden", options)


def records(path: Path, numbers: range) -> Path:
    write_sft(path, sft_records(map(trip_session, numbers), lambda _: trip_tools()))
    return path


def test_the_lora_recipe_trains_it_and_the_adapter_is_replayed(model: Path, golden: GoldenSet, tmp_path: Path):
    fields = {
        "model": model,
        "out": tmp_path / "run",
        "data.train": records(tmp_path / "train.jsonl", range(8)),
        "data.dev": records(tmp_path / "dev.jsonl", range(8, 10)),
        "data.template": TEMPLATE,
        "data.max_tokens": 1024,
        "batch.micro_tokens": 1024,
        "batch.sessions": 2,
        "max_steps": 4,
    }
    recipe = load_recipe(
        SftRecipe, ROOT / "recipes" / "sft_lora.yaml", [f"{name}={value}" for name, value in fields.items()]
    )
    result = train_sft(recipe)
    assert result.steps == 4
    assert result.start_nll is not None
    assert result.final_nll is not None
    # A model that can read: untrained weights of this vocabulary would stand at 10.8 nats.
    assert result.final_nll < result.start_nll < 6

    found = {}
    for name, adapter in (("before", ""), ("after", str(result.model_dir))):
        who = CandidateOptions("transformers", str(model), template=TEMPLATE, adapter=adapter)
        options = ReplayOptions(Sampling(max_new_tokens=32), adapter=adapter, limit=DECISIONS)
        run = replay_candidate(golden, who, tmp_path / name, options)
        rates = measure(run.rows)
        assert rates["errors"].value == 0
        assert rates["errors"].n == rates["strict_pass"].n == DECISIONS
        found[name] = [row.text for row in run.rows]
    assert found["before"] != found["after"]


def test_its_prompts_are_those_of_transformers(model: Path):
    result = CliRunner().invoke(app, ["parity", "--model", str(model), "--template", TEMPLATE])
    assert result.exit_code == 0, result.output
