"""What the ``train`` commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.table import Table

from firstchair.core.jsontext import dumps

if TYPE_CHECKING:
    from firstchair.train.sft import SftResult
    from firstchair.train.sft_plan import SftPlan
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


def print_plan(plan: SftPlan, *, as_json: bool) -> None:
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
        table.add_row(field, *(f"{len(value) if isinstance(value, list) else value:,}" for value in values))
    return table


def print_result(result: SftResult, *, as_json: bool) -> None:
    """What a finished run leaves, and what to do with it."""
    facts = {
        "run": str(result.run_dir),
        "model": str(result.model_dir),
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "held_out_nll_before": result.start_nll,
        "held_out_nll_after": result.final_nll,
    }
    print_facts("Trained", facts, as_json=as_json)
