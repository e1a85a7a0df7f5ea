"""The README's table comes from the demo's summary."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from firstchair.core.errors import DataError
from firstchair.evals.metrics import METRICS

ROOT = Path(__file__).parents[2]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("generate_results", ROOT / "docs" / "generate_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


results = load()


def rate(value: float | None, n: int) -> dict[str, Any]:
    return {"value": value, "n": n, "low": None if value is None else 0.25, "high": None if value is None else 0.75}


def summary(seed: int = 0) -> dict[str, Any]:
    return {
        "baseline": {metric.name: rate(0.5, 600) for metric in METRICS} | {"argument_quality": rate(None, 0)},
        "sft": {metric.name: rate(0.625, 600) for metric in METRICS},
        "completion": {"before": rate(0.5, 60), "after": rate(0.7, 60)},
        "strict_pass_by_kind": {"baseline": {"final reply": rate(0.5, 200)}, "sft": {"final reply": rate(0.75, 200)}},
        "options": {"sessions": 2000, "epochs": 1.5, "seed": seed},
        "golden_sha256": "0123456789abcdef",
        "seconds": {"total": 240.4, "train": 160.2},
    }


def test_the_table_holds_rates_intervals_counts_and_the_hash():
    table = results.table(summary())
    assert "| pass, strict | 50.0% (25.0 to 75.0) | 62.5% (25.0 to 75.0) | 600 |" in table
    assert "| … of final reply | 50.0% (25.0 to 75.0) | 75.0% (25.0 to 75.0) | 200 |" in table
    assert "| argument quality, given the right tool | – | 62.5% (25.0 to 75.0) | 0, 600 |" in table
    assert "2,000 training sessions, 1.5 epochs, seed 0, golden set `0123456789ab`." in table
    assert table.endswith("240 seconds in all, 160 of them training.")


def test_a_reinforced_model_stands_beside_the_others():
    found = summary()
    kinds = {**found["strict_pass_by_kind"], "rl": {"final reply": rate(1.0, 200)}}
    alive = {**found["completion"], "rl": rate(0.75, 60)}
    cases = {"grpo": rate(0.6, 60), "dagger": rate(0.8, 60)}
    whole = {**found, "rl": found["sft"], "strict_pass_by_kind": kinds, "completion": alive, "recovery_cases": cases}
    table = results.table(whole)
    assert "| | base | trained | reinforced | n |\n| --- | --- | --- | --- | --- |\n" in table
    assert "| … of final reply | 50.0% (25.0 to 75.0) | 75.0% (25.0 to 75.0) | 100.0% (25.0 to 75.0) | 200 |" in table
    assert "completes 60.0% (25.0 to 75.0) of 60 tasks after GRPO, and 80.0% (25.0 to 75.0) after" in table
    assert "| 75.0% (25.0 to 75.0) | 240 |" in results.seeds([whole, whole])


def test_every_seed_has_a_line():
    assert results.seeds([summary()]) == ""
    lines = results.seeds([summary(0), summary(7)]).split("\n")
    assert lines[-2:] == [
        f"| {seed} | {' | '.join(['62.5% (25.0 to 75.0)'] * 2)} | 70.0% (25.0 to 75.0) | – | 240 |" for seed in (0, 7)
    ]


def test_filling_twice_leaves_one_table_and_the_rest_alone():
    text = f"before\n{results.BEGIN}\nstale\n{results.END}\nafter\n"
    once = results.filled(text, [summary()])
    assert results.filled(once, [summary()]) == once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "stale" not in once


def test_a_text_without_markers_is_refused():
    with pytest.raises(DataError, match="demo:begin"):
        results.filled("nothing here", [summary()])


def test_the_readme_has_the_markers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count(results.BEGIN) == text.count(results.END) == 1
