"""What the ``train`` commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from firstchair.core.jsontext import dumps

if TYPE_CHECKING:
    from firstchair.train.dagger_run import DaggerResult
    from firstchair.train.grpo_run import GrpoResult
    from firstchair.train.record_run import RecordResult
    from firstchair.train.sft_plan import RecordPlan
    from firstchair.train.token_sets import TokenCounts


def print_facts(title: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Name and value, as a table or as one JSON object."""
    if as_json:
        typer.echo(dumps(dict(facts)))
        return
    table = Table(title=title, show_header=False)
    for name, value in facts.items():
        table.add_row(name, _shown(value))
    Console().print(table)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_plan(plan: RecordPlan, *, as_json: bool) -> None:
    """The answer of a dry run."""
    facts = {
        "steps": plan.steps,
        "layout": plan.layout,
        "parameters": plan.parameters,
        "trained_parameters": plan.trained_parameters,
        "tokens_per_second": round(plan.tokens_per_second),
        "estimated_seconds": round(plan.seconds, 1),
    }
    splits = {"train": plan.train, **({"dev": plan.dev} if plan.dev is not None else {})}
    if as_json:
        counts = {name: msgspec.to_builtins(split) for name, split in splits.items()}
        recipe = {"recipe": plan.recipe.resolved(), "recipe_sha256": plan.recipe.sha256()}
        typer.echo(dumps({**recipe, **counts, **facts, "samples": list(plan.samples)}))
        return
    typer.echo(yaml.safe_dump(plan.recipe.resolved(), sort_keys=False, allow_unicode=True))
    for text in plan.samples:
        typer.echo(f"{text}\n")
    Console().print(_counts(splits))
    print_facts("Nothing was trained; a run would take", facts, as_json=False)


def _counts(splits: Mapping[str, TokenCounts]) -> Table:
    table = Table(title="Tokens")
    table.add_column("")
    for name in splits:
        table.add_column(name, justify="right")
    for field in next(iter(splits.values())).__struct_fields__:
        values = [getattr(split, field) for split in splits.values()]
        table.add_row(field, *(f"{_count(value):,}" for value in values))
        if field == "left_out":
            for why in dict.fromkeys(why for split in splits.values() for why in split.left_out):
                table.add_row(f"  {why}", *(f"{split.left_out.get(why, 0):,}" for split in splits.values()))
    return table


def _count(value: int | list[str] | dict[str, int]) -> int:
    if isinstance(value, dict):
        return sum(value.values())
    return len(value) if isinstance(value, list) else value


def _left(result: RecordResult | GrpoResult) -> dict[str, Any]:
    """What every finished run leaves."""
    return {
        "run": str(result.run_dir),
        "model": str(result.model_dir),
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
    }


def print_result(result: RecordResult, held_out: Sequence[str], *, as_json: bool) -> None:
    """What a finished run leaves, and the figures ``held_out`` of its first and its last evaluation."""
    facts = _left(result)
    facts |= {f"left_out: {why}": count for why, count in result.train.left_out.items()}
    evals = [line for line in result.metrics if line["event"] == "eval"]
    for name in held_out:
        facts[f"held_out_{name}_before"] = evals[0][name] if evals else None
        facts[f"held_out_{name}_after"] = evals[-1][name] if evals else None
    print_facts("Trained", facts, as_json=as_json)


def print_reinforced(result: GrpoResult, *, as_json: bool) -> None:
    """What a finished GRPO run leaves: first batches beside last ones, so that it shows whether it learned."""
    steps = [line for line in result.metrics if line["event"] == "step" and "reward" in line]
    tenth = max(len(steps) // 10, 1)
    facts = _left(result)
    for name in ("reward", "solved", "malformed", "behaviour_diff_max"):
        for when, some in (("first", steps[:tenth]), ("last", steps[-tenth:])):
            values = [line[name] for line in some if name in line]
            facts[f"{name}_{when}"] = fmean(values) if values else None
    print_facts(f"Reinforced ({tenth} of {len(steps)} steps at each end)", facts, as_json=as_json)


def print_taught(result: DaggerResult, *, as_json: bool) -> None:
    """What a finished DAgger run leaves: each round's episodes, lessons and recovery."""
    from firstchair.train.dagger_figures import shown

    figures = result.figures
    if as_json:
        places = {"run": str(result.run_dir), "model": str(result.model_dir)}
        typer.echo(dumps({**places, **msgspec.to_builtins(figures)}))
        return
    table = Table(title="Taught, round by round (95% intervals)")
    table.add_column("")
    for line in figures.rounds:
        table.add_column(str(line.round), justify="right")
    rows: dict[str, list[str]] = {}
    for line in figures.rounds:
        taught, facts = line.taught, dict[str, str]()
        if taught is not None:
            facts = {"episodes": f"{taught.episodes:,}", "derailed steps": shown(taught.derailed)}
            facts["steps without a label"] = f"{taught.unlabelled:,}"
            for kind in ("derailed", "recovery", "agreed"):
                facts[f"lessons: {kind}"] = f"{taught.records.get(kind, 0):,}"
            facts |= {"records replayed": f"{line.replayed:,}", "optimizer steps": f"{line.steps:,}"}
        facts["recovery"] = shown(line.recovery.completed)
        for name, value in facts.items():
            rows.setdefault(name, []).append(value)
    for name in sorted(rows, key=lambda name: name == "recovery"):
        values = rows[name]
        table.add_row(name, *("–" for _ in range(len(figures.rounds) - len(values))), *values)
    Console().print(table)
    typer.echo(f"recovery {shown(figures.difference)} on the same cases; the model is {result.model_dir}")
