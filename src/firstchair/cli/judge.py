"""``firstchair judge``: calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Force
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.evals.judge_calibration import Calibration
    from firstchair.evals.stats import Rate
    from firstchair.rewards.composition import Composition, JudgeComponent

app = typer.Typer(no_args_is_help=True, help="Judges of rewards: how far one can be trusted.")


@app.callback()
def _group() -> None:
    """Judges of rewards: how far one can be trusted."""


@app.command()
def calibrate(
    labels: Annotated[
        Path,
        typer.Argument(
            metavar="LABELS",
            help="JSONL of hand labels: {question, answer, scores} for a rubric, {question, a, b, winner} for pairs.",
        ),
    ],
    rewards: Annotated[
        Path, typer.Option(help="YAML file of the rewards, or a recipe that has them under `reward`.")
    ],
    component: Annotated[str, typer.Option(help="Which judge component; needed when there are several.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="How often each question is asked.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the result as JSON to this file.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare a judge with hand labels: agreement, pull of the position, and whether it repeats itself."""
    import msgspec

    from firstchair.cli.tables import print_json
    from firstchair.core.atomic import refuse_existing, write_text
    from firstchair.core.jsontext import dumps
    from firstchair.core.progress import progress
    from firstchair.evals.judge_calibration import read_labelled, run_calibration
    from firstchair.rewards.judge_server import open_judge

    composition = _composition(rewards)
    chosen = _component(composition, component, rewards)
    items = read_labelled(labels, chosen)
    if out is not None:
        refuse_existing(out, force=force)
    assert composition.judge is not None
    client = open_judge(composition.judge)
    count = len(items) * repeats * (2 if chosen.mode == "pairwise" else 1)
    with progress(f"judge {chosen.name}", count, unit="questions") as bar:
        found = run_calibration(client, chosen, items, repeats=repeats, seed=seed, progress=bar)
    value = msgspec.to_builtins(found)
    if out is not None:
        write_text(out, dumps(value) + "\n", force=force)
    if as_json:
        print_json(value)
    else:
        _print(found)


def _composition(path: Path) -> Composition:
    from firstchair.core.config import load_fields, validate
    from firstchair.rewards.composition import Composition

    fields = load_fields(path)
    return validate(Composition, fields.get("reward", fields), source=str(path))


def _component(composition: Composition, name: str, path: Path) -> JudgeComponent:
    from firstchair.rewards.composition import JudgeComponent

    judges = {one.name: one for one in composition.components if isinstance(one, JudgeComponent)}
    if not judges:
        raise ConfigError(f"{path}: found no component of kind judge; there is nothing to calibrate")
    if not name and len(judges) == 1:
        return next(iter(judges.values()))
    if name not in judges:
        found = f"found {name!r}" if name else "several components ask a judge"
        raise ConfigError(f"--component: {found}; expected one of {', '.join(judges)}")
    return judges[name]


def _print(found: Calibration) -> None:
    from rich.console import Console

    from firstchair.cli.tables import counted, table

    shown = table("", "#value", "#95% interval", "#n", title=f"{found.component} ({found.mode}), judge {found.judge}")
    for one in found.agreement:
        shown.add_row(f"{one.dimension}: agreement with people", *_cells(one.raw))
        shown.add_row(f"{one.dimension}: Cohen's κ", *_cells(one.kappa, percent=False))
    if found.position is not None:
        shown.add_row("verdict flips with the order", *_cells(found.position.flips))
        shown.add_row("  towards the answer shown first", str(found.position.to_first), "", "")
        shown.add_row("  towards the answer shown second", str(found.position.to_second), "", "")
    if found.repeats > 1:
        shown.add_row(f"same verdict {found.repeats} times out of {found.repeats}", *_cells(found.consistency))
    Console().print(shown)
    for why, count in found.unscored.items():
        typer.echo(f"{counted(count, 'question')} without a verdict: {why}")


def _cells(rate: Rate, *, percent: bool = True) -> tuple[str, str, str]:
    def text(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.1%}" if percent else f"{value:.2f}"

    interval = "–" if rate.low is None else f"{text(rate.low)} to {text(rate.high)}"
    return text(rate.value), interval, str(rate.n)
